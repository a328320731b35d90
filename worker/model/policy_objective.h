/* PPO's objective of one minibatch (kernels/policy/surrogate.h), for whatever network evaluates its rows:
 *
 *     policy_minibatch_begin(&m, surrogate, rows, targets, objective);
 *     for each chunk of at most SURROGATE_ROWS_MAX rows, in order: evaluate, judge, pull
 *     losses = policy_minibatch_losses(&m);
 *
 * Nothing allocates. One thread may judge actions while another judges values. */
#ifndef WORKER_MODEL_POLICY_OBJECTIVE_H
#define WORKER_MODEL_POLICY_OBJECTIVE_H

#include "worker/model/policy.h"

struct policy_minibatch {
    struct surrogate *surrogate;
    uint32_t count; /* rows of the minibatch */
    const struct policy_targets *targets;
    const struct surrogate_objective *objective;
    double shift, factor;          /* an advantage A is learned from as (A - shift) * factor */
    struct surrogate_sums sums[2]; /* of the actions, of the values */
};

/* The other arguments outlive *m. */
void policy_minibatch_begin(struct policy_minibatch *m, struct surrogate *surrogate,
                            const struct policy_rows *rows, const struct policy_targets *targets,
                            const struct surrogate_objective *objective);

/* Adds a chunk of the minibatch's rows by what the network says of them now, (count) each, and writes what
 * they pull at it: log_probability and entropy; value. */
void policy_minibatch_judge_actions(struct policy_minibatch *m, const struct policy_rows *rows,
                                    const float *log_probability, const float *entropy,
                                    const struct surrogate_pulls *pulls);
void policy_minibatch_judge_values(struct policy_minibatch *m, const struct policy_rows *rows,
                                   const float *value, const struct surrogate_pulls *pulls);

/* The means over the minibatch; gradient_norm is 0 and stepped false. */
struct policy_losses policy_minibatch_losses(const struct policy_minibatch *m);

#endif
