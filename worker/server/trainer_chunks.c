/* A model or a gradient in messages, where memory is not shared. The trainer's one thread; waits.
 *
 * All servers are read or written at once. A few chunks of each server are under way at a time, so that
 * neither end waits for the other's turn, and the queues stay far from their limits. */
#include "worker/server/trainer.h"

#include <string.h>

struct chunk {
    struct future *future; // NULL: not under way
    size_t first, count;   // elements of the image
};

/* The chunks to or from one server: those under way, and the elements left to send. */
struct lane {
    size_t next[2], end[2]; // elements; the parameters' range, then the statistics'
    struct chunk chunks[TRAINER_IN_FLIGHT];
};

struct transfer {
    struct trainer *trainer;
    bool push;
    uint64_t key; // version that is pulled; step that is pushed
    struct lane lanes[JOB_SERVERS_MAX];
};

enum status trainer_turn(struct trainer *t, struct monotime until, struct error *error)
{
    const enum status status = rpc_turn(t->rpc, until);
    return status == STATUS_OK ? STATUS_OK : error_set(error, status, "a parameter server is gone");
}

static struct lane transfer_lane_of(const struct shard *shard)
{
    return (struct lane){.next = {shard->first, shard->statistics_first},
                         .end = {shard->end, shard->statistics_end}};
}

/* The next piece of either range; false when all have been sent. */
static bool lane_cut_chunk(struct lane *lane, struct chunk *chunk)
{
    for (uint32_t range = 0; range < 2; range++) {
        const size_t left = lane->end[range] - lane->next[range];
        if (left == 0)
            continue;
        chunk->first = lane->next[range];
        chunk->count =
            left < PARAMETER_SERVER_CHUNK_ELEMENTS_MAX ? left : PARAMETER_SERVER_CHUNK_ELEMENTS_MAX;
        lane->next[range] += chunk->count;
        return true;
    }
    return false;
}

static enum status lane_send_chunk(struct transfer *transfer, uint32_t server, struct chunk *chunk,
                                   struct error *error)
{
    struct trainer *t = transfer->trainer;
    struct rpc_message push = {
        .args = {[CHUNK_STEP] = transfer->key, [CHUNK_FIRST] = chunk->first},
        .tensor_count = 1,
        .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {(uint32_t)chunk->count}}},
        .data = {t->image + chunk->first},
    };
    struct rpc_message pull = {.args = {[GET_VERSION] = transfer->key,
                                        [GET_FIRST] = chunk->first,
                                        [GET_COUNT] = chunk->count,
                                        [GET_FINGERPRINT] = t->fingerprint}};
    return rpc_call_async(t->rpc, (uint16_t)server, transfer->push ? METHOD_PUSH_CHUNK : METHOD_GET_MODEL,
                          transfer->push ? &push : &pull, MONOTIME_NEVER, &chunk->future, error);
}

/* Stores a pulled chunk, after checking it like any message. */
static enum status transfer_receive(struct transfer *transfer, uint32_t server, const struct chunk *chunk,
                                    struct error *error)
{
    const struct rpc_message *m = future_value(chunk->future);
    const struct wire_tensor *tensor = &m->tensors[0];
    if (m->tensor_count != 1 || tensor->dtype != WIRE_F32 || tensor->rank != 1 ||
        tensor->dims[0] != chunk->count || m->args[MODEL_VERSION] != transfer->key)
        return error_set(
            error, STATUS_INTERNAL,
            "server %u's answer about version %llu from element %zu on: expected %zu floats of it", server,
            (unsigned long long)transfer->key, chunk->first, chunk->count);
    memcpy(transfer->trainer->model + chunk->first, m->data[0], chunk->count * sizeof(float));
    return STATUS_OK;
}

/* Takes the chunk's answer if it is there, and sends another in its place. */
static enum status transfer_renew_chunk(struct transfer *transfer, uint32_t server, struct chunk *chunk,
                                        struct error *error)
{
    enum status status = STATUS_OK;
    if (chunk->future != NULL) {
        if (!future_done(chunk->future))
            return STATUS_OK;
        status = rpc_wait(transfer->trainer->rpc, chunk->future, error);
        if (status == STATUS_OK && !transfer->push)
            status = transfer_receive(transfer, server, chunk, error);
        future_release(chunk->future);
        chunk->future = NULL;
    }
    if (status != STATUS_OK || !lane_cut_chunk(&transfer->lanes[server], chunk))
        return status;
    return lane_send_chunk(transfer, server, chunk, error);
}

/* Renews every chunk that can be renewed. *under_way: how many are under way then. */
static enum status transfer_renew_all(struct transfer *transfer, uint32_t *under_way, struct error *error)
{
    enum status status = STATUS_OK;
    *under_way = 0;
    for (uint32_t server = 0; server < transfer->trainer->servers; server++)
        for (uint32_t i = 0; i < TRAINER_IN_FLIGHT && status == STATUS_OK; i++) {
            struct chunk *chunk = &transfer->lanes[server].chunks[i];
            status = transfer_renew_chunk(transfer, server, chunk, error);
            *under_way += chunk->future != NULL;
        }
    return status;
}

enum status trainer_transfer(struct trainer *t, bool push, uint64_t key, struct error *error)
{
    struct transfer transfer = {.trainer = t, .push = push, .key = key};
    uint32_t under_way;
    for (uint32_t server = 0; server < t->servers; server++)
        if (t->travels[server] && (!push || !t->at.counted[server]))
            transfer.lanes[server] = transfer_lane_of(&t->shards[server]);
    enum status status = transfer_renew_all(&transfer, &under_way, error);
    while (status == STATUS_OK && under_way > 0) {
        status = trainer_turn(t, MONOTIME_NEVER, error);
        if (status == STATUS_OK)
            status = transfer_renew_all(&transfer, &under_way, error);
    }
    for (uint32_t server = 0; server < t->servers; server++)
        for (uint32_t i = 0; i < TRAINER_IN_FLIGHT; i++)
            future_release(transfer.lanes[server].chunks[i].future);
    return status;
}
