/* The header's bytes, which are the struct's own. Pure functions, run by whichever thread owns the
 * connection.
 *
 * All rules stand in wire_check, which checks a struct: the decoder applies it to received headers, the
 * encoder asserts it of sent ones, so the two cannot drift apart. */
#include "worker/net/wire.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers lie in memory as on the wire");
_Static_assert(sizeof(struct wire_header) == WIRE_HEADER_BYTES, "the header has no padding");
_Static_assert(offsetof(struct wire_header, request) == 24, "nor at its head");
_Static_assert(offsetof(struct wire_header, tensors) == 88, "nor before the tensors");
_Static_assert((WIRE_HEADER_BYTES + WIRE_PAYLOAD_BYTES_MAX) * WIRE_QUEUE_MAX <= 64000000, "64 MB per peer");
_Static_assert(STATUS_COUNT <= UINT8_MAX && (unsigned)METHOD_COUNT <= UINT16_MAX, "they fit their fields");

static size_t wire_dtype_bytes(enum wire_dtype dtype)
{
    static const size_t bytes[] = {
        [WIRE_F32] = 4, [WIRE_U32] = 4, [WIRE_U8] = 1, [WIRE_U64] = 8, [WIRE_BF16] = 2};
    return bytes[dtype];
}

size_t wire_tensor_bytes(const struct wire_tensor *tensor)
{
    size_t bytes = wire_dtype_bytes(tensor->dtype);
    for (unsigned i = 0; i < tensor->rank; i++)
        bytes *= tensor->dims[i];
    return bytes;
}

/* The sizes are multiplied one dim at a time, and each product is compared before the next: none exceeds
 * 2^29 * 2^32. */
static enum status wire_check_tensor(const struct wire_tensor *tensor, unsigned i, uint64_t *bytes_out,
                                     struct error *error)
{
    if (tensor->dtype < WIRE_F32 || tensor->dtype > WIRE_BF16)
        return error_set(error, STATUS_INVALID, "tensor %u: dtype %u, expected 1..5", i, tensor->dtype);
    if (tensor->rank < 1 || tensor->rank > WIRE_RANK_MAX)
        return error_set(error, STATUS_INVALID, "tensor %u: rank %u, expected 1..%d", i, tensor->rank,
                         WIRE_RANK_MAX);
    uint64_t bytes = wire_dtype_bytes(tensor->dtype);
    for (unsigned d = 0; d < WIRE_RANK_MAX; d++) {
        if (d >= tensor->rank) {
            if (tensor->dims[d] != 0)
                return error_set(error, STATUS_INVALID, "tensor %u: dim %u is beyond its rank and not zero",
                                 i, d);
            continue;
        }
        if (tensor->dims[d] == 0)
            return error_set(error, STATUS_INVALID, "tensor %u: dim %u is 0", i, d);
        bytes *= tensor->dims[d];
        if (bytes > WIRE_BODY_BYTES_MAX)
            return error_set(error, STATUS_INVALID, "tensor %u: more than %d bytes", i, WIRE_BODY_BYTES_MAX);
    }
    *bytes_out = bytes;
    return STATUS_OK;
}

static bool tensor_is_empty(const struct wire_tensor *tensor)
{
    return (tensor->dtype | tensor->rank | tensor->dims[0] | tensor->dims[1] | tensor->dims[2] |
            tensor->dims[3]) == 0;
}

enum status wire_check_tensors(const struct wire_header *header, uint64_t *sum, struct error *error)
{
    *sum = 0;
    if (header->tensor_count > WIRE_TENSORS_MAX)
        return error_set(error, STATUS_INVALID, "%u tensors, expected at most %d", header->tensor_count,
                         WIRE_TENSORS_MAX);
    for (unsigned i = 0; i < WIRE_TENSORS_MAX; i++) {
        uint64_t bytes = 0, place = header->places[i];
        if (i >= header->tensor_count) {
            if (!tensor_is_empty(&header->tensors[i]) || place != 0)
                return error_set(error, STATUS_INVALID, "tensor %u is beyond the count and not zero", i);
            continue;
        }
        if (wire_check_tensor(&header->tensors[i], i, &bytes, error) != STATUS_OK)
            return STATUS_INVALID;
        if (place != 0 && place % WIRE_PLACE_ALIGNMENT != 1)
            return error_set(error, STATUS_INVALID, "tensor %u: its place is no multiple of %d", i,
                             WIRE_PLACE_ALIGNMENT);
        if (place == 0)
            *sum += bytes;
    }
    return STATUS_OK;
}

/* `has_value`: it carries tensors, args and a context, and may have a body. */
static enum status wire_check_unused(const struct wire_header *header, bool has_value, bool is_piece,
                                     struct error *error)
{
    if (!has_value && header->tensor_count != 0)
        return error_set(error, STATUS_INVALID, "%u tensors in a message that carries none",
                         header->tensor_count);
    if (!has_value && header->context != 0)
        return error_set(error, STATUS_INVALID, "a context in a message that carries none");
    if (has_value || is_piece)
        return STATUS_OK;
    if ((header->args[0] | header->args[1] | header->args[2] | header->args[3]) != 0)
        return error_set(error, STATUS_INVALID, "args in a message that carries none");
    if (header->body_bytes != 0)
        return error_set(error, STATUS_INVALID, "a body in a message that carries none");
    return STATUS_OK;
}

/* Checks the fields that identify the message, and that the fields its kind does not use are zero. */
static enum status wire_check_kind(const struct wire_header *header, struct error *error)
{
    unsigned kind = header->kind;
    if (kind < WIRE_HELLO || kind > WIRE_PIECE)
        return error_set(error, STATUS_INVALID, "kind %u, expected 1..6", kind);
    bool is_request = kind == WIRE_REQUEST, is_reply = kind == WIRE_REPLY;
    bool is_call = is_request || is_reply, is_piece = kind == WIRE_PIECE;
    if (is_call ? header->method == METHOD_NONE || header->method >= METHOD_COUNT
                : header->method != METHOD_NONE)
        return error_set(error, STATUS_INVALID, "method %u in a message of kind %u", header->method, kind);
    if (is_reply ? header->status >= STATUS_COUNT || header->status == STATUS_AGAIN : header->status != 0)
        return error_set(error, STATUS_INVALID, "status %u in a message of kind %u", header->status, kind);
    bool has_role = kind == WIRE_HELLO || kind == WIRE_WELCOME;
    unsigned role = header->role;
    if (has_role ? role == 0 || (role & (role - 1)) != 0 : role != 0)
        return error_set(error, STATUS_INVALID, "role %u in a message of kind %u", role, kind);
    if ((is_call || is_piece) != (header->request != 0))
        return error_set(error, STATUS_INVALID, "request id %llu in a message of kind %u",
                         (unsigned long long)header->request, kind);
    if (!is_request && header->left_us != 0)
        return error_set(error, STATUS_INVALID, "time left in a message of kind %u", kind);
    return wire_check_unused(header, is_call && header->status == STATUS_OK, is_piece, error);
}

/* A piece lies within its body, which is one that needs pieces. */
static enum status wire_check_piece(const struct wire_header *header, struct error *error)
{
    uint64_t offset = header->args[PIECE_OFFSET], kind = header->args[PIECE_KIND];
    uint32_t bytes = header->payload_bytes, body_bytes = header->body_bytes;
    if ((kind != WIRE_REQUEST && kind != WIRE_REPLY) || (header->args[2] | header->args[3]) != 0)
        return error_set(error, STATUS_INVALID, "args of a piece: kind %llu, expected 3 or 4 and then zero",
                         (unsigned long long)kind);
    if (body_bytes <= WIRE_PAYLOAD_BYTES_MAX || body_bytes > WIRE_BODY_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "a piece of a body of %u bytes, expected %d to %d",
                         body_bytes, WIRE_PAYLOAD_BYTES_MAX + 1, WIRE_BODY_BYTES_MAX);
    if (bytes == 0 || offset > body_bytes || bytes > body_bytes - offset)
        return error_set(error, STATUS_INVALID, "a piece of %u bytes at %llu of a body of %u", bytes,
                         (unsigned long long)offset, body_bytes);
    return STATUS_OK;
}

/* Requests and replies that carry values: the tensors that travel are the payload, or came ahead. */
static enum status wire_check_body(const struct wire_header *header, uint64_t tensor_bytes,
                                   struct error *error)
{
    uint32_t bytes = header->payload_bytes, body_bytes = header->body_bytes;
    if (body_bytes == 0 && bytes != tensor_bytes)
        return error_set(error, STATUS_INVALID, "payload of %u bytes, the tensors need %llu", bytes,
                         (unsigned long long)tensor_bytes);
    if (body_bytes != 0 && (bytes != 0 || body_bytes <= WIRE_PAYLOAD_BYTES_MAX ||
                            body_bytes > WIRE_BODY_BYTES_MAX || body_bytes != tensor_bytes))
        return error_set(error, STATUS_INVALID, "payload of %u bytes and %u in pieces, the tensors need %llu",
                         bytes, body_bytes, (unsigned long long)tensor_bytes);
    return STATUS_OK;
}

static enum status wire_check_payload(const struct wire_header *header, uint64_t tensor_bytes,
                                      struct error *error)
{
    uint32_t bytes = header->payload_bytes;
    if (bytes > WIRE_PAYLOAD_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "payload of %u bytes, at most %d", bytes,
                         WIRE_PAYLOAD_BYTES_MAX);
    bool is_call = header->kind == WIRE_REQUEST || header->kind == WIRE_REPLY;
    if (header->kind == WIRE_PIECE)
        return wire_check_piece(header, error);
    if (is_call && header->status == STATUS_OK)
        return wire_check_body(header, tensor_bytes, error);
    if ((header->kind == WIRE_BYE || header->status != STATUS_OK) && bytes > WIRE_ERROR_TEXT_MAX)
        return error_set(error, STATUS_INVALID, "text of %u bytes, at most %d", bytes, WIRE_ERROR_TEXT_MAX);
    if (header->kind == WIRE_HELLO && bytes != WIRE_HELLO_BYTES)
        return error_set(error, STATUS_INVALID, "payload of %u bytes in a HELLO, expected %d", bytes,
                         WIRE_HELLO_BYTES);
    if (header->kind == WIRE_WELCOME && bytes < WIRE_PROOF_BYTES)
        return error_set(error, STATUS_INVALID, "payload of %u bytes in a WELCOME, expected at least %d",
                         bytes, WIRE_PROOF_BYTES);
    return STATUS_OK;
}

enum status wire_check(const struct wire_header *header, struct error *error)
{
    uint64_t tensor_bytes;
    if (wire_check_kind(header, error) != STATUS_OK ||
        wire_check_tensors(header, &tensor_bytes, error) != STATUS_OK)
        return STATUS_INVALID;
    return wire_check_payload(header, tensor_bytes, error);
}

static bool reserved_is_zero(const struct wire_header *header)
{
    return (header->tensors[0].reserved | header->tensors[1].reserved | header->tensors[2].reserved |
            header->tensors[3].reserved) == 0;
}

void wire_encode(const struct wire_header *header, uint8_t bytes[WIRE_HEADER_BYTES])
{
    assert(wire_check(header, NULL) == STATUS_OK && reserved_is_zero(header));
    struct wire_header marked = *header;
    marked.magic = WIRE_MAGIC;
    marked.version = WIRE_VERSION;
    memcpy(bytes, &marked, sizeof marked);
}

enum status wire_decode(struct wire_header *header, const uint8_t *bytes, size_t length, size_t payload_bytes,
                        struct error *error)
{
    if (length != WIRE_HEADER_BYTES)
        return error_set(error, STATUS_INVALID, "header of %zu bytes, expected %d", length,
                         WIRE_HEADER_BYTES);
    memcpy(header, bytes, WIRE_HEADER_BYTES);
    if (header->magic != WIRE_MAGIC)
        return error_set(error, STATUS_INVALID, "magic %08x, expected %08x", header->magic, WIRE_MAGIC);
    if (header->version != WIRE_VERSION)
        return error_set(error, STATUS_INVALID, "protocol version %u, expected %d", header->version,
                         WIRE_VERSION);
    if (!reserved_is_zero(header))
        return error_set(error, STATUS_INVALID, "reserved bytes that are not zero");
    if (wire_check(header, error) != STATUS_OK)
        return STATUS_INVALID;
    if (header->payload_bytes != payload_bytes)
        return error_set(error, STATUS_INVALID, "payload of %u bytes announced, %zu came",
                         header->payload_bytes, payload_bytes);
    return STATUS_OK;
}
