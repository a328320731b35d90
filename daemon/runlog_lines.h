/* The words of the run's logs: what each line says, byte for byte. Pure but for the clock; any thread. */
#ifndef DAEMON_RUNLOG_LINES_H
#define DAEMON_RUNLOG_LINES_H

#include "worker/control.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stddef.h>

/* Room for every double that a worker may report, 1e308 written out included, and for a loss of each trainer
 * with all its digits, or for what each worker of a model-parallel job holds. */
enum {
    LINE_NUMBER_BYTES = 330,
    LINE_HOLDINGS_BYTES = 5 * 11 * (JOB_SERVERS_MAX + JOB_TRAINERS_MAX),
    /* Every server's objects are used by everybody, and every trainer's by the first one. */
    LINE_PEER_BYTES = 18,
    LINE_PEERS_BYTES = LINE_PEER_BYTES * (JOB_SERVERS_MAX + 2) * (JOB_SERVERS_MAX + JOB_TRAINERS_MAX),
    LINE_BYTES = 1024 + 12 * LINE_NUMBER_BYTES + LINE_HOLDINGS_BYTES + LINE_PEERS_BYTES,
};
_Static_assert(26 * JOB_TRAINERS_MAX <= LINE_HOLDINGS_BYTES, "the losses fit as well");

/* A line that grows at its end. */
struct line {
    char text[LINE_BYTES];
    size_t length; /* strlen(text) */
};

/* Begins that stand in front of the member `timing`, which is the last of every object. */
#define LINE_TIMING ",\"timing\":{"

/* Begins the learning rate of an update's line, behind its losses. */
#define LINE_LR "\"lr\":"

/* One line each, ended by '\n', for episodes.jsonl and for episodes.log. */
void line_start(struct line *line, const struct job *job);
void line_resume(struct line *line, const struct job *job, uint64_t update);
void line_episode_json(struct line *line, const struct control_episode *r);
void line_episode_text(struct line *line, const struct control_episode *r);
void line_update_json(struct line *line, const struct control_update *r);
void line_update_text(struct line *line, const struct control_update *r);
void line_epoch_json(struct line *line, const struct control_epoch *r);
void line_epoch_text(struct line *line, const struct control_epoch *r);
/* The same of a model-parallel job. An epoch's line tells, within `timing`, what each of `workers` holds (by
 * worker number), as it was last heard; the finish line their sums, which are 0 when all left in good
 * order. */
struct line_holdings {
    const struct control_status *of; /* (workers) */
    uint32_t workers;
};
void line_language_update_json(struct line *line, const struct control_update *r);
void line_language_update_text(struct line *line, const struct control_update *r);
void line_language_epoch_json(struct line *line, const struct control_epoch *r,
                              const struct line_holdings *holdings);
void line_language_epoch_text(struct line *line, const struct control_epoch *r);
void line_language_finish(struct line *line, const char *why, uint64_t updates,
                          const struct line_holdings *holdings, double job_s);

void line_finish_episodes(struct line *line, const char *why, uint64_t episodes, double running_reward,
                          double job_s);
void line_finish_updates(struct line *line, const char *why, uint64_t updates, double job_s);
void line_solved(struct line *line, double running_reward);

/* Without a '\n': what a terminal's progress line says. */
void line_episode_progress(struct line *line, const struct control_episode *r);
void line_update_progress(struct line *line, const struct control_update *r);
void line_language_update_progress(struct line *line, const struct control_update *r);

/* What a line of episodes.jsonl or episodes.log is about. Epochs of episodes.jsonl go by their last update,
 * behind whose line they stand: an epoch that a job's end cut short is another one in a run that goes on. */
enum line_kind { LINE_OTHER, LINE_UPDATE, LINE_EPOCH };
struct line_key {
    enum line_kind kind;
    uint64_t number; /* of the update; in episodes.log: of the update or epoch */
    uint64_t epoch;  /* of an epoch's line, in either: its number */
};

struct line_key line_key_of_json(const char *text);
struct line_key line_key_of_text(const char *text);

/* Whether a line of episodes.jsonl tells of an evaluation. *bytes: how much of an epoch's line stands in
 * front of what one adds to it. */
bool line_evaluated(const char *text, size_t *bytes);

#endif
