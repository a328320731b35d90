/* Bare ZeroMQ sockets at a worker's door: a DEALER that shows the pass, a ROUTER that asks for it. */
#ifndef TEST_WORKER_NET_NET_DOOR_H
#define TEST_WORKER_NET_NET_DOOR_H

#include "worker/net/endpoint_zap.h"
#include "worker/net/proof.h"

#include <check.h>
#include <string.h>
#include <zmq.h>

/* Before zmq_connect. `worker`: the listener. */
static inline void door_show_pass(void *socket, const uint8_t secret[WIRE_SECRET_BYTES], uint16_t worker)
{
    struct wire_pass pass;
    proof_make_pass(&pass, secret, worker);
    zmq_setsockopt(socket, ZMQ_PLAIN_USERNAME, pass.user, strlen(pass.user));
    zmq_setsockopt(socket, ZMQ_PLAIN_PASSWORD, pass.password, strlen(pass.password));
}

/* Before zmq_bind. The door is to be freed once the context has ended. A bare ROUTER admits no connection, so
 * the process's gate is made wide. */
static inline struct endpoint_zap *door_serve(void *context, void *socket,
                                              const uint8_t secret[WIRE_SECRET_BYTES], uint16_t worker)
{
    const int is_server = 1;
    struct endpoint_zap *door;
    struct wire_pass pass;
    proof_make_pass(&pass, secret, worker);
    endpoint_gate_widen(GATE_WAITING_MAX);
    zmq_setsockopt(socket, ZMQ_PLAIN_SERVER, &is_server, sizeof is_server);
    ck_assert_int_eq(endpoint_zap_open(&door, context, NULL), STATUS_OK);
    endpoint_zap_pass(door, &pass);
    return door;
}

#endif
