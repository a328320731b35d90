/* One worker process as the supervisor holds it: fork, exec, its control line, its end. */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/worker.h"

#include <sys/types.h>

enum child_state {
    CHILD_STARTING, /* forked; START is sent */
    CHILD_READY,    /* has said READY */
    CHILD_LEAVING,  /* told to leave */
    CHILD_KILLED,   /* SIGKILL is on its way */
    CHILD_GONE,     /* reaped */
    CHILD_STATES
};

struct child {
    const struct role *role;
    struct control_start start;
    enum child_state state;
    pid_t pid;
    int fd;         /* our end of its control line */
    unsigned heard; /* messages handled in this turn of the supervisor's loop */
    bool hung_up;   /* its end of the line is closed */
    bool bound;     /* BOUND has come */
    bool connected; /* CONNECT is sent */
    bool opened;    /* it has said READY */
    struct monotime last_beat;
    struct error last_words; /* what it said when it failed; STATUS_OK: nothing */
    char name[32];           /* "observer 3" */
};

/* The workers' segments (worker/net/segment.h): one memfd each, empty. */
struct child_segments {
    unsigned count; /* 0: the job has none */
    int *fds;       /* (count) by worker number; none of them where a worker will look for its own */
};

/* Makes the memfds. They are kept for workers that start later, and closed with _close. STATUS_IO,
 * STATUS_NO_MEMORY. */
enum status child_segments_open(struct child_segments *segments, unsigned count, struct error *error);
void child_segments_close(struct child_segments *segments);

/* Forks and executes this binary with the role, and sends it START with the job's text; every segment stands
 * where worker/net/segment.h says. The child dies with the calling thread (PR_SET_PDEATHSIG), which must be
 * the process's first. STATUS_IO, STATUS_BUSY. */
enum status child_spawn(struct child *child, const struct role *role, const struct control_start *start,
                        const char *job_text, size_t job_bytes, const struct child_segments *segments,
                        struct error *error);

/* Sends an order. A line that is full or closed is left to the beats and to the reaper to find out. */
void child_order(struct child *child, enum control_kind kind, const void *body, size_t body_bytes);

void child_kill(struct child *child);

/* Reaps the child if it has exited; with `wait`, blocks until then. True: `text` says how, as in "observer 3
 * (process 4711) was killed by signal 9 (Killed)". */
bool child_reap(const struct child *child, bool wait, char *text, size_t bytes);

#endif
