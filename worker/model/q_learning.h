/* What the policies that learn from a replay buffer share, on the CPU: DQN, SAC and TD3 (policy_dqn.c,
 * policy_actor_critic.c). Private to worker/model.
 *
 *     network      dense layers that learn (kernels/policy/layers.h): an actor, a critic, a Q-network
 *     critic       estimates the return of an observation and an action, Q(s, a)
 *     target       a copy of a network that follows it slowly
 *     chunk        at most 256 rows that are computed at a time
 *
 * Sums over a batch run chunk by chunk, so a gradient step has the same bits on every machine. One thread. */
#ifndef WORKER_MODEL_Q_LEARNING_H
#define WORKER_MODEL_Q_LEARNING_H

#include "kernels/base/rng.h"
#include "kernels/lanes/normal.h"
#include "kernels/lanes/product_lanes.h"
#include "kernels/policy/layers.h"
#include "worker/model/policy_arrays.h"
#include "worker/model/policy_internal.h"

enum { Q_NETWORKS_MAX = POLICY_CRITICS_MAX + 2, Q_MATRICES_MAX = 8 };

struct q_network {
    struct layers *layers, *target; /* target NULL: it has none */
    struct layers_work *work, *target_work;
    size_t offset, target_offset, count; /* of its floats in the arrays */
};

/* The first member of both policies. */
struct q_learning {
    struct policy_arrays arrays; /* the first member */
    struct policy_config config;
    uint32_t inputs, components; /* elements of an observation; numbers of an action */
    struct policy_exploration exploration;
    normal_group *normals;
    float *noise;              /* (a chunk's rows, components) */
    struct dense_matrix input; /* (a chunk's rows, inputs + components) what a network reads */
    uint32_t networks, matrices;
    struct q_network network[Q_NETWORKS_MAX]; /* (networks) */
    float *matrix[Q_MATRICES_MAX];            /* (matrices) their memory */
};

/* Opens the part that all have. *p is all zero before; q_close, which is struct policy_kind's close too, also
 * follows a failure, and closes networks and matrices. STATUS_NO_MEMORY. */
enum status q_open(struct q_learning *p, const struct policy_config *config, struct error *error);
void q_close(void *self);

/* The floats at the front of the arrays that acting computes with: an actor's, or a Q-network's. How many
 * there are; copies them out; and acts by such a copy. */
size_t q_acting_floats(const struct q_learning *p);
void q_keep_acting(const struct q_learning *p, float *out);
void q_load_acting(struct q_learning *p, const float *kept);

/* ---- networks ---- */

/* The shape of hidden layers of the configuration's activation; the caller sets the rest. */
struct layers_shape q_shape(const struct q_learning *p, uint32_t inputs, uint32_t layers,
                            const uint32_t width[]);

/* Opens a network of this shape whose first parameter has the name `first`; `target`: the name of the
 * target's first parameter, or NULL. It computes with the arrays' values. STATUS_NO_MEMORY. */
enum status q_network_open(struct q_network **out, struct q_learning *p, const struct layers_shape *shape,
                           const char *first, const char *target, struct error *error);

/* Returns the outputs of the chunk in p->input: the network's, or the target's. */
struct dense_matrix q_network_forward(const struct q_network *n, const struct q_learning *p, uint32_t count,
                                      bool of_target);

/* The gradient of the network's parameters, by the pull at what its last forward returned: added, or in the
 * place of what is there. */
void q_network_backward(const struct q_network *n, const struct q_learning *p, struct dense_matrix pull,
                        bool adds);

/* Adam's step number `step` of the network by its gradient times `scale`, or of `count` floats from `offset`
 * on. */
void q_network_step(const struct q_network *n, const struct q_learning *p, double lr, uint64_t step,
                    float scale);
void q_step(const struct q_learning *p, size_t offset, size_t count, double lr, uint64_t step, float scale);

/* Moves each target towards its network: target += tau (network - target). */
void q_follow(const struct q_learning *p);

/* A matrix of a chunk's rows, of zeros. STATUS_NO_MEMORY. */
enum status q_matrix(struct q_learning *p, struct dense_matrix *matrix, uint32_t columns,
                     struct error *error);

/* ---- rows ---- */

/* The rows of the chunk that begins with row `first` of the batch. */
static inline uint32_t q_chunk(const struct policy_transitions *batch, uint32_t first)
{
    const uint32_t left = batch->count - first;
    return left < POLICY_CHUNK_ROWS ? left : POLICY_CHUNK_ROWS;
}

/* The chunk's rows of the batch as p->input: observations by their indices; of a transition's batch those, or
 * the next ones, of rows first … first + count - 1. Bytes become their 255th parts. */
void q_read_rows(const struct q_learning *p, const struct policy_rows *chunk);
void q_read_observations(const struct q_learning *p, const struct policy_transitions *batch, bool next,
                         uint32_t first, uint32_t count);

/* Writes the actions (count, components) behind the observations in p->input: what a critic reads. */
void q_read_actions(const struct q_learning *p, const float *actions, size_t stride, uint32_t count);

/* ---- draws ---- */

/* Fills p->noise (count, components) with draws of normal(0, 1) for rows first … first + count - 1 of the
 * batch of the running gradient step. `which`: 0 at the observations, 1 at the next ones. */
void q_learning_noise(const struct q_learning *p, uint32_t which, uint32_t first, uint32_t count);

/* The policy's own draws of normal(0, 1), for each number of the action of an environment in a step. The
 * configuration's noise has other draws. */
void q_acting_noise(const struct q_learning *p, const struct rng_key *key, float *noise);

/* Writes the action of row i of the chunk: the one that is given or, as the exploration says, one that is
 * drawn evenly from [-1, 1]; then the configuration's noise is added, and the sum clipped to [-1, 1]. */
void q_store_action(const struct q_learning *p, const struct policy_rows *chunk, uint32_t i,
                    const float *action, const struct rng_key *key);

/* Writes the chunk's actions as they are given. False: one is not finite. */
bool q_store_chosen(const struct q_learning *p, const struct policy_rows *chunk, struct dense_matrix actions);

/* Whether all of them are finite; of a chunk's rows. */
bool q_is_finite(struct dense_matrix x, uint32_t rows, uint32_t columns);

/* The first of the batch's tensors that holds a NaN or an infinity; NULL: none does. */
const char *q_lost_tensor(const struct policy_config *config, const struct policy_transitions *batch);

/* STATUS_INTERNAL, because `loss`, or the gradient of `count` floats from `offset` on, is not finite. The
 * text names the first tensor of the batch, or the first parameter, that holds a NaN or an infinity; if none
 * does, the values, or the parameter whose gradient it is. */
enum status q_explain_loss(const struct q_learning *p, const struct policy_transitions *batch, double loss,
                           struct error *error);
enum status q_check_gradient(const struct q_learning *p, size_t offset, size_t count,
                             const struct policy_transitions *batch, struct error *error);

/* struct policy_kind's explore, fits and restore. */
void q_explore(void *self, const struct policy_exploration *exploration);
uint64_t q_fits(const void *self);
enum status q_restore(void *self, const struct policy_values *values, struct error *error);

#endif
