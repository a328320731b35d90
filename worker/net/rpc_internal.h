/* Declarations shared by the files of the rpc, and private to them. All functions are for the thread that
 * owns the rpc.
 *
 *   rpc.c              opening, closing, the turn
 *   rpc_dial.c         HELLO to the workers of lower numbers
 *   rpc_self.c         calls to oneself, as they arrive
 *   rpc_receive.c      the checks of every message that arrives
 *   rpc_hello.c        HELLO and WELCOME as they arrive; strangers
 *   rpc_session_end.c  the end of a session: BYE, death, a bad message
 *   rpc_answer.c       calls that this worker answers: dispatch, replies
 *   rpc_call.c         calls that this worker makes, their replies, and futures
 *   rpc_duplicates.c   the window that recognises a repeated request
 *   rpc_send.c         sending messages, and holding messages that cannot leave yet
 *   rpc_queue.c        the pool of requests, and the queues they stand in
 *   rpc_session.c      the table of sessions, and connections to ignore
 *   rpc_body.c         bodies that arrive and leave in pieces
 *   rpc_rules.c        the checks that need no connection
 *   greeting.c         the proofs in HELLO and WELCOME
 *   host_keys.c        the keys of the job's hosts
 *
 * A file calls only files below it in this list.
 *
 * An object that ends is unlinked first and its callbacks run last, so that a callback may call everything
 * that rpc.h allows. */
#ifndef WORKER_NET_RPC_INTERNAL_H
#define WORKER_NET_RPC_INTERNAL_H

#include "worker/net/endpoint.h"
#include "worker/net/greeting.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"

enum {
    SELF_TAIL_BYTES = WIRE_TENSORS_MAX * sizeof(const void *), /* see rpc_self.c */
};

/* A body that came in pieces, in its own memory. */
struct rpc_body {
    uint8_t *bytes; /* NULL: none */
    uint32_t count;
    struct rpc_session *session; /* its RPC_BODY_BYTES_MAX counts this body */
};

/* A body while its pieces come. */
struct arriving_body {
    struct rpc_body body; /* NULL bytes: there was no room for it */
    uint32_t total, have; /* total 0: none comes */
    uint64_t request;
    uint8_t kind;
};

/* The rest of a body that has begun to leave. */
struct leaving_body {
    struct wire_header header; /* of the next piece */
    uint32_t first;            /* where `bytes` begin in the body */
    bool has_piece;
    struct endpoint_message piece; /* the next one, when it has been built */
    uint8_t bytes[];
};

/* A request or reply that has come, with all that belongs to it. */
struct rpc_arrival {
    struct wire_header header;
    struct endpoint_message *frames;
    const void *lent[WIRE_TENSORS_MAX];
    struct rpc_body body;
    enum status body_state; /* STATUS_BUSY: no room for it; STATUS_INVALID: it has not come */
};

struct future {
    struct rpc *rpc;
    struct future *next; /* in the list of free futures, of a session's pending calls, or of calls that are
                            done and whose functions have not run yet */
    uint32_t references;
    bool is_done, has_frames;
    enum status status;
    char text[WIRE_ERROR_TEXT_MAX + 1];
    struct rpc_session *session;
    uint64_t request;
    uint16_t method;
    struct monotime deadline;
    future_then_function *then; /* NULL: none */
    void *arg;
    struct endpoint_message frames; /* the reply, which `value` points into */
    struct rpc_body body;           /* or into this */
    struct rpc_message value;
};

struct held_count {
    uint32_t messages;
    size_t bytes; /* of their payloads */
};

/* A peer's call; or a message of this worker that cannot leave yet, such as the answer to that call. */
struct rpc_request {
    struct rpc *rpc;
    struct endpoint *way;        /* a farewell: the socket to send it through */
    bool is_answer;              /* of a message that waits: a reply; else a request */
    struct rpc_session *session; /* NULL: its peer is gone */
    struct rpc_request *previous, *next;
    struct rpc_request *next_of_all;
    uint64_t id;
    uint16_t method, source;
    bool is_used;           /* not in the pool: it holds frames */
    rpc_answered *answered; /* NULL: none */
    void *answered_context;
    uint64_t answered_number;
    struct rpc_message message;
    struct endpoint_message frames;
    struct rpc_body body;         /* which came with it */
    struct leaving_body *leaving; /* the rest of the body, which leaves ahead of the frames; or NULL */
};

struct request_queue {
    struct rpc_request *first, *last;
    uint32_t count;
};

/* One peer. There is one session per worker of the roster, by number. Its memory is not touched before HELLO
 * or WELCOME: a client of few servers in a job of many workers pays for few. */
struct rpc_session {
    struct rpc_socket *socket;
    uint16_t worker;
    uint8_t role;
    bool is_live, was_live;
    bool is_lost; /* a send found the peer gone; the next turn ends the session */
    bool is_self;
    uint32_t peer, incarnation;
    uint8_t nonce[WIRE_NONCE_BYTES]; /* of this worker's HELLO, or of the peer's */
    uint64_t next_request;
    struct future *calls, *calls_last; /* this worker's pending calls */
    struct request_queue open, held;
    struct held_count requests_held; /* this worker's requests that wait to leave */
    struct held_count answers_held;  /* answers that wait to leave */
    size_t leaving_bytes;            /* of the bodies among both */
    size_t body_bytes;               /* of the peer's bodies in this worker: see rpc_body.c */
    struct arriving_body arriving;
    struct segment segment; /* the peer's segment; mapped when it first lends a tensor, and kept */
    uint64_t window_top;    /* the highest request id seen */
    uint64_t window[REPLAY_WINDOW / 64];
};

/* A bound socket, which tells its connections apart by routing id, or a dialed one. */
struct rpc_socket {
    struct endpoint *endpoint;
    struct rpc_session *dialed; /* NULL: a bound one. Until it is live, an answer to HELLO is awaited. */
    bool is_far;                /* to other hosts, with keys: nothing is lent through it */
};

/* A connection of a bound socket that this worker ended with BYE. */
struct rpc_stranger {
    const struct rpc_socket *socket;
    uint32_t peer;
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

struct rpc_service {
    const struct rpc_method *method;
    void *context;
};

struct rpc_listener {
    rpc_left *left;
    void *context;
};

struct rpc {
    struct rpc_config config;
    uint8_t *roster;
    struct rpc_socket
        sockets[ENDPOINT_SET_MAX]; /* the bound ones come first: this host's, the other hosts' */
    struct endpoint *endpoints[ENDPOINT_SET_MAX]; /* the sockets' endpoints, in the same order */
    size_t socket_count;
    size_t bound_count;  /* how many are bound: 0 to 2 */
    unsigned gone_count; /* sessions that this worker dialed and that have ended */
    bool is_closing, in_turn, has_failed;
    unsigned callbacks; /* depth of callbacks running */
    unsigned busy_turns;
    struct rpc_counters counters;
    struct error join_error; /* why the peer that answered HELLO last cannot be joined */
    uint8_t *welcome;        /* WELCOME's payload: room for the proof, the job's text, a terminating zero */
    size_t welcome_bytes;    /* of the job's text */
    struct rpc_service services[METHOD_COUNT];
    struct rpc_listener listeners[RPC_LEFT_MAX];
    size_t listener_count;

    struct rpc_session *sessions; /* (config.workers) */
    unsigned lost_count;
    struct rpc_stranger strangers[STRANGERS_MAX];
    unsigned stranger_count, stranger_next;

    struct future *futures, *free_futures;
    size_t future_count;
    struct future *done_first, **done_end; /* calls that are done and whose functions have not run yet */
    bool is_telling;
    uint32_t pending;
    struct monotime next_deadline; /* no pending call has an earlier one */

    struct rpc_request *requests, *free_requests; /* all, and those that are not used */
    uint32_t incoming;                            /* peers' calls that are open */
    uint32_t held_total;                          /* messages that wait to leave, farewells included */
    uint32_t requests_held;                       /* requests among them */
    struct request_queue farewells;
    struct request_queue local; /* sent to oneself, not taken up yet */

    struct rpc_watched watched[ENDPOINT_WATCH_MAX];
    size_t watched_count;
    struct rpc_beat beats[RPC_BEATS_MAX];
    size_t beat_count;
};

/* ---- rpc_session.c ---- */

enum status sessions_new(struct rpc *rpc);
void sessions_free(struct rpc *rpc);
struct rpc_session *session_of(struct rpc *rpc, uint16_t worker); /* live, or NULL */

/* Makes a session live after HELLO or WELCOME, with nothing sent or seen in it yet. `peer`: the bound
 * socket's name for the connection; 0: a dialed one. */
void session_open(struct rpc_session *session, struct rpc_socket *socket, const struct wire_header *greeting,
                  uint32_t peer);

/* Whether large tensors can be lent in this session. */
bool session_lends(const struct rpc *rpc, const struct rpc_session *session);

/* The session of a connection of a bound socket; NULL: a stranger. `source`: the worker that a message of it
 * names, which is looked at first. */
struct rpc_session *session_of_peer(struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer,
                                    uint16_t source);
/* Whether this worker sent the connection BYE lately. */
bool peer_is_ignored(const struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer);
void peer_ignore(struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer);

/* A send found the peer gone: the next turn ends the session, outside of the caller's work. */
void session_lose(struct rpc *rpc, struct rpc_session *session);

/* ---- rpc_session_end.c ---- */

/* Ends a session: BYE, the peer's open requests detached, the calls of it completed with `call_status`, and
 * `left` called. Does nothing to a session that has ended, nor to the session with oneself. */
void session_end(struct rpc *rpc, struct rpc_session *session, enum status why, enum status call_status,
                 const char *text);
/* The same without BYE: the peer knows, or cannot be reached. */
void session_end_quietly(struct rpc *rpc, struct rpc_session *session, enum status why, const char *text);
/* The same because of a bad message, which is counted. */
void session_end_bad(struct rpc *rpc, struct rpc_session *session, const char *text);

/* Sends a BYE, which may wait for room; `peer` as in struct endpoint_message. */
void session_say_bye(struct rpc *rpc, struct rpc_socket *socket, uint32_t peer, uint16_t destination,
                     const char *text);

/* Ends the sessions that are lost. */
void sessions_reap(struct rpc *rpc);

/* ---- rpc_hello.c ---- */

/* Keeps the job's text, for this worker and for its own WELCOMEs. STATUS_NO_MEMORY. */
enum status hello_keep_job(struct rpc *rpc, const void *text, size_t bytes);

/* Whether HELLO was sent through this socket and no WELCOME has come yet. */
bool hello_is_awaited(const struct rpc_socket *socket);

/* Each takes the message over: the first answer to HELLO; a message on a connection without a session. */
void hello_receive_answer(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message);
void hello_receive_stranger(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message);

/* A greeting within a session: repeated, or out of place. Takes the arrival over. */
void hello_receive_again(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival);

/* ---- rpc_receive.c ---- */

/* Takes one message from the socket, checks it, and hands it to the file that acts on it. False: there is
 * none, or the socket has failed (rpc->has_failed). */
bool receive_one(struct rpc *rpc, struct rpc_socket *socket);

/* ---- rpc_dial.c ---- */

/* Adds a socket. `dialed`: the session that it is for; NULL: a bound one. */
void rpc_add_socket(struct rpc *rpc, struct endpoint *endpoint, struct rpc_session *dialed, bool is_far);

/* ---- rpc_duplicates.c ---- */

/* Notes a request id; false when it was seen before, or is too old to tell. */
bool duplicates_note(struct rpc_session *session, uint64_t id);

/* ---- rpc_rules.c ---- */

/* Checks a request's tensors against the method's rules. */
enum status rules_check_tensors(const struct rpc_method *method, uint32_t rows_max,
                                const struct wire_header *header, struct error *error);

/* Fills a message from a header, its payload, and the addresses of the lent tensors. */
void rules_open_message(struct rpc_message *message, const struct wire_header *header, const uint8_t *payload,
                        const void *const lent[WIRE_TENSORS_MAX]);

/* rules_lends: whether any tensor is lent. rules_find_lent: the addresses of the lent tensors, NULL for the
 * others; STATUS_INVALID names a tensor that is not within the segment. */
bool rules_lends(const struct wire_header *header);
enum status rules_find_lent(const struct wire_header *header, const struct segment *segment,
                            const void *lent[WIRE_TENSORS_MAX], struct error *error);

/* Copies text from a peer, bounded, with unprintable characters replaced. */
void rules_copy_text(char *out, size_t out_bytes, const void *text, size_t text_bytes);

/* ---- rpc_call.c ---- */

enum status futures_new(struct rpc *rpc);
void futures_free(struct rpc *rpc);
void futures_tell(struct rpc *rpc); /* runs the functions of calls that are done */

/* A reply has come: completes its call, and takes the arrival over. Returns the fault that costs the sender
 * the session, or NULL. */
const char *calls_receive_reply(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival);
/* Ends the call of `session` with that id, if it is pending still. Its function runs in the next turn. */
void calls_fail(struct rpc_session *session, uint64_t request, enum status why, const char *text);
void calls_expire(struct rpc *rpc); /* the calls whose deadline has passed */
/* Completes the pending calls of `session`; NULL: all. */
void calls_complete(struct rpc *rpc, const struct rpc_session *session, enum status why, const char *text);

/* ---- rpc_answer.c ---- */

void answers_serve_echo(struct rpc *rpc);
/* A request has come: serves it, and takes the arrival over. A failure, in *error, costs its sender the
 * session. */
enum status answers_receive_request(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival,
                                    struct error *error);
/* The session ends: answers to its open requests are not sent, and messages that wait for it are dropped. */
void answers_detach(struct rpc *rpc, struct rpc_session *session);

/* ---- rpc_body.c ---- */

/* Stores a piece. Returns the fault that costs the sender the session, or NULL. */
const char *bodies_receive_piece(struct rpc_session *session, const struct wire_header *header,
                                 const uint8_t *payload);
/* Hands over the body that came ahead of a request or reply, and drops the pieces of another. */
void bodies_take(struct rpc_session *session, const struct wire_header *header, struct rpc_body *body,
                 enum status *state);
void bodies_drop(struct rpc_session *session); /* the body that is being put together */
void body_free(struct rpc_body *body);
void arrival_drop(struct rpc_arrival *arrival);
void leaving_free(struct rpc_request *request); /* the body ahead of a message that waits */

/* ---- rpc_self.c ---- */

void self_open(struct rpc *rpc); /* the session with oneself, which never ends */
/* Handles messages sent to oneself, until there are none or `awaited` is done. Returns how many. */
unsigned self_drain(struct rpc *rpc, const struct future *awaited);

/* ---- rpc_send.c ---- */

/* Fills the fields that all headers of this worker share. */
void rpc_header(const struct rpc *rpc, struct wire_header *header, enum wire_kind kind, uint16_t destination);

/* Sends a message of text. If it cannot leave at once it waits (`hold`), or is dropped: false. */
bool send_text(struct rpc *rpc, struct endpoint *way, struct wire_header *header, uint32_t peer,
               const void *text, size_t bytes, bool hold);

/* Sends a request, or holds it until there is room. Errors as rpc_call_async. */
enum status send_request(struct rpc *rpc, struct rpc_session *session, struct wire_header *header,
                         const struct rpc_message *message, struct error *error);
/* Sends the answer to a request that is closed, `value` or `text`, and gives the request back when it has
 * left. STATUS_NO_MEMORY: a request of this worker to itself cannot be answered. */
enum status send_answer(struct rpc_request *request, struct wire_header *header,
                        const struct rpc_message *value, const char *text);
void send_drop_held(struct rpc *rpc, struct rpc_session *session);
void send_flush(struct rpc *rpc);

/* ---- rpc_queue.c ---- */

enum status requests_new(struct rpc *rpc); /* STATUS_NO_MEMORY */
void requests_free(struct rpc *rpc);
void request_tell_answered(struct rpc_request *request); /* calls the function of rpc_on_answer, once */
/* An object out of the pool, with the frames moved into it. NULL: no memory. */
struct rpc_request *request_take(struct rpc *rpc, struct endpoint_message *frames);
void request_give_back(struct rpc *rpc, struct rpc_request *request);
void request_release(struct rpc_request *request); /* its frames, and its body */
void queue_push(struct request_queue *queue, struct rpc_request *request);
void queue_remove(struct request_queue *queue, struct rpc_request *request);

#endif
