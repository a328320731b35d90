/* Messages that leave. Each is built once, and sent at once or held until there is room.
 *
 * A lane is the way to one worker. A message that finds its peer's queue full waits in its lane, behind
 * earlier messages, and is tried again every turn: messages arrive in the order of sending. A body of more
 * than one payload leaves in pieces, right before its message. Pieces that find room are copied from the
 * caller's memory; the rest is copied into buffers, at most RPC_BODY_BYTES_MAX bytes a lane. A message to
 * this worker itself waits until the next turn takes it. A farewell is a BYE, which has no lane.
 *
 * The members of the structs are for rpc_outgoing.c alone. */
#ifndef WORKER_NET_RPC_OUTGOING_H
#define WORKER_NET_RPC_OUTGOING_H

#include "worker/net/endpoint.h"
#include "worker/net/rpc.h"

enum { OWN_TAIL_BYTES = WIRE_TENSORS_MAX * sizeof(const void *) }; /* see outgoing_take_own */

/* What all parts of an rpc share: the configuration, which does not change after rpc_open, and the counters.
 */
struct rpc_common {
    struct rpc *rpc;
    struct rpc_config config;
    struct rpc_counters counters;
    unsigned callbacks; /* depth of callbacks running: none of them may start a turn */
};

struct held; /* a message that waits */

struct held_queue {
    struct held *first, *last;
    uint32_t count;
};

struct held_count {
    uint32_t messages;
    size_t bytes; /* of their payloads */
};

struct lane {
    struct endpoint *way; /* NULL: to this worker itself */
    uint32_t peer;
    bool lends;
    bool is_lost; /* a send has found the peer gone */
    struct held_queue held;
    struct held_count requests, answers; /* that wait */
    size_t body_bytes;                   /* of the bodies among both */
};

struct outgoing {
    struct rpc_common *common;
    struct lane *lanes; /* (workers) */
    struct held_queue farewells;
    struct held_queue own;  /* to this worker itself */
    struct held *spare;     /* for messages that will wait: one for each worker, and those given back */
    uint32_t requests_held; /* of all lanes */
    uint32_t held_total;    /* messages that wait to leave, farewells included */
    uint32_t lost_count;    /* lanes */
};

enum status outgoing_init(struct outgoing *outgoing, struct rpc_common *common); /* STATUS_NO_MEMORY */
void outgoing_fini(struct outgoing *outgoing);

/* A session with `worker` begins: its messages leave through `way`, NULL for those to this worker itself.
 * `peer`: as in struct endpoint_message. `lends`: large tensors in the outbox are lent. outgoing_close: the
 * session ends, and the messages that wait for it are dropped. */
void outgoing_open(struct outgoing *outgoing, uint16_t worker, struct endpoint *way, uint32_t peer,
                   bool lends);
void outgoing_close(struct outgoing *outgoing, uint16_t worker);

/* The header that all messages of this worker have in common. */
struct wire_header outgoing_header(const struct outgoing *outgoing, enum wire_kind kind,
                                   uint16_t destination);

/* Sends a request to header->destination, or holds it. Errors as rpc_call_async. */
enum status outgoing_send_request(struct outgoing *outgoing, struct wire_header *header,
                                  const struct rpc_message *message, struct error *error);

/* Sends the answer to a request, `value` or `text`, or holds it. When there is no memory for it the lane is
 * lost: otherwise the caller would wait for ever. STATUS_NO_MEMORY: the same in the lane to this worker
 * itself, which cannot be lost. */
enum status outgoing_send_answer(struct outgoing *outgoing, struct wire_header *header,
                                 const struct rpc_message *value, const char *text);

/* Sends a message of bytes outside of a session. If it cannot leave at once it waits (`hold`), or is dropped:
 * false. */
bool outgoing_send_bytes(struct outgoing *outgoing, struct endpoint *way, struct wire_header *header,
                         uint32_t peer, const void *bytes, size_t count, bool hold);

/* Sends what waits and finds room. outgoing_is_waiting: something waits, farewells included. */
void outgoing_flush(struct outgoing *outgoing);
bool outgoing_is_waiting(const struct outgoing *outgoing);

/* Takes the oldest message to this worker itself. False: there is none. Its large tensors are not copied:
 * behind the payload stand OWN_TAIL_BYTES of addresses, NULL for a tensor that travels. */
bool outgoing_take_own(struct outgoing *outgoing, struct endpoint_message *out);

/* Whether large tensors are lent in the session with `worker`. */
bool outgoing_lends(const struct outgoing *outgoing, uint16_t worker);

/* Whether `worker` leaves so many answers unread that no further request of it is served. */
bool outgoing_is_unread(const struct outgoing *outgoing, uint16_t worker);

/* The first worker from `from` on whose lane is lost, -1: none. The owner ends its session, outside of the
 * work of whoever has sent the message. */
int outgoing_next_lost(const struct outgoing *outgoing, unsigned from);

#endif
