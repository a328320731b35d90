/* The bodies that pieces make, whatever several peers send in whatever order. The input is a row of steps of
 * eight bytes, each a message's header. A body must come out as it was put in, and at the end no
 * memory is held. */
#include "worker/net/rpc_message.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 6, SELF = 3, STEP_BYTES = 8, PERIOD = 256 };

static struct bodies all[WORKERS];
static uint8_t pattern[WIRE_PAYLOAD_BYTES_MAX + PERIOD];

static void require(int holds)
{
    if (!holds)
        abort();
}

/* A header that eight bytes stand for; often a good one. */
static struct wire_header header_of(const uint8_t step[STEP_BYTES])
{
    static const uint8_t kinds[] = {WIRE_PIECE, WIRE_PIECE, WIRE_PIECE, WIRE_REQUEST,
                                    WIRE_REPLY, WIRE_BYE,   WIRE_HELLO, WIRE_PIECE};
    static const uint32_t totals[] = {WIRE_PAYLOAD_BYTES_MAX + 1, WIRE_PAYLOAD_BYTES_MAX + 4096,
                                      WIRE_PAYLOAD_BYTES_MAX + 1, WIRE_PAYLOAD_BYTES_MAX + 2,
                                      WIRE_PAYLOAD_BYTES_MAX + 3, WIRE_PAYLOAD_BYTES_MAX + 1,
                                      WIRE_PAYLOAD_BYTES_MAX + 1, WIRE_BODY_BYTES_MAX};
    struct wire_header header = {.kind = kinds[step[0] % 8],
                                 .source = step[1] % (WORKERS + 1),
                                 .destination = SELF,
                                 .incarnation = step[2] % 4,
                                 .generation = 1};
    bool is_piece = header.kind == WIRE_PIECE;
    bool is_call = header.kind == WIRE_REQUEST || header.kind == WIRE_REPLY;
    if (header.kind == WIRE_HELLO)
        header.role = WIRE_ROLE_TRAINER, header.payload_bytes = WIRE_HELLO_BYTES;
    if (!is_piece && !is_call)
        return header;
    const struct bodies *bodies = &all[header.source % WORKERS];
    bool goes_on = (step[4] & 1) != 0 && bodies->arriving.total != 0;
    header.request = goes_on ? bodies->arriving.request : 1 + step[3] % 4u;
    header.body_bytes = goes_on ? bodies->arriving.total : totals[step[5] % 8];
    if (is_call) {
        header.method = METHOD_OBJECT;
        header.tensor_count = 1;
        header.tensors[0] = (struct wire_tensor){WIRE_U8, 1, .dims = {header.body_bytes}};
        return header;
    }
    uint32_t offset = goes_on ? bodies->arriving.have : step[6] * 16u;
    uint32_t left_bytes = offset < header.body_bytes ? header.body_bytes - offset : 0;
    header.args[PIECE_OFFSET] = offset;
    header.args[PIECE_KIND] = goes_on ? bodies->arriving.kind : WIRE_REQUEST + (step[4] >> 1 & 1);
    header.payload_bytes = step[7] < 128 ? step[7] : WIRE_PAYLOAD_BYTES_MAX;
    if (step[7] >= 128 && left_bytes < WIRE_PAYLOAD_BYTES_MAX)
        header.payload_bytes = left_bytes;
    return header;
}

static void check_body(const struct wire_header *header, const struct body *body)
{
    require(body->count == header->body_bytes);
    for (uint32_t i = 0; i < body->count; i += 65521)
        require(body->bytes[i] == (uint8_t)(header->request + i));
    require(body->bytes[body->count - 1] == (uint8_t)(header->request + body->count - 1));
}

static void receive(const struct wire_header *header)
{
    if (header->source >= WORKERS)
        return;
    struct bodies *bodies = &all[header->source];
    if (header->kind == WIRE_BYE) {
        bodies_drop_arriving(bodies);
        require(bodies->bytes == 0);
    } else if (header->kind == WIRE_PIECE) {
        uint64_t at = (header->request + header->args[PIECE_OFFSET]) % PERIOD;
        if (bodies_receive_piece(bodies, header, pattern + at) != NULL)
            bodies_drop_arriving(bodies);
    } else if (header->kind != WIRE_HELLO) {
        const uint8_t no_header[WIRE_HEADER_BYTES] = {0};
        struct arrival arrival = {
            .header = *header,
        };
        require(endpoint_prepare(&arrival.frames, 0, no_header, sizeof no_header, 0) == STATUS_OK);
        arrival_take_body(&arrival, bodies);
        require((arrival.body.bytes != NULL) == (arrival.body_state == STATUS_OK));
        if (arrival.body_state == STATUS_OK)
            check_body(header, &arrival.body);
        arrival_drop(&arrival);
        require(bodies->bytes == 0);
    }
    require(bodies->bytes <= RPC_BODY_BYTES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)i;
    for (size_t i = 0; i + STEP_BYTES <= size && i < 16 * STEP_BYTES; i += STEP_BYTES) {
        struct wire_header header = header_of(data + i);
        if (wire_check(&header, NULL) == STATUS_OK)
            receive(&header);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        bodies_drop_arriving(&all[i]);
        require(all[i].bytes == 0);
    }
    return 0;
}
