/* Admission to bound endpoints. The door, the handler of ZAP, is a thread that checks what each connection
 * shows, a pass or a key. The gate bounds how many connections wait at the door.
 *
 * On one host every connection makes ZMTP's PLAIN handshake, between hosts the CURVE handshake. libzmq hands
 * the user and the password, or the public key, to the handler of its authentication protocol (ZAP, ZeroMQ's
 * RFC 27), an inproc socket of the same context, and opens a pipe to the endpoint only when the handler
 * agrees. So nothing that a stranger sends reaches the endpoint, and libzmq keeps at most one command of it.
 * Without the door libzmq 4.3.4 collects all frames of a message before anybody sees one, however many there
 * are: ZMQ_MAXMSGSIZE bounds a frame, and the high-water marks count whole messages.
 *
 * The thread sleeps unless somebody connects.
 *
 * libzmq accepts every connection, keeps each for the 30 s of a handshake, and ends the process when accept4
 * fails with an errno that it does not expect, such as EMFILE (4.3.4, ipc_listener.cpp). So this program
 * defines accept4 itself; the dynamic linker gives libzmq this definition. It accepts every connection too,
 * because the newest may be a worker's, and when too many wait it shuts down the one that has waited longest.
 * A worker waits for a millisecond, so it is not cut off unless strangers connect faster than that; then it
 * dials again.
 *
 * What a connection has shown counts for all connections that wait from the same place: over a unix socket
 * the process at its other end, which the kernel names (a process of another namespace has no name: all those
 * are one place), over tcp:// the network address.
 *
 * A context has a door of its own; the process has one gate, whose functions any thread may call. */
#ifndef WORKER_NET_ENDPOINT_ZAP_H
#define WORKER_NET_ENDPOINT_ZAP_H

#include "kernels/base/status.h"
#include "worker/net/host_keys.h"
#include "worker/net/wire.h"

#include <stdint.h>

struct endpoint_zap;

/* Starts the thread, for all bound sockets of a ZeroMQ context; one door per context, opened before the first
 * bind. It lets nobody in before endpoint_zap_pass or endpoint_zap_keys. STATUS_NO_MEMORY, STATUS_IO. */
enum status endpoint_zap_open(struct endpoint_zap **out, void *zmq_context, struct error *error);

/* From now on the door lets connections in that show this pass; or the key of one of these hosts. Copied. */
void endpoint_zap_pass(struct endpoint_zap *door, const struct wire_pass *pass);
void endpoint_zap_keys(struct endpoint_zap *door, const struct host_keys *keys);

/* Waits for the thread, which ends with the context: call zmq_ctx_term first. NULL is allowed. */
void endpoint_zap_free(struct endpoint_zap *door);

/* Connections that showed a wrong pass or key, since the start. From any thread. */
uint64_t endpoint_zap_refused(const struct endpoint_zap *door);

/* ---- the gate ---- */

/* Makes room for `count` connections that wait at a time, when there is less. At most GATE_WAITING_MAX.
 * Before the first call no connection is counted or cut off. */
void endpoint_gate_widen(unsigned count);

struct endpoint_gate_counts {
    uint64_t accepted; /* connections; since the start, of all listeners of this process */
    uint64_t admitted; /* of these: from places that have shown a pass or key */
    uint64_t crowded;  /* cut off to make room */
    uint64_t waiting;  /* now */
};
struct endpoint_gate_counts endpoint_gate_counts(void);

#endif
