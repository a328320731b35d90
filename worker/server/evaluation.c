/* Evaluation in parts: the loop over a part's batches, and the command that runs all parts by itself.
 *
 * The command takes the trainers' batch, math threads and layouts, so that its figures are the log's bit for
 * bit where the same kind of machine computes them. One thread, its caller's. */
#include "worker/server/evaluation.h"

#include "worker/checkpoint/checkpoint.h"
#include "worker/device.h"

static struct monotime soon(void)
{
    enum { WAIT_US = 50000 }; /* for data, between two calls of progress */
    return monotime_add_us(monotime_now(), WAIT_US);
}

enum status evaluation_run_part(struct evaluation *sums, const struct job *job, struct classifier *classifier,
                                struct tape *tape, uint32_t part, uint32_t parts, bool again,
                                void (*progress)(void *arg), void *arg, struct error *error)
{
    const struct loader_config config = {
        .job = job, .split = DATASET_EVALUATION, .share = part, .shares = parts, .quiet = again};
    const struct batch *batch;
    struct loader *loader;
    *sums = (struct evaluation){0};
    enum status status = loader_new(&loader, &config, error);
    if (status != STATUS_OK)
        return status;
    while (status == STATUS_OK || status == STATUS_AGAIN) {
        if (progress != NULL)
            progress(arg);
        status = loader_next(loader, soon(), &batch, error);
        if (status != STATUS_OK)
            continue;
        status = classifier_evaluate(classifier, tape, batch, &sums->loss_sum, &sums->correct, error);
        sums->samples += batch->samples;
    }
    loader_free(loader);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status; // no more batches is how it ends
}

/* ---- the command ---- */

static enum status run_parts(struct evaluation *sums, const struct job *job, struct classifier *classifier,
                             struct tape *tape, struct error *error)
{
    const uint32_t parts = job->trainers.count;
    enum status status = STATUS_OK;
    *sums = (struct evaluation){0};
    for (uint32_t part = 0; part < parts && status == STATUS_OK; part++) {
        struct evaluation of_part;
        status = evaluation_run_part(&of_part, job, classifier, tape, part, parts, false, NULL, NULL, error);
        sums->loss_sum += of_part.loss_sum;
        sums->correct += of_part.correct;
        sums->samples += of_part.samples;
    }
    if (status == STATUS_OK && sums->samples == 0)
        status = error_set(error, STATUS_CORRUPT, "%.300s: none of the held-out samples can be decoded",
                           job->data.path);
    return status;
}

static enum status load_and_run(struct evaluation *sums, const char *checkpoint, const struct job *job,
                                struct params *params, struct tape *tape, struct error *error)
{
    const struct checkpoint_values whole = {.params = params};
    struct classifier *classifier;
    enum status status = classifier_new(&classifier, job, params, error);
    if (status != STATUS_OK)
        return status;
    status = classifier_build(classifier, tape, error);
    if (status == STATUS_OK)
        status = checkpoint_load_model(checkpoint, &whole, error);
    if (status == STATUS_OK)
        status = run_parts(sums, job, classifier, tape, error);
    classifier_free(classifier);
    return status;
}

static enum status check_data(const struct job *job, struct error *error)
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
    struct backend *backend = NULL;
    struct params *params = NULL;
    struct tape *tape = NULL;
    job_resolve(&resolved);
    enum status status = check_data(&resolved, error);
    if (status == STATUS_OK)
        status = device_open(&backend, &resolved, resolved.trainers.threads, true, error);
    if (status == STATUS_OK)
        status = params_new(&params, backend, error);
    if (status == STATUS_OK)
        status = tape_new(&tape, backend, error);
    if (status == STATUS_OK)
        status = load_and_run(sums, checkpoint, &resolved, params, tape, error);
    tape_free(tape);
    params_free(params);
    backend_close(backend);
    return status;
}
