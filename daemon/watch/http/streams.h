/* Streams of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): what each
 * has not been sent yet. A stream that has nothing to send sleeps (MHD_suspend_connection). Supervisor
 * process; its only thread. */
#ifndef DAEMON_WATCH_HTTP_STREAMS_H
#define DAEMON_WATCH_HTTP_STREAMS_H

#include <microhttpd.h>
#include <stddef.h>

enum { STREAMS_MAX = 64, STREAM_LAG_BYTES_MAX = 4 << 20 };

struct stream;

struct streams {
    unsigned count;
    struct stream *first;
};

/* Begins a stream, which sends `text` first and frees it. NULL: too many, or no memory; `text` is freed too.
 */
struct MHD_Response *streams_begin(struct streams *streams, struct MHD_Connection *connection, char *text,
                                   size_t length);

/* Sends the event to all; a stream that lags too far behind ends. */
void streams_tell(struct streams *streams, const char *event, size_t length);

/* Ends all: before MHD_stop_daemon. */
void streams_end(struct streams *streams);

#endif
