/* Estimates advantages column by column, from the last step to the first. */
#include "worker/reinforce/advantages.h"

#include "worker/environment/environment.h"

/* What a walk back through a column carries from one row to the row before. */
struct walk {
    double next;      /* V(s_{t+1}) */
    double advantage; /* A_{t+1} */
    bool failed;      /* the segment ends with a failure: nothing is learned from it */
};

/* The row has flags: the walk begins a segment, which ends here. */
static void begin_segment(const struct job *job, const struct rollout *rollout, uint32_t row,
                          struct walk *walk)
{
    const uint8_t flags = rollout->flags[row];
    const bool bootstraps = job->algorithm.bootstrap_truncated && (flags & ENVIRONMENT_TRUNCATED) != 0 &&
                            !environment_flags_have_no_future(flags);
    const uint32_t at = bootstraps ? rollout_find_last(rollout, row) : rollout->last_count;
    *walk = (struct walk){.failed = (flags & ENVIRONMENT_FAILED) != 0};
    if (at < rollout->last_count)
        walk->next = (double)rollout->last_values[at];
}

static void judge_row(struct advantages *a, const struct job *job, const struct rollout *rollout,
                      uint32_t row, struct walk *walk)
{
    const double gamma = job->returns.gamma, value = (double)rollout->values[row];
    const double delta = (double)a->rewards[row] + gamma * walk->next - value;
    walk->advantage = delta + gamma * job->algorithm.gae_lambda * walk->advantage;
    walk->next = value;
    a->values[row] = (float)walk->advantage;
    a->returns[row] = (float)(walk->advantage + value);
}

/* Appends the column's rows, last step first; returns how many. */
static uint32_t judge_column(struct advantages *a, const struct job *job, const struct rollout *rollout,
                             uint32_t column, uint32_t *order)
{
    const float *closing = rollout->values + rollout_row(rollout, rollout->config.steps_max, 0);
    struct walk walk = {.next = (double)closing[column]};
    uint32_t count = 0;
    for (uint32_t step = rollout->lengths[column]; step-- > 0;) {
        const uint32_t row = rollout_row(rollout, step, column);
        if (rollout_is_absent(rollout, step, column))
            continue;
        if (rollout->flags[row] != 0)
            begin_segment(job, rollout, row, &walk);
        if (walk.failed)
            continue;
        judge_row(a, job, rollout, row, &walk);
        order[count++] = row;
    }
    return count;
}

static void reverse(uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        const uint32_t row = order[i];
        order[i] = order[count - 1 - i];
        order[count - 1 - i] = row;
    }
}

uint32_t advantages_estimate(struct advantages *a, const struct job *job, const struct rollout *rollout)
{
    uint32_t rows = 0;
    for (uint32_t column = 0; column < rollout->columns; column++) {
        const uint32_t count = judge_column(a, job, rollout, column, a->order + rows);
        reverse(a->order + rows, count);
        rows += count;
    }
    return rows;
}
