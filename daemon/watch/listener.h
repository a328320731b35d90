/* Serves a run's page and metrics (/metrics/listen), or the page of all runs: the address, the token, and the
 * HTTP server's plug-in (daemon/watch/http/http.h). The caller's only thread; blocks on files alone. */
#ifndef DAEMON_WATCH_LISTENER_H
#define DAEMON_WATCH_LISTENER_H

#include "daemon/watch/http/http.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

struct listener {
    const struct http_ops *ops; /* NULL: not open, and every call but listener_open does nothing */
    struct http *http;
    char path[108]; /* of the socket; "": it has an address */
};

/* Where to listen, and the token's file. The names stand in sentences: keys of a job, or options. */
struct listener_place {
    const char *listen, *token; /* token NULL: none */
    const char *listen_name, *token_name;
};
struct listener_place listener_place_of(const struct job *job);

/* Checks /metrics without listening. STATUS_INVALID: an address that is none; one beyond loopback without a
 * token; a token's file that is empty, or that others may read; a textfile of another name. STATUS_NOT_FOUND,
 * STATUS_PERMISSION name the token's file. *pointer is the key at fault. */
enum status listener_check(const struct job *job, const char **pointer, struct error *error);

/* Listens at place->listen. Errors of listener_check; STATUS_BUSY: another program listens there;
 * STATUS_IO; STATUS_UNAVAILABLE: the plug-in, or a library of it, is not installed. `config` has
 * what answers, its argument, serves_runs and connections_max; the rest is set here. */
enum status listener_open(struct listener *listener, const struct listener_place *place,
                          struct http_config config, struct error *error);
void listener_close(struct listener *listener);

int listener_fd(const struct listener *listener); /* -1: none */
struct monotime listener_due(struct listener *listener, struct monotime now);
void listener_serve(struct listener *listener);
unsigned listener_streams(const struct listener *listener);
void listener_tell(struct listener *listener, const char *event, size_t length);
void listener_end(struct listener *listener); /* ends the streams (struct http_ops) */

#endif
