/* A worker with one peer that says anything, without a socket for it: its connection is made up, and what it
 * says is handed to the rpc as if it had arrived. For fuzz targets, which each use what they need. */
#ifndef TEST_FUZZ_FUZZ_PEER_H
#define TEST_FUZZ_FUZZ_PEER_H

#include "worker/net/rpc.c"          // NOLINT(bugprone-suspicious-include): a session without a connection
#include "worker/net/rpc_sessions.c" // NOLINT(bugprone-suspicious-include): a session without a connection
#include "worker/reference/rref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SELF = 0, PEER = 1, WORKERS = 3, CONNECTION = 4242 };

static const uint8_t roster[WORKERS] = {WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER};

static struct rpc *rpc;
static uint32_t incarnation; /* the last that was given out */
static uint64_t request_id;

static inline void require(int holds)
{
    if (!holds)
        abort();
}

static inline void peer_open_rpc(const char *name, struct segment *outbox)
{
    char address[64];
    struct error error = {0};
    struct rpc_config config = {.worker = SELF,
                                .role = WIRE_ROLE_PSERVER,
                                .incarnation = 1,
                                .generation = 1,
                                .roster = roster,
                                .workers = WORKERS,
                                .pending_max = 16,
                                .incoming_max = 16,
                                .outbox = outbox};
    snprintf(address, sizeof address, "ipc:///tmp/fuzz-%s-%d", name, (int)getpid());
    require(rpc_open(&rpc, &config, address, &error) == STATUS_OK);
    unlink(address + strlen("ipc://"));
}

static inline void peer_open_session(void)
{
    incarnation++;
    session_open(rpc->sessions, 0, &(struct wire_header){.source = PEER, .incarnation = incarnation},
                 CONNECTION);
    request_id = 1;
}

static inline bool peer_number_was_given(struct rrefs *rrefs, uint64_t number)
{
    void *object;
    const struct rref_class *class;
    struct error error = {0};
    const enum status status = rref_object_use(rrefs, PEER, number, &object, &class, &error);
    if (status == STATUS_OK)
        rref_object_done(rrefs, number);
    return status != STATUS_NOT_FOUND || strstr(error.text, "was freed") != NULL;
}

/* The last number that an object of the worker was given. */
static inline uint64_t peer_newest_object(struct rrefs *rrefs)
{
    static uint64_t newest;
    while (peer_number_was_given(rrefs, newest + 1))
        newest++;
    return newest;
}

/* Mostly the number of an object that there has been lately, or one beside. */
static inline uint64_t object_number(uint8_t byte, uint64_t newest)
{
    if (byte >= 0xf0)
        return (uint64_t)byte * UINT64_C(0x0101010101010101);
    return (byte & 8) != 0 ? newest + 1 - (byte & 7) : newest - (byte & 7);
}

/* What a worker sends in its session: the header, of which kind, request, and what the kind has of its own
 * are set, and a payload of as many bytes as the tensors that travel have, or as payload_bytes says of a
 * message without. False: no such header can be sent. */
static inline bool peer_write(struct endpoint_message *frames, uint16_t worker, const struct session *session,
                              struct wire_header *header, const void *payload)
{
    uint8_t encoded[WIRE_HEADER_BYTES];
    size_t payload_bytes = header->payload_bytes;
    for (unsigned i = 0; i < header->tensor_count && header->body_bytes == 0; i++)
        payload_bytes += header->places[i] == 0 ? wire_tensor_bytes(&header->tensors[i]) : 0;
    header->source = worker;
    header->incarnation = session->incarnation;
    header->generation = 1;
    header->payload_bytes = (uint32_t)payload_bytes;
    if (payload_bytes > WIRE_PAYLOAD_BYTES_MAX || wire_check(header, NULL) != STATUS_OK)
        return false;
    wire_encode(header, encoded);
    require(endpoint_prepare(frames, session->peer, encoded, sizeof encoded, payload_bytes) == STATUS_OK);
    if (payload_bytes > 0)
        memcpy(frames->payload, payload, payload_bytes);
    return true;
}

/* What makes a header one of a request, whose method, args, context and tensors are set. */
static inline void peer_ask(struct wire_header *header)
{
    header->kind = WIRE_REQUEST;
    header->request = request_id++;
    header->left_us = UINT64_MAX;
}

/* A request of the peer's, with its payload, arrives. */
static inline void peer_say(struct wire_header *header, const void *payload)
{
    struct arrival arrival = {0};
    peer_ask(header);
    require(peer_write(&arrival.frames, PEER, &rpc->sessions->table[PEER], header, payload));
    arrival.header = *header;
    rpc_receive_message(rpc, PEER, &arrival);
}

/* A turn; that what is answered arrives nowhere does not end the session. */
static inline void peer_turn(void)
{
    struct session *session = &rpc->sessions->table[PEER];
    rpc->sessions->lost_count -= session->is_lost;
    session->is_lost = false;
    rpc_turn(rpc, (struct monotime){1});
}

#endif
