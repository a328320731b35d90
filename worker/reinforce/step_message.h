/* The form of METHOD_STEP's messages for an environment's spec: which tensors they have, and where a row's
 * values lie in them. The observer writes requests in this form. The agent checks and decodes each request
 * once, into a struct step, and reads that struct from then on. Pure functions.
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

#include "worker/environment/environment_spec.h"
#include "worker/net/rpc.h"

#include <stdbool.h>

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

/* Numbers in a message, which may lie at any address. */
typedef uint32_t __attribute__((aligned(1), may_alias)) message_u32;
typedef float __attribute__((aligned(1), may_alias)) message_f32;

/* A decoded request. The pointers point into the message's data, and are valid as long as these. */
struct step {
    uint64_t episode;
    uint32_t number;            /* of the step, from 0 */
    uint32_t group;             /* of the observer's groups */
    uint32_t count;             /* environments; 0: the group ends, and there are no rows */
    uint32_t agents;            /* of an environment */
    uint32_t rows;              /* count * agents */
    uint32_t ended;             /* rows whose flags end an episode (step_ended) */
    uint32_t flags_bytes;       /* of a row */
    size_t observation_bytes;   /* of a row */
    const message_u32 *numbers; /* (count) the environments' job-wide numbers, ascending */
    const char *observations;   /* (rows, observation_bytes) */
    const char *last;           /* (ended, observation_bytes) */
    const message_f32 *rewards; /* (rows) */
    const message_f32 *metrics; /* (ended, metrics) */
    const uint8_t *flags;       /* (rows, flags_bytes) flags, then the action mask */
    /* The sender can still change the observations, and floats can become NaN. NULL: not so. */
    const struct environment_spec *lent;
};

/* Checks a request, and decodes it: the tensors against the spec, for at most n_max environments; the flags
 * and masks; and that floats are finite. A request without tensors is the end of a group. STATUS_INVALID
 * with a sentence. */
enum status step_decode(struct step *step, const struct rpc_message *message,
                        const struct environment_spec *spec, uint32_t n_max, struct error *error);

/* Whether this copy of `count` of the step's observations is finite. It can be otherwise where the sender has
 * changed them behind the check. STATUS_INVALID with a sentence. */
enum status step_check_copy(const struct step *step, const void *copy, uint32_t count, struct error *error);

/* The decoded answer to METHOD_RUN_EPISODE or METHOD_RUN_EVALUATION. */
struct step_end {
    struct step last;           /* what the last step of each row earned and ended; no observations */
    const message_u32 *lengths; /* (count) steps of each environment */
    bool has_states;
    const char *states; /* (state_bytes) of the environments */
    uint32_t state_bytes;
};

/* Checks the form of the answer of n environments, and decodes it. STATUS_INVALID, without a sentence. */
enum status step_end_decode(struct step_end *end, const struct rpc_message *message,
                            const struct environment_spec *spec, uint32_t n);

/* Decodes a request of the agent's own environments, which is good. */
void step_view(struct step *step, const struct rpc_message *message, const struct environment_spec *spec);

static inline uint8_t step_flags(const struct step *step, uint32_t row)
{
    return step->flags[(size_t)row * step->flags_bytes];
}

static inline const uint8_t *step_mask(const struct step *step, uint32_t row)
{
    return step->flags + (size_t)row * step->flags_bytes + 1;
}

/* Whether the flags of the i-th environment's rows say that its episode is over. *all: these flags together.
 */
bool step_is_over(const struct step *step, uint32_t i, uint8_t *all);

/* How many environments from the i-th on have consecutive numbers, so that their rows follow one another in
 * a rollout, too. */
uint32_t step_run(const struct step *step, uint32_t i);

#endif
