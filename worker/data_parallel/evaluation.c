/* Evaluation by shares: the loop over a share's batches, and the command that runs all shares, here or, where
 * a class in Python has the data, in a child; and the command that writes a checkpoint's classifier as ONNX.
 *
 * `coalesced evaluate` uses the trainers' batch, math threads and layouts, so that its figures are the log's
 * bit for bit on the same kind of machine. */
#include "worker/data_parallel/evaluation.h"

#include "kernels/backend.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data_parallel/shards.h"
#include "worker/device.h"
#include "worker/model/onnx.h"
#include "worker/python/python_child.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct monotime evaluator_soon(void)
{
    enum { WAIT_US = 50000 }; /* for data, between two calls of progress */
    return monotime_add_us(monotime_now(), WAIT_US);
}

static enum status evaluator_begin_share(struct evaluator *evaluator, uint32_t share, struct error *error)
{
    const struct loader_config config = {.job = evaluator->job,
                                         .split = DATASET_EVALUATION,
                                         .share = share,
                                         .shares = evaluator->job->trainers.count};
    if (evaluator->held_out == NULL)
        return loader_new(&evaluator->held_out, &config, error);
    return loader_restart(evaluator->held_out, share, error);
}

static void evaluator_count(const struct evaluator *evaluator, uint64_t samples)
{
    const uint64_t total = loader_share_samples(evaluator->held_out);
    if (evaluator->counts != NULL)
        *evaluator->counts = (struct control_share){(uint32_t)samples, (uint32_t)total};
}

enum status evaluator_run(struct evaluator *evaluator, uint32_t share, struct evaluation *sums,
                          struct error *error)
{
    const struct batch *batch;
    *sums = (struct evaluation){0};
    enum status status = evaluator_begin_share(evaluator, share, error);
    while (status == STATUS_OK || status == STATUS_AGAIN) {
        if (evaluator->progress != NULL)
            evaluator->progress(evaluator->progress_context);
        status = loader_next(evaluator->held_out, evaluator_soon(), &batch, error);
        if (status == STATUS_OK && batch == NULL) { // the share has no more samples
            evaluator_count(evaluator, loader_share_samples(evaluator->held_out));
            return STATUS_OK;
        }
        if (status != STATUS_OK)
            continue;
        status = classifier_evaluate(evaluator->classifier, evaluator->tape, batch, &sums->loss_sum,
                                     &sums->correct, error);
        sums->samples += batch->samples;
        evaluator_count(evaluator, sums->samples);
        if (isfinite(sums->loss_sum))
            sums->finite = sums->samples;
    }
    evaluator_close(evaluator);
    return status;
}

void evaluator_close(struct evaluator *evaluator)
{
    loader_free(evaluator->held_out);
    evaluator->held_out = NULL;
}

/* ---- the classifier of a checkpoint ---- */

struct loaded {
    struct backend *backend;
    struct params *params;
    struct tape *tape;
    struct classifier *classifier;
};

/* Reads the checkpoint into a model on the backend, which is open. Afterwards, and after a failure,
 * loaded_close. */
static enum status loaded_read(struct loaded *loaded, const char *checkpoint, const struct job *job,
                               struct error *error)
{
    enum status status = params_new(&loaded->params, loaded->backend, error);
    const struct checkpoint_values values = {.params = loaded->params};
    if (status == STATUS_OK)
        status = tape_new(&loaded->tape, loaded->backend, error);
    if (status == STATUS_OK)
        status = classifier_new(&loaded->classifier, job, loaded->params, error);
    if (status == STATUS_OK)
        status = classifier_build(loaded->classifier, loaded->tape, error);
    return status == STATUS_OK ? checkpoint_load_model(path_of(checkpoint), &values, error) : status;
}

static void loaded_close(struct loaded *loaded)
{
    classifier_free(loaded->classifier);
    tape_free(loaded->tape);
    params_free(loaded->params);
    backend_close(loaded->backend);
}

/* Reads the checkpoint without a math library: its values lie in canonical order. Afterwards, and after a
 * failure, loaded_close. */
static enum status loaded_read_canonical(struct loaded *loaded, const char *checkpoint, const struct job *job,
                                         struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    enum status status = backend_open(&loaded->backend, &memory_ops, &settings, error);
    return status == STATUS_OK ? loaded_read(loaded, checkpoint, job, error) : status;
}

enum status classifier_export(const char *path, const char *checkpoint, const struct job *job,
                              struct error *error)
{
    struct loaded loaded = {0};
    enum status status = loaded_read_canonical(&loaded, checkpoint, job, error);
    if (status == STATUS_OK)
        status = onnx_write_classifier(path, job, loaded.params, error);
    loaded_close(&loaded);
    return status;
}

/* ---- held-out data of a class in Python ----
 * A child gets the model, and computes each share as the job's trainers do:
 * worker/python/command_evaluation.py, which describes the messages. */

struct python_share {
    double loss_sum;
    uint64_t correct, samples;
};
_Static_assert(sizeof(struct python_share) == 24, "an answer has no gaps");

static enum status python_request(struct python_child *child, const struct job *job, struct params *params,
                                  struct error *error)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to write the job");
    const uint32_t job_bytes = (uint32_t)bytes,
                   counts[2] = {job->trainers.count, (uint32_t)image_elements(params)};
    const size_t trained = params_elements(params), buffers = params_buffer_elements(params);
    python_child_begin(child);
    enum status status = python_child_append(child, &job_bytes, sizeof job_bytes, error);
    if (status == STATUS_OK)
        status = python_child_append(child, text, bytes, error);
    if (status == STATUS_OK)
        status = python_child_append(child, counts, sizeof counts, error);
    if (status == STATUS_OK)
        status = python_child_append(child, params_slab(params)->data, trained * sizeof(float), error);
    if (status == STATUS_OK)
        status = python_child_append(child, params_buffers(params)->data, buffers * sizeof(float), error);
    free(text);
    return status;
}

/* Adds up the shares of the child's answer. */
static enum status python_sum_shares(struct evaluation *sums, const struct python_child *child,
                                     const char *checkpoint, uint32_t shares, struct error *error)
{
    size_t size;
    const char *answer = python_child_answer(child, &size);
    *sums = (struct evaluation){0};
    if (size != shares * sizeof(struct python_share))
        return error_set(error, STATUS_CORRUPT, "Python answers with %zu bytes: expected %zu", size,
                         shares * sizeof(struct python_share));
    for (uint32_t i = 0; i < shares; i++) {
        struct python_share share;
        memcpy(&share, answer + i * sizeof share, sizeof share);
        if (!isfinite(share.loss_sum))
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: its loss is not finite in share %u of the held-out data", checkpoint,
                             i);
        sums->loss_sum += share.loss_sum;
        sums->correct += share.correct;
        sums->samples += share.samples;
    }
    return STATUS_OK;
}

static enum status python_evaluation_run(struct evaluation *sums, const char *checkpoint,
                                         const struct job *job, struct error *error)
{
    struct loaded loaded = {0};
    struct python_child *child = NULL;
    enum status status = loaded_read_canonical(&loaded, checkpoint, job, error);
    if (status == STATUS_OK)
        status = python_child_open(&child, job->trainers.python, "command_evaluation.py",
                                   "evaluate the model", error);
    if (status == STATUS_OK)
        status = python_request(child, job, loaded.params, error);
    loaded_close(&loaded);
    if (status == STATUS_OK)
        status = python_child_ask(child, error);
    if (status == STATUS_OK)
        status = python_sum_shares(sums, child, checkpoint, job->trainers.count, error);
    python_child_close(child);
    return status;
}

/* ---- the command `coalesced evaluate` ---- */

static enum status evaluator_check_finite(const struct evaluation *sums, uint32_t share,
                                          const char *checkpoint, struct error *error)
{
    if (isfinite(sums->loss_sum))
        return STATUS_OK;
    return error_set(
        error, STATUS_CORRUPT,
        "%.300s: its loss is not finite from sample %llu of %llu on, in share %u of the held-out data",
        checkpoint, (unsigned long long)sums->finite + 1, (unsigned long long)sums->samples, share);
}

static enum status evaluator_run_shares(struct evaluation *sums, struct evaluator *evaluator,
                                        const char *checkpoint, struct error *error)
{
    enum status status = STATUS_OK;
    *sums = (struct evaluation){0};
    for (uint32_t share = 0; share < evaluator->job->trainers.count && status == STATUS_OK; share++) {
        struct evaluation of_share;
        status = evaluator_run(evaluator, share, &of_share, error);
        if (status == STATUS_OK)
            status = evaluator_check_finite(&of_share, share, checkpoint, error);
        sums->loss_sum += of_share.loss_sum;
        sums->correct += of_share.correct;
        sums->samples += of_share.samples;
    }
    if (status == STATUS_OK && sums->samples == 0)
        status = error_set(error, STATUS_CORRUPT, "%.300s: none of the held-out samples can be decoded",
                           evaluator->job->data.path);
    return status;
}

static enum status evaluation_check_data(const struct job *job, struct error *error)
{
    struct dataset_info info;
    enum status status = dataset_probe(&info, job, error);
    if (status == STATUS_OK && info.evaluation == 0)
        status = error_set(error, STATUS_INVALID, "the job's data%s%s has no held-out samples to evaluate on",
                           job->data.path[0] != '\0' ? " in " : "", job->data.path);
    return status;
}

enum status evaluation_run(struct evaluation *sums, const char *checkpoint, const struct job *job,
                           struct error *error)
{
    struct job resolved = *job;
    struct loaded loaded = {0};
    job_resolve(&resolved);
    if (resolved.data.kind == JOB_DATA_CLASS)
        return python_evaluation_run(sums, checkpoint, &resolved, error);
    enum status status = evaluation_check_data(&resolved, error);
    if (status == STATUS_OK)
        status = device_open(&loaded.backend, &resolved, resolved.trainers.threads, true, error);
    if (status == STATUS_OK)
        status = loaded_read(&loaded, checkpoint, &resolved, error);
    struct evaluator evaluator = {.job = &resolved, .classifier = loaded.classifier, .tape = loaded.tape};
    if (status == STATUS_OK)
        status = evaluator_run_shares(sums, &evaluator, checkpoint, error);
    evaluator_close(&evaluator);
    loaded_close(&loaded);
    return status;
}
