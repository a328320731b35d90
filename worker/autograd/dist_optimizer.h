/* The distributed optimizer: one optimizer of parameters on several workers, which all step at once.
 *
 *     dist_parameters(dist, embedding, parameters, …);        references to all parameters of an object
 *     dist_optimizer_new(&optimizer, dist, &config, parameters, count, …);
 *     …
 *     dist_backward(context, loss, …);
 *     dist_optimizer_step(optimizer, context, &step, …);
 *
 * Each owner of parameters has one *local optimizer*: an object of class "optimizer" with optim.h's
 * arithmetic and moments. An owner has one thread, so only one step runs there at a time. The workers that
 * ask for steps are the *participants*. They share one optimizer: the first makes it and shares it
 * (dist_optimizer_share), like the objects themselves.
 *
 * ---- The round ----
 * `all`: on each owner a step waits until every participant has asked for it, each with a context of its own.
 * The owner adds up their gradients in the order of the workers' numbers, and takes one step. All must name
 * the same lr and max_norm. If they do not, all get STATUS_INVALID, and nothing changes. When a participant
 * dies, this round and all later ones fail with STATUS_PEER_DIED. When a participant frees its optimizer,
 * they fail with STATUS_SHUTDOWN, which is not the others' fault.
 *
 * The step of `all` changes the values in place. A context that has yet to walk would get wrong gradients,
 * and nothing reports that. So a participant asks for a step when it has walked all its contexts, and no
 * other worker has a context open that trains.
 *
 * `async`: each step is taken when it comes. Contexts that have still to walk keep the parameters that their
 * forward read. Objects need versions for that (dist_versions.h), one more than there are participants. Each
 * participant has one context at a time.
 *
 * A parameter whose object had no part in the loss has the gradient zero. The step moves it by its momentum,
 * as PyTorch's does when gradients are zero and not None. Parameters that the optimizer was not given do not
 * move.
 *
 * ---- Clipping ----
 * With max_norm > 0 a step is two rounds. The owners answer the first with the sum of squares of each
 * parameter's gradient (double). The norm is the root of the sum of all. They are added in the order of
 * dist_optimizer_new's list, whichever worker owns which parameter. The second round multiplies every
 * gradient by max_norm / (norm + 1e-6) if that is below 1, as PyTorch's clip_grad_norm_ does. It may scale
 * the context's own gradients.
 *
 * ---- Reading values for a checkpoint ----
 * dist_parameter_get reads the newest values and moments of one parameter. With `async`, a step may have been
 * taken on one owner and not yet on the next. Then the values of several parameters do not belong together.
 * So the participants pause first, each after its dist_optimizer_step has returned. The optimizer itself
 * holds nothing back.
 *
 * ---- Failures ----
 * A NaN or an infinity in a gradient is STATUS_INTERNAL, and the text names the parameter. With clipping it
 * is found before anything has changed anywhere. Without clipping nothing has changed on that owner, but
 * other owners may have taken the step.
 *
 * After a failed step the optimizer can only be freed, with two exceptions. STATUS_INVALID, and STATUS_BUSY
 * with a single owner, leave everything as it was. Free the optimizer of a failed round of `all` soon: the
 * step may have reached some owners only, and there the other participants wait for this one.
 *
 * Threads as rpc.h. Functions that wait turn the rpc: for a role's top level. Steps allocate nothing after
 * the first. */
#ifndef WORKER_AUTOGRAD_DIST_OPTIMIZER_H
#define WORKER_AUTOGRAD_DIST_OPTIMIZER_H

#include "kernels/params/optim.h"
#include "worker/autograd/dist.h"

struct dist_owner;
struct dist_optimizer;

enum {
    DIST_PARAMETERS_MAX = 256,   /* of an object, and of an optimizer */
    DIST_PARTICIPANTS_MAX = 256, /* workers that take part in its rounds */
};

/* ---- every worker ---- */

/* Serves parameters and local optimizers of this worker's objects. Every worker makes one, before its first
 * turn; its table of classes has the two rows below. Freed after the rrefs. STATUS_NO_MEMORY. */
enum status dist_owner_new(struct dist_owner **out, struct dist *dist, struct error *error);
void dist_owner_free(struct dist_owner *owner);

/* The rows "parameter" and "optimizer". */
extern const struct rref_class dist_parameter_class, dist_optimizer_class;

/* ---- parameters ---- */

/* References to all trained parameters of an object, in its params' order: objects of class "parameter" on
 * its owner, each of which keeps the object. Waits. The caller releases them. STATUS_INVALID: the object has
 * none, or more than DIST_PARAMETERS_MAX; STATUS_BUSY: the owner has no room for so many objects. */
enum status dist_parameters(struct dist *dist, struct rref *object, struct rref *out[DIST_PARAMETERS_MAX],
                            uint32_t *count, struct error *error);

enum dist_values {
    DIST_VALUES,       /* the parameter's own */
    DIST_MOMENT_FIRST, /* its optimizer's: SGD's momentum is the first, Adam's are both; zeros before a step
                        */
    DIST_MOMENT_SECOND,
};

/* Values in and out, canonical float32; `count` is shape_elements, another one STATUS_INVALID, and so is a
 * moment that the parameter does not have. Wait. _set of DIST_VALUES is STATUS_BUSY when all versions of the
 * object's values are being read; an object with one version is changed in place, as by a step of `all`. */
enum status dist_parameter_get(struct dist *dist, struct rref *parameter, enum dist_values which,
                               float *values, size_t count, struct error *error);
enum status dist_parameter_set(struct rref *parameter, enum dist_values which, const float *values,
                               size_t count, struct error *error);

/* ---- the optimizer ---- */

struct dist_optimizer_config {
    struct optimizer_settings settings; /* lr is each step's own; here any that is allowed */
    bool async;                         /* the round: false is `all` */
    const uint16_t *participants;       /* worker numbers, ascending; this one need not be among them */
    uint32_t participant_count;         /* 1 .. DIST_PARTICIPANTS_MAX */
};

/* Makes one local optimizer on each owner. It keeps the parameters: the references may be released
 * afterwards. Waits. STATUS_INVALID: settings out of range, participants not ascending, no parameter or too
 * many; or, with its name, a parameter that is given twice or has another optimizer. With `async` also one
 * whose object has too few versions (STATUS_UNAVAILABLE: none, as its backend's memory is not the host's).
 * STATUS_PEER_DIED: an owner is gone. */
enum status dist_optimizer_new(struct dist_optimizer **out, struct dist *dist,
                               const struct dist_optimizer_config *config, struct rref *const parameters[],
                               uint32_t count, struct error *error);

/* Releases this worker's handles. A local optimizer ends with its last handle on any worker; until then its
 * parameters cannot have another optimizer. Never waits. */
void dist_optimizer_free(struct dist_optimizer *optimizer);

/* Gives another worker the references to the local optimizers, one for each owner of parameters, all under
 * `tag`, one after the other. Waits until it holds them, or one fails. */
enum status dist_optimizer_share(struct dist_optimizer *optimizer, uint16_t worker, uint64_t tag,
                                 struct error *error);

/* On the other worker: a handle made of the references that its `taken` was given, in any order. They are
 * copied. STATUS_INVALID: they are not all references to local optimizers. */
enum status dist_optimizer_join(struct dist_optimizer **out, struct dist *dist, struct rref *const locals[],
                                uint32_t count, struct error *error);

/* ---- a step ---- */

struct dist_step {
    double lr;
    double max_norm; /* 0: no clipping */
    bool last;       /* tell all participants that this is the last step */
    /* Out. */
    double norm;   /* of the gradient before clipping; NaN without clipping */
    bool was_last; /* a participant said last; with `async`, this worker did */
};

/* One step on every owner, in one concurrent round (two with clipping), by the gradients of `context`. Waits.
 * STATUS_INVALID: lr or max_norm out of range, or not those of the other participants; this worker is no
 * participant. STATUS_BUSY (`async`): no version is free; nothing has changed on that owner.
 * STATUS_PEER_DIED: an owner or a participant is gone. STATUS_SHUTDOWN: a participant has freed its
 * optimizer, or the job is over. */
enum status dist_optimizer_step(struct dist_optimizer *optimizer, struct dist_context *context,
                                struct dist_step *step, struct error *error);

/* How many steps were taken so far, on all owners at once, for a run that goes on. Waits. */
enum status dist_optimizer_steps_set(struct dist_optimizer *optimizer, uint64_t steps, struct error *error);

#endif
