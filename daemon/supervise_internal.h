/* What the supervisor's two files share: supervise.c has the loop, supervise_table.c what it does when a
 * worker says or does something. Supervisor process; its only thread; no lock. */
#ifndef DAEMON_SUPERVISE_INTERNAL_H
#define DAEMON_SUPERVISE_INTERNAL_H

#include "daemon/child.h"
#include "daemon/supervise.h"
#include "worker/roster.h"

#include <poll.h>

struct supervisor {
    const struct supervise_config *config;
    struct roster roster;
    struct child *children;          /* (count) by worker number: the servers, then their clients */
    struct control_status *holdings; /* (count) what each of them held when it last said so */
    unsigned count, ready;
    struct child_segments segments;
    struct pollfd *waits; /* signals, then one for each child */
    int signal_fd;
    unsigned stops; /* SIGINT and SIGTERM so far */
    bool leaving;
    struct control_finished result;
    struct monotime kill_at; /* workers that are left then are killed */
    struct monotime awake;   /* when this loop should have gone on at the latest */
    struct error outcome;    /* the first failure */
    bool follows;            /* it is of a worker that ended because another did, whose end is not seen yet */
    char *job_text;
    size_t job_bytes;
};

enum event {
    EVENT_READY,
    EVENT_BEAT,
    EVENT_RECORD, /* an episode, update or epoch for the logs */
    EVENT_STATUS, /* what it holds of references and contexts */
    EVENT_FINISHED,
    EVENT_FAILED,
    EVENT_SILENT,
    EVENT_EXITED,
    EVENTS
};

/* One event: the message it came with, or for EVENT_EXITED the end's description. */
struct happening {
    const struct control_message *message;
    const char *text;
};

/* What a control message is to the table; EVENTS for one that a worker may not send. */
enum event supervise_event_of(uint32_t kind);

/* Acts on one event through the table. What the table has no entry for costs the worker its life. */
void supervise_react(struct supervisor *s, struct child *child, enum event event,
                     const struct happening *what);

/* Ends the job because of `why`; only the first failure is the outcome. */
void supervise_fail(struct supervisor *s, enum status status, const char *why);

/* Tells everyone to give up what is pending, and gives them GRACE_US for it. */
void supervise_hurry(struct supervisor *s);

/* How long a child may be silent. */
uint64_t supervise_patience_us(const struct supervisor *s, const struct child *child);

#endif
