/* Accepts clients, writes each the status, and hangs up. Supervisor process; its only thread. */
#include "daemon/watch/status_socket.h"

#include "kernels/base/file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE_US = 5000000 };

static void hang_up(struct status_client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    cJSON_free(client->text);
    *client = (struct status_client){.fd = -1};
}

int status_socket_listen(const struct sockaddr *address, socklen_t bytes, int backlog)
{
    const int yes = 1;
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const mode_t before = umask(0177);
    const bool listens = bind(fd, address, bytes) == 0 && listen(fd, backlog) == 0;
    const int errnum = errno;
    umask(before);
    if (listens)
        return fd;
    close(fd);
    errno = errnum;
    return -1;
}

enum status status_socket_clear(const char *path, struct error *error)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? STATUS_OK : error_set_errno(error, errno, "cannot look at %.200s", path);
    if (!S_ISSOCK(info.st_mode))
        return error_set(error, STATUS_PERMISSION, "%.200s is in the way: expected a socket or nothing",
                         path);
    return unlink(path) == 0 ? STATUS_OK
                             : error_set_errno(error, errno, "cannot remove the leftover %.200s", path);
}

/* Where a group may look into the folder, the group may ask. The package's unit refuses chown(2), which has
 * nothing to do there: the folder's group is the process's own. */
static void share_with_group(const char *path)
{
    char folder[sizeof((struct status_socket *)0)->path];
    struct stat info, own;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (stat(folder, &info) != 0 || (info.st_mode & 077) != 050 || lstat(path, &own) != 0)
        return;
    if (own.st_gid == info.st_gid || lchown(path, (uid_t)-1, info.st_gid) == 0)
        chmod(path, 0660);
}

enum status status_socket_open(struct status_socket *s, const char *address, status_answer *answer, void *arg,
                               struct error *error)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    *s = (struct status_socket){.fd = -1, .answer = answer, .arg = arg};
    for (unsigned i = 0; i < STATUS_CLIENTS_MAX; i++)
        s->clients[i].fd = -1;
    const int length = snprintf(name.sun_path, sizeof name.sun_path, "%s.status", address + strlen("ipc://"));
    if (length < 0 || (size_t)length >= sizeof name.sun_path)
        return error_set(error, STATUS_INVALID, "the path of its socket is too long");
    const enum status status = status_socket_clear(name.sun_path, error);
    if (status != STATUS_OK)
        return status;
    s->fd = status_socket_listen((const struct sockaddr *)&name, sizeof name, STATUS_CLIENTS_MAX);
    if (s->fd < 0)
        return error_set_errno(error, errno, "cannot listen at %s", name.sun_path);
    memcpy(s->path, name.sun_path, sizeof s->path);
    share_with_group(s->path);
    return STATUS_OK;
}

void status_socket_close(struct status_socket *s)
{
    if (s->fd < 0)
        return;
    for (unsigned i = 0; i < STATUS_CLIENTS_MAX; i++)
        hang_up(&s->clients[i]);
    file_remove_or_warn(s->path);
    close(s->fd);
    s->fd = -1;
}

void status_socket_waits(const struct status_socket *s, struct pollfd waits[STATUS_WAITS])
{
    waits[0] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    for (unsigned i = 0; i < STATUS_CLIENTS_MAX; i++)
        waits[1 + i] = (struct pollfd){.fd = s->fd >= 0 ? s->clients[i].fd : -1, .events = POLLOUT};
}

/* Writes as much as the client takes now. */
static void send_rest(struct status_client *client)
{
    ssize_t sent = 0;
    while (client->sent < client->length &&
           (sent = send(client->fd, client->text + client->sent, client->length - client->sent,
                        MSG_NOSIGNAL | MSG_DONTWAIT)) >= 0)
        client->sent += (size_t)sent;
    if (sent >= 0 || (errno != EAGAIN && errno != EINTR))
        hang_up(client);
}

static struct status_client *free_place(struct status_socket *s)
{
    struct status_client *oldest = &s->clients[0];
    for (unsigned i = 0; i < STATUS_CLIENTS_MAX; i++) {
        if (s->clients[i].fd < 0)
            return &s->clients[i];
        if (monotime_before(s->clients[i].until, oldest->until))
            oldest = &s->clients[i];
    }
    hang_up(oldest);
    return oldest;
}

static void greet(struct status_socket *s)
{
    const int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct status_client *client = free_place(s);
    *client = (struct status_client){
        .fd = fd, .text = s->answer(s->arg), .until = monotime_add_us(monotime_now(), PATIENCE_US)};
    client->length = client->text != NULL ? strlen(client->text) : 0;
    send_rest(client);
}

void status_socket_serve(struct status_socket *s, const struct pollfd waits[STATUS_WAITS])
{
    if (s->fd < 0)
        return;
    for (unsigned i = 0; i < STATUS_CLIENTS_MAX; i++)
        if (waits[1 + i].revents != 0 && s->clients[i].fd >= 0)
            send_rest(&s->clients[i]);
    if (waits[0].revents != 0)
        greet(s);
}

struct monotime status_socket_check(struct status_socket *s, struct monotime now)
{
    struct monotime next = MONOTIME_NEVER;
    for (unsigned i = 0; s->fd >= 0 && i < STATUS_CLIENTS_MAX; i++) {
        struct status_client *client = &s->clients[i];
        if (client->fd < 0)
            continue;
        if (!monotime_before(now, client->until))
            hang_up(client);
        else
            next = monotime_earliest(next, client->until);
    }
    return next;
}
