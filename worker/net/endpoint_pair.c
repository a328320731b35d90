/* A word from one thread to another, and with it all that the giver wrote before.
 *
 * ZeroMQ's inproc PAIR does the waking; the word itself and the order of memory go through a slot and two
 * counters of ours per direction. The giver writes the slot and then counts with release; the taker reads
 * the count with acquire and then the slot. So the hand-off is correct by our own code alone, and a thread
 * sanitizer, to which libzmq's atomics are invisible, can see that it is. A message of no bytes is sent
 * after each count; the ends take exactly one message per word. Each end is run by one thread. */
#include "worker/net/endpoint.h"

#include "worker/net/endpoint_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <zmq.h>

/* One direction. At most one word is under way, so one slot is enough. */
struct lane {
    uint64_t word;
    _Atomic uint64_t given, taken;
};

struct lanes {
    struct lane lane[2];
    atomic_int ends;
};

struct endpoint_pair {
    void *socket;
    int fd;
    struct lanes *lanes;
    struct lane *in, *out;
    bool quiet; /* the socket was found empty, and nothing has been done to it since */
    bool ended; /* a message without a word came: the other end's farewell */
};

static enum status pair_open(struct endpoint_pair **out, void *context, struct lanes *lanes, unsigned side,
                             const char *name)
{
    struct endpoint_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL)
        return STATUS_NO_MEMORY;
    int linger = 0;
    size_t bytes = sizeof pair->fd;
    pair->lanes = lanes;
    pair->out = &lanes->lane[side];
    pair->in = &lanes->lane[1 - side];
    pair->socket = zmq_socket(context, ZMQ_PAIR);
    if (pair->socket == NULL || zmq_setsockopt(pair->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_getsockopt(pair->socket, ZMQ_FD, &pair->fd, &bytes) != 0 ||
        (side == 0 ? zmq_bind(pair->socket, name) : zmq_connect(pair->socket, name)) != 0) {
        if (pair->socket != NULL)
            zmq_close(pair->socket);
        free(pair);
        return STATUS_IO;
    }
    *out = pair;
    return STATUS_OK;
}

enum status endpoint_pair_new(struct endpoint *endpoint, struct endpoint_pair **a, struct endpoint_pair **b,
                              struct error *error)
{
    struct lanes *lanes = calloc(1, sizeof *lanes);
    if (lanes == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a pair of sockets");
    atomic_init(&lanes->ends, 2);
    char name[64];
    snprintf(name, sizeof name, "inproc://pair-%p", (void *)lanes);
    void *context = endpoint_context(endpoint);
    if (pair_open(a, context, lanes, 0, name) != STATUS_OK) {
        free(lanes);
        return error_set(error, STATUS_IO, "a pair of sockets: %s", endpoint_reason(errno));
    }
    if (pair_open(b, context, lanes, 1, name) != STATUS_OK) {
        atomic_store(&lanes->ends, 1);
        endpoint_pair_free(*a);
        return error_set(error, STATUS_IO, "a pair of sockets: %s", endpoint_reason(errno));
    }
    return STATUS_OK;
}

/* Wakes the other end. A full queue cannot be: at most a word and a farewell are under way. */
static void wake(struct endpoint_pair *pair)
{
    pair->quiet = false;
    while (zmq_send(pair->socket, "", 0, ZMQ_DONTWAIT) < 0 && errno == EINTR)
        ;
}

void endpoint_pair_free(struct endpoint_pair *pair)
{
    if (pair == NULL)
        return;
    wake(pair);
    zmq_close(pair->socket);
    if (atomic_fetch_sub_explicit(&pair->lanes->ends, 1, memory_order_acq_rel) == 1)
        free(pair->lanes);
    free(pair);
}

void endpoint_pair_give(struct endpoint_pair *pair, uint64_t word)
{
    struct lane *lane = pair->out;
    uint64_t given = atomic_load_explicit(&lane->given, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&lane->taken, memory_order_acquire);
    assert(given == taken);
    (void)taken;
    lane->word = word;
    atomic_store_explicit(&lane->given, given + 1, memory_order_release);
    wake(pair);
}

enum status endpoint_pair_take(struct endpoint_pair *pair, bool wait, uint64_t *word)
{
    char nothing;
    int rc;
    if (pair->ended)
        return STATUS_SHUTDOWN;
    do
        rc = zmq_recv(pair->socket, &nothing, sizeof nothing, wait ? 0 : ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    pair->quiet = rc < 0 && errno == EAGAIN;
    if (rc < 0 && errno == EAGAIN)
        return STATUS_AGAIN;
    struct lane *lane = pair->in;
    uint64_t taken = atomic_load_explicit(&lane->taken, memory_order_relaxed);
    if (rc < 0 || atomic_load_explicit(&lane->given, memory_order_acquire) == taken) {
        pair->ended = true;
        return STATUS_SHUTDOWN;
    }
    *word = lane->word;
    atomic_store_explicit(&lane->taken, taken + 1, memory_order_release);
    return STATUS_OK;
}

int endpoint_pair_fd(const struct endpoint_pair *pair)
{
    return pair->fd;
}

/* The message may trail the count by an instant; a take that then finds none yet is told STATUS_AGAIN, and
 * the next look brings the taker back. */
bool endpoint_pair_idle(struct endpoint_pair *pair, bool fd_readable)
{
    struct lane *lane = pair->in;
    uint64_t taken = atomic_load_explicit(&lane->taken, memory_order_relaxed);
    if (pair->ended || atomic_load_explicit(&lane->given, memory_order_acquire) != taken)
        return false;
    if (pair->quiet && !fd_readable)
        return true;
    int events;
    size_t bytes = sizeof events;
    if (zmq_getsockopt(pair->socket, ZMQ_EVENTS, &events, &bytes) != 0)
        return errno == EINTR;
    pair->quiet = (events & ZMQ_POLLIN) == 0;
    return pair->quiet;
}
