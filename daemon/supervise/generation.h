/* The workers of a job: starts them, connects them, plans their next generation, and
 * has them leave at the end.
 *
 * All workers of a generation began together, from one checkpoint. A replaceable worker may have had
 * predecessors in it (incarnations). The number of workers is fixed within a generation. When hosts join a
 * running job or leave it, the number changes: the lead drains, and all workers start again under the next
 * generation. So no episode or update is lost or computed again, and no worker has to know how another one
 * grows. The clients of a host that is lost run elsewhere until the round is over.
 *
 * A job ends in these steps:
 *
 *     failed    a worker's death, or an error of the supervisor, ends the job; the job hurries and closes
 *     hurried   the workers give up their calls; those that live 2 s later are killed
 *     closing   each worker is told to leave when its turn has come, and none starts any more
 *
 * A worker leaves before the workers that it connects to, so that they receive its BYE: first the workers
 * that do not listen, then the listeners from the highest number down.
 *
 * Supervisor process; its only thread; no lock. Calls block on files alone. supervise.c decides who starts
 * and who is killed. It may read all members, and sets only those of a child and of the end. */
#ifndef DAEMON_SUPERVISE_GENERATION_H
#define DAEMON_SUPERVISE_GENERATION_H

#include "daemon/hosts/hosts.h"
#include "daemon/log/runlog.h"
#include "daemon/process/python_program.h"
#include "daemon/run/resume.h"
#include "daemon/run/rundir.h"
#include "daemon/supervise/placement.h"

struct job_end {
    unsigned stops; /* SIGINT and SIGTERM so far */
    bool hurried, closing;
    bool finished; /* FINISHED has come: the logs and checkpoints are complete */
    struct control_finished result;
    struct monotime kill_at; /* workers that still live at this time are killed */
    struct error outcome;    /* the job's failure; STATUS_OK: none so far */
    bool is_follow_on;       /* the outcome's worker failed because a peer did, which may not be reaped yet */
};

static inline bool job_end_has_begun(const struct job_end *end)
{
    return end->finished || end->closing || end->stops > 0;
}

static inline bool job_end_has_failed(const struct job_end *end)
{
    return end->outcome.status != STATUS_OK;
}

struct generation {
    struct job *job; /* generation_open's; `added` follows the hosts */
    const struct rundir *dir;
    struct runlog *log;
    struct hosts *hosts;
    uint32_t number; /* from 1 */
    struct roster roster;
    unsigned count;                  /* workers */
    struct child *children;          /* (count) by worker number: the servers, then their clients */
    struct control_status *holdings; /* (count) the newest CONTROL_STATUS of each worker */
    struct resume_point resume;      /* where this generation began */
    uint64_t furthest;               /* the highest episode or update that any generation has recorded */
    bool was_ready;                  /* all workers were, in this generation or an earlier one */
    bool drains;                     /* the lead finishes its round, because the number of clients changes */
    struct {
        bool is_planned; /* all workers are killed; the next generation starts when they are reaped */
        bool is_resize;  /* no death is the cause, but a new number of clients */
        struct monotime due;
        uint16_t worker; /* whose death is the cause */
        char reason[ERROR_TEXT_BYTES];
    } next;
    struct job_end end;
    struct spawn_segments segments;
    struct python_worker python_worker;
    char *job_text; /* the resolved job, for START */
    size_t job_bytes;
};

/* Makes the first generation of the job; no worker starts yet. STATUS_NO_MEMORY; errors of
 * python_worker_find. generation_close follows in every case. */
enum status generation_open(struct generation *g, struct job *job, const struct rundir *dir,
                            struct runlog *log, struct hosts *hosts, struct error *error);
void generation_close(struct generation *g);

static inline struct placement generation_placement(const struct generation *g)
{
    return (struct placement){.job = g->job,
                              .hosts = g->hosts,
                              .roster = &g->roster,
                              .children = g->children,
                              .count = g->count,
                              .generation = g->number};
}

static inline struct child *generation_lead(const struct generation *g)
{
    return &g->children[g->roster.lead];
}

static inline bool generation_is_lead(const struct generation *g, const struct child *child)
{
    return child == generation_lead(g);
}

/* Whether a successor can take the worker's place while the others go on. */
static inline bool generation_can_replace(const struct generation *g, const struct child *child)
{
    return child->start.worker >= g->roster.replaceable;
}

/* Follow-on failure: the worker exited because a peer died, and the peer's own exit may not be reaped yet. */
static inline bool child_is_follow_on(const struct child *child)
{
    return child->last_words.status == STATUS_PEER_DIED || child->last_words.status == STATUS_SHUTDOWN;
}

/* Whether a worker lives or waits for its start, or a next generation is planned. */
bool generation_goes_on(const struct generation *g);

/* Goes back to the checkpoint or beginning from which the workers go on. Errors of resume_go_back. */
enum status generation_go_back(struct generation *g, const struct line_restart *cause, struct error *error);

/* Called when a worker is ready. True: now all workers are, for the first time in the run. */
bool generation_note_ready(struct generation *g);

/* Notes that an episode or update is recorded. True: no generation has come as far before. */
bool generation_note_record(struct generation *g, uint64_t number);

/* ---- starts ---- */

/* Starts all workers. The first generation has what the hosts bring. An error leaves those that have started.
 * Errors of generation_start. */
enum status generation_start_all(struct generation *g, struct error *error);

/* Starts a worker, on the host that placement_choose_host names. Errors of child_spawn and child_spawn_far.
 */
enum status generation_start(struct generation *g, struct child *child, const struct control_start *start,
                             struct error *error);

/* Orders workers to connect: those whose listeners have all bound their sockets. */
void generation_connect(struct generation *g);

/* Tells the workers that a dead worker had connected to: a bound ZeroMQ socket does not report that a peer is
 * gone. */
void generation_tell_death(struct generation *g, const struct child *child);

/* ---- the next generation ---- */

/* Kills all workers, and plans the next generation for the time `due`. `cause`: the worker whose death is the
 * reason; NULL: the number of clients changes. */
void generation_plan_next(struct generation *g, const struct child *cause, struct monotime due,
                          const char *why);

/* When the planned generation can start: never before all workers are reaped. */
struct monotime generation_next_due(const struct generation *g);

/* Makes this the planned generation, of the size that the hosts bring. Clears what killed workers have left:
 * their sockets are still there, and their segments may hold half a write. */
void generation_begin_next(struct generation *g);

/* ---- hosts ---- */

/* Checks that the job can have `count` more clients of the role `role` (enum wire_role). STATUS_INVALID, with
 * a sentence that begins with the job: another kind of job, or more than it may have. */
enum status generation_check_growth(const struct generation *g, uint32_t role, uint32_t count,
                                    struct error *error);

/* A host has come or gone: has the lead drain if the number of clients changes with it. `why` is a sentence
 * that names the host. The caller makes sure that the job is not ending. */
void generation_resize(struct generation *g, const char *why);

/* The clients that the host has brought leave with it. `end` says how the host ends: "is lost". */
void generation_shrink(struct generation *g, uint16_t host, const char *end);

/* "observers" or "trainers"; with a count of 1 "observer" or "trainer". */
const char *generation_unit(const struct generation *g, uint32_t count);

/* ---- the end ---- */

/* Fails the job with a sentence, and hurries and closes it. `cause`: the worker whose death is the reason, or
 * NULL. The first failure is the outcome, but a cause takes the place of a follow-on failure. Other failures
 * are only logged. */
void generation_fail(struct generation *g, const struct child *cause, enum status status, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));

void generation_hurry(struct generation *g);

/* Closes the job. */
void generation_leave(struct generation *g);

/* Tells the workers to leave whose turn has come. Called after each exit; does nothing unless closing. */
void generation_leave_next(struct generation *g);

#endif
