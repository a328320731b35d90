/* Opening, acting, stepping. The thread that owns the player. */
#include "worker/reinforce/player.h"

#include "kernels/backend.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model/policy_parameters.h"
#include "worker/model/policy_values.h"
#include "worker/reinforce/job_environments.h"
#include "worker/reinforce/policy_shape.h"
#include "worker/reinforce/step_message.h"

#include <stdlib.h>

/* ---- opening ---- */

/* A policy with the model's values, on the CPU if it needs no backend. */
static enum status open_policy(struct player *player, const struct job *job, struct error *error)
{
    struct policy_config config = policy_config_of(job, environments_spec(player->environments));
    struct policy_values values = {0};
    enum status status = STATUS_OK;
    config.environments = player->episodes * player->agents;
    if (policy_device(&config) == POLICY_ON_BACKEND)
        status = policy_open_backend(&player->backend, &config, job, error);
    if (status == STATUS_OK)
        status = policy_new(&player->policy, &config, player->backend, error);
    if (status == STATUS_OK)
        status = policy_values_open(&values, &config, error);
    const struct checkpoint_values of = {.params = values.params};
    if (status == STATUS_OK)
        status = checkpoint_load_model(path_of(player->checkpoint), &of, error);
    if (status == STATUS_OK)
        status = policy_restore(player->policy, &values, error);
    policy_values_close(&values);
    return status;
}

static enum status open_memory(struct player *player, struct error *error)
{
    const size_t rows = (size_t)player->episodes * player->agents;
    player->live = calloc(player->episodes, sizeof *player->live);
    player->rows = calloc(rows, sizeof *player->rows);
    player->steps = calloc(rows, sizeof *player->steps);
    player->dropout = calloc(rows * policy_dropout_words(player->policy) + 1, sizeof *player->dropout);
    player->rewards = calloc(player->episodes, sizeof *player->rewards);
    if (player->live == NULL || player->rows == NULL || player->steps == NULL || player->dropout == NULL ||
        player->rewards == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u episodes", player->episodes);
    return episode_metrics_open(&player->metrics, environments_spec(player->environments), (uint32_t)rows,
                                error);
}

enum status player_open(struct player *player, const char *checkpoint, const struct job *job,
                        uint32_t episodes, struct error *error)
{
    player->checkpoint = checkpoint;
    player->episodes = episodes;
    enum status status = job_environments_open(&player->environments, job, 0, episodes, error);
    if (status != STATUS_OK)
        return status;
    player->buffers = environments_buffers(player->environments);
    player->agents = environments_spec(player->environments)->agents;
    status = open_policy(player, job, error);
    return status == STATUS_OK ? open_memory(player, error) : status;
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
}

/* ---- playing ---- */

enum status player_begin(struct player *player, uint32_t first, uint32_t count, struct error *error)
{
    player->alive = count;
    player->step = 0;
    for (uint32_t i = 0; i < count; i++) {
        player->live[i] = first + i;
        player->rewards[first + i] = 0;
    }
    return environments_reset(player->environments, count, player->live, 0, 0, error);
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
    struct error why;
    const enum status status = sampled
                                   ? policy_act(player->policy, &rows, 0, player->rows, player->steps, &why)
                                   : policy_choose(player->policy, &rows, &why);
    if (status != STATUS_OK)
        return error_set(error, status, "%.300s: %.200s", player->checkpoint, why.text);
    policy_bound(player->policy, actions, player->episodes * agents);
    return STATUS_OK;
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
        player->rewards[environment] += mean_reward(player, environment, &restarted);
        add_metrics(player, environment);
        if (!restarted && !environments_is_over(player->environments, environment))
            player->live[player->alive++] = environment;
    }
    return STATUS_OK;
}
