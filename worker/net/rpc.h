/* Remote calls between the workers of a job. The main header of the room worker/net:
 *
 *   rpc.c            calls, requests, the turn
 *   rpc_sessions.c   the peers, their sockets, and the messages on their way to them
 *   rpc_message.c    values become a message, and back
 *   wire.c           the header's format; PROTOCOL.md says the same in prose
 *   endpoint.c       ZeroMQ; endpoint_zap.c: who gets in; proof.c and host_keys.c: secrets and keys
 *   segment.c        the memory that workers share
 *
 * The nouns:
 *
 *   rpc         one worker's end of its sessions
 *   session     two workers that have exchanged HELLO and WELCOME, until BYE or a death
 *   incarnation one life of a worker; a restarted worker has a higher number
 *   call        a request of this worker to another, until it is complete; its result is a future
 *   request     a call of another worker, which a handler answers with one reply
 *   method      what a request asks for; who may call it, and with which tensors
 *   body        the tensors of a message; a long one travels in pieces
 *   lent        a tensor that stays in its sender's shared memory; only its place travels
 *   stranger    a connection without a session
 *   turn        one round of the loop: receive, expire, send, run the beats
 *
 * A worker that others dial binds a ROUTER for the workers of its host. Where the job has other hosts, it
 * binds one more for their workers. It dials each worker of a lower number that it needs, through one DEALER
 * each. One rpc_turn serves all these sockets. Once HELLO is answered, the two ends of a session are alike:
 * either end may call the other, any number of calls may be open at a time, and a handler may complete its
 * request in a later turn. No message travels through a third worker.
 *
 *   - A request completes exactly once: value, error, timeout, or its peer's death.
 *   - Nothing is resent. A request that comes twice takes effect once. A reply that comes twice, late, or
 *     without a pending call is dropped and counted.
 *   - A bad message costs its sender the session: the sender is told BYE and ignored from then on. The
 *     receiver's other sessions are unaffected.
 *
 * One thread owns a `struct rpc` and everything that comes from it. Only rpc_turn, rpc_call, rpc_wait,
 * rpc_dial and rpc_free block. Callbacks (handlers, functions of rpc_call_then, watches, beats) run inside
 * rpc_turn with no lock held. They must not call rpc_turn, rpc_call or rpc_wait (asserted). The memory of
 * futures is taken in rpc_open. The memory of requests grows with the number that are open at a time, and is
 * kept.
 *
 * The room includes kernels/base alone. The frame (worker/), worker/reference, worker/autograd and the job
 * kinds' rooms include it. worker/job includes only wire.h, and daemon/ only wire.h and segment.h. */
#ifndef WORKER_NET_RPC_H
#define WORKER_NET_RPC_H

#include "kernels/base/monotime.h"
#include "worker/net/host_keys.h"
#include "worker/net/wire.h"

#include <stdbool.h>

struct rpc;
struct rpc_request; /* a peer's call that this worker has not answered yet */
struct future;      /* the result of a call of this worker */
struct endpoint;
struct segment; /* worker/net/segment.h */

/* The values of a call or a reply. Sending: `data[i]` is where tensor i's bytes lie; they are copied once,
 * into the outgoing frame. Received: `data[i]` points into the frame, 4-byte aligned or not: copy with
 * memcpy. A received message is valid until its future is released or its request is answered. */
struct rpc_message {
    uint64_t args[WIRE_ARGS];
    uint64_t context; /* of distributed autograd (dist.h); 0: none */
    uint8_t tensor_count;
    struct wire_tensor tensors[WIRE_TENSORS_MAX];
    const void *data[WIRE_TENSORS_MAX];
    uint8_t lent; /* received: bit i: data[i] lies in the sender's memory ("Bodies of any size") */
};

/* ---- Bodies of any size ----
 * A tensor of RPC_LEND_BYTES or more whose bytes lie in this worker's outbox (rpc_config.outbox), at a
 * multiple of 64, is lent to a worker of the same host: only its place travels, and the receiver's `data`
 * points into its own mapping of the sender's segment, where the bytes stay the sender's. In a call to
 * oneself every tensor of that size is lent, wherever it lies. The lent bytes of a request must not change
 * until the call is complete. Those of a reply must not change until the caller has no more use for them, on
 * which the two ends must agree. All other bytes are copied before the call returns. A body of more than
 * WIRE_PAYLOAD_BYTES_MAX travels in pieces, and arrives as one; its largest size is RPC_BODY_BYTES_MAX. */

/* A call came in from worker `source`. Answer it with rpc_reply or rpc_fail exactly once, now or later. */
typedef void rpc_handler(void *context, struct rpc_request *request, const struct rpc_message *message);

/* One row of the dispatch table: a method without a row is not permitted. It takes no tensors, unless `dtype`
 * or `any_tensors` is set. */
struct rpc_method {
    uint16_t method;
    uint8_t callers;       /* mask of enum wire_role */
    bool at_once;          /* the handler answers before it returns: served however many calls are open */
    bool any_tensors;      /* any number, types and shapes: the handler checks them */
    uint8_t dtype;         /* one tensor of this type and of rank 1, */
    uint32_t elements_max; /* with at most so many elements */
    rpc_handler *handler;
};

/* A worker to dial, and the address that it binds. */
struct rpc_address {
    uint16_t worker;
    const char *address;
    bool is_far;   /* on another host: dialed with keys */
    uint16_t host; /* which */
};

struct rpc_config {
    uint16_t worker;
    uint8_t role; /* roster[worker] */
    uint32_t incarnation, generation;
    const uint8_t *roster;             /* the role of every worker of the job, by number; copied */
    uint32_t workers;                  /* how many; worker/roster.h has the order of their numbers */
    uint8_t secret[WIRE_SECRET_BYTES]; /* the job's: peers that cannot prove to know it are strangers */
    uint32_t pending_max;              /* this worker's calls at a time; one more is STATUS_BUSY */
    uint32_t incoming_max;             /* all peers' calls at a time; one more is answered STATUS_BUSY */
    const struct rpc_method *methods;  /* static; METHOD_ECHO is served by rpc itself */
    size_t method_count;
    void *context;                                  /* for handlers and the two below */
    void (*joined)(void *context, uint16_t worker); /* `worker` has said HELLO to this one; may be NULL */
    /* May be NULL. `why`: STATUS_INVALID, it sent a bad message; STATUS_PEER_DIED, anything else. */
    void (*left)(void *context, uint16_t worker, enum status why, const char *text);
    /* WELCOME's payload, the job's JSON; copied. 0 bytes: the job comes with the first dialed worker's
     * WELCOME, and this worker sends it on in its own. */
    const char *welcome;
    size_t welcome_bytes;
    struct segment *outbox;       /* this worker's own, mapped; NULL: nothing is lent. Outlives the rpc */
    const struct host_keys *keys; /* of the job's hosts; NULL: it has one. Outlives the rpc */
    /* (workers) the host of each worker that runs on another, -1: not known; NULL: one host. The caller keeps
     * it up to date. A HELLO from another host than that of its worker is ignored: the key of the connection
     * has proven which host the sender is on, and the news of a worker's place may come behind its HELLO. */
    const int16_t *host_of_worker;
    const char *far_address; /* where workers of other hosts may dial this one, "tcp://ADDRESS:PORT", PORT "*"
                                for a free one; NULL: none dials it */
};

/* `address`: where workers of higher numbers on this host may dial this one ("ipc://…": the path must not
 * exist); NULL: no worker dials it. Errors: STATUS_BUSY (taken), STATUS_INVALID
 * (address), STATUS_PERMISSION, STATUS_UNAVAILABLE (no CURVE), STATUS_IO, STATUS_NO_MEMORY. */
enum status rpc_open(struct rpc **out, const struct rpc_config *config, const char *address,
                     struct error *error);

/* Dials 0 to RPC_DIALED_MAX workers, all of lower numbers than this one's, no two alike: connects a DEALER to
 * each, says HELLO to all, and blocks until every WELCOME has come or `deadline`. Once, right after rpc_open.
 * No handler runs meanwhile; messages to the bound socket wait. Errors name the worker: STATUS_TIMEOUT;
 * STATUS_PERMISSION with the reason in its BYE, or when its WELCOME does not prove the job's secret; as
 * rpc_open. After an error only rpc_free is left. */
enum status rpc_dial(struct rpc *rpc, const struct rpc_address *addresses, size_t count,
                     struct monotime deadline, struct error *error);

/* A layer's own methods, with its own context for their handlers, after rpc_open and before the first turn.
 * `methods` is static; no method may be served twice (asserted). */
void rpc_add_methods(struct rpc *rpc, const struct rpc_method *methods, size_t count, void *context);

/* Adds a function that is called when a session ends, as rpc_config.left and after it, in order of adding. At
 * most RPC_LEFT_MAX. */
typedef void rpc_left(void *context, uint16_t worker, enum status why, const char *text);
void rpc_on_left(struct rpc *rpc, rpc_left *left, void *context);

/* Calls to oneself are served too, in the next turn, as if they had come from outside; a method that is not
 * permitted is STATUS_PERMISSION there. */

/* This worker's own number; how many workers the job has. */
uint16_t rpc_worker(const struct rpc *rpc);
uint32_t rpc_workers(const struct rpc *rpc);

/* Whether there is a session with `worker`, or `worker` is this one. */
bool rpc_reaches(const struct rpc *rpc, uint16_t worker);

/* Whether there is a session with `worker`, and it joins two hosts. */
bool rpc_is_far(const struct rpc *rpc, uint16_t worker);

/* The port at which workers of other hosts dial this one; 0: none. */
uint16_t rpc_far_port(const struct rpc *rpc);

/* Whether there was a session with `worker`, and there is none now. */
bool rpc_is_gone(const struct rpc *rpc, uint16_t worker);

/* The job's JSON, of the configuration or the first dialed worker's WELCOME: zero-terminated, valid as long
 * as the rpc. */
const char *rpc_welcome(const struct rpc *rpc, size_t *bytes);

/* Tells every peer BYE with `why`, completes all pending calls with STATUS_SHUTDOWN (their functions
 * run; `left` does not), sends queued messages for at most `linger_ms`, and frees everything,
 * also futures and requests that were not released. NULL is allowed. */
void rpc_free(struct rpc *rpc, const char *why, int linger_ms);

/* ---- the loop ---- */

/* One turn: waits until something can be done or `until` has come (a past time: does not wait), then runs the
 * watches that are ready, handles every message that has arrived (a bounded number a turn), expires calls
 * whose deadline has passed, and sends messages that waited for room. STATUS_PEER_DIED: a session that this
 * worker dialed has ended; all other sessions go on. STATUS_IO: a socket itself failed, and nothing more will
 * work. The turn in which a dialed session ends does not wait; later turns do. */
enum status rpc_turn(struct rpc *rpc, struct monotime until);

/* Lets rpc_turn wait on `fd` too and call `ready` when it can be read. At most 4: then STATUS_BUSY. */
enum status rpc_watch(struct rpc *rpc, int fd, void (*ready)(void *arg), void *arg);

/* Makes every turn, also those inside rpc_call, call `beat` at its end, and wait no longer than until the
 * time it returned last. At most RPC_BEATS_MAX, called in order of adding. */
void rpc_on_turn(struct rpc *rpc, struct monotime (*beat)(void *arg), void *arg);

/* Completes every pending call with `why`. */
void rpc_cancel_all(struct rpc *rpc, enum status why, const char *text);

/* Ends the session with `worker` and completes the calls to it, unless the session is a later incarnation's:
 * the news of a death may come behind the successor's HELLO. */
void rpc_peer_died(struct rpc *rpc, uint16_t worker, uint32_t incarnation, const char *text);

/* ---- calling ---- */

/* Sends a request to `worker`. MONOTIME_NEVER: no deadline. On STATUS_OK *out is a future that the caller
 * releases. Errors, with no future and no effect: STATUS_NOT_FOUND (no such peer has a session), STATUS_BUSY
 * (pending_max, or too many messages or bytes wait for the peer; or 2 * pending_max + 64 futures are not
 * released), STATUS_INVALID (larger than the limits). */
enum status rpc_call_async(struct rpc *rpc, uint16_t worker, enum wire_method method,
                           const struct rpc_message *message, struct monotime deadline, struct future **out,
                           struct error *error);

/* As rpc_call_async, with a function that runs once, when the call is done: inside a turn, or inside
 * rpc_cancel_all, rpc_peer_died, rpc_reject, rpc_reject_worker and rpc_free. `out` may be NULL. */
typedef void future_then_function(struct future *future, void *arg);
enum status rpc_call_then(struct rpc *rpc, uint16_t worker, enum wire_method method,
                          const struct rpc_message *message, struct monotime deadline,
                          future_then_function *then, void *arg, struct future **out, struct error *error);

/* Sends a request of args and a context, whose answer nobody needs. Without room the request waits, and is
 * tried again in later turns. It is dropped where there is no session, or when the session ends. Without
 * memory to wait the session with `worker` ends; a request to this worker itself is lost. */
void rpc_notify(struct rpc *rpc, uint16_t worker, enum wire_method method, const struct rpc_message *message);

/* rpc_call_async and rpc_wait in one, for a role's top level: turns until the future is done, and serves
 * calls meanwhile. Returns the future's status; on STATUS_OK *out holds the value until it is released,
 * otherwise *out is NULL and *error says why. `out` may be NULL. */
enum status rpc_call(struct rpc *rpc, uint16_t worker, enum wire_method method,
                     const struct rpc_message *message, struct monotime deadline, struct future **out,
                     struct error *error);

/* For a role's top level: turns until `future` is done. Its status; *error says why it failed. */
enum status rpc_wait(struct rpc *rpc, struct future *future, struct error *error);

bool future_done(const struct future *future);
enum status future_status(const struct future *future); /* STATUS_AGAIN while not done */
const char *future_text(const struct future *future);   /* the error's text, "" when there is none */
const struct rpc_message *future_value(const struct future *future); /* NULL unless done with STATUS_OK */

/* Gives the future back. The call of a future that is not done runs on; its reply is dropped. NULL is
 * allowed. */
void future_release(struct future *future);

/* ---- answering ---- */

uint16_t rpc_request_source(const struct rpc_request *request);
const struct rpc_message *rpc_request_message(const struct rpc_request *request);

/* False: the caller's session has ended, and an answer is not sent. */
bool rpc_request_is_live(const struct rpc_request *request);

/* Has `answered` called once, when the request is completed (within rpc_reply, rpc_fail, rpc_reject, before
 * the answer leaves) or thrown away by rpc_free. One per request. */
typedef void rpc_answered(void *context, uint64_t number);
void rpc_on_answer(struct rpc_request *request, rpc_answered *answered, void *context, uint64_t number);

/* Completes the request and frees it; the answer is sent if the caller's session is live. A value over the
 * limits of a message fails the request with STATUS_INVALID and a text that names the limit. A value whose
 * body finds no room to wait fails it with STATUS_BUSY. */
void rpc_reply(struct rpc_request *request, const struct rpc_message *value);
void rpc_fail(struct rpc_request *request, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A malformed argument inside a well-formed message: fails the request with STATUS_INVALID and ends its
 * sender's session, as for any bad message: `left` and the functions of failed calls run before it returns.
 */
void rpc_reject(struct rpc_request *request, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a malformed value inside a well-formed reply: ends the session of the worker that sent it. */
void rpc_reject_worker(struct rpc *rpc, uint16_t worker, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- counters, since the start ---- */

struct rpc_counters {
    uint64_t sent;       /* messages */
    uint64_t bad;        /* messages that cost their sender the session */
    uint64_t strangers;  /* messages of peers without a session: ignored */
    uint64_t duplicates; /* requests seen before: dropped */
    uint64_t stale;      /* replies without a pending call, old generations: dropped */
    uint64_t timeouts;   /* of this worker's calls */
    /* Connections to the bound socket; see struct endpoint_counts in worker/net/endpoint.h. */
    uint64_t unproven; /* they ended without having shown the pass */
    uint64_t refused;  /* they showed a wrong one */
    uint64_t crowded;  /* cut off, because more came than may wait */
};
void rpc_counters(const struct rpc *rpc, struct rpc_counters *counters);

#endif
