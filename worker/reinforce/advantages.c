/* Estimates advantages column by column, from the last step to the first. */
#include "worker/reinforce/advantages.h"

#include "worker/environment/environment.h"

/* What a walk back through a column carries from one row to the row before. */
struct walk {
    double next;      // V(s_{t+1})
    double advantage; // A_{t+1}
    bool failed;      // the segment ends with a failure: nothing is learned from it
};

/* The place of the row in the list of truncated rows, which ascends; `count` of them lie before `end`. */
static uint32_t find_last(const struct rollout *rollout, uint32_t row)
{
    uint32_t low = 0, high = rollout->last_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (rollout->last_rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The row has flags: the walk begins a segment, which ends here. */
static void begin_segment(const struct rollout *rollout, const struct advantages_config *config,
                          const struct advantages *a, uint32_t row, struct walk *walk)
{
    const uint8_t flags = rollout->flags[row];
    const bool bootstraps = config->bootstrap_truncated && (flags & ENVIRONMENT_TERMINATED) == 0 &&
                            (flags & ENVIRONMENT_TRUNCATED) != 0;
    const uint32_t at = bootstraps ? find_last(rollout, row) : rollout->last_count;
    walk->failed = (flags & ENVIRONMENT_FAILED) != 0;
    walk->advantage = 0;
    walk->next = 0;
    if (at < rollout->last_count && rollout->last_rows[at] == row)
        walk->next = (double)a->truncated[at];
}

static void estimate_row(const struct advantages_config *config, const struct advantages *a, uint32_t row,
                         struct walk *walk)
{
    const double value = (double)a->value[row];
    const double delta = (double)a->reward[row] + config->gamma * walk->next - value;
    walk->advantage = delta + config->gamma * config->lambda * walk->advantage;
    walk->next = value;
    a->advantage[row] = (float)walk->advantage;
    a->returns[row] = (float)(walk->advantage + value);
}

/* Appends the column's rows, last step first; returns how many. */
static uint32_t estimate_column(const struct rollout *rollout, const struct advantages_config *config,
                                const struct advantages *a, uint32_t column, uint32_t *order)
{
    struct walk walk = {.next = (double)a->closing[column]};
    uint32_t count = 0;
    for (uint32_t step = rollout->lengths[column]; step-- > 0;) {
        const uint32_t row = rollout_row(rollout, step, column);
        if (rollout_is_absent(rollout, step, column))
            continue;
        if (rollout->flags[row] != 0)
            begin_segment(rollout, config, a, row, &walk);
        if (walk.failed)
            continue;
        estimate_row(config, a, row, &walk);
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

uint32_t advantages_estimate(const struct rollout *rollout, const struct advantages_config *config,
                             const struct advantages *a)
{
    uint32_t rows = 0;
    for (uint32_t column = 0; column < rollout->columns; column++) {
        const uint32_t count = estimate_column(rollout, config, a, column, a->order + rows);
        reverse(a->order + rows, count);
        rows += count;
    }
    return rows;
}
