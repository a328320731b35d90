/* One buffer for each stream. Supervisor process; its only thread. */
#include "daemon/watch/http/streams.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

struct stream {
    struct streams *all;
    struct stream *next;
    struct MHD_Connection *connection;
    char *text;
    size_t begin, end, capacity; /* what is not sent yet lies in [begin, end) */
    bool sleeps, ends;
};

static void wake(struct stream *stream)
{
    if (stream->sleeps)
        MHD_resume_connection(stream->connection);
    stream->sleeps = false;
}

/* False: it lags too far behind, or there is no memory. */
static bool append(struct stream *stream, const char *event, size_t length)
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
static ssize_t give(void *arg, uint64_t position, char *out, size_t most)
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
static void forget(void *arg)
{
    struct stream *stream = arg, **at = &stream->all->first;
    while (*at != NULL && *at != stream)
        at = &(*at)->next;
    if (*at == stream) {
        *at = stream->next;
        stream->all->count--;
    }
    free(stream->text);
    free(stream);
}

struct MHD_Response *streams_begin(struct streams *streams, struct MHD_Connection *connection, char *text,
                                   size_t length)
{
    enum { BLOCK_BYTES = 16384 };
    struct stream *stream = streams->count < STREAMS_MAX ? calloc(1, sizeof *stream) : NULL;
    if (stream == NULL) {
        free(text);
        return NULL;
    }
    *stream = (struct stream){.all = streams,
                              .next = streams->first,
                              .connection = connection,
                              .text = text,
                              .end = length,
                              .capacity = length};
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, give, stream, forget);
    if (response == NULL) {
        free(text);
        free(stream);
        return NULL;
    }
    streams->first = stream;
    streams->count++;
    return response;
}

void streams_tell(struct streams *streams, const char *event, size_t length)
{
    for (struct stream *stream = streams->first; stream != NULL; stream = stream->next) {
        if (!stream->ends && !append(stream, event, length))
            stream->ends = true;
        wake(stream);
    }
}

void streams_end(struct streams *streams)
{
    for (struct stream *stream = streams->first; stream != NULL; stream = stream->next) {
        stream->ends = true;
        wake(stream);
    }
}
