/* SAC's actor: hidden layers, and a Gaussian that tanh squashes (kernels/policy/squashed.h). Private to
 * worker/model.
 *
 * Without gSDE the last layer gives means and logarithms of deviations. With gSDE it gives the means alone;
 * the deviations are a function of the last hidden layer, and one matrix of draws is the noise of a whole
 * gradient step, or of one environment for some steps.
 *
 *     sac_actor_begin_step, then for each chunk: sac_actor_draw, sac_actor_pull; sac_actor_check,
 * sac_actor_step
 *
 * One thread. */
#ifndef WORKER_MODEL_SAC_ACTOR_H
#define WORKER_MODEL_SAC_ACTOR_H

#include "kernels/policy/squashed.h"
#include "worker/model/q_learning.h"

struct sac_actor {
    struct q_network trunk; /* all layers; with gSDE the hidden ones */
    struct q_network mean;  /* with gSDE: the last layer */
    struct squashed *squashed;
    bool explores;              /* by gSDE */
    size_t deviations;          /* floats of log_std, which with gSDE are the first parameter */
    float *draws;               /* (features, components) with gSDE */
    struct squashed_rows rows;  /* of the last draw */
    struct dense_matrix action; /* (a chunk's rows, components) */
    struct dense_matrix outputs_pull, features_pull;
};

/* *actor is all zero before; sac_actor_close also follows a failure. STATUS_NO_MEMORY. */
enum status sac_actor_open(struct sac_actor *actor, const struct q_learning *p, struct error *error);
void sac_actor_close(struct sac_actor *actor);

/* Computes with the arrays' values as they are now. */
void sac_actor_load(struct sac_actor *actor, const struct q_learning *p);

/* Writes the chunk's actions as they are drawn for each row's environment and step; and the ones without
 * noise. False: one is not finite. */
void sac_actor_act(struct sac_actor *actor, const struct q_learning *p, const struct policy_rows *chunk,
                   struct rng_key *key, const uint32_t *environment, const uint32_t *step);
bool sac_actor_choose(struct sac_actor *actor, const struct q_learning *p, const struct policy_rows *chunk);

/* Draws the noise of the running gradient step, where it is one for all rows. */
void sac_actor_begin_step(struct sac_actor *actor, const struct q_learning *p);

/* Draws actions for rows first … first + count - 1 of the batch, whose observations are in p->input, and
 * their log-probabilities. `which` as q_learning_noise. The actions are valid until the next call. */
struct dense_matrix sac_actor_draw(struct sac_actor *actor, const struct q_learning *p, uint32_t which,
                                   uint32_t first, uint32_t count, float *log_probability);

/* The gradient of all of the actor's parameters for the rows last drawn: added, or in the place of what is
 * there. d_log_probability is the same for all rows. */
void sac_actor_pull(struct sac_actor *actor, const struct q_learning *p, struct dense_matrix d_actions,
                    float d_log_probability, bool adds);

/* Errors as q_check_gradient. */
enum status sac_actor_check(const struct sac_actor *actor, const struct q_learning *p,
                            const struct policy_transitions *batch, struct error *error);

void sac_actor_step(struct sac_actor *actor, const struct q_learning *p, double lr);

#endif
