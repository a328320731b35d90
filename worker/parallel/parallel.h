/* What every worker of a model-parallel job has, whatever its role: its socket, its segment, its table of
 * classes, references, contexts, and what is told of them. Belongs to the worker's one thread.
 *
 * ---- Who does what ----
 * Servers host objects and do nothing else (parallel_server.c). The first trainer, the lead, makes the
 * model's three parts (layer.h) where the job places them, and one optimizer of all their parameters, and
 * shares both with the other trainers (parallel_trainer.h). */
#ifndef WORKER_PARALLEL_PARALLEL_H
#define WORKER_PARALLEL_PARALLEL_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/net/segment.h"
#include "worker/roster.h"
#include "worker/worker.h"

struct parallel {
    /* Set before parallel_open: the table of classes (parallel_classes.h). */
    const struct rref_class *const *classes;
    size_t class_count;

    struct worker *worker;
    const struct job *job;
    struct roster roster;
    struct segment outbox; /* not mapped: tensors travel in messages */
    struct rpc *rpc;
    struct rrefs *rrefs;
    struct dist *dist;
    struct dist_owner *owner;
    /* A reference has come (struct rrefs_config.taken), for the trainer's role. NULL: it is given back. */
    void (*taken)(struct parallel *parallel, uint16_t from, uint64_t tag, struct rref *rref);
    /* The lead asks what is held at the end of `epoch` (METHOD_HOLDINGS), for a role that may not have come
     * to it: parallel_answer_holdings, now or later. NULL: it is answered at once. */
    void (*asked_holdings)(struct parallel *parallel, uint64_t epoch, struct rpc_request *request);
};

/* Opens the outbox, the rpc and all that stands on it, and returns once there is a session with every other
 * worker of the job. Blocks meanwhile as worker_connect does; requests of others are served. The job is
 * WELCOME's afterwards. After a failure only parallel_close is left; the same where the order to leave has
 * come first (worker->leave). */
enum status parallel_open(struct parallel *parallel, struct worker *worker, struct error *error);

/* Says BYE with `why` and gives everything back. */
void parallel_close(struct parallel *parallel, const char *why);

/* One turn at the role's top level. STATUS_PEER_DIED: a worker that this one dialed is gone. */
enum status parallel_turn(struct parallel *parallel, struct monotime until, struct error *error);

/* Releases a call after its status and its sentence have been taken. */
enum status parallel_finish(struct parallel *parallel, struct future *call, struct error *error);

/* ---- what is held ----
 * An epoch's line tells what every worker held when the epoch ended. METHOD_HOLDINGS, from the lead to each
 * of the others, args[HOLDINGS_EPOCH]: tell the supervisor, then answer nothing. So the supervisor has what
 * they hold before it has the lead's epoch. */
enum { HOLDINGS_EPOCH = 0 };

/* Tells the supervisor what lives here now. */
void parallel_report(const struct parallel *parallel);
void parallel_answer_holdings(const struct parallel *parallel, struct rpc_request *request);

/* The lead's: has `worker` tell what it holds. */
enum status parallel_ask_holdings(const struct parallel *parallel, uint16_t worker, uint64_t epoch,
                                  struct error *error);

/* Between the operations of a tape: beats. `arg`: the struct worker. */
void parallel_progress(void *arg);

/* Bytes of a worker's segment for this job. */
size_t parallel_segment_bytes(const struct job *job);

#endif
