/* Runs the policy's forward on the tape, which gives its backward. */
#include "worker/model/policy_network.h"

enum status policy_network_register(struct policy_network *network, const struct mlp_shape *shape,
                                    struct params *params, struct error *error)
{
    struct policy_parameter parameters[POLICY_PARAMETERS];
    enum status status = STATUS_OK;
    policy_mlp_parameters(parameters, shape);
    for (uint32_t i = 0; i < POLICY_PARAMETERS && status == STATUS_OK; i++) {
        const struct init init = {INIT_UNIFORM, parameters[i].bound};
        status = params_add(params, parameters[i].name, PARAMETER_TRAINED, parameters[i].shape, init,
                            &network->parameter[i], error);
    }
    return status;
}

struct variable *policy_network_forward(const struct policy_network *network, struct tape *tape,
                                        struct variable *observations, struct variable *rows, double dropout,
                                        uint64_t seed)
{
    const struct draw draw = {.seed = seed};
    struct parameter *const *parameter = network->parameter;
    struct variable *affine1 = tape_linear(tape, observations, tape_parameter(tape, parameter[0]),
                                           tape_parameter(tape, parameter[1]));
    struct variable *dropped = tape_dropout(tape, affine1, dropout, &draw, rows);
    struct variable *hidden = tape_relu(tape, dropped);
    tape_drop(tape, dropped);
    struct variable *logits =
        tape_linear(tape, hidden, tape_parameter(tape, parameter[2]), tape_parameter(tape, parameter[3]));
    tape_drop(tape, hidden);
    struct variable *log_probabilities = tape_log_softmax(tape, logits);
    tape_drop(tape, logits);
    return log_probabilities;
}
