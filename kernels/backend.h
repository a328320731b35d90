/* A backend: a device with its table of functions. This header opens and loads a backend, and has its memory
 * and optimizers. kernels/op.h has the operations.
 *
 * A backend belongs to one thread at a time; on a GPU, to the thread that opened it. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/adam.h"
#include "kernels/op.h"

/* ---- optimizers: in place on flat memory, in any layout that all arguments share ---- */

/* v = momentum v + g (the first step: v = g); p -= lr v. Without momentum, p -= lr g and v is NULL. */
struct sgd_settings {
    double lr, momentum;
};

/* One update of a parameter server: a single pass over all elements, out of place, so that a failed round
 * changes nothing. For each element, in this order of operations:
 *
 *     g = (g_0 + g_1 + … + g_{n-1}) / n;  v' = momentum v + g (first: v' = g);  p' = p - lr v'
 *
 * Without momentum (0), velocity and velocity_out are NULL and p' = p - lr g. */
struct sgd_round {
    struct sgd_settings sgd;
    bool first;                   /* no velocity yet: `velocity` is not read */
    size_t count;                 /* elements */
    uint32_t contributions;       /* n >= 1 */
    const void *const *gradients; /* (n) in the order of summation; all in the backend's dtype, host memory */
    const void *parameters, *velocity;
    /* Each overlaps no other array, or is the array that it replaces. Every array is aligned to 64 bytes. */
    void *parameters_out, *velocity_out;
    uint32_t threads; /* 0: one per processor of this process's affinity */
    /* Out. UINT32_MAX: every p' is finite. Else the number of the first contribution with a NaN or an
     * infinity; or `contributions`, where all contributions are finite and a p' is not (steps that are too
     * long). */
    uint32_t not_finite;
};

/* ---- a backend ---- */

struct backend_settings {
    uint32_t threads; /* math threads of a CPU backend; 0: one per processor of this process's affinity */
    uint32_t device;  /* of several GPUs, the one of this number modulo their count */
};

/* A captured policy: a chain of layers over rows of observations, with pinned host buffers for `rows_max`
 * rows and one graph for each padded batch size 1, 2, 4, … rows_max. With `fixed`, 1 and rows_max are the
 * only sizes. Padding is zeros: a row's result depends on the size and on its place, and on no other row. */
struct policy_launch;
enum { POLICY_LAUNCH_LAYERS_MAX = 18 };

/* What the host gets of a layer: nothing; y (rows, outputs) float32; or an action (rows) int32, drawn by the
 * softmax of y as kernels/policy/mlp.h says. */
enum policy_launch_result { POLICY_LAUNCH_INNER, POLICY_LAUNCH_FLOATS, POLICY_LAUNCH_ACTIONS };

/* y = f(x weight^T + bias) */
struct policy_launch_layer {
    struct tensor weight, bias; /* in the backend's memory; every launch reads them anew */
    uint32_t from;              /* x: 0, the observations; else the y of layer from - 1 */
    enum op activation;         /* f: OP_RELU, OP_TANH; OP_LINEAR: none */
    double dropout;             /* of y, under OP_RELU (kernels/op.h, "Draws"); 0: none */
    enum policy_launch_result result;
};

struct policy_launch_settings {
    uint32_t inputs; /* of a row of observations */
    uint32_t layers;
    struct policy_launch_layer layer[POLICY_LAUNCH_LAYERS_MAX];
    uint64_t seed; /* of the draws */
    uint32_t rows_max;
    bool fixed;
};

/* A backend's table. A slot marked "optional" may be NULL. A slot may rely on what the public
 * functions below and op_forward demand of their caller. */
struct backend_ops {
    const char *name; /* "onednn" */
    enum dtype dtype; /* of parameters and activations */
    bool host;        /* its memory may be read and written by the CPU */

    enum status (*open)(struct backend *backend, const struct backend_settings *settings,
                        struct error *error);
    void (*close)(struct backend *backend);

    /* Optional: whether there is a device that `open` can take. Allocates nothing on it. NULL: there is. */
    bool (*find)(void);

    enum status (*forward[OP_COUNT])(struct backend *backend, struct op_call *call, struct error *error);
    enum status (*backward[OP_COUNT])(struct backend *backend, struct op_call *call, struct error *error);

    enum status (*upload)(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                          struct error *error);
    enum status (*download)(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                            struct error *error);
    /* Optional, all or none: copies that do not wait (see "memory" below). */
    enum status (*download_later)(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                  void *to, struct error *error);
    enum status (*wait)(struct backend *backend, struct error *error);
    enum status (*pin)(struct backend *backend, const void *memory, size_t bytes, struct error *error);
    enum status (*fill)(struct backend *backend, struct tensor *tensor, double value, struct error *error);
    enum status (*accumulate)(struct backend *backend, struct tensor *to, const struct tensor *from,
                              struct error *error);
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

    /* Optional: a policy's layers as one launch. launch_run waits for the results: of each layer that has
     * one, in their order. `rows` is 1 … rows_max; observations (rows, inputs); keys (rows, 3): each row's
     * (environment, step, episode), read where something is drawn or dropped. */
    enum status (*launch_new)(struct backend *backend, const struct policy_launch_settings *settings,
                              struct policy_launch **out, struct error *error);
    void (*launch_free)(struct backend *backend, struct policy_launch *launch);
    enum status (*launch_run)(struct backend *backend, struct policy_launch *launch, uint32_t rows,
                              const float *observations, const int32_t *keys, void *const results[],
                              struct error *error);
};

/* Anyone may read the fields; the backend's `open` sets source, state and text. */
struct backend {
    const struct backend_ops *ops;
    struct arena_source source; /* for arenas whose blocks this backend computes on */
    char text[128];             /* "oneDNN 2.6.3, AVX-512, 2 threads"; "NVIDIA H200, cuDNN 9.19" */
    void *state;                /* the backend's own */
};

/* Opens a backend whose table the caller links. STATUS_UNAVAILABLE: there is no such device; the message says
 * why.
 */
enum status backend_open(struct backend **out, const struct backend_ops *ops,
                         const struct backend_settings *settings, struct error *error);

/* Loads the plug-in libcoalesced-NAME.so ("onednn", "cuda") and opens it. The search covers the folder
 * $COALESCED_PLUGINS if that is set; else the running program's folder, the folder above it, and
 * ../lib/coalesced. STATUS_UNAVAILABLE: the plug-in or a library that it needs is missing or damaged, its
 * version differs, or it finds no device; the message says which. A loaded plug-in stays loaded. */
enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error);

/* Loads the backend for a job's "device". DEVICE_AUTO: the GPU if one works, else the CPU; *why (if not NULL)
 * then says in one sentence why the GPU does not. DEVICE_GPU: STATUS_UNAVAILABLE if none works. */
enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_GPU };
enum status backend_load_device(struct backend **out, enum device device,
                                const struct backend_settings *settings, struct error *why,
                                struct error *error);

/* Whether this host has a GPU for DEVICE_AUTO: the same answer in every process. Allocates nothing on it.
 * Opening it may still fail. */
bool backend_finds_gpu(void);

/* The backend that stores float32 tensors in host memory, in canonical layouts, and computes nothing. A
 * process that needs no math library holds the params of its checkpoints in this backend. backend_open can
 * fail for want of memory alone; backend_upload, backend_download and backend_fill cannot fail. Nothing else
 * may be called. */
extern const struct backend_ops memory_ops;

void backend_close(struct backend *backend); /* NULL is nothing */

/* The one symbol that a plug-in exports: a function that returns its table, or NULL if it was built against
 * another BACKEND_ABI. */
enum { BACKEND_ABI = 8 };
typedef const struct backend_ops *backend_plugin(uint32_t abi);
#define BACKEND_PLUGIN_SYMBOL "coalesced_backend"

/* ---- memory ---- */

/* Copies canonical host values of `dtype` into the tensor (converting dtype and layout), or out of it.
 * Floating to floating, or int32 to int32.
 *
 * Upload: operations queued later read the values. `from` may be changed at once where it is not pinned;
 * pinned memory stays unchanged until the next wait. Download: waits, and on return `to` holds the values. */
enum status backend_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                           struct error *error);
enum status backend_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                             struct error *error);

/* As backend_download, but `to` holds the values after the next wait, and exists until then. The tensor may
 * be released or overwritten at once. On the CPU the values are there on return. */
enum status backend_download_later(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                   void *to, struct error *error);

/* Waits until the device has no use for host memory. Returns at once where no copy is under way.
 * backend_download, backend_square_sum, backend_first_not_finite and a launch wait, too. */
enum status backend_wait(struct backend *backend, struct error *error);

/* Pins host memory that is copied to or from often: a copy of it is one, asynchronous, and not staged in
 * pieces. The memory belongs to the caller, is writable during this call, and stays where it is until
 * backend_close. Pinned pieces have no page in common. Does nothing on the CPU, and where the memory is
 * pinned already. A failure, such as the system's limit of locked memory, changes nothing: copies are
 * staged. */
enum status backend_pin(struct backend *backend, const void *memory, size_t bytes, struct error *error);

enum status backend_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error);

/* to += from; layouts may differ. */
enum status backend_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                               struct error *error);

enum status backend_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error);

/* Sum of squares in double, in an order that depends on the tensor's layout and size alone. */
enum status backend_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                               struct error *error);

/* *index: the first element in memory order that is not finite, or SIZE_MAX. */
enum status backend_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                     struct error *error);

/* One step of an optimizer, with the formula of sgd_settings or of kernels/adam.h. `step` counts from 1. All
 * tensors have the same number of elements. */
enum status backend_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                        struct error *error);
enum status backend_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                         struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                         struct tensor *second, struct error *error);

/* Computes struct sgd_round's formula. The bits depend neither on `threads` nor on where a range begins, and
 * with one contribution they are those of backend_sgd. Allocates nothing. A NaN is no failure of the call:
 * the caller looks at not_finite and throws the results away. */
enum status backend_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error);

#endif
