/* A policy on the CPU as flat arrays, and the seam to the network that computes with them.
 *
 * policy_flat.c learns: chunks of rows, threads, PPO's objective, Adam, saving. A network acts, and computes
 * the gradient of a chunk: policy_mlp.c (the tutorial's network) and policy_dense.c (dense layers). */
#ifndef WORKER_MODEL_POLICY_FLAT_H
#define WORKER_MODEL_POLICY_FLAT_H

#include "worker/model/policy_internal.h"

/* Batches are in chunks of at most POLICY_CHUNK_ROWS rows, but for act's. Only `open` allocates. */
struct flat_network {
    /* Gives `values`, the flat array of parameters, its first values, and computes with them. `slots`: of
     * `evaluate`. *network is NULL before; `free` also follows a failed open. */
    enum status (*open)(void **network, const struct policy_config *config,
                        const struct dense_normalizer *normalizer, float *values, uint32_t slots,
                        struct error *error);
    void (*free)(void *network); /* NULL is nothing */

    /* Computes with the values as they are now: with all of them, or with parameter number `parameter` alone,
     * by several threads, each for other parameters. load_parameter NULL: only all can be loaded. */
    void (*load)(void *network);
    void (*load_parameter)(void *network, uint32_t parameter);

    void (*act)(void *network, const struct policy_rows *rows, uint32_t episode, const uint32_t *environment,
                const uint32_t *step);
    /* False: a probability is not finite. */
    bool (*choose)(void *network, const struct policy_rows *chunk);
    void (*estimate)(void *network, const struct policy_rows *chunk); /* NULL without values */

    /* Adds the gradient of the chunk, summed by itself, to `gradient`, and returns its part of L. */
    double (*gradient)(void *network, const struct policy_rows *chunk, const float *coefficient,
                       float *gradient);
    bool any_thread; /* several threads may call `gradient` at once */

    /* With values, else NULL: evaluates a chunk by the policy network (`value` NULL), by the value network
     * (the others NULL), or by both; then puts the gradient that the pulls at them make into `gradient`, or
     * adds it. Threads may call these at once for different slots. Between the two calls no other rows are
     * evaluated in that slot. */
    void (*evaluate)(void *network, uint32_t slot, const struct policy_rows *chunk, float *log_probability,
                     float *entropy, float *value);
    void (*pull)(void *network, uint32_t slot, const struct surrogate_pulls *pulls, float *gradient,
                 bool adds);
};

extern const struct flat_network policy_mlp_network, policy_dense_network;

enum {
    POLICY_WAVE_CHUNKS = 64,   /* at most, that a team computes between two calls of policy_progress */
    POLICY_THREAD_ROWS = 4096, /* rows for which one thread more is worth its while */
};

/* policy_flat.c's; tests look into it. */
struct policy_flat {
    const struct flat_network *ops;
    void *network;
    bool floats;     /* observations are float32 */
    uint32_t inputs; /* elements of an observation */
    struct adam_settings adam;
    uint64_t steps;                            /* of Adam */
    size_t count;                              /* floats in each of the arrays below */
    float *values, *gradient, *first, *second; /* the parameters, their gradient, Adam's moments */
    uint32_t networks;                         /* that share no parameter: 2 with values of their own */
    struct team *team;                         /* NULL: one thread learns */
    uint32_t wave_chunks; /* that the team computes at once; 0: each piece is a network's whole pass */
    float *wave;          /* (wave_chunks, count) their gradients */
    uint32_t parameter_count;
    struct policy_parameter parameters[POLICY_PARAMETERS_MAX];
};

#endif
