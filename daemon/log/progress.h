/* How far a run has come, and when it will be done. The terminal's progress line, systemd's status line,
 * `coalesced status` and the page show it.
 *
 *     unit   what /stop counts: steps, episodes or updates; else what the log counts
 *     total  the number of units at which the run ends at the latest; 0: it is not known. The updates of
 *            /stop/epochs are known once an epoch has ended.
 *     goal   the reward that ends the run before
 *
 * The rest takes its units at the mean rate since this process began. Pure; one thread. */
#ifndef DAEMON_LOG_PROGRESS_H
#define DAEMON_LOG_PROGRESS_H

#include "kernels/base/monotime.h"
#include "worker/control.h"
#include "worker/job/job.h"

struct progress {
    const char *unit; /* "step", "episode" or "update"; NULL: nothing is recorded yet */
    uint64_t done, total;
    double eta_s; /* NaN: not known */
    /* The figure of learning: a loss, or a reward and perhaps its goal. */
    const char *figure; /* "loss", "perplexity", "reward", "running reward", "evaluation" */
    double value;       /* NaN: there is none yet */
    double goal;        /* NaN: there is none */
    /* The newest record's rate. */
    const char *rate_unit; /* "steps", "samples" or "tokens" */
    double per_s;
    /* For the next record: where this process began, and what it knows. */
    struct monotime begin;
    uint64_t begun_at, epoch_updates;
    struct control_share evaluating;   /* sums over the workers; the newest record makes them 0 */
    double evaluation, evaluation_std; /* NaN: there was none */
};

enum { PROGRESS_TEXT_BYTES = 256 };

/* Takes an episode, an update or an epoch. `progress` is all zero at first. */
void progress_note(struct progress *progress, const struct job *job, const struct control_message *record,
                   struct monotime now);

/* Whether an evaluation runs. */
static inline bool progress_evaluates(const struct progress *progress)
{
    return progress->evaluating.done < progress->evaluating.total;
}

/* "update 119/940  13 %  loss 0.3512  93 samples/s  ETA 2:31  evaluating 37/100", without what is not known.
 * "": nothing is recorded yet, and no evaluation runs. A text for fewer columns lacks, one after another: the
 * rate, the figure, the percentage, the ETA, during an evaluation the units, the total, its own end. */
void progress_text(char out[PROGRESS_TEXT_BYTES], const struct progress *progress, unsigned columns);

/* "98 updates, running reward 12.30, evaluation 15.10 +- 2.00": what a run came to. "": nothing is recorded.
 */
void progress_sum_up(char out[PROGRESS_TEXT_BYTES], const struct progress *progress);

#endif
