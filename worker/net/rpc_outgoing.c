/* Building, sending and holding messages. Thread: the owner of the rpc. */
#include "worker/net/rpc_outgoing.h"

#include "worker/net/segment.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rest of a body that has begun to leave. */
struct leaving_body {
    struct wire_header header; /* of the next piece */
    uint32_t first;            /* where `bytes` begin in the body */
    bool has_piece;
    struct endpoint_message piece; /* the next one, when it has been built */
    uint8_t bytes[];
};

struct held {
    struct held *next;
    struct endpoint *way; /* of a farewell */
    bool is_answer;       /* else a request */
    struct endpoint_message frames;
    struct leaving_body *leaving; /* leaves ahead of the frames; or NULL */
};

static const struct rpc_message no_value;

/* ---- messages that wait, and queues of them ---- */

/* Moves the frames into an object. NULL: no memory. */
static struct held *held_take(struct outgoing *outgoing, struct endpoint_message *frames)
{
    struct held *held = outgoing->spare;
    if (held != NULL)
        outgoing->spare = held->next;
    else
        held = malloc(sizeof *held);
    if (held == NULL)
        return NULL;
    *held = (struct held){0};
    endpoint_move(&held->frames, frames);
    return held;
}

/* Its frames have been sent, moved or released. */
static void held_give_back(struct outgoing *outgoing, struct held *held)
{
    if (held->leaving != NULL && held->leaving->has_piece)
        endpoint_release(&held->leaving->piece);
    free(held->leaving);
    held->next = outgoing->spare;
    outgoing->spare = held;
}

static void queue_push(struct held_queue *queue, struct held *held)
{
    held->next = NULL;
    *(queue->first == NULL ? &queue->first : &queue->last->next) = held;
    queue->last = held;
    queue->count++;
}

static struct held *queue_pop(struct held_queue *queue)
{
    struct held *first = queue->first;
    queue->first = first->next;
    queue->count--;
    return first;
}

static void queue_drop(struct outgoing *outgoing, struct held_queue *queue)
{
    while (queue->first != NULL) {
        struct held *first = queue_pop(queue);
        endpoint_release(&first->frames);
        held_give_back(outgoing, first);
    }
}

enum status outgoing_init(struct outgoing *outgoing, struct rpc_common *common)
{
    outgoing->common = common;
    outgoing->lanes = calloc(common->config.workers, sizeof *outgoing->lanes);
    for (uint32_t i = 0; i < common->config.workers; i++) {
        struct held *held = calloc(1, sizeof *held);
        if (held == NULL)
            return STATUS_NO_MEMORY;
        held->next = outgoing->spare;
        outgoing->spare = held;
    }
    return outgoing->lanes == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

void outgoing_fini(struct outgoing *outgoing)
{
    queue_drop(outgoing, &outgoing->own);
    queue_drop(outgoing, &outgoing->farewells);
    for (uint32_t i = 0; outgoing->lanes != NULL && i < outgoing->common->config.workers; i++)
        queue_drop(outgoing, &outgoing->lanes[i].held);
    while (outgoing->spare != NULL) {
        struct held *next = outgoing->spare->next;
        free(outgoing->spare);
        outgoing->spare = next;
    }
    free(outgoing->lanes);
}

/* ---- lanes ---- */

void outgoing_open(struct outgoing *outgoing, uint16_t worker, struct endpoint *way, uint32_t peer,
                   bool lends)
{
    outgoing->lanes[worker] = (struct lane){.way = way, .peer = peer, .lends = lends};
}

static bool lane_is_own(const struct lane *lane)
{
    return lane->way == NULL;
}

static void lane_lose(struct outgoing *outgoing, struct lane *lane)
{
    assert(!lane_is_own(lane));
    outgoing->lost_count += !lane->is_lost;
    lane->is_lost = true;
}

int outgoing_next_lost(const struct outgoing *outgoing, unsigned from)
{
    for (unsigned i = from; outgoing->lost_count > 0 && i < outgoing->common->config.workers; i++)
        if (outgoing->lanes[i].is_lost)
            return (int)i;
    return -1;
}

bool outgoing_lends(const struct outgoing *outgoing, uint16_t worker)
{
    return outgoing->lanes[worker].lends;
}

bool outgoing_is_unread(const struct outgoing *outgoing, uint16_t worker)
{
    const struct held_count *answers = &outgoing->lanes[worker].answers;
    return answers->messages > REPLIES_HELD_MAX || answers->bytes > HELD_BYTES_MAX;
}

/* Requests and answers have bounds of their own. */
static void lane_push(struct outgoing *outgoing, struct lane *lane, struct held *held)
{
    struct held_count *count = held->is_answer ? &lane->answers : &lane->requests;
    count->messages++;
    count->bytes += held->frames.payload_bytes;
    lane->body_bytes += held->leaving != NULL ? held->leaving->header.body_bytes : 0;
    outgoing->requests_held += !held->is_answer;
    outgoing->held_total++;
    queue_push(&lane->held, held);
}

static struct held *lane_pop(struct outgoing *outgoing, struct lane *lane)
{
    struct held *held = queue_pop(&lane->held);
    struct held_count *count = held->is_answer ? &lane->answers : &lane->requests;
    count->messages--;
    count->bytes -= held->frames.payload_bytes;
    lane->body_bytes -= held->leaving != NULL ? held->leaving->header.body_bytes : 0;
    outgoing->requests_held -= !held->is_answer;
    outgoing->held_total--;
    return held;
}

void outgoing_close(struct outgoing *outgoing, uint16_t worker)
{
    struct lane *lane = &outgoing->lanes[worker];
    while (lane->held.first != NULL) {
        struct held *held = lane_pop(outgoing, lane);
        endpoint_release(&held->frames);
        held_give_back(outgoing, held);
    }
    outgoing->lost_count -= lane->is_lost;
    lane->is_lost = false;
}

/* Counts all requests that wait: also those whose calls are complete by now, and those to oneself. */
static bool lane_has_room(const struct outgoing *outgoing, const struct lane *lane, uint32_t body_bytes)
{
    return outgoing->requests_held + outgoing->own.count < outgoing->common->config.pending_max &&
           lane->requests.bytes < HELD_BYTES_MAX && body_bytes <= RPC_BODY_BYTES_MAX - lane->body_bytes;
}

/* STATUS_AGAIN: the message must be held. STATUS_NOT_FOUND: the lane is lost, and earlier messages may be. */
static enum status lane_try(struct outgoing *outgoing, const struct lane *lane, struct endpoint_message *out)
{
    if (lane->is_lost)
        return STATUS_NOT_FOUND;
    if (lane_is_own(lane) || lane->held.count > 0)
        return STATUS_AGAIN;
    enum status status = endpoint_send(lane->way, out);
    outgoing->common->counters.sent += status == STATUS_OK;
    return status;
}

/* ---- building ---- */

struct wire_header outgoing_header(const struct outgoing *outgoing, enum wire_kind kind, uint16_t destination)
{
    const struct rpc_config *config = &outgoing->common->config;
    return (struct wire_header){.kind = (uint8_t)kind,
                                .source = config->worker,
                                .destination = destination,
                                .incarnation = config->incarnation,
                                .generation = config->generation};
}

/* A tensor's place in this worker's segment, in the wire's form. 0: the tensor travels. */
static uint64_t build_place(const struct outgoing *outgoing, const struct lane *lane, const void *data,
                            uint64_t bytes)
{
    const struct segment *outbox = outgoing->common->config.outbox;
    if (bytes < RPC_LEND_BYTES || !lane->lends)
        return 0;
    if (lane_is_own(lane))
        return 1;
    uint64_t offset = (uintptr_t)data - (uintptr_t)outbox->data;
    return segment_at(outbox, offset, bytes) == NULL ? 0 : offset + 1;
}

static enum status build_tensors(struct wire_header *header, const struct rpc_message *value,
                                 struct error *error)
{
    if (value->tensor_count > WIRE_TENSORS_MAX)
        return error_set(error, STATUS_INVALID, "%u tensors, at most %d", value->tensor_count,
                         WIRE_TENSORS_MAX);
    header->tensor_count = value->tensor_count;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        const struct wire_tensor *tensor = &value->tensors[i];
        if (tensor->rank > WIRE_RANK_MAX)
            return error_set(error, STATUS_INVALID, "tensor %u: rank %u, at most %d", i, tensor->rank,
                             WIRE_RANK_MAX);
        header->tensors[i] = (struct wire_tensor){.dtype = tensor->dtype, .rank = tensor->rank};
        memcpy(header->tensors[i].dims, tensor->dims, tensor->rank * sizeof tensor->dims[0]);
    }
    return STATUS_OK;
}

/* Puts args, context and tensors into `header`, with the places of lent tensors. STATUS_INVALID: they exceed
 * a message's limits. */
static enum status build_header(const struct outgoing *outgoing, const struct lane *lane,
                                struct wire_header *header, const struct rpc_message *value,
                                struct error *error)
{
    uint64_t travelling;
    memcpy(header->args, value->args, sizeof header->args);
    header->context = value->context;
    if (build_tensors(header, value, error) != STATUS_OK ||
        wire_check_tensors(header, &travelling, error) != STATUS_OK)
        return STATUS_INVALID;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        uint64_t bytes = wire_tensor_bytes(&header->tensors[i]);
        header->places[i] = build_place(outgoing, lane, value->data[i], bytes);
        travelling -= header->places[i] == 0 ? 0 : bytes;
    }
    if (travelling > RPC_BODY_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "%llu bytes travel, at most %d",
                         (unsigned long long)travelling, RPC_BODY_BYTES_MAX);
    bool is_whole = travelling <= WIRE_PAYLOAD_BYTES_MAX;
    header->payload_bytes = is_whole ? (uint32_t)travelling : 0;
    header->body_bytes = is_whole ? 0 : (uint32_t)travelling;
    return STATUS_OK;
}

/* `count` bytes, from `from` on, of the tensors that travel, one after the other. */
static void build_gather(const struct wire_header *header, const struct rpc_message *value, size_t from,
                         size_t count, uint8_t *out)
{
    for (unsigned i = 0; i < header->tensor_count && count > 0; i++) {
        size_t bytes = header->places[i] == 0 ? wire_tensor_bytes(&header->tensors[i]) : 0;
        if (from >= bytes) {
            from -= bytes;
            continue;
        }
        size_t part = bytes - from < count ? bytes - from : count;
        memcpy(out, (const uint8_t *)value->data[i] + from, part);
        out += part;
        count -= part;
        from = 0;
    }
}

static void build_own_tail(const struct wire_header *header, const struct rpc_message *value, uint8_t *out)
{
    const void *lent[WIRE_TENSORS_MAX] = {NULL};
    for (unsigned i = 0; i < header->tensor_count; i++)
        if (header->places[i] != 0)
            lent[i] = value->data[i];
    memcpy(out, lent, sizeof lent);
}

static enum status build_frames(const struct wire_header *header, uint32_t peer, size_t tail_bytes,
                                struct endpoint_message *out)
{
    uint8_t encoded[WIRE_HEADER_BYTES];
    wire_encode(header, encoded);
    return endpoint_prepare(out, peer, encoded, sizeof encoded, header->payload_bytes + tail_bytes);
}

/* The message of `header` with `value`, or with `text` when that is not NULL. STATUS_INVALID: `value` is over
 * the limits, *error says which; STATUS_NO_MEMORY. */
static enum status build(const struct outgoing *outgoing, const struct lane *lane, struct wire_header *header,
                         const struct rpc_message *value, const char *text, struct endpoint_message *out,
                         struct error *error)
{
    if (text != NULL)
        header->payload_bytes = (uint32_t)strlen(text);
    else if (build_header(outgoing, lane, header, value, error) != STATUS_OK)
        return STATUS_INVALID;
    enum status status = build_frames(header, lane->peer, lane_is_own(lane) ? OWN_TAIL_BYTES : 0, out);
    if (status != STATUS_OK)
        return status;
    if (text != NULL)
        memcpy(out->payload, text, header->payload_bytes);
    else
        build_gather(header, value, 0, header->payload_bytes, out->payload);
    if (lane_is_own(lane))
        build_own_tail(header, value, out->payload + header->payload_bytes);
    return STATUS_OK;
}

/* ---- pieces ---- */

/* The next piece, with its payload still to be filled. */
static enum status piece_build(const struct lane *lane, struct wire_header *piece,
                               struct endpoint_message *out)
{
    uint64_t left_bytes = piece->body_bytes - piece->args[PIECE_OFFSET];
    piece->payload_bytes =
        left_bytes < WIRE_PAYLOAD_BYTES_MAX ? (uint32_t)left_bytes : WIRE_PAYLOAD_BYTES_MAX;
    return build_frames(piece, lane->peer, 0, out);
}

/* Sends pieces as long as there is room. *out: the rest, NULL when there is none. STATUS_NO_MEMORY: some may
 * have left. */
static enum status pieces_send(struct outgoing *outgoing, const struct lane *lane,
                               const struct wire_header *header, const struct rpc_message *value,
                               struct leaving_body **out)
{
    struct wire_header piece = outgoing_header(outgoing, WIRE_PIECE, header->destination);
    uint64_t *offset = &piece.args[PIECE_OFFSET];
    piece.request = header->request;
    piece.body_bytes = header->body_bytes;
    piece.args[PIECE_KIND] = header->kind;
    while (*offset < header->body_bytes) {
        struct endpoint_message message;
        enum status status = piece_build(lane, &piece, &message);
        if (status != STATUS_OK)
            return status;
        build_gather(header, value, *offset, piece.payload_bytes, message.payload);
        status = lane_try(outgoing, lane, &message);
        if (status != STATUS_OK)
            endpoint_release(&message);
        if (status == STATUS_AGAIN)
            break;
        if (status != STATUS_OK)
            return status;
        *offset += piece.payload_bytes;
    }
    size_t left_bytes = header->body_bytes - *offset;
    if (left_bytes == 0)
        return STATUS_OK;
    struct leaving_body *leaving = malloc(sizeof *leaving + left_bytes);
    if (leaving == NULL)
        return STATUS_NO_MEMORY;
    leaving->header = piece;
    leaving->first = (uint32_t)*offset;
    leaving->has_piece = false;
    build_gather(header, value, *offset, left_bytes, leaving->bytes);
    *out = leaving;
    return STATUS_OK;
}

/* Sends pieces of a body that was kept. STATUS_AGAIN: some are left. */
static enum status pieces_send_kept(struct outgoing *outgoing, const struct lane *lane,
                                    struct leaving_body *leaving)
{
    uint64_t *offset = &leaving->header.args[PIECE_OFFSET];
    while (*offset < leaving->header.body_bytes) {
        enum status status = STATUS_OK;
        if (!leaving->has_piece) {
            status = piece_build(lane, &leaving->header, &leaving->piece);
            if (status != STATUS_OK)
                return status;
            memcpy(leaving->piece.payload, leaving->bytes + (*offset - leaving->first),
                   leaving->header.payload_bytes);
            leaving->has_piece = true;
        }
        status = endpoint_send(lane->way, &leaving->piece);
        if (status != STATUS_OK)
            return status;
        outgoing->common->counters.sent++;
        leaving->has_piece = false;
        *offset += leaving->header.payload_bytes;
    }
    return STATUS_OK;
}

/* ---- sending ---- */

static void outgoing_hold(struct outgoing *outgoing, struct lane *lane, struct held *held)
{
    if (!lane_is_own(lane)) {
        lane_push(outgoing, lane, held);
        return;
    }
    queue_push(&outgoing->own, held);
    outgoing->common->counters.sent++;
}

/* Sends or holds a built message; takes it over on STATUS_OK. A message with a body may have to be held after
 * its first piece has left, so the object for holding it is taken first. STATUS_BUSY: no object, or a request
 * finds no room. */
static enum status outgoing_send(struct outgoing *outgoing, struct lane *lane,
                                 const struct wire_header *header, const struct rpc_message *value,
                                 struct endpoint_message *out)
{
    const bool is_answer = header->kind == WIRE_REPLY;
    struct held *held = NULL;
    enum status status = header->body_bytes != 0 ? STATUS_AGAIN : lane_try(outgoing, lane, out);
    if (status != STATUS_AGAIN)
        return status;
    if (is_answer || lane_has_room(outgoing, lane, header->body_bytes))
        held = held_take(outgoing, out);
    if (held == NULL)
        return STATUS_BUSY;
    held->is_answer = is_answer;
    if (header->body_bytes != 0) {
        status = pieces_send(outgoing, lane, header, value, &held->leaving);
        if (status == STATUS_OK)
            status = held->leaving != NULL ? STATUS_AGAIN : lane_try(outgoing, lane, &held->frames);
    }
    if (status == STATUS_AGAIN) {
        outgoing_hold(outgoing, lane, held);
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        endpoint_move(out, &held->frames);
    held_give_back(outgoing, held);
    return status;
}

enum status outgoing_send_request(struct outgoing *outgoing, struct wire_header *header,
                                  const struct rpc_message *message, struct error *error)
{
    struct lane *lane = &outgoing->lanes[header->destination];
    struct endpoint_message out;
    struct error limit;
    if (message == NULL)
        message = &no_value;
    enum status status = build(outgoing, lane, header, message, NULL, &out, &limit);
    if (status == STATUS_INVALID)
        return error_set(error, status, "a request to worker %u cannot be sent: %s", header->destination,
                         limit.text);
    if (status != STATUS_OK)
        return error_set(error, status, "no memory for a request to worker %u", header->destination);
    status = outgoing_send(outgoing, lane, header, message, &out);
    if (status == STATUS_OK)
        return STATUS_OK;
    endpoint_release(&out);
    if (status == STATUS_BUSY)
        return error_set(error, status, "too many messages or bytes wait for worker %u already",
                         header->destination);
    lane_lose(outgoing, lane);
    return error_set(error, STATUS_NOT_FOUND, "worker %u is gone", header->destination);
}

/* An answer over the limits becomes a failure and not an assertion, since the caller may have chosen its
 * size. */
static enum status answer_build(const struct outgoing *outgoing, const struct lane *lane,
                                struct wire_header *header, const struct rpc_message *value, const char *text,
                                struct endpoint_message *out)
{
    struct wire_header failure = *header;
    struct error limit;
    char why[WIRE_ERROR_TEXT_MAX + 1];
    enum status status = build(outgoing, lane, header, value, text, out, &limit);
    if (status == STATUS_INVALID) {
        snprintf(why, sizeof why, "an answer of worker %u cannot be sent: %.350s", header->source,
                 limit.text);
    } else if (status == STATUS_OK && header->body_bytes > RPC_BODY_BYTES_MAX - lane->body_bytes) {
        endpoint_release(out);
        status = STATUS_BUSY;
        snprintf(why, sizeof why, "too many bytes of answers wait already");
    } else {
        return status;
    }
    failure.status = (uint8_t)status;
    *header = failure;
    return build(outgoing, lane, header, &no_value, why, out, NULL);
}

enum status outgoing_send_answer(struct outgoing *outgoing, struct wire_header *header,
                                 const struct rpc_message *value, const char *text)
{
    struct lane *lane = &outgoing->lanes[header->destination];
    struct endpoint_message out;
    if (value == NULL)
        value = &no_value;
    enum status status = answer_build(outgoing, lane, header, value, text, &out);
    if (status == STATUS_OK) {
        status = outgoing_send(outgoing, lane, header, value, &out);
        if (status != STATUS_OK)
            endpoint_release(&out);
    }
    if (status != STATUS_OK && lane_is_own(lane))
        return STATUS_NO_MEMORY;
    if (status != STATUS_OK)
        lane_lose(outgoing, lane);
    return STATUS_OK;
}

static bool outgoing_hold_farewell(struct outgoing *outgoing, struct endpoint *way,
                                   struct endpoint_message *message)
{
    struct held *held = outgoing->farewells.count < FAREWELLS_MAX ? held_take(outgoing, message) : NULL;
    if (held == NULL)
        return false;
    held->way = way;
    queue_push(&outgoing->farewells, held);
    outgoing->held_total++;
    return true;
}

bool outgoing_send_bytes(struct outgoing *outgoing, struct endpoint *way, struct wire_header *header,
                         uint32_t peer, const void *bytes, size_t count, bool hold)
{
    struct endpoint_message message;
    header->payload_bytes = (uint32_t)count;
    if (build_frames(header, peer, 0, &message) != STATUS_OK)
        return false;
    if (count > 0)
        memcpy(message.payload, bytes, count);
    enum status status = endpoint_send(way, &message);
    outgoing->common->counters.sent += status == STATUS_OK;
    if (status == STATUS_OK ||
        (status == STATUS_AGAIN && hold && outgoing_hold_farewell(outgoing, way, &message)))
        return true;
    endpoint_release(&message);
    return false;
}

/* ---- what waits ---- */

/* Sends a lane's held messages, until there are none or the peer's queue is full. */
static void lane_flush(struct outgoing *outgoing, struct lane *lane)
{
    while (lane->held.first != NULL && !lane->is_lost) {
        struct held *held = lane->held.first;
        enum status status = STATUS_OK;
        if (held->leaving != NULL)
            status = pieces_send_kept(outgoing, lane, held->leaving);
        if (status == STATUS_OK)
            status = endpoint_send(lane->way, &held->frames);
        if (status == STATUS_AGAIN)
            return;
        lane_pop(outgoing, lane);
        outgoing->common->counters.sent += status == STATUS_OK;
        if (status != STATUS_OK) {
            endpoint_release(&held->frames);
            lane_lose(outgoing, lane);
        }
        held_give_back(outgoing, held);
    }
}

/* A farewell that cannot leave yet is put behind the others, so that one full queue does not delay them. */
static void farewells_flush(struct outgoing *outgoing)
{
    for (uint32_t left = outgoing->farewells.count; left > 0; left--) {
        struct held *first = queue_pop(&outgoing->farewells);
        enum status status = endpoint_send(first->way, &first->frames);
        if (status == STATUS_AGAIN) {
            queue_push(&outgoing->farewells, first);
            continue;
        }
        outgoing->common->counters.sent += status == STATUS_OK;
        outgoing->held_total--;
        if (status != STATUS_OK)
            endpoint_release(&first->frames);
        held_give_back(outgoing, first);
    }
}

void outgoing_flush(struct outgoing *outgoing)
{
    if (outgoing->held_total == 0)
        return;
    for (uint32_t i = 0; i < outgoing->common->config.workers; i++)
        lane_flush(outgoing, &outgoing->lanes[i]);
    farewells_flush(outgoing);
}

bool outgoing_is_waiting(const struct outgoing *outgoing)
{
    return outgoing->held_total > 0;
}

bool outgoing_take_own(struct outgoing *outgoing, struct endpoint_message *out)
{
    if (outgoing->own.first == NULL)
        return false;
    struct held *first = queue_pop(&outgoing->own);
    endpoint_move(out, &first->frames);
    held_give_back(outgoing, first);
    return true;
}
