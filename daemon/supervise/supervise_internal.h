/* The supervisor's state, for its own files. Supervisor process; its only thread; no lock.
 *
 *     supervise.c          the loop: wait, read, deadlines; the job's start
 *     supervise_signals.c  the reaction to each signal
 *     supervise_table.c    the reaction to each event of a worker: one table, [event][state of the worker]
 *     supervise_exit.c     a worker is dead, or must die: what follows
 *     supervise_restart.c  a successor in its place, or all workers again under the next generation
 *     supervise_resize.c   the number of observers or trainers follows the hosts that bring some
 *     supervise_hosts.c    the job's other hosts: which are there, messages from there, their loss
 *     supervise_place.c    where workers run, and where those dial that run on different hosts
 *     supervise_status.c   what the run is doing, for those who ask
 *     supervise_metrics.c  page, metrics and events (/metrics)
 *     supervise_profile.c  where the workers' time went (/log/profile)
 *     supervise_end.c      how a job ends: the order in which workers leave, and what a failure sets off
 */
#ifndef DAEMON_SUPERVISE_SUPERVISE_INTERNAL_H
#define DAEMON_SUPERVISE_SUPERVISE_INTERNAL_H

#include "daemon/hosts/relay.h"
#include "daemon/log/run_history.h"
#include "daemon/process/python_worker.h"
#include "daemon/supervise/child.h"
#include "daemon/supervise/supervise.h"
#include "daemon/watch/listener.h"
#include "daemon/watch/run_status.h"
#include "daemon/watch/status_socket.h"
#include "worker/roster.h"

#include <poll.h>

/* What can happen to a worker: a message of it, by its kind (enum control_kind), or one of these. */
enum supervise_event {
    EVENT_SILENT = CONTROL_KINDS, /* no beat has come for too long */
    EVENT_LATE,                   /* it lives after the time at which it had to be gone */
    EVENT_EXITED,                 /* it is reaped; child->end says how it ended */
    EVENT_DUE,                    /* the time at which its successor starts has come */
    EVENTS
};

/* All workers start again, under the next generation. */
struct regeneration {
    bool pending; /* all workers are killed; the next generation starts when they are reaped */
    struct monotime due;
    unsigned fruitless; /* generations in a row that have brought no episode or update that is new */
    unsigned alike; /* failures in a row that had the last words `words`, without a new episode or update */
    char words[ERROR_TEXT_BYTES];
    uint16_t worker; /* whose death is the cause */
    bool is_resize;  /* no death is the cause, but a new number of clients */
    char reason[ERROR_TEXT_BYTES];
};

enum host_state {
    HOST_AWAITED,  /* it has not come yet */
    HOST_UP,       /* it has come, and beats */
    HOST_LOST,     /* it was up, and has fallen silent; it may come back */
    HOST_DEPARTS,  /* it asks to be left out: nothing starts there any more */
    HOST_DEPARTED, /* it was told that it is out */
};

/* Another host of the job. */
struct host {
    enum host_state state;
    char name[CONTROL_HOST_NAME_BYTES]; /* its own, for messages */
    char address[CONTROL_FAR_BYTES];    /* at which other hosts reach its listeners */
    char leader[CONTROL_FAR_BYTES];     /* at which it reaches the leader's: "tcp://ADDRESS:PORT" */
    struct monotime heard;
    struct monotime lost_at;
    uint32_t brings;          /* observers or trainers that the job has for this host (coalesced join) */
    bool unfit;               /* workers cannot run there: none starts there any more */
    struct monotime clear_at; /* HOST_DEPARTS: when its workers start elsewhere */
};

/* All hosts of the job; a job of one host has none of this. */
struct hosts {
    struct relay relay;
    struct host *of;               /* (keys.count) by number; the leader's own is not used */
    bool awaited;                  /* the workers have not started yet: hosts are missing */
    struct monotime due, beat_due; /* when to start without them; when to beat next */
};

enum { WAITS_BEHIND = 2 + STATUS_WAITS };

struct supervisor {
    const struct supervise_config *config;
    struct hosts hosts;
    struct roster roster;
    struct child *children;          /* (count) by worker number: the servers, then their clients */
    struct control_status *holdings; /* (count) the newest CONTROL_STATUS of each worker */
    unsigned count;                  /* workers of the job */
    uint32_t generation;
    struct resume_point resume; /* where this generation began */
    struct spawn_segments segments;
    struct python_worker python_worker;
    struct pollfd *waits; /* (1 + count + WAITS_BEHIND) signals, each child's control line, the link, the HTTP
                             server, the status's socket and clients */
    struct run_totals totals;
    struct run_history history;
    struct status_socket status;
    struct {
        struct listener listener;
        unsigned connections_max; /* 0: the page is not served */
        struct monotime listen_due, tick_due, textfile_due;
        bool textfile_failed;  /* the last time */
        bool textfile_written; /* by this process: it removes the file when it ends */
    } metrics;
    struct {
        bool is_on; /* the workers measure */
        struct worker_profile *of[ROSTER_WORKERS_MAX];
    } profile;
    struct monotime begin;
    double begin_unix_s; /* the same moment, for those who compare it with the clock of another program */
    int signal_fd;
    bool announced;    /* the service manager knows that the job trains */
    unsigned stops;    /* SIGINT and SIGTERM so far */
    uint64_t records;  /* of this generation's lead that are in the logs */
    bool log_failed;   /* a record's line is missing: no later one may follow */
    bool hurried;      /* the workers have given up their calls */
    bool finished;     /* FINISHED has come: the logs and checkpoints are complete */
    bool resizes;      /* the lead drains, because the number of clients changes */
    bool closing;      /* the workers are told to leave, each when its turn has come */
    uint64_t furthest; /* the highest episode or update that was recorded */
    struct regeneration regeneration;
    struct control_finished result;
    struct monotime kill_at;   /* workers that still live at this time are killed */
    struct monotime wake_due;  /* the latest time at which the last wait should have ended */
    struct error outcome;      /* the job's failure; STATUS_OK: none so far */
    bool outcome_is_follow_on; /* its worker failed because a peer did, which may not be reaped yet */
    char *job_text;            /* the resolved job, for START */
    size_t job_bytes;
};

/* What an event sets off. `message`: NULL where the event is no message. */
typedef void supervise_reaction(struct supervisor *s, struct child *child,
                                const struct control_message *message);

/* supervise_signals.c: opens the descriptor by which signals arrive. STATUS_IO. */
enum status supervise_take_signals(struct supervisor *s, struct error *error);

/* Obeys all signals that have arrived. True: SIGCHLD was among them, and children wait to be reaped. */
bool supervise_obey_signals(struct supervisor *s);

/* supervise_table.c: reacts to an event of a worker. `event`: enum control_kind or enum supervise_event. */
void supervise_react(struct supervisor *s, struct child *child, unsigned event,
                     const struct control_message *message);

/* Tells the lead how many of its records are in the logs, and the place behind them. */
void supervise_tell_place(struct supervisor *s);

/* Asks the lead for a checkpoint, if a rotation has renamed a log: its new file begins behind that. */
void supervise_order_save(struct supervisor *s);

/* supervise.c: how long this worker may be silent. */
uint64_t supervise_silence_us_max(const struct supervisor *s, const struct child *child);

/* Kills a worker that sent a message which its state does not permit. */
void supervise_expel(struct supervisor *s, struct child *child, uint32_t message_kind);

/* Tells workers to connect: those whose listeners have all bound their sockets. */
void supervise_connect(struct supervisor *s);

/* supervise_exit.c: a worker died unasked, or must die: it is killed if it lives. Decides what follows: a
 * successor, the next generation, or the job's end with `status`. `why` is a sentence that names the worker.
 */
void supervise_lose(struct supervisor *s, struct child *child, enum status status, const char *why);

/* The reactions to EVENT_EXITED: of a worker that was neither killed by the supervisor nor told to leave;
 * that was told to leave; that was killed. */
supervise_reaction exit_unasked, exit_asked, exit_killed;

/* supervise_restart.c: has a successor of this worker start, once the worker is reaped and a delay is over. A
 * follow-on failure, whose cause is another worker, waits a little longer. */
void supervise_replace(struct child *child, bool is_follow_on, const char *why);

/* Has the next generation start a moment after this worker's follow-on failure, if nothing else decides
 * before what follows: the death of the worker that is its cause. */
void supervise_await_cause(struct child *child, const char *why);

/* The reaction to EVENT_DUE: starts the successor, or the next generation. */
supervise_reaction restart_due;

/* No worker starts any more. */
void supervise_forget_restarts(struct supervisor *s);

/* Kills all workers; the next generation starts when all are reaped and a delay is over. */
void supervise_regenerate(struct supervisor *s, const struct child *cause, const char *why);

/* The same without a death: the lead has finished, and the number of clients changes. */
void supervise_regenerate_resized(struct supervisor *s);

/* Starts the next generation if it is due. Returns when to look again. */
struct monotime supervise_advance_generation(struct supervisor *s, struct monotime now);

/* Starts all workers of this generation. */
enum status supervise_spawn_all(struct supervisor *s, struct error *error);

/* An episode or update ends the rows of deaths of the workers that made it. One that is new, and not computed
 * again after a death, also ends the row of generations that brought nothing. */
void supervise_note_progress(struct supervisor *s, const struct control_message *record);

static inline bool supervise_has_hosts(const struct supervisor *s)
{
    return s->hosts.of != NULL;
}

/* How many have a key, the leader included. */
static inline uint16_t supervise_host_count(const struct supervisor *s)
{
    return s->config->place->link.keys.count;
}

/* supervise_hosts.c: starts the link, and tells the other hosts where it is. Blocks until they know it, for
 * /hosts/patience_s at most. Errors of relay_open and place_publish. Does nothing in a job of one host. */
enum status supervise_open_hosts(struct supervisor *s, struct error *error);

/* Tells the hosts that the job is over, and ends the link. */
void supervise_close_hosts(struct supervisor *s);

/* A worker on another host has failed in a way that would come again there: it is this host that cannot run
 * workers. None starts there any more. */
void supervise_doubt_host(struct supervisor *s, uint16_t host, const char *why);

/* Reads what has come from the other hosts, and acts on it. */
void supervise_read_hosts(struct supervisor *s);

/* A host that does not end a worker which it was told to kill is lost. */
void supervise_lose_stuck(struct supervisor *s, const struct child *child);

/* Beats, finds hosts that have fallen silent, and starts the workers once the hosts are there. Returns when
 * to look again. */
struct monotime supervise_check_hosts(struct supervisor *s, struct monotime now);

/* This process was absent: the hosts' silence counts from now on. */
void supervise_excuse_hosts(struct supervisor *s, struct monotime now);

/* The descriptor to wait for; -1: none. */
int supervise_hosts_fd(const struct supervisor *s);

/* supervise_resize.c: whether the job can have `count` more clients of the role `role`. STATUS_INVALID, with
 * a sentence that begins with the job: another kind of job, or more than it may have. */
enum status supervise_check_growth(const struct supervisor *s, uint32_t role, uint32_t count,
                                   struct error *error);

/* A host has come or gone: if the number of clients is another one from now on, the lead is told to finish
 * its round. `why` is a sentence that names the host. */
void supervise_resize(struct supervisor *s, const char *why);

/* The clients that the job has for this host's sake: 0 unless it is up and can run workers. */
uint32_t supervise_brings(const struct supervisor *s, uint16_t host);

/* Between two generations: takes the new number over. STATUS_NO_MEMORY. */
enum status supervise_adopt_size(struct supervisor *s, struct error *error);

/* "observers" or "trainers"; of a count of 1 "observer" or "trainer". */
const char *supervise_clients_unit(const struct supervisor *s, uint32_t count);

/* Clients that belong to no host; the clients of the hosts that bring some follow, in order of the hosts. */
uint32_t supervise_own_clients(const struct supervisor *s);

/* supervise_place.c: the host on which this worker is to start: where it was, if that host is up and the
 * worker has not died there again and again; otherwise by /hosts. */
uint16_t supervise_choose_host(const struct supervisor *s, uint16_t worker);

/* How many workers live on a host. */
unsigned supervise_load_of(const struct supervisor *s, uint16_t host);

/* Starts the worker on that host. Errors of child_spawn and child_spawn_far. */
enum status supervise_spawn_on(struct supervisor *s, struct child *child, const struct control_start *start,
                               uint16_t host, struct error *error);

/* Tells a worker which of the workers that it dials are on other hosts, and tells these on which host it is;
 * before its CONNECT. */
void supervise_introduce(struct supervisor *s, struct child *child);

/* Moves `count` clients to a host that is up, from the hosts that have the most: each is killed, and its
 * successor starts there. Returns how many have moved. */
uint32_t supervise_move_to(struct supervisor *s, uint16_t host, uint32_t count);

/* The clients that a host of those with which the job began has when all are spread evenly. */
uint32_t supervise_fair_share(const struct supervisor *s, uint16_t host);

/* supervise_status.c: the wall clock, Unix time. */
double supervise_unix_s(void);

/* supervise_status.c: the picture of now, whose pointers are the supervisor's own. The caller frees
 * status->workers. False: no memory. */
bool supervise_paint(const struct supervisor *s, struct run_status *status);

/* Opens the socket for `coalesced status`; a warning where it cannot. */
void supervise_open_status(struct supervisor *s);

/* The picture as JSON, which the caller frees. NULL: no memory. */
char *supervise_status_text(const struct supervisor *s);

/* supervise_metrics.c: opens what /metrics asks for. A page that cannot be served is a warning, and is tried
 * again: the job trains without it. */
void supervise_open_metrics(struct supervisor *s);
void supervise_close_metrics(struct supervisor *s);

/* Serves what is due; returns when to call again. */
struct monotime supervise_check_metrics(struct supervisor *s, struct monotime now);

/* supervise_profile.c: keeps a part of a worker's report. */
supervise_reaction keep_profile;

/* Writes the run's profile and prints its table; frees the reports. Nothing is written unless the job is
 * profiled. */
void supervise_end_profile(struct supervisor *s);

/* supervise_end.c: fails the job, with the sentence `why`, and hurries it. The first failure is the outcome;
 * later ones are only logged. */
void supervise_fail(struct supervisor *s, enum status status, const char *why);

/* Has every worker give up its pending calls. Those that live GRACE_US later are killed. */
void supervise_hurry(struct supervisor *s);

/* Begins the orderly end: from now on each worker is told to leave as soon as its turn has come, and none
 * starts. */
void supervise_close(struct supervisor *s);

/* Tells the next workers in order to leave, once supervise_close was called; called after each exit. */
void supervise_leave_next(struct supervisor *s);

#endif
