/* Reading a tape's values, gradients and loss; and releasing values early. */
#include "kernels/tape/tape_internal.h"

#include <math.h>

const struct tensor *variable_tensor(const struct variable *variable)
{
    return variable->tensor;
}

bool variable_needs_gradient(const struct variable *variable)
{
    return variable->needs_gradient;
}

const struct tensor *variable_gradient(const struct variable *variable)
{
    return variable->has_gradient ? &variable->gradient : NULL;
}

enum status tape_read(struct tape *tape, const struct variable *variable, enum dtype dtype, void *values)
{
    if (tape->error.status != STATUS_OK)
        return tape->error.status;
    if (variable == NULL) {
        tape_fail(tape, STATUS_INVALID, "a read of no variable");
        return tape->error.status;
    }
    if (tape_check(tape, variable, "a read") != STATUS_OK)
        return tape->error.status;
    struct error error = {0};
    enum status status = backend_download(tape->backend, variable->tensor, dtype, values, &error);
    return status == STATUS_OK ? STATUS_OK : tape_stick(tape, &error);
}

void tape_drop(struct tape *tape, struct variable *variable)
{
    if (tape->mode == TAPE_INFER && variable != NULL && variable->tape == tape &&
        variable->step == tape->step)
        variable_release_value(tape, variable);
}

/* ---- the loss ---- */

/* Names the variable: "the input images", "the output of conv2d of layer1.0.conv1.weight". */
static void fail_not_finite(struct tape *tape, const struct variable *variable, double loss)
{
    const char *label = variable->label != NULL ? variable->label : "no name";
    static const char begin[] = "the first tensor that holds a NaN or an infinity is";
    if (variable->source == SOURCE_PARAMETER)
        tape_fail(tape, STATUS_INTERNAL, "the loss is %g; %s the parameter %s", loss, begin, label);
    else if (variable->source == SOURCE_INPUT || variable->source == SOURCE_CONSTANT)
        tape_fail(tape, STATUS_INTERNAL, "the loss is %g; %s the input %s", loss, begin, label);
    else
        tape_fail(tape, STATUS_INTERNAL, "the loss is %g; %s the output of %s %s %s", loss, begin,
                  variable->what, variable->label_is_own ? "of" : "after", label);
}

static enum status find_not_finite(struct tape *tape, double loss)
{
    struct error error = {0};
    for (uint32_t i = 0; i < tape->variables.used; i++) {
        const struct variable *variable = pool_at(&tape->variables, i);
        size_t index = SIZE_MAX;
        if (variable->tensor->dtype == DTYPE_I32)
            continue;
        if (backend_first_not_finite(tape->backend, variable->tensor, &index, &error) != STATUS_OK)
            return tape_stick(tape, &error);
        if (index == SIZE_MAX)
            continue;
        fail_not_finite(tape, variable, loss);
        break;
    }
    return tape->error.status;
}

enum status tape_loss(struct tape *tape, struct variable *loss, double *value)
{
    double found = 0;
    if (tape->error.status == STATUS_OK && (tape->mode != TAPE_TRAIN || tape->walk != WALK_NONE))
        tape_fail(tape, STATUS_INVALID, "the loss is asked for before the walk of a tape that records");
    if (tape->error.status == STATUS_OK && loss != NULL && loss->tensor->shape.rank != 0)
        tape_fail(tape, STATUS_INVALID, "the loss is no scalar");
    enum status status = tape_read(tape, loss, DTYPE_F64, &found);
    if (status != STATUS_OK)
        return status;
    if (!isfinite(found))
        return find_not_finite(tape, found);
    *value = found;
    return STATUS_OK;
}
