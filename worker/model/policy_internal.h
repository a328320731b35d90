/* The table of functions behind policy.h: one table for each kind of policy. policy.c picks the kind.
 *
 *     policy_flat.c   on the CPU, with flat arrays of parameters
 *     policy_gpu.c    the tutorial's network on a GPU        policy_images.c  the CNN on a backend
 *
 * Each kind has a struct of its own, `self`. */
#ifndef WORKER_MODEL_POLICY_INTERNAL_H
#define WORKER_MODEL_POLICY_INTERNAL_H

#include "kernels/policy/dense.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy.h"
#include "worker/model/policy_values.h"

/* The functions of policy.h and policy_values.h with the same names, but that policy.c saves and restores the
 * normalizer. A function that a kind does not have is NULL. */
struct policy_kind {
    /* Finds the config's spaces checked. `normalizer` is NULL or outlives the policy, and changes between two
     * calls. *self is zero before; `free` also follows a failed open. */
    enum status (*open)(void **self, const struct policy_config *config, struct backend *backend,
                        const struct dense_normalizer *normalizer, struct error *error);
    void (*free)(void *self);
    enum status (*act)(void *self, const struct policy_rows *rows, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error);
    enum status (*choose)(void *self, const struct policy_rows *rows, struct error *error);
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
    enum status (*save)(void *self, struct policy_values *values, struct error *error);
    enum status (*restore)(void *self, const struct policy_values *values, struct error *error);
};

extern const struct policy_kind policy_flat_kind, policy_gpu_kind, policy_images_kind;

/* policy.c's; tests look at `self`. */
struct policy {
    const struct policy_kind *kind;
    void *self;
    uint32_t inputs, components; /* elements of an observation and of an action */
    uint32_t dropout_words;
    float *low, *high; /* (components) bounds of floats; NULL of choices */
    /* (inputs) each, of a policy that normalizes; else NULL */
    float *mean, *variance, *scale;
    struct dense_normalizer normalizer; /* of these */
};

/* What tests see of policy_flat.c's `self`: this is its first member. policy_flat_load computes with the
 * values as they are now. */
struct policy_arrays {
    size_t count;                              /* floats in each of the arrays */
    float *values, *gradient, *first, *second; /* the parameters, their gradient, Adam's moments */
    uint64_t steps;                            /* of Adam */
    struct team *team;                         /* NULL: one thread learns */
};
void policy_flat_load(void *self);

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

/* The batch for the tutorial's network. */
static inline struct mlp_batch policy_mlp_batch(const struct policy_rows *rows)
{
    return (struct mlp_batch){.count = rows->count,
                              .row = rows->row,
                              .observations = rows->observations,
                              .masks = rows->dropout,
                              .actions = rows->actions};
}

/* What torch.nn.utils.clip_grad_norm_ multiplies a gradient of this norm by; 1: the gradient stays. */
static inline double policy_clip_factor(double norm, double max_norm)
{
    const double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

/* PPO's objective of a minibatch. Errors: surrogate_begin's. */
static inline enum status policy_begin_objective(struct surrogate *objective, const struct policy_rows *rows,
                                                 const struct policy_targets *targets,
                                                 const struct policy_step *step, struct error *error)
{
    return surrogate_begin(objective, &step->objective,
                           &(struct surrogate_rows){.count = rows->count,
                                                    .row = rows->row,
                                                    .log_probabilities = rows->log_probabilities,
                                                    .values = rows->values,
                                                    .advantages = targets->advantages,
                                                    .returns = targets->returns,
                                                    .normalizes = targets->normalizes},
                           error);
}

#endif
