/* A trainer's start and end: memory, sockets, and how the layers and the optimizer are made and shared. */
#include "worker/model_parallel/parallel_trainer_internal.h"

#include "worker/device.h"

#include <math.h>
#include <stdlib.h>

/* Tags of the references that the lead shares: a layer's number, or this. The decoder's comes last. */
enum { TAG_OPTIMIZER = JOB_LAYERS };

/* ---- what needs no other trainer ---- */

static enum status trainer_open_memory(struct parallel_trainer *t, struct error *error)
{
    t->tokens = calloc(parallel_data_tokens_max(&t->data), sizeof *t->tokens);
    t->targets = calloc(parallel_data_targets_max(&t->data), sizeof *t->targets);
    if (t->tokens == NULL || t->targets == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u columns",
                         t->job->trainers.batch);
    return hidden_state_open(&t->hidden, &t->data, t->number, error);
}

static enum status trainer_open_tape(struct parallel_trainer *t, struct error *error)
{
    const struct arena_source source = dist_arena_source(t->base.dist);
    enum status status =
        device_open(&t->backend, t->job, t->job->trainers.threads, parallel_trainer_leads(t), error);
    if (status == STATUS_OK)
        status = tape_new_in(&t->tape, t->backend, &source, error);
    if (status == STATUS_OK)
        tape_on_progress(t->tape, worker_progress, t->base.worker);
    return status;
}

/* Stores a reference that has arrived: the lead's, at another trainer; another trainer's, at the lead. One of
 * another class than its tag says is released. */
static void trainer_taken(struct parallel *parallel, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct parallel_trainer *t = (struct parallel_trainer *)(void *)parallel; /* its first member */
    const uint32_t number = (uint32_t)from - parallel->roster.servers;
    const struct rref_class *class = rref_class_of(rref);
    const bool is_lead = from == parallel->roster.lead;
    struct rref **place = NULL;
    if (parallel_trainer_leads(t) && from > parallel->roster.lead && tag == number && number < t->trainers &&
        class == &parallel_trainer_class)
        place = &t->peers[number];
    else if (is_lead && tag < JOB_LAYERS && class == &layer_classes[tag])
        place = &t->layers[tag];
    else if (is_lead && tag == TAG_OPTIMIZER && class == &dist_optimizer_class &&
             t->local_count < DIST_PARAMETERS_MAX)
        place = &t->locals[t->local_count++];
    if (place == NULL || *place != NULL) {
        rref_release(rref);
        return;
    }
    *place = rref;
    t->peer_count += parallel_trainer_leads(t);
}

enum status parallel_trainer_open(struct parallel_trainer *t, struct worker *worker, struct error *error)
{
    t->job = &worker->job;
    t->base.taken = trainer_taken;
    t->base.asked_holdings = parallel_peer_asked_holdings;
    t->number = (uint32_t)worker->self.worker - t->job->server.count;
    t->trainers = t->job->trainers.count;
    enum status status = parallel_open(&t->base, worker, error);
    if (status != STATUS_OK || worker->leave)
        return status;
    t->plateau = (struct plateau){.lr = t->job->optimizer.lr, .best_loss = INFINITY};
    const struct corpus_config reading = {.progress = worker_progress, .progress_context = worker};
    status = parallel_data_open(&t->data, t->job, &reading, error);
    if (status == STATUS_OK)
        status = parallel_data_check(&t->data, error);
    if (status == STATUS_OK)
        status = trainer_open_memory(t, error);
    if (status == STATUS_OK)
        status = trainer_open_tape(t, error);
    if (status == STATUS_OK)
        status = parallel_values_open(t, error);
    if (status == STATUS_OK)
        status = parallel_resume(t, error);
    if (status == STATUS_OK)
        status = parallel_checkpoint_open(t, error);
    t->begun = t->iteration;
    t->epoch_open = parallel_data_ends_epoch(&t->data, t->iteration);
    t->last = t->iteration >= t->data.updates;
    return status;
}

/* ---- the lead makes ---- */

static uint16_t trainer_place_of(const struct parallel_trainer *t, enum job_layer layer)
{
    const struct job_numbered *place = &t->job->placement[layer];
    return place->name == JOB_ON_SERVER ? (uint16_t)place->number : t->base.roster.lead;
}

static enum status trainer_wait_ready(struct parallel_trainer *t, struct rref *rref, const char *what,
                                      struct error *error)
{
    struct error why = {0};
    enum status status;
    while ((status = rref_ready(rref, &why)) == STATUS_AGAIN) {
        status = parallel_peer_wait(t, error);
        if (status != STATUS_OK)
            return status;
    }
    if (status == STATUS_OK)
        return status;
    return error_set(error, status, "%s on worker %u: %s", what, rref_owner(rref), why.text);
}

static enum status lead_make_layers(struct parallel_trainer *t, struct error *error)
{
    const bool async = t->job->server.round.name == JOB_ROUND_ASYNC;
    enum status status = STATUS_OK;
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++) {
        uint64_t numbers[LAYER_ARGUMENTS];
        const struct layer_settings settings = {.rnn = t->data.rnn,
                                                .seed = t->job->seed,
                                                .threads = t->job->threads[i].count,
                                                .versions = async ? t->trainers + 1 : 0};
        const struct rpc_message arguments = layer_arguments(&settings, numbers);
        status = rpc_remote(t->base.rrefs, trainer_place_of(t, i), layer_classes[i].name, &arguments,
                            &t->layers[i], error);
    }
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++)
        status = trainer_wait_ready(t, t->layers[i], layer_classes[i].name, error);
    return status;
}

/* In the order of the layers, which is the whole model's. The owners say how many each layer has. */
static enum status lead_find_parameters(struct parallel_trainer *t, struct error *error)
{
    static struct rref *of_layer[DIST_PARAMETERS_MAX]; /* too much for a stack */
    const uint32_t expected = params_count(t->values.whole.params);
    uint32_t found = 0;
    for (int i = 0; i < JOB_LAYERS; i++) {
        uint32_t count = 0;
        const enum status status = dist_parameters(t->base.dist, t->layers[i], of_layer, &count, error);
        if (status != STATUS_OK)
            return status;
        found += count;
        for (uint32_t j = 0; j < count; j++)
            if (t->parameter_count < DIST_PARAMETERS_MAX)
                t->parameters[t->parameter_count++] = of_layer[j];
            else
                rref_release(of_layer[j]);
    }
    return found == expected
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "the owners' layers have %u parameters, the model has %u",
                           found, expected);
}

static enum status lead_make_optimizer(struct parallel_trainer *t, struct error *error)
{
    const struct job *job = t->job;
    uint16_t participants[JOB_TRAINERS_MAX];
    for (uint32_t i = 0; i < t->trainers; i++)
        participants[i] = (uint16_t)(t->base.roster.servers + i);
    const struct dist_optimizer_config config = {
        .settings = {.kind = OPTIMIZER_SGD,
                     .sgd = {.lr = job->optimizer.lr, .momentum = job->optimizer.momentum}},
        .async = job->server.round.name == JOB_ROUND_ASYNC,
        .participants = participants,
        .participant_count = t->trainers};
    return dist_optimizer_new(&t->optimizer, t->base.dist, &config, t->parameters, t->parameter_count, error);
}

static enum status lead_share_with(struct parallel_trainer *t, uint32_t number, struct error *error)
{
    const uint16_t worker = (uint16_t)(t->base.roster.servers + number);
    enum status status = dist_optimizer_share(t->optimizer, worker, TAG_OPTIMIZER, error);
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++) {
        struct future *shared;
        status = rref_share(t->layers[i], worker, (uint64_t)i, &shared, error);
        if (status == STATUS_OK)
            status = parallel_finish(&t->base, shared, error);
    }
    return status;
}

static enum status lead_make_all(struct parallel_trainer *t, struct error *error)
{
    enum status status = lead_make_layers(t, error);
    if (status == STATUS_OK)
        status = lead_find_parameters(t, error);
    if (status == STATUS_OK)
        status = lead_make_optimizer(t, error);
    if (status == STATUS_OK)
        status = parallel_values_send(t, error);
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++)
        status = lead_share_with(t, i, error);
    return status;
}

/* ---- the others take ---- */

static enum status trainer_take_all(struct parallel_trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && t->layers[JOB_LAYERS - 1] == NULL)
        status = parallel_peer_wait(t, error);
    if (status == STATUS_OK)
        status = dist_optimizer_join(&t->optimizer, t->base.dist, t->locals, t->local_count, error);
    for (; t->local_count > 0; t->local_count--)
        rref_release(t->locals[t->local_count - 1]);
    return status;
}

enum status parallel_trainer_meet(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_peer_meet(t, error);
    if (status != STATUS_OK)
        return status;
    status = parallel_trainer_leads(t) ? lead_make_all(t, error) : trainer_take_all(t, error);
    t->line_begin = t->epoch_begin = monotime_now();
    return status;
}

/* ---- the end ---- */

void parallel_trainer_release(struct parallel_trainer *t)
{
    dist_optimizer_free(t->optimizer);
    t->optimizer = NULL;
    for (; t->local_count > 0; t->local_count--)
        rref_release(t->locals[t->local_count - 1]);
    for (; t->parameter_count > 0; t->parameter_count--)
        rref_release(t->parameters[t->parameter_count - 1]);
    for (int i = 0; i < JOB_LAYERS; i++) {
        rref_release(t->layers[i]);
        t->layers[i] = NULL;
    }
    for (uint32_t i = 0; i < t->trainers; i++) {
        rref_release(t->peers[i]);
        t->peers[i] = NULL;
    }
}

void parallel_trainer_close(struct parallel_trainer *t, const char *why)
{
    checkpoint_saver_close(&t->saver);
    parallel_values_close(t);
    tape_free(t->tape);
    parallel_close(&t->base, why);
    backend_close(t->backend);
    parallel_data_close(&t->data);
    hidden_state_close(&t->hidden);
    free(t->tokens);
    free(t->targets);
}
