/* Checkpoints: the lead fetches every value through references into the whole model, and a thread writes them
 * while the loop goes on (worker/background.h). A checkpoint is of a moment: behind an iteration and before
 * what the end of an epoch changes, so that whoever goes on from it deals with that end anew. It gets its
 * name when the logs have the last line before it. */
#include "worker/parallel/parallel_trainer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

/* An entry of the state for h and one for c of every trainer. */
static enum status open_state(struct parallel_trainer *t, struct error *error)
{
    const struct rnn_config *rnn = &t->data.rnn;
    const struct shape shape = SHAPE3(rnn->layers, t->job->trainers.batch, rnn->hidden);
    const struct init zero = {INIT_CONSTANT, 0};
    const struct backend_settings settings = {.threads = 1};
    enum status status = backend_load(&t->saver.backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = params_new(&t->saver.hidden, t->saver.backend, error);
    for (uint32_t i = 0; i < 2 * t->trainers && status == STATUS_OK; i++) {
        struct parameter *entry;
        char name[32];
        snprintf(name, sizeof name, "trainer%u.%s", i / 2, i % 2 == 0 ? "h" : "c");
        status = params_add(t->saver.hidden, name, PARAMETER_BUFFER, shape, zero, &entry, error);
    }
    return status == STATUS_OK ? params_build(t->saver.hidden, 0, error) : status;
}

static enum status open_text(struct parallel_trainer *t, struct error *error)
{
    struct parallel_saver *saver = &t->saver;
    const struct corpus *corpus = &t->data.corpus;
    if (!t->data.text)
        return STATUS_OK;
    saver->text.tokens = corpus->training.count + corpus->held_out.count;
    memcpy(saver->text.sha256, corpus->sha256, sizeof saver->text.sha256);
    saver->vocabulary = vocabulary_format(t->data.corpus.vocabulary, &saver->vocabulary_bytes);
    if (saver->vocabulary == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the vocabulary's text");
    return STATUS_OK;
}

static bool resumes(const struct parallel_trainer *t)
{
    return t->base.worker->self.resume[0] != '\0';
}

static bool has_values(const struct parallel_trainer *t)
{
    return resumes(t) || t->job->init.has_path;
}

/* What the job begins with, if that lies in a file: read before anybody is met, so that a file that does not
 * fit is the job's fault and nobody else's. */
static enum status load_values(struct parallel_trainer *t, struct error *error)
{
    const struct whole *whole = &t->saver.whole;
    const struct checkpoint_part part = {.params = whole->params, .momentum = whole->momentum, .servers = 1};
    if (!has_values(t))
        return STATUS_OK;
    return resumes(t) ? checkpoint_load(t->base.worker->self.resume, &part, error)
                      : checkpoint_load_model(t->job->init.path, &part, error);
}

static enum status open_lead(struct parallel_trainer *t, struct error *error)
{
    struct parallel_saver *saver = &t->saver;
    saver->run_dir = t->base.worker->self.run_dir;
    saver->keep = t->job->checkpoint.keep;
    saver->last = monotime_now();
    enum status status = whole_open(&saver->whole, &t->data.rnn, t->job->optimizer.momentum > 0, error);
    if (status == STATUS_OK)
        status = load_values(t, error);
    return status == STATUS_OK ? background_open(&saver->thread, t->base.rpc, error) : status;
}

enum status parallel_save_open(struct parallel_trainer *t, struct error *error)
{
    const bool leads = parallel_trainer_leads(t);
    enum status status = leads ? open_lead(t, error) : STATUS_OK;
    if (!leads && !resumes(t))
        return status;
    if (status == STATUS_OK)
        status = open_state(t, error);
    return status == STATUS_OK ? open_text(t, error) : status;
}

/* Gives up what is not published. */
static void abandon(struct parallel_saver *saver)
{
    if (saver->begun)
        checkpoint_abandon(saver->run_dir, saver->counters.update);
    saver->begun = false;
    saver->state = SAVING_NONE;
}

void parallel_save_close(struct parallel_trainer *t)
{
    struct parallel_saver *saver = &t->saver;
    background_close(&saver->thread);
    abandon(saver);
    params_free(saver->hidden);
    backend_close(saver->backend);
    whole_close(&saver->whole);
    free(saver->vocabulary);
}

/* ---- going on from a checkpoint ---- */

/* The words' numbers are the model's rows: another vocabulary is another model. */
static enum status check_vocabulary(struct parallel_trainer *t, const char *path, struct error *error)
{
    struct parallel_saver *saver = &t->saver;
    char *text;
    size_t bytes;
    enum status status = checkpoint_vocabulary(path, &text, &bytes, error);
    if (status != STATUS_OK)
        return status;
    const bool same =
        (text == NULL) == (saver->vocabulary == NULL) &&
        (text == NULL || (bytes == saver->vocabulary_bytes && memcmp(text, saver->vocabulary, bytes) == 0));
    free(text);
    if (same)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.200s was made with other words than those of %.200s: expected the text with which "
                     "the run began",
                     path, t->data.text ? t->job->data.path : "synthetic data");
}

/* The same words in another order, or other ones held out, are another run. */
static enum status check_text(struct parallel_trainer *t, const char *path, struct error *error)
{
    const struct checkpoint_text *text = &t->saver.text;
    struct checkpoint_text expected;
    enum status status = checkpoint_text_read(path, &expected, error);
    if (status != STATUS_OK || expected.tokens == 0)
        return status;
    if (text->tokens != expected.tokens)
        return error_set(error, STATUS_INVALID,
                         "%.200s holds %" PRIu64 " words and line ends: expected the %" PRIu64
                         " of the text that %.200s was made with",
                         t->job->data.path, text->tokens, expected.tokens, path);
    if (memcmp(text->sha256, expected.sha256, sizeof text->sha256) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.200s holds other words, or in another order: expected the text that %.200s was made "
                     "with",
                     t->job->data.path, path);
}

static enum status load_state(struct parallel_trainer *t, const char *path, struct error *error)
{
    struct params *state = t->saver.hidden;
    enum status status = checkpoint_load_state(path, state, error);
    if (status == STATUS_OK)
        status = params_read(state, params_at(state, 2 * t->number), DTYPE_F32, t->h, error);
    if (status == STATUS_OK)
        status = params_read(state, params_at(state, 2 * t->number + 1), DTYPE_F32, t->c, error);
    return status;
}

enum status parallel_save_resume(struct parallel_trainer *t, struct error *error)
{
    const char *path = t->base.worker->self.resume;
    struct checkpoint_counters counters;
    enum status status = checkpoint_counters_read(path, &counters, error);
    if (status != STATUS_OK)
        return status;
    if (counters.trainers != t->trainers)
        return error_set(error, STATUS_INVALID, "%.300s is of a job with %u trainers: expected %u", path,
                         counters.trainers, t->trainers);
    t->iteration = counters.steps[t->number];
    t->epoch_loss = counters.epoch_loss;
    t->line_loss = counters.line_loss;
    t->plateau = (struct plateau){.lr = counters.lr, .best_loss = counters.best_loss};
    t->saver.saved = counters.update;
    t->lines[0] = t->lines[1] = 0;
    status = check_vocabulary(t, path, error);
    if (status == STATUS_OK)
        status = check_text(t, path, error);
    return status == STATUS_OK ? load_state(t, path, error) : status;
}

/* ---- values to and from their owners ---- */

static enum status put_values(struct parallel_trainer *t, bool momentum, struct error *error)
{
    struct whole *whole = &t->saver.whole;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < t->parameter_count && status == STATUS_OK; i++) {
        const size_t count = whole_count(whole, i);
        status = whole_read(whole, i, momentum, error);
        if (status == STATUS_OK && momentum)
            status =
                dist_optimizer_moment_set(t->optimizer, i, DIST_MOMENT_FIRST, whole->values, count, error);
        else if (status == STATUS_OK)
            status = dist_parameter_set(t->base.dist, t->parameters[i], whole->values, count, error);
    }
    return status;
}

static enum status fetch_values(struct parallel_trainer *t, bool momentum, struct error *error)
{
    struct whole *whole = &t->saver.whole;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < t->parameter_count && status == STATUS_OK; i++) {
        const size_t count = whole_count(whole, i);
        if (momentum)
            status =
                dist_optimizer_moment_get(t->optimizer, i, DIST_MOMENT_FIRST, whole->values, count, error);
        else
            status = dist_parameter_get(t->base.dist, t->parameters[i], whole->values, count, error);
        if (status == STATUS_OK)
            status = whole_write(whole, i, momentum, error);
    }
    return status;
}

enum status parallel_save_load(struct parallel_trainer *t, struct error *error)
{
    assert(t->parameter_count == params_count(t->saver.whole.params));
    if (!has_values(t))
        return STATUS_OK;
    enum status status = put_values(t, false, error);
    if (status != STATUS_OK || !resumes(t))
        return status;
    if (t->saver.whole.momentum != NULL)
        status = put_values(t, true, error);
    return status == STATUS_OK ? dist_optimizer_steps_set(t->optimizer, t->iteration, error) : status;
}

/* ---- writing ---- */

static enum status write_all(void *arg, struct error *error)
{
    const struct parallel_saver *saver = arg;
    const struct checkpoint_part part = {
        .params = saver->whole.params, .momentum = saver->whole.momentum, .servers = 1};
    const struct checkpoint_extra extra = {.text = saver->text,
                                           .vocabulary = saver->vocabulary,
                                           .vocabulary_bytes = saver->vocabulary_bytes,
                                           .state = saver->hidden};
    enum status status = checkpoint_begin(saver->run_dir, saver->counters.update, error);
    if (status == STATUS_OK)
        status = checkpoint_write_extra(saver->run_dir, &saver->counters, &part, &extra, error);
    return status;
}

static enum status publish(void *arg, struct error *error)
{
    const struct parallel_saver *saver = arg;
    return checkpoint_publish(saver->run_dir, saver->counters.update, saver->keep, error);
}

static enum status start(struct parallel_saver *saver, enum parallel_saving state,
                         enum status (*work)(void *, struct error *), struct error *error)
{
    saver->state = state;
    return background_start(&saver->thread, work, saver, "the thread that writes a checkpoint", error);
}

static bool is_due(const struct parallel_trainer *t)
{
    const struct job *job = t->job;
    if (!parallel_trainer_leads(t) || t->iteration == t->saver.saved)
        return false;
    if (t->last)
        return true;
    if (job->checkpoint.has_every && t->iteration % job->checkpoint.every == 0)
        return true;
    return job->checkpoint.has_every_s && t->saver.state == SAVING_NONE &&
           (double)monotime_us_between(t->saver.last, monotime_now()) >= job->checkpoint.every_s * 1e6;
}

static enum status write_state(struct parallel_trainer *t, uint32_t number, const float *h, const float *c,
                               struct error *error)
{
    struct params *state = t->saver.hidden;
    enum status status = params_write(state, params_at(state, 2 * number), DTYPE_F32, h, error);
    return status == STATUS_OK ? params_write(state, params_at(state, 2 * number + 1), DTYPE_F32, c, error)
                               : status;
}

/* What is asked of the others comes by way of the next iteration's room for the state. */
static enum status fetch_states(struct parallel_trainer *t, struct error *error)
{
    enum status status = write_state(t, 0, t->h, t->c, error);
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++) {
        status = parallel_peer_state(t, i, t->h_next, t->c_next, &t->saver.counters.steps[i], error);
        if (status == STATUS_OK)
            status = write_state(t, i, t->h_next, t->c_next, error);
    }
    return status;
}

enum status parallel_save_begin(struct parallel_trainer *t, struct error *error)
{
    struct parallel_saver *saver = &t->saver;
    if (!is_due(t))
        return STATUS_OK;
    enum status status = parallel_save_wait(t, error);
    if (status != STATUS_OK)
        return status;
    saver->line = t->lines[0];
    saver->counters = (struct checkpoint_counters){.update = t->iteration,
                                                   .trainers = t->trainers,
                                                   .steps = {t->iteration},
                                                   .epoch_loss = t->epoch_loss,
                                                   .line_loss = t->line_loss,
                                                   .lr = t->plateau.lr,
                                                   .best_loss = t->plateau.best_loss};
    status = fetch_values(t, false, error);
    if (status == STATUS_OK && saver->whole.momentum != NULL)
        status = fetch_values(t, true, error);
    if (status == STATUS_OK)
        status = fetch_states(t, error);
    if (status != STATUS_OK)
        return status;
    saver->begun = true;
    saver->last = monotime_now();
    return start(saver, SAVING_WRITING, write_all, error);
}

/* ---- going on with it ---- */

static enum status after_writing(struct parallel_trainer *t, struct error *error)
{
    const enum status status = background_end(&t->saver.thread, error);
    if (status == STATUS_OK)
        t->saver.state = SAVING_LOGGING;
    return status;
}

static enum status after_logging(struct parallel_trainer *t, struct error *error)
{
    if (t->base.worker->logged < t->saver.line)
        return STATUS_AGAIN;
    return start(&t->saver, SAVING_PUBLISHING, publish, error);
}

static enum status after_publishing(struct parallel_trainer *t, struct error *error)
{
    struct parallel_saver *saver = &t->saver;
    const enum status status = background_end(&saver->thread, error);
    if (status != STATUS_OK)
        return status;
    saver->begun = false;
    saver->saved = saver->counters.update;
    saver->state = SAVING_NONE;
    return STATUS_OK;
}

enum status parallel_save_advance(struct parallel_trainer *t, struct error *error)
{
    static enum status (*const after[])(struct parallel_trainer *, struct error *) = {
        [SAVING_WRITING] = after_writing,
        [SAVING_LOGGING] = after_logging,
        [SAVING_PUBLISHING] = after_publishing,
    };
    enum status status = STATUS_OK;
    while (status == STATUS_OK && t->saver.state != SAVING_NONE)
        status = after[t->saver.state](t, error);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        abandon(&t->saver);
    return status;
}

enum status parallel_save_wait(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_save_advance(t, error);
    while (status == STATUS_AGAIN) {
        status = parallel_trainer_wait(t, error);
        if (status == STATUS_OK)
            status = parallel_save_advance(t, error);
    }
    return status;
}
