/* What a policy on a backend learns with: parameters, their gradients, Adam and a tape. For policy_gpu.c and
 * policy_images.c, which embed it. */
#ifndef WORKER_MODEL_POLICY_LEARNER_H
#define WORKER_MODEL_POLICY_LEARNER_H

#include "kernels/params/optim.h"
#include "kernels/tape/tape.h"
#include "worker/model/policy_config.h"

struct policy_learner {
    struct params *params; /* as policy_parameters lists them */
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
};

/* The parameters have the first values that policy_parameters' bounds say. *learner is all zero before;
 * policy_learner_close also follows a failure. STATUS_INVALID: a weight has too many elements, or Adam's
 * settings; STATUS_NO_MEMORY. */
enum status policy_learner_open(struct policy_learner *learner, const struct policy_config *config,
                                struct backend *backend, struct error *error);
void policy_learner_close(struct policy_learner *learner);

/* Registers the parameters of a configuration, with their first values; before params_build. */
enum status policy_register(struct params *params, const struct policy_config *config, struct error *error);

#endif
