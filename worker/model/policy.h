/* The policy of an agent: it acts on observations, and learns from a rollout.
 *
 *     row          one observation, its action, and what is known of both
 *     batch        rows to compute with, as indices into the caller's arrays
 *     chunk        at most 256 rows of a batch on the CPU; a piece is the same on a backend's tape, but of a
 *                  policy with memory some whole sequences
 *     network      the layers between observation and head, in one of three forms (below)
 *     head         the action's distribution: a Categorical for each component, or a diagonal Gaussian
 *     keep bits    which hidden units dropout keeps in a row
 *     values       what the value network estimates; of a policy on the whole: its parameters and moments
 *     normalizer   the statistics by which observations are scaled
 *     memory       recurrent layers in front of the hidden layers, of the policy or of the value
 *     state        what a policy's memories hold for one environment between two of its steps
 *
 * A policy is made for an environment's spaces (worker/environment/environment.h), with one of these
 * networks:
 *
 *     the tutorial's   affine1 -> dropout -> ReLU -> affine2 -> softmax in one fused pass
 *                      (kernels/policy/mlp.h). Taken for one hidden layer with ReLU, a float32 vector of at
 *                      most 16 elements, one choice of at most 16, and no mask. On a GPU it acts by one
 *                      captured launch and learns on the tape. It alone has dropout.
 *     dense            up to 8 hidden layers with ReLU or tanh (kernels/policy/dense.h), for every other
 *                      POLICY_MLP. Observations are flattened. On a GPU they act by one captured launch,
 *                      but with a memory on the tape, and learn on the tape.
 *     the CNN          POLICY_CNN: three convolutions and a hidden layer of 512 (policy_networks.c), for
 *                      observations of rank 3. Images among other parts have one each, with 256 units; dense
 *                      layers read what all parts become. It always computes on a backend. With values, these
 * share its features or come from a second CNN. DQN has it too, with a target. Q, actor, critics    of DQN,
 * SAC and TD3: chains of dense layers (kernels/policy/layers.h), each with a target that follows it. They
 * learn on the CPU from a replay buffer; see below.
 *
 * Dense layers and the CNN may have a memory (policy_config.h): its recurrent layers read the observations,
 * or the CNN's features; the hidden layers or the heads read the memory. The caller keeps the states, row by
 * row.
 *
 * Elements of uint8 observations are scaled by 1 / 255; those of float32 may be normalized. A Gaussian's
 * actions are stored as drawn, even outside of their bounds; the environment gets a copy that policy_bound
 * has clipped.
 *
 * One thread calls. On the CPU the tutorial's network, and dense layers with values, learn with a team of
 * config->threads. After policy_new only a tape allocates.
 *
 *     policy_config.h      from an environment's spaces to shapes
 *     policy_parameters.h  names, shapes and first values of the parameters
 *     policy.c             picks the kind; bounds, normalizer, the copy of all values
 *     policy_memory.h      the memories of a policy on the CPU
 *     policy_sequences.h   what those on a backend read
 *     policy_internal.h    the table of a kind: policy_cpu.c on the CPU, policy_mlp_gpu.c, policy_tape.c,
 *                          policy_dqn_tape.c: DQN's CNN
 *     policy_arrays.h      the parameters of those on the CPU
 *     q_learning.h         what DQN, SAC and TD3 share: policy_dqn.c, policy_actor_critic.c */
#ifndef WORKER_MODEL_POLICY_H
#define WORKER_MODEL_POLICY_H

#include "kernels/base/status.h"
#include "kernels/params/params.h"
#include "kernels/policy/surrogate.h"
#include "worker/model/policy_config.h"

/* A batch: row i of it is row `row[i]` of the arrays, which the caller owns. policy_act writes actions,
 * dropout, log-probabilities and values; policy_estimate values; the others write nothing here. */
struct policy_rows {
    uint32_t count;
    const uint32_t *row;      /* (count) index into the arrays */
    const void *observations; /* (rows, elements) float32 or uint8, as the space says */
    void *actions;            /* (rows, components) int32 or float32, as the space says */
    const uint8_t *allowed;   /* (rows, sum of choices), not 0: allowed, at least one of each component;
                                 NULL: all are */
    uint16_t *dropout;        /* (rows, policy_dropout_words) keep bits of hidden units; NULL of no words */
    float *log_probabilities; /* (rows) of the action; NULL: not wanted */
    float *values; /* (rows) of the observation; NULL: not wanted. Both only of a policy with values */
    /* Of a policy with memory (policy_state_floats): */
    float *states; /* (rows, policy_state_floats) before each row; zeros before an environment's first one.
                      policy_act writes those behind its rows. policy_choose, and policy_act where no values
                      are wanted, write the part of the policy's own memory alone */
    uint32_t next; /* an environment's row r is followed by its row r + next: the state after row r is there.
                      0: it takes the place of the one before; not for policy_improve and policy_review */
    const uint8_t *starts; /* (rows), not 0: the row begins an episode, and the state before it counts as
                              zeros. NULL: none does */
};

/* Called during learning: on a CPU after at most 16,384 rows, or one range of steps of a memory
 * (policy_memory.h); between two operations on a backend. */
typedef void policy_progress(void *context);

struct backend;
struct policy;

/* `backend` NULL: on the CPU. Otherwise one that outlives the policy; the tutorial's network needs one with
 * launch_new, and POLICY_ON_BACKEND always has a backend (asserted). STATUS_INVALID names the bound that the
 * configuration breaks, or the job's key that does not fit the environment; STATUS_NO_MEMORY. */
enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error);
void policy_free(struct policy *policy);

/* Words of a row's keep bits in policy_rows.dropout; 0 of every network but the tutorial's. */
uint32_t policy_dropout_words(const struct policy *policy);

/* Floats of a row's state in policy_rows.states; 0 of a policy without memory. */
size_t policy_state_floats(const struct policy *policy);

/* Draws an action for each row. Row i's draws are keyed by (seed, environment[i], step[i], episode), so
 * neither the batch's size nor its order has a say. A GPU leaves the keep bits as they are. Waits for the
 * result. On a CPU without a backend it cannot fail. A backend computes an environment's row of a policy with
 * values at the environment's own place, so that its last bits depend on no other row: environment[i] is
 * below config->environments, and each at most once in a batch. */
enum status policy_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error);

/* Chooses the most probable action for each row, the first of equal ones; of a Gaussian the mean. Nothing is
 * drawn or dropped; rows->dropout is not touched. For play and evaluation, on the CPU or a backend.
 * STATUS_CORRUPT: a probability is not finite; the batch's actions are then undefined. */
enum status policy_choose(struct policy *policy, const struct policy_rows *rows, struct error *error);

/* Writes rows->values, of a policy with values. Reads nothing but the observations, and of a policy with
 * memory the states and starts. On a CPU without a backend it cannot fail. */
enum status policy_estimate(struct policy *policy, const struct policy_rows *rows, struct error *error);

/* Clips `count` rows of actions to the action's bounds; NaN becomes the lower one. Choices stay as they are.
 */
void policy_bound(const struct policy *policy, float *actions, uint32_t count);

/* One step on L = sum_i -coefficient[i] * log P(action of row i) over all rows of the batch, in its order,
 * with the keep bits and masks that acted: forward again, backward, Adam. *loss is L under the old
 * parameters. Row index r is step r / environments of environment r % environments in `episode` (by which a
 * GPU draws its keep bits again). `progress` may be NULL. STATUS_INTERNAL: the loss or a gradient is not
 * finite; the text names the first tensor that holds a NaN or an infinity, and the parameters and moments are
 * as before. */
enum status policy_learn(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error);

/* Whether acting may have rounded its log-probabilities and values otherwise than policy_improve will: a
 * backend's sums have another order in batches of another size. policy_review then writes them anew. Of a
 * policy with values. */
bool policy_needs_review(const struct policy *policy);

/* Writes rows->log_probabilities of the rows' own actions, and rows->values, by the very computation that
 * policy_improve does with the same batch: under unchanged parameters it finds every ratio exactly 1. Only
 * where policy_needs_review. */
enum status policy_review(struct policy *policy, const struct policy_rows *rows, policy_progress *progress,
                          void *context, struct error *error);

/* The mean standard deviation of a Gaussian's components; NaN of choices. Of a policy with values. */
double policy_deviation(const struct policy *policy);

/* From now on an element x of an observation is read as (x - mean) / sqrt(variance + 1e-8), clipped to
 * ±config->clip: Stable-Baselines3's VecNormalize. Of a policy whose configuration normalizes; it begins with
 * mean 0 and variance 1. (elements) each. */
void policy_normalize(struct policy *policy, const float *mean, const float *variance);

/* ---- PPO ---- */

/* What a minibatch is learned from: arrays by row, as struct policy_rows has them; rows->log_probabilities
 * and rows->values hold what they were when the actions were drawn. */
struct policy_targets {
    const float *advantages, *returns; /* (rows) */
    bool normalizes; /* the minibatch's advantages: (A - mean) / (std + 1e-8), std with n - 1 */
};

/* How one step is taken. */
struct policy_step {
    struct surrogate_objective objective;
    double max_norm; /* the gradient is scaled to this norm where its own is greater; INFINITY: never */
    double lr;       /* Adam's, of this step */
    double kl_max;   /* no step is taken where the KL estimate is above it; INFINITY: always */
    policy_progress *progress; /* called with `context`; may be NULL */
    void *context;
};

/* One step of PPO by the minibatch rows, in their order. With a memory rows ascend, and the memory learns
 * through time along each environment's rows; the state with which they begin is a constant. The step:
 * forward, the objective, backward, one norm over all parameters (gradient scaled by min(1, max_norm / (norm
 * + 1e-6)), as torch.nn.utils.clip_grad_norm_), Adam. *losses holds means under the parameters before the
 * step. Sums run in chunks of POLICY_CHUNK_ROWS, the norm as kernels/norm.h has it. STATUS_INTERNAL as
 * policy_learn. */
enum status policy_improve(struct policy *policy, const struct policy_rows *rows,
                           const struct policy_targets *targets, const struct policy_step *step,
                           struct surrogate_losses *losses, struct error *error);

/* ---- a replay buffer ----
 *
 * A policy whose configuration says POLICY_DQN, POLICY_SAC or POLICY_TD3 learns by gradient steps on batches
 * of transitions. Its targets are copies of its networks that follow them. Actions of SAC and TD3 are stored
 * as they are drawn, each number in [-1, 1]; policy_bound stretches them to the environment's bounds. */

/* How actions are chosen by policy_act. At first a policy does not explore. */
struct policy_exploration {
    bool is_random; /* evenly: a policy that has not begun to learn */
    double epsilon; /* DQN: the probability of a random choice */
    bool has_noise; /* SAC, TD3: the configuration's noise is added */
};

void policy_explore(struct policy *policy, const struct policy_exploration *exploration);

/* A batch of transitions, one behind the other. */
struct policy_transitions {
    uint32_t count;                               /* 1 … the configuration's q.batch_rows (asserted) */
    const void *observations, *next_observations; /* (count, elements) float32 or uint8 */
    const void *actions;                          /* (count, components) int32, or float32 in [-1, 1] */
    const uint8_t *next_allowed; /* (count, choices) of the next observation; NULL: all are */
    const float *rewards;        /* (count) */
    const uint8_t *terminated;   /* (count) not 0: nothing follows. A truncated episode's end is none */
    const float *weights;        /* DQN: (count) of each row in the loss; NULL: 1 */
    float *errors;               /* DQN: NULL, or (count) takes |target - value| */
};

/* What a gradient step has found, under the parameters before it. */
struct policy_q_losses {
    double critic;                       /* DQN: the loss; else the sum over critics, SAC's halved */
    double actor;                        /* NaN: the actor took no step; of DQN always */
    double entropy_coefficient, entropy; /* SAC: the coefficient that was used, and its loss; else NaN */
};

/* One gradient step at learning rate lr:
 *
 *     DQN  Huber loss of Q(s, a) against r + gamma max Q'(s', .)      (Mnih et al., 2015)
 *     SAC  0.5 sum_j mean (Q_j(s, a) - r - gamma (min Q'(s', a') - alpha log P(a')))^2, then the actor by
 *          alpha log P(a) - min Q(s, a), then alpha, if it is learned (Haarnoja et al., arXiv 1812.05905)
 *     TD3  sum_j mean (Q_j(s, a) - r - gamma min Q'(s', a'))^2, a' with clipped noise; with each
 *          policy_delay'th step the actor by -Q_0(s, a)              (Fujimoto et al., 2018)
 *
 * in Stable-Baselines3's order and scale. Q' are the targets, which SAC and TD3 move themselves. Draws are
 * keyed by the number of the step, from 1, which the policy counts (policy_values has it). STATUS_INTERNAL as
 * policy_learn; but where it is the actor whose loss or gradient is not finite, the critics have taken their
 * step. */
enum status policy_fit(struct policy *policy, const struct policy_transitions *batch, double lr,
                       struct policy_q_losses *losses, struct error *error);

/* Moves DQN's target towards the network, by the configuration's tau. Waits for nothing; on a CPU without a
 * backend it cannot fail. */
enum status policy_follow(struct policy *policy, struct error *error);

/* The parameters that policy_act computes with, apart from the others: how many floats; copies them out; and
 * has another policy of the same configuration act by such a copy. Of a policy without a backend. */
size_t policy_acting_floats(const struct policy *policy);
void policy_keep_acting(const struct policy *policy, float *out);
void policy_load_acting(struct policy *policy, const float *kept);

/* Gradient steps so far. */
uint64_t policy_fits(const struct policy *policy);

/* ---- values ----
 *
 * A copy of all that a policy has learned, on the host, under the names that checkpoints have
 * (worker/checkpoint). A checkpoint is written from it on another thread while the policy learns. One thread
 * at a time. */

struct policy_values {
    struct backend *backend; /* kernels/backend.h */
    struct params *params; /* the parameters, as policy_parameters lists them: "affine1.weight", …; then the
                              normalizer's statistics */
    uint32_t count;        /* of the parameters */
    struct params *moments; /* Adam's: "affine1.weight.exp_avg", "affine1.weight.exp_avg_sq", …; of RMSprop
                               "affine1.weight.square_avg", and buffers, which no file has */
    uint64_t steps;         /* of the optimizer */
};

/* The three arrays of floats that each of a policy's parameters has. */
enum policy_array { POLICY_VALUES, POLICY_FIRST_MOMENT, POLICY_SECOND_MOMENT, POLICY_ARRAYS };

/* What stands behind the parameters, of a policy that normalizes: "obs_rms.mean", "obs_rms.var". */
enum policy_statistic { POLICY_MEAN, POLICY_VARIANCE };

/* *values is all zero. `config` is one that policy_new takes. All of the copy is zero at first. Afterwards,
 * and after a failure, policy_values_close. STATUS_NO_MEMORY. */
enum status policy_values_open(struct policy_values *values, const struct policy_config *config,
                               struct error *error);
void policy_values_close(struct policy_values *values);

/* The copy of an array of parameter `index` (policy_parameters), in canonical layout. */
float *policy_values_at(const struct policy_values *values, uint32_t index, enum policy_array array);

/* The copy of a statistic of the observations' elements. Of a policy that normalizes. */
float *policy_values_statistic(const struct policy_values *values, enum policy_statistic statistic);

/* Copies all values of the policy into *values; and gives the policy those of *values. Both have one
 * configuration. Waits for a GPU; on a CPU neither can fail, and nothing is allocated. */
enum status policy_save(struct policy *policy, struct policy_values *values, struct error *error);
enum status policy_restore(struct policy *policy, const struct policy_values *values, struct error *error);

#endif
