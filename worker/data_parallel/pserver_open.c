/* Opens and closes a pserver: its memory, its methods, its checkpoint.
 *
 * Memory is sparse: slots, velocity and inboxes are mapped as whole images, so that an element has one index
 * everywhere. Only the server's own range is ever written and gets pages. */
#include "kernels/params/gradients.h"
#include "worker/data_parallel/pserver.h"

#include "kernels/base/thread.h"

static const struct rpc_method methods[] = {
    {.method = METHOD_GET_MODEL, .callers = WIRE_ROLE_TRAINER, .handler = pserver_get_model},
    {.method = METHOD_PUSH_PULL, .callers = WIRE_ROLE_TRAINER, .handler = pserver_push_pull},
    {.method = METHOD_SAVE_SHARD, .callers = WIRE_ROLE_PSERVER, .handler = pserver_save_shard},
};

/* One of them, by /transport/precision. With bfloat16, chunks come in either type: the handler looks. */
static const struct rpc_method float32_chunks[] = {
    {.method = METHOD_PUSH_CHUNK,
     .callers = WIRE_ROLE_TRAINER,
     .tensor_count = 1,
     .tensors = {{.dtype = WIRE_F32, .rank = 1}},
     .handler = pserver_push_chunk},
};
static const struct rpc_method bfloat16_chunks[] = {
    {.method = METHOD_PUSH_CHUNK,
     .callers = WIRE_ROLE_TRAINER,
     .any_tensors = true,
     .handler = pserver_push_chunk},
};

static void pserver_joined(void *context, uint16_t worker)
{
    struct pserver *p = context;
    if (worker < p->servers)
        return;
    struct pserver_seat *seat = &p->seats[worker - p->servers];
    seat->joined = true;
    seat->travels = image_travels(p->job, p->rpc, worker);
}

/* ---- memory ---- */

static enum status pserver_reorder_params(struct pserver *p, struct classifier *classifier,
                                          struct error *error)
{
    struct tape *tape;
    enum status status = tape_new(&tape, p->backend, error);
    if (status != STATUS_OK)
        return status;
    tape_on_progress(tape, worker_progress, p->worker);
    status = classifier_reorder(classifier, tape, error);
    tape_free(tape);
    return status;
}

static enum status pserver_open_shards(struct pserver *p, struct error *error)
{
    struct shard shards[JOB_SERVERS_MAX];
    const enum status status = shards_of(shards, p->params, p->servers, error);
    if (status != STATUS_OK)
        return status;
    p->shard = shards[p->number];
    for (uint32_t i = 0; i < p->servers; i++)
        p->ranges[i] = (struct params_range){shards[i].entry_first, shards[i].entry_end, i == 0};
    return STATUS_OK;
}

/* Names, shapes and layouts, but no memory yet. Layouts depend on the number of threads with which trainers
 * compute, so the backend has as many. */
static enum status pserver_open_params(struct pserver *p, struct error *error)
{
    const struct backend_settings settings = {.threads = p->job->trainers.threads};
    struct classifier *classifier = NULL;
    enum status status = backend_load(&p->backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = params_new(&p->params, p->backend, error);
    if (status == STATUS_OK)
        status = classifier_new(&classifier, p->job, p->params, error);
    if (status == STATUS_OK)
        status = params_lay_out(p->params, error);
    if (status == STATUS_OK && image_reordered(p->job))
        status = pserver_reorder_params(p, classifier, error);
    classifier_free(classifier);
    if (status != STATUS_OK)
        return status;
    p->fingerprint = params_fingerprint(p->params);
    p->parameters = params_elements(p->params);
    p->elements = image_elements(p->params);
    p->image_bytes = image_bytes(p->params);
    return pserver_open_shards(p, error);
}

static enum status pserver_open_slots(struct pserver *p, struct error *error)
{
    const size_t bytes = p->round.slots * p->image_bytes;
    if (p->job->transport == JOB_TRANSPORT_SHARED)
        return segment_create(&p->segment, p->worker->self.worker, bytes, error);
    return image_map(&p->segment, bytes, "the model", error);
}

static enum status pserver_open_velocity(struct pserver *p, struct error *error)
{
    if (p->job->optimizer.momentum == 0)
        return STATUS_OK;
    const enum status status =
        image_map(&p->velocity, 2 * p->parameters * sizeof(float), "the momentum", error);
    return status == STATUS_OK ? gradients_new_unplaced(&p->momentum, p->params, error) : status;
}

/* ---- the first version ---- */

/* Draws this server's entries; buffers and counters belong to server 0. */
static enum status pserver_draw_entries(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(p->params) && status == STATUS_OK; i++) {
        bool trained = params_at(p->params, i)->kind == PARAMETER_TRAINED;
        bool within = i >= p->shard.entry_first && i < p->shard.entry_end;
        if (trained ? within : p->number == 0)
            status = params_begin(p->params, p->job->seed, i, i + 1, error);
        worker_beat(p->worker);
    }
    return status;
}

static enum status pserver_fill_first(struct pserver *p, struct error *error)
{
    const struct checkpoint_values values = pserver_checkpoint_values(p);
    pserver_place(p, p->begin_version);
    if (worker_resumes(p->worker))
        return checkpoint_load(worker_resume_path(p->worker), &values, error);
    if (p->job->init.has_path)
        return checkpoint_load_model(path_of(p->job->init.path), &values, error);
    return pserver_draw_entries(p, error);
}

/* The checkpoint's trainers go on with their own next steps. One that it does not know was added to the job:
 * it begins where the foremost of them is. */
static void pserver_fit_steps(const struct pserver *p, struct checkpoint_counters *counters)
{
    uint64_t foremost = 0;
    for (uint32_t i = 0; i < counters->trainers; i++)
        foremost = counters->steps[i] > foremost ? counters->steps[i] : foremost;
    for (uint32_t i = counters->trainers; i < p->trainers; i++)
        counters->steps[i] = foremost;
}

/* The job's first counters: zero, or those of a checkpoint that the supervisor has checked. Its trainers are
 * those of the job file, and perhaps some that were added. */
static enum status pserver_read_counters(struct pserver *p, struct checkpoint_counters *counters,
                                         struct error *error)
{
    *counters = (struct checkpoint_counters){.trainers = p->trainers};
    if (!worker_resumes(p->worker))
        return STATUS_OK;
    const struct path resume = worker_resume_path(p->worker);
    const enum status status = checkpoint_facts(resume, counters, NULL, error);
    if (status == STATUS_OK && counters->trainers < p->job->trainers.count)
        return error_set(error, STATUS_INVALID, "%.300s comes from a job with %u trainers: expected %u",
                         resume.text, counters->trainers, p->job->trainers.count);
    if (status == STATUS_OK)
        pserver_fit_steps(p, counters);
    return status;
}

static enum status pserver_open_round(struct pserver *p, struct error *error)
{
    struct dataset_info info;
    struct checkpoint_counters counters;
    enum status status = dataset_probe(&info, p->job, error);
    if (status == STATUS_OK)
        status = schedule_of(&p->schedule, p->job, &info, error);
    if (status == STATUS_OK)
        status = pserver_read_counters(p, &counters, error);
    if (status != STATUS_OK)
        return status;
    p->evaluation_samples = info.evaluation;
    p->last_version = p->schedule.updates;
    p->begin_version = counters.update;
    p->late_before = counters.late;
    p->epoch.loss_sum = counters.epoch_loss;
    round_open(&p->round, p->job, counters.update, counters.steps);
    return pserver_open_slots(p, error);
}

/* Under `all` every trainer waits while an update is made, and the servers of a job make theirs at about the
 * same time; under the other rules most trainers compute meanwhile. */
static uint32_t pserver_update_threads(const struct pserver *p)
{
    const uint32_t processors = processors_count();
    if (p->job->server.round.name != JOB_ROUND_ALL || processors < p->servers)
        return 1;
    return processors / p->servers;
}

/* ---- sockets ---- */

static enum status pserver_open_sessions(struct pserver *p, struct error *error)
{
    const uint32_t workers = p->servers + p->trainers;
    const struct rpc_config config = {.pending_max = workers,
                                      .incoming_max = 2 * workers + 16,
                                      .rows_max = PARAMETER_SERVER_CHUNK_ELEMENTS_MAX,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = p,
                                      .joined = pserver_joined,
                                      .left = pserver_left};
    const bool is_rounded = p->job->precision == JOB_PRECISION_BFLOAT16;
    const enum status status = worker_open_rpc(p->worker, &config, &p->rpc, error);
    if (status != STATUS_OK)
        return status;
    rpc_add_methods(p->rpc, is_rounded ? bfloat16_chunks : float32_chunks, 1, p);
    return worker_connect(p->worker, p->rpc, error);
}

/* ---- all of it ---- */

enum status pserver_open(struct pserver *p, struct worker *worker, struct error *error)
{
    static enum status (*const steps[])(struct pserver *, struct error *) = {
        pserver_open_params, pserver_open_velocity, pserver_open_round,
        pserver_fill_first,  pserver_open_sessions, pserver_checkpoint_open,
    };
    p->worker = worker;
    p->job = &worker->job;
    p->number = worker->self.worker;
    p->servers = p->job->server.count;
    p->trainers = job_trainers(p->job);
    p->threads = pserver_update_threads(p);
    for (uint32_t i = 0; i < p->trainers; i++)
        p->seats[i] = (struct pserver_seat){.worker = (uint16_t)(p->servers + i), .inbox.step = UINT64_MAX};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        enum status status = steps[i](p, error);
        if (status != STATUS_OK)
            return status;
        worker_beat(worker);
    }
    p->epoch.begin = p->last_update = monotime_now();
    if (p->number == 0 && schedule_ends_epoch(&p->schedule, p->begin_version))
        pserver_epoch_end(p); /* a resumed run reports it again: the log knows whether it has it */
    return worker_attach(worker, p->rpc);
}

void pserver_close(struct pserver *p, const char *why)
{
    enum { LINGER_MS = 200 };
    pserver_checkpoint_close(p);
    pserver_epoch_release(p);
    rpc_free(p->rpc, why, LINGER_MS);
    p->worker->rpc = NULL;
    for (uint32_t i = 0; i < p->trainers; i++)
        segment_detach(&p->seats[i].outbox);
    gradients_free(p->momentum);
    segment_detach(&p->velocity);
    segment_detach(&p->inboxes);
    segment_detach(&p->marks);
    params_free(p->params);
    backend_close(p->backend);
    segment_detach(&p->segment);
}
