/* Evaluations of a job whose environments are in Python: the observers' processes have the environments, the
 * agent's has the policy. One thread, no messages of its own: evaluator.c sends and receives.
 *
 * Observer i of k plays one share of the n episodes, those from n * i / k on. METHOD_RUN_EVALUATION names the
 * share. The observer makes environments for it beside those of the training, once, and resets environment j
 * with the seed of episode 0 of the job's environment j, as player.h has it. It plays them all at once, and
 * asks for every action by METHOD_STEP of episode 0, group 0. Training begins with episode 1. So a message of
 * an evaluation is never taken for one of training, and nothing of a rollout, its environments or its draws
 * is touched.
 *
 * An episode depends on the job, on its number and on the policy alone. The policy's choice for a row does
 * not depend on the batch: each request is answered at once, by a batch of its own. The sums of an episode
 * are formed in order of its steps, those over episodes in order of their numbers. So the result is the same
 * however the episodes are spread. The successor of an observer that died plays the share from its first
 * step; what the predecessor had reported of it is forgotten. */
#ifndef WORKER_REINFORCE_EVALUATION_SHARES_H
#define WORKER_REINFORCE_EVALUATION_SHARES_H

#include "worker/net/rpc.h"
#include "worker/reinforce/player.h"
#include "worker/reinforce/step_message.h"

/* METHOD_RUN_EVALUATION's args. Its answer has the form of METHOD_RUN_EPISODE's, of the share's episodes. */
enum { EVALUATION_FIRST, EVALUATION_EPISODES, EVALUATION_STEPS };

struct evaluation_share {
    uint32_t first, count; /* its episodes */
    uint32_t step;         /* the step that its next request must be for */
    bool is_playing;       /* it has begun, and not ended */
};

struct evaluation_shares {
    struct player *player; /* player_open_apart */
    bool sampled;          /* actions are drawn */
    uint32_t count;
    struct evaluation_share *of; /* (count) */
    uint8_t *alive;              /* (episodes) the episode has rows */
    uint32_t *order;             /* (episodes * agents) 0, 1, 2 … */
    char *observations;          /* (episodes * agents, bytes of an observation) of one request */
    uint8_t *allowed;            /* (episodes * agents, choices) likewise; NULL: there are no masks */
    void *actions;               /* (episodes * agents, bytes of an action) of one answer */
};

/* `player` outlives *shares, which is all zero. STATUS_NO_MEMORY. Close also follows a failure. */
enum status evaluation_shares_open(struct evaluation_shares *shares, struct player *player, uint32_t count,
                                   bool sampled, struct error *error);
void evaluation_shares_close(struct evaluation_shares *shares);

/* Begins share `index`, or begins it again, and writes METHOD_RUN_EVALUATION's request. */
void evaluation_shares_begin(struct evaluation_shares *shares, uint32_t index, struct rpc_message *request);

/* Whether a decoded METHOD_STEP is the next one of share `index`. STATUS_INVALID with a sentence, also where
 * *shares is all zero, because no observer was asked: a step may come from an observer all the same. */
enum status evaluation_shares_check(const struct evaluation_shares *shares, uint32_t index,
                                    const struct step *step, struct error *error);

/* Adds what a step that is good reports, and answers it: the answer's data stay valid until the next call.
 * Errors as player_act. */
enum status evaluation_shares_step(struct evaluation_shares *shares, uint32_t index, const struct step *step,
                                   struct rpc_message *answer, struct error *error);

/* Ends share `index` with the answer to METHOD_RUN_EVALUATION. STATUS_INVALID: it does not match the steps.
 */
enum status evaluation_shares_end(struct evaluation_shares *shares, uint32_t index,
                                  const struct rpc_message *answer);

#endif
