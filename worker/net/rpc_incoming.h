/* What comes in a session: requests, which this worker serves; the bodies and lent tensors of requests and
 * replies; and the answers.
 *
 * The order of checks here, behind those of the header and its sender: the body, what is lent, method,
 * caller, tensors, unread answers, repetition. A peer that sends a request while more than REPLIES_HELD_MAX
 * answers, or 60 MiB of answers, wait for it loses its session.
 *
 * The members of the structs are for rpc_incoming.c alone. */
#ifndef WORKER_NET_RPC_INCOMING_H
#define WORKER_NET_RPC_INCOMING_H

#include "worker/net/rpc_arrival.h"
#include "worker/net/rpc_calls.h"
#include "worker/net/rpc_rules.h"

/* What there is of one peer. Its memory is not touched before the peer sends something: a client of few
 * servers in a job of many workers pays for few. */
struct source {
    struct replay_window window;
    struct bodies bodies;
    struct segment segment; /* the peer's; mapped when it first lends a tensor, and kept */
};

struct rpc_service {
    const struct rpc_method *method;
    void *context;
};

struct incoming {
    struct rpc_common *common;
    struct outgoing *outgoing;
    struct calls *calls;
    struct source *sources; /* (workers) */
    struct rpc_service services[METHOD_COUNT];
    struct rpc_request *open, *free; /* the open ones newest first */
    uint32_t open_count;
};

enum status incoming_init(struct incoming *incoming, struct rpc_common *common, struct outgoing *outgoing,
                          struct calls *calls); /* STATUS_NO_MEMORY */
void incoming_fini(struct incoming *incoming);

void incoming_add_methods(struct incoming *incoming, const struct rpc_method *methods, size_t count,
                          void *context);

/* Takes over a request, a reply or a piece of a session. A failure, in *error, costs its sender the
 * session. */
enum status incoming_receive(struct incoming *incoming, uint16_t worker, struct arrival *arrival,
                             struct error *error);

/* Serves what this worker has sent to itself, as if it had arrived, until there is nothing or `awaited` is
 * done. Returns how many messages. */
unsigned incoming_receive_own(struct incoming *incoming, const struct future *awaited);

/* The session with `worker` ends: answers to its open requests are not sent, and a body on its way is
 * dropped. */
void incoming_close(struct incoming *incoming, uint16_t worker);

struct rpc *incoming_rpc_of(const struct rpc_request *request);

#endif
