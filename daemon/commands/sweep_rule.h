/* Which runs of a sweep are hopeless: the median stopping rule of Golovin and others, "Google Vizier: A
 * Service for Black-Box Optimization" (KDD 2017), section 3.2.2. Pure; any thread.
 *
 * A run at episode or update n is stopped when its best number up to n is worse than the median of the other
 * runs' means up to n. The others are the runs that have reached n, and those that have finished, or were
 * solved, before; at least SWEEP_PEERS_MIN of them. No run is judged before its grace: a fifth of the job's
 * limit in episodes or updates, at least SWEEP_GRACE_MIN; SWEEP_GRACE_UNLIMITED where the job has no such
 * limit.
 *
 * Numbers are those of a curve's points (daemon/commands/curve.h): exact up to CURVE_POINTS_MAX lines, and
 * means over `stride` lines beyond. */
#ifndef DAEMON_COMMANDS_SWEEP_RULE_H
#define DAEMON_COMMANDS_SWEEP_RULE_H

#include "daemon/commands/curve.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SWEEP_PEERS_MIN = 3, SWEEP_GRACE_MIN = 5, SWEEP_GRACE_UNLIMITED = 100 };

struct sweep_peer {
    const struct curve *curve;
    bool has_ended; /* it finished, or was solved: it counts though it has not reached n */
};

/* The grace of a job whose data has `epoch_updates` updates to an epoch (0: none). */
uint64_t sweep_rule_grace(const struct job *job, uint64_t epoch_updates);

/* Whether the run with `curve`, at its newest point, is hopeless beside `peers`. `less_is_better`: of a loss.
 * `scratch`: (count) numbers. */
bool sweep_rule_stops(const struct curve *curve, uint64_t grace, const struct sweep_peer *peers, size_t count,
                      bool less_is_better, double *scratch);

#endif
