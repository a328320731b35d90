/* The model-parallel job kind: a language model whose layers live on several workers.
 *
 *     layer        one of embedding, lstm and decoder: an object that some worker owns (worker/reference)
 *     server       a worker that owns layers and computes nothing else
 *     trainer      a worker with batches: it calls the layers, walks back, and asks for a step
 *     lead         the first trainer, which makes the layers, the optimizer, the log and the checkpoints
 *     iteration    one batch of one trainer: forward, backward, step. The lead's are the log's updates.
 *     hidden state what an LSTM carries from one iteration to the next
 *     values       what a checkpoint is written from: all parameters and their momentum, in the lead
 *     holdings     how many objects, references and contexts a worker has
 *
 * This room includes kernels/, the frame, worker/job, net, reference, autograd, model, data and checkpoint.
 * daemon/ includes its data check and its commands (parallel_data.h, language.h).
 *
 *     parallel.[ch]          what every worker has: socket, segment, references, contexts; the role pserver
 *     parallel_trainer.c     the role trainer
 *     parallel_values.[ch]   the values, and the saved hidden states
 *     parallel_data.[ch]     the batches, and the held-out loss
 *     layer.[ch]             the layers, as modules and as objects
 *     language.[ch]          the layers in one process, for `coalesced evaluate` and `coalesced generate`
 *
 * The lead makes the layers where the job places them, and one optimizer of all their parameters. It shares
 * both with the other trainers. A worker has one thread. */
#ifndef WORKER_MODEL_PARALLEL_PARALLEL_H
#define WORKER_MODEL_PARALLEL_PARALLEL_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/net/segment.h"
#include "worker/roster.h"
#include "worker/worker.h"

#include <stdbool.h>

struct parallel {
    const struct job *job; /* first: where the layers' constructors find it (layer.h) */
    struct worker *worker;
    struct roster roster;
    struct segment outbox; /* not mapped where tensors travel in messages */
    struct rpc *rpc;
    struct rrefs *rrefs;
    struct dist *dist;
    struct dist_owner *owner;
    bool peer_finished; /* a peer has said BYE with WORKER_FINISHED: the supervisor is ending the job */
    /* A reference has arrived (struct rrefs_config.taken). NULL: it is released. */
    void (*taken)(struct parallel *parallel, uint16_t from, uint64_t tag, struct rref *rref);
    /* The lead asks for this worker's holdings at the end of `epoch` (METHOD_HOLDINGS). The role answers with
     * parallel_answer_holdings, at once or when it has reached that epoch. NULL: answered at once. */
    void (*asked_holdings)(struct parallel *parallel, uint64_t epoch, struct rpc_request *request);
};

/* "trainer": the lead's handle on another trainer (parallel_trainer.c). */
extern const struct rref_class parallel_trainer_class;

/* Opens the outbox, the rpc, the references and the contexts, and returns once there is a session with every
 * other worker of the job. Blocks meanwhile as worker_connect does; requests of others are served. The job is
 * WELCOME's afterwards. After a failure only parallel_close is left; the same where the order to leave has
 * come first (worker->leave). */
enum status parallel_open(struct parallel *parallel, struct worker *worker, struct error *error);

/* Says BYE with `why` and gives everything back. */
void parallel_close(struct parallel *parallel, const char *why);

/* Reads this worker's orders after a peer's end. A peer that finished in order had the supervisor's order to
 * leave. This worker's own order may still be on its way: blocks until it has come, at most
 * /supervise/hang_s. */
void parallel_read_orders_after_end(struct parallel *parallel);

/* One turn at the role's top level. STATUS_PEER_DIED: a worker that this one dialed is gone. */
enum status parallel_turn(struct parallel *parallel, struct monotime until, struct error *error);

/* ---- holdings ----
 * An epoch's line in the log has every worker's holdings at the end of the epoch: its live objects,
 * references and contexts. METHOD_HOLDINGS, from the lead to each other worker, args[HOLDINGS_EPOCH]: answer
 * with them: uint32[HOLDINGS_COUNTS + n], the five counts of struct control_status, then the n workers'
 * users_of. The lead hands all of them to the supervisor, ahead of its epoch. */
enum { HOLDINGS_EPOCH = 0, HOLDINGS_COUNTS = 5 };

/* Reports to the supervisor which objects, references and contexts are alive here; or what the answer of
 * worker `number` says. STATUS_INVALID: the answer is none. */
void parallel_report(const struct parallel *parallel);
enum status parallel_report_of(const struct parallel *parallel, uint16_t number,
                               const struct rpc_message *answer, struct error *error);
void parallel_answer_holdings(const struct parallel *parallel, struct rpc_request *request);

#endif
