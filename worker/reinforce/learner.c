/* Computes the next parameters from a rollout, and measures the time. */
#include "worker/reinforce/learner.h"

#include "kernels/base/monotime.h"

enum status learner_run(struct policy *policy, struct rollout *rollout, const struct returns_config *returns,
                        policy_progress *progress, void *context, struct learner_result *result,
                        struct error *error)
{
    const struct monotime begin = monotime_now();
    const struct policy_rows rows = {.count = returns_coefficients(rollout, returns),
                                     .row = rollout->order,
                                     .observations = rollout->observations,
                                     .actions = rollout->actions,
                                     .allowed = rollout->allowed,
                                     .dropout = rollout->masks};
    struct error why = {0};
    double loss;
    enum status status =
        policy_learn(policy, &rows, rollout->coefficients, rollout->episode, &loss, progress, context, &why);
    if (status != STATUS_OK)
        return error_set(error, status, "learning from episode %u: %.400s", rollout->episode, why.text);
    *result = (struct learner_result){.loss = loss,
                                      .seconds = (double)monotime_us_between(begin, monotime_now()) * 1e-6};
    return STATUS_OK;
}
