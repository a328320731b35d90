/* The form of METHOD_STEP's messages for an environment's spec: which tensors they have, and where a row's
 * values lie in them. The observer writes requests by it, the agent holds them to it. Pure functions.
 *
 * n environments, of A agents each, make rows = n * A; `ended` of these have flags that end an episode
 * (step_ended). A request's tensors:
 *     0 STEP_ENVIRONMENT  uint32 (n)                    job-wide numbers, ascending
 *     1 STEP_OBSERVATION  float32 or uint8 (rows + ended, shape…)
 *                                                       the present ones; then the last ones of the episodes
 *                                                       that ended, in the order of their rows
 *     2 STEP_REWARD       float32 (rows + ended * metrics)
 *                                                       of the step before; then an ended row's metrics
 *     3 STEP_FLAGS        uint8 (rows, 1 + choices)     environment.h's flags of the step before; then the
 *                                                       row's action mask, if the environment has one
 * The answer has one tensor of (rows, components): uint32 choices, or float32. At step 0 rewards are 0,
 * and flags too; but where the environments go on from the rollout before, those of absent agents are
 * ENVIRONMENT_ABSENT. */
#ifndef WORKER_REINFORCE_STEP_MESSAGE_H
#define WORKER_REINFORCE_STEP_MESSAGE_H

#include "worker/environment/environment.h"
#include "worker/net/rpc.h"

#include <stdbool.h>
#include <string.h>

/* METHOD_RUN_EPISODE's args, and how the environments begin: reset, as the episode before has left them, or
 * in the saved states that come with the request. Where RUN_CLOSES is not 0, each group sends one more step
 * behind the last one, the closing step, whose answer has no tensor: the agent estimates by it what would
 * have followed. */
enum { RUN_NUMBER, RUN_STEPS, RUN_BEGIN, RUN_CLOSES };
enum { BEGIN_RESET, BEGIN_CONTINUE, BEGIN_STATES };

/* The tensors of its answer; the last one only where the job continues and the environments can save. */
enum { RETURN_REWARD, RETURN_FLAGS, RETURN_LENGTH, RETURN_STATES };

enum { STEP_ENVIRONMENT, STEP_OBSERVATION, STEP_REWARD, STEP_FLAGS, STEP_TENSORS };

/* The tensors of a request. */
void step_tensors(struct wire_tensor tensors[STEP_TENSORS], const struct environment_spec *spec, uint32_t n,
                  uint32_t ended);

/* The tensor of its answer. */
struct wire_tensor step_action_tensor(const struct environment_spec *spec, uint32_t n);

/* Bytes of a row of STEP_FLAGS. */
uint32_t step_flags_bytes(const struct environment_spec *spec);

/* Whether flags of a step say that an episode's last observation follows. */
static inline bool step_ended(uint8_t flags)
{
    return (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0 &&
           (flags & (ENVIRONMENT_RESTARTED | ENVIRONMENT_FAILED)) == 0;
}

/* Holds a request's tensors to the spec, for at most n_max environments; its flags and masks; and its floats
 * to finite values. STATUS_INVALID with a sentence. */
enum status step_check(const struct rpc_message *message, const struct environment_spec *spec, uint32_t n_max,
                       struct error *error);

/* Element i of a tensor, which may lie at any address. */
static inline uint32_t u32_at(const void *data, size_t i)
{
    uint32_t value;
    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return value;
}

static inline float f32_at(const void *data, size_t i)
{
    float value;
    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return value;
}

#endif
