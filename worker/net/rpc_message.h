/* What a message holds, apart from any connection: values become a header and bytes, and back. So all of it
 * is tested and fuzzed alone.
 *
 *   arrival   a message that has come: its header, decoded once; its frames; lent tensors; its body
 *   kept      an arrival that an open request or a future holds
 *
 * A sender's messages come in order, and the pieces of a body one after the other right before the message
 * that they belong to. So a session joins one body at a time. The bodies of one peer (arriving, in open
 * requests, and in replies that are not released) take up at most RPC_BODY_BYTES_MAX. The pieces of a body
 * beyond that are checked and dropped, and the call ends with STATUS_BUSY. */
#ifndef WORKER_NET_RPC_MESSAGE_H
#define WORKER_NET_RPC_MESSAGE_H

#include "worker/net/endpoint.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"

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

/* ---- building ---- */

enum { OWN_TAIL_BYTES = WIRE_TENSORS_MAX * sizeof(const void *) };

/* Puts args, context and tensors into `header`, with the places of lent tensors: those that lie in `outbox`
 * (NULL: none), or all large ones of a message to this worker itself (`is_own`). STATUS_INVALID: they exceed
 * a message's limits. */
enum status message_describe(struct wire_header *header, const struct rpc_message *value, bool is_own,
                             const struct segment *outbox, struct error *error);

/* Copies `count` bytes, from `from` on, of the tensors that travel, one after the other. */
void message_gather(const struct wire_header *header, const struct rpc_message *value, size_t from,
                    size_t count, uint8_t *out);

/* Behind the payload of a message to this worker itself: the addresses of the lent tensors, NULL for others.
 */
void message_add_own_tail(const struct wire_header *header, const struct rpc_message *value, uint8_t *out);

/* ---- checking and opening ---- */

/* Checks that a request has the tensor that the method takes, or none. */
enum status message_check_tensors(const struct rpc_method *method, const struct wire_header *header,
                                  struct error *error);

/* Fills a message from a header, its payload, and the addresses of the lent tensors. */
void message_open(struct rpc_message *message, const struct wire_header *header, const uint8_t *payload,
                  const void *const lent[WIRE_TENSORS_MAX]);

/* message_lends: whether any tensor is lent. message_find_lent: the addresses of the lent tensors, NULL for
 * the others. STATUS_INVALID names a tensor that is not within the segment. */
bool message_lends(const struct wire_header *header);
enum status message_find_lent(const struct wire_header *header, const struct segment *segment,
                              const void *lent[WIRE_TENSORS_MAX], struct error *error);

/* Copies text from a peer, bounded, with unprintable characters replaced. */
void message_copy_text(char *out, size_t out_bytes, const void *text, size_t text_bytes);

/* The request ids that a session has seen lately. All zero: none. */
struct replay_window {
    uint64_t top; /* the highest */
    uint64_t bits[REPLAY_WINDOW / 64];
};

/* Notes a request id. False: the id was seen before, or is too old to tell. */
bool replay_window_note(struct replay_window *window, uint64_t id);

#endif
