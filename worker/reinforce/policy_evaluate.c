/* Greedy play: all episodes at once, one batch of the policy for each step. */
#include "worker/reinforce/policy_evaluate.h"

#include "kernels/backend.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model/policy_parameters.h"
#include "worker/model/policy_values.h"
#include "worker/reinforce/job_environments.h"
#include "worker/reinforce/policy_shape.h"

#include <math.h>
#include <stdlib.h>

struct greedy {
    struct policy *policy;
    struct backend *backend; /* the policy's; NULL: it needs none */
    struct environments *environments;
    const struct environment_buffers *buffers;
    uint32_t episodes, agents, alive;
    uint32_t *live; /* (alive) environments whose episode goes on */
    uint32_t *rows; /* (alive * agents) their rows */
    double *sums;   /* (episodes) by environment, of the mean reward of its agents */
};

/* ---- opening ---- */

/* A policy with the model's values, on the CPU if it needs no backend. */
static enum status greedy_open_policy(struct greedy *greedy, const char *checkpoint, const struct job *job,
                                      struct error *error)
{
    const struct policy_config config = policy_config_of(job, environments_spec(greedy->environments));
    struct policy_values values = {0};
    enum status status = STATUS_OK;
    if (policy_device(&config) == POLICY_ON_BACKEND)
        status = policy_open_backend(&greedy->backend, &config, job, error);
    if (status == STATUS_OK)
        status = policy_new(&greedy->policy, &config, greedy->backend, error);
    if (status == STATUS_OK)
        status = policy_values_open(&values, &config, error);
    const struct checkpoint_values of = {.params = values.params};
    if (status == STATUS_OK)
        status = checkpoint_load_model(path_of(checkpoint), &of, error);
    if (status == STATUS_OK)
        status = policy_restore(greedy->policy, &values, error);
    policy_values_close(&values);
    return status;
}

static enum status greedy_open_memory(struct greedy *greedy, struct error *error)
{
    greedy->buffers = environments_buffers(greedy->environments);
    greedy->agents = environments_spec(greedy->environments)->agents;
    greedy->live = calloc(greedy->episodes, sizeof *greedy->live);
    greedy->rows = calloc((size_t)greedy->episodes * greedy->agents, sizeof *greedy->rows);
    greedy->sums = calloc(greedy->episodes, sizeof *greedy->sums);
    if (greedy->live == NULL || greedy->rows == NULL || greedy->sums == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u episodes", greedy->episodes);
    return STATUS_OK;
}

static void greedy_close(struct greedy *greedy)
{
    policy_free(greedy->policy);
    backend_close(greedy->backend);
    environments_close(greedy->environments);
    free(greedy->live);
    free(greedy->rows);
    free(greedy->sums);
}

/* ---- playing ---- */

static enum status greedy_begin(struct greedy *greedy, struct error *error)
{
    greedy->alive = greedy->episodes;
    for (uint32_t i = 0; i < greedy->episodes; i++)
        greedy->live[i] = i;
    return environments_reset(greedy->environments, greedy->episodes, NULL, 0, 0, error);
}

/* Writes each row's action. */
static enum status greedy_act(struct greedy *greedy, const char *checkpoint, struct error *error)
{
    const uint32_t agents = greedy->agents, count = greedy->alive * agents;
    void *actions = environments_actions(greedy->environments);
    for (uint32_t i = 0; i < count; i++)
        greedy->rows[i] = greedy->live[i / agents] * agents + i % agents;
    const struct policy_rows rows = {.count = count,
                                     .row = greedy->rows,
                                     .observations = greedy->buffers->observation,
                                     .actions = actions,
                                     .allowed = greedy->buffers->mask};
    struct error why;
    const enum status status = policy_choose(greedy->policy, &rows, &why);
    if (status != STATUS_OK)
        return error_set(error, status, "%.300s: %.200s", checkpoint, why.text);
    policy_bound(greedy->policy, actions, greedy->episodes * agents);
    return STATUS_OK;
}

/* The mean reward of the environment's agents in its last step; and whether that step restarted it. */
static double greedy_reward(const struct greedy *greedy, uint32_t environment, bool *restarted)
{
    double sum = 0;
    uint8_t flags = 0;
    for (uint32_t row = environment * greedy->agents; row < (environment + 1) * greedy->agents; row++) {
        sum += (double)greedy->buffers->reward[row];
        flags |= greedy->buffers->flags[row];
    }
    *restarted = (flags & ENVIRONMENT_RESTARTED) != 0;
    return sum / greedy->agents;
}

static enum status greedy_step(struct greedy *greedy, const char *checkpoint, struct error *error)
{
    const uint32_t alive = greedy->alive;
    enum status status = greedy_act(greedy, checkpoint, error);
    if (status == STATUS_OK)
        status = environments_step(greedy->environments, alive, greedy->live, error);
    if (status != STATUS_OK)
        return status;
    greedy->alive = 0;
    for (uint32_t i = 0; i < alive; i++) {
        const uint32_t environment = greedy->live[i];
        bool restarted;
        greedy->sums[environment] += greedy_reward(greedy, environment, &restarted);
        if (!restarted && !environments_is_over(greedy->environments, environment))
            greedy->live[greedy->alive++] = environment;
    }
    return STATUS_OK;
}

static struct policy_evaluation greedy_summary(const struct greedy *greedy)
{
    const double n = greedy->episodes, *sums = greedy->sums;
    struct policy_evaluation found = {.least = sums[0], .most = sums[0]};
    double squares = 0;
    for (uint32_t i = 0; i < greedy->episodes; i++) {
        found.mean += sums[i] / n;
        found.least = fmin(found.least, sums[i]);
        found.most = fmax(found.most, sums[i]);
    }
    for (uint32_t i = 0; i < greedy->episodes; i++)
        squares += (sums[i] - found.mean) * (sums[i] - found.mean);
    found.deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return found;
}

enum status policy_evaluate(struct policy_evaluation *evaluation, const char *checkpoint,
                            const struct job *job, uint32_t episodes, struct error *error)
{
    struct greedy greedy = {.episodes = episodes};
    enum status status = job_environments_open(&greedy.environments, job, 0, episodes, error);
    if (status == STATUS_OK)
        status = greedy_open_policy(&greedy, checkpoint, job, error);
    if (status == STATUS_OK)
        status = greedy_open_memory(&greedy, error);
    if (status == STATUS_OK)
        status = greedy_begin(&greedy, error);
    while (status == STATUS_OK && greedy.alive > 0)
        status = greedy_step(&greedy, checkpoint, error);
    if (status == STATUS_OK)
        *evaluation = greedy_summary(&greedy);
    greedy_close(&greedy);
    return status;
}
