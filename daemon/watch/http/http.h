/* The interface between the supervisor and its HTTP server, the plug-in libcoalesced-http.so.
 *
 * The server is libmicrohttpd, driven by the supervisor's loop: no thread, and no call blocks. It is a
 * plug-in because the library brings a dozen others into a process; they are loaded where a job asks for them
 * (/metrics/listen) and in no worker. Documents:
 *
 *     /             the page, one self-contained file     /status.json   run_status.h's
 *     /metrics      openmetrics.h's text                  /events        a stream of server-sent events
 *
 * /metrics is OpenMetrics where the Accept header names it and prefers nothing that the older text serves.
 *
 * GET and HEAD alone. Any other path is 404, any other method 405: no path is one of the file system. With a
 * token a request shows it as "Authorization: Bearer TOKEN", or as the password of Basic, which browsers ask
 * for; else it is 401. Without a token, `checks_host` refuses (403) a request whose Host header is not this
 * host's loopback: a page elsewhere could otherwise have its name resolve to 127.0.0.1 and read along.
 *
 * A connection that is idle for 10 s is closed; of the streams, the one that lags by 4 MiB. 1,200
 * connections at most, 64 streams among them. Supervisor process; its only thread. */
#ifndef DAEMON_WATCH_HTTP_HTTP_H
#define DAEMON_WATCH_HTTP_HTTP_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct http;

/* Descriptors of the server itself: the socket, an epoll, an event, and a connection that is one too many. */
enum { HTTP_DESCRIPTORS = 4 };

enum http_document {
    HTTP_METRICS,     /* Prometheus' text */
    HTTP_OPENMETRICS, /* the same as OpenMetrics */
    HTTP_STATUS,
    HTTP_FIRST_EVENT, /* what a new stream begins with: server-sent events, whole */
};

struct http_config {
    int fd;                   /* a listening socket, non-blocking; open takes it over if it succeeds */
    unsigned connections_max; /* more than 1,200 are 1,200 */
    const char *token;        /* NULL: none is asked for */
    bool checks_host;

    /* Makes a document, which the server frees. NULL: no memory (503). */
    char *(*document)(void *arg, enum http_document which, size_t *length);
    void *arg;
};

struct http_ops {
    /* STATUS_NO_MEMORY, STATUS_INTERNAL. */
    enum status (*open)(struct http **out, const struct http_config *config, struct error *error);
    void (*close)(struct http *http);

    /* The descriptor to wait for, and the time at which to serve at the latest. */
    int (*fd)(const struct http *http);
    struct monotime (*due)(struct http *http, struct monotime now);

    /* Reads, answers and writes as far as nothing blocks. */
    void (*serve)(struct http *http);

    /* The number of streams; an event, whole, to each. */
    unsigned (*streams)(const struct http *http);
    void (*tell)(struct http *http, const char *event, size_t length);
};

enum { HTTP_ABI = 2 };
#define HTTP_PLUGIN_SYMBOL "coalesced_http_plugin"

/* NULL: the plug-in has another interface. */
typedef const struct http_ops *http_plugin(int abi);

#endif
