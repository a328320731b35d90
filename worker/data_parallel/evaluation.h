/* Evaluation on held-out data: by the trainers of a running job, and by `coalesced evaluate`. And `coalesced
 * export` of an image classifier.
 *
 * A job's held-out data has as many shares as the job has trainers. A share is summed in the order of its
 * samples, and the shares are added in their order, so the result does not depend on which process computed a
 * share. One thread, beside the loader's. */
#ifndef WORKER_DATA_PARALLEL_EVALUATION_H
#define WORKER_DATA_PARALLEL_EVALUATION_H

#include "kernels/tape/tape.h"
#include "worker/control.h"
#include "worker/data/loader.h"
#include "worker/job/job.h"
#include "worker/model/classifier.h"

struct evaluation {
    double loss_sum;
    uint64_t correct, samples;
    uint64_t finite; /* of `samples`: how many come before the first batch with a loss that is not finite */
};

/* A model on its tape, and the held-out data. */
struct evaluator {
    const struct job *job;
    struct classifier *classifier;
    struct tape *tape;
    void (*progress)(
        void *context);     /* called between batches and while waiting for data, at least every 50 ms; */
    void *progress_context; /* NULL: not called */
    struct control_share *counts; /* gets the samples of the running share; NULL: they are not counted */
    struct loader *held_out;      /* NULL before the first share; stays open for the next */
};

/* Runs one of the job's shares. Errors of loader_next and classifier_evaluate. */
enum status evaluator_run(struct evaluator *evaluator, uint32_t share, struct evaluation *sums,
                          struct error *error);
void evaluator_close(struct evaluator *evaluator);

/* The command `coalesced evaluate`: loads the model of `checkpoint` (a checkpoint's folder or a safetensors
 * file), opens the job's device, runs all shares; where /data/kind is "class", in a child in Python. The
 * number of training samples does not matter. STATUS_INVALID: the job has no held-out data; those of
 * python_child_ask; STATUS_CORRUPT: none of it can be decoded, or the model's loss is not finite. */
enum status evaluation_run(struct evaluation *sums, const char *checkpoint, const struct job *job,
                           struct error *error);

/* The command `coalesced export` of an image classifier: writes the model of `checkpoint`, as above, to the
 * ONNX file `path` (worker/model/onnx.h), without a math library. Errors as checkpoint_load_model and
 * onnx_write_classifier; STATUS_NO_MEMORY. */
enum status classifier_export(const char *path, const char *checkpoint, const struct job *job,
                              struct error *error);

#endif
