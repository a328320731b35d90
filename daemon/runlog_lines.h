/* The lines of the run's logs, byte for byte. Pure, but `timing` holds the time of day; any thread. */
#ifndef DAEMON_RUNLOG_LINES_H
#define DAEMON_RUNLOG_LINES_H

#include "worker/control.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stddef.h>

/* Room for the longest line: every double a worker may report, 1e308 without an exponent included, and either
 * a loss of each trainer with all its digits or the counts of each worker of a model-parallel job. */
enum {
    LINE_NUMBER_BYTES = 330,
    LINE_HOLDINGS_BYTES = 5 * 11 * (JOB_SERVERS_MAX + JOB_TRAINERS_MAX),
    /* A server's objects are used by every worker, a trainer's by the first trainer. */
    LINE_PEER_BYTES = 18,
    LINE_PEERS_BYTES = LINE_PEER_BYTES * (JOB_SERVERS_MAX + 2) * (JOB_SERVERS_MAX + JOB_TRAINERS_MAX),
    LINE_BYTES = 1024 + 12 * LINE_NUMBER_BYTES + LINE_HOLDINGS_BYTES + LINE_PEERS_BYTES,
};
_Static_assert(26 * JOB_TRAINERS_MAX <= LINE_HOLDINGS_BYTES, "the losses fit as well");

struct line {
    char text[LINE_BYTES];
    size_t length; /* strlen(text) */
};

/* The last member of every object of episodes.jsonl begins like this. */
#define LINE_TIMING ",\"timing\":{"

/* The learning rate of an update's line begins like this, behind the losses. */
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

/* The references and contexts of a model-parallel job's workers, as each last reported them: an epoch's line
 * has them in `timing`, by worker number, and the finish line their sums, which are 0 after an orderly end.
 */
struct line_holdings {
    const struct control_status *of; /* (workers) */
    uint32_t workers;
};
/* The same lines of a model-parallel job. */
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
void line_not_solved(struct line *line, double running_reward, uint64_t episodes, double wanted);

/* The progress line of a terminal, without a '\n'. */
void line_episode_progress(struct line *line, const struct control_episode *r);
void line_update_progress(struct line *line, const struct control_update *r);
void line_language_update_progress(struct line *line, const struct control_update *r);

/* The update or epoch of a line that is read back. An epoch's line of episodes.jsonl is ordered by its last
 * update, whose line it follows: an epoch that the job's end cuts short has another last update in a run that
 * goes on. */
enum line_kind { LINE_OTHER, LINE_UPDATE, LINE_EPOCH };
struct line_key {
    enum line_kind kind;
    uint64_t number; /* the update's; in episodes.log the epoch's where it is an epoch's line */
    uint64_t epoch;  /* the epoch's; 0 in other lines */
};

struct line_key line_key_of_json(const char *text);
struct line_key line_key_of_text(const char *text);

/* Whether a line of episodes.jsonl has an evaluation. *bytes: the length of an epoch's line up to its
 * evaluation. */
bool line_evaluated(const char *text, size_t *bytes);

#endif
