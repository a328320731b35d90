/* Opens and closes what every worker of a model-parallel job has: segment, rpc, references, contexts. Reports
 * its holdings, and is the role pserver, which needs no more. The worker's thread runs this. */
#include "worker/model_parallel/parallel.h"

#include "worker/model_parallel/layer.h"

#include <string.h>

/* ---- sizes ---- */

/* The bytes of a worker's segment: room for all activations and gradients of an iteration, several times:
 * untouched pages cost nothing. A text's vocabulary is unknown before the text is read; a large one is
 * assumed. */
static size_t parallel_segment_bytes(const struct job *job)
{
    enum { TOKENS_OF_TEXT = 1 << 17, TIMES = 12 };
    const double low = 256.0 * (1 << 20), high = 64.0 * (1 << 30);
    const uint32_t evaluation = job->evaluation.batch, training = job->trainers.batch;
    const double columns = evaluation > training ? evaluation : training;
    const double tokens = job->rnn.tokens > 0 ? job->rnn.tokens : TOKENS_OF_TEXT;
    const double wide = (double)job->rnn.embedding + 12.0 * job->rnn.hidden * job->rnn.layers;
    const double contexts = job->trainers.count + 1.0;
    const double bytes =
        low + TIMES * contexts * columns * job->sequence.steps * (tokens + wide) * sizeof(float);
    return (size_t)(bytes < high ? bytes : high);
}

/* ---- holdings ---- */

static struct control_status holdings_of(const struct parallel *p)
{
    struct rref_counts references;
    struct dist_counts contexts;
    rrefs_counts(p->rrefs, &references);
    dist_counts(p->dist, &contexts);
    struct control_status status = {.worker = p->worker->self.worker,
                                    .objects = references.objects,
                                    .references = references.references,
                                    .users = references.users,
                                    .contexts = contexts.contexts,
                                    .pieces = contexts.pieces};
    for (uint32_t peer = 0; peer < roster_workers(&p->roster); peer++)
        if (peer != p->worker->self.worker)
            status.users_of[peer] = rrefs_of_peer(p->rrefs, (uint16_t)peer);
    return status;
}

void parallel_report(const struct parallel *p)
{
    const struct control_status status = holdings_of(p);
    worker_report(CONTROL_STATUS, &status, sizeof status);
}

_Static_assert(offsetof(struct control_status, users_of) ==
                   offsetof(struct control_status, objects) + HOLDINGS_COUNTS * sizeof(uint32_t),
               "the counts, then the users: as an answer has them");

/* The tensor of an answer: what stands in a status behind the worker's number. */
static struct wire_tensor holdings_tensor(const struct parallel *p)
{
    return (struct wire_tensor){
        .dtype = WIRE_U32, .rank = 1, .dims = {HOLDINGS_COUNTS + roster_workers(&p->roster)}};
}

enum status parallel_report_of(const struct parallel *p, uint16_t number, const struct rpc_message *answer,
                               struct error *error)
{
    const struct wire_tensor tensor = holdings_tensor(p);
    struct control_status status = {.worker = number};
    if (answer->tensor_count != 1 || memcmp(&answer->tensors[0], &tensor, sizeof tensor) != 0)
        return error_set(error, STATUS_INVALID,
                         "worker %u has not answered what it holds: expected uint32[%u]", number,
                         tensor.dims[0]);
    memcpy(&status.objects, answer->data[0], wire_tensor_bytes(&tensor));
    worker_report(CONTROL_STATUS, &status, sizeof status);
    return STATUS_OK;
}

void parallel_answer_holdings(const struct parallel *p, struct rpc_request *request)
{
    const struct control_status status = holdings_of(p);
    rpc_reply(request, &(struct rpc_message){
                           .tensor_count = 1, .tensors = {holdings_tensor(p)}, .data = {&status.objects}});
}

static void parallel_handle_holdings(void *context, struct rpc_request *request,
                                     const struct rpc_message *message)
{
    struct parallel *p = context;
    if (rpc_request_source(request) != p->roster.lead)
        rpc_reject(request, "worker %u asks what is held here: expected worker %u to",
                   rpc_request_source(request), p->roster.lead);
    else if (p->asked_holdings != NULL)
        p->asked_holdings(p, message->args[HOLDINGS_EPOCH], request);
    else
        parallel_answer_holdings(p, request);
}

static const struct rpc_method methods[] = {
    {.method = METHOD_HOLDINGS, .callers = WIRE_ROLE_TRAINER, .handler = parallel_handle_holdings}};

/* ---- opening ---- */

static void parallel_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct parallel *p = context;
    if (p->taken != NULL)
        p->taken(p, from, tag, rref);
    else
        rref_release(rref);
}

/* The classes of the objects that workers create or give each other. */
static const struct rref_class *const classes[] = {
    &layer_classes[JOB_LAYER_EMBEDDING],
    &layer_classes[JOB_LAYER_LSTM],
    &layer_classes[JOB_LAYER_DECODER],
    &dist_parameter_class,
    &dist_optimizer_class,
    &parallel_trainer_class,
};

/* Opens references and contexts on the rpc. */
static enum status parallel_open_objects(struct parallel *p, struct error *error)
{
    enum { OBJECTS_MAX = 160, REFERENCES_MAX = 512, PARTS = 4 };
    const uint32_t trainers = p->job->trainers.count;
    const struct rrefs_config references = {.rpc = p->rpc,
                                            .classes = classes,
                                            .class_count = sizeof classes / sizeof classes[0],
                                            .objects_max = OBJECTS_MAX,
                                            .references_max = REFERENCES_MAX + trainers,
                                            .context = p,
                                            .taken = parallel_taken};
    rpc_add_methods(p->rpc, methods, sizeof methods / sizeof methods[0], p);
    enum status status = rrefs_new(&p->rrefs, &references, error);
    if (status != STATUS_OK)
        return status;
    const struct dist_config config = {.rpc = p->rpc,
                                       .rrefs = p->rrefs,
                                       .outbox = p->outbox.data != NULL ? &p->outbox : NULL,
                                       .contexts_max = 2 * trainers + 2,
                                       .pieces_max = PARTS * (2 * trainers + 2),
                                       .progress = worker_progress,
                                       .progress_context = p->worker};
    status = dist_new(&p->dist, &config, error);
    if (status == STATUS_OK)
        status = dist_owner_new(&p->owner, p->dist, error);
    return status == STATUS_OK ? worker_attach(p->worker, p->rpc) : status;
}

/* Waits for a session with every other worker. */
static enum status parallel_meet_all(struct parallel *p, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < roster_workers(&p->roster) && status == STATUS_OK && !p->worker->leave; i++) {
        while (!rpc_reaches(p->rpc, (uint16_t)i) && status == STATUS_OK && !p->worker->leave)
            status = rpc_is_gone(p->rpc, (uint16_t)i)
                         ? error_set(error, STATUS_PEER_DIED, "worker %u is gone", i)
                         : parallel_turn(p, MONOTIME_NEVER, error);
    }
    return status;
}

static void parallel_note_finished(void *context, uint16_t worker, enum status why, const char *text)
{
    struct parallel *p = context;
    (void)worker;
    (void)why;
    p->peer_finished = p->peer_finished || strcmp(text, WORKER_FINISHED) == 0;
}

void parallel_read_orders_after_end(struct parallel *p)
{
    const struct worker *worker = p->worker;
    const uint64_t patience_us = (uint64_t)(p->job->supervise.hang_s * 1e6);
    const struct monotime until = monotime_add_us(monotime_now(), patience_us);
    worker_read_orders(p->worker);
    while (p->peer_finished && !worker->leave && !worker->hurry && monotime_before(monotime_now(), until))
        worker_wait_order(p->worker);
}

enum status parallel_open(struct parallel *p, struct worker *worker, struct error *error)
{
    enum { CALLS = 192 }; /* the lead's at its start, a few for each parameter */
    p->worker = worker;
    p->job = &worker->job;
    p->roster = roster_of(p->job);
    const uint32_t workers = roster_workers(&p->roster);
    enum status status = STATUS_OK;
    if (p->roster.segments)
        status = segment_create(&p->outbox, worker->self.worker, parallel_segment_bytes(p->job), error);
    struct rpc_config config = {.pending_max = CALLS + 8 * workers,
                                .incoming_max = CALLS + 16 * workers,
                                .outbox = p->outbox.data != NULL ? &p->outbox : NULL,
                                .left = parallel_note_finished,
                                .context = p};
    if (status == STATUS_OK)
        status = worker_open_rpc(worker, &config, &p->rpc, error);
    if (status == STATUS_OK)
        status = worker_connect(worker, p->rpc, error);
    if (status == STATUS_OK && !worker->leave)
        status = worker_read_welcome(worker, p->rpc, error);
    if (status == STATUS_OK && !worker->leave)
        status = parallel_open_objects(p, error);
    return status == STATUS_OK && !worker->leave ? parallel_meet_all(p, error) : status;
}

void parallel_close(struct parallel *p, const char *why)
{
    enum { LINGER_MS = 200 };
    dist_free(p->dist);
    rrefs_free(p->rrefs);
    dist_owner_free(p->owner);
    rpc_free(p->rpc, why, LINGER_MS);
    p->worker->rpc = NULL;
    segment_detach(&p->outbox);
}

/* ---- turning ---- */

enum status parallel_turn(struct parallel *p, struct monotime until, struct error *error)
{
    const enum status status = rpc_turn(p->rpc, until);
    if (status == STATUS_PEER_DIED)
        return error_set(error, status, "a worker of the job is gone");
    return status == STATUS_OK ? status : error_set(error, status, "the socket failed");
}

/* ---- the role pserver: it holds the objects that trainers make on it, and does nothing else ---- */

enum status parallel_server_run(struct worker *worker, struct error *error)
{
    struct parallel server = {0};
    enum status status = parallel_open(&server, worker, error);
    if (status == STATUS_OK && !worker->leave)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && !worker->leave) {
        status = parallel_turn(&server, MONOTIME_NEVER, error);
        if (status == STATUS_PEER_DIED)
            status = STATUS_OK; /* another worker's end is the supervisor's to act on */
    }
    if (status == STATUS_OK && server.dist != NULL)
        parallel_report(&server);
    parallel_close(&server, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
