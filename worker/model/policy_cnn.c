/* The CNN's first values, and its forward on the tape, which gives its backward. */
#include "worker/model/policy_cnn.h"

#include "kernels/policy/orthogonal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters ---- */

static double gain_of(const char *name)
{
    if (strcmp(name, "action_net.weight") == 0)
        return 0.01;
    return strcmp(name, "value_net.weight") == 0 ? 1 : sqrt(2);
}

static enum status begin_one(struct params *params, struct parameter *parameter,
                             const struct policy_config *config, struct error *error)
{
    const struct shape *shape = &parameter->tensor.shape;
    const size_t count = shape_elements(shape), rows = shape->size[0];
    const bool is_log_std = strcmp(parameter->name, "log_std") == 0;
    enum status status = STATUS_OK;
    if (!is_log_std && !config->orthogonal)
        return STATUS_OK;
    float *values = calloc(count, sizeof *values);
    if (values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the %zu values of %s", count,
                         parameter->name);
    for (size_t i = 0; i < count && is_log_std; i++)
        values[i] = (float)config->log_std_init;
    if (shape->rank > 1)
        status = orthogonal_draw(values, rows, count / rows, gain_of(parameter->name), config->seed,
                                 parameter->index, error);
    if (status == STATUS_OK)
        status = params_write(params, parameter, DTYPE_F32, values, error);
    free(values);
    return status;
}

enum status policy_cnn_begin(struct params *params, const struct policy_config *config, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++)
        status = begin_one(params, params_at(params, i), config, error);
    return status;
}

/* ---- forward ---- */

static struct variable *find(struct params *params, struct tape *tape, const char *layer, const char *which)
{
    char name[POLICY_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", layer, which);
    return tape_parameter(tape, params_find(params, name));
}

/* ReLU in the place of x. */
static struct variable *activate(struct tape *tape, struct variable *x)
{
    struct variable *y = tape_relu(tape, x);
    tape_drop(tape, x);
    return y;
}

static struct variable *convolve(struct params *params, struct tape *tape, const char *layer, uint32_t stride,
                                 struct variable *x)
{
    struct variable *y = tape_conv2d(tape, x, find(params, tape, layer, "weight"),
                                     find(params, tape, layer, "bias"), stride, 0);
    return activate(tape, y);
}

static struct variable *flatten(struct tape *tape, struct variable *x)
{
    if (x == NULL)
        return NULL;
    const uint32_t *size = variable_tensor(x)->shape.size;
    struct variable *y = tape_reshape(tape, x, SHAPE2(size[0], size[1] * size[2] * size[3]));
    tape_drop(tape, x);
    return y;
}

static struct variable *connect(struct params *params, struct tape *tape, const char *layer,
                                struct variable *x)
{
    return tape_linear(tape, x, find(params, tape, layer, "weight"), find(params, tape, layer, "bias"));
}

/* The features that the extractor `name` finds in the images. */
static struct variable *extract(struct params *params, struct tape *tape, const char *name,
                                struct variable *images)
{
    static const char *const convolutions[] = {"cnn.0", "cnn.2", "cnn.4"};
    static const uint32_t strides[] = {4, 2, 1};
    char layer[POLICY_NAME_BYTES - 8];
    struct variable *x = images;
    for (uint32_t l = 0; l < 3; l++) {
        snprintf(layer, sizeof layer, "%s.%s", name, convolutions[l]);
        struct variable *y = convolve(params, tape, layer, strides[l], x);
        if (l > 0)
            tape_drop(tape, x);
        x = y;
    }
    snprintf(layer, sizeof layer, "%s.linear.0", name);
    struct variable *flat = flatten(tape, x), *linear = connect(params, tape, layer, flat);
    tape_drop(tape, flat);
    return activate(tape, linear);
}

struct policy_cnn_outputs policy_cnn_forward(struct params *params, struct tape *tape,
                                             struct variable *images, unsigned wanted)
{
    const bool shared = params_find(params, "vf_features_extractor.cnn.0.weight") == NULL;
    struct policy_cnn_outputs outputs = {0};
    struct variable *features = NULL;
    if ((wanted & POLICY_CNN_ACTION) != 0 || shared)
        features = extract(params, tape, "features_extractor", images);
    if ((wanted & POLICY_CNN_ACTION) != 0)
        outputs.action = connect(params, tape, "action_net", features);
    if ((wanted & POLICY_CNN_VALUE) != 0 && !shared) {
        tape_drop(tape, features);
        features = extract(params, tape, "vf_features_extractor", images);
    }
    if ((wanted & POLICY_CNN_VALUE) != 0)
        outputs.value = connect(params, tape, "value_net", features);
    tape_drop(tape, features);
    return outputs;
}
