/* The median stopping rule. Pure. */
#include "daemon/commands/sweep_rule.h"

#include "daemon/commands/curve_band.h"

/* Steps of all environments in an update. Without observers the agent steps the environments itself. */
static uint64_t update_steps(const struct job *job)
{
    const uint64_t processes = job->observers.count > 0 ? job->observers.count : 1;
    return processes * job->observers.environments * job->rollout.steps;
}

uint64_t sweep_rule_grace(const struct job *job, uint64_t epoch_updates)
{
    uint64_t limit = UINT64_MAX;
    if (job->kind != JOB_REINFORCE)
        limit = job_updates(job, epoch_updates);
    else if (job_is_actor_critic(job))
        limit = job->stop.steps / update_steps(job);
    else if (job->stop.has_episodes)
        limit = job->stop.episodes;
    if (limit == UINT64_MAX)
        return SWEEP_GRACE_UNLIMITED;
    return limit / 5 > SWEEP_GRACE_MIN ? limit / 5 : SWEEP_GRACE_MIN;
}

/* False: the curve has no point up to x. */
static bool mean_until(const struct curve *curve, double x, double *mean)
{
    double sum = 0, lines = 0;
    for (uint32_t i = 0; i < curve->count && curve->points[i].x <= x; i++) {
        sum += curve->points[i].y * (double)curve->points[i].lines;
        lines += (double)curve->points[i].lines;
    }
    *mean = lines > 0 ? sum / lines : 0;
    return lines > 0;
}

static double best_of(const struct curve *curve, bool less_is_better)
{
    double best = curve->points[0].y;
    for (uint32_t i = 1; i < curve->count; i++) {
        const double y = curve->points[i].y;
        if (less_is_better ? y < best : y > best)
            best = y;
    }
    return best;
}

bool sweep_rule_stops(const struct curve *curve, uint64_t grace, const struct sweep_peer *peers, size_t count,
                      bool less_is_better, double *scratch)
{
    const double at = curve->newest.x;
    size_t reached = 0;
    if (curve->count == 0 || at < (double)grace)
        return false;
    for (size_t i = 0; i < count; i++)
        if ((peers[i].has_ended || peers[i].curve->newest.x >= at) &&
            mean_until(peers[i].curve, at, &scratch[reached]))
            reached++;
    if (reached < SWEEP_PEERS_MIN)
        return false;
    const double best = best_of(curve, less_is_better), median = median_of(scratch, reached);
    return less_is_better ? best > median : best < median;
}
