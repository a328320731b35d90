/* The supervisor's state, and the calls between its three files; each calls only those below it:
 *
 *     supervise.c         the loop: the job's start and end, signals, the other hosts' events, deadlines
 *     supervise_table.c   the reaction to each event of a worker: one table, [event][state of the worker]
 *     supervise_deaths.c  what follows when a worker dies: a successor, the next generation, or the job's end
 *
 * Supervisor process; its only thread; no lock. */
#ifndef DAEMON_SUPERVISE_SUPERVISE_INTERNAL_H
#define DAEMON_SUPERVISE_SUPERVISE_INTERNAL_H

#include "daemon/supervise/generation.h"
#include "daemon/supervise/job_end.h"
#include "daemon/supervise/run_watch.h"
#include "daemon/supervise/supervise.h"
#include "daemon/supervise/worker_profiles.h"

/* What can happen to a worker: a message of it, by its kind (enum control_kind), or one of these. */
enum supervise_event {
    EVENT_SILENT = CONTROL_KINDS, /* no beat has come for too long */
    EVENT_LATE,                   /* it lives after the time at which it had to be gone */
    EVENT_EXITED,                 /* it is reaped; child->end says how it ended */
    EVENT_DUE,                    /* the time has come at which its successor starts */
    EVENTS
};

/* Failures in a row that brought no episode or update that is new; supervise_deaths.c. */
struct death_tally {
    unsigned fruitless; /* generations */
    unsigned alike;     /* failures that had the last words `words` */
    char words[ERROR_TEXT_BYTES];
};

struct supervisor {
    const struct supervise_config *config;
    struct hosts hosts;
    struct generation generation;
    struct job_end end;
    struct death_tally tally;
    struct run_watch watch;
    struct worker_profiles profiles;
    uint64_t records; /* of this generation's lead that are in the logs */
    bool log_failed;  /* a record's line is missing: no later one may follow */
    int signal_fd;
    struct monotime wake_due; /* the latest time at which the last wait should have ended */
};

/* What an event sets off. `message`: NULL where the event is no message. */
typedef void supervise_reaction(struct supervisor *s, struct child *child,
                                const struct control_message *message);

/* ---- supervise.c ---- */

/* Starts the next generation if it is due. Returns when to look again. */
struct monotime supervise_advance_generation(struct supervisor *s, struct monotime now);

/* ---- supervise_table.c ---- */

/* Reacts to an event of a worker. `event`: enum control_kind or enum supervise_event. */
void supervise_react(struct supervisor *s, struct child *child, unsigned event,
                     const struct control_message *message);

/* Kills a worker that sent a message which its state does not permit. */
void supervise_expel(struct supervisor *s, struct child *child, uint32_t message_kind);

/* How long this worker may be silent. */
uint64_t supervise_silence_us_max(const struct supervisor *s, const struct child *child);

/* Tells the lead how many of its records are in the logs, and the place behind them. */
void supervise_tell_place(struct supervisor *s);

/* Asks the lead for a checkpoint, if a rotation has renamed a log: its new file begins behind that. */
void supervise_order_save(struct supervisor *s);

/* ---- supervise_deaths.c ---- */

/* A worker died unasked, or must die: it is killed if it lives. Decides what follows: a successor, the next
 * generation, or the job's end with `status`. The format makes a sentence that names the worker. */
void supervise_lose(struct supervisor *s, struct child *child, enum status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The reactions to EVENT_EXITED: of a worker that was neither killed by the supervisor nor told to leave;
 * that was told to leave; that was killed. */
supervise_reaction exit_unasked, exit_asked, exit_killed;

/* The reaction to EVENT_DUE: starts the successor, or plans the next generation. */
supervise_reaction restart_due;

/* An episode or update ends the rows of deaths of the workers that made it. One that is new, and not computed
 * again after a death, also ends the row of generations that brought nothing. */
void supervise_note_progress(struct supervisor *s, const struct control_message *record);

#endif
