/* The table of functions of each kind of policy, and what the kinds share. policy.c picks the kind.
 *
 *     policy_cpu.c            on the CPU; policy_memory.c is its memories
 *     policy_mlp_gpu.c        the tutorial's network on a GPU
 *     policy_tape.c           the CNN, and dense layers, on a backend
 *     policy_dqn.c            DQN on the CPU
 *     policy_actor_critic.c   SAC and TD3 on the CPU; it shares q_learning.c with policy_dqn.c
 *     policy_dqn_tape.c       DQN's CNN on a backend; it shares dqn_head.c with policy_dqn.c
 *     policy_arrays.c         the parameters of those on the CPU
 *     policy_networks.c       the networks on a backend
 *     policy_sequences.c      what their memories read
 *     policy_pieces.c         how their batches are cut and read
 *     policy_learner.c        parameters, optimizer and tape of those on a backend
 *
 * Each kind has a struct of its own, `self`, which policy.c allocates and frees. */
#ifndef WORKER_MODEL_POLICY_INTERNAL_H
#define WORKER_MODEL_POLICY_INTERNAL_H

#include "kernels/params/optim.h"
#include "kernels/tape/tape.h"
#include "worker/model/policy.h"

#include <math.h>

/* The functions of policy.h with the same names, but that policy.c saves and restores the
 * normalizer. A function that a kind does not have is NULL. */
struct policy_kind {
    size_t bytes;      /* of `self` */
    bool takes_chunks; /* `act` and `estimate` take at most POLICY_CHUNK_ROWS rows: policy.c cuts a batch */
    /* Finds the config's spaces checked. `normalizer` is NULL or outlives the policy, and changes between two
     * calls. *self is zero before; `close` also follows a failed open. */
    enum status (*open)(void *self, const struct policy_config *config, struct backend *backend,
                        const struct dense_normalizer *normalizer, struct error *error);
    void (*close)(void *self);
    /* policy_act; `draw` NULL: policy_choose. */
    enum status (*act)(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                       struct error *error);
    enum status (*learn)(void *self, const struct policy_rows *rows, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error);
    /* Of a kind that can have values. `review` is NULL where acting rounds as learning does. */
    double (*deviation)(const void *self);
    enum status (*review)(void *self, const struct policy_rows *rows, policy_progress *progress,
                          void *context, struct error *error);
    enum status (*estimate)(void *self, const struct policy_rows *rows, struct error *error);
    enum status (*improve)(void *self, const struct policy_rows *rows, const struct policy_targets *targets,
                           const struct policy_step *step, struct surrogate_losses *losses,
                           struct error *error);
    /* Of a kind that learns from a replay buffer; `follow` is DQN's. */
    void (*explore)(void *self, const struct policy_exploration *exploration);
    enum status (*fit)(void *self, const struct policy_transitions *batch, double lr,
                       struct policy_q_losses *losses, struct error *error);
    uint64_t (*fits)(const void *self);
    enum status (*follow)(void *self, struct error *error);
    enum status (*save)(void *self, struct policy_values *values, struct error *error);
    enum status (*restore)(void *self, const struct policy_values *values, struct error *error);
};

extern const struct policy_kind policy_cpu_kind, policy_mlp_gpu_kind, policy_tape_kind;
extern const struct policy_kind policy_dqn_kind, policy_actor_critic_kind, policy_dqn_tape_kind;

/* policy.c's; tests look at `self`. */
struct policy {
    const struct policy_kind *kind;
    void *self;
    uint32_t normalized, components; /* elements: policy_normalized, and of an action */
    uint32_t dropout_words;
    uint32_t batch_rows; /* of a policy that learns from a replay buffer */
    size_t state_floats; /* 0: no memory */
    uint64_t seed;
    uint32_t noise_steps; /* struct dense_draw's */
    float *low, *high;    /* (components) bounds of floats; NULL of choices */
    bool stretches;       /* actions of -1..1 are stretched to the bounds */
    /* (normalized) each, of a policy that normalizes; else NULL */
    float *mean, *variance, *scale;
    struct dense_normalizer normalizer; /* of these */
};

/* policy_cpu.c's, for tests: computes with the arrays' values as they are now. */
void policy_cpu_load(void *self);

enum {
    POLICY_CHUNK_ROWS = 256,
    POLICY_THREAD_ROWS = 4096, /* of REINFORCE on the CPU, for which one thread more is worth its while */
};

/* Rows [first, first + POLICY_CHUNK_ROWS) of the batch, or as many as there are. */
static inline struct policy_rows policy_chunk(const struct policy_rows *rows, uint32_t first)
{
    struct policy_rows chunk = *rows;
    const uint32_t left = rows->count - first;
    chunk.count = left < POLICY_CHUNK_ROWS ? left : POLICY_CHUNK_ROWS;
    chunk.row += first;
    return chunk;
}

/* Whether row `row` begins an episode. */
static inline bool policy_starts_at(const struct policy_rows *rows, uint32_t row)
{
    return rows->starts != NULL && rows->starts[row] != 0;
}

/* The next power of two of at least `least`, which is one. */
static inline uint32_t policy_filled_up(uint32_t rows, uint32_t least)
{
    while (least < rows)
        least *= 2;
    return least;
}

/* The batch for the tutorial's network. */
static inline struct mlp_batch policy_mlp_batch(const struct policy_rows *rows)
{
    return (struct mlp_batch){.count = rows->count,
                              .row = rows->row,
                              .observations = rows->observations,
                              .masks = rows->dropout,
                              .actions = rows->actions};
}

/* Writes each row's action: the first of the greatest scores (rows->count, actions), which are probabilities
 * or their logarithms. False: a score is not finite. */
static inline bool policy_choose_greatest(const struct policy_rows *rows, const float *scores,
                                          uint32_t actions)
{
    int32_t *chosen = rows->actions;
    for (uint32_t i = 0; i < rows->count; i++, scores += actions) {
        uint32_t best = 0;
        for (uint32_t action = 0; action < actions; action++) {
            if (!isfinite(scores[action]))
                return false;
            if (scores[action] > scores[best])
                best = action;
        }
        chosen[rows->row[i]] = (int32_t)best;
    }
    return true;
}

/* What torch.nn.utils.clip_grad_norm_ multiplies a gradient of this norm by; 1: the gradient stays. */
static inline double policy_clip_factor(double norm, double max_norm)
{
    const double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

/* PPO's objective of a minibatch. */
static inline void policy_begin_objective(struct surrogate *objective, const struct policy_rows *rows,
                                          const struct policy_targets *targets,
                                          const struct policy_step *step)
{
    surrogate_begin(objective, &step->objective,
                    &(struct surrogate_rows){.count = rows->count,
                                             .row = rows->row,
                                             .log_probabilities = rows->log_probabilities,
                                             .values = rows->values,
                                             .advantages = targets->advantages,
                                             .returns = targets->returns,
                                             .normalizes = targets->normalizes});
}

/* Fills the pulls of REINFORCE's rows, and adds their part of L to sums->policy. */
static inline void policy_judge_rewards(uint32_t count, const float *coefficient,
                                        const float *log_probability, float *pull,
                                        struct surrogate_sums *sums)
{
    for (uint32_t i = 0; i < count; i++) {
        pull[i] = -coefficient[i];
        sums->policy -= (double)coefficient[i] * (double)log_probability[i];
    }
}

/* ---- a policy on a backend ---- */

/* What it learns with: the first member of the `self` of policy_mlp_gpu.c, policy_tape.c and
 * policy_dqn_tape.c. */
struct policy_learner {
    struct params *params;  /* as policy_parameters lists them, but for targets */
    struct params *targets; /* of a DQN, in a slab alike; else NULL */
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
};

/* The parameters have their first values. *learner is all zero before; policy_learner_close also follows a
 * failure. STATUS_INVALID: a weight has too many elements, or Adam's settings; STATUS_NO_MEMORY. */
enum status policy_learner_open(struct policy_learner *learner, const struct policy_config *config,
                                struct backend *backend, struct error *error);
void policy_learner_close(struct policy_learner *learner);

/* Registers the parameters of a configuration, but for targets; before params_build. */
enum status policy_register(struct params *params, const struct policy_config *config, struct error *error);

/* Adam's step. STATUS_INTERNAL: a gradient is not finite, and no step is taken. */
enum status policy_learner_step(struct policy_learner *learner, struct error *error);

/* Scales the gradient as torch.nn.utils.clip_grad_norm_; *norm is the one before. STATUS_INTERNAL: it is not
 * finite, or too large for the sums of squares. */
enum status policy_learner_clip(const struct policy_learner *learner, double max_norm, double *norm,
                                struct error *error);

/* sum(pull * x), whose gradient with respect to x is the pull; x NULL: NULL. */
struct variable *policy_learner_pull(struct tape *tape, struct variable *x, const char *name,
                                     const float *pull);

/* target = (1 - tau) target + tau network, with targets; the gradient is then of no use. */
enum status policy_learner_follow(struct policy_learner *learner, double tau, struct error *error);

/* struct policy_kind's save and restore; `learner` is a struct policy_learner. */
enum status policy_learner_save(void *learner, struct policy_values *values, struct error *error);
enum status policy_learner_restore(void *learner, const struct policy_values *values, struct error *error);

/* ---- policy_networks.c's ---- */

/* What a network reads: one variable, or one for each image among an observation's parts and one for the
 * floats. `place` (all features, features) puts the features of one among all; NULL of a single one. */
struct policy_inputs {
    uint32_t count;
    struct policy_input {
        const char *part; /* the image's name; NULL: floats */
        struct variable *x, *place;
    } of[POLICY_IMAGES_MAX + 1];
};

struct policy_network {
    enum policy_form form;         /* the CNN, or dense layers */
    bool shares_extractor;         /* policy and value read the same CNNs */
    uint32_t extractor_parameters; /* in front of the dense layers' weights, behind log_std */
    struct dense_shape shape;      /* policy_dense_shape's */
    uint32_t memories;             /* policy_memories'; the next two are for a network with memory */
    struct recurrent_shape memory;
    enum policy_critic critic;
    struct params *params;
};

struct policy_network policy_network_of(const struct policy_config *config);

/* How memories go through the rows on a tape: in a grid, whose sequences all have so many steps. */
struct policy_recurrence {
    uint32_t steps, sequences;
    struct variable *row; /* (steps, sequences) int32: which row is at each place of the grid. NULL: it is one
                             step, and row i is sequence i */
    struct variable *place; /* (rows) int32: where in the grid each row is; NULL as above */
    /* (sequences, units) before the grid, of each memory that has some. A GRU has no c. */
    struct lstm_state state[DENSE_NETWORKS][RECURRENT_LAYERS_MAX];
};

/* What a network finds for its rows: a set. */
enum { POLICY_ACTION = 1, POLICY_VALUE = 2, POLICY_FEATURES = 4 };

/* Logits or means (rows, outputs); values (rows, 1); what gSDE reads: the last hidden layer (rows, units). */
struct policy_outputs {
    struct variable *action, *value, *features;
};

/* Records what finds the outputs of `wanted`, of POLICY_ACTION and POLICY_VALUE; the others are NULL. The
 * features of a policy by gSDE come with its means. `recurrence`: NULL without a memory; else the states of
 * the memories that ran become those behind the grid. Errors stick in the tape. */
struct policy_outputs policy_network_record(const struct policy_network *network, struct tape *tape,
                                            const struct policy_inputs *inputs,
                                            struct policy_recurrence *recurrence, unsigned wanted);

/* Records DQN's CNN over images (rows, channels, height, width), or over parts: its outputs (rows, outputs).
 * `name` is that of the network or its target: "q_net", "q_net_target"; `params` has its parameters. */
struct variable *policy_network_record_q(struct params *params, struct tape *tape, const char *name,
                                         enum policy_activation activation,
                                         const struct policy_inputs *inputs);

/* Sets `inputs`, `layers` and `layer` for dense layers. The results are features (gSDE's only), action and
 * value, in this order. */
struct policy_launch_settings;
void policy_network_layers(const struct policy_network *network, struct policy_launch_settings *settings);

/* ---- policy_mlp_gpu.c's, for tests ---- */

/* observations (rows, inputs) -> log-probabilities (rows, actions). `params` holds the network's four
 * parameters (policy_register). `rows` (rows, 3) int32 holds each row's (environment, step, episode), which
 * key its dropout together with the seed. On a tape that does not record, nothing is dropped. */
struct variable *policy_batch_forward(struct params *params, struct tape *tape, struct variable *observations,
                                      struct variable *rows, double dropout, uint64_t seed);

struct policy_batch;

/* For rollouts of config->rows_max rows at the most. STATUS_NO_MEMORY. */
enum status policy_batch_new(struct policy_batch **out, const struct policy_config *config,
                             struct error *error);
void policy_batch_free(struct policy_batch *rows);

/* Records L = sum_i -coefficient[i] * log P(action of row i), over all of the rollout's rows. Errors stick in
 * the tape. */
struct variable *policy_batch_loss(struct policy_batch *rows, struct params *params, struct tape *tape,
                                   const struct mlp_batch *batch, const float *coefficient, uint32_t episode);

#endif
