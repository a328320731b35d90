/* Values, choices, targets and the Huber loss of a DQN. */
#include "worker/model/dqn_head.h"

#include "kernels/base/rng.h"
#include "worker/model/q_learning.h"

#include <math.h>

struct dqn_head dqn_head_of(const struct policy_config *config)
{
    return (struct dqn_head){
        .choices = config->action.choices[0], .dueling = config->q.dueling, .gamma = config->q.gamma};
}

uint32_t dqn_head_outputs(const struct dqn_head *head)
{
    return head->choices + head->dueling;
}

struct dense_matrix dqn_head_values(const struct dqn_head *head, struct dense_matrix outputs, uint32_t rows)
{
    if (!head->dueling)
        return outputs;
    const struct dense_matrix values = {outputs.at + 1, outputs.stride};
    for (uint32_t r = 0; r < rows; r++) {
        float *value = values.at + r * values.stride;
        double sum = 0;
        for (uint32_t a = 0; a < head->choices; a++)
            sum += (double)value[a];
        const float shift = (float)((double)value[-1] - sum / head->choices);
        for (uint32_t a = 0; a < head->choices; a++)
            value[a] += shift;
    }
    return values;
}

/* The first of the greatest values among those that are allowed; `allowed` NULL: all are. A NaN is the
 * greatest, so that it is told, as PyTorch's max has it. */
static uint32_t greatest(const struct dqn_head *head, const float *value, const uint8_t *allowed)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t a = 0; a < head->choices; a++)
        if ((allowed == NULL || allowed[a] != 0) &&
            (best == UINT32_MAX || value[a] > value[best] || isnan(value[a])))
            best = a;
    return best;
}

/* ---- acting ---- */

/* The choice that is number `number` of those that are allowed. */
static uint32_t allowed_choice(const struct dqn_head *head, const uint8_t *allowed, uint32_t number)
{
    uint32_t choice = 0;
    for (; allowed != NULL && choice < head->choices; choice++)
        if (allowed[choice] != 0 && number-- == 0)
            return choice;
    return number;
}

static uint32_t count_allowed(const struct dqn_head *head, const uint8_t *allowed)
{
    uint32_t count = 0;
    for (uint32_t a = 0; a < head->choices && allowed != NULL; a++)
        count += allowed[a] != 0;
    return allowed == NULL ? head->choices : count;
}

/* Draws for row i. Whether its choice is random. */
static bool is_random(const struct dqn_head *head, const struct dense_draw *draw, uint32_t i,
                      uint32_t words[4])
{
    const struct rng_key key = {.seed = draw->seed,
                                .environment = draw->environment[i],
                                .step = draw->step[i],
                                .episode = draw->episode};
    rng_block(&key, RNG_ACTION, 0, words);
    return head->exploration.is_random || (double)rng_uniform_float(words[0]) < head->exploration.epsilon;
}

bool dqn_head_is_random(const struct dqn_head *head, uint32_t count, const struct dense_draw *draw)
{
    uint32_t words[4];
    for (uint32_t i = 0; i < count && draw != NULL; i++)
        if (!is_random(head, draw, i, words))
            return false;
    return draw != NULL;
}

enum status dqn_head_choose(const struct dqn_head *head, const struct policy_rows *rows,
                            struct dense_matrix values, const struct dense_draw *draw, struct error *error)
{
    int32_t *choices = rows->actions;
    if (draw == NULL && !q_is_finite(values, rows->count, head->choices))
        return error_set(error, STATUS_CORRUPT, "the value of an action is not finite");
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint8_t *allowed =
            rows->allowed != NULL ? rows->allowed + (size_t)rows->row[i] * head->choices : NULL;
        uint32_t words[4];
        const uint32_t choice =
            draw != NULL && is_random(head, draw, i, words)
                ? allowed_choice(head, allowed,
                                 (uint32_t)rng_below(words[1], words[2], count_allowed(head, allowed)))
                : greatest(head, values.at + i * values.stride, allowed);
        choices[rows->row[i]] = (int32_t)choice;
    }
    return STATUS_OK;
}

/* ---- learning ---- */

void dqn_head_targets(const struct dqn_head *head, const struct policy_transitions *batch, uint32_t first,
                      uint32_t count, struct dense_matrix judge, struct dense_matrix chooser, double *target)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = first + i;
        const uint8_t *allowed =
            batch->next_allowed != NULL ? batch->next_allowed + (size_t)row * head->choices : NULL;
        const uint32_t choice = greatest(head, chooser.at + i * chooser.stride, allowed);
        const double following = batch->terminated[row] != 0 || choice == UINT32_MAX
                                     ? 0
                                     : (double)judge.at[i * judge.stride + choice];
        target[i] = (double)batch->rewards[row] + head->gamma * following;
    }
}

/* Writes the pull at a row's outputs by dL/d of its action's value. */
static void pull_row(const struct dqn_head *head, float *pull, uint32_t choice, float slope)
{
    const bool dueling = head->dueling;
    for (uint32_t a = 0; a < head->choices; a++)
        pull[dueling + a] = dueling ? -slope / (float)head->choices : 0;
    pull[dueling + choice] += slope;
    if (dueling)
        pull[0] = slope;
}

double dqn_head_loss(const struct dqn_head *head, const struct policy_transitions *batch, uint32_t first,
                     uint32_t count, struct dense_matrix values, const double *target,
                     struct dense_matrix pull)
{
    double loss = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = first + i, choice = (uint32_t)((const int32_t *)batch->actions)[row];
        const double error = (double)values.at[i * values.stride + choice] - target[i], size = fabs(error);
        const double weight = (batch->weights != NULL ? (double)batch->weights[row] : 1) / batch->count;
        loss += weight * (size < 1 ? 0.5 * error * error : size - 0.5);
        pull_row(head, pull.at + i * pull.stride, choice,
                 (float)(weight * (size < 1 ? error : copysign(1, error))));
        if (batch->errors != NULL)
            batch->errors[row] = (float)size;
    }
    return loss;
}
