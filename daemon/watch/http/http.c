/* Answers requests by libmicrohttpd (http.h): documents, the page, and streams of server-sent events
 * (https://html.spec.whatwg.org/multipage/server-sent-events.html). The caller's only thread. */
#include "daemon/watch/http/http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

enum {
    CONNECTIONS_MAX = 1200,
    IDLE_S = 10,
    CONNECTION_BYTES = 8192, /* for a request's line and headers */
    STREAMS_MAX = 64,
    STREAM_LAG_BYTES_MAX = 8 << 20,
};

struct http {
    struct http_config config;
    char *token;
    struct MHD_Daemon *daemon;
    int epoll_fd;
    unsigned stream_count;
    struct stream *streams;
};

/* A header's value; "" where it has a zero in it; NULL where there is none. */
static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    const char *value = NULL;
    size_t bytes = 0;
    if (MHD_lookup_connection_value_n(connection, MHD_HEADER_KIND, name, strlen(name), &value, &bytes) !=
            MHD_YES ||
        value == NULL)
        return NULL;
    return strlen(value) == bytes ? value : "";
}

/* ---- answers ---- */

static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned code,
                                     struct MHD_Response *response)
{
    if (response == NULL)
        return MHD_NO; /* no memory: the connection is closed */
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    const enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

/* A text that lives as long as the program, or (`is_ours`) one to be freed. */
static struct MHD_Response *response_of(char *text, size_t length, bool is_ours, const char *type)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        length, text, is_ours ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (response != NULL)
        MHD_add_response_header(response, "Content-Type", type);
    else if (is_ours)
        free(text);
    return response;
}

static struct MHD_Response *sentence(const char *text)
{
    char *copy = strdup(text);
    return copy != NULL ? response_of(copy, strlen(copy), true, "text/plain; charset=utf-8") : NULL;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned code, const char *text)
{
    return send_response(connection, code, sentence(text));
}

static enum MHD_Result refuse_stranger(struct MHD_Connection *connection)
{
    struct MHD_Response *response = sentence("expected the page's token\n");
    if (response != NULL) {
        MHD_add_response_header(response, "WWW-Authenticate", "Basic realm=\"coalesced\", charset=\"UTF-8\"");
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"coalesced\"");
    }
    return send_response(connection, MHD_HTTP_UNAUTHORIZED, response);
}

static enum MHD_Result send_document(const struct http *http, struct MHD_Connection *connection,
                                     enum http_document which, const char *type)
{
    const char *id = NULL;
    size_t length = 0;
    if (which == HTTP_RUN)
        id = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "id");
    char *text = http->config.document(http->config.arg, which, id != NULL ? id : "", &length);
    if (text == NULL && which == HTTP_RUN)
        return refuse(connection, MHD_HTTP_NOT_FOUND, "expected the id of a run, as in /runs.json\n");
    if (text == NULL)
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
    return send_response(connection, MHD_HTTP_OK, response_of(text, length, true, type));
}

/* The quality that an Accept header gives a range of media types, such as "text/plain";
 * -1: it does not name the range. */
static double quality_of(const char *accept, const char *range)
{
    const size_t length = strlen(range);
    double best = -1;
    while (*accept != '\0') {
        accept += strspn(accept, " \t,");
        const bool is_named =
            strncasecmp(accept, range, length) == 0 && strchr(" \t;,", accept[length]) != NULL;
        double quality = 1;
        for (accept += strcspn(accept, ";,"); *accept == ';'; accept += strcspn(accept, ";,")) {
            accept += 1 + strspn(accept + 1, " \t");
            if (strncasecmp(accept, "q=", 2) == 0)
                quality = strtod(accept + 2, NULL);
        }
        if (is_named && quality > best)
            best = quality;
    }
    return best;
}

static bool wants_openmetrics(struct MHD_Connection *connection)
{
    static const char *const texts[] = {"text/plain", "text/*", "*/*"}; /* the first that is named counts */
    const char *accept = header_of(connection, "Accept");
    double text = -1;
    if (accept == NULL)
        return false;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && text < 0; i++)
        text = quality_of(accept, texts[i]);
    const double wanted = quality_of(accept, "application/openmetrics-text");
    return wanted > 0 && wanted >= text;
}

/* ---- the page's files ---- */

/* The assembler reads them: they stay files that a person can edit. It looks for dygraphs in DYGRAPHS_DIR. */
#define FILE_EMBED(symbol, path)                                                                             \
    __asm__(".pushsection .rodata\n" symbol ": .incbin \"" path "\"\n" symbol "_end: .byte "                 \
            "0\n.popsection\n")

FILE_EMBED("page_run_html", "daemon/watch/http/page/run.html");
FILE_EMBED("page_run_js", "daemon/watch/http/page/run.js");
FILE_EMBED("page_runs_html", "daemon/watch/http/page/runs.html");
FILE_EMBED("page_runs_js", "daemon/watch/http/page/runs.js");
FILE_EMBED("page_curves_js", "daemon/watch/http/page/curves.js");
FILE_EMBED("page_text_js", "daemon/watch/http/page/text.js");
FILE_EMBED("page_css", "daemon/watch/http/page/page.css");
FILE_EMBED("page_dygraph_js", "dygraph.min.js");
FILE_EMBED("page_dygraph_css", "dygraph.min.css");

/* Nobody writes there; the library takes no const. */
extern char page_run_html[], page_run_html_end[], page_run_js[], page_run_js_end[], page_runs_html[],
    page_runs_html_end[], page_runs_js[], page_runs_js_end[], page_curves_js[], page_curves_js_end[],
    page_text_js[], page_text_js_end[], page_css[], page_css_end[], page_dygraph_js[], page_dygraph_js_end[],
    page_dygraph_css[], page_dygraph_css_end[];

static const char html[] = "text/html; charset=utf-8", javascript[] = "text/javascript; charset=utf-8",
                  css[] = "text/css; charset=utf-8";

/* Of one run's server (0), of all runs' (1), or of both (-1). */
static const struct page_file {
    const char *path;
    int serves_runs;
    char *begin, *end;
    const char *type;
} page_files[] = {{"/", 0, page_run_html, page_run_html_end, html},
                  {"/", 1, page_runs_html, page_runs_html_end, html},
                  {"/run.js", 0, page_run_js, page_run_js_end, javascript},
                  {"/runs.js", 1, page_runs_js, page_runs_js_end, javascript},
                  {"/curves.js", -1, page_curves_js, page_curves_js_end, javascript},
                  {"/text.js", -1, page_text_js, page_text_js_end, javascript},
                  {"/page.css", -1, page_css, page_css_end, css},
                  {"/dygraph.js", -1, page_dygraph_js, page_dygraph_js_end, javascript},
                  {"/dygraph.css", -1, page_dygraph_css, page_dygraph_css_end, css}};

static const struct page_file *file_of(const struct http *http, const char *path)
{
    for (size_t i = 0; i < sizeof page_files / sizeof page_files[0]; i++)
        if (strcmp(page_files[i].path, path) == 0 &&
            (page_files[i].serves_runs < 0 || page_files[i].serves_runs == http->config.serves_runs))
            return &page_files[i];
    return NULL;
}

static enum MHD_Result send_file(struct MHD_Connection *connection, const struct page_file *file)
{
    struct MHD_Response *response =
        response_of(file->begin, (size_t)(file->end - file->begin), false, file->type);
    if (response != NULL && file->type == html)
        MHD_add_response_header(
            response, "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    return send_response(connection, MHD_HTTP_OK, response);
}

/* ---- streams ---- */

/* What a client of /events has not been sent yet. A stream that has nothing to send sleeps
 * (MHD_suspend_connection). */
struct stream {
    struct http *http;
    struct stream *next;
    struct MHD_Connection *connection;
    char *text;
    size_t begin, end, capacity; /* what is not sent yet lies in [begin, end) */
    bool sleeps, ends, lags;     /* one that lags is not sent the rest */
};

static void stream_wake(struct stream *stream)
{
    if (stream->sleeps)
        MHD_resume_connection(stream->connection);
    stream->sleeps = false;
}

/* False: it lags too far behind, or there is no memory. */
static bool stream_append(struct stream *stream, const char *event, size_t length)
{
    memmove(stream->text, stream->text + stream->begin, stream->end - stream->begin);
    stream->end -= stream->begin;
    stream->begin = 0;
    if (stream->end + length > STREAM_LAG_BYTES_MAX)
        return false;
    if (stream->end + length > stream->capacity) {
        const size_t wanted = 2 * (stream->end + length);
        char *more = realloc(stream->text, wanted);
        if (more == NULL)
            return false;
        stream->text = more;
        stream->capacity = wanted;
    }
    memcpy(stream->text + stream->end, event, length);
    stream->end += length;
    return true;
}

/* Called when the connection can take more. */
static ssize_t stream_give(void *arg, uint64_t position, char *out, size_t most)
{
    struct stream *stream = arg;
    const size_t there = stream->end - stream->begin, bytes = there < most ? there : most;
    (void)position;
    if (stream->ends && (bytes == 0 || stream->lags))
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (bytes == 0) {
        stream->sleeps = true;
        MHD_suspend_connection(stream->connection);
        return 0;
    }
    memcpy(out, stream->text + stream->begin, bytes);
    stream->begin += bytes;
    return (ssize_t)bytes;
}

/* Called when the connection is gone. */
static void stream_forget(void *arg)
{
    struct stream *stream = arg, **at = &stream->http->streams;
    while (*at != NULL && *at != stream)
        at = &(*at)->next;
    if (*at == stream) {
        *at = stream->next;
        stream->http->stream_count--;
    }
    free(stream->text);
    free(stream);
}

/* Begins a stream, which sends `text` first and frees it. NULL: too many, or no memory; `text` is freed too.
 */
static struct MHD_Response *stream_begin(struct http *http, struct MHD_Connection *connection, char *text,
                                         size_t length)
{
    enum { BLOCK_BYTES = 16384 };
    struct stream *stream = http->stream_count < STREAMS_MAX ? calloc(1, sizeof *stream) : NULL;
    struct MHD_Response *response =
        stream != NULL ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, stream_give, stream,
                                                           stream_forget)
                       : NULL;
    if (response == NULL) {
        free(text);
        free(stream);
        return NULL;
    }
    *stream = (struct stream){.http = http,
                              .next = http->streams,
                              .connection = connection,
                              .text = text,
                              .end = length,
                              .capacity = length};
    http->streams = stream;
    http->stream_count++;
    return response;
}

static enum MHD_Result send_events(struct http *http, struct MHD_Connection *connection)
{
    size_t length = 0;
    const bool is_full = http->stream_count >= STREAMS_MAX;
    char *first = is_full ? NULL : http->config.document(http->config.arg, HTTP_FIRST_EVENT, "", &length);
    struct MHD_Response *response = first != NULL ? stream_begin(http, connection, first, length) : NULL;
    if (response == NULL)
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "too many streams\n");
    MHD_add_response_header(response, "Content-Type", "text/event-stream");
    return send_response(connection, MHD_HTTP_OK, response);
}

/* ---- whether a client may ask ---- */

/* Takes equally long wherever the first difference is. */
static bool is_token(const struct http *http, const char *shown, size_t bytes)
{
    return bytes == strlen(http->token) && sodium_memcmp(shown, http->token, bytes) == 0;
}

/* The password is what follows the first colon, whatever it holds. */
static bool shows_password(const struct http *http, const char *encoded)
{
    char pair[CONNECTION_BYTES];
    size_t bytes = 0;
    if (sodium_base642bin((unsigned char *)pair, sizeof pair, encoded, strlen(encoded), NULL, &bytes, NULL,
                          sodium_base64_VARIANT_ORIGINAL) != 0)
        return false;
    const char *colon = memchr(pair, ':', bytes);
    return colon != NULL && is_token(http, colon + 1, bytes - (size_t)(colon + 1 - pair));
}

static bool shows_token(const struct http *http, struct MHD_Connection *connection)
{
    static const char bearer[] = "Bearer ", basic[] = "Basic ";
    const char *header = header_of(connection, "Authorization");
    if (header == NULL)
        return false;
    if (strncasecmp(header, bearer, sizeof bearer - 1) == 0)
        return is_token(http, header + sizeof bearer - 1, strlen(header + sizeof bearer - 1));
    return strncasecmp(header, basic, sizeof basic - 1) == 0 &&
           shows_password(http, header + sizeof basic - 1);
}

/* "localhost", "127.…" or "[::1]", with any port. */
static bool is_loopback_name(const char *host)
{
    char name[32];
    struct in_addr address;
    const char *colon = strrchr(host, ':');
    if (colon != NULL && strspn(colon + 1, "0123456789") == strlen(colon + 1)) /* "[::1]" has none */
        snprintf(name, sizeof name, "%.*s", (int)(colon - host), host);
    else
        snprintf(name, sizeof name, "%s", host);
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* True if the request's Origin is this server. */
static bool is_of_own_page(struct MHD_Connection *connection)
{
    const char *host = header_of(connection, "Host"), *origin = header_of(connection, "Origin");
    const char *name = origin != NULL ? strstr(origin, "://") : NULL;
    return host != NULL && name != NULL && strcasecmp(name + 3, host) == 0;
}

/* ---- requests ---- */

static enum MHD_Result take_order(const struct http *http, struct MHD_Connection *connection,
                                  enum http_order order)
{
    const char *header = header_of(connection, "Authorization"), *problem;
    char text[256];
    if (http->token == NULL || header == NULL)
        return refuse(connection, MHD_HTTP_FORBIDDEN, "expected a token: an order needs /metrics/token\n");
    if (strncasecmp(header, "Bearer ", 7) != 0 && !is_of_own_page(connection))
        return refuse(connection, MHD_HTTP_FORBIDDEN, "expected an order of this server's own page\n");
    problem = http->config.order(http->config.arg, order);
    snprintf(text, sizeof text, "%s\n", problem != NULL ? problem : "the order is taken");
    return refuse(connection, problem != NULL ? MHD_HTTP_CONFLICT : MHD_HTTP_OK, text);
}

static enum MHD_Result answer_run(struct http *http, struct MHD_Connection *connection, const char *path,
                                  bool is_get)
{
    if (strcmp(path, "/metrics") == 0 && wants_openmetrics(connection))
        return send_document(http, connection, HTTP_OPENMETRICS,
                             "application/openmetrics-text; version=1.0.0; charset=utf-8");
    if (strcmp(path, "/metrics") == 0)
        return send_document(http, connection, HTTP_METRICS, "text/plain; version=0.0.4; charset=utf-8");
    if (strcmp(path, "/status.json") == 0)
        return send_document(http, connection, HTTP_STATUS, "application/json");
    if (strcmp(path, "/events") == 0 && is_get)
        return send_events(http, connection);
    return refuse(connection, MHD_HTTP_NOT_FOUND, "expected /, /metrics, /status.json or /events\n");
}

static enum MHD_Result answer_runs(const struct http *http, struct MHD_Connection *connection,
                                   const char *path)
{
    if (strcmp(path, "/runs.json") == 0)
        return send_document(http, connection, HTTP_RUNS, "application/json");
    if (strcmp(path, "/run.json") == 0)
        return send_document(http, connection, HTTP_RUN, "application/json");
    return refuse(connection, MHD_HTTP_NOT_FOUND, "expected /, /runs.json or /run.json?id=\n");
}

static enum MHD_Result answer(struct http *http, struct MHD_Connection *connection, const char *path,
                              const char *method)
{
    static const char *const orders[] = {[HTTP_STOP] = "/stop", [HTTP_CHECKPOINT] = "/checkpoint"};
    const bool is_get = strcmp(method, "GET") == 0, takes_orders = http->config.order != NULL;
    int order = -1;
    for (int i = 0; takes_orders && i < (int)(sizeof orders / sizeof orders[0]); i++)
        if (strcmp(path, orders[i]) == 0)
            order = i;
    if (order >= 0 ? strcmp(method, "POST") != 0 : !is_get && strcmp(method, "HEAD") != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                      order >= 0 ? "expected POST\n" : "expected GET\n");
    const char *host = header_of(connection, "Host"); /* HTTP/1.0 has none, and no browser speaks that */
    if (http->config.checks_host && host != NULL && !is_loopback_name(host))
        return refuse(connection, MHD_HTTP_FORBIDDEN, "expected a request to this host's loopback address\n");
    if (http->token != NULL && !shows_token(http, connection))
        return refuse_stranger(connection);
    if (order >= 0)
        return take_order(http, connection, (enum http_order)order);
    const struct page_file *file = file_of(http, path);
    if (file != NULL)
        return send_file(connection, file);
    return http->config.serves_runs ? answer_runs(http, connection, path)
                                    : answer_run(http, connection, path, is_get);
}

/* Called when the headers have come, and again at the request's end. After an answer at the first call the
 * library closes the connection, so no body is ever read. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *body, size_t *body_bytes,
                              void **state)
{
    static int begun;
    (void)version;
    (void)body;
    (void)body_bytes;
    const bool has_body =
        header_of(connection, "Content-Length") != NULL || header_of(connection, "Transfer-Encoding") != NULL;
    if (*state == NULL && !has_body) {
        *state = &begun;
        return MHD_YES;
    }
    return answer(arg, connection, path, method);
}

/* A path is taken as it is written: none of ours has a %, and %00 would end it early. */
static size_t keep_escapes(void *arg, struct MHD_Connection *connection, char *text)
{
    (void)arg;
    (void)connection;
    return strlen(text);
}

/* ---- the interface ---- */

static void http_end(struct http *http)
{
    for (struct stream *stream = http->streams; stream != NULL; stream = stream->next) {
        stream->ends = true;
        stream_wake(stream);
    }
}

static void http_close(struct http *http)
{
    if (http == NULL)
        return;
    http_end(http);
    if (http->daemon != NULL)
        MHD_stop_daemon(http->daemon);
    free(http->token);
    free(http);
}

static enum status http_open(struct http **out, const struct http_config *config, struct error *error)
{
    struct http *http = calloc(1, sizeof *http);
    if (http != NULL && config->token != NULL)
        http->token = strdup(config->token);
    if (http == NULL || (config->token != NULL && http->token == NULL)) {
        free(http);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the HTTP server");
    }
    http->config = *config;
    const unsigned most =
        config->connections_max < CONNECTIONS_MAX ? config->connections_max : CONNECTIONS_MAX;
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, handle, http, MHD_OPTION_LISTEN_SOCKET,
        config->fd, MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    if (http->daemon == NULL) {
        http_close(http);
        return error_set(error, STATUS_INTERNAL, "the HTTP server does not start");
    }
    http->epoll_fd = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    *out = http;
    return STATUS_OK;
}

static int http_fd(const struct http *http)
{
    return http->epoll_fd;
}

static struct monotime http_due(struct http *http, struct monotime now)
{
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(http->daemon, &ms) != MHD_YES)
        return MONOTIME_NEVER;
    return monotime_add_us(now, (uint64_t)ms * 1000);
}

static unsigned connections_open(const struct http *http)
{
    return MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS)->num_connections;
}

/* When a full server has closed a connection, it accepts again in its next run. */
static void http_serve(struct http *http)
{
    const unsigned before = connections_open(http);
    MHD_run(http->daemon);
    if (connections_open(http) < before)
        MHD_run(http->daemon);
}

static unsigned http_streams(const struct http *http)
{
    return http->stream_count;
}

static void http_tell(struct http *http, const char *event, size_t length)
{
    for (struct stream *stream = http->streams; stream != NULL; stream = stream->next) {
        if (!stream->ends && !stream_append(stream, event, length))
            stream->ends = stream->lags = true;
        stream_wake(stream);
    }
}

static const struct http_ops ops = {.open = http_open,
                                    .close = http_close,
                                    .fd = http_fd,
                                    .due = http_due,
                                    .serve = http_serve,
                                    .streams = http_streams,
                                    .tell = http_tell,
                                    .end = http_end};

__attribute__((visibility("default"))) http_plugin coalesced_http_plugin;

const struct http_ops *coalesced_http_plugin(int abi)
{
    return abi == HTTP_ABI ? &ops : NULL;
}
