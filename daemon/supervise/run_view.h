/* What the supervisor shows of a run while it goes on: the answers for `coalesced status`, the page, the
 * metrics, the events of the page's streams, and the file for node_exporter (/metrics). And at its end: where
 * the workers' time went (/log/profile).
 *
 * It reads the generation, and does not change it. The supervisor tells it of each record and each restart. A
 * run that cannot be shown trains all the same: failures are warnings.
 *
 * Supervisor process; its only thread; no lock. No call blocks but on files. */
#ifndef DAEMON_SUPERVISE_RUN_VIEW_H
#define DAEMON_SUPERVISE_RUN_VIEW_H

#include "daemon/log/run_history.h"
#include "daemon/supervise/generation.h"
#include "daemon/watch/listener.h"
#include "daemon/watch/run_status.h"
#include "daemon/watch/status_socket.h"

#include <poll.h>

enum { RUN_VIEW_WAITS = 1 + STATUS_WAITS };

struct run_view {
    const struct generation *g;
    struct monotime begin;
    double begin_unix_s; /* the same moment by the wall clock */
    struct run_totals totals;
    struct run_history *history; /* NULL: no page is served */
    bool is_cut;                 /* the log went back: readers need the whole history again */
    unsigned orders;             /* of the page, which wait: a bit for each enum http_order */
    struct status_socket status;
    struct listener listener;
    unsigned connections_max; /* 0: the page is not served */
    struct monotime listen_due, tick_due, textfile_due;
    bool is_profiled;                                    /* false: no profile is kept or written */
    struct worker_profile *profiles[ROSTER_WORKERS_MAX]; /* the newest report of each worker; NULL: none */
    bool textfile_failed;                                /* the last write */
    bool textfile_written; /* by this process: it removes the file when it ends */
};

/* A view of a run that begins now. Nothing is open. `is_profiled`: the workers report profiles. */
void run_view_init(struct run_view *view, const struct generation *g, bool is_profiled);

/* Opens the socket for `coalesced status`, and begins to serve what /metrics asks for. An address that is in
 * use is tried again. */
void run_view_open(struct run_view *view);

/* Tells the page's readers how the run has ended, and closes everything. `state`: "finished", "solved",
 * "stopped" or "failed"; `reason`: a sentence, or "". Waits 1 s at most for readers that lag. */
void run_view_close(struct run_view *view, const char *state, const char *reason);

/* Takes an episode, update or epoch that is in the logs. */
void run_view_record(struct run_view *view, const struct control_message *record);

/* Takes the next order that a reader of the page has given. False: there is none. */
bool run_view_take_order(struct run_view *view, enum http_order *order);

/* Keeps a part of a worker's profile. */
void run_view_keep_profile(struct run_view *view, const struct child *child,
                           const struct control_profile *part);

/* Writes profile.txt and profile.json below the run directory, prints the table, and frees the profiles. A
 * file that cannot be written is a warning. Blocks on files. */
void run_view_write_profile(struct run_view *view);

/* Writes the descriptors to wait for, -1 in those that are not used; serves those that are ready. */
void run_view_waits(const struct run_view *view, struct pollfd waits[RUN_VIEW_WAITS]);
void run_view_serve(struct run_view *view, const struct pollfd waits[RUN_VIEW_WAITS]);

/* Does what is due; returns when to call again. */
struct monotime run_view_check(struct run_view *view, struct monotime now);

#endif
