/* An rpc and its parts: for rpc.c, and for tests that look inside.
 *
 *   rpc.c            opening, closing, the turn, the end of a session; owns the parts below
 *   rpc_sessions.c   who the peers are: sockets, HELLO, WELCOME, BYE, strangers
 *   rpc_incoming.c   requests that this worker serves, and its answers
 *   rpc_calls.c      calls that this worker makes, their replies, and futures
 *   rpc_outgoing.c   sending messages, and holding messages that cannot leave yet
 *   rpc_arrival.c    a message that has come, and the bodies that come in pieces
 *   rpc_rules.c      checks that need no connection
 *
 * A part calls only parts below it in this list. It reports what it finds (a fault, a lost peer, a HELLO that
 * may join) to rpc.c, which alone ends sessions. An object that ends is unlinked first and its callbacks run
 * last, so that a callback may call everything that rpc.h allows. */
#ifndef WORKER_NET_RPC_INTERNAL_H
#define WORKER_NET_RPC_INTERNAL_H

#include "worker/net/rpc_calls.h"
#include "worker/net/rpc_incoming.h"
#include "worker/net/rpc_outgoing.h"
#include "worker/net/rpc_sessions.h"

struct rpc_listener {
    rpc_left *left;
    void *context;
};

struct rpc_watched {
    int fd;
    void (*ready)(void *arg);
    void *arg;
};

struct rpc_beat {
    struct monotime (*beat)(void *arg);
    void *arg;
    struct monotime next;
};

struct rpc {
    struct rpc_common common;
    struct sessions sessions;
    struct incoming incoming;
    struct calls calls;
    struct outgoing outgoing;
    uint8_t *roster;
    bool is_closing, in_turn, has_failed;
    unsigned busy_turns;
    struct rpc_listener listeners[RPC_LEFT_MAX];
    size_t listener_count;
    struct rpc_watched watched[ENDPOINT_WATCH_MAX];
    size_t watched_count;
    struct rpc_beat beats[RPC_BEATS_MAX];
    size_t beat_count;
};

#endif
