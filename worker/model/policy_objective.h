/* PPO's objective of one minibatch (kernels/policy/surrogate.h), for whatever network evaluates its rows:
 *
 *     policy_minibatch_begin(&m, surrogate, rows, targets, objective);
 *     for each chunk of at most SURROGATE_ROWS_MAX rows: evaluate, judge, pull
 *     for each chunk, in order: policy_sums_add(&m.sums, …)
 *     losses = policy_minibatch_losses(&m);
 *
 * Nothing allocates. Threads may judge at once, each into sums of its own. */
#ifndef WORKER_MODEL_POLICY_OBJECTIVE_H
#define WORKER_MODEL_POLICY_OBJECTIVE_H

#include "worker/model/policy.h"

/* Over the rows of a chunk, or of a minibatch. */
struct policy_sums {
    struct surrogate_sums actions, values;
};

struct policy_minibatch {
    const struct surrogate *surrogate;
    uint32_t count; /* rows of the minibatch */
    const struct policy_targets *targets;
    const struct surrogate_objective *objective;
    double shift, factor; /* an advantage A is learned from as (A - shift) * factor */
    struct policy_sums sums;
};

/* The other arguments outlive *m. */
void policy_minibatch_begin(struct policy_minibatch *m, const struct surrogate *surrogate,
                            const struct policy_rows *rows, const struct policy_targets *targets,
                            const struct surrogate_objective *objective);

/* Add a chunk of the minibatch's rows to *sums, by what the network says of them now, (count) each, and write
 * what they pull at it: log_probability and entropy; value. */
void policy_minibatch_judge_actions(const struct policy_minibatch *m, const struct policy_rows *rows,
                                    const float *log_probability, const float *entropy,
                                    const struct surrogate_pulls *pulls, struct policy_sums *sums);
void policy_minibatch_judge_values(const struct policy_minibatch *m, const struct policy_rows *rows,
                                   const float *value, const struct surrogate_pulls *pulls,
                                   struct policy_sums *sums);

void policy_sums_add(struct policy_sums *to, const struct policy_sums *more);

/* The means over the minibatch, by m->sums; gradient_norm is 0 and stepped false. */
struct policy_losses policy_minibatch_losses(const struct policy_minibatch *m);

/* What torch.nn.utils.clip_grad_norm_ multiplies a gradient of this norm by; 1: the gradient stays. */
double policy_clip_factor(double norm, double max_norm);

#endif
