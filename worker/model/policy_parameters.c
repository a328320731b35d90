/* The table of the policy's parameters. */
#include "worker/model/policy_parameters.h"

#include <math.h>

void policy_parameters(struct policy_parameter out[POLICY_PARAMETERS], const struct mlp_shape *shape)
{
    const double first = 1 / sqrt(shape->inputs), second = 1 / sqrt(shape->hidden);
    out[0] = (struct policy_parameter){"affine1.weight", SHAPE2(shape->hidden, shape->inputs), first};
    out[1] = (struct policy_parameter){"affine1.bias", SHAPE1(shape->hidden), first};
    out[2] = (struct policy_parameter){"affine2.weight", SHAPE2(shape->actions, shape->hidden), second};
    out[3] = (struct policy_parameter){"affine2.bias", SHAPE1(shape->actions), second};
}
