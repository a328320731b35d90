/* Sockets: the only module that calls zmq_*. An endpoint is owned by one thread.
 *
 * An endpoint is a ROUTER that is bound, or a DEALER that is connected. It sends and receives messages of
 * exactly two frames, never blocks except in endpoint_wait, and reports every message that it drops. */
#ifndef WORKER_NET_ENDPOINT_H
#define WORKER_NET_ENDPOINT_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"
#include "worker/net/host_keys.h"
#include "worker/net/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct endpoint;

enum { ENDPOINT_FRAME_WORDS = 8, ENDPOINT_WATCH_MAX = 4, ENDPOINT_SET_MAX = 274 };

/* One received or outgoing message. `header` and `payload` point into the frames. */
struct endpoint_message {
    uint32_t peer; /* a ROUTER's name for the connection, from its automatic routing id; 0: on a DEALER */
    const uint8_t *header;
    size_t header_bytes;
    uint8_t *payload;
    size_t payload_bytes;
    uint64_t frames[2][ENDPOINT_FRAME_WORDS]; /* ZeroMQ's own two message structs */
};

/* How an endpoint knows the other ends of its connections: by a pass on one host; between hosts by keys, with
 * which ZMTP's CURVE handshake lets only the hosts of `keys` in and encrypts the bytes. */
struct endpoint_credentials {
    const struct wire_pass *pass; /* a ROUTER asks for it, a DEALER shows it; NULL: keys */
    const struct host_keys *keys;
    uint16_t host; /* a DEALER's: where the listener is */
};

/* Makes a bound ROUTER. Of connections that have not shown the pass or a key yet, STRANGERS_MAX and one for
 * each of `peers` may wait at a time; when more come, those that have waited longest are cut off
 * (endpoint_zap.h). `beside`: in the ZeroMQ context of that endpoint when it is not NULL; endpoints of one
 * thread that are waited for together share one, and of them at most one is bound with a pass and one with
 * keys. With a pass, "ipc://PATH": refuses a PATH that exists (STATUS_BUSY), is not absolute or is longer
 * than 107 bytes (STATUS_INVALID); the file is removed by endpoint_free. With keys, "tcp://ADDRESS:PORT",
 * PORT "*" for one that is free; STATUS_UNAVAILABLE: this libzmq has no CURVE. */
enum status endpoint_bind(struct endpoint **out, struct endpoint *beside, const char *address,
                          const struct endpoint_credentials *asked, unsigned peers, struct error *error);

/* Makes a connected DEALER. The addresses are endpoint_bind's; the path need not be free. */
enum status endpoint_connect(struct endpoint **out, struct endpoint *beside, const char *address,
                             const struct endpoint_credentials *shown, struct error *error);

/* Why a listener has not let a DEALER with keys in, since the last call; libzmq asks it again. */
enum endpoint_refusal {
    ENDPOINT_NOT_REFUSED,
    ENDPOINT_KEY_REFUSED, /* it does not know the key that the DEALER shows */
    ENDPOINT_BROKEN_OFF,  /* it ended the handshake without an answer: its key may be another one */
};
enum endpoint_refusal endpoint_refusal(struct endpoint *endpoint);

/* From now on an endpoint that was bound with keys lets the hosts of these keys in. */
void endpoint_admit(struct endpoint *endpoint, const struct host_keys *keys);

/* The port at which an endpoint was bound by tcp. */
uint16_t endpoint_port(const struct endpoint *endpoint);

/* Sent messages may leave for `linger_ms` more. The last endpoint of a context waits for its own and for
 * those of endpoints that were freed before. When the last endpoint of the process is freed, every message
 * must have been sent or released. NULL is allowed. */
void endpoint_free(struct endpoint *endpoint, int linger_ms);

/* Prepares an outgoing message with a copy of the header and an uninitialized payload for the caller to
 * fill. STATUS_NO_MEMORY. Release it with endpoint_release unless it was sent. */
enum status endpoint_prepare(struct endpoint_message *message, uint32_t peer, const uint8_t *header,
                             size_t header_bytes, size_t payload_bytes);

/* Sends and takes the message over on STATUS_OK. STATUS_AGAIN: the peer's queue is full, the message is
 * still the caller's. STATUS_NOT_FOUND: a ROUTER has no such peer any more; still the caller's. */
enum status endpoint_send(struct endpoint *endpoint, struct endpoint_message *message);

/* Receives one message. STATUS_AGAIN: none is waiting. STATUS_INVALID: a message arrived that does not have
 * exactly two frames, or exceeds the limits; message->peer names its sender, there is nothing to release. A
 * peer that gave itself a routing id has no name here: its messages are all STATUS_INVALID with peer 0.
 * libzmq itself cuts a connection on which a frame exceeds the payload's limit by more than 4 KiB. */
enum status endpoint_receive(struct endpoint *endpoint, struct endpoint_message *message);
void endpoint_release(struct endpoint_message *message);

/* Of a received message: the host whose key its connection has shown, -1 where connections have no keys; and
 * the network address of the sender, "" where there is none. Valid until the message is released. */
int endpoint_message_host(const struct endpoint_message *message);
const char *endpoint_message_from(const struct endpoint_message *message);

/* Connections to a ROUTER, since the start. All but `refused` are of all bound endpoints of the
 * process. */
struct endpoint_counts {
    uint64_t unproven; /* they ended without having shown the pass */
    uint64_t refused;  /* they showed a wrong pass */
    uint64_t crowded;  /* cut off while they waited, to make room */
};
struct endpoint_counts endpoint_counts(const struct endpoint *endpoint);

/* What a user sees of strangers at a process's sockets. */
struct strangers {
    struct monotime due; /* when to count again: 10 s after a warning */
    uint64_t sum;        /* of the counts in the last warning */
};

/* Warns on standard error if more strangers have come since the last warning; called when `due` has come.
 * `whose`: the process whose socket it is, as in "this worker's"; `ignored`: messages of theirs. */
void strangers_report(struct strangers *reported, const char *whose, const struct endpoint_counts *counts,
                      uint64_t ignored, struct monotime now);

/* Moves a message into `to`, which holds none; `from` holds none afterwards, and must not be released. Never
 * copy the struct: ZeroMQ keeps a small frame's bytes inside it, and `header` and `payload` point there. */
void endpoint_move(struct endpoint_message *to, struct endpoint_message *from);

/* A further descriptor that endpoint_wait waits for. */
struct endpoint_watch {
    int fd;
    bool ready; /* out: can be read */
};

/* Waits until one of the endpoints (at least one; the first keeps the statistics of waiting for all) can be
 * received from (*readable), a watch is ready, or `until`; a time of 0 nanoseconds only looks, at the
 * endpoints and at all watches. `sending`: also until a send that was refused may succeed, at most a
 * millisecond. Spins for a fraction of a millisecond before it sleeps, if spinning has found messages lately.
 * When messages come first, the watches are looked at only every 32nd time. EINTR is a spurious return, and
 * *readable may also be true when only ZeroMQ's own state has changed: a receive then finds nothing. Call
 * endpoint_wait after receives that found nothing. */
enum status endpoint_wait(struct endpoint *const *endpoints, size_t endpoint_count,
                          struct endpoint_watch *watches, size_t count, bool sending, struct monotime until,
                          bool *readable);

#endif
