/* The image classifier of a job: the network of /model with the loss of /loss, on params that lie wherever
 * they lie. What pservers, trainers and `coalesced evaluate` have in common. */
#ifndef WORKER_MODEL_CLASSIFIER_H
#define WORKER_MODEL_CLASSIFIER_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "worker/data/loader.h"
#include "worker/job/job.h"

struct classifier;

/* Registers the model's entries with `params`, which the caller builds or lays out afterwards and which
 * outlives the classifier. */
enum status classifier_new(struct classifier **out, const struct job *job, struct params *params,
                           struct error *error);
void classifier_free(struct classifier *classifier);

/* Finds the layouts that a training step of /trainers/batch wants on this backend with its threads, and gives
 * them to the params and every gradients of theirs without moving a byte (params_adopt). For params that were
 * laid out and not yet placed: a forward runs on zeros that cost no memory. The same job, backend and number
 * of threads give the same layouts. On a backend without layouts it does nothing. */
enum status classifier_reorder(struct classifier *classifier, struct tape *tape, struct error *error);

/* Memory of this process's own for the params, all zero: registered and no more, they are laid out, settled
 * and placed; on a device with a memory of its own, built there. It is given back by classifier_free, and the
 * params have no place then. STATUS_NO_MEMORY. */
enum status classifier_build(struct classifier *classifier, struct tape *tape, struct error *error);

/* Images (n, channels, size, size) and labels (n) of a batch to the loss, as a variable of a tape that the
 * caller has begun (TAPE_TRAIN). mse: against one-hot rows. */
struct variable *classifier_loss(struct classifier *classifier, struct tape *tape, const struct batch *batch);

/* After the walk: the batch's means and unbiased variances to `statistics`, (B) host float32, each where its
 * running one stands in the buffers' slab; the other elements are left alone. */
enum status classifier_statistics(struct classifier *classifier, struct tape *tape, float *statistics,
                                  struct error *error);

/* TAPE_INFER, with the running statistics: adds to *loss_sum the sum of the samples' losses (in double, in
 * order), to *correct how many have their label's logit as the largest (the first of equal ones). Begins and
 * finishes the tape's step itself. */
enum status classifier_evaluate(struct classifier *classifier, struct tape *tape, const struct batch *batch,
                                double *loss_sum, uint64_t *correct, struct error *error);

#endif
