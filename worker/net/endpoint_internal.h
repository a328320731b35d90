/* An endpoint, and the functions that open and close it use with those that send, receive and wait. For
 * endpoint*.c alone. */
#ifndef WORKER_NET_ENDPOINT_INTERNAL_H
#define WORKER_NET_ENDPOINT_INTERNAL_H

#include "worker/net/endpoint.h"

#include <sys/types.h>

enum {
    ENDPOINT_FRAME_BYTES_SLACK = 4096
}; /* frames a little too long are refused by name, longer by libzmq */

/* A ZeroMQ context and how many endpoints live in it; all of one thread. */
struct shared_context {
    void *zmq;
    unsigned users;
    struct endpoint_door *door; /* of the bound endpoints; NULL: there is none */
};

struct endpoint {
    struct shared_context *context;
    void *socket;
    int fd;
    bool is_router;
    bool quiet; /* the last thing done to the socket was a receive that found nothing */
    char *path; /* of a bound ipc socket, else NULL */
    dev_t path_device;
    ino_t path_inode;
    /* Of waits in which this one comes first: */
    unsigned spins_in_vain; /* since the last that found something */
    unsigned sleeps;        /* since the last spin */
    unsigned unwatched;     /* that messages ended before the watches were looked at */
};

/* Counts messages that are prepared or received and not yet sent or released. */
void endpoint_count_message(int change);

#endif
