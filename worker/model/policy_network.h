/* The tutorial's policy as operations of the tape. The tape's thread. */
#ifndef WORKER_MODEL_POLICY_NETWORK_H
#define WORKER_MODEL_POLICY_NETWORK_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "worker/model/policy_parameters.h"

struct policy_network {
    struct parameter *parameter[POLICY_PARAMETERS]; /* in the order of policy_mlp_parameters */
};

/* Registers the parameters with their first values; before params_build.
 * STATUS_NO_MEMORY. */
enum status policy_network_register(struct policy_network *network, const struct mlp_shape *shape,
                                    struct params *params, struct error *error);

/* observations (rows, inputs) -> log-probabilities (rows, actions). `rows` (rows, 3) int32 holds each row's
 * (environment, step, episode), which key its dropout together with the seed. On a tape that does not record,
 * nothing is dropped. */
struct variable *policy_network_forward(const struct policy_network *network, struct tape *tape,
                                        struct variable *observations, struct variable *rows, double dropout,
                                        uint64_t seed);

#endif
