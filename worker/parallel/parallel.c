/* The layers of a worker in a model-parallel job, opened bottom up and closed top down. */
#include "worker/parallel/parallel.h"

#include "worker/parallel/parallel_trainer.h"
#include "worker/parallel/parts.h"

static const struct rref_class *const classes[] = {
    &part_classes[JOB_LAYER_EMBEDDING],
    &part_classes[JOB_LAYER_LSTM],
    &part_classes[JOB_LAYER_DECODER],
    &dist_parameter_class,
    &dist_optimizer_class,
    &parallel_trainer_class,
};

void parallel_progress(void *arg)
{
    worker_beat(arg);
}

/* ---- sizes ---- */

/* Room for every activation and gradient of an iteration several times over: untouched pages cost nothing. A
 * text's vocabulary is not known before it is read, so it is taken to be large. */
size_t parallel_segment_bytes(const struct job *job)
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

static void limits(struct rpc_config *config, const struct roster *roster)
{
    enum { CALLS = 192 }; /* of the lead at its start: for each parameter a few */
    config->workers = roster_workers(roster);
    config->pending_max = CALLS + 8 * config->workers;
    config->incoming_max = CALLS + 16 * config->workers;
    config->rows_max = 1;
}

/* ---- telling ---- */

static struct control_status counts(const struct parallel *p)
{
    struct rref_counts references;
    struct dist_counts contexts;
    rrefs_counts(p->rrefs, &references);
    dist_counts(p->dist, &contexts);
    struct control_status status = {.objects = references.objects,
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
    const struct control_status now = counts(p);
    worker_report(CONTROL_STATUS, &now, sizeof now);
}

void parallel_answer_holdings(const struct parallel *p, struct rpc_request *request)
{
    parallel_report(p);
    rpc_reply(request, NULL);
}

static void handle_holdings(void *context, struct rpc_request *request, const struct rpc_message *message)
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
    {.method = METHOD_HOLDINGS, .callers = WIRE_ROLE_TRAINER, .handler = handle_holdings}};

enum status parallel_ask_holdings(const struct parallel *p, uint16_t worker, uint64_t epoch,
                                  struct error *error)
{
    const struct rpc_message message = {.args = {[HOLDINGS_EPOCH] = epoch}};
    struct future *answer = NULL;
    const enum status status =
        rpc_call(p->rpc, worker, METHOD_HOLDINGS, &message, MONOTIME_NEVER, &answer, error);
    future_release(answer);
    return status;
}

/* ---- opening ---- */

static enum status open_outbox(struct parallel *p, struct error *error)
{
    if (!p->roster.segments)
        return STATUS_OK;
    return segment_create(&p->outbox, p->worker->self.worker, parallel_segment_bytes(p->job), error);
}

static void taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct parallel *p = context;
    if (p->taken != NULL)
        p->taken(p, from, tag, rref);
    else
        rref_release(rref);
}

/* What stands on the rpc. */
static enum status open_layers(struct parallel *p, struct error *error)
{
    enum { OBJECTS_MAX = 160, REFERENCES_MAX = 512, PARTS = 4 };
    const uint32_t trainers = p->job->trainers.count;
    const struct rrefs_config references = {.rpc = p->rpc,
                                            .classes = classes,
                                            .class_count = sizeof classes / sizeof classes[0],
                                            .objects_max = OBJECTS_MAX,
                                            .references_max = REFERENCES_MAX + trainers,
                                            .context = p,
                                            .taken = taken};
    rpc_add_methods(p->rpc, methods, sizeof methods / sizeof methods[0], p);
    enum status status = rrefs_new(&p->rrefs, &references, error);
    if (status != STATUS_OK)
        return status;
    const struct dist_config config = {.rpc = p->rpc,
                                       .rrefs = p->rrefs,
                                       .outbox = p->outbox.data != NULL ? &p->outbox : NULL,
                                       .contexts_max = 2 * trainers + 2,
                                       .pieces_max = PARTS * (2 * trainers + 2),
                                       .progress = parallel_progress,
                                       .progress_context = p->worker};
    status = dist_new(&p->dist, &config, error);
    if (status == STATUS_OK)
        status = dist_owner_new(&p->owner, p->dist, error);
    return status == STATUS_OK ? worker_attach(p->worker, p->rpc) : status;
}

static struct rpc_config configuration(struct parallel *p, struct worker *worker, uint8_t roles[])
{
    p->worker = worker;
    p->job = &worker->job;
    p->roster = roster_of(p->job);
    roster_roles(&p->roster, roles);
    struct rpc_config config = {.worker = worker->self.worker,
                                .role = worker->self.role,
                                .incarnation = worker->self.incarnation,
                                .generation = worker->self.generation,
                                .roster = roles};
    limits(&config, &p->roster);
    return config;
}

static struct monotime patience(const struct parallel *p)
{
    return monotime_add_us(monotime_now(), (uint64_t)(p->job->supervise.hang_s * 1e6));
}

/* The servers below `count`, with their addresses. */
static void list_servers(const struct worker *worker, uint32_t count, struct rpc_server servers[],
                         char addresses[][CONTROL_ADDRESS_BYTES])
{
    for (uint32_t server = 0; server < count; server++) {
        worker_address(worker, (uint16_t)server, addresses[server]);
        servers[server] = (struct rpc_server){.worker = (uint16_t)server, .address = addresses[server]};
    }
}

/* A server reaches those below it over sessions that it dials. */
static enum status dial(struct parallel *p, struct error *error)
{
    struct worker *worker = p->worker;
    char addresses[JOB_SERVERS_MAX][CONTROL_ADDRESS_BYTES];
    struct rpc_server servers[JOB_SERVERS_MAX];
    const uint16_t number = worker->self.worker;
    while (number > 0 && !worker->connect && !worker->leave)
        worker_wait_order(worker);
    if (number == 0 || worker->leave)
        return STATUS_OK;
    list_servers(worker, number, servers, addresses);
    return rpc_dial(p->rpc, servers, number, patience(p), error);
}

enum status parallel_serve(struct parallel *p, struct worker *worker, struct error *error)
{
    uint8_t roles[ROSTER_WORKERS_MAX];
    char address[CONTROL_ADDRESS_BYTES];
    struct rpc_config config = configuration(p, worker, roles);
    enum status status = open_outbox(p, error);
    if (status != STATUS_OK)
        return status;
    config.peer_incarnation_max = worker->self.incarnation;
    config.welcome = worker->job_text;
    config.welcome_bytes = worker->job_bytes;
    config.outbox = p->outbox.data != NULL ? &p->outbox : NULL;
    worker_address(worker, worker->self.worker, address);
    status = rpc_serve(&p->rpc, &config, address, error);
    if (status == STATUS_OK)
        status = dial(p, error);
    return status == STATUS_OK ? open_layers(p, error) : status;
}

enum status parallel_join(struct parallel *p, struct worker *worker, struct error *error)
{
    uint8_t roles[ROSTER_WORKERS_MAX];
    char addresses[JOB_SERVERS_MAX][CONTROL_ADDRESS_BYTES];
    struct rpc_server servers[JOB_SERVERS_MAX];
    struct rpc_config config = configuration(p, worker, roles);
    enum status status = open_outbox(p, error);
    if (status != STATUS_OK)
        return status;
    config.outbox = p->outbox.data != NULL ? &p->outbox : NULL;
    list_servers(worker, p->roster.servers, servers, addresses);
    status = rpc_join(&p->rpc, &config, servers, p->roster.servers, patience(p), error);
    if (status == STATUS_OK)
        status = worker_read_welcome(worker, p->rpc, error);
    return status == STATUS_OK ? open_layers(p, error) : status;
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
        return error_set(error, status, "a server is gone");
    return status == STATUS_OK ? status : error_set(error, status, "the socket failed");
}

enum status parallel_finish(struct parallel *p, struct future *call, struct error *error)
{
    const enum status status = rpc_wait(p->rpc, call, error);
    future_release(call);
    return status;
}
