/* The door of bound endpoints: a thread that checks what each connection shows, a pass or a key.
 *
 * On one host every connection makes ZMTP's PLAIN handshake, between hosts the CURVE handshake. libzmq hands
 * the user and the password, or the public key, to the handler of its authentication protocol (ZAP, ZeroMQ's
 * RFC 27), an inproc socket of the same context, and opens a pipe to the endpoint only when the handler
 * agrees. So nothing that a stranger sends reaches the endpoint, and
 * libzmq keeps at most one command of it. Without the door libzmq 4.3.4 collects all frames of a message
 * before anybody sees one, however many there are: ZMQ_MAXMSGSIZE bounds a frame, and the high-water marks
 * count whole messages.
 *
 * The thread sleeps unless somebody connects. */
#ifndef WORKER_NET_ENDPOINT_DOOR_H
#define WORKER_NET_ENDPOINT_DOOR_H

#include "kernels/base/status.h"
#include "worker/net/host_keys.h"
#include "worker/net/wire.h"

#include <stdint.h>

struct endpoint_door;

/* Starts the thread, for all bound sockets of a ZeroMQ context; one door per context, opened before the first
 * bind. It lets nobody in before endpoint_door_pass or endpoint_door_keys. STATUS_NO_MEMORY, STATUS_IO. */
enum status endpoint_door_open(struct endpoint_door **out, void *zmq_context, struct error *error);

/* From now on the door lets connections in that show this pass; or the key of one of these hosts. Copied. */
void endpoint_door_pass(struct endpoint_door *door, const struct wire_pass *pass);
void endpoint_door_keys(struct endpoint_door *door, const struct host_keys *keys);

/* Waits for the thread, which ends with the context: call zmq_ctx_term first. NULL is allowed. */
void endpoint_door_free(struct endpoint_door *door);

/* Connections that showed a wrong pass or key, since the start. From any thread. */
uint64_t endpoint_door_refused(const struct endpoint_door *door);

#endif
