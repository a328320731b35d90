/* Sends a gradient and receives a model in messages, where memory is not shared. The trainer's one thread
 * runs this.
 *
 * All far servers are read or written at once. A few chunks of each server are under way at a time, so that
 * neither end waits for the other's turn, and the queues stay far from their limits. A version is pulled from
 * its first element on. A contribution is pushed from its last element down, because a backward pass finishes
 * the last entries first. */
#include "worker/data_parallel/trainer.h"

#include "worker/data_parallel/bfloat16.h"

#include <stdlib.h>
#include <string.h>

enum { RANGE_PARAMETERS, RANGE_STATISTICS };

enum status trainer_turn(struct trainer *t, struct monotime until, struct error *error)
{
    const enum status status = rpc_turn(t->rpc, until);
    return status == STATUS_OK ? STATUS_OK : error_set(error, status, "a parameter server is gone");
}

/* ---- which elements ---- */

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

/* ---- rounding ---- */

enum status trainer_open_rounding(struct trainer *t, struct error *error)
{
    if (t->far == 0 || t->job->precision != JOB_PRECISION_BFLOAT16)
        return STATUS_OK;
    t->rounded = malloc(PARAMETER_SERVER_CHUNK_ELEMENTS_MAX * sizeof *t->rounded);
    if (t->rounded == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a chunk of %d elements",
                         PARAMETER_SERVER_CHUNK_ELEMENTS_MAX);
    const enum status status =
        image_map(&t->errors, t->parameters * sizeof *t->kept, "the gradients' errors", error);
    t->kept = (float *)(void *)t->errors.data;
    return status;
}

void trainer_close_rounding(struct trainer *t)
{
    free(t->rounded);
    segment_detach(&t->errors);
}

/* ---- chunks under way ---- */

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
        bfloat16_round(t->rounded, t->outbox_image + chunk->first, t->kept + chunk->first, chunk->count);
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
            "server %u's answer about version %llu from element %zu on: expected %zu floats of it", server,
            (unsigned long long)t->transfer.key, chunk->first, chunk->count);
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

/* ---- transfers ---- */

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

enum status trainer_pull(struct trainer *t, uint64_t version, struct error *error)
{
    transfer_begin(t, false, version);
    return transfer_finish(t, error);
}

void trainer_push_begin(struct trainer *t)
{
    transfer_begin(t, true, t->at.step);
}

enum status trainer_push_from(struct trainer *t, size_t ready, struct error *error)
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

enum status trainer_push_finish(struct trainer *t, struct error *error)
{
    t->transfer.ready = 0;
    t->transfer.whole = true;
    return transfer_finish(t, error);
}
