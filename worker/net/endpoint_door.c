/* The handler of libzmq's authentication protocol. Thread: one of its own per context with a bound endpoint,
 * which owns the handler's socket. The count is atomic; the lock guards the pass and the keys. */
#include "worker/net/endpoint_door.h"

#include "kernels/base/thread.h"

#include "worker/net/endpoint_gate.h"

#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* A request's frames, as RFC 27 numbers them. PLAIN has two credentials, CURVE one: the public key. */
enum {
    ZAP_VERSION,
    ZAP_REQUEST,
    ZAP_DOMAIN,
    ZAP_ADDRESS,
    ZAP_IDENTITY,
    ZAP_MECHANISM,
    ZAP_USER,
    ZAP_PASSWORD,
    ZAP_FRAMES,
    ZAP_KEY = ZAP_USER
};

enum { ZAP_FRAME_BYTES = 257 }; /* a user or password has at most 255 bytes; behind it a zero */

struct endpoint_door {
    void *socket;
    pthread_t thread;
    pthread_mutex_t lock;
    bool has_pass;
    struct wire_pass pass;
    struct host_keys keys;
    _Atomic uint64_t refused;
};

struct zap_frame {
    int bytes;
    char data[ZAP_FRAME_BYTES];
};

/* Receives a request. False: the context has ended. Frames beyond the last one are dropped. */
static bool door_receive(struct endpoint_door *door, struct zap_frame frames[ZAP_FRAMES])
{
    int more = 1;
    size_t bytes = sizeof more;
    memset(frames, 0, ZAP_FRAMES * sizeof *frames);
    for (unsigned i = 0; more; i++) {
        struct zap_frame dropped, *frame = i < ZAP_FRAMES ? &frames[i] : &dropped;
        do
            frame->bytes = zmq_recv(door->socket, frame->data, sizeof frame->data - 1, 0);
        while (frame->bytes < 0 && zmq_errno() == EINTR);
        if (frame->bytes < 0 || zmq_getsockopt(door->socket, ZMQ_RCVMORE, &more, &bytes) != 0)
            return false;
    }
    return true;
}

/* `right` fills its room behind a terminating zero with zeros, as a frame does. */
static bool frame_is(const struct zap_frame *frame, const char *right, size_t right_bytes)
{
    return (size_t)frame->bytes == strlen(right) && sodium_memcmp(frame->data, right, right_bytes) == 0;
}

static bool is_right_pass(const struct endpoint_door *door, const struct zap_frame frames[ZAP_FRAMES])
{
    const struct wire_pass *pass = &door->pass;
    return door->has_pass && frame_is(&frames[ZAP_USER], pass->user, sizeof pass->user) &&
           frame_is(&frames[ZAP_PASSWORD], pass->password, sizeof pass->password);
}

/* Whether the keys of some hosts are still to come. */
static bool lacks_keys(const struct host_keys *keys)
{
    for (unsigned i = 0; i < keys->count; i++)
        if (sodium_is_zero(keys->public_of_host[i], HOST_KEY_BYTES))
            return true;
    return false;
}

/* Whether the door lets this connection in, as a status of ZAP: 200 yes, 400 no. 300: not yet. The host whose
 * key is still to come is not told of it, and tries again; after 400 it would not. `user`: the host's number
 * where the connection has a key, else empty. */
static const char *door_judge(struct endpoint_door *door, const struct zap_frame frames[ZAP_FRAMES],
                              char user[8])
{
    bool agrees = false, early = false;
    user[0] = '\0';
    pthread_mutex_lock(&door->lock);
    if (frame_is(&frames[ZAP_MECHANISM], "PLAIN", sizeof "PLAIN")) {
        agrees = is_right_pass(door, frames);
    } else if (frame_is(&frames[ZAP_MECHANISM], "CURVE", sizeof "CURVE") &&
               frames[ZAP_KEY].bytes == HOST_KEY_BYTES) {
        const int host = host_keys_find(&door->keys, (const uint8_t *)frames[ZAP_KEY].data);
        agrees = host >= 0;
        early = lacks_keys(&door->keys);
        if (agrees)
            snprintf(user, 8, "%d", host);
    }
    pthread_mutex_unlock(&door->lock);
    return agrees ? "200" : early ? "300" : "400";
}

static void door_answer(struct endpoint_door *door, const struct zap_frame *request, const char *status,
                        const char *user)
{
    zmq_send(door->socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(door->socket, request->data, (size_t)request->bytes, ZMQ_SNDMORE);
    zmq_send(door->socket, status, strlen(status), ZMQ_SNDMORE);
    zmq_send(door->socket, "", 0, ZMQ_SNDMORE); /* the status's text, */
    zmq_send(door->socket, user, strlen(user), ZMQ_SNDMORE);
    zmq_send(door->socket, "", 0, 0); /* and metadata */
}

static void *door_run(void *arg)
{
    struct endpoint_door *door = arg;
    struct zap_frame frames[ZAP_FRAMES];
    while (door_receive(door, frames)) {
        char user[8];
        const char *status = door_judge(door, frames, user);
        if (status[0] == '2')
            endpoint_gate_admit(frames[ZAP_ADDRESS].data);
        else if (status[0] == '4')
            atomic_fetch_add(&door->refused, 1);
        door_answer(door, &frames[ZAP_REQUEST], status, user);
    }
    zmq_close(door->socket);
    return NULL;
}

void endpoint_door_pass(struct endpoint_door *door, const struct wire_pass *pass)
{
    pthread_mutex_lock(&door->lock);
    door->pass = *pass;
    door->has_pass = true;
    pthread_mutex_unlock(&door->lock);
}

void endpoint_door_keys(struct endpoint_door *door, const struct host_keys *keys)
{
    pthread_mutex_lock(&door->lock);
    door->keys = *keys;
    pthread_mutex_unlock(&door->lock);
}

enum status endpoint_door_open(struct endpoint_door **out, void *zmq_context, struct error *error)
{
    const int linger = 0;
    struct endpoint_door *door = calloc(1, sizeof *door);
    if (door == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a socket's door");
    pthread_mutex_init(&door->lock, NULL);
    door->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (door->socket == NULL || zmq_setsockopt(door->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(door->socket, "inproc://zeromq.zap.01") != 0) {
        error_set(error, STATUS_IO, "cannot open a socket's door: %s", zmq_strerror(zmq_errno()));
        goto fail;
    }
    if (thread_start(&door->thread, door_run, door, "the thread of a socket's door", error) != STATUS_OK)
        goto fail;
    *out = door;
    return STATUS_OK;
fail:
    if (door->socket != NULL)
        zmq_close(door->socket);
    free(door);
    return STATUS_IO;
}

void endpoint_door_free(struct endpoint_door *door)
{
    if (door == NULL)
        return;
    pthread_join(door->thread, NULL);
    free(door);
}

uint64_t endpoint_door_refused(const struct endpoint_door *door)
{
    return atomic_load(&door->refused);
}
