/* The values of a policy for images, between a backend and their copy on the host. */
#include "worker/model/policy_images.h"

/* The optimizer's moment that an array of policy_values is. */
static struct gradients *moment_of(const struct policy_images *net, int array)
{
    return optimizer_moment(net->optimizer, array == POLICY_SECOND_MOMENT);
}

enum status policy_images_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(net->params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            const struct parameter *parameter = params_at(net->params, i);
            float *to = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_read(net->params, parameter, DTYPE_F32, to, error)
                         : gradients_read(moment_of(net, array), parameter, DTYPE_F32, to, error);
        }
    policy_normalizer_save(policy, values);
    values->steps = optimizer_steps(net->optimizer);
    return status;
}

enum status policy_images_restore(struct policy *policy, const struct policy_values *values,
                                  struct error *error)
{
    struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(net->params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            struct parameter *parameter = params_at(net->params, i);
            const float *from = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_write(net->params, parameter, DTYPE_F32, from, error)
                         : gradients_write(moment_of(net, array), parameter, DTYPE_F32, from, error);
        }
    policy_normalizer_restore(policy, values);
    optimizer_steps_set(net->optimizer, values->steps);
    return status == STATUS_OK ? images_load_head(net, error) : status;
}
