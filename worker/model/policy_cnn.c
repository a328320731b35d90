/* The CNN's forward on the tape, which gives its backward. */
#include "worker/model/policy_cnn.h"

#include <string.h>

enum status policy_cnn_register(struct params *params, const struct policy_config *config,
                                struct error *error)
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

/* The layer's weight or bias: `layer` counts from the first convolution, behind a Gaussian's log_std. */
static struct variable *layer_parameter(struct params *params, struct tape *tape, uint32_t layer, bool bias)
{
    const uint32_t first = strcmp(params_at(params, 0)->name, "log_std") == 0;
    return tape_parameter(tape, params_at(params, first + 2 * layer + bias));
}

/* ReLU in the place of x. */
static struct variable *activate(struct tape *tape, struct variable *x)
{
    struct variable *y = tape_relu(tape, x);
    tape_drop(tape, x);
    return y;
}

static struct variable *convolve(struct params *params, struct tape *tape, uint32_t layer, uint32_t stride,
                                 struct variable *x)
{
    struct variable *y = tape_conv2d(tape, x, layer_parameter(params, tape, layer, false),
                                     layer_parameter(params, tape, layer, true), stride, 0);
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

static struct variable *connect(struct params *params, struct tape *tape, uint32_t layer, struct variable *x)
{
    struct variable *y = tape_linear(tape, x, layer_parameter(params, tape, layer, false),
                                     layer_parameter(params, tape, layer, true));
    tape_drop(tape, x);
    return y;
}

struct variable *policy_cnn_forward(struct params *params, struct tape *tape, struct variable *images)
{
    static const uint32_t strides[] = {4, 2, 1};
    struct variable *x = images;
    for (uint32_t layer = 0; layer < 3; layer++) {
        struct variable *y = convolve(params, tape, layer, strides[layer], x);
        if (layer > 0)
            tape_drop(tape, x);
        x = y;
    }
    struct variable *features = activate(tape, connect(params, tape, 3, flatten(tape, x)));
    return connect(params, tape, 4, features);
}
