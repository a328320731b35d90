/* Checks /metrics, binds the address, and loads the HTTP server's plug-in. The caller's only thread. */
#include "daemon/watch/listener.h"

#include "daemon/watch/status_socket.h"
#include "kernels/base/file.h"
#include "kernels/base/program_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { TOKEN_BYTES = 256, BACKLOG = 256 };

/* Where to listen. */
struct place_to_listen {
    struct sockaddr_storage address;
    socklen_t bytes;
    bool is_socket; /* of the file system */
    bool is_loopback;
};

/* ---- the address ---- */

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* "127.0.0.1:9477", "[::1]:9477": numbers alone, so that no name service is asked. */
static bool read_numbers(const char *text, struct place_to_listen *place)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char host[64];
    const char *colon = strrchr(text, ':');
    const bool has_brackets = text[0] == '[' && colon != NULL && colon > text && colon[-1] == ']';
    if (colon == NULL || colon == text || colon - text >= (ptrdiff_t)sizeof host || colon[1] == '\0' ||
        strlen(colon) > 6 || strspn(colon + 1, "0123456789") != strlen(colon + 1) || atoi(colon + 1) < 1 ||
        atoi(colon + 1) > 65535)
        return false;
    snprintf(host, sizeof host, "%.*s", (int)(colon - text) - 2 * has_brackets, text + has_brackets);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return false;
    memcpy(&place->address, found->ai_addr, found->ai_addrlen);
    place->bytes = found->ai_addrlen;
    place->is_loopback = is_loopback(&place->address);
    freeaddrinfo(found);
    return true;
}

struct listener_place listener_place_of(const struct job *job)
{
    return (struct listener_place){.listen = job->metrics.listen,
                                   .token = job->metrics.has_token ? job->metrics.token : NULL,
                                   .listen_name = "/metrics/listen",
                                   .token_name = "/metrics/token"};
}

static enum status read_place(const struct listener_place *wanted, struct place_to_listen *place,
                              struct error *error)
{
    const char *text = wanted->listen;
    struct sockaddr_un *name = (struct sockaddr_un *)&place->address;
    *place = (struct place_to_listen){.is_socket = strchr(text, '/') != NULL};
    if (place->is_socket && strlen(text) >= sizeof name->sun_path)
        return error_set(error, STATUS_INVALID, "a socket's path may have at most %zu bytes, got %zu",
                         sizeof name->sun_path - 1, strlen(text));
    if (place->is_socket) {
        name->sun_family = AF_UNIX;
        memcpy(name->sun_path, text, strlen(text) + 1);
        place->bytes = sizeof *name;
        return STATUS_OK;
    }
    if (!read_numbers(text, place))
        return error_set(
            error, STATUS_INVALID,
            "expected an IP address and a port, such as 127.0.0.1:9477, or the path of a socket, "
            "with a slash, got %.100s",
            text);
    if (!place->is_loopback && wanted->token == NULL)
        return error_set(error, STATUS_INVALID,
                         "others can reach %.100s: expected a token in %s, or an address of loopback", text,
                         wanted->token_name);
    return STATUS_OK;
}

/* ---- the token ---- */

/* The length of the first line if it is a token, else 0. Other characters would not survive a header. */
static size_t token_length(const char *text, size_t bytes)
{
    size_t length = 0;
    while (length < bytes && text[length] > ' ' && text[length] <= '~')
        length++;
    return length == bytes || text[length] == '\r' || text[length] == '\n' ? length : 0;
}

static enum status read_token(const char *path, char token[TOKEN_BYTES], struct error *error)
{
    uint64_t size;
    struct stat info;
    int fd;
    enum status status = file_open(&fd, &size, path_of(path), error);
    if (status != STATUS_OK)
        return status;
    const ssize_t bytes = file_read_at(fd, token, TOKEN_BYTES - 1, 0);
    const bool is_private = fstat(fd, &info) == 0 && (info.st_mode & 077) == 0;
    close(fd);
    const size_t length = bytes > 0 ? token_length(token, (size_t)bytes) : 0;
    token[length] = '\0';
    if (!is_private)
        return error_set(error, STATUS_INVALID, "%.300s: other users may read it: expected mode 0600", path);
    if (length == 0 || size >= TOKEN_BYTES)
        return error_set(error, STATUS_INVALID,
                         "%.300s: expected a token of 1..%d printable ASCII characters without spaces on its "
                         "first line",
                         path, TOKEN_BYTES - 2);
    return STATUS_OK;
}

/* ---- checking ---- */

enum status listener_check(const struct job *job, const char **pointer, struct error *error)
{
    const struct listener_place wanted = listener_place_of(job);
    struct place_to_listen place;
    char token[TOKEN_BYTES];
    enum status status = STATUS_OK;
    const char *ending = job->metrics.has_textfile ? strrchr(job->metrics.textfile, '.') : NULL;
    *pointer = "/metrics/textfile";
    if (job->metrics.has_textfile &&
        (ending == NULL || strcmp(ending, ".prom") != 0 || ending == job->metrics.textfile))
        status = error_set(error, STATUS_INVALID, "expected a name that ends in .prom, got %.200s",
                           job->metrics.textfile);
    if (status == STATUS_OK && job->metrics.has_listen) {
        *pointer = "/metrics/listen";
        status = read_place(&wanted, &place, error);
    }
    if (status == STATUS_OK && job->metrics.has_token) {
        *pointer = "/metrics/token";
        status = read_token(job->metrics.token, token, error);
    }
    return status;
}

/* ---- listening ---- */

/* Removes a socket at which nobody listens: a killed run has left it. */
static enum status clear_path(const struct place_to_listen *place, const char *text, struct error *error)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool answers = fd >= 0 && connect(fd, (const struct sockaddr *)&place->address, place->bytes) == 0;
    if (fd >= 0)
        close(fd);
    return answers ? error_set(error, STATUS_BUSY, "another program listens at %.200s", text)
                   : status_socket_clear(text, error);
}

static enum status open_http(struct listener *listener, const struct http_config *config, const char *name,
                             struct error *error)
{
    char path[PATH_MAX];
    void (*function)(void);
    struct error why;
    if (program_find(path, PROGRAM_PLUGIN, "libcoalesced-http.so", &why) != STATUS_OK)
        return error_set(error, STATUS_UNAVAILABLE, "%s: %s", name, why.text);
    if (plugin_load(&function, path, HTTP_PLUGIN_SYMBOL, &why) != STATUS_OK)
        return error_set(error, STATUS_UNAVAILABLE, "%s: %.200s %.250s", name, path, why.text);
    const struct http_ops *ops = ((http_plugin *)function)(HTTP_ABI);
    if (ops == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%.300s is of another version", path);
    const enum status status = ops->open(&listener->http, config, error);
    listener->ops = status == STATUS_OK ? ops : NULL;
    return status;
}

enum status listener_open(struct listener *listener, const struct listener_place *wanted,
                          struct http_config config, struct error *error)
{
    struct place_to_listen place;
    char token[TOKEN_BYTES];
    *listener = (struct listener){0};
    enum status status = read_place(wanted, &place, error);
    if (status == STATUS_OK && wanted->token != NULL &&
        (status = read_token(wanted->token, token, error)) == STATUS_OK)
        config.token = token;
    if (status == STATUS_OK && place.is_socket)
        status = clear_path(&place, wanted->listen, error);
    if (status != STATUS_OK)
        return status;
    config.fd = status_socket_listen((const struct sockaddr *)&place.address, place.bytes, BACKLOG);
    if (config.fd < 0 && errno == EADDRINUSE)
        return error_set(error, STATUS_BUSY, "another program listens at %.200s (%s)", wanted->listen,
                         wanted->listen_name);
    if (config.fd < 0)
        return error_set_errno(error, errno, "cannot listen at %.200s (%s)", wanted->listen,
                               wanted->listen_name);
    config.checks_host = !place.is_socket && config.token == NULL;
    if (place.is_socket)
        snprintf(listener->path, sizeof listener->path, "%.107s", wanted->listen);
    status = open_http(listener, &config, wanted->listen_name, error);
    if (status != STATUS_OK) {
        close(config.fd);
        listener_close(listener);
    }
    return status;
}

void listener_close(struct listener *listener)
{
    if (listener->ops != NULL)
        listener->ops->close(listener->http);
    if (listener->path[0] != '\0')
        file_remove_or_warn(listener->path);
    *listener = (struct listener){0};
}

/* ---- while it is open ---- */

int listener_fd(const struct listener *listener)
{
    return listener->ops != NULL ? listener->ops->fd(listener->http) : -1;
}

struct monotime listener_due(struct listener *listener, struct monotime now)
{
    return listener->ops != NULL ? listener->ops->due(listener->http, now) : MONOTIME_NEVER;
}

void listener_serve(struct listener *listener)
{
    if (listener->ops != NULL)
        listener->ops->serve(listener->http);
}

unsigned listener_streams(const struct listener *listener)
{
    return listener->ops != NULL ? listener->ops->streams(listener->http) : 0;
}

void listener_tell(struct listener *listener, const char *event, size_t length)
{
    if (listener->ops != NULL)
        listener->ops->tell(listener->http, event, length);
}

void listener_end(struct listener *listener)
{
    if (listener->ops != NULL)
        listener->ops->end(listener->http);
}
