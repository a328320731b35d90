/* The distributed optimizer: references to parameters in, one local optimizer on each of their owners, one
 * step of all of them at once.
 *
 * On each owner stands one object of class "optimizer" (optim.h's arithmetic, moments included), so that only
 * one step runs there at a time: an owner has one thread. Who shares parts shares their optimizer: the first
 * trainer makes it and shares it (dist_optimizer_share), like the parts themselves.
 *
 * ---- The round ----
 * `all`: a step waits on each owner until every one of `participants` has asked for it, each with a context
 * of its own; their gradients are added up in the order of the workers' numbers, and one step is taken with
 * the lr that all of them must have named (another one: STATUS_INVALID for all). `async`: each step is taken
 * when it comes; what other contexts are about to walk keeps the parameters that its forward read (versions).
 *
 * ---- Clipping ----
 * With max_norm > 0 a step is two rounds: the owners answer with the square sums of each parameter's gradient
 * (double; parameters in the order in which they were given to dist_optimizer_new, over all owners), the norm
 * is their sum's root, in that order whoever owns what, and the step multiplies every gradient by
 * max_norm / (norm + 1e-6) where that is below 1: PyTorch's clip_grad_norm_. */
#ifndef WORKER_NET_DIST_OPTIMIZER_H
#define WORKER_NET_DIST_OPTIMIZER_H

#include "kernels/optim.h"
#include "worker/net/dist.h"

struct dist_optimizer;

enum { DIST_PARAMETERS_MAX = 256 };

/* References to all parameters of an object that has some, in its params' order: objects of class "parameter"
 * on its owner, each of which keeps the object. Waits (a role's top level). The caller releases them. */
enum status dist_parameters(struct dist *dist, struct rref *object, struct rref *out[DIST_PARAMETERS_MAX],
                            uint32_t *count, struct error *error);

/* The rows for the worker's table of classes: "parameter" (rref_to_here: its values, canonical float32; its
 * name and shape are dist_parameter_info's), "optimizer". */
extern const struct rref_class dist_parameter_class, dist_optimizer_class;

/* A parameter's name and shape. Waits. */
struct dist_parameter_info {
    char name[256];
    struct shape shape;
};
enum status dist_parameter_info(struct rref *parameter, struct dist_parameter_info *info,
                                struct error *error);

/* Values (or, with `moment`, the optimizer's momentum) in and out, canonical float32, shape_elements of them.
 * Waits. */
enum status dist_parameter_get(struct rref *parameter, float *values, size_t count, struct error *error);
enum status dist_parameter_set(struct rref *parameter, const float *values, size_t count,
                               struct error *error);

struct dist_optimizer_config {
    struct optimizer_settings settings; /* lr is each step's own */
    bool async;                         /* the round: false is `all` */
    uint32_t participants;              /* workers that step; >= 1 */
};

/* One local optimizer on each owner. The parameters are copied (rref_copy). Waits. STATUS_INVALID: no
 * parameter, one twice, or one that another optimizer has. */
enum status dist_optimizer_new(struct dist_optimizer **out, struct dist *dist,
                               const struct dist_optimizer_config *config, struct rref *const parameters[],
                               uint32_t count, struct error *error);
void dist_optimizer_free(struct dist_optimizer *optimizer);

/* Momentum of parameter `index`, canonical float32; zeros before the first step. Also how many steps were
 * taken. For checkpoints. Waits. STATUS_INVALID: the optimizer has none. */
enum status dist_optimizer_momentum_get(struct dist_optimizer *optimizer, uint32_t index, float *values,
                                        size_t count, struct error *error);
enum status dist_optimizer_momentum_set(struct dist_optimizer *optimizer, uint32_t index, const float *values,
                                        size_t count, struct error *error);
enum status dist_optimizer_steps_set(struct dist_optimizer *optimizer, uint64_t steps, struct error *error);

/* Gives another worker a part in it: its references to parameters and local optimizers, under `tag`; the
 * other collects what its `taken` is given and makes its own handle of them. Waits. */
enum status dist_optimizer_share(struct dist_optimizer *optimizer, uint16_t worker, uint64_t tag,
                                 struct error *error);
struct dist_optimizer_share_in; /* what has come so far */
enum status dist_optimizer_join(struct dist_optimizer **out, struct dist *dist,
                                const struct dist_optimizer_config *config, struct rref *const parameters[],
                                uint32_t parameter_count, struct rref *const locals[], uint32_t local_count,
                                struct error *error);

struct dist_step {
    double lr;
    double max_norm; /* 0: no clipping */
    bool last;       /* say to all who take part that this is to be the last step */
    /* Out. */
    double norm;   /* of the gradient before clipping; NaN without clipping */
    bool was_last; /* somebody said so */
};

/* One step of every owner, in one concurrent round (two with clipping). Waits. A gradient with a NaN or an
 * infinity is STATUS_INTERNAL that names the parameter, and nothing is changed on that owner. */
enum status dist_optimizer_step(struct dist_optimizer *optimizer, struct dist_context *context,
                                struct dist_step *step, struct error *error);

#endif
