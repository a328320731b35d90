/* Greedy play: all episodes at once, one batch of the policy for each step. */
#include "worker/reinforce/policy_evaluate.h"

#include "kernels/policy/mlp.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model/policy_parameters.h"
#include "worker/model/policy_values.h"
#include "worker/reinforce/policy_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows stand closely: row i is of environment live[i]. */
struct greedy {
    struct mlp_shape shape;
    struct mlp *mlp;
    struct environments *environments;
    uint32_t episodes, alive;
    uint32_t *live;       /* (alive) environments whose episode goes on */
    uint32_t *row;        /* (episodes) 0, 1, 2, … */
    uint32_t *zero;       /* (episodes) zeros: the keys of mlp_act's draws, which are not used */
    float *observations;  /* (episodes, inputs) */
    float *probabilities; /* (episodes, actions) */
    float *rewards;       /* (episodes) of the last step */
    uint16_t *masks;      /* (episodes, mask words) */
    uint8_t *actions, *flags;
    double *sums; /* (episodes) by environment */
};

/* ---- opening ---- */

/* The model's values in the order of the policy's flat array. */
static enum status greedy_load(struct greedy *greedy, const char *checkpoint, struct error *error)
{
    struct policy_values values = {0};
    float *flat = calloc(mlp_parameter_count(&greedy->shape), sizeof *flat), *to = flat;
    enum status status = flat != NULL ? policy_values_open(&values, &greedy->shape, error)
                                      : error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    const struct checkpoint_values of = {.params = values.params};
    if (status == STATUS_OK)
        status = checkpoint_load_model(path_of(checkpoint), &of, error);
    for (uint32_t i = 0; i < POLICY_PARAMETERS && status == STATUS_OK; i++) {
        const size_t count = shape_elements(&params_at(values.params, i)->tensor.shape);
        memcpy(to, policy_values_at(&values, i, POLICY_VALUES), count * sizeof *to);
        to += count;
    }
    if (status == STATUS_OK)
        mlp_load(greedy->mlp, flat);
    policy_values_close(&values);
    free(flat);
    return status;
}

static enum status greedy_open_memory(struct greedy *greedy, struct error *error)
{
    const size_t n = greedy->episodes;
    greedy->live = calloc(n, sizeof *greedy->live);
    greedy->row = calloc(n, sizeof *greedy->row);
    greedy->zero = calloc(n, sizeof *greedy->zero);
    greedy->observations = calloc(n * greedy->shape.inputs, sizeof *greedy->observations);
    greedy->probabilities = calloc(n * greedy->shape.actions, sizeof *greedy->probabilities);
    greedy->rewards = calloc(n, sizeof *greedy->rewards);
    greedy->masks = calloc(n * mlp_mask_words(&greedy->shape), sizeof *greedy->masks);
    greedy->actions = calloc(n, sizeof *greedy->actions);
    greedy->flags = calloc(n, sizeof *greedy->flags);
    greedy->sums = calloc(n, sizeof *greedy->sums);
    if (greedy->live == NULL || greedy->row == NULL || greedy->zero == NULL || greedy->observations == NULL ||
        greedy->probabilities == NULL || greedy->rewards == NULL || greedy->masks == NULL ||
        greedy->actions == NULL || greedy->flags == NULL || greedy->sums == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu episodes", n);
    return STATUS_OK;
}

static void greedy_close(struct greedy *greedy)
{
    mlp_free(greedy->mlp);
    environments_free(greedy->environments);
    free(greedy->live);
    free(greedy->row);
    free(greedy->zero);
    free(greedy->observations);
    free(greedy->probabilities);
    free(greedy->rewards);
    free(greedy->masks);
    free(greedy->actions);
    free(greedy->flags);
    free(greedy->sums);
}

/* ---- playing ---- */

static void greedy_begin(struct greedy *greedy)
{
    greedy->alive = greedy->episodes;
    for (uint32_t i = 0; i < greedy->episodes; i++) {
        greedy->live[i] = greedy->row[i] = i;
        environments_reset(greedy->environments, i, 0, 0);
    }
}

static uint8_t greedy_choice(const float *probabilities, uint32_t actions)
{
    uint32_t best = 0;
    for (uint32_t action = 1; action < actions; action++)
        if (probabilities[action] > probabilities[best])
            best = action;
    return (uint8_t)best;
}

/* The error names the first episode and action whose probability is not finite. */
static enum status greedy_check_finite(const struct greedy *greedy, const char *checkpoint,
                                       struct error *error)
{
    const uint32_t actions = greedy->shape.actions;
    for (size_t i = 0; i < (size_t)greedy->alive * actions; i++)
        if (!isfinite(greedy->probabilities[i]))
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: in episode %u the probability of action %u is not finite", checkpoint,
                             greedy->live[i / actions] + 1, (unsigned)(i % actions));
    return STATUS_OK;
}

static enum status greedy_step(struct greedy *greedy, const char *checkpoint, struct error *error)
{
    const struct mlp_batch batch = {.count = greedy->alive,
                                    .row = greedy->row,
                                    .observations = greedy->observations,
                                    .masks = greedy->masks,
                                    .actions = greedy->actions};
    const uint32_t actions = greedy->shape.actions, alive = greedy->alive;
    environments_observe(greedy->environments, alive, greedy->live, greedy->observations);
    mlp_act(greedy->mlp, &batch, 0, 0, greedy->zero, greedy->zero, greedy->probabilities);
    const enum status status = greedy_check_finite(greedy, checkpoint, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < alive; i++)
        greedy->actions[i] = greedy_choice(greedy->probabilities + (size_t)i * actions, actions);
    environments_step(greedy->environments, alive, greedy->live, greedy->actions, greedy->rewards,
                      greedy->flags);
    greedy->alive = 0;
    for (uint32_t i = 0; i < alive; i++) {
        const uint32_t environment = greedy->live[i];
        greedy->sums[environment] += (double)greedy->rewards[i];
        if (greedy->flags[i] == 0)
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
    struct greedy greedy = {.shape = policy_shape_of(job), .episodes = episodes};
    enum status status = mlp_new(&greedy.mlp, &greedy.shape, 0, error);
    if (status == STATUS_OK)
        status = greedy_load(&greedy, checkpoint, error);
    if (status == STATUS_OK)
        status = environments_new(&greedy.environments, job->seed, 0, episodes, error);
    if (status == STATUS_OK)
        status = greedy_open_memory(&greedy, error);
    if (status == STATUS_OK) {
        greedy_begin(&greedy);
        while (greedy.alive > 0 && status == STATUS_OK)
            status = greedy_step(&greedy, checkpoint, error);
    }
    if (status == STATUS_OK)
        *evaluation = greedy_summary(&greedy);
    greedy_close(&greedy);
    return status;
}
