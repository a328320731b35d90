/* Keeps a trainer's hidden state between iterations, and in checkpoints. The trainer's thread runs this. The
 * saver's thread reads `saved` while it writes a checkpoint. */
#include "worker/model_parallel/parallel_hidden_state.h"

#include "worker/checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void hidden_state_clear(float *h, float *c, size_t count)
{
    memset(h, 0, count * sizeof *h);
    memset(c, 0, count * sizeof *c);
}

void hidden_state_first(const struct parallel_data *data, uint32_t trainer, float *h, float *c)
{
    const size_t count = parallel_data_state_count(data, data->job->trainers.batch);
    if (data->text) {
        hidden_state_clear(h, c, count);
        return;
    }
    corpus_random_state(data->job->seed, trainer, CORPUS_HIDDEN, h, count);
    corpus_random_state(data->job->seed, trainer, CORPUS_CELL, c, count);
}

enum status hidden_state_open(struct hidden_state *state, const struct parallel_data *data, uint32_t trainer,
                              struct error *error)
{
    float **const parts[] = {&state->h, &state->c, &state->h_next, &state->c_next};
    state->count = parallel_data_state_count(data, data->job->trainers.batch);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i] = calloc(state->count, sizeof **parts[i]);
        if (*parts[i] == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a hidden state of %zu numbers",
                             state->count);
    }
    hidden_state_first(data, trainer, state->h, state->c);
    return STATUS_OK;
}

void hidden_state_close(struct hidden_state *state)
{
    params_free(state->saved);
    backend_close(state->backend);
    free(state->h);
    free(state->c);
    free(state->h_next);
    free(state->c_next);
}

void hidden_state_advance(struct hidden_state *state)
{
    float *h = state->h, *c = state->c;
    state->h = state->h_next;
    state->c = state->c_next;
    state->h_next = h;
    state->c_next = c;
}

void hidden_state_end_epoch(struct hidden_state *state, const struct parallel_data *data)
{
    if (data->text)
        hidden_state_clear(state->h, state->c, state->count);
}

/* ---- checkpoints ---- */

enum status hidden_state_open_saved(struct hidden_state *state, const struct parallel_data *data,
                                    struct error *error)
{
    const struct shape shape = SHAPE3(data->rnn.layers, data->job->trainers.batch, data->rnn.hidden);
    const struct init zero = {INIT_CONSTANT, 0};
    const struct backend_settings settings = {.threads = 1};
    enum status status = backend_load(&state->backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = params_new(&state->saved, state->backend, error);
    for (uint32_t i = 0; i < 2 * data->job->trainers.count && status == STATUS_OK; i++) {
        struct parameter *entry;
        char name[32];
        snprintf(name, sizeof name, "trainer%u.%s", i / 2, i % 2 == 0 ? "h" : "c");
        status = params_add(state->saved, name, PARAMETER_BUFFER, shape, zero, &entry, error);
    }
    return status == STATUS_OK ? params_build(state->saved, 0, error) : status;
}

void hidden_state_saved(const struct hidden_state *state, uint32_t trainer, float **h, float **c)
{
    *h = params_at(state->saved, 2 * trainer)->tensor.data;
    *c = params_at(state->saved, 2 * trainer + 1)->tensor.data;
}

void hidden_state_save(struct hidden_state *state, uint32_t trainer)
{
    float *h, *c;
    hidden_state_saved(state, trainer, &h, &c);
    memcpy(h, state->h, state->count * sizeof *h);
    memcpy(c, state->c, state->count * sizeof *c);
}

enum status hidden_state_load(struct hidden_state *state, uint32_t trainer, struct path path,
                              struct error *error)
{
    float *h, *c;
    enum status status = checkpoint_load_state(path, state->saved, error);
    if (status != STATUS_OK)
        return status;
    hidden_state_saved(state, trainer, &h, &c);
    memcpy(state->h, h, state->count * sizeof *h);
    memcpy(state->c, c, state->count * sizeof *c);
    return STATUS_OK;
}
