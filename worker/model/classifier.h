/* The image classifier of a job: the network of /model with the loss of /loss, on params in any memory.
 * Parameter servers, trainers and `coalesced evaluate` share it. */
#ifndef WORKER_MODEL_CLASSIFIER_H
#define WORKER_MODEL_CLASSIFIER_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "worker/data/loader.h"
#include "worker/job/job.h"
#include "worker/model/rnn.h"

struct classifier;

/* Registers the model's entries with `params`. The caller builds or lays them out afterwards. Job and params
 * outlive the classifier. */
enum status classifier_new(struct classifier **out, const struct job *job, struct params *params,
                           struct error *error);
void classifier_free(struct classifier *classifier);

/* Finds the layouts that a training step of /trainers/batch asks for on this backend with its threads, and
 * gives them to the params and their gradients without moving a byte (params_adopt). The params are laid out
 * and not yet placed: a forward runs on zeros that cost no memory. The same job, backend and number of
 * threads give the same layouts. Does nothing on a backend without layouts. */
enum status classifier_reorder(struct classifier *classifier, struct tape *tape, struct error *error);

/* Gives the registered params memory of this process's own, all zero: lays them out, reorders and places
 * them; on a device with memory of its own, builds them there. classifier_free frees the memory and unplaces
 * the params. STATUS_NO_MEMORY. */
enum status classifier_build(struct classifier *classifier, struct tape *tape, struct error *error);

/* The loss of a batch: images (n, channels, size, size) and labels (n), on a tape that the caller has begun
 * (TAPE_TRAIN). mse: against one-hot rows. */
struct variable *classifier_loss(struct classifier *classifier, struct tape *tape, const struct batch *batch);

/* Reads the batch's means and unbiased variances into `statistics`, (B) host float32, as tape_read_later
 * does: each at the offset of its running one in the buffers' slab, and zeros between. Before tape_finish. */
enum status classifier_statistics(struct classifier *classifier, struct tape *tape, float *statistics,
                                  struct error *error);

/* Evaluates a batch with the running statistics: adds the sum of the samples' losses to *loss_sum (in double,
 * in order), and to *correct the number of samples whose label has the largest logit (the first of equal
 * ones). Begins and finishes the tape's step itself. */
enum status classifier_evaluate(struct classifier *classifier, struct tape *tape, const struct batch *batch,
                                double *loss_sum, uint64_t *correct, struct error *error);

/* Whether a safetensors file holds the values of a job's model, by names, shapes and dtypes: for the check of
 * a job, which loads no backend and gives no parameter memory. `rnn`: the model of a model-parallel job,
 * whose vocabulary may be a text's; else NULL, and the model is a classifier. STATUS_INVALID names the first
 * few entries at fault with both shapes; otherwise the errors of safetensors_open. Blocks on the file. */
enum status model_file_check(const char *path, const struct job *job, const struct rnn_config *rnn,
                             struct error *error);

#endif
