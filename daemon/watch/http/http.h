/* The interface between a process and its HTTP server, the plug-in libcoalesced-http.so.
 *
 * The server is libmicrohttpd, driven by the loop of the supervisor or of `coalesced page`: no thread, and no
 * call blocks. It is a plug-in because the library brings a dozen others into a process; they are loaded
 * where somebody asks for a page, and in no worker. Of one run, or (`serves_runs`) of many:
 *
 *     /             the run's page               /             the page of all runs
 *     /status.json  run_status.h's               /runs.json    each run's run_summary.h
 *     /events       server-sent events           /run.json?id= what run_history.h writes of a run
 *     /metrics      openmetrics.h's text
 *     /stop, /checkpoint by POST: orders
 *
 * The pages' own files are page/, and dygraphs (https://dygraphs.com), which the build takes from
 * DYGRAPHS_DIR. The policy lets a page run these files alone, and talk to this server alone.
 *
 * /metrics is OpenMetrics where the Accept header names it and prefers nothing that the older text serves.
 *
 * GET, HEAD and the orders alone. Any other path is 404, any other method 405: no path is one of the file
 * system. With a token a request shows it as "Authorization: Bearer TOKEN", or as the password of Basic,
 * which browsers ask for; else it is 401. Without a token, `checks_host` refuses (403) a request whose Host
 * header is not this host's loopback: a page elsewhere could otherwise have its name resolve to 127.0.0.1 and
 * read along. An order needs a token. A browser sends the password of Basic also for a page of another
 * server, so with Basic an order's Origin must be this server.
 *
 * The server closes a connection after 10 s without traffic, and a stream with 8 MiB unsent. It has 1,200
 * connections at most, 64 streams among them. The caller's only thread. */
#ifndef DAEMON_WATCH_HTTP_HTTP_H
#define DAEMON_WATCH_HTTP_HTTP_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct http;

/* Descriptors of the server itself: the socket, an epoll, an event, and a connection over the limit, which is
 * closed. */
enum { HTTP_DESCRIPTORS = 4 };

enum http_document {
    HTTP_METRICS,     /* Prometheus' text */
    HTTP_OPENMETRICS, /* the same as OpenMetrics */
    HTTP_STATUS,
    HTTP_FIRST_EVENT, /* what a new stream begins with: server-sent events, whole */
    HTTP_RUNS,
    HTTP_RUN,
};

enum http_order { HTTP_STOP, HTTP_CHECKPOINT };

struct http_config {
    int fd;                   /* a listening socket, non-blocking; open takes it over if it succeeds */
    unsigned connections_max; /* more than 1,200 are 1,200 */
    const char *token;        /* NULL: none is asked for */
    bool checks_host;

    bool serves_runs;

    /* Makes a document, which the server frees. `id`: of HTTP_RUN's run, any text. NULL: there is no such run
     * (404), or of another document: no memory (503). */
    char *(*document)(void *arg, enum http_document which, const char *id, size_t *length);
    /* Takes an order, or says in a sentence why not (409). Not called where `serves_runs`. */
    const char *(*order)(void *arg, enum http_order order);
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

    /* The number of streams; an event, whole, to each; the end of each behind what it was told: `streams`
     * falls to 0 as readers have it. */
    unsigned (*streams)(const struct http *http);
    void (*tell)(struct http *http, const char *event, size_t length);
    void (*end)(struct http *http);
};

enum { HTTP_ABI = 3 };
#define HTTP_PLUGIN_SYMBOL "coalesced_http_plugin"

/* NULL: the plug-in has another interface. */
typedef const struct http_ops *http_plugin(int abi);

#endif
