/* The learner: turns a finished rollout into the policy's next parameters.
 *
 * It runs on the agent's thread, at the top level of the loop: the agent launches nothing before the next
 * parameters are there. The policy shares out a large rollout's rows to threads of its own (/policy/threads),
 * on the processors that the observers do not need meanwhile. `progress` serves sockets, orders and the beat.
 * A learner that hangs therefore stops the beat, and the watchdog sees it. */
#ifndef WORKER_REINFORCE_LEARNER_H
#define WORKER_REINFORCE_LEARNER_H

#include "kernels/base/status.h"
#include "worker/model/policy.h"
#include "worker/reinforce/returns.h"
#include "worker/reinforce/rollout.h"

struct learner_result {
    double loss; /* under the old parameters */
    double seconds;
};

/* Computes the returns of all rows and takes one step of the policy. `progress` is policy_learn's. On failure
 * the parameters are as before, *result is not touched, and *error names the episode and the cause. */
enum status learner_run(struct policy *policy, struct rollout *rollout, const struct returns_config *returns,
                        policy_progress *progress, void *context, struct learner_result *result,
                        struct error *error);

#endif
