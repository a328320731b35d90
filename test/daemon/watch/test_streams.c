/* Streams of events (daemon/watch/http/http.c), through the plug-in and a socket: a reader gets every
 * event whole and in order, one that does not read is cut off and costs the others nothing, and there is a
 * limit.
 */
#include "daemon/watch/http/http.h"
#include "test/workplace.h"

#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { STREAMS_MAX = 64, EVENT_BYTES = 1 << 20, TEXT_BYTES_MAX = 16 << 20 };

static const char first_event[] = "event: begin\ndata: {}\n\n";
static const struct http_ops *ops;
static struct http *http;
static struct error error;
static struct sockaddr_un name;
static char event[EVENT_BYTES], expected[TEXT_BYTES_MAX];
static size_t expected_bytes;

struct reader {
    int fd;
    char *text; /* (TEXT_BYTES_MAX) */
    size_t bytes;
    bool ended;
};

static char *document(void *arg, enum http_document which, const char *id, size_t *length)
{
    ck_assert_ptr_eq(arg, &error);
    ck_assert_str_eq(id, "");
    ck_assert_int_eq(which, HTTP_FIRST_EVENT);
    *length = sizeof first_event - 1;
    return strdup(first_event);
}

static void load(void)
{
    char path[PATH_MAX];
    const char *build = getenv("BUILD");
    ck_assert_msg(build != NULL, "BUILD is not set (scripts/check)");
    snprintf(path, sizeof path, "%s/libcoalesced-http.so", build);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    ck_assert_msg(library != NULL, "%s", dlerror());
    http_plugin *plugin = NULL;
    *(void **)&plugin = dlsym(library, HTTP_PLUGIN_SYMBOL);
    ck_assert_ptr_nonnull(plugin);
    ck_assert_ptr_null(plugin(HTTP_ABI + 1));
    ops = plugin(HTTP_ABI);
    dlclose(library);
}

static void open_server(void)
{
    workplace_open();
    load();
    name = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/page", workplace.folder);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    ck_assert_int_eq(listen(fd, 100), 0);
    const struct http_config config = {.fd = fd, .connections_max = 100, .document = document, .arg = &error};
    ck_assert_int_eq(ops->open(&http, &config, &error), STATUS_OK);
    memset(event, 'x', sizeof event);
    memcpy(expected, first_event, sizeof first_event - 1);
    expected_bytes = sizeof first_event - 1;
}

static void close_server(void)
{
    ops->close(http);
    http = NULL;
    workplace_close();
}

static void serve(void)
{
    struct pollfd poll_fd = {.fd = ops->fd(http), .events = POLLIN};
    poll(&poll_fd, 1, 1);
    ops->serve(http);
}

/* HTTP/1.0: the events are not in chunks. */
static struct reader reader_open(void)
{
    static const char request[] = "GET /events HTTP/1.0\r\n\r\n";
    struct reader reader = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    ck_assert_int_eq(connect(reader.fd, (struct sockaddr *)&name, sizeof name), 0);
    ck_assert_int_eq(write(reader.fd, request, sizeof request - 1), sizeof request - 1);
    ck_assert_int_eq(fcntl(reader.fd, F_SETFL, O_NONBLOCK), 0);
    reader.text = calloc(1, TEXT_BYTES_MAX);
    ck_assert_ptr_nonnull(reader.text);
    return reader;
}

static void reader_close(struct reader *reader)
{
    close(reader->fd);
    free(reader->text);
}

static void reader_read(struct reader *reader)
{
    ssize_t bytes;
    while ((bytes = read(reader->fd, reader->text + reader->bytes, TEXT_BYTES_MAX - 1 - reader->bytes)) > 0)
        reader->bytes += (size_t)bytes;
    reader->ended |= bytes == 0;
}

/* What it has of the events. */
static size_t reader_events(const struct reader *reader, const char **events)
{
    const char *end = memmem(reader->text, reader->bytes, "\r\n\r\n", 4);
    *events = end != NULL ? end + 4 : reader->text;
    return end != NULL ? reader->bytes - (size_t)(*events - reader->text) : 0;
}

/* Serves until the reader has all that was told, or has been cut off. */
static void reader_catch_up(struct reader *reader)
{
    const char *events;
    for (unsigned i = 0; i < 20000 && !reader->ended && reader_events(reader, &events) < expected_bytes;
         i++) {
        serve();
        reader_read(reader);
    }
}

static void expect_all(const struct reader *reader)
{
    const char *events;
    ck_assert_uint_eq(reader_events(reader, &events), expected_bytes);
    ck_assert_int_eq(memcmp(events, expected, expected_bytes), 0);
}

/* Tells `length` bytes that differ from those before. */
static void tell(size_t length)
{
    static char letter = 'a';
    memset(event, letter = letter == 'z' ? 'a' : letter + 1, length);
    ops->tell(http, event, length);
    ck_assert_uint_le(expected_bytes + length, sizeof expected);
    memcpy(expected + expected_bytes, event, length);
    expected_bytes += length;
}

START_TEST(every_event_comes_whole_and_in_order)
{
    struct reader readers[3];
    for (unsigned i = 0; i < 3; i++) {
        readers[i] = reader_open();
        reader_catch_up(&readers[i]);
    }
    ck_assert_uint_eq(ops->streams(http), 3);
    for (size_t length = 1; length <= EVENT_BYTES; length *= 4) {
        tell(length);
        tell(length - length / 3);
        for (unsigned i = 0; i < 3; i++)
            reader_catch_up(&readers[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        expect_all(&readers[i]);
        reader_close(&readers[i]);
    }
    for (unsigned i = 0; i < 1000 && ops->streams(http) > 0; i++) {
        tell(10); // a server sees that a reader has gone when it writes
        serve();
    }
    ck_assert_uint_eq(ops->streams(http), 0);
}
END_TEST

START_TEST(who_does_not_read_is_cut_off)
{
    struct reader stalled = reader_open(), reader = reader_open();
    const char *events;
    reader_catch_up(&reader);
    reader_catch_up(&stalled);
    for (unsigned i = 0; i < 10; i++) {
        tell(EVENT_BYTES);
        reader_catch_up(&reader);
    }
    expect_all(&reader);
    reader_catch_up(&stalled);
    ck_assert(stalled.ended);
    const size_t bytes = reader_events(&stalled, &events);
    ck_assert_uint_lt(bytes, expected_bytes);
    ck_assert_int_eq(memcmp(events, expected, bytes), 0);
    serve();
    ck_assert_uint_eq(ops->streams(http), 1);
    reader_close(&stalled);
    reader_close(&reader);
}
END_TEST

START_TEST(there_is_a_limit)
{
    struct reader readers[STREAMS_MAX], refused;
    for (unsigned i = 0; i < STREAMS_MAX; i++) {
        readers[i] = reader_open();
        reader_catch_up(&readers[i]);
    }
    ck_assert_uint_eq(ops->streams(http), STREAMS_MAX);
    refused = reader_open();
    expected_bytes++; // more than it gets
    reader_catch_up(&refused);
    ck_assert(refused.ended);
    ck_assert_msg(strstr(refused.text, " 503 ") != NULL && strstr(refused.text, "too many streams") != NULL,
                  "%s", refused.text);
    ck_assert_uint_eq(ops->streams(http), STREAMS_MAX);
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        reader_close(&readers[i]);
    reader_close(&refused);
}
END_TEST

/* The newest event comes before the end. */
START_TEST(streams_end_behind_what_they_were_told)
{
    struct reader sleeping = reader_open(), stalled = reader_open();
    reader_catch_up(&sleeping);
    reader_catch_up(&stalled);
    tell(EVENT_BYTES);
    ops->end(http);
    for (unsigned i = 0; i < 20000 && ops->streams(http) > 0; i++) {
        serve();
        reader_read(&sleeping);
        if (i > 100)
            reader_read(&stalled);
    }
    ck_assert_uint_eq(ops->streams(http), 0);
    reader_read(&sleeping);
    reader_read(&stalled);
    ck_assert(sleeping.ended && stalled.ended);
    expect_all(&sleeping);
    expect_all(&stalled);
    reader_close(&sleeping);
    reader_close(&stalled);
}
END_TEST

/* One sleeps, one has not read, and one has gone. */
START_TEST(the_end_reaches_everyone)
{
    struct reader sleeping = reader_open(), stalled = reader_open(), gone = reader_open();
    reader_catch_up(&sleeping);
    reader_catch_up(&stalled);
    reader_catch_up(&gone);
    tell(EVENT_BYTES);
    reader_close(&gone);
    reader_catch_up(&sleeping);
    ops->close(http);
    http = NULL;
    reader_read(&sleeping);
    reader_read(&stalled);
    ck_assert(sleeping.ended && stalled.ended);
    reader_close(&sleeping);
    reader_close(&stalled);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("streams");
    TCase *tcase = tcase_create("events");
    tcase_add_checked_fixture(tcase, open_server, close_server);
    tcase_add_test(tcase, every_event_comes_whole_and_in_order);
    tcase_add_test(tcase, who_does_not_read_is_cut_off);
    tcase_add_test(tcase, there_is_a_limit);
    tcase_add_test(tcase, streams_end_behind_what_they_were_told);
    tcase_add_test(tcase, the_end_reaches_everyone);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
