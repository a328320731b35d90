/* A backend: a device with its table of functions. Opening, loading, memory and optimizers; the operations
 * are kernels/op.h's.
 *
 * A backend belongs to one thread at a time. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/adam.h"
#include "kernels/op.h"
#include "kernels/policy/mlp_batch.h"

/* ---- optimizers, in place on flat memory: layouts do not matter as long as all arguments share them ---- */

/* v = momentum v + g (the first step: v = g); p -= lr v. Without momentum, p -= lr g and v is NULL. */
struct sgd_settings {
    double lr, momentum;
};

/* One update of a parameter server: a single pass over everything, out of place, so that a round which turns
 * out bad has changed nothing. For each element, in this order of operations:
 *     g = (g_0 + g_1 + … + g_{n-1}) / n;  v' = momentum v + g (first: v' = g);  p' = p - lr v'
 * n = 1 divides by nothing. Without momentum (0), velocity and velocity_out are NULL and p' = p - lr g. */
struct sgd_round {
    struct sgd_settings sgd;
    bool first;                   /* no velocity yet: `velocity` is not read */
    size_t count;                 /* elements */
    uint32_t contributions;       /* n >= 1 */
    const void *const *gradients; /* (n) in the order of summation; all in the backend's dtype, host memory */
    const void *parameters, *velocity;
    /* Overlap none of the others; aligned to 64 bytes like all of them. */
    void *parameters_out, *velocity_out;
    uint32_t threads; /* 0: one per processor of this process's affinity */
    /* Out. UINT32_MAX: every p' is finite. Else who is at fault: the first contribution with a NaN or an
     * infinity, or `contributions` where all of them are finite and a p' is not (steps that are too long). */
    uint32_t not_finite;
};

/* ---- a backend ---- */

struct backend_settings {
    uint32_t threads; /* math threads of a CPU backend; 0: one per processor of this process's affinity */
};

struct policy_rows; /* cuda: a captured policy; see backend_ops.policy_open */

/* A backend's table. What is marked "optional" may be NULL. Slots may rely on what the public functions of
 * this header check. */
struct backend_ops {
    const char *name; /* "onednn" */
    enum dtype dtype; /* of parameters and activations */
    bool host;        /* its memory may be read and written by the CPU */

    enum status (*open)(struct backend *backend, const struct backend_settings *settings,
                        struct error *error);
    void (*close)(struct backend *backend);

    enum status (*forward[OP_COUNT])(struct backend *backend, struct op_call *call, struct error *error);
    enum status (*backward[OP_COUNT])(struct backend *backend, struct op_call *call, struct error *error);

    enum status (*upload)(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                          struct error *error);
    enum status (*download)(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                            struct error *error);
    enum status (*fill)(struct backend *backend, struct tensor *tensor, double value, struct error *error);
    enum status (*accumulate)(struct backend *backend, struct arena *arena, struct tensor *to,
                              const struct tensor *from, struct error *error);
    enum status (*scale)(struct backend *backend, struct tensor *tensor, double factor, struct error *error);
    enum status (*square_sum)(struct backend *backend, const struct tensor *tensor, double *sum,
                              struct error *error);
    enum status (*first_not_finite)(struct backend *backend, const struct tensor *tensor, size_t *index,
                                    struct error *error);
    enum status (*sgd)(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                       struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                       struct error *error);
    enum status (*adam)(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                        struct tensor *second, struct error *error);

    /* Optional: one update of a parameter server. */
    enum status (*sgd_round)(struct backend *backend, struct sgd_round *round, struct error *error);

    /* Optional: NULL where a parameter has no other layout than the canonical one. A number that tells
     * layouts (not NULL) apart, the same in every process on equal machines. */
    uint64_t (*layout_hash)(const void *layout);

    /* Optional: the policy's whole act as one launch (kernels/policy/mlp.h says what it computes). A CPU
     * backend has none: there kernels/policy/mlp.c itself is it. `slab` is the policy's params_slab
     * (kernels/params/params.h): mlp's four tensors in mlp's order, each from a multiple of 64 bytes on, in
     * the backend's memory; it stays where it is and is read anew by every policy_act. A policy_rows has host
     * buffers (pinned) for `rows_max` rows and one captured graph for each padded batch size 1, 2, 4, …
     * rows_max. With `fixed` there is rows_max alone, and a batch's row i stands at place environment[i],
     * which must be below rows_max: a row's result then depends neither on which others came nor on how many.
     * policy_act is mlp_act: it fills batch->masks and batch->actions, and `probabilities` if not NULL, and
     * waits until they are there. */
    enum status (*policy_open)(struct backend *backend, const struct mlp_shape *shape, double dropout,
                               uint32_t rows_max, bool fixed, const struct tensor *slab,
                               struct policy_rows **out, struct error *error);
    void (*policy_close)(struct backend *backend, struct policy_rows *rows);
    enum status (*policy_act)(struct backend *backend, struct policy_rows *rows,
                              const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
                              const uint32_t *environment, const uint32_t *step, float *probabilities,
                              struct error *error);
};

/* The fields may be read by everyone; a backend's open sets source, state and text. */
struct backend {
    const struct backend_ops *ops;
    struct arena_source source; /* for arenas whose blocks this backend computes on */
    char text[128];             /* "oneDNN 2.6.3, AVX-512, 2 threads"; "NVIDIA H200, cuDNN 9.19" */
    void *state;                /* the backend's own */
};

/* Opens a backend whose table the caller links. STATUS_UNAVAILABLE: no such device here, with the reason. */
enum status backend_open(struct backend **out, const struct backend_ops *ops,
                         const struct backend_settings *settings, struct error *error);

/* Loads the plug-in libcoalesced-NAME.so ("onednn", "cuda") and opens it. It is looked for in the folder
 * $COALESCED_PLUGINS if that is set; else beside the running program, in the folder above, and in
 * ../lib/coalesced. STATUS_UNAVAILABLE: it is not there, a library that it needs is not, it is of another
 * version, or it finds no device; the text says which. A plug-in, once loaded, stays loaded. */
enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error);

/* For a job's "device". AUTO: the GPU if one works, else the CPU, and *why (if not NULL) says in one sentence
 * why not the GPU. GPU: STATUS_UNAVAILABLE if none works. */
enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_GPU };
enum status backend_load_device(struct backend **out, enum device device,
                                const struct backend_settings *settings, struct error *why,
                                struct error *error);

void backend_close(struct backend *backend); /* NULL is nothing */

/* A plug-in exports this one symbol; NULL when it was built against another BACKEND_ABI. */
enum { BACKEND_ABI = 3 };
typedef const struct backend_ops *backend_plugin(uint32_t abi);
#define BACKEND_PLUGIN_SYMBOL "coalesced_backend"

/* ---- memory ---- */

/* Copies canonical host values of `dtype` into the tensor (converting dtype and layout), or out of it.
 * Between floating dtypes, or int32 to int32. When it returns, `from` may be changed and `to` holds the
 * values. */
enum status backend_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                           struct error *error);
enum status backend_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                             struct error *error);

enum status backend_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error);

/* to += from; layouts may differ. */
enum status backend_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                               const struct tensor *from, struct error *error);

enum status backend_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error);

/* Sum of squares in double, in an order that depends on the tensor's layout and size alone. */
enum status backend_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                               struct error *error);

/* *index: the first element in memory order that is not finite, or SIZE_MAX. */
enum status backend_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                     struct error *error);

/* `step` counts from 1. Same number of elements everywhere; each moves by itself. Adam: kernels/adam.h. */
enum status backend_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                        struct error *error);
enum status backend_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                         struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                         struct tensor *second, struct error *error);

/* struct sgd_round says what it computes; the bits depend neither on `threads` nor on where a range begins,
 * and with one contribution they are those of backend_sgd. Allocates nothing. STATUS_INVALID: a backend
 * without it, no contribution, a momentum without a velocity or the reverse. A contribution with a NaN is no
 * failure: not_finite tells, and the results are to be thrown away. */
enum status backend_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error);

#endif
