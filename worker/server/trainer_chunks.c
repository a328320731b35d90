/* A model or a gradient in messages, where memory is not shared. The trainer's one thread; waits.
 *
 * All servers are read or written at once. A few chunks of each server are under way at a time, so that
 * neither end waits for the other's turn, and the queues stay far from their limits. */
#include "worker/server/trainer.h"

#include <string.h>

struct chunk {
    struct future *future;
    size_t first, count; // elements of the image
};

/* The chunks to or from one server: a ring of chunks under way, and the elements left to send. */
struct lane {
    size_t next[2], end[2]; // elements; the parameters' range, then the statistics'
    uint32_t oldest, count;
    struct chunk chunks[TRAINER_IN_FLIGHT];
};

struct transfer {
    struct trainer *trainer;
    bool push;
    uint64_t key; // version that is pulled; step that is pushed
    struct lane lanes[JOB_SERVERS_MAX];
};

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

static enum status transfer_fill_lane(struct transfer *transfer, uint32_t server, struct error *error)
{
    struct lane *lane = &transfer->lanes[server];
    enum status status = STATUS_OK;
    while (status == STATUS_OK && lane->count < TRAINER_IN_FLIGHT) {
        struct chunk *chunk = &lane->chunks[(lane->oldest + lane->count) % TRAINER_IN_FLIGHT];
        if (!lane_cut_chunk(lane, chunk))
            break;
        status = lane_send_chunk(transfer, server, chunk, error);
        lane->count += status == STATUS_OK;
    }
    return status;
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
    memcpy(transfer->trainer->image + chunk->first, m->data[0], chunk->count * sizeof(float));
    return STATUS_OK;
}

static enum status transfer_drain_lane(struct transfer *transfer, uint32_t server, struct error *error)
{
    struct lane *lane = &transfer->lanes[server];
    enum status status = STATUS_OK;
    while (status == STATUS_OK && lane->count > 0) {
        struct chunk *chunk = &lane->chunks[lane->oldest];
        if (!future_done(chunk->future))
            break;
        status = trainer_result(chunk->future, error);
        if (status == STATUS_OK && !transfer->push)
            status = transfer_receive(transfer, server, chunk, error);
        future_release(chunk->future);
        lane->oldest = (lane->oldest + 1) % TRAINER_IN_FLIGHT;
        lane->count--;
    }
    return status;
}

static void transfer_release_all(struct transfer *transfer)
{
    for (uint32_t server = 0; server < transfer->trainer->servers; server++) {
        struct lane *lane = &transfer->lanes[server];
        for (; lane->count > 0; lane->count--) {
            future_release(lane->chunks[lane->oldest].future);
            lane->oldest = (lane->oldest + 1) % TRAINER_IN_FLIGHT;
        }
    }
}

static enum status transfer_run(struct transfer *transfer, struct error *error)
{
    struct trainer *t = transfer->trainer;
    for (;;) {
        enum status status = STATUS_OK;
        uint32_t on_their_way = 0;
        for (uint32_t server = 0; server < t->servers && status == STATUS_OK; server++) {
            status = transfer_drain_lane(transfer, server, error);
            if (status == STATUS_OK)
                status = transfer_fill_lane(transfer, server, error);
            on_their_way += transfer->lanes[server].count;
        }
        if (status != STATUS_OK || on_their_way == 0)
            return status;
        status = trainer_turn(t, MONOTIME_NEVER, error);
        if (status != STATUS_OK)
            return status;
    }
}

static enum status transfer_image(struct trainer *t, bool push, uint64_t key, struct error *error)
{
    struct transfer transfer = {.trainer = t, .push = push, .key = key};
    for (uint32_t server = 0; server < t->servers; server++)
        if (!push || !t->at.counted[server])
            transfer.lanes[server] = transfer_lane_of(&t->shards[server]);
    enum status status = transfer_run(&transfer, error);
    transfer_release_all(&transfer);
    return status;
}

enum status trainer_chunks_pull(struct trainer *t, uint64_t version, struct error *error)
{
    return transfer_image(t, false, version, error);
}

enum status trainer_chunks_push(struct trainer *t, uint64_t step, struct error *error)
{
    return transfer_image(t, true, step, error);
}
