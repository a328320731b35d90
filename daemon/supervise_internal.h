/* The supervisor's state, for its own files. Supervisor process; its only thread; no lock.
 *
 *     supervise.c          the loop: wait, read, deadlines; the job's start
 *     supervise_signals.c  the reaction to each signal
 *     supervise_table.c    the reaction to each message: one table, [kind of message][state of its worker]
 *     supervise_exit.c     the reaction to a worker's exit, and the other workers that are told
 *     supervise_end.c      how a job ends: the order in which workers leave, and what a failure sets off
 */
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
    struct control_status *holdings; /* (count) the newest CONTROL_STATUS of each worker */
    unsigned count;                  /* workers of the job */
    unsigned ready;                  /* workers that have said READY */
    struct child_segments segments;
    struct pollfd *waits; /* (1 + count) signals, then each child's control line */
    int signal_fd;
    unsigned stops;  /* SIGINT and SIGTERM so far */
    bool log_failed; /* a record's line is missing: no later one may follow */
    bool closing;    /* the workers are told to leave, each when its turn has come */
    struct control_finished result;
    struct monotime kill_at;   /* workers that still live at this time are killed */
    struct monotime wake_due;  /* the latest time at which the last wait should have ended */
    struct error outcome;      /* the job's failure; STATUS_OK: none so far */
    bool outcome_is_follow_on; /* its worker failed because a peer did, which may not be reaped yet */
    char *job_text;            /* the resolved job, for START */
    size_t job_bytes;
};

/* supervise_signals.c: opens the descriptor by which signals arrive. STATUS_IO. */
enum status supervise_take_signals(struct supervisor *s, struct error *error);

/* Obeys all signals that have arrived. True: SIGCHLD was among them, and children wait to be reaped. */
bool supervise_obey_signals(struct supervisor *s);

/* supervise_table.c: acts on a message of a worker that is neither killed nor gone. */
void supervise_obey_message(struct supervisor *s, struct child *child, const struct control_message *message);

/* Kills a worker that sent a message which its state does not permit, and fails the job. */
void supervise_expel(struct supervisor *s, struct child *child, uint32_t message_kind);

/* supervise_exit.c: acts on the exit of a worker that was reaped. `exit_text` is child_reap's. */
void supervise_exit(struct supervisor *s, struct child *child, const char *exit_text);

/* supervise_end.c: fails the job, with the sentence `why`, and hurries it. The first failure is the outcome;
 * later ones are only logged. */
void supervise_fail(struct supervisor *s, enum status status, const char *why);

/* Has every worker give up its pending calls. Those that live GRACE_US later are killed. */
void supervise_hurry(struct supervisor *s);

/* Begins the orderly end: from now on each worker is told to leave as soon as its turn has come. */
void supervise_close(struct supervisor *s);

/* Tells the next workers in order to leave, once supervise_close was called; called after each exit. */
void supervise_leave_next(struct supervisor *s);

#endif
