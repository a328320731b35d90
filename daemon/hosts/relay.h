/* Carries messages to and from the supervisors of other hosts, through a link (worker/link.h).
 *
 * Supervisor process; its only thread. Blocks only where a function says so. */
#ifndef DAEMON_HOSTS_RELAY_H
#define DAEMON_HOSTS_RELAY_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"
#include "worker/control.h"

#include <stdbool.h>
#include <sys/types.h>

enum {
    RELAY_BEAT_US = 500000,     /* how often each supervisor says that it is there */
    RELAY_SILENCE_US = 3000000, /* after which the other takes it for lost */
};

struct relay {
    pid_t pid;                 /* of the link; 0: there is none */
    int fd;                    /* our end of its control line */
    struct control_link order; /* what it was started with */
    bool broken;               /* the line has ended or is stuck: nothing is sent any more */
    struct monotime may_open;  /* not before this time: a link that ends at once is not opened in a hurry */
};

/* Forks a link and waits until it has bound or begun to connect, for 10 s at most. `order`: the keys and
 * addresses; its build is filled in. *port: what the leader's link has bound; may be NULL. The errors of the
 * link (an address that is in use: STATUS_BUSY), and those of child_fork; STATUS_TIMEOUT. */
enum status relay_open(struct relay *relay, const struct control_link *order, uint16_t *port,
                       struct error *error);

/* Opens a link that has ended, or is stuck, anew with the same order. Errors of relay_open. */
enum status relay_reopen(struct relay *relay, struct error *error);

/* Our end of the link's line, to wait for; -1: nothing can come. */
int relay_fd(const struct relay *relay);

/* Of the leader: lets the hosts of these keys in from now on. */
void relay_admit(struct relay *relay, const struct host_keys *keys);

/* Sends a message to host `host` (from another host: to HOST_LEADER), of or for the worker that `start`
 * names; NULL: the host itself. Blocks while the link's line is full, for 2 s at most. A message that cannot
 * be sent is lost: the other end misses beats then, or this end finds the relay broken. */
void relay_send(struct relay *relay, uint16_t host, const struct control_start *start, enum control_kind kind,
                const void *body, size_t body_bytes);

/* Receives a message: *head says of whom it is, and `message` is what relay_send was given, checked for its
 * kind and length. STATUS_AGAIN: none waits. STATUS_INVALID: a message that is dropped. STATUS_PEER_DIED: the
 * link is gone. */
enum status relay_receive(struct relay *relay, struct control_relay *head, struct control_message *message);

/* Tells the link to send what it holds and to exit; kills it if it does not exit within 2 s, or `at_once`.
 * Does nothing to a struct that is all zero. */
void relay_close(struct relay *relay, bool at_once);

#endif
