/* The policy as a struct, and the tables of functions behind policy.h: private to policy*.c and tests.
 *
 *     policy.c        which network, and what all have in common
 *     policy_flat.c   learning, saving and restoring on the CPU, with flat arrays
 *     policy_improve.c   PPO's step on them, by policy_objective.h
 *     policy_normalizer.c   observations, shifted and scaled, before they are read
 *     policy_mlp.c    the tutorial's network on them         policy_dense.c   dense layers on them
 *     policy_gpu.c    the tutorial's network on a GPU        policy_images.c  the CNN on a backend */
#ifndef WORKER_MODEL_POLICY_INTERNAL_H
#define WORKER_MODEL_POLICY_INTERNAL_H

#include "kernels/policy/dense.h"
#include "worker/model/policy.h"
#include "worker/model/policy_parameters.h"
#include "worker/model/policy_values.h"

/* The functions of policy.h and policy_values.h with the same names. `open` finds the config's spaces
 * checked, and sets nothing but its own members; `free` also follows a failed open. */
struct policy_kind {
    enum status (*open)(struct policy *policy, const struct policy_config *config, struct backend *backend,
                        struct error *error);
    void (*free)(struct policy *policy);
    enum status (*act)(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error);
    enum status (*choose)(struct policy *policy, const struct policy_rows *rows, struct error *error);
    enum status (*learn)(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error);
    /* Of a kind that can have values; else NULL. `review` is NULL where acting rounds as learning does. */
    double (*deviation)(const struct policy *policy);
    enum status (*review)(struct policy *policy, const struct policy_rows *rows, policy_progress *progress,
                          void *context, struct error *error);
    enum status (*estimate)(struct policy *policy, const struct policy_rows *rows, struct error *error);
    enum status (*improve)(struct policy *policy, const struct policy_rows *rows,
                           const struct policy_targets *targets, const struct policy_step *step,
                           struct policy_losses *losses, struct error *error);
    enum status (*save)(struct policy *policy, struct policy_values *values, struct error *error);
    enum status (*restore)(struct policy *policy, const struct policy_values *values, struct error *error);
};

/* A running mean and variance of each element of an observation. */
struct policy_normalizer {
    float *mean, *variance, *scale; // (inputs)
    struct dense_normalizer dense;  // of these
};

extern const struct policy_kind policy_mlp_kind, policy_dense_kind, policy_gpu_kind, policy_images_kind;

/* What policy_flat.c needs of a network. Neither allocates. */
struct policy_flat {
    void (*load)(struct policy *policy); /* computes with policy->values from now on */
    /* With parameter number `parameter` of them alone; several threads may call it, each for other
     * parameters. NULL: only all can be loaded. */
    void (*load_parameter)(struct policy *policy, uint32_t parameter);
    /* Adds the gradient of at most POLICY_CHUNK_ROWS rows, summed by itself, to `gradient`, and returns their
     * L. */
    double (*gradient)(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                       float *gradient);
    bool any_thread; /* several threads may call `gradient` at once */
    /* Of a policy with values, else NULL: evaluates a chunk's rows by the policy network (`value` NULL), the
     * value network (the others NULL), or both; then puts the gradient that the pulls at them make into
     * `gradient`, or adds it. `slot` is below networks * max(1, wave_chunks): threads may call them at once
     * for different slots, and between the two calls no other rows are evaluated in that slot. */
    void (*evaluate)(struct policy *policy, uint32_t slot, const struct policy_rows *rows,
                     float *log_probability, float *entropy, float *value);
    void (*pull)(struct policy *policy, uint32_t slot, const struct surrogate_pulls *pulls, float *gradient,
                 bool adds);
};

enum {
    POLICY_CHUNK_ROWS = 256,
    POLICY_WAVE_CHUNKS = 64,   /* at most, that a team computes between two calls of policy_progress */
    POLICY_THREAD_ROWS = 4096, /* rows for which one thread more is worth its while */
};

struct policy {
    const struct policy_kind *kind;
    uint32_t inputs; /* elements of an observation */
    bool bytes;      /* they are uint8 */
    uint64_t seed;
    uint32_t dropout_words;
    uint32_t components;                 /* of an action */
    float *low, *high;                   /* (components) bounds of floats; NULL of choices */
    struct policy_normalizer normalizer; /* NULL of a policy that does not normalize */

    void *network; /* struct policy_mlp, policy_dense, policy_gpu, policy_images: the kind's own */

    /* On the CPU without a backend: */
    const struct policy_flat *flat;
    struct adam_settings adam;
    uint64_t steps;                            /* of Adam */
    size_t count;                              /* floats in each of the arrays below */
    float *values, *gradient, *first, *second; /* the parameters, their gradient, Adam's moments */
    struct surrogate *surrogate;               /* of a network with values */
    uint32_t networks;                         /* that share no parameter: 2 with values of their own */
    struct team *team;                         /* NULL: one thread learns */
    uint32_t wave_chunks; /* that the team computes at once; 0: each piece is a network's whole pass */
    float *wave;          /* (wave_chunks, count) their gradients */
    uint32_t parameter_count;
    struct policy_parameter parameters[POLICY_PARAMETERS_MAX];
};

/* ---- policy_flat.c ---- */

/* Takes memory and sets all members from `flat` on. The parameters are zeros: the caller gives them their
 * first values, and loads them. Errors: those of adam_check; STATUS_NO_MEMORY. */
enum status policy_flat_open(struct policy *policy, const struct policy_config *config,
                             const struct policy_flat *flat, struct error *error);
void policy_flat_close(struct policy *policy);

/* The kind's functions of the same names. */
enum status policy_flat_learn(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                              uint32_t episode, double *loss, policy_progress *progress, void *context,
                              struct error *error);
enum status policy_flat_save(struct policy *policy, struct policy_values *values, struct error *error);
enum status policy_flat_restore(struct policy *policy, const struct policy_values *values,
                                struct error *error);

/* Adds the gradients of the wave's first `chunks` chunks, in their order, to policy->gradient, or puts their
 * sum there. */
void policy_flat_add_wave(struct policy *policy, uint32_t chunks, bool adds);

/* STATUS_INTERNAL names the first parameter whose gradient holds a NaN or an infinity: one in a parameter
 * would stay. */
enum status policy_flat_check_gradient(const struct policy *policy, struct error *error);

/* Takes Adam's step at learning rate lr, by the gradient times `scale`, which is at most 1. */
void policy_flat_step(struct policy *policy, double lr, float scale);

/* The mean of exp(log_std), which is the first parameter where there is one. */
double policy_flat_deviation(const struct policy *policy);

/* The sentence of a loss that is not finite. `coefficients` may be NULL. */
enum status policy_flat_explain(const struct policy *policy, const struct policy_rows *rows,
                                const float *coefficient, double loss, struct error *error);

/* ---- policy_normalizer.c ---- */

/* Begins with mean 0 and variance 1. Nothing, where the configuration does not normalize. STATUS_NO_MEMORY.
 */
enum status policy_normalizer_open(struct policy *policy, const struct policy_config *config,
                                   struct error *error);
void policy_normalizer_close(struct policy *policy);

/* What a batch's normalizer is: NULL, none. */
const struct dense_normalizer *policy_normalizer(const struct policy *policy);

/* Copies mean and variance between the policy and *values. */
void policy_normalizer_save(const struct policy *policy, struct policy_values *values);
void policy_normalizer_restore(struct policy *policy, const struct policy_values *values);

/* ---- policy_improve.c ---- */

enum status policy_flat_improve(struct policy *policy, const struct policy_rows *rows,
                                const struct policy_targets *targets, const struct policy_step *step,
                                struct policy_losses *losses, struct error *error);

/* Rows [first, first + POLICY_CHUNK_ROWS) of the batch, or as many as there are. */
struct policy_rows policy_chunk(const struct policy_rows *rows, uint32_t first);

#endif
