/* Opens a player's environments and policy, and plays episodes with them. Runs on the thread that owns the
 * player. */
#include "worker/reinforce/player.h"

#include "kernels/backend.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model/policy.h"
#include "worker/model/policy_config.h"
#include "worker/reinforce/job_environments.h"
#include "worker/reinforce/policy_shape.h"
#include "worker/reinforce/step_message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

/* On the CPU if it needs no backend. */
static enum status open_policy(struct player *player, const struct policy_config *config,
                               const struct job *job, struct error *error)
{
    enum status status = STATUS_OK;
    if (policy_device(config) == POLICY_ON_BACKEND)
        status = policy_open_backend(&player->backend, config, job, error);
    return status == STATUS_OK ? policy_new(&player->policy, config, player->backend, error) : status;
}

static struct policy_config config_of(const struct player *player, const struct job *job)
{
    struct policy_config config = policy_config_of(job, player->spec);
    config.environments = player->episodes * player->agents;
    return config;
}

static enum status open_memory(struct player *player, struct error *error)
{
    const size_t rows = (size_t)player->episodes * player->agents;
    player->live = calloc(player->episodes, sizeof *player->live);
    player->rows = calloc(rows, sizeof *player->rows);
    player->steps = calloc(rows, sizeof *player->steps);
    player->dropout = calloc(rows * policy_dropout_words(player->policy) + 1, sizeof *player->dropout);
    player->rewards = calloc(player->episodes, sizeof *player->rewards);
    player->lengths = calloc(player->episodes, sizeof *player->lengths);
    if (player->live == NULL || player->rows == NULL || player->steps == NULL || player->dropout == NULL ||
        player->rewards == NULL || player->lengths == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u episodes", player->episodes);
    return episode_metrics_open(&player->metrics, player->spec, (uint32_t)rows, error);
}

enum status player_open_apart(struct player *player, const struct job *job,
                              const struct environment_spec *spec, uint32_t episodes, struct error *error)
{
    player->model = "the policy";
    player->episodes = episodes;
    player->spec = spec;
    player->agents = spec->agents;
    const struct policy_config config = config_of(player, job);
    const enum status status = open_policy(player, &config, job, error);
    return status == STATUS_OK ? open_memory(player, error) : status;
}

enum status player_open(struct player *player, const struct job *job, uint32_t episodes, struct error *error)
{
    const enum status status = job_environments_open(&player->environments, job, 0, episodes, error);
    if (status != STATUS_OK)
        return status;
    player->buffers = environments_buffers(player->environments);
    return player_open_apart(player, job, environments_spec(player->environments), episodes, error);
}

/* Gives the policy the checkpoint's model. */
static enum status load(struct player *player, const struct job *job, struct error *error)
{
    const struct policy_config config = config_of(player, job);
    struct policy_values values = {0};
    enum status status = policy_values_open(&values, &config, error);
    const struct checkpoint_values of = {.params = values.params};
    if (status == STATUS_OK)
        status = checkpoint_load_model(path_of(player->model), &of, error);
    if (status == STATUS_OK)
        status = policy_restore(player->policy, &values, error);
    policy_values_close(&values);
    return status;
}

enum status player_open_checkpoint(struct player *player, const char *checkpoint, const struct job *job,
                                   uint32_t episodes, struct error *error)
{
    enum status status = player_open(player, job, episodes, error);
    player->model = checkpoint;
    return status == STATUS_OK ? load(player, job, error) : status;
}

void player_close(struct player *player)
{
    policy_free(player->policy);
    backend_close(player->backend);
    episode_metrics_close(&player->metrics);
    environments_close(player->environments);
    free(player->live);
    free(player->rows);
    free(player->steps);
    free(player->dropout);
    free(player->rewards);
    free(player->lengths);
}

/* ---- playing ---- */

void player_forget(struct player *player, uint32_t first, uint32_t count)
{
    memset(player->rewards + first, 0, count * sizeof *player->rewards);
    memset(player->lengths + first, 0, count * sizeof *player->lengths);
    episode_metrics_clear(&player->metrics, first * player->agents, count * player->agents);
}

enum status player_begin(struct player *player, uint32_t first, uint32_t count, struct error *error)
{
    player->alive = count;
    player->step = 0;
    for (uint32_t i = 0; i < count; i++)
        player->live[i] = first + i;
    player_forget(player, first, count);
    return environments_reset(player->environments, count, player->live, 0, 0, error);
}

enum status player_act(struct player *player, const struct policy_rows *rows, bool sampled,
                       struct error *error)
{
    struct error why;
    const enum status status = sampled
                                   ? policy_act(player->policy, rows, 0, player->rows, player->steps, &why)
                                   : policy_choose(player->policy, rows, &why);
    return status == STATUS_OK ? status : error_set(error, status, "%.300s: %.200s", player->model, why.text);
}

/* Writes each row's action. */
static enum status choose_actions(struct player *player, bool sampled, struct error *error)
{
    const uint32_t agents = player->agents, count = player->alive * agents;
    void *actions = environments_actions(player->environments);
    for (uint32_t i = 0; i < count; i++) {
        player->rows[i] = player->live[i / agents] * agents + i % agents;
        player->steps[i] = player->step;
    }
    const struct policy_rows rows = {.count = count,
                                     .row = player->rows,
                                     .observations = player->buffers->observation,
                                     .actions = actions,
                                     .allowed = player->buffers->mask,
                                     .dropout = player->dropout};
    const enum status status = player_act(player, &rows, sampled, error);
    if (status == STATUS_OK)
        policy_bound(player->policy, actions, player->episodes * agents);
    return status;
}

static void add_metrics(struct player *player, uint32_t environment)
{
    const size_t metrics = player->metrics.count;
    for (uint32_t row = environment * player->agents; row < (environment + 1) * player->agents; row++)
        if (metrics > 0 && step_ended(player->buffers->flags[row]))
            episode_metrics_add(&player->metrics, row, player->buffers->metrics + row * metrics);
}

/* The mean reward of the environment's agents in its last step; and whether that step restarted it. */
static double mean_reward(const struct player *player, uint32_t environment, bool *restarted)
{
    double sum = 0;
    uint8_t flags = 0;
    for (uint32_t row = environment * player->agents; row < (environment + 1) * player->agents; row++) {
        sum += (double)player->buffers->reward[row];
        flags |= player->buffers->flags[row];
    }
    *restarted = (flags & ENVIRONMENT_RESTARTED) != 0;
    return sum / player->agents;
}

enum status player_step(struct player *player, bool sampled, struct error *error)
{
    const uint32_t alive = player->alive;
    enum status status = choose_actions(player, sampled, error);
    if (status == STATUS_OK)
        status = environments_step(player->environments, alive, player->live, error);
    if (status != STATUS_OK)
        return status;
    player->alive = 0;
    player->step++;
    for (uint32_t i = 0; i < alive; i++) {
        const uint32_t environment = player->live[i];
        bool restarted;
        player->lengths[environment]++;
        player->rewards[environment] += mean_reward(player, environment, &restarted);
        add_metrics(player, environment);
        const bool is_cut = player->lengths[environment] == player->steps_max;
        if (!is_cut && !restarted && !environments_is_over(player->environments, environment))
            player->live[player->alive++] = environment;
    }
    return STATUS_OK;
}

struct player_summary player_summarize(const struct player *player)
{
    const double n = player->episodes, *sums = player->rewards;
    struct player_summary found = {.least = sums[0], .most = sums[0]};
    double squares = 0;
    for (uint32_t i = 0; i < player->episodes; i++) {
        found.mean += sums[i] / n;
        found.length += player->lengths[i] / n;
        found.least = fmin(found.least, sums[i]);
        found.most = fmax(found.most, sums[i]);
    }
    for (uint32_t i = 0; i < player->episodes; i++)
        squares += (sums[i] - found.mean) * (sums[i] - found.mean);
    episode_metrics_mean(&player->metrics, 0, player->metrics.columns, &found.metrics);
    found.deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return found;
}
