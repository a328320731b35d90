/* Runs `coalesced evaluate` for a language model: prints the loss of a checkpoint on the held-out lines. */
#include "worker/device.h"
#include "worker/model_parallel/language.h"
#include "worker/model_parallel/language_model.h"

#include <math.h>

/* The model, and where its loss is computed: on a backend of its own, as at a trainer. */
struct evaluation_of_language {
    const char *checkpoint;
    uint64_t batches; /* so far */
    struct language language;
    struct backend *backend;
    struct tape *tape;
};

static enum status language_batch_loss(void *context, const struct parallel_batch *batch, double *loss,
                                       struct error *error)
{
    struct evaluation_of_language *evaluation = context;
    struct language *l = &evaluation->language;
    struct tape *tape = evaluation->tape;
    const uint32_t rows = batch->steps * batch->columns;
    enum status status = language_forward(l, batch, error);
    if (status != STATUS_OK)
        return status;
    tape_begin(tape, TAPE_INFER, NULL);
    struct variable *mean = tape_cross_entropy(
        tape,
        tape_input(tape, SHAPE2(rows, l->rnn.tokens), DTYPE_F32, "logits", l->outputs[JOB_LAYER_DECODER]),
        tape_input(tape, SHAPE1(rows), DTYPE_I32, "targets", batch->targets));
    tape_read(tape, mean, DTYPE_F64, loss);
    status = tape_finish(tape, error);
    evaluation->batches++;
    if (status != STATUS_OK || isfinite(*loss))
        return status;
    return error_set(error, STATUS_CORRUPT,
                     "%.300s: its loss on batch %llu of the held-out text is not finite",
                     evaluation->checkpoint, (unsigned long long)evaluation->batches);
}

/* Reads the text in the checkpoint's words. */
static enum status language_open_data(struct parallel_data *data, const struct language *l,
                                      struct error *error)
{
    const struct corpus_config reading = {.vocabulary = l->vocabulary};
    if (l->job->data.kind != JOB_DATA_TEXT)
        return error_set(error, STATUS_INVALID,
                         "synthetic data has none held out to evaluate: expected \"text\" in /data/kind");
    const enum status status = parallel_data_open(data, l->job, &reading, error);
    if (status != STATUS_OK || data->held_out_batches > 0)
        return status;
    return error_set(error, STATUS_INVALID,
                     "%.300s: too little is held out to evaluate %u columns (/data/held_out)",
                     l->job->data.path, l->job->evaluation.batch);
}

enum status language_evaluate(const struct job *job, const char *checkpoint, double *loss, uint64_t *tokens,
                              struct error *error)
{
    const size_t rows = (size_t)job->sequence.steps * job->evaluation.batch;
    struct evaluation_of_language evaluation = {.checkpoint = checkpoint};
    struct parallel_data data = {0};
    enum status status = language_open(&evaluation.language, job, checkpoint, rows, error);
    if (status == STATUS_OK)
        status = language_open_data(&data, &evaluation.language, error);
    if (status == STATUS_OK)
        status = device_open(&evaluation.backend, job, job->trainers.threads, false, error);
    if (status == STATUS_OK)
        status = tape_new(&evaluation.tape, evaluation.backend, error);
    if (status == STATUS_OK)
        status = held_out_loss(&data, language_batch_loss, &evaluation, loss, tokens, error);
    tape_free(evaluation.tape);
    backend_close(evaluation.backend);
    parallel_data_close(&data);
    language_close(&evaluation.language);
    return status;
}
