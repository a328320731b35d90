/* A message that has come, with all that belongs to it: its header, decoded once; its frames; lent tensors;
 * and the body that came ahead of it in pieces.
 *
 * A sender's messages come in order, and the pieces of a body one after the other right before the message
 * that they belong to. So a session joins one body at a time. The bodies of one peer (arriving, in open
 * requests, and in replies that are not released) take up at most RPC_BODY_BYTES_MAX. The pieces of a body
 * beyond that are checked and dropped, and the call ends with STATUS_BUSY. */
#ifndef WORKER_NET_RPC_ARRIVAL_H
#define WORKER_NET_RPC_ARRIVAL_H

#include "worker/net/endpoint.h"
#include "worker/net/rpc.h"

/* A body that came in pieces, in its own memory. */
struct body {
    uint8_t *bytes; /* NULL: none */
    uint32_t count;
    struct bodies *bodies; /* counts this body */
};

/* The bodies of one peer. All zero: none. */
struct bodies {
    size_t bytes; /* of them all */
    struct {
        struct body body;     /* NULL bytes: there was no room for it */
        uint32_t total, have; /* total 0: none comes */
        uint64_t request;
        uint8_t kind;
    } arriving;
};

/* Stores a piece. Returns the fault that costs the sender the session, or NULL. */
const char *bodies_receive_piece(struct bodies *bodies, const struct wire_header *header,
                                 const uint8_t *payload);
/* Drops the body whose pieces are arriving. */
void bodies_drop_arriving(struct bodies *bodies);

struct arrival {
    struct wire_header header;
    struct endpoint_message frames;
    const void *lent[WIRE_TENSORS_MAX]; /* the addresses of the lent tensors */
    struct body body;
    enum status body_state; /* STATUS_BUSY: no room for the body; STATUS_INVALID: it has not come */
};

/* Puts the body that came ahead of a request or reply into `arrival`, and drops the pieces of another. */
void arrival_take_body(struct arrival *arrival, struct bodies *bodies);
void arrival_drop(struct arrival *arrival);

/* A message that is kept; `message` points into the other two. */
struct kept {
    struct rpc_message message;
    struct endpoint_message frames;
    struct body body;
};

/* Moves an arrival into `kept`. kept_drop: frees what it holds. */
void arrival_keep(struct arrival *arrival, struct kept *kept);
void kept_drop(struct kept *kept);

#endif
