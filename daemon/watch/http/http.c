/* Answers requests by libmicrohttpd (http.h): documents, the page, and streams of server-sent events
 * (https://html.spec.whatwg.org/multipage/server-sent-events.html). Supervisor process; its only thread. */
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
    STREAM_LAG_BYTES_MAX = 4 << 20,
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

static void add_headers(struct MHD_Response *response)
{
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
}

static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned code,
                                     struct MHD_Response *response)
{
    if (response == NULL)
        return MHD_NO; /* no memory: the connection is closed */
    add_headers(response);
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
    struct MHD_Response *response = sentence("expected the token of /metrics/token\n");
    if (response != NULL) {
        MHD_add_response_header(response, "WWW-Authenticate", "Basic realm=\"coalesced\", charset=\"UTF-8\"");
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"coalesced\"");
    }
    return send_response(connection, MHD_HTTP_UNAUTHORIZED, response);
}

static enum MHD_Result send_document(const struct http *http, struct MHD_Connection *connection,
                                     enum http_document which, const char *type)
{
    size_t length = 0;
    char *text = http->config.document(http->config.arg, which, &length);
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

static enum MHD_Result send_metrics(const struct http *http, struct MHD_Connection *connection)
{
    if (wants_openmetrics(connection))
        return send_document(http, connection, HTTP_OPENMETRICS,
                             "application/openmetrics-text; version=1.0.0; charset=utf-8");
    return send_document(http, connection, HTTP_METRICS, "text/plain; version=0.0.4; charset=utf-8");
}

/* ---- the page ---- */

/* The assembler reads the file: it stays a file that a browser can open and a person can edit. */
__asm__(".pushsection .rodata\n"
        "page_begin: .incbin \"daemon/watch/http/page.html\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char page_begin[];

/* The page may run its own script and style alone, which it names by a number of this one answer, and may
 * talk to this server alone. */
static enum MHD_Result send_page(struct MHD_Connection *connection)
{
    static const char placeholder[] =
        "NONCE-NONCE-NONCE-NONCE-NONCE-NO"; /* in page.html; as long as a nonce */
    unsigned char random[(sizeof placeholder - 1) / 2];
    char nonce[sizeof placeholder], policy[400], *text = strdup(page_begin);
    if (text == NULL)
        return MHD_NO;
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(nonce, sizeof nonce, random, sizeof random);
    for (char *at = text; (at = strstr(at, placeholder)) != NULL;)
        memcpy(at, nonce, sizeof nonce - 1);
    struct MHD_Response *response = response_of(text, strlen(text), true, "text/html; charset=utf-8");
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             nonce, nonce);
    if (response != NULL)
        MHD_add_response_header(response, "Content-Security-Policy", policy);
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
    bool sleeps, ends;
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
    if (stream->end + length > stream->capacity) {
        const size_t wanted = 2 * (stream->end + length);
        char *more = stream->end + length <= STREAM_LAG_BYTES_MAX ? realloc(stream->text, wanted) : NULL;
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
    if (stream->ends)
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
    char *first = http->config.document(http->config.arg, HTTP_FIRST_EVENT, &length);
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

static bool is_of_this_host(struct MHD_Connection *connection)
{
    const char *host = header_of(connection, "Host");
    return host == NULL || is_loopback_name(host); /* HTTP/1.0 has none, and no browser speaks that */
}

/* ---- requests ---- */

static enum MHD_Result answer(struct http *http, struct MHD_Connection *connection, const char *path,
                              const char *method)
{
    const bool is_get = strcmp(method, "GET") == 0;
    if (!is_get && strcmp(method, "HEAD") != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "expected GET\n");
    if (http->config.checks_host && !is_of_this_host(connection))
        return refuse(connection, MHD_HTTP_FORBIDDEN, "expected a request to this host's loopback address\n");
    if (http->token != NULL && !shows_token(http, connection))
        return refuse_stranger(connection);
    if (strcmp(path, "/") == 0)
        return send_page(connection);
    if (strcmp(path, "/metrics") == 0)
        return send_metrics(http, connection);
    if (strcmp(path, "/status.json") == 0)
        return send_document(http, connection, HTTP_STATUS, "application/json");
    if (strcmp(path, "/events") == 0 && is_get)
        return send_events(http, connection);
    return refuse(connection, MHD_HTTP_NOT_FOUND, "expected /, /metrics, /status.json or /events\n");
}

static bool has_body(struct MHD_Connection *connection)
{
    return header_of(connection, "Content-Length") != NULL ||
           header_of(connection, "Transfer-Encoding") != NULL;
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
    if (*state == NULL && !has_body(connection)) {
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

static void http_close(struct http *http)
{
    if (http == NULL)
        return;
    for (struct stream *stream = http->streams; stream != NULL; stream = stream->next) {
        stream->ends = true;
        stream_wake(stream);
    }
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
            stream->ends = true;
        stream_wake(stream);
    }
}

static const struct http_ops ops = {.open = http_open,
                                    .close = http_close,
                                    .fd = http_fd,
                                    .due = http_due,
                                    .serve = http_serve,
                                    .streams = http_streams,
                                    .tell = http_tell};

__attribute__((visibility("default"))) http_plugin coalesced_http_plugin;

const struct http_ops *coalesced_http_plugin(int abi)
{
    return abi == HTTP_ABI ? &ops : NULL;
}
