/* The thread of the lead, or of a command without a job. */
#include "worker/parallel/whole_model.h"

#include "kernels/params/gradients.h"

#include <stdlib.h>

static enum status whole_build(struct whole *whole, const struct rnn_config *rnn, struct error *error)
{
    struct rnn_encoder encoder;
    struct rnn_lstm lstm;
    struct rnn_decoder decoder;
    enum status status = rnn_encoder_init(&encoder, rnn, whole->params, error);
    if (status == STATUS_OK)
        status = rnn_lstm_init(&lstm, rnn, whole->params, error);
    if (status == STATUS_OK)
        status = rnn_decoder_init(&decoder, rnn, whole->params, error);
    return status == STATUS_OK ? params_build(whole->params, 0, error) : status;
}

static enum status whole_open_values(struct whole *whole, struct error *error)
{
    size_t largest = 1;
    for (uint32_t i = 0; i < params_count(whole->params); i++)
        largest = whole_count(whole, i) > largest ? whole_count(whole, i) : largest;
    whole->values = malloc(largest * sizeof *whole->values);
    if (whole->values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a parameter of %zu numbers", largest);
    return STATUS_OK;
}

enum status whole_open(struct whole *whole, const struct rnn_config *rnn, bool momentum, struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    enum status status = backend_load(&whole->backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = params_new(&whole->params, whole->backend, error);
    if (status == STATUS_OK)
        status = whole_build(whole, rnn, error);
    if (status == STATUS_OK && momentum)
        status = gradients_new(&whole->momentum, whole->params, error);
    if (status == STATUS_OK && momentum)
        status = gradients_complete(whole->momentum, error); // gradients_take zeroes nothing later
    return status == STATUS_OK ? whole_open_values(whole, error) : status;
}

void whole_close(struct whole *whole)
{
    gradients_free(whole->momentum);
    params_free(whole->params);
    backend_close(whole->backend);
    free(whole->values);
    *whole = (struct whole){0};
}

size_t whole_count(const struct whole *whole, uint32_t index)
{
    return shape_elements(&params_at(whole->params, index)->tensor.shape);
}

enum status whole_read(struct whole *whole, uint32_t index, bool momentum, struct error *error)
{
    const struct parameter *parameter = params_at(whole->params, index);
    if (momentum)
        return gradients_read(whole->momentum, parameter, DTYPE_F32, whole->values, error);
    return params_read(whole->params, parameter, DTYPE_F32, whole->values, error);
}

enum status whole_write(struct whole *whole, uint32_t index, bool momentum, struct error *error)
{
    struct parameter *parameter = params_at(whole->params, index);
    bool fresh;
    if (momentum)
        return backend_upload(whole->backend, gradients_take(whole->momentum, parameter, &fresh), DTYPE_F32,
                              whole->values, error);
    return params_write(whole->params, parameter, DTYPE_F32, whole->values, error);
}
