/* The socket that `coalesced status` asks: each client gets one JSON document (daemon/watch/run_status.h),
 * and then the end of the stream. Nothing is read from a client.
 *
 * The socket lies beside the workers' sockets: `ADDRESS.status`, mode 0600 in a folder of mode 0700; in one
 * of mode 0750, mode 0660 with the folder's group (daemon/process/socket_folder.h). The supervisor's loop
 * waits for it and for the clients, so no call blocks. A client that does not read is cut off after 5 s. So
 * is the oldest of more than 8 clients. Supervisor process; its only thread. */
#ifndef DAEMON_WATCH_STATUS_SOCKET_H
#define DAEMON_WATCH_STATUS_SOCKET_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>

enum { STATUS_CLIENTS_MAX = 8, STATUS_WAITS = 1 + STATUS_CLIENTS_MAX };

/* Makes a document, which the socket frees. NULL: no memory. */
typedef char *status_answer(void *arg);

struct status_client {
    int fd; /* -1: none */
    char *text;
    size_t length, sent;
    struct monotime until;
};

struct status_socket {
    int fd; /* -1: not open, and every call does nothing */
    char path[108];
    status_answer *answer;
    void *arg;
    struct status_client clients[STATUS_CLIENTS_MAX];
};

/* `address`: "ipc://PATH" of the run. The caller holds the run's lock, so a socket that lies there is a
 * killed run's and is replaced. STATUS_IO, STATUS_PERMISSION name the path; *socket is then closed. */
enum status status_socket_open(struct status_socket *socket, const char *address, status_answer *answer,
                               void *arg, struct error *error);
void status_socket_close(struct status_socket *socket);

/* Makes a listening socket that does not block; its file, if it has one, has mode 0600. -1: failed, see
 * errno. */
int status_socket_listen(const struct sockaddr *address, socklen_t bytes, int backlog);

/* Removes the socket that a killed process has left at a path, if there is one. STATUS_PERMISSION: the file
 * there is no socket. Errors of lstat(2) and unlink(2). */
enum status status_socket_clear(const char *path, struct error *error);

/* Writes the STATUS_WAITS descriptors to wait for; -1 in those that are not used. */
void status_socket_waits(const struct status_socket *socket, struct pollfd waits[STATUS_WAITS]);

/* Serves those that are ready. */
void status_socket_serve(struct status_socket *socket, const struct pollfd waits[STATUS_WAITS]);

/* Cuts slow clients off; returns when to call again. */
struct monotime status_socket_check(struct status_socket *socket, struct monotime now);

#endif
