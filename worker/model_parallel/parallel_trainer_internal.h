/* A trainer of a model-parallel job: shared by its files, and private to them.
 *
 *     parallel_trainer.c         the role: the loop, and its end
 *     parallel_trainer_open.c    the start: data, layers, optimizer
 *     parallel_trainer_peers.c   questions between trainers, and waiting
 *     parallel_trainer_step.c    one iteration; a forward alone
 *     parallel_trainer_epoch.c   the log's lines; the end of an epoch
 *     parallel_checkpoint.c      when a checkpoint is taken, and its values
 *     parallel_resume.c          the values that a run begins with
 *
 * One thread, beside the math library's; the lead has one more while it writes a checkpoint.
 *
 * ---- The lead and the others ----
 * The first trainer is the lead: it makes the layers and the optimizer, and gives the other trainers
 * references to them. Each other trainer gives the lead a reference to itself, through which the lead asks
 * for its hidden state, sends the next epoch's learning rate and tells it to leave. With the round `all`
 * trainers go in step: a step of the optimizer ends for all at once. With `async` each trainer goes on by
 * itself until the lead ends.
 *
 * An update in the log is an iteration of the lead; its loss is the lead's own. The others' losses are not
 * sent.
 */
#ifndef WORKER_MODEL_PARALLEL_PARALLEL_TRAINER_INTERNAL_H
#define WORKER_MODEL_PARALLEL_PARALLEL_TRAINER_INTERNAL_H

#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/model_parallel/held_out_loss.h"
#include "worker/model_parallel/layer.h"
#include "worker/model_parallel/parallel.h"
#include "worker/model_parallel/parallel_hidden_state.h"
#include "worker/model_parallel/plateau.h"
#include "worker/model_parallel/whole_model.h"

/* What checkpoints are written from and read into, beside the hidden state. The lead has all; another trainer
 * has the text, and only in a run that resumes. The saver's thread reads them while it writes. */
struct parallel_values {
    struct whole whole;
    char *vocabulary;              /* NULL: synthetic data */
    struct checkpoint_extra extra; /* points at the vocabulary and at the hidden states */
};

/* A question of the lead's that waits for its answer. */
enum parallel_question_kind { PARALLEL_ASKED_STATE, PARALLEL_ASKED_HOLDINGS, PARALLEL_ASKED_TO_LEAVE };
struct parallel_question {
    enum parallel_question_kind kind;
    uint64_t from; /* the iteration (STATE) or the epoch (HOLDINGS) from which on it can be answered */
    struct rpc_request *request; /* NULL: none */
};

struct parallel_trainer {
    struct parallel base;
    const struct job *job;
    uint32_t number, trainers; /* which of the job's trainers this is; 0 leads */
    struct parallel_data data;

    struct backend *backend; /* of the loss */
    struct tape *tape;
    struct rref *layers[JOB_LAYERS];
    struct dist_optimizer *optimizer;
    struct rref *parameters[DIST_PARAMETERS_MAX]; /* the lead's, in the whole model's order */
    uint32_t parameter_count;
    struct rref
        *locals[DIST_PARAMETERS_MAX]; /* not the lead's: local optimizers, until dist_optimizer_join */
    uint32_t local_count;

    /* ---- progress ---- */
    uint64_t iteration; /* iterations done */
    bool last;          /* no iteration follows */
    bool epoch_open;    /* an epoch has ended; its evaluation, line and rate are still to come */
    bool in_iteration;  /* a step may be on its way to the optimizer */
    bool is_paused;     /* no iteration begins until the lead has read the values of a checkpoint */
    bool over;          /* has released everything; waits for the order to leave */
    struct plateau plateau;
    double epoch_loss, line_loss; /* sums over the iterations of the running epoch, and since the last line */
    struct hidden_state hidden;
    int32_t *tokens, *targets;

    /* ---- for the records: the lead's ---- */
    uint64_t begun;                          /* `iteration` at the start of this process */
    struct monotime line_begin, epoch_begin; /* the time between two epochs counts for neither */
    struct parallel_values values;
    struct checkpoint_saver saver; /* the lead's */

    /* ---- parallel_trainer_peers.c ---- */
    struct rref *peers[JOB_TRAINERS_MAX]; /* the lead's references to trainer i */
    uint32_t peer_count;
    uint64_t told_epoch;    /* not the lead's: the newest epoch for which the lead has sent the next rate */
    uint64_t flushed_epoch; /* not the lead's: the newest epoch after which parallel_peer_flush has run */
    struct parallel_question asked; /* not the lead's */
};

static inline bool parallel_trainer_leads(const struct parallel_trainer *t)
{
    return t->number == 0;
}

/* True: the job is ending, and no more work is wanted. */
static inline bool parallel_trainer_ending(const struct parallel_trainer *t)
{
    return t->base.worker->leave || t->base.worker->hurry;
}

/* ---- parallel_trainer_open.c ---- */

/* Opens data, sockets, model and checkpoint: all that needs no other trainer. Then comes CONTROL_READY. */
enum status parallel_trainer_open(struct parallel_trainer *t, struct worker *worker, struct error *error);

/* The lead makes the layers and the optimizer, with their first values; the others wait for references to
 * them. */
enum status parallel_trainer_meet(struct parallel_trainer *t, struct error *error);

/* Releases every reference. Ignores errors of the calls under way. */
void parallel_trainer_release(struct parallel_trainer *t);
void parallel_trainer_close(struct parallel_trainer *t, const char *why);

/* ---- parallel_trainer_step.c ---- */

/* One iteration: context, calls, loss, backward, step. */
enum status parallel_trainer_step(struct parallel_trainer *t, struct error *error);

/* A forward without learning; `context`: the trainer. */
held_out_forward parallel_trainer_forward;

/* ---- parallel_trainer_epoch.c ---- */

/* After an iteration: reports the log's line if one is due. */
enum status parallel_trainer_line(struct parallel_trainer *t, struct error *error);

/* The lead: waits until at most `most` of its records are not in the logs yet. */
enum status parallel_trainer_wait_for_logs(struct parallel_trainer *t, uint64_t most, struct error *error);

/* Whether the epoch that this iteration ends is evaluated. The job's last update is, if the job asks for any
 * evaluation. */
bool parallel_trainer_evaluates(const struct parallel_trainer *t);

/* The end of an epoch. The lead evaluates, sets the next rate, reports and sends the rate; the others, if in
 * step, wait for it. */
enum status parallel_trainer_epoch(struct parallel_trainer *t, struct error *error);

/* ---- parallel_resume.c ---- */

/* The buffers. The lead reads into them the values that the job begins with, if a checkpoint or a file has
 * them. */
enum status parallel_values_open(struct parallel_trainer *t, struct error *error);
void parallel_values_close(struct parallel_trainer *t);

/* In a run that resumes: this trainer's counters and hidden state from the checkpoint. STATUS_INVALID: the
 * checkpoint is of another number of trainers, or of another text. */
enum status parallel_resume(struct parallel_trainer *t, struct error *error);

/* The lead's: sends the values that were read to their owners. Waits. */
enum status parallel_values_send(struct parallel_trainer *t, struct error *error);

/* ---- parallel_checkpoint.c ---- */

/* After parallel_resume; checkpoint_saver_close is the end. */
enum status parallel_checkpoint_open(struct parallel_trainer *t, struct error *error);

/* If a checkpoint is due: gathers all values and begins to write them. Waits, also for the checkpoint before.
 * With /checkpoint/best the second function has this duty where the iteration ends an epoch that is
 * evaluated: there a checkpoint is also due if the loss is the lowest so far. The lead's, before plateau_see.
 */
enum status parallel_checkpoint_begin(struct parallel_trainer *t, struct error *error);
enum status parallel_checkpoint_begin_evaluated(struct parallel_trainer *t, double held_out_loss,
                                                struct error *error);

/* Goes on with the running checkpoint. STATUS_AGAIN while there is one. */
enum status parallel_checkpoint_advance(struct parallel_trainer *t, struct error *error);

/* Turns until no checkpoint is being taken. */
enum status parallel_checkpoint_wait(struct parallel_trainer *t, struct error *error);

/* ---- parallel_trainer_peers.c ---- */

/* One turn of the rpc, and answers to the lead's questions. STATUS_SHUTDOWN: the job is ending. */
enum status parallel_peer_wait(struct parallel_trainer *t, struct error *error);

/* Returns when the messages sent before have reached all workers (from the lead; otherwise all servers and
 * the lead). Repeats that `turns` times. */
enum status parallel_peer_flush(struct parallel_trainer *t, uint32_t turns, struct error *error);

/* The lead waits for a reference from every other trainer; the others send theirs. */
enum status parallel_peer_meet(struct parallel_trainer *t, struct error *error);

/* The lead's. The state of trainer `number` after `iteration` iterations ((layers, batch, hidden) each), and
 * that number of iterations. With `all` it equals the lead's. With `async` the trainer answers between two
 * iterations, and pauses there until parallel_peer_resume: once every trainer has answered, no step is on its
 * way to any owner, and the parameters, the momentum and the states do not change. */
enum status parallel_peer_state(struct parallel_trainer *t, uint32_t number, float *h, float *c,
                                uint64_t *iteration, struct error *error);

/* The lead's. All others begin their next iterations. */
enum status parallel_peer_resume(struct parallel_trainer *t, struct error *error);

/* The lead's: all workers, the lead included, report their holdings at the end of epoch `epoch` to the
 * supervisor (with `async`: now). */
enum status parallel_peer_holdings(struct parallel_trainer *t, uint64_t epoch, struct error *error);

/* The lead's: sends all others the rate that follows epoch `epoch`. */
enum status parallel_peer_rate(struct parallel_trainer *t, uint64_t epoch, struct error *error);

/* The lead's: tells all others to end, and waits until they hold nothing. */
enum status parallel_peer_dismiss(struct parallel_trainer *t, struct error *error);

/* Not the lead's, in step, at the end of epoch `epoch`: reports this trainer's holdings when the lead asks,
 * and waits for the rate. */
enum status parallel_peer_follow(struct parallel_trainer *t, uint64_t epoch, struct error *error);

/* The member asked_holdings of struct parallel. */
void parallel_peer_asked_holdings(struct parallel *parallel, uint64_t epoch, struct rpc_request *request);

/* Not the lead's: answers the lead's questions that can be answered now. */
void parallel_peer_answer(struct parallel_trainer *t);

#endif
