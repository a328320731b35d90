/* Gathers the rows of steps into a batch, and has the policy act on them where they lie in the rollout. The
 * agent's thread. */
#include "worker/reinforce/inference.h"

#include "kernels/base/profile.h"

#include <stdlib.h>
#include <string.h>

struct inference {
    struct policy *policy;
    struct rollout *rollout;
    uint32_t rows;                 /* of the batch */
    uint32_t *row, *column, *step; /* (columns) of the batch */
    void *actions;                 /* (columns, action_bytes) of one answer */
};

enum status inference_new(struct inference **out, struct policy *policy, struct rollout *rollout,
                          struct error *error)
{
    const uint32_t columns = rollout->columns;
    struct inference *in = *out = calloc(1, sizeof *in);
    if (in == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch");
    *in = (struct inference){.policy = policy,
                             .rollout = rollout,
                             .row = calloc(columns, sizeof *in->row),
                             .column = calloc(columns, sizeof *in->column),
                             .step = calloc(columns, sizeof *in->step),
                             .actions = calloc(columns, rollout->config.action_bytes)};
    if (in->row == NULL || in->column == NULL || in->step == NULL || in->actions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u rows", columns);
    return STATUS_OK;
}

void inference_free(struct inference *in)
{
    if (in == NULL)
        return;
    free(in->row);
    free(in->column);
    free(in->step);
    free(in->actions);
    free(in);
}

void inference_add(struct inference *in, const struct step *step)
{
    for (uint32_t i = 0; i < step->count; i++)
        for (uint32_t a = 0; a < step->agents; a++, in->rows++) {
            const uint32_t column = step->numbers[i] * step->agents + a;
            in->column[in->rows] = column;
            in->step[in->rows] = step->number;
            in->row[in->rows] = rollout_row(in->rollout, step->number, column);
        }
}

enum status inference_run(struct inference *in, struct error *error)
{
    const struct rollout *rollout = in->rollout;
    const struct policy_rows batch = {.count = in->rows,
                                      .row = in->row,
                                      .observations = rollout->observations,
                                      .actions = rollout->actions,
                                      .allowed = rollout->allowed,
                                      .dropout = rollout->masks,
                                      .log_probabilities = rollout->log_probabilities,
                                      .values = rollout->values};
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    const enum status status = policy_act(in->policy, &batch, rollout->episode, in->column, in->step, error);
    profile_leave(before);
    in->rows = 0;
    return status;
}

const void *inference_actions(struct inference *in, const struct step *step)
{
    const size_t bytes = in->rollout->config.action_bytes;
    for (uint32_t i = 0, run; i < step->count; i += run) {
        const uint32_t column = step->numbers[i] * step->agents;
        run = step_run(step, i);
        memcpy((char *)in->actions + i * step->agents * bytes,
               in->rollout->actions + rollout_row(in->rollout, step->number, column) * bytes,
               run * step->agents * bytes);
    }
    policy_bound(in->policy, in->actions, step->rows);
    return in->actions;
}
