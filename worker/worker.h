/* The frame of every role: a worker process from START to its exit. The main header of the room worker/.
 *
 *   role      what a worker is in its job: agent, observer, pserver, trainer
 *   roster    the workers of a job, their roles and numbers (roster.h)
 *   lead      the worker that reports the job's records and its end
 *   control   the line between a worker and the supervisor: orders come, beats and reports go (control.h)
 *   record    an episode, update or epoch for the logs
 *   place     a position in the run's logs, which a checkpoint names (run_place.h)
 *   link      the process that carries messages between the supervisors of several hosts (link.h)
 *   stranger  a connection to a worker's or a link's socket that has not shown the job's pass or key
 *
 * The room includes kernels/base, kernels, worker/job and worker/net. The job kinds' rooms and daemon/
 * include it.
 *
 * A worker is the same binary, executed anew with a role. worker_main reads START from the control line,
 * runs the role's loop, reports a failure as its last words, and returns the exit code. A worker ignores
 * SIGINT and SIGTERM (daemon/hosts/child.c): it obeys the control line alone, and ends when that line
 * does. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "kernels/base/file.h"
#include "kernels/base/monotime.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"
#include "worker/net/endpoint.h"
#include "worker/roster.h"

#include <stdbool.h>

struct rpc;
struct rpc_config;

struct worker {
    struct control_start self;
    const char *job_text; /* the resolved job's JSON, zero-terminated */
    size_t job_bytes;
    struct job job;
    struct rpc *rpc;  /* set by the role; worker_read_orders passes deaths and hurry to it */
    uint64_t beat_us; /* between two beats of an idle worker */
    struct monotime beat_due;
    struct strangers strangers; /* at this worker's socket */
    struct {
        uint64_t reported, logged; /* by this process; of these, in the logs */
        struct run_place place;    /* behind the newest that is in the logs */
        bool has_place;
        uint64_t kept; /* worker_keep_place: the newest record of that time */
        struct run_place kept_place;
        bool has_kept;
    } records;                         /* the lead's */
    uint64_t work;                     /* struct control_beat's; the role counts */
    uint32_t queue;                    /* likewise */
    struct control_share evaluation;   /* likewise */
    bool connect, drain, hurry, leave; /* orders that have come, never unset */
    bool save;                         /* a checkpoint is wanted; the role unsets this when one begins */
    int16_t
        host_of_worker[ROSTER_WORKERS_MAX]; /* of workers on other hosts that dial this one; -1: not known */
    struct control_far
        far[ROSTER_LISTENERS_MAX]; /* workers to dial on other hosts, by number; "": on this one */
};

/* The reason sent in BYE on an orderly exit. */
#define WORKER_FINISHED "finished"

/* One role's loop: runs until it is told to leave (STATUS_OK) or cannot go on. */
typedef enum status role_run(struct worker *worker, struct error *error);
role_run agent_run;
role_run observer_run;
role_run pserver_run;
role_run trainer_run;
role_run parallel_server_run;
role_run parallel_trainer_run;

struct role {
    const char *name;                      /* "agent" */
    uint8_t wire;                          /* enum wire_role */
    role_run *run[JOB_MODEL_PARALLEL + 1]; /* by enum job_kind; NULL: such jobs have no such role */
};

/* The role by its wire number or by its name; NULL when there is none. */
const struct role *role_by_wire(uint8_t wire);
const struct role *role_by_name(const char *name);

/* Runs the worker whose control line is at CONTROL_FD; `role` comes from its command line. */
int worker_main(const struct role *role);

/* The run's directory, which the supervisor has opened. */
struct path worker_run_dir(const struct worker *worker);

/* Whether the run goes on from a checkpoint; that checkpoint's folder, if it does. */
bool worker_resumes(const struct worker *worker);
struct path worker_resume_path(const struct worker *worker);

/* Whether the run was broken off before, by a death or by a command. */
bool worker_goes_on(const struct worker *worker);

/* ---- sessions ----
 * A role opens its rpc, finishes its long preparations, and then connects: from then on it turns, so that it
 * answers the workers that dial it. */

/* Opens the role's rpc: binds this worker's address where the roster has others dial it. `config`: the
 * methods, limits and callbacks of the role; the rest (identity, roster, the job to welcome others with) is
 * filled in here. Errors as rpc_open. */
enum status worker_open_rpc(const struct worker *worker, const struct rpc_config *config, struct rpc **out,
                            struct error *error);

/* Reports BOUND where others dial this worker, waits for CONNECT, and dials every worker that the roster
 * says. Blocks for at most /supervise/hang_s after CONNECT. STATUS_OK with worker->leave set: the order to
 * leave came first, and nothing was dialed. Errors as rpc_dial. */
enum status worker_connect(struct worker *worker, struct rpc *rpc, struct error *error);

/* Takes the job from WELCOME, which overrides the one of START on every host. STATUS_INVALID: WELCOME holds
 * no valid job. */
enum status worker_read_welcome(struct worker *worker, const struct rpc *rpc, struct error *error);

/* Reads every order that has come and acts on it: sets the flag above, and passes deaths and hurry to the
 * rpc. When the supervisor is gone the process ends at once. Never blocks. */
void worker_read_orders(struct worker *worker);

/* Waits for the next order before there is an rpc; beats meanwhile. */
void worker_wait_order(struct worker *worker);

/* Tells the supervisor that this worker turns, at most 10 times a second; returns when to call again. */
struct monotime worker_beat(struct worker *worker);

/* worker_beat for tapes and readers, between two operations. */
void worker_progress(void *worker);

/* Makes every turn of `rpc` read orders and beat. STATUS_BUSY: the rpc can watch no further descriptor. */
enum status worker_attach(struct worker *worker, struct rpc *rpc);

/* Reports to the supervisor. Blocks while the line is full; when the supervisor is gone, ends the process. */
void worker_report(enum control_kind kind, const void *body, size_t body_bytes);

/* ---- records, of the lead alone ---- */

/* Reports an episode, update or epoch for the logs. */
void worker_record(struct worker *worker, enum control_kind kind, const void *body, size_t body_bytes);

/* Whether more than `most` records are not in the logs yet. With at most one, a slow supervisor slows the job
 * down, and the control line to it never fills up. */
bool worker_logs_lag(const struct worker *worker, uint64_t most);

/* Keeps the place behind the newest record for worker_kept_place: a checkpoint of now names that place. It
 * holds until the next call. */
void worker_keep_place(struct worker *worker);

/* The kept place. NULL: the supervisor has not told it yet. */
const struct run_place *worker_kept_place(const struct worker *worker);

/* Tells the supervisor that a checkpoint of that place is visible. The saver's callback. */
void worker_report_saved(const struct run_place *place);

#endif
