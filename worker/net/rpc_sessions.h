/* Sessions: who the peers are, and the way of messages to and from them. One place for each worker of the
 * roster; the sockets; HELLO, WELCOME and BYE; and the connections without a session, the strangers.
 *
 *     held       a message that waits in its session because its peer's queue is full
 *     lost       a session whose peer a send has found gone
 *     own        the session with this worker itself; it never ends
 *     farewell   a BYE that waits for room; it belongs to no session
 *     leaving    a body of more than one payload, on its way in pieces
 *     stranger   a connection of a bound socket without a session
 *
 * Every turn tries the held messages again, in the order of sending. A send only marks a
 * session as lost; the rpc ends it. The next turn takes the messages of the own session. A leaving body's
 * pieces go right before its message: pieces that find room are copied from the caller's memory, the rest
 * into a buffer.
 *
 * A stranger may say HELLO. Anything else, or a HELLO that is refused, is answered with one BYE. From then on
 * the connection is ignored, as long as it stands in the ring of those that this worker ended last.
 *
 * The listener proves the secret over the dialing worker's fresh nonce. The dialing worker proves it over its
 * own nonce, which saves a round trip. A replayed HELLO has no effect: the listener accepts one HELLO of each
 * incarnation. */
#ifndef WORKER_NET_RPC_SESSIONS_H
#define WORKER_NET_RPC_SESSIONS_H

#include "worker/net/rpc_message.h"

struct sessions;

/* Binds `address`, unless it is NULL, and config->far_address. `config` and `counters`, which sessions counts
 * in, outlive the sessions. Errors as rpc_open. sessions_free: as endpoint_free. */
enum status sessions_open(struct sessions **out, const struct rpc_config *config,
                          struct rpc_counters *counters, const char *address, struct error *error);
void sessions_free(struct sessions *sessions, int linger_ms);

/* rpc_dial's, rpc_welcome's, rpc_far_port's, rpc_is_far's, rpc_is_gone's and rpc_counters'. */
enum status sessions_dial(struct sessions *sessions, const struct rpc_address *addresses, size_t count,
                          struct monotime deadline, struct error *error);
const char *sessions_job(const struct sessions *sessions, size_t *bytes);
uint16_t sessions_far_port(const struct sessions *sessions);
bool sessions_is_far(const struct sessions *sessions, uint16_t worker);
bool sessions_is_gone(const struct sessions *sessions, uint16_t worker);
struct endpoint_counts sessions_strangers(const struct sessions *sessions);

/* Whether there is a session with `worker`, of any incarnation up to `incarnation_max`. */
bool sessions_is_live(const struct sessions *sessions, uint16_t worker, uint32_t incarnation_max);

/* How many sessions that this worker dialed have ended. */
unsigned sessions_gone_count(const struct sessions *sessions);

/* ---- receiving ---- */

/* The sockets are numbered from 0. */
size_t sessions_socket_count(const struct sessions *sessions);

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

/* Takes the oldest message to this worker itself, with its tail. False: there is none. */
bool sessions_take_own(struct sessions *sessions, struct endpoint_message *out);

/* Answers a HELLO with WELCOME and begins the session. False: WELCOME could not be sent, and the peer says
 * HELLO again. */
bool sessions_accept(struct sessions *sessions, size_t socket, const struct arrival *hello);

/* Ends a session, with BYE unless `bye` is NULL. The messages that wait for the peer are dropped. */
void sessions_close(struct sessions *sessions, uint16_t worker, const char *bye);

/* As endpoint_wait, for all sockets, and sooner where a held message may leave. STATUS_IO. */
enum status sessions_wait(struct sessions *sessions, struct endpoint_watch *watches, size_t count,
                          struct monotime until);

/* ---- sending ----
 * The caller sets the kind, method, destination, request id, and what the kind has of its own. */

/* Sends a request, or holds it. Errors as rpc_call_async. */
enum status sessions_send_request(struct sessions *sessions, struct wire_header *header,
                                  const struct rpc_message *message, struct error *error);

/* Sends the answer to a request, `value` or `text`, or holds it. When there is no memory for the answer the
 * session is lost: otherwise the caller would wait for ever. STATUS_NO_MEMORY: the same in the session with
 * this worker itself, which cannot be lost. */
enum status sessions_send_answer(struct sessions *sessions, struct wire_header *header,
                                 const struct rpc_message *value, const char *text);

/* Sends what is held and finds room. sessions_flush_until: until nothing is held or `deadline`; messages that
 * arrive meanwhile are dropped. */
void sessions_flush(struct sessions *sessions);
void sessions_flush_until(struct sessions *sessions, struct monotime deadline);

/* Whether large tensors are lent in the session with `worker`. */
bool sessions_lends(const struct sessions *sessions, uint16_t worker);

/* Whether `worker` leaves so many answers unread that no further request of it is served. */
bool sessions_is_unread(const struct sessions *sessions, uint16_t worker);

/* Marks the session with `worker` as lost; not the session with this worker itself. sessions_find_lost: a
 * worker whose session is lost, -1: none. */
void sessions_lose(struct sessions *sessions, uint16_t worker);
int sessions_find_lost(const struct sessions *sessions);

#endif
