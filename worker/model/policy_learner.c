/* Opens and closes what a policy on a backend learns with. */
#include "worker/model/policy_learner.h"

enum status policy_register(struct params *params, const struct policy_config *config, struct error *error)
{
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, config);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        const struct init init = {list[i].bound > 0 ? INIT_UNIFORM : INIT_CONSTANT, list[i].bound};
        struct parameter *parameter;
        status = params_add(params, list[i].name, PARAMETER_TRAINED, list[i].shape, init, &parameter, error);
    }
    return status;
}

enum status policy_learner_open(struct policy_learner *learner, const struct policy_config *config,
                                struct backend *backend, struct error *error)
{
    const struct optimizer_settings settings = {.kind = OPTIMIZER_ADAM, .adam = config->adam};
    enum status status = params_new(&learner->params, backend, error);
    if (status == STATUS_OK)
        status = policy_register(learner->params, config, error);
    if (status == STATUS_OK)
        status = params_build(learner->params, config->seed, error);
    if (status == STATUS_OK)
        status = optimizer_new(&learner->optimizer, &settings, learner->params, error);
    if (status == STATUS_OK)
        status = gradients_new(&learner->gradients, learner->params, error);
    return status == STATUS_OK ? tape_new(&learner->tape, backend, error) : status;
}

void policy_learner_close(struct policy_learner *learner)
{
    tape_free(learner->tape);
    gradients_free(learner->gradients);
    optimizer_free(learner->optimizer);
    params_free(learner->params);
}
