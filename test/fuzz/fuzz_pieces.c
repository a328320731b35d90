/* The bodies that pieces make, whatever several peers send in whatever order. The input is a row of steps of
 * eight bytes, each a message's header. A body must come out as it was put in, and at the end no
 * memory is held. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 6, SELF = 3, STEP_BYTES = 8, PERIOD = 256 };

static const uint8_t roster[WORKERS] = {WIRE_ROLE_PSERVER, WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER,
                                        WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER};
static struct rpc_socket sockets[WORKERS]; /* without endpoints: nothing is sent */
static uint8_t pattern[WIRE_PAYLOAD_BYTES_MAX + PERIOD];

static void require(int holds)
{
    if (!holds)
        abort();
}

static struct rpc *start(void)
{
    static const struct rpc_config config = {.worker = SELF,
                                             .role = WIRE_ROLE_TRAINER,
                                             .incarnation = 1,
                                             .generation = 1,
                                             .roster = roster,
                                             .workers = WORKERS,
                                             .pending_max = 4,
                                             .incoming_max = 4};
    struct rpc *rpc;
    require(rpc_open(&rpc, &config, NULL, NULL) == STATUS_OK);
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)i;
    return rpc;
}

/* A header that eight bytes stand for; often a good one. */
static struct wire_header header_of(const uint8_t step[STEP_BYTES], const struct rpc *rpc)
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
    const struct arriving_body *arriving = &rpc->sessions[header.source % WORKERS].arriving;
    bool goes_on = (step[4] & 1) != 0 && arriving->total != 0;
    header.request = goes_on ? arriving->request : 1 + step[3] % 4u;
    header.body_bytes = goes_on ? arriving->total : totals[step[5] % 8];
    if (is_call) {
        header.method = METHOD_OBJECT;
        header.tensor_count = 1;
        header.tensors[0] = (struct wire_tensor){WIRE_U8, 1, .dims = {header.body_bytes}};
        return header;
    }
    uint32_t offset = goes_on ? arriving->have : step[6] * 16u;
    uint32_t left_bytes = offset < header.body_bytes ? header.body_bytes - offset : 0;
    header.args[PIECE_OFFSET] = offset;
    header.args[PIECE_KIND] = goes_on ? arriving->kind : WIRE_REQUEST + (step[4] >> 1 & 1);
    header.payload_bytes = step[7] < 128 ? step[7] : WIRE_PAYLOAD_BYTES_MAX;
    if (step[7] >= 128 && left_bytes < WIRE_PAYLOAD_BYTES_MAX)
        header.payload_bytes = left_bytes;
    return header;
}

static void check_body(const struct wire_header *header, const struct rpc_body *body)
{
    require(body->count == header->body_bytes);
    for (uint32_t i = 0; i < body->count; i += 65521)
        require(body->bytes[i] == (uint8_t)(header->request + i));
    require(body->bytes[body->count - 1] == (uint8_t)(header->request + body->count - 1));
}

/* The session of a peer, which opens again once it has ended. */
static struct rpc_session *session_with(struct rpc *rpc, const struct wire_header *header)
{
    struct rpc_session *session = &rpc->sessions[header->source];
    const struct wire_header greeting = {
        .source = header->source, .role = roster[header->source], .incarnation = header->incarnation};
    sockets[header->source].dialed = session;
    if (!session->is_live)
        session_open(session, &sockets[header->source], &greeting, 0);
    return session;
}

static void receive(struct rpc *rpc, const struct wire_header *header)
{
    if (header->source >= WORKERS || header->source == SELF)
        return;
    struct rpc_session *session = session_with(rpc, header);
    if (header->kind == WIRE_BYE) {
        session_end_quietly(rpc, session, STATUS_PEER_DIED, "bye");
        require(!session->is_live && session->body_bytes == 0);
    } else if (header->kind == WIRE_PIECE) {
        uint64_t at = (header->request + header->args[PIECE_OFFSET]) % PERIOD;
        if (bodies_receive_piece(session, header, pattern + at) != NULL)
            session_end_quietly(rpc, session, STATUS_INVALID, "a bad piece");
    } else if (header->kind != WIRE_HELLO) {
        struct rpc_body body;
        enum status state;
        bodies_take(session, header, &body, &state);
        require((body.bytes != NULL) == (state == STATUS_OK));
        if (state == STATUS_OK)
            check_body(header, &body);
        body_free(&body);
        require(session->body_bytes == 0);
    }
    require(session->body_bytes <= RPC_BODY_BYTES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rpc *rpc = start();
    for (size_t i = 0; i + STEP_BYTES <= size && i < 16 * STEP_BYTES; i += STEP_BYTES) {
        struct wire_header header = header_of(data + i, rpc);
        if (wire_check(&header, NULL) == STATUS_OK)
            receive(rpc, &header);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        if (rpc->sessions[i].is_live && i != SELF)
            session_end_quietly(rpc, &rpc->sessions[i], STATUS_PEER_DIED, "the end");
        require(rpc->sessions[i].body_bytes == 0);
    }
    rpc_free(rpc, "", 0);
    return 0;
}
