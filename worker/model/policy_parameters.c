/* Lists the policy's parameters: names, shapes, and bounds of the first values. */
#include "worker/model/policy_parameters.h"

#include "kernels/policy/dense_parameters.h"
#include "worker/model/policy_config.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)POLICY_NAME_BYTES >= (int)DENSE_NAME_BYTES, "names of dense layers have room");

void policy_mlp_parameters(struct policy_parameter out[POLICY_PARAMETERS], const struct mlp_shape *shape)
{
    const double first = 1 / sqrt(shape->inputs), second = 1 / sqrt(shape->hidden);
    out[0] = (struct policy_parameter){"affine1.weight", SHAPE2(shape->hidden, shape->inputs), first};
    out[1] = (struct policy_parameter){"affine1.bias", SHAPE1(shape->hidden), first};
    out[2] = (struct policy_parameter){"affine2.weight", SHAPE2(shape->actions, shape->hidden), second};
    out[3] = (struct policy_parameter){"affine2.bias", SHAPE1(shape->actions), second};
}

static uint32_t dense_list(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                           const struct dense_shape *shape)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t count = dense_parameters(shape, list);
    assert(count <= POLICY_PARAMETERS_MAX);
    for (uint32_t p = 0; p < count; p++) {
        out[p].shape =
            list[p].rank == 1 ? SHAPE1(list[p].shape[0]) : SHAPE2(list[p].shape[0], list[p].shape[1]);
        out[p].bound = list[p].kind == DENSE_LOG_SIGMA ? 0 : 1 / sqrt(list[p].inputs);
        memcpy(out[p].name, list[p].name, DENSE_NAME_BYTES);
    }
    return count;
}

/* ---- the CNN ---- */

/* The weight and bias of a layer. */
static void list_layer(struct policy_parameter out[2], const char *name, struct shape weight)
{
    const uint32_t outputs = weight.size[0];
    const double bound = 1 / sqrt((double)shape_elements(&weight) / outputs);
    out[0] = (struct policy_parameter){.shape = weight, .bound = bound};
    out[1] = (struct policy_parameter){.shape = SHAPE1(outputs), .bound = bound};
    snprintf(out[0].name, sizeof out[0].name, "%s.weight", name);
    snprintf(out[1].name, sizeof out[1].name, "%s.bias", name);
}

/* Height or width behind the three convolutions. */
static uint32_t convolved(uint32_t size)
{
    return ((size - 8) / 4 + 1 - 4) / 2 + 1 - 2;
}

enum { EXTRACTOR_PARAMETERS = 8 };

/* The layers that make an image's features. */
static void list_extractor(struct policy_parameter out[EXTRACTOR_PARAMETERS], const char *name,
                           const uint32_t image[3])
{
    static const char *const layers[] = {"cnn.0", "cnn.2", "cnn.4", "linear.0"};
    const struct shape weights[] = {
        SHAPE4(32, image[2], 8, 8), SHAPE4(64, 32, 4, 4), SHAPE4(64, 64, 3, 3),
        SHAPE2(POLICY_CNN_FEATURES, 64 * convolved(image[0]) * convolved(image[1]))};
    for (size_t l = 0; l < EXTRACTOR_PARAMETERS / 2; l++) {
        char layer[POLICY_NAME_BYTES - 8];
        snprintf(layer, sizeof layer, "%s.%s", name, layers[l]);
        list_layer(&out[2 * l], layer, weights[l]);
    }
}

static uint32_t cnn_list(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                         const struct policy_config *config)
{
    const struct dense_shape last = policy_dense_shape(config);
    const uint32_t *image = config->observation.shape;
    uint32_t count = 0;
    if (last.gaussian)
        out[count++] = (struct policy_parameter){"log_std", SHAPE1(last.components), 0};
    list_extractor(&out[count], "features_extractor", image);
    count += EXTRACTOR_PARAMETERS;
    if (config->has_value && !config->shared_value) {
        list_extractor(&out[count], "vf_features_extractor", image);
        count += EXTRACTOR_PARAMETERS;
    }
    list_layer(&out[count], "action_net", SHAPE2(dense_outputs(&last), POLICY_CNN_FEATURES));
    count += 2;
    if (config->has_value) {
        list_layer(&out[count], "value_net", SHAPE2(1, POLICY_CNN_FEATURES));
        count += 2;
    }
    return count;
}

/* ---- any ---- */

uint32_t policy_parameters(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                           const struct policy_config *config)
{
    if (policy_form(config) == POLICY_FORM_TUTORIAL) {
        const struct mlp_shape shape = policy_mlp_shape(config);
        policy_mlp_parameters(out, &shape);
        return POLICY_PARAMETERS;
    }
    if (policy_form(config) == POLICY_FORM_CNN)
        return cnn_list(out, config);
    const struct dense_shape shape = policy_dense_shape(config);
    return dense_list(out, &shape);
}
