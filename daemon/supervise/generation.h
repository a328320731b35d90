/* The workers of a job: starts them, places them on hosts, connects them, and plans their next generation.
 *
 * All workers of a generation began together, from one checkpoint. A replaceable worker may have had
 * predecessors in it (incarnations). The number of workers is fixed within a generation.
 *
 * Supervisor process; its only thread; no lock. No call blocks but on files. It decides nothing: the files
 * above it (supervise.h) say who starts and who is killed. They read the members, and set only those of a
 * child; functions change the rest. */
#ifndef DAEMON_SUPERVISE_GENERATION_H
#define DAEMON_SUPERVISE_GENERATION_H

#include "daemon/hosts/hosts.h"
#include "daemon/process/python_worker.h"
#include "daemon/supervise/supervise.h"
#include "worker/roster.h"

struct generation {
    const struct supervise_config *config;
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
    struct spawn_segments segments;
    struct python_worker python_worker;
    char *job_text; /* the resolved job, for START */
    size_t job_bytes;
};

/* Makes the first generation of the job; no worker starts yet. STATUS_NO_MEMORY; errors of
 * python_worker_find. generation_close follows in every case. */
enum status generation_open(struct generation *g, const struct supervise_config *config, struct hosts *hosts,
                            struct error *error);
void generation_close(struct generation *g);

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

/* Whether a worker lives, waits for its start, or all do. */
bool generation_goes_on(const struct generation *g);

/* Takes over the checkpoint or beginning from which the workers go on. */
void generation_resume_at(struct generation *g, const struct resume_point *point);

/* Called when a worker is ready. True: now all workers are, for the first time in the run. */
bool generation_note_ready(struct generation *g);

/* Notes that an episode or update is recorded. True: no generation has come as far before. */
bool generation_advance(struct generation *g, uint64_t number);

/* ---- starts ---- */

/* Starts all workers. An error leaves those that have started. Errors of generation_start. */
enum status generation_start_all(struct generation *g, struct error *error);

/* Starts a worker: on the host where it was, if that host is up and the worker has not died there again and
 * again; otherwise where /hosts says. Errors of child_spawn and child_spawn_far. */
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

/* No worker starts any more: neither alone nor with all. */
void generation_forget_starts(struct generation *g);

/* When the planned generation can start: never before all workers are reaped. */
struct monotime generation_next_due(const struct generation *g);

/* Makes this the planned generation, of the size that the hosts bring. Clears what killed workers have left:
 * their sockets are still there, and their segments may hold half a write. */
void generation_begin_next(struct generation *g);

/* Takes over the number of clients that the hosts bring (growth.h). Between two generations. */
void generation_adopt_size(struct generation *g);

/* ---- hosts ---- */

/* How many workers live on a host. */
unsigned generation_load_of(const struct generation *g, uint16_t host);

/* Picks the next client to move to host `to`, from the host that has the most workers. NULL if no client can
 * move. */
struct child *generation_choose_mover(const struct generation *g, uint16_t to);

/* The number of clients for this host if all hosts with which the job began had equally many; 0 for any other
 * host. */
uint32_t generation_fair_share(const struct generation *g, uint16_t host);

/* Clients that no host has brought. They have the lowest numbers; those that hosts bring follow, in order of
 * the hosts. */
uint32_t generation_own_clients(const struct generation *g);

#endif
