/* Adds up the rewards of episodes, and keeps the window of the latest. Runs on the agent's thread. */
#include "worker/reinforce/episode_rewards.h"

#include "worker/environment/environment.h"

#include <math.h>
#include <string.h>

enum status episode_rewards_open(struct episode_rewards *rewards, const struct job *job, uint32_t columns,
                                 uint32_t agents, struct error *error)
{
    rewards->columns = columns;
    rewards->agents = agents;
    rewards->window = job_is_stepwise(job) ? job->algorithm.stats_window_size : 0;
    rewards->so_far = region_take(&rewards->region, columns, sizeof *rewards->so_far);
    rewards->before = region_take(&rewards->region, columns, sizeof *rewards->before);
    rewards->by_agent = region_take(&rewards->region, agents, sizeof *rewards->by_agent);
    rewards->recent = region_take(&rewards->region, rewards->window, sizeof *rewards->recent);
    if (rewards->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the episodes of %u columns", columns);
    return STATUS_OK;
}

void episode_rewards_close(struct episode_rewards *e)
{
    region_free(&e->region);
}

void episode_rewards_forget(struct episode_rewards *e, uint32_t first, uint32_t count)
{
    memset(e->so_far + first, 0, count * sizeof *e->so_far);
}

static void summary_add(struct reward_summary *summary, double value)
{
    summary->least = summary->count == 0 ? value : fmin(summary->least, value);
    summary->sum += value;
    summary->count++;
}

/* Adds a row to the column's unfinished episode. True: the row ends one that counts, *ended. */
static bool add_row(struct episode *so_far, const struct rollout *rollout, uint32_t step, uint32_t column,
                    struct episode *ended)
{
    const uint32_t row = rollout_row(rollout, step, column);
    if (step >= rollout->lengths[column] || rollout_is_absent(rollout, step, column))
        return false;
    so_far[column].reward += (double)rollout->rewards[row];
    so_far[column].length++;
    if (!environment_flags_count(rollout->flags[row]))
        return false;
    *ended = so_far[column];
    so_far[column] = (struct episode){0};
    return (rollout->flags[row] & ENVIRONMENT_FAILED) == 0;
}

bool episode_rewards_take(struct episode_rewards *e, const struct rollout *rollout, bool least,
                          double *reward)
{
    struct reward_summary ended = {0}, unfinished = {0};
    struct episode episode;
    memcpy(e->before, e->so_far, e->columns * sizeof *e->before);
    memset(e->by_agent, 0, e->agents * sizeof *e->by_agent);
    for (uint32_t column = 0; column < e->columns; column++) {
        for (uint32_t step = 0; step < rollout->lengths[column]; step++)
            if (add_row(e->so_far, rollout, step, column, &episode)) {
                summary_add(&ended, episode.reward);
                summary_add(&e->by_agent[column % e->agents], episode.reward);
            }
        summary_add(&unfinished, e->so_far[column].reward);
    }
    for (uint32_t step = 0, number = 0; e->window > 0 && step < rollout->config.steps_max; step++)
        for (uint32_t column = 0; column < e->columns; column++)
            if (add_row(e->before, rollout, step, column, &episode))
                e->recent[(e->ended + number++) % e->window] = episode;
    const struct reward_summary *of = ended.count > 0 ? &ended : &unfinished;
    const double value = least ? of->least : of->sum / (double)of->count;
    e->ended += ended.count;
    if (ended.count > 0)
        e->latest = value;
    *reward = e->ended > 0 ? e->latest : value;
    return ended.count > 0;
}

double episode_rewards_of_agent(const struct episode_rewards *e, uint32_t agent)
{
    const struct reward_summary *of = &e->by_agent[agent];
    return of->count > 0 ? of->sum / (double)of->count : (double)NAN;
}

void episode_rewards_means(const struct episode_rewards *e, double *reward, double *length)
{
    const uint64_t count = e->ended < e->window ? e->ended : e->window;
    *reward = *length = count > 0 ? 0 : (double)NAN;
    for (uint64_t i = 0; i < count; i++) {
        *reward += e->recent[i].reward / (double)count;
        *length += (double)e->recent[i].length / (double)count;
    }
}

/* ---- bytes ---- */

struct rewards_head {
    uint64_t columns, ended;
    double latest;
};

struct window_head {
    uint64_t columns, window, ended;
};

bool episode_rewards_archive(struct episode_rewards *e, struct archive *archive)
{
    struct rewards_head head = {e->columns, e->ended, e->latest};
    if (!archive_move(archive, &head, sizeof head) || head.columns == 0)
        return false;
    e->ended = head.ended;
    e->latest = head.latest;
    return archive_move_array(archive, &e->so_far[0].reward, sizeof(double), sizeof *e->so_far, e->columns,
                              head.columns);
}

bool episode_rewards_archive_window(struct episode_rewards *e, struct archive *archive)
{
    struct window_head head = {e->columns, e->window, e->ended};
    return archive_move(archive, &head, sizeof head) && head.columns > 0 && head.window == e->window &&
           archive_move(archive, e->recent, e->window * sizeof *e->recent) &&
           archive_move_array(archive, e->so_far, sizeof *e->so_far, sizeof *e->so_far, e->columns,
                              head.columns);
}
