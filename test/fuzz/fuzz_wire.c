/* The decoder against anything: what it accepts must be a header whose encoding is the very same bytes, and
 * the checks behind it (a method's tensors, the opened message) must stay within the payload. The input's
 * first two bytes are the second frame's length in units that reach over the limit, the rest is the header
 * and, behind it, the payload. */
#include "worker/net/rpc_message.h"

#include <stdlib.h>
#include <string.h>

static const struct rpc_method method = {
    .method = METHOD_STEP, .callers = WIRE_ROLE_OBSERVER, .dtype = WIRE_F32, .elements_max = 16};

static void require(int holds)
{
    if (!holds)
        abort();
}

/* Every tensor of an opened message lies within the payload; reading their first and last bytes lets the
 * address sanitizer see it. */
static void check_message(const struct wire_header *header, const uint8_t *payload)
{
    struct rpc_message message;
    static unsigned char lendable[4096];
    const struct segment segment = {.data = lendable, .bytes = sizeof lendable};
    const void *lent[WIRE_TENSORS_MAX];
    struct error error = {0};
    if (message_find_lent(header, &segment, lent, &error) != STATUS_OK) {
        require(error.status == STATUS_INVALID && message_lends(header));
        return;
    }
    message_open(&message, header, payload, lent);
    size_t sum = 0;
    for (unsigned i = 0; i < message.tensor_count; i++) {
        const volatile uint8_t *data = message.data[i];
        size_t bytes = wire_tensor_bytes(&message.tensors[i]);
        (void)data[0];
        (void)data[bytes - 1];
        if (header->places[i] != 0)
            continue;
        require((const uint8_t *)message.data[i] == payload + sum && bytes > 0);
        sum += bytes;
    }
    require(sum == header->payload_bytes + header->body_bytes);
}

static void check_rules(const struct wire_header *header)
{
    struct error error = {0};
    if (message_check_tensors(&method, header, &error) == STATUS_OK) {
        uint32_t count = header->tensors[0].dims[0];
        require(count >= 1 && count <= 16 &&
                (message_lends(header) || header->payload_bytes == count * sizeof(float)));
    } else {
        require(error.status == STATUS_INVALID && error.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t payload_bytes = ((size_t)data[0] | (size_t)data[1] << 8) * (data[1] >= 0xf0 ? 17 : 1);
    size_t header_bytes = size - 2 < WIRE_HEADER_BYTES ? size - 2 : WIRE_HEADER_BYTES;
    uint8_t *frame = malloc(header_bytes + 1);
    memcpy(frame, data + 2, header_bytes);
    struct wire_header header;
    struct error error = {0};
    if (wire_decode(&header, frame, header_bytes, payload_bytes, &error) == STATUS_OK) {
        uint8_t again[WIRE_HEADER_BYTES];
        wire_encode(&header, again);
        require(memcmp(again, frame, sizeof again) == 0 && header.payload_bytes == payload_bytes);
        size_t body_bytes = header.kind == WIRE_PIECE ? 0 : header.body_bytes;
        uint8_t *payload = calloc(1, payload_bytes + body_bytes + 1);
        if (header.tensor_count > 0)
            check_message(&header, payload);
        if (header.kind == WIRE_REQUEST)
            check_rules(&header);
        char text[WIRE_ERROR_TEXT_MAX + 1];
        message_copy_text(text, sizeof text, payload, payload_bytes);
        free(payload);
    } else {
        require(error.status == STATUS_INVALID && error.text[0] != '\0');
    }
    free(frame);
    return 0;
}
