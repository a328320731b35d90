/* Adds up each episode's rewards over several rollouts, and writes these sums to checkpoints. */
#include "worker/reinforce/episode_returns.h"

#include "worker/environment/environment_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status episode_returns_open(struct episode_returns *returns, uint32_t columns, struct error *error)
{
    *returns = (struct episode_returns){.columns = columns, .so_far = calloc(columns, sizeof(double))};
    if (returns->so_far == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the returns of %u rows", columns);
    return STATUS_OK;
}

void episode_returns_close(struct episode_returns *returns)
{
    free(returns->so_far);
    *returns = (struct episode_returns){0};
}

/* The mean and the least of some returns. */
struct summary {
    uint64_t count;
    double sum, least;
};

static void summary_add(struct summary *summary, double value)
{
    summary->least = summary->count == 0 ? value : fmin(summary->least, value);
    summary->sum += value;
    summary->count++;
}

static void take_column(struct episode_returns *returns, const struct rollout *rollout, uint32_t column,
                        struct summary *ended)
{
    double *so_far = &returns->so_far[column];
    for (uint32_t step = 0; step < rollout->lengths[column]; step++) {
        const uint32_t row = rollout_row(rollout, step, column);
        if (rollout_is_absent(rollout, step, column))
            continue;
        *so_far += (double)rollout->rewards[row];
        if (rollout->flags[row] == 0)
            continue;
        if ((rollout->flags[row] & ENVIRONMENT_FAILED) == 0)
            summary_add(ended, *so_far);
        *so_far = 0;
    }
}

uint64_t episode_returns_take(struct episode_returns *returns, const struct rollout *rollout, bool least,
                              double *reward)
{
    struct summary ended = {0}, unfinished = {0};
    for (uint32_t column = 0; column < returns->columns; column++) {
        take_column(returns, rollout, column, &ended);
        summary_add(&unfinished, returns->so_far[column]);
    }
    const struct summary *of = ended.count > 0 ? &ended : &unfinished;
    const double value = least ? of->least : of->sum / (double)of->count;
    returns->episodes += ended.count;
    if (ended.count > 0)
        returns->latest = value;
    *reward = returns->episodes > 0 ? returns->latest : value;
    return ended.count;
}

void episode_returns_forget(struct episode_returns *returns, uint32_t first, uint32_t count)
{
    memset(returns->so_far + first, 0, count * sizeof *returns->so_far);
}

/* ---- bytes ---- */

/* What stands before so_far. */
struct head {
    uint64_t columns, episodes;
    double latest;
};

size_t episode_returns_bytes(const struct episode_returns *returns)
{
    return sizeof(struct head) + returns->columns * sizeof *returns->so_far;
}

void episode_returns_write(const struct episode_returns *returns, char *out)
{
    const struct head head = {returns->columns, returns->episodes, returns->latest};
    memcpy(out, &head, sizeof head);
    memcpy(out + sizeof head, returns->so_far, returns->columns * sizeof *returns->so_far);
}

size_t episode_returns_read(struct episode_returns *returns, const char *from, size_t bytes)
{
    struct head head = {0};
    if (bytes >= sizeof head)
        memcpy(&head, from, sizeof head);
    if (head.columns == 0 || head.columns > (bytes - sizeof head) / sizeof *returns->so_far)
        return 0;
    returns->episodes = head.episodes;
    returns->latest = head.latest;
    memcpy(returns->so_far, from + sizeof head,
           (head.columns < returns->columns ? head.columns : returns->columns) * sizeof *returns->so_far);
    return sizeof head + head.columns * sizeof *returns->so_far;
}
