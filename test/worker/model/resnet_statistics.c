/* Running statistics: running' = 0.9 running + 0.1 of the batch, in double, entry by entry. */
#include "test/worker/model/resnet_statistics.h"

#include <stdlib.h>

static enum status move_entry(struct params *params, struct parameter *parameter, const float *batch,
                              double *values, struct error *error)
{
    enum status status = params_read(params, parameter, DTYPE_F64, values, error);
    for (size_t i = 0; i < shape_elements(&parameter->tensor.shape); i++)
        values[i] = 0.9 * values[i] + 0.1 * (double)batch[parameter->offset + i];
    return status == STATUS_OK ? params_write(params, parameter, DTYPE_F64, values, error) : status;
}

enum status resnet_statistics_move(struct resnet *resnet, struct tape *tape, struct params *params,
                                   struct error *error)
{
    const size_t elements = params_buffer_elements(params);
    float *batch = calloc(elements, sizeof *batch);
    double *values = calloc(elements, sizeof *values);
    enum status status = STATUS_NO_MEMORY;
    if (batch != NULL && values != NULL)
        status = resnet_read_statistics(resnet, tape, batch, error);
    if (status == STATUS_OK && tape_wait(tape) != STATUS_OK)
        status = tape_status(tape, error);
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++) {
        struct parameter *parameter = params_at(params, i);
        if (parameter->kind == PARAMETER_BUFFER)
            status = move_entry(params, parameter, batch, values, error);
        parameter->counter += parameter->kind == PARAMETER_COUNTER;
    }
    free(batch);
    free(values);
    return status;
}
