/* The learning rate, the clip range, the rate of exploration and the replay's beta, after so many steps. */
#include "worker/reinforce/schedules.h"

static double share_done(const struct job *job, uint64_t steps)
{
    const double share = (double)steps / (double)job->stop.steps;
    return share < 1 ? share : 1;
}

static double falls(const struct job *job, double from, int schedule, uint64_t steps)
{
    return from * (schedule == JOB_SCHEDULE_LINEAR ? 1 - share_done(job, steps) : 1);
}

double schedules_learning_rate(const struct job *job, uint64_t steps)
{
    return falls(job, job->optimizer.lr, job->algorithm.learning_rate_schedule, steps);
}

double schedules_clip_range(const struct job *job, uint64_t steps)
{
    return falls(job, job->algorithm.clip_range, job->algorithm.clip_range_schedule, steps);
}

double schedules_exploration_rate(const struct job *job, uint64_t steps)
{
    const double first = job->replay.exploration_initial_eps, last = job->replay.exploration_final_eps;
    const double share = share_done(job, steps) / job->replay.exploration_fraction;
    if (job->algorithm.name != JOB_ALGORITHM_DQN)
        return 0;
    return share < 1 ? first + share * (last - first) : last;
}

double schedules_beta(const struct job *job, uint64_t steps)
{
    return job->replay.beta + (1 - job->replay.beta) * share_done(job, steps);
}
