/* One worker as a supervisor sees it: starts its process, sends it orders, kills it, and reaps it.
 *
 * A worker on another host is a child too. That host's supervisor forks it, and child_order and child_kill go
 * there through the relay. Supervisor process; its only thread, so that fork is safe at any time. */
#ifndef DAEMON_HOSTS_CHILD_H
#define DAEMON_HOSTS_CHILD_H

#include "daemon/hosts/relay.h"
#include "daemon/process/spawn.h"
#include "kernels/base/monotime.h"
#include "kernels/base/plugin_call.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/worker.h"

#include <sys/types.h>

enum child_state {
    CHILD_STARTING, /* forked; START is sent */
    CHILD_READY,    /* has said READY */
    CHILD_LEAVING,  /* told to leave */
    CHILD_KILLED,   /* SIGKILL is on its way */
    CHILD_WAITING,  /* reaped; its successor, or the next generation, starts at `restart_at` */
    CHILD_GONE,     /* reaped, or not started yet */
    CHILD_STATES
};
extern const char *const child_states[CHILD_STATES]; /* their names, for people */

/* What a worker does and uses, by its beats. */
struct child_use {
    struct control_beat now;  /* the newest, with the sums of earlier incarnations; all zero: none has told */
    struct control_beat past; /* the sums of earlier incarnations alone */
    struct control_beat before; /* the one at `at`, a second ago or more */
    struct monotime at;
    double work_per_s, cores; /* over the last whole second; cores: processors that it kept busy */
};

struct child {
    struct control_start start;
    enum child_state state;
    uint16_t host;             /* where it runs */
    struct relay *relay;       /* the way there; NULL: it runs on this host */
    struct monotime killed_at; /* of another host's: when the order to kill it went there */
    uint16_t moves_to;         /* the host on which its successor starts; HOST_LEADER: wherever /hosts says */
    pid_t pid;                 /* 0: of another host's, not known */
    int fd;                    /* our end of its control line; -1: none */
    uint16_t far_port;         /* of a listener: what it has bound for other hosts; 0: nothing yet */
    bool hung_up;              /* its end of the line is closed */
    bool bound;                /* BOUND has come */
    bool connected;            /* CONNECT is sent */
    bool opened;               /* it has said READY */
    struct monotime last_beat;
    struct child_use use;
    uint32_t starts;          /* of all its incarnations and generations */
    struct error last_words;  /* of its FAILED message; STATUS_OK: none has come */
    char name[96];            /* "observer 3", "observer 3 on host 2 (node2)" */
    char end[240];            /* once it is reaped: how it ended, child_reap's words */
    struct plugin_call *call; /* its note, mapped until it is reaped; NULL: none */

    unsigned deaths; /* of all its incarnations, in a row, without an episode or update between them */
    bool replaced;   /* it died, or must die, and something starts at `restart_at` */
    struct monotime restart_at;
    char reason[ERROR_TEXT_BYTES]; /* for that start */
};

/* False: the child was killed or is gone. Its messages count no more, and no order reaches it. */
static inline bool child_is_heard(const struct child *child)
{
    return child->state <= CHILD_LEAVING;
}

/* Whether there is a process: one that was killed may not be reaped yet. */
static inline bool child_lives(const struct child *child)
{
    return child->state <= CHILD_KILLED;
}

/* Forks, executes the command as a worker of the role in `start`, and sends START with the job's text. The
 * child keeps its `deaths` and `starts`; all else begins anew. The worker finds the directory at
 * CONTROL_RUN_FD, and each segment at the descriptor that worker/net/segment.h names. It dies with the
 * calling thread (PR_SET_PDEATHSIG), which must be the process's first. A worker that is dead before START is
 * sent is no error: it is reaped like any other. STATUS_IO, STATUS_BUSY; STATUS_INVALID: the job's text is
 * too long. */
enum status child_spawn(struct child *child, const struct control_start *start, const char *job_text,
                        size_t job_bytes, const struct spawn_setting *setting, struct error *error);

/* The same on another host, through `relay`; `host_name` is for messages. Neither segments nor descriptors
 * travel: that host's supervisor has its own. STATUS_INVALID: the job's text is too long. */
enum status child_spawn_far(struct child *child, const struct control_start *start, const char *job_text,
                            size_t job_bytes, struct relay *relay, uint16_t host, const char *host_name,
                            struct error *error);

/* Sends an order. A worker whose line is full is killed with a warning, because it would wait for ever for
 * what it was not told; its exit is reaped later. If the line is closed, the order is lost. */
void child_order(struct child *child, enum control_kind kind, const void *body, size_t body_bytes);

/* Takes a beat that says what the worker does. */
void child_note_use(struct child *child, const struct control_beat *beat, struct monotime now);

/* Receives the child's next message. STATUS_AGAIN: none waits, or the child is not heard. STATUS_INVALID: it
 * has sent what is no message. */
enum status child_receive(struct child *child, struct control_message *message);

/* The descriptor to wait for; -1: nothing can come. */
int child_fd(const struct child *child);

/* After child_reap, and the last message: closes the line. */
void child_bury(struct child *child);

/* Sends SIGKILL; the child is reaped later. */
void child_kill(struct child *child);

/* "observer 3 (process 4711)"; the process of another host is not known. */
enum { CHILD_TITLE_BYTES = 128 };
void child_title(const struct child *child, char title[CHILD_TITLE_BYTES]);

/* " in step of environment 3" while the worker is in a call of an environment, else "". */
enum { CHILD_PLACE_BYTES = 64 };
void child_place(const struct child *child, char place[CHILD_PLACE_BYTES]);

/* Reaps the child if it runs on this host and has exited; with `wait`, blocks until then. True: child->end
 * says how, as in "observer 3 (process 4711) was killed by signal 11 (Segmentation fault) in step of
 * environment 3". */
bool child_reap(struct child *child, bool wait);

#endif
