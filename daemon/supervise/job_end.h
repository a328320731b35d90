/* How a job ends: its outcome, and the order in which the workers leave.
 *
 *     failed    a worker's death, or an error of the supervisor, ends the job; the job hurries and closes
 *     hurried   the workers give up their calls; those that live 2 s later are killed
 *     closing   each worker is told to leave when its turn has come, and none starts any more
 *
 * A worker leaves before the workers that it connects to, so that they receive its BYE: first the workers
 * that do not listen, then the listeners from the highest number down.
 *
 * Supervisor process; its only thread; no lock. No call blocks. */
#ifndef DAEMON_SUPERVISE_JOB_END_H
#define DAEMON_SUPERVISE_JOB_END_H

#include "daemon/supervise/generation.h"

struct job_end {
    unsigned stops; /* SIGINT and SIGTERM so far */
    bool hurried, closing;
    bool finished; /* FINISHED has come: the logs and checkpoints are complete */
    struct control_finished result;
    struct monotime kill_at; /* workers that still live at this time are killed */
    struct error outcome;    /* the job's failure; STATUS_OK: none so far */
    bool is_follow_on;       /* the outcome's worker failed because a peer did, which may not be reaped yet */
};

/* A job that has no end yet. */
#define JOB_END_NONE                                                                                         \
    {                                                                                                        \
        .kill_at = MONOTIME_NEVER, .result = {.end = CONTROL_END_STOPPED }                                   \
    }

static inline bool job_end_has_begun(const struct job_end *end)
{
    return end->finished || end->closing || end->stops > 0;
}

static inline bool job_end_has_failed(const struct job_end *end)
{
    return end->outcome.status != STATUS_OK;
}

/* Fails the job, with the sentence `why`, and hurries and closes it. The first failure is the outcome; later
 * ones are only logged. */
void job_end_fail(struct job_end *end, struct generation *g, enum status status, const char *why);

/* The same because of a worker. A cause takes the place of a follow-on failure as the outcome. */
void job_end_fail_by_worker(struct job_end *end, struct generation *g, enum status status, const char *why,
                            bool is_follow_on);

void job_end_hurry(struct job_end *end, struct generation *g);

void job_end_close(struct job_end *end, struct generation *g);

/* Tells the workers to leave whose turn has come. Called after each exit; does nothing unless closing. */
void job_end_leave_next(const struct job_end *end, struct generation *g);

#endif
