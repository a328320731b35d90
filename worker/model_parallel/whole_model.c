/* Keeps the whole language model in one process: for checkpoints in the lead of a job, and for `evaluate` and
 * `generate`. The thread of the lead or of the command runs this. */
#include "worker/model_parallel/whole_model.h"

#include "kernels/params/gradients.h"

enum status whole_open(struct whole *whole, const struct rnn_config *rnn, bool momentum, struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    enum status status = backend_load(&whole->backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = params_new(&whole->params, whole->backend, error);
    if (status == STATUS_OK)
        status = rnn_register(rnn, whole->params, error);
    if (status == STATUS_OK)
        status = params_build(whole->params, 0, error);
    if (status == STATUS_OK && momentum)
        status = gradients_new(&whole->momentum, whole->params, error);
    if (status == STATUS_OK && momentum)
        status = gradients_complete(whole->momentum, error); // whole_values gives out its memory
    return status;
}

void whole_close(struct whole *whole)
{
    gradients_free(whole->momentum);
    params_free(whole->params);
    backend_close(whole->backend);
    *whole = (struct whole){0};
}

size_t whole_count(const struct whole *whole, uint32_t index)
{
    return shape_elements(&params_at(whole->params, index)->tensor.shape);
}

float *whole_values(const struct whole *whole, uint32_t index, bool momentum)
{
    const struct parameter *parameter = params_at(whole->params, index);
    bool fresh;
    return momentum ? gradients_take(whole->momentum, parameter, &fresh)->data : parameter->tensor.data;
}
