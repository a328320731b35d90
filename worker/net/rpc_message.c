/* Describing, checking, opening and keeping messages, and joining the pieces of bodies. Thread: the owner of
 * the rpc. */
#include "worker/net/rpc_message.h"

#include <stdlib.h>
#include <string.h>

/* ---- pure checks ---- */

enum status message_check_tensors(const struct rpc_method *method, const struct wire_header *header,
                                  struct error *error)
{
    const struct wire_tensor *tensor = &header->tensors[0];
    const unsigned expected = method->dtype != 0;
    if (header->tensor_count != expected)
        return error_set(error, STATUS_INVALID, "%u tensors, expected %u", header->tensor_count, expected);
    if (expected == 0)
        return STATUS_OK;
    if (tensor->dtype != method->dtype || tensor->rank != 1)
        return error_set(error, STATUS_INVALID, "tensor 0: dtype %u of rank %u, expected %u of rank 1",
                         tensor->dtype, tensor->rank, method->dtype);
    if (tensor->dims[0] > method->elements_max)
        return error_set(error, STATUS_INVALID, "tensor 0: dim 0 is %u, at most %u", tensor->dims[0],
                         method->elements_max);
    return STATUS_OK;
}

void message_open(struct rpc_message *message, const struct wire_header *header, const uint8_t *payload,
                  const void *const lent[WIRE_TENSORS_MAX])
{
    memcpy(message->args, header->args, sizeof message->args);
    message->context = header->context;
    message->tensor_count = header->tensor_count;
    message->lent = 0;
    for (unsigned i = 0; i < header->tensor_count; i++) {
        message->tensors[i] = header->tensors[i];
        bool is_lent = header->places[i] != 0;
        message->data[i] = is_lent ? lent[i] : payload;
        message->lent |= (uint8_t)((unsigned)is_lent << i);
        if (!is_lent)
            payload += wire_tensor_bytes(&header->tensors[i]);
    }
}

bool message_lends(const struct wire_header *header)
{
    return (header->places[0] | header->places[1] | header->places[2] | header->places[3]) != 0;
}

enum status message_find_lent(const struct wire_header *header, const struct segment *segment,
                              const void *lent[WIRE_TENSORS_MAX], struct error *error)
{
    for (unsigned i = 0; i < header->tensor_count; i++) {
        uint64_t place = header->places[i];
        lent[i] = NULL;
        if (place == 0)
            continue;
        lent[i] = segment_at(segment, place - 1, wire_tensor_bytes(&header->tensors[i]));
        if (lent[i] == NULL)
            return error_set(error, STATUS_INVALID, "tensor %u is lent from %llu on, outside of the segment",
                             i, (unsigned long long)(place - 1));
    }
    return STATUS_OK;
}

void message_copy_text(char *out, size_t out_bytes, const void *text, size_t text_bytes)
{
    const uint8_t *from = text;
    size_t count = text_bytes < out_bytes - 1 ? text_bytes : out_bytes - 1;
    for (size_t i = 0; i < count; i++)
        out[i] = from[i] < 0x20 || from[i] == 0x7f ? '?' : (char)from[i];
    out[count] = '\0';
}

/* The window slides over a ring of bits: id i has bit i modulo its size. Bits between the old top and the
 * new belong to ids not seen yet, and are cleared as the window passes over them. */
bool replay_window_note(struct replay_window *window, uint64_t id)
{
    uint64_t top = window->top;
    if (id > top) {
        if (id - top >= REPLAY_WINDOW)
            memset(window->bits, 0, sizeof window->bits);
        else
            for (uint64_t i = top + 1; i < id; i++)
                window->bits[i % REPLAY_WINDOW / 64] &= ~(UINT64_C(1) << i % 64);
        window->top = id;
        window->bits[id % REPLAY_WINDOW / 64] |= UINT64_C(1) << id % 64;
        return true;
    }
    if (top - id >= REPLAY_WINDOW)
        return false;
    uint64_t *word = &window->bits[id % REPLAY_WINDOW / 64], bit = UINT64_C(1) << id % 64;
    bool is_new = (*word & bit) == 0;
    *word |= bit;
    return is_new;
}

/* ---- building ---- */

/* A tensor's place in the sender's segment, in the wire's form. 0: the tensor travels. */
static uint64_t find_place(const void *data, uint64_t bytes, bool is_own, const struct segment *outbox)
{
    if (bytes < RPC_LEND_BYTES || (!is_own && outbox == NULL))
        return 0;
    if (is_own)
        return 1;
    uint64_t offset = (uintptr_t)data - (uintptr_t)outbox->data;
    return segment_at(outbox, offset, bytes) == NULL ? 0 : offset + 1;
}

static enum status copy_tensors(struct wire_header *header, const struct rpc_message *value,
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

enum status message_describe(struct wire_header *header, const struct rpc_message *value, bool is_own,
                             const struct segment *outbox, struct error *error)
{
    uint64_t travelling;
    memcpy(header->args, value->args, sizeof header->args);
    header->context = value->context;
    if (copy_tensors(header, value, error) != STATUS_OK ||
        wire_check_tensors(header, &travelling, error) != STATUS_OK)
        return STATUS_INVALID;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        uint64_t bytes = wire_tensor_bytes(&header->tensors[i]);
        header->places[i] = find_place(value->data[i], bytes, is_own, outbox);
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

void message_gather(const struct wire_header *header, const struct rpc_message *value, size_t from,
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

void message_add_own_tail(const struct wire_header *header, const struct rpc_message *value, uint8_t *out)
{
    const void *lent[WIRE_TENSORS_MAX] = {NULL};
    for (unsigned i = 0; i < header->tensor_count; i++)
        if (header->places[i] != 0)
            lent[i] = value->data[i];
    memcpy(out, lent, sizeof lent);
}

/* ---- bodies ---- */

static void body_free(struct body *body)
{
    if (body->bytes != NULL)
        body->bodies->bytes -= body->count;
    free(body->bytes);
    *body = (struct body){0};
}

void bodies_drop_arriving(struct bodies *bodies)
{
    if (bodies->arriving.total == 0)
        return;
    body_free(&bodies->arriving.body);
    memset(&bodies->arriving, 0, sizeof bodies->arriving);
}

/* The whole body is allocated with the first piece; the kernel provides pages only as bytes are written. */
static void bodies_begin(struct bodies *bodies, const struct wire_header *header)
{
    bodies_drop_arriving(bodies);
    bodies->arriving.request = header->request;
    bodies->arriving.kind = (uint8_t)header->args[PIECE_KIND];
    bodies->arriving.total = header->body_bytes;
    if (header->body_bytes > RPC_BODY_BYTES_MAX - bodies->bytes)
        return;
    bodies->arriving.body = (struct body){malloc(header->body_bytes), header->body_bytes, bodies};
    if (bodies->arriving.body.bytes != NULL)
        bodies->bytes += header->body_bytes;
}

static bool bodies_await(const struct bodies *bodies, const struct wire_header *header, uint64_t kind)
{
    return bodies->arriving.total == header->body_bytes && bodies->arriving.request == header->request &&
           bodies->arriving.kind == kind;
}

const char *bodies_receive_piece(struct bodies *bodies, const struct wire_header *header,
                                 const uint8_t *payload)
{
    if (!bodies_await(bodies, header, header->args[PIECE_KIND])) {
        if (header->args[PIECE_OFFSET] != 0)
            return "a piece of a body that has not begun";
        bodies_begin(bodies, header);
    }
    if (header->args[PIECE_OFFSET] != bodies->arriving.have)
        return "a piece out of order";
    if (bodies->arriving.body.bytes != NULL)
        memcpy(bodies->arriving.body.bytes + bodies->arriving.have, payload, header->payload_bytes);
    bodies->arriving.have += header->payload_bytes;
    return NULL;
}

void arrival_take_body(struct arrival *arrival, struct bodies *bodies)
{
    const struct wire_header *header = &arrival->header;
    const bool is_whole =
        bodies_await(bodies, header, header->kind) && bodies->arriving.have == bodies->arriving.total;
    arrival->body = (struct body){0};
    arrival->body_state = STATUS_OK;
    if (header->body_bytes != 0 && !is_whole) {
        arrival->body_state = STATUS_INVALID;
    } else if (header->body_bytes != 0 && bodies->arriving.body.bytes == NULL) {
        arrival->body_state = STATUS_BUSY;
    } else if (header->body_bytes != 0) {
        arrival->body = bodies->arriving.body;
        bodies->arriving.body = (struct body){0};
    }
    bodies_drop_arriving(bodies);
}

void arrival_drop(struct arrival *arrival)
{
    endpoint_release(&arrival->frames);
    body_free(&arrival->body);
}

void arrival_keep(struct arrival *arrival, struct kept *kept)
{
    endpoint_move(&kept->frames, &arrival->frames);
    kept->body = arrival->body;
    message_open(&kept->message, &arrival->header,
                 kept->body.bytes != NULL ? kept->body.bytes : kept->frames.payload, arrival->lent);
}

void kept_drop(struct kept *kept)
{
    endpoint_release(&kept->frames);
    body_free(&kept->body);
}
