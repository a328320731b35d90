/* Sessions: who the peers are. One place for each worker of the roster; the sockets; HELLO, WELCOME and BYE;
 * and the connections without a session, the strangers.
 *
 * A connection of a bound socket that has no session is a stranger. A stranger may say HELLO. Anything else,
 * or a HELLO that is refused, is answered with one BYE, and the connection is ignored while it stands in a
 * ring of those that this worker ended last.
 *
 * The listener proves the secret over the dialing worker's fresh nonce. The dialing worker proves it over its
 * own nonce: a nonce of the listener would cost one more round trip, and a HELLO that is repeated by another
 * has no effect anyway, because the listener accepts one HELLO of each incarnation.
 *
 * The members of the structs are for rpc_sessions.c alone. */
#ifndef WORKER_NET_RPC_SESSIONS_H
#define WORKER_NET_RPC_SESSIONS_H

#include "worker/net/rpc_arrival.h"
#include "worker/net/rpc_outgoing.h"

struct session {
    bool is_live, was_live;
    size_t socket;                   /* of a session that is or was live */
    uint32_t peer;                   /* the bound socket's name for the connection; 0: a dialed one */
    uint32_t incarnation;            /* the peer's */
    uint8_t nonce[WIRE_NONCE_BYTES]; /* of this worker's HELLO */
};

struct session_socket {
    int dialed;  /* the worker that it is for; -1: a bound one, which tells its connections apart by `peer` */
    bool is_far; /* to other hosts, with keys: nothing is lent through it */
};

/* A connection of a bound socket that this worker ended with BYE. */
struct stranger {
    size_t socket;
    uint32_t peer;
};

struct sessions {
    struct rpc_common *common;
    struct outgoing *outgoing;
    struct session *table;                           /* (workers) */
    struct session_socket sockets[ENDPOINT_SET_MAX]; /* the bound ones first: this host's, the other hosts' */
    struct endpoint *endpoints[ENDPOINT_SET_MAX];    /* theirs */
    size_t socket_count, bound_count;
    unsigned gone_count; /* sessions that this worker dialed and that have ended */
    uint8_t *welcome;    /* WELCOME's payload: room for the proof, the job's text, a terminating zero */
    size_t job_bytes;    /* of the job's text */
    struct stranger strangers[STRANGERS_MAX];
    unsigned stranger_count, stranger_next;
};

/* STATUS_NO_MEMORY. sessions_fini: as endpoint_free. */
enum status sessions_init(struct sessions *sessions, struct rpc_common *common, struct outgoing *outgoing);
void sessions_fini(struct sessions *sessions, int linger_ms);

/* rpc_open's and rpc_dial's. */
enum status sessions_bind(struct sessions *sessions, const char *address, struct error *error);
enum status sessions_dial(struct sessions *sessions, const struct rpc_address *addresses, size_t count,
                          struct monotime deadline, struct error *error);

/* rpc_welcome's, rpc_far_port's and rpc_counters'. */
const char *sessions_job(const struct sessions *sessions, size_t *bytes);
uint16_t sessions_far_port(const struct sessions *sessions);
struct endpoint_counts sessions_strangers(const struct sessions *sessions);

/* The sockets, whose places in this array are their names. */
struct endpoint *const *sessions_endpoints(const struct sessions *sessions, size_t *count);

/* NULL: there is none. */
const struct session *sessions_live(const struct sessions *sessions, uint16_t worker);
bool sessions_is_far(const struct sessions *sessions, uint16_t worker);
bool sessions_is_gone(const struct sessions *sessions, uint16_t worker);
unsigned sessions_gone_count(const struct sessions *sessions);

enum received {
    RECEIVED_NOTHING, /* no message has come */
    RECEIVED_FAILURE, /* the socket has failed */
    RECEIVED_DROPPED, /* a message that is dropped, or answered, here */
    RECEIVED_FAULT,   /* a bad message, by *fault: it costs *worker the session */
    RECEIVED_HELLO,   /* *worker may join. End the session of its earlier incarnation, call sessions_accept */
    RECEIVED_MESSAGE, /* a request, a reply, a piece or BYE in the session with *worker */
};

/* Takes one message from a socket, decodes it, and checks: two frames, the header by itself, the job's
 * generation, source, incarnation and destination. Of RECEIVED_HELLO and RECEIVED_MESSAGE the caller takes
 * over arrival->frames. */
enum received sessions_receive(struct sessions *sessions, size_t socket, struct arrival *arrival,
                               uint16_t *worker, struct error *fault);

/* Answers a HELLO with WELCOME and begins the session. False: WELCOME could not be sent, and the peer says
 * HELLO again. */
bool sessions_accept(struct sessions *sessions, size_t socket, const struct arrival *hello);

/* Ends a session, with BYE unless `bye` is NULL. */
void sessions_close(struct sessions *sessions, uint16_t worker, const char *bye);

#endif
