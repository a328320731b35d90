/* The role trainer: takes a batch and the newest model, computes a gradient, hands it to the servers. One
 * thread.
 *
 * The loop: evaluate if asked to, fetch the step's batch, compute, push and pull. A handler never waits, so
 * it only stores a server's request for an evaluation. A step is a function of the job's seed, the step's
 * number, this trainer's number and the model: a step that is repeated after a death is the same.
 *
 * All memory of a step is allocated at the start.
 *
 * ---- The memories ----
 *     image    P + B float32: a model or a gradient as it is sent (shards.h)
 *     slot     a place for one image in a server's segment. A trainer reads parameters there.
 *     outbox   the image that the gradient is written to. Servers that share memory read it.
 *     inbox    the image that a version is pulled into, from far servers
 *     far      of a server: elements travel to and from it in messages
 *     net      the network that computes
 *
 * In place: with transport "shared" and a backend that computes in the host's memory, the net's parameters
 * lie on slots and inbox, and its gradients on the outbox. Nothing is copied.
 *
 * Otherwise the net has memory of its own. The image is canonical, and one memory is inbox and outbox: the
 * version is copied before the gradient is written. In the host's memory, the net's entries may have layouts,
 * and are copied one by one. A device's are canonical, in slabs like the image's: a server's shard is one
 * copy, and so is the whole gradient. Both are asynchronous, from and to pinned memory. A step waits once,
 * for the loss, the gradient and the statistics. */
#include "kernels/base/log.h"
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "kernels/tape/tape.h"
#include "worker/data/loader.h"
#include "worker/data_parallel/bfloat16.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/data_parallel/shards.h"
#include "worker/device.h"
#include "worker/model/classifier.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

enum { TRAINER_IN_FLIGHT = 8 }; /* chunks on their way to or from one server */

/* A version of the model, and where each server's shard of it lies. */
struct trainer_version {
    uint64_t version, step; /* this trainer's next step */
    uint64_t offset[JOB_SERVERS_MAX];
    bool counted[JOB_SERVERS_MAX]; /* this server has made the next version already, with this step in it */
    bool last;                     /* PULL_LAST, of any server */
};

struct trainer_chunk {
    struct future *future; /* NULL: not under way */
    size_t first, count;   /* elements of the image */
};

/* The chunks to or from one server: those under way, and the elements left to send. */
struct trainer_lane {
    size_t first[2], end[2]; /* of the parameters' range, then of the statistics' */
    struct trainer_chunk chunks[TRAINER_IN_FLIGHT];
};

/* The elements that travel: at any time those of one version or of one contribution. */
struct trainer_transfer {
    bool push;
    uint64_t key; /* version that is pulled; step that is pushed */
    size_t ready; /* push: parameters from this element on are final */
    bool whole;   /* push: so is the whole image, with the statistics */
    struct trainer_lane lanes[JOB_SERVERS_MAX];
};

struct trainer {
    struct worker *worker;
    const struct job *job; /* WELCOME's */
    struct rpc *rpc;
    uint32_t servers, number;     /* of the job's; which of its trainers this is, from 0 */
    bool over;                    /* no more steps: the job has made its last update, or is ending */
    struct rpc_request *evaluate; /* METHOD_EVALUATE, until it is answered */

    struct trainer_version at; /* the version given last */
    struct evaluator evaluator;
    struct loader *loader;
    const struct batch *batch; /* of at.step; NULL: not there yet */

    /* ---- the memories ---- */
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct classifier *classifier;
    struct tape *tape;
    bool in_place, on_device; /* neither: the net's memory is the host's, and its own */
    bool unpinned;            /* memory could not be pinned; the log says so */
    uint64_t fingerprint;     /* of the image */
    struct shard shards[JOB_SERVERS_MAX];
    bool travels[JOB_SERVERS_MAX];         /* the server is far (image_travels) */
    uint32_t far;                          /* how many servers are far */
    struct segment slots[JOB_SERVERS_MAX]; /* of the servers that are not far */
    const float *images[JOB_SERVERS_MAX];  /* where each server's shard of the version lies: slot or inbox */
    bool pinned[JOB_SERVERS_MAX][JOB_TRAINERS_MAX + 1]; /* by server and slot */
    size_t parameters, elements;                        /* P, P + B */
    struct segment outbox;                              /* or memory of this process alone */
    float *outbox_image;                                /* (elements) in `outbox` */
    struct segment inbox;
    float *inbox_image; /* (elements) in `inbox`, or outbox_image; only the far servers' ranges are used */
    uint32_t given;     /* entries from this index on have their gradient in the outbox */

    /* ---- chunks ---- */
    struct trainer_transfer transfer;
    struct segment rounding; /* not mapped: gradients travel as float32 */
    float *cut_off;    /* (P) in `rounding`: what bfloat16_round has cut off; only the far servers' ranges are
                          used */
    uint16_t *rounded; /* (PARAMETER_SERVER_CHUNK_ELEMENTS_MAX) */
};

enum { RANGE_PARAMETERS, RANGE_STATISTICS };

/* One turn of the rpc. STATUS_PEER_DIED: a server is gone; STATUS_IO: a socket has failed. */
static enum status trainer_turn(struct trainer *t, struct monotime until, struct error *error)
{
    const enum status status = rpc_turn(t->rpc, until);
    return status == STATUS_OK
               ? STATUS_OK
               : error_set(error, status, "%s",
                           status == STATUS_PEER_DIED ? "a parameter server is gone" : "a socket has failed");
}

/* ---- chunks: which elements ----
 * All far servers are read or written at once. A few chunks of each server are under way at a time, so that
 * neither end waits for the other's turn, and the queues stay far from their limits. A version is pulled from
 * its first element on. A contribution is pushed from its last element down, because a backward pass finishes
 * the last entries first. */

static struct trainer_lane lane_of_shard(const struct shard *shard)
{
    return (struct trainer_lane){.first = {shard->first, shard->statistics_first},
                                 .end = {shard->end, shard->statistics_end}};
}

/* The next elements to pull. False: all have been asked for. */
static bool lane_cut_first(struct trainer_lane *lane, struct trainer_chunk *chunk)
{
    const uint32_t range = lane->first[RANGE_PARAMETERS] == lane->end[RANGE_PARAMETERS];
    const size_t left = lane->end[range] - lane->first[range];
    chunk->first = lane->first[range];
    chunk->count = left < PARAMETER_SERVER_CHUNK_ELEMENTS_MAX ? left : PARAMETER_SERVER_CHUNK_ELEMENTS_MAX;
    lane->first[range] += chunk->count;
    return chunk->count > 0;
}

/* The next elements to push: a whole chunk of final values, or the last ones; the statistics come last.
 * False: none can leave yet, or all have left. */
static bool lane_cut_last(struct trainer_lane *lane, const struct trainer_transfer *transfer,
                          struct trainer_chunk *chunk)
{
    const uint32_t range = lane->first[RANGE_PARAMETERS] == lane->end[RANGE_PARAMETERS];
    const size_t left = lane->end[range] - lane->first[range];
    if (range == RANGE_STATISTICS && !transfer->whole)
        return false;
    chunk->count = left < PARAMETER_SERVER_CHUNK_ELEMENTS_MAX ? left : PARAMETER_SERVER_CHUNK_ELEMENTS_MAX;
    chunk->first = lane->end[range] - chunk->count;
    if (chunk->count == 0 || chunk->first < transfer->ready)
        return false;
    lane->end[range] = chunk->first;
    return true;
}

/* ---- chunks: rounding ---- */

/* Memory for gradients that travel as bfloat16, where any do. */
static enum status trainer_open_rounding(struct trainer *t, struct error *error)
{
    if (t->far == 0 || t->job->precision != JOB_PRECISION_BFLOAT16)
        return STATUS_OK;
    t->rounded = malloc(PARAMETER_SERVER_CHUNK_ELEMENTS_MAX * sizeof *t->rounded);
    if (t->rounded == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a chunk of %d elements",
                         PARAMETER_SERVER_CHUNK_ELEMENTS_MAX);
    const enum status status =
        image_map(&t->rounding, t->parameters * sizeof *t->cut_off, "the gradients' errors", error);
    t->cut_off = (float *)(void *)t->rounding.data;
    return status;
}

/* ---- chunks: under way ---- */

static enum status chunk_pull(struct trainer *t, uint32_t server, struct trainer_chunk *chunk,
                              struct error *error)
{
    const struct rpc_message pull = {.args = {[GET_VERSION] = t->transfer.key,
                                              [GET_FIRST] = chunk->first,
                                              [GET_COUNT] = chunk->count,
                                              [GET_FINGERPRINT] = t->fingerprint}};
    return rpc_call_async(t->rpc, (uint16_t)server, METHOD_GET_MODEL, &pull, MONOTIME_NEVER, &chunk->future,
                          error);
}

/* Gradients are rounded where the job says so; statistics, from P on, are not. A step rounds each element
 * once.
 */
static enum status chunk_push(struct trainer *t, uint32_t server, struct trainer_chunk *chunk,
                              struct error *error)
{
    struct rpc_message push = {
        .args = {[CHUNK_STEP] = t->transfer.key, [CHUNK_FIRST] = chunk->first},
        .tensor_count = 1,
        .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {(uint32_t)chunk->count}}},
        .data = {t->outbox_image + chunk->first},
    };
    if (t->rounded != NULL && chunk->first < t->parameters) {
        bfloat16_round(t->rounded, t->outbox_image + chunk->first, t->cut_off + chunk->first, chunk->count);
        push.tensors[0].dtype = WIRE_BF16;
        push.data[0] = t->rounded;
    }
    return rpc_call_async(t->rpc, (uint16_t)server, METHOD_PUSH_CHUNK, &push, MONOTIME_NEVER, &chunk->future,
                          error);
}

/* Stores a pulled chunk, after checking it like any message. */
static enum status chunk_receive(struct trainer *t, uint32_t server, const struct trainer_chunk *chunk,
                                 struct error *error)
{
    const struct rpc_message *m = future_value(chunk->future);
    const struct wire_tensor *tensor = &m->tensors[0];
    if (m->tensor_count != 1 || tensor->dtype != WIRE_F32 || tensor->rank != 1 ||
        tensor->dims[0] != chunk->count || m->args[MODEL_VERSION] != t->transfer.key)
        return error_set(
            error, STATUS_INTERNAL,
            "server %u, version %llu, element %zu: expected %zu floats, got %u tensors of version %llu",
            server, (unsigned long long)t->transfer.key, chunk->first, chunk->count,
            (unsigned)m->tensor_count, (unsigned long long)m->args[MODEL_VERSION]);
    memcpy(t->inbox_image + chunk->first, m->data[0], chunk->count * sizeof(float));
    return STATUS_OK;
}

/* Takes the chunk's answer if it is there, and sends another in its place. */
static enum status chunk_renew(struct trainer *t, uint32_t server, struct trainer_chunk *chunk,
                               struct error *error)
{
    struct trainer_transfer *transfer = &t->transfer;
    struct trainer_lane *lane = &transfer->lanes[server];
    enum status status = STATUS_OK;
    if (chunk->future != NULL) {
        if (!future_done(chunk->future))
            return STATUS_OK;
        status = rpc_wait(t->rpc, chunk->future, error);
        if (status == STATUS_OK && !transfer->push)
            status = chunk_receive(t, server, chunk, error);
        future_release(chunk->future);
        chunk->future = NULL;
    }
    if (status != STATUS_OK)
        return status;
    if (transfer->push)
        return lane_cut_last(lane, transfer, chunk) ? chunk_push(t, server, chunk, error) : STATUS_OK;
    return lane_cut_first(lane, chunk) ? chunk_pull(t, server, chunk, error) : STATUS_OK;
}

/* ---- chunks: transfers ---- */

/* To or from all far servers at once: a version into the inbox, or the outbox as a contribution. */
static void transfer_begin(struct trainer *t, bool push, uint64_t key)
{
    struct trainer_transfer *transfer = &t->transfer;
    *transfer = (struct trainer_transfer){.push = push, .key = key, .ready = push ? t->elements : 0};
    for (uint32_t server = 0; server < t->servers; server++)
        if (t->travels[server] && (!push || !t->at.counted[server]))
            transfer->lanes[server] = lane_of_shard(&t->shards[server]);
}

/* Renews every chunk that can be renewed. *under_way: how many are under way then. */
static enum status transfer_renew(struct trainer *t, uint32_t *under_way, struct error *error)
{
    enum status status = STATUS_OK;
    *under_way = 0;
    for (uint32_t server = 0; server < t->servers; server++)
        for (uint32_t i = 0; i < TRAINER_IN_FLIGHT && status == STATUS_OK; i++) {
            struct trainer_chunk *chunk = &t->transfer.lanes[server].chunks[i];
            status = chunk_renew(t, server, chunk, error);
            *under_way += chunk->future != NULL;
        }
    return status;
}

static void transfer_end(struct trainer *t)
{
    for (uint32_t server = 0; server < t->servers; server++)
        for (uint32_t i = 0; i < TRAINER_IN_FLIGHT; i++)
            future_release(t->transfer.lanes[server].chunks[i].future);
    t->transfer = (struct trainer_transfer){0};
}

/* Waits until nothing is left. */
static enum status transfer_finish(struct trainer *t, struct error *error)
{
    uint32_t under_way;
    enum status status = transfer_renew(t, &under_way, error);
    while (status == STATUS_OK && under_way > 0) {
        status = trainer_turn(t, MONOTIME_NEVER, error);
        if (status == STATUS_OK)
            status = transfer_renew(t, &under_way, error);
    }
    transfer_end(t);
    return status;
}

/* Sends the chunks that can leave without waiting. Parameters from element `ready` on are final. */
static enum status trainer_push_from(struct trainer *t, size_t ready, struct error *error)
{
    uint32_t under_way;
    t->transfer.ready = ready;
    enum status status = trainer_turn(t, monotime_now(), error);
    if (status == STATUS_OK)
        status = transfer_renew(t, &under_way, error);
    if (status != STATUS_OK)
        transfer_end(t);
    return status;
}

/* Waits until the servers have all of the image. */
static enum status trainer_push_finish(struct trainer *t, struct error *error)
{
    t->transfer.ready = 0;
    t->transfer.whole = true;
    return transfer_finish(t, error);
}

/* ---- the gradient to the servers ----
 * A backward pass finishes the entries roughly from the last to the first. Between two of its nodes,
 * trainer_progress finds how far down all entries are complete. It copies them to the outbox unless they are
 * in place, and sends their chunks, which travel while the pass goes on. A ResNet uses each parameter once,
 * so an entry is complete once it is written.
 *
 * In two cases the gradient leaves after the pass. If all servers are on this host, sending would take
 * processors from the pass. If the device has memory of its own, the gradient is one copy behind the pass. */

/* Moves `given` down over the entries that are complete. */
static enum status give_entries(struct trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    for (; t->given > 0 && status == STATUS_OK; t->given--) {
        const struct parameter *entry = params_at(t->params, t->given - 1);
        if (entry->kind != PARAMETER_TRAINED)
            continue;
        const struct tensor *gradient = gradients_written(t->gradients, entry);
        if (gradient == NULL)
            break;
        if (!t->in_place)
            status =
                backend_download(t->backend, gradient, DTYPE_F32, t->outbox_image + entry->offset, error);
    }
    return status;
}

/* A device's gradient goes to the outbox as a whole, by the next wait. */
static enum status give_slab(struct trainer *t, struct error *error)
{
    enum status status = gradients_complete(t->gradients, error);
    if (status == STATUS_OK)
        status = backend_download_later(t->backend, gradients_slab(t->gradients), DTYPE_F32, t->outbox_image,
                                        error);
    return status;
}

/* The element from which on all parameters are given. */
static size_t given_element(const struct trainer *t)
{
    for (uint32_t i = t->given; i < params_count(t->params); i++) {
        const struct parameter *entry = params_at(t->params, i);
        if (entry->kind == PARAMETER_TRAINED)
            return entry->offset;
    }
    return t->parameters;
}

/* Whether chunks leave during the backward pass: a server runs on another host, and the backend computes in
 * the host's memory. */
static bool gives_early(const struct trainer *t)
{
    bool elsewhere = false;
    for (uint32_t server = 0; server < t->servers; server++)
        elsewhere = elsewhere || rpc_is_far(t->rpc, (uint16_t)server);
    return elsewhere && !t->on_device;
}

/* The backward pass of the step begins. Until trainer_model_give, trainer_progress may send the chunks that
 * are complete. */
static void trainer_model_begin_giving(struct trainer *t)
{
    t->given = params_count(t->params);
    if (t->far > 0)
        transfer_begin(t, true, t->at.step);
}

/* Between operations on a tape: beats, fails the tape when the job is ending, and sends what is complete of
 * the gradient. `arg`: the trainer. */
static void trainer_progress(void *arg)
{
    struct trainer *t = arg;
    struct error error = {0};
    worker_beat(t->worker);
    worker_read_orders(t->worker);
    if (t->worker->leave || t->worker->hurry) {
        tape_fail(t->tape, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    if (!t->transfer.push || !gives_early(t))
        return;
    enum status status = give_entries(t, &error);
    if (status == STATUS_OK)
        status = trainer_push_from(t, given_element(t), &error);
    if (status != STATUS_OK)
        tape_fail(t->tape, status, "%s", error.text);
}

/* Gives the step's gradient to the servers, and the statistics at outbox_image + P. A device's are in the
 * outbox already. Returns when the far servers have all chunks. */
static enum status trainer_model_give(struct trainer *t, struct error *error)
{
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    enum status status = gradients_complete(t->gradients, error);
    if (status == STATUS_OK && !t->on_device)
        status = give_entries(t, error);
    profile_leave(before);
    return status == STATUS_OK && t->far > 0 ? trainer_push_finish(t, error) : status;
}

/* ---- the memories: opening ---- */

/* The net's parameters and gradients, without memory in place, else with memory of their own. */
static enum status model_open_net(struct trainer *t, struct error *error)
{
    enum status status = params_new(&t->params, t->backend, error);
    if (status == STATUS_OK)
        status = tape_new(&t->tape, t->backend, error);
    if (status != STATUS_OK)
        return status;
    tape_on_progress(t->tape, trainer_progress, t);
    status = classifier_new(&t->classifier, t->job, t->params, error);
    if (status == STATUS_OK && !t->in_place)
        status = classifier_build(t->classifier, t->tape, error);
    else if (status == STATUS_OK)
        status = params_lay_out(t->params, error);
    if (status == STATUS_OK && t->in_place && image_reordered(t->job))
        status = classifier_reorder(t->classifier, t->tape, error);
    if (status != STATUS_OK)
        return status;
    t->fingerprint = t->in_place ? params_fingerprint(t->params) : params_fingerprint_canonical(t->params);
    return t->in_place ? gradients_new_unplaced(&t->gradients, t->params, error)
                       : gradients_new(&t->gradients, t->params, error);
}

/* Pins memory that steps copy from or to. It must not be given back before the backend is closed. The log has
 * the first failure. */
static void trainer_pin(struct trainer *t, const void *memory, size_t bytes)
{
    struct error why;
    if (t->unpinned || backend_pin(t->backend, memory, bytes, &why) == STATUS_OK)
        return;
    t->unpinned = true;
    log_warning("%s; copies to and from the device take longer", why.text);
}

static void model_find_far_servers(struct trainer *t)
{
    for (uint32_t server = 0; server < t->servers; server++) {
        t->travels[server] = image_travels(t->job, t->rpc, (uint16_t)server);
        t->far += t->travels[server];
    }
}

/* Opens the inbox. Each version overwrites the one before. */
static enum status model_open_inbox(struct trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    if (t->in_place && t->far > 0)
        status = image_map(&t->inbox, image_bytes(t->params), "a version", error);
    if (status != STATUS_OK)
        return status;
    t->inbox_image = t->in_place ? (float *)(void *)t->inbox.data : t->outbox_image;
    for (uint32_t server = 0; server < t->servers; server++)
        if (t->travels[server])
            t->images[server] = t->inbox_image;
    return STATUS_OK;
}

/* Opens the outbox; in place, places the gradients there. Then opens the inbox. */
static enum status model_open_outbox(struct trainer *t, struct error *error)
{
    t->parameters = params_elements(t->params);
    t->elements = image_elements(t->params);
    enum status status = shards_of(t->shards, t->params, t->servers, error);
    if (status == STATUS_OK)
        status = t->far < t->servers
                     ? segment_create(&t->outbox, t->worker->self.worker, image_bytes(t->params), error)
                     : image_map(&t->outbox, image_bytes(t->params), "an image", error);
    if (status != STATUS_OK)
        return status;
    t->outbox_image = (float *)(void *)t->outbox.data;
    if (t->in_place)
        gradients_place(t->gradients, t->outbox_image);
    trainer_pin(t, t->outbox.data, t->outbox.bytes);
    status = model_open_inbox(t, error);
    return status == STATUS_OK ? trainer_open_rounding(t, error) : status;
}

/* Opens the device and the model without a call of a server. The sessions are open before. */
static enum status trainer_model_open(struct trainer *t, struct error *error)
{
    enum status status = device_open(&t->backend, t->job, t->job->trainers.threads, t->number == 0, error);
    if (status != STATUS_OK)
        return status;
    t->on_device = !t->backend->ops->host;
    t->in_place = t->job->transport == JOB_TRANSPORT_SHARED && !t->on_device;
    model_find_far_servers(t);
    status = model_open_net(t, error);
    return status == STATUS_OK ? model_open_outbox(t, error) : status;
}

static void trainer_model_close(struct trainer *t)
{
    tape_free(t->tape);
    gradients_free(t->gradients);
    classifier_free(t->classifier);
    params_free(t->params);
    backend_close(t->backend);
    for (uint32_t server = 0; server < t->servers; server++)
        segment_detach(&t->slots[server]);
    segment_detach(&t->outbox);
    segment_detach(&t->inbox);
    segment_detach(&t->rounding);
    free(t->rounded);
}

/* ---- the memories: taking a version ---- */

/* Finds the shard of each server that shares memory, in that server's slot. */
static enum status model_find_shards(struct trainer *t, const struct trainer_version *version,
                                     struct error *error)
{
    const size_t bytes = image_bytes(t->params);
    for (uint32_t server = 0; server < t->servers; server++) {
        struct segment *slots = &t->slots[server];
        if (t->travels[server])
            continue;
        enum status status =
            slots->data == NULL ? segment_attach(slots, (uint16_t)server, bytes, error) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
        t->images[server] = segment_at(slots, version->offset[server], bytes);
        if (t->images[server] == NULL)
            return error_set(
                error, STATUS_INTERNAL,
                "server %u says that version %llu lies at %llu: expected a place for %zu bytes in "
                "a segment of %zu",
                server, (unsigned long long)version->version, (unsigned long long)version->offset[server],
                bytes, slots->bytes);
    }
    return STATUS_OK;
}

/* The net's parameters and statistics lie on the images from now on. */
static void model_place(struct trainer *t)
{
    for (uint32_t server = 0; server < t->servers; server++)
        params_place(t->params, t->shards[server].entry_first, t->shards[server].entry_end,
                     t->images[server]);
    params_place_buffers(t->params, t->images[0] + t->parameters);
}

/* Copies the entries of a server's shard to the net. */
static enum status model_write_entries(struct trainer *t, uint32_t server, struct error *error)
{
    const struct shard *shard = &t->shards[server];
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(t->params) && status == STATUS_OK; i++) {
        struct parameter *entry = params_at(t->params, i);
        const bool within = i >= shard->entry_first && i < shard->entry_end;
        const float *image = t->images[server] + entry->offset;
        if (entry->kind == PARAMETER_TRAINED && within)
            status = params_write(t->params, entry, DTYPE_F32, image, error);
        else if (entry->kind == PARAMETER_BUFFER && server == 0)
            status = params_write(t->params, entry, DTYPE_F32, image + t->parameters, error);
    }
    return status;
}

/* Copies `count` values to the device's slab, from element `first` on. */
static enum status slab_write(struct trainer *t, const struct tensor *slab, size_t first, size_t count,
                              const float *values, struct error *error)
{
    struct tensor part = tensor_part(slab, first, SHAPE1((uint32_t)count));
    return count > 0 ? backend_upload(t->backend, &part, DTYPE_F32, values, error) : STATUS_OK;
}

/* Pins a server's shard of a slot, once. The slot's other pages have no memory. */
static void slot_pin(struct trainer *t, uint32_t server)
{
    const struct segment *slots = &t->slots[server];
    const struct shard *shard = &t->shards[server];
    const size_t end = shard->end == shard->statistics_first ? shard->statistics_end : shard->end;
    const size_t slot =
        (size_t)((const unsigned char *)t->images[server] - slots->data) / image_bytes(t->params);
    if (slot > JOB_TRAINERS_MAX || t->pinned[server][slot])
        return;
    t->pinned[server][slot] = true;
    segment_set_writable(slots, true);
    trainer_pin(t, t->images[server] + shard->first, (end - shard->first) * sizeof(float));
    segment_set_writable(slots, false);
}

/* Copies a server's shard to the net as a whole, and the statistics behind it. */
static enum status model_write_shard(struct trainer *t, uint32_t server, struct error *error)
{
    const struct shard *shard = &t->shards[server];
    const float *image = t->images[server];
    if (!t->travels[server])
        slot_pin(t, server);
    enum status status = slab_write(t, params_slab(t->params), shard->first, shard->end - shard->first,
                                    image + shard->first, error);
    if (status == STATUS_OK)
        status = slab_write(t, params_buffers(t->params), 0, shard->statistics_end - shard->statistics_first,
                            image + shard->statistics_first, error);
    return status;
}

/* Computes with this version from now on. */
static enum status trainer_model_take(struct trainer *t, const struct trainer_version *version,
                                      struct error *error)
{
    enum status status = backend_wait(t->backend, error); // for copies of the version before
    if (status == STATUS_OK)
        status = model_find_shards(t, version, error);
    if (status == STATUS_OK && t->far > 0) {
        transfer_begin(t, false, version->version);
        status = transfer_finish(t, error);
    }
    if (status == STATUS_OK && t->in_place)
        model_place(t);
    for (uint32_t server = 0; server < t->servers && status == STATUS_OK && !t->in_place; server++)
        status = t->on_device ? model_write_shard(t, server, error) : model_write_entries(t, server, error);
    return status;
}

static void trainer_remember_evaluate(void *context, struct rpc_request *request,
                                      const struct rpc_message *message)
{
    struct trainer *t = context;
    const uint64_t share = message->args[EVALUATE_SHARE], shares = message->args[EVALUATE_SHARES];
    if (shares != t->job->trainers.count || share >= shares)
        rpc_reject(request, "share %llu of %llu to evaluate: the job has %u trainers",
                   (unsigned long long)share, (unsigned long long)shares, t->job->trainers.count);
    else if (t->worker->hurry || t->worker->leave)
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
    else if (t->evaluate != NULL)
        rpc_fail(request, STATUS_BUSY, "an evaluation is asked for already");
    else
        t->evaluate = request;
}

static const struct rpc_method methods[] = {
    {.method = METHOD_EVALUATE, .callers = WIRE_ROLE_PSERVER, .handler = trainer_remember_evaluate},
};

/* ---- evaluation ---- */

/* Between batches: beats, and serves the messages that have arrived. */
static void trainer_evaluation_progress(void *arg)
{
    struct trainer *t = arg;
    trainer_progress(t);
    rpc_turn(t->rpc, monotime_now()); // the next call reports a lost server
}

/* Only a job with one server can ask for a version other than the present one: several servers go in step. */
static enum status trainer_run_evaluation(struct trainer *t, const uint64_t *args, struct evaluation *sums,
                                          struct error *error)
{
    enum status status = STATUS_OK;
    if (args[EVALUATE_VERSION] != t->at.version) {
        const struct trainer_version asked = {.version = args[EVALUATE_VERSION],
                                              .offset = {args[EVALUATE_OFFSET]}};
        status = trainer_model_take(t, &asked, error);
    }
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    status = evaluator_run(&t->evaluator, (uint32_t)args[EVALUATE_SHARE], sums, error);
    profile_leave(before);
    return status;
}

/* Answers the request. The params may be on another version afterwards. */
static enum status trainer_evaluate(struct trainer *t, struct error *error)
{
    uint64_t args[WIRE_ARGS];
    struct rpc_message reply = {0};
    struct evaluation sums;
    memcpy(args, rpc_request_message(t->evaluate)->args, sizeof args);
    enum status status = trainer_run_evaluation(t, args, &sums, error);
    struct rpc_request *request = t->evaluate;
    t->evaluate = NULL;
    if (status != STATUS_OK) {
        rpc_fail(request, status, "trainer %u, evaluation of version %llu: %s", t->worker->self.worker,
                 (unsigned long long)args[EVALUATE_VERSION], error->text);
        return status;
    }
    memcpy(&reply.args[EVALUATED_LOSS], &sums.loss_sum, sizeof sums.loss_sum);
    reply.args[EVALUATED_CORRECT] = sums.correct;
    reply.args[EVALUATED_SAMPLES] = sums.samples;
    rpc_reply(request, &reply);
    return STATUS_OK;
}

/* ---- calls to all servers ---- */

/* Merges the servers' answers: each server's offset; the lowest version and step. *agree: all name one
 * version. */
static void trainer_collect_answers(struct trainer_version *answer, struct future *const *calls,
                                    uint32_t servers, bool *agree)
{
    *answer = (struct trainer_version){.version = UINT64_MAX, .step = UINT64_MAX};
    *agree = true;
    for (uint32_t server = 0; server < servers; server++) {
        const uint64_t *args = future_value(calls[server])->args;
        *agree = *agree && (server == 0 || args[MODEL_VERSION] == answer->version);
        if (args[MODEL_VERSION] < answer->version)
            answer->version = args[MODEL_VERSION];
        if (args[MODEL_STEP] < answer->step)
            answer->step = args[MODEL_STEP];
        answer->offset[server] = args[MODEL_OFFSET];
        answer->last = answer->last || (args[MODEL_FLAGS] & PULL_LAST) != 0;
    }
    for (uint32_t server = 0; server < servers; server++)
        answer->counted[server] = future_value(calls[server])->args[MODEL_STEP] > answer->step;
}

/* Asks one server. A server that has counted the step already is asked for the model instead. */
static enum status trainer_ask_server(struct trainer *t, uint16_t server, enum wire_method method,
                                      const struct rpc_message *message, struct future **out,
                                      struct error *error)
{
    const struct rpc_message newest = {
        .args = {[GET_VERSION] = PARAMETER_SERVER_NEWEST, [GET_FINGERPRINT] = t->fingerprint}};
    if (method == METHOD_PUSH_PULL && t->at.counted[server])
        return rpc_call_async(t->rpc, server, METHOD_GET_MODEL, &newest, MONOTIME_NEVER, out, error);
    return rpc_call_async(t->rpc, server, method, message, MONOTIME_NEVER, out, error);
}

/* True: an evaluation was asked for, on the present version or with one server, so it can run now. */
static bool trainer_can_evaluate(const struct trainer *t)
{
    return t->evaluate != NULL &&
           (t->servers == 1 || rpc_request_message(t->evaluate)->args[EVALUATE_VERSION] == t->at.version);
}

static bool trainer_calls_are_done(struct future *const *calls, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!future_done(calls[i]))
            return false;
    return true;
}

/* The same call to every server at once. Requests are served meanwhile. While a contribution waits for its
 * round this includes an evaluation: the server may keep its answer back until the evaluation is done. */
static enum status trainer_ask_all(struct trainer *t, enum wire_method method,
                                   const struct rpc_message *message, struct trainer_version *answer,
                                   bool *agree, struct error *error)
{
    struct future *calls[JOB_SERVERS_MAX];
    enum status status = STATUS_OK;
    uint32_t count = 0;
    while (count < t->servers && status == STATUS_OK) {
        status = trainer_ask_server(t, (uint16_t)count, method, message, &calls[count], error);
        count += status == STATUS_OK;
    }
    while (status == STATUS_OK && !trainer_calls_are_done(calls, count)) {
        status = trainer_turn(t, MONOTIME_NEVER, error);
        if (status == STATUS_OK && method == METHOD_PUSH_PULL && trainer_can_evaluate(t) &&
            !trainer_calls_are_done(calls, count))
            status = trainer_evaluate(t, error);
    }
    if (count == t->servers && trainer_calls_are_done(calls, count)) { // a turn that fails may have told why
        status = STATUS_OK;
        for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
            status = rpc_wait(t->rpc, calls[i], error);
    }
    if (status == STATUS_OK)
        trainer_collect_answers(answer, calls, count, agree);
    while (count > 0)
        future_release(calls[--count]);
    return status;
}

static enum status trainer_go_on_from(struct trainer *t, const struct trainer_version *answer,
                                      struct error *error)
{
    t->at = *answer;
    t->over = t->over || answer->last;
    return trainer_model_take(t, answer, error);
}

/* Gets the newest model and the step to go on with. Where a predecessor died between sending its step to one
 * server and to the next, one of them has made a version for which the other still waits. Then
 * the trainer goes on from the older version, which all servers still have, and computes its step again for
 * the servers that lack it. */
static enum status trainer_get_model(struct trainer *t, struct error *error)
{
    struct rpc_message question = {
        .args = {[GET_VERSION] = PARAMETER_SERVER_NEWEST, [GET_FINGERPRINT] = t->fingerprint}};
    struct trainer_version answer;
    bool agree;
    enum status status = trainer_ask_all(t, METHOD_GET_MODEL, &question, &answer, &agree, error);
    if (status == STATUS_OK && !agree) {
        question.args[GET_VERSION] = answer.version;
        status = trainer_ask_all(t, METHOD_GET_MODEL, &question, &answer, &agree, error);
    }
    return status == STATUS_OK ? trainer_go_on_from(t, &answer, error) : status;
}

static enum status trainer_push_pull(struct trainer *t, double loss, struct error *error)
{
    struct rpc_message push = {.args = {[PUSH_STEP] = t->at.step,
                                        [PUSH_BASE] = t->at.version,
                                        [PUSH_BYTES] = t->elements * sizeof(float)}};
    struct trainer_version answer;
    bool agree;
    memcpy(&push.args[PUSH_LOSS], &loss, sizeof loss);
    enum status status = trainer_ask_all(t, METHOD_PUSH_PULL, &push, &answer, &agree, error);
    if (status != STATUS_OK)
        return status;
    if (!agree || answer.step != t->at.step + 1)
        return error_set(error, STATUS_INTERNAL,
                         "the servers answered step %llu with step %llu of version %llu%s: expected the next "
                         "step, and one version",
                         (unsigned long long)t->at.step, (unsigned long long)answer.step,
                         (unsigned long long)answer.version, agree ? "" : " and others");
    t->worker->work++;
    return trainer_go_on_from(t, &answer, error);
}

/* ---- a step ---- */

/* Loss, gradient and statistics of the batch, computed into the places that trainer_model_give reads. */
static enum status trainer_compute(struct trainer *t, double *loss, struct error *error)
{
    const struct job *job = t->job;
    trainer_pin(t, t->batch->images,
                (size_t)job->trainers.batch * job->data.channels * job->data.size * job->data.size *
                    sizeof *t->batch->images);
    tape_begin(t->tape, TAPE_TRAIN, t->gradients);
    struct variable *variable = classifier_loss(t->classifier, t->tape, t->batch);
    tape_loss(t->tape, variable, loss);
    trainer_model_begin_giving(t);
    tape_backward(t->tape, variable);
    enum status status =
        classifier_statistics(t->classifier, t->tape, t->outbox_image + t->parameters, error);
    if (status == STATUS_OK && t->on_device)
        status = give_slab(t, error);
    const enum status tape = tape_finish(t->tape, error);
    return tape != STATUS_OK ? tape : status;
}

static enum status trainer_step(struct trainer *t, struct error *error)
{
    struct error why = {0};
    double loss = 0;
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    enum status status = trainer_compute(t, &loss, &why);
    profile_leave(before);
    if (status != STATUS_OK)
        return error_set(error, status, "trainer %u, step %llu: %s", t->worker->self.worker,
                         (unsigned long long)t->at.step, why.text);
    t->batch = NULL;
    status = trainer_model_give(t, error);
    if (status == STATUS_OK)
        status = trainer_push_pull(t, loss, error);
    t->worker->evaluation = (struct control_share){0}; // an update has followed: no trainer evaluates
    return status;
}

/* Waits at most 20 ms for the step's batch. */
static enum status trainer_fetch_batch(struct trainer *t, struct error *error)
{
    enum { WAIT_US = 20000 };
    enum status status = trainer_turn(t, monotime_now(), error);
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_DATA);
    status = loader_next(t->loader, monotime_add_us(monotime_now(), WAIT_US), &t->batch, error);
    profile_leave(before);
    if (status != STATUS_OK) {
        t->batch = NULL;
        return status == STATUS_AGAIN ? STATUS_OK : status;
    }
    if (t->batch->step != t->at.step)
        return error_set(error, STATUS_INTERNAL, "the loader gave the batch of step %llu, expected %llu",
                         (unsigned long long)t->batch->step, (unsigned long long)t->at.step);
    return STATUS_OK;
}

/* ---- the role ---- */

static enum status trainer_advance(struct trainer *t, struct error *error)
{
    if (trainer_can_evaluate(t)) {
        const uint64_t version = rpc_request_message(t->evaluate)->args[EVALUATE_VERSION];
        const enum status status = trainer_evaluate(t, error);
        return status == STATUS_OK && version != t->at.version && !t->over ? trainer_get_model(t, error)
                                                                           : status;
    }
    if (t->over)
        return trainer_turn(t, MONOTIME_NEVER, error);
    return t->batch == NULL ? trainer_fetch_batch(t, error) : trainer_step(t, error);
}

static enum status trainer_open_rpc(struct trainer *t, struct error *error)
{
    struct worker *worker = t->worker;
    t->servers = worker->job.server.count;
    t->number = worker->self.worker - t->servers;
    const struct rpc_config config = {.pending_max = t->servers * TRAINER_IN_FLIGHT,
                                      .incoming_max = 4,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = t};
    enum status status = worker_open_rpc(worker, &config, &t->rpc, error);
    if (status == STATUS_OK)
        status = worker_connect(worker, t->rpc, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, t->rpc);
    return status == STATUS_OK ? worker_read_welcome(worker, t->rpc, error) : status;
}

static enum status trainer_open(struct trainer *t, struct worker *worker, struct error *error)
{
    t->worker = worker;
    t->job = &worker->job;
    enum status status = trainer_open_rpc(t, error);
    if (status == STATUS_OK)
        status = trainer_model_open(t, error);
    if (status == STATUS_OK)
        status = trainer_get_model(t, error);
    if (status != STATUS_OK)
        return status;
    t->evaluator = (struct evaluator){.job = t->job,
                                      .classifier = t->classifier,
                                      .tape = t->tape,
                                      .progress = trainer_evaluation_progress,
                                      .progress_context = t,
                                      .counts = &worker->evaluation};
    const struct loader_config config = {.job = t->job,
                                         .split = DATASET_TRAIN,
                                         .share = t->number,
                                         .shares = t->job->trainers.count,
                                         .first_step = t->at.step};
    return loader_new(&t->loader, &config, error);
}

static void trainer_drop_evaluation(struct trainer *t, const char *why)
{
    if (t->evaluate != NULL)
        rpc_fail(t->evaluate, STATUS_SHUTDOWN, "%s", why);
    t->evaluate = NULL;
}

/* A trainer that fails leaves an evaluation unanswered: BYE tells the server to ask the successor. */
static void trainer_close(struct trainer *t, bool failed, const char *why)
{
    enum { LINGER_MS = 200 };
    if (!failed)
        trainer_drop_evaluation(t, why);
    rpc_free(t->rpc, why, LINGER_MS);
    t->worker->rpc = NULL;
    evaluator_close(&t->evaluator);
    trainer_model_close(t);
    loader_free(t->loader); // its batches are pinned until the backend is closed
}

enum status trainer_run(struct worker *worker, struct error *error)
{
    struct trainer trainer = {0};
    while (!worker->connect && !worker->leave)
        worker_wait_order(worker);
    if (worker->leave)
        return STATUS_OK;
    enum status status = trainer_open(&trainer, worker, error);
    if (status == STATUS_OK)
        worker_report(CONTROL_READY, NULL, 0);
    for (;;) {
        if (status == STATUS_SHUTDOWN) { // no step is needed any more; an evaluation may be
            if (worker->hurry || worker->leave)
                trainer_drop_evaluation(&trainer, "the job is ending");
            trainer.over = true;
            status = STATUS_OK;
        }
        if (status != STATUS_OK || worker->leave)
            break;
        status = trainer_advance(&trainer, error);
    }
    if (worker->leave && status == STATUS_PEER_DIED)
        status = STATUS_OK; // the servers were told to leave, too
    const bool failed = status != STATUS_OK;
    trainer_close(&trainer, failed, failed ? error->text : WORKER_FINISHED);
    return status;
}
