/* The values that a job begins with, from a checkpoint or an /init file, and the buffers that checkpoints are
 * written from. The trainer's thread.
 *
 * Every trainer takes its progress and its hidden state from the checkpoint. The lead also reads the whole
 * model's values, and sends them to the workers that own them. */
#include "worker/model_parallel/parallel_trainer_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static enum status resume_open_text(struct parallel_trainer *t, struct error *error)
{
    struct parallel_values *values = &t->values;
    const struct corpus *corpus = &t->data.corpus;
    values->extra.state = t->hidden.saved;
    if (!t->data.text)
        return STATUS_OK;
    values->extra.text.tokens = corpus->training.count + corpus->held_out.count;
    memcpy(values->extra.text.sha256, corpus->sha256, sizeof values->extra.text.sha256);
    values->vocabulary = vocabulary_format(corpus->vocabulary, &values->extra.vocabulary_bytes);
    values->extra.vocabulary = values->vocabulary;
    if (values->vocabulary == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the vocabulary's text");
    return STATUS_OK;
}

static bool resume_is_asked_for(const struct parallel_trainer *t)
{
    return worker_resumes(t->base.worker);
}

static bool resume_has_values(const struct parallel_trainer *t)
{
    return resume_is_asked_for(t) || t->job->init.has_path;
}

/* Reads the file that the job begins with, if any: before this trainer meets the other workers, so that a
 * file that does not fit fails first. */
static enum status resume_load_values(struct parallel_trainer *t, struct error *error)
{
    const struct whole *whole = &t->values.whole;
    const struct checkpoint_values values = {.params = whole->params, .momentum = whole->momentum};
    if (!resume_has_values(t))
        return STATUS_OK;
    return resume_is_asked_for(t) ? checkpoint_load(worker_resume_path(t->base.worker), &values, error)
                                  : checkpoint_load_model(path_of(t->job->init.path), &values, error);
}

static enum status resume_open_whole(struct parallel_trainer *t, struct error *error)
{
    enum status status = whole_open(&t->values.whole, &t->data.rnn, t->job->optimizer.momentum > 0, error);
    return status == STATUS_OK ? resume_load_values(t, error) : status;
}

enum status parallel_values_open(struct parallel_trainer *t, struct error *error)
{
    const bool leads = parallel_trainer_leads(t);
    enum status status = leads ? resume_open_whole(t, error) : STATUS_OK;
    if (!leads && !resume_is_asked_for(t))
        return status;
    if (status == STATUS_OK)
        status = hidden_state_open_saved(&t->hidden, &t->data, error);
    return status == STATUS_OK ? resume_open_text(t, error) : status;
}

void parallel_values_close(struct parallel_trainer *t)
{
    whole_close(&t->values.whole);
    free(t->values.vocabulary);
}

/* ---- resuming ---- */

/* A word's number is its row in the model: another vocabulary is another model. */
static enum status resume_check_vocabulary(struct parallel_trainer *t, struct path path, struct error *error)
{
    const struct checkpoint_extra *ours = &t->values.extra;
    char *text;
    size_t bytes;
    enum status status = checkpoint_vocabulary(path, &text, &bytes, error);
    if (status != STATUS_OK)
        return status;
    const bool same =
        (text == NULL) == (ours->vocabulary == NULL) &&
        (text == NULL || (bytes == ours->vocabulary_bytes && memcmp(text, ours->vocabulary, bytes) == 0));
    free(text);
    if (same)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.200s was made with other words than those of %.200s: expected the text with which "
                     "the run began",
                     path.text, t->data.text ? t->job->data.path : "synthetic data");
}

/* A text with the same words in another order, or with other lines held out, belongs to another run. */
static enum status resume_check_text(const struct parallel_trainer *t, const char *path,
                                     const struct checkpoint_text *expected, struct error *error)
{
    const struct checkpoint_text *text = &t->values.extra.text;
    if (expected->tokens == 0)
        return STATUS_OK;
    if (text->tokens != expected->tokens)
        return error_set(error, STATUS_INVALID,
                         "%.200s holds %" PRIu64 " words and line ends: expected the %" PRIu64
                         " of the text that %.200s was made with",
                         t->job->data.path, text->tokens, expected->tokens, path);
    if (memcmp(text->sha256, expected->sha256, sizeof text->sha256) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.200s holds other words, or in another order: expected the text that %.200s was made "
                     "with",
                     t->job->data.path, path);
}

enum status parallel_resume(struct parallel_trainer *t, struct error *error)
{
    struct checkpoint_counters counters;
    struct checkpoint_text text;
    if (!resume_is_asked_for(t))
        return STATUS_OK;
    const struct path path = worker_resume_path(t->base.worker);
    enum status status = checkpoint_facts(path, &counters, &text, error);
    if (status != STATUS_OK)
        return status;
    if (counters.trainers != t->trainers)
        return error_set(error, STATUS_INVALID, "%.300s comes from a job with %u trainers: expected %u",
                         path.text, counters.trainers, t->trainers);
    t->iteration = counters.steps[t->number];
    t->epoch_loss = counters.epoch_loss;
    t->line_loss = counters.line_loss;
    t->plateau = (struct plateau){.lr = counters.lr, .best_loss = counters.best_loss};
    status = resume_check_vocabulary(t, path, error);
    if (status == STATUS_OK)
        status = resume_check_text(t, path.text, &text, error);
    return status == STATUS_OK ? hidden_state_load(&t->hidden, t->number, path, error) : status;
}

/* ---- values to their owners ---- */

/* Sends every parameter, or its momentum, to its owner. */
static enum status resume_send_values(struct parallel_trainer *t, bool momentum, struct error *error)
{
    const struct whole *whole = &t->values.whole;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < t->parameter_count && status == STATUS_OK; i++) {
        const float *values = whole_values(whole, i, momentum);
        const size_t count = whole_count(whole, i);
        status = dist_parameter_set(t->base.dist, t->parameters[i],
                                    momentum ? DIST_MOMENT_FIRST : DIST_VALUES, values, count, error);
    }
    return status;
}

enum status parallel_values_send(struct parallel_trainer *t, struct error *error)
{
    assert(t->parameter_count == params_count(t->values.whole.params));
    if (!resume_has_values(t))
        return STATUS_OK;
    enum status status = resume_send_values(t, false, error);
    if (status != STATUS_OK || !resume_is_asked_for(t))
        return status;
    if (t->values.whole.momentum != NULL)
        status = resume_send_values(t, true, error);
    return status == STATUS_OK ? dist_optimizer_steps_set(t->optimizer, t->iteration, error) : status;
}
