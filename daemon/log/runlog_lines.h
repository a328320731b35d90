/* Formats the lines of the run's logs, byte for byte, and reads their keys back. Pure; any thread. */
#ifndef DAEMON_LOG_RUNLOG_LINES_H
#define DAEMON_LOG_RUNLOG_LINES_H

#include "worker/control.h"
#include "worker/job/job.h"
#include "worker/run_place.h"

#include <stdbool.h>
#include <stddef.h>

/* Room for the longest line: the references of each worker to the objects of each other one, `"N":COUNT,`
 * with at most 18 bytes; a trainer's loss and the counts of each worker; and every double with at most 330.
 * An episode's line is shorter: 64 metrics with names of 63 bytes, each of which may take 6. */
enum {
    LINE_WORKERS_MAX = JOB_SERVERS_MAX + JOB_TRAINERS_MAX,
    LINE_BYTES = 8192 + 128 * LINE_WORKERS_MAX + 18 * LINE_WORKERS_MAX * LINE_WORKERS_MAX,
};

struct line {
    char text[LINE_BYTES];
    size_t length; /* strlen(text) */
};

/* The last member of every object of episodes.jsonl begins like this. It holds the time of day. */
#define LINE_TIMING ",\"timing\":{"

/* A worker died: a successor takes its place, or all workers start again. */
struct line_restart {
    const char *role; /* NULL: none died, all start again with another number of observers or trainers */
    uint16_t worker;
    uint32_t incarnation; /* the successor's; where all start again, the one that died */
    uint32_t generation;  /* where all start again; else 0 */
    const char *reason;   /* a sentence */
};

/* The last event of episodes.jsonl. */
struct line_end {
    const char *why;
    uint64_t count; /* episodes or updates */
    double running_reward;
    double job_s;
};

/* One line of episodes.jsonl each, ended by '\n': the event "start", with the run's id; "resumed" after the
 * episode or update `number`, with the death that caused it, or NULL after a command; "restarted"; the last
 * event; an episode, update or epoch. An epoch of a model-parallel job shows in `timing` what each worker
 * holds, by its number, and the last event shows the sums, which are 0 after an orderly end. */
void line_write_start(struct line *line, const struct job *job, const uint8_t id[RUN_ID_BYTES]);
void line_write_resumed(struct line *line, const struct job *job, uint64_t number,
                        const struct line_restart *cause);
void line_write_restarted(struct line *line, const struct line_restart *restart);
void line_write_end(struct line *line, const struct job *job, const struct line_end *end,
                    const struct control_status *holdings);

/* Whether the line says that a run has ended by this job's /stop: finished or solved, and /stop was the same.
 */
bool line_ends_job(const char *line, const struct job *job);
void line_write_json(struct line *line, const struct job *job, const struct control_message *record,
                     const struct control_status *holdings);

/* One line of episodes.log each, ended by '\n': of an episode, update or epoch; of the end of a job with
 * /stop/running_reward or /stop/evaluation_reward, where `reward` is what the limit is for. */
void line_write_text(struct line *line, const struct job *job, const struct control_message *record);
void line_write_solved(struct line *line, const struct job *job, double reward);
void line_write_not_solved(struct line *line, const struct job *job, double reward, uint64_t episodes);

/* Clears a terminal's line. */
#define LINE_CLEAR "\r\033[K"

/* The progress line of an episode or update on a terminal: LINE_CLEAR, and no '\n'. */
void line_write_progress(struct line *line, const struct job *job, const struct control_message *record);

/* The episode, update or epoch of a line of either log that is read back, by its own number. */
enum line_kind { LINE_OTHER, LINE_EPISODE, LINE_UPDATE, LINE_EPOCH, LINE_KINDS };
struct line_key {
    enum line_kind kind;
    uint64_t number;
};
struct line_key line_key_of(const char *text);

/* The first line of a log's file after a rotation: `lines` of the run `id` stand in earlier files. */
void line_write_continued(struct line *line, enum run_log log, uint64_t lines,
                          const uint8_t id[RUN_ID_BYTES]);
bool line_continued(const char *text, uint64_t *lines);

/* The id of a run in its start's line or in the first line after a rotation. False: there is none. */
bool line_run_id(const char *text, uint8_t id[RUN_ID_BYTES]);

/* Whether a line is a whole one of an event: neither of a record, nor the first one after a rotation. */
bool line_is_event(const char *text, enum run_log log);

#endif
