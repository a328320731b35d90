/* What the files of a model-parallel trainer share; private to them, but for parallel_trainer_class.
 *
 *     parallel_trainer.c        the role: the loop, and its end
 *     parallel_trainer_open.c   the data, the parts, the optimizer, and how trainers find each other
 *     parallel_trainer_step.c   one iteration; a forward alone
 *     parallel_trainer_epoch.c  the end of an epoch; records
 *     parallel_checkpoint.c     when a checkpoint is taken, and the values for it
 *     parallel_resume.c         going on from a checkpoint; first values from a file
 *     parallel_trainer_peers.c   what trainers ask of each other
 *
 * One thread, beside the math library's, and in the lead one more while a checkpoint is written.
 *
 * ---- The lead and the others ----
 * The first trainer leads. Each of the others gives it a reference to an object that stands for it, through
 * which the lead asks for its hidden state, tells it the next epoch's learning rate, and bids it leave. The
 * lead gives every other trainer references to the parts and to the optimizer. With the round `all` trainers
 * go in step: a step of the optimizer ends for all at once. With `async` each goes on by itself until the
 * lead has ended; what the logs tell is the lead's then.
 *
 * An update in the logs is an iteration of the lead, its loss the lead's own: the others' losses do not
 * travel.
 *
 * ---- Hidden state ----
 * Stays with the trainer. It goes into the LSTM's call as plain values, and what comes out is copied: the
 * next iteration's graph ends there. */
#ifndef WORKER_PARALLEL_PARALLEL_TRAINER_H
#define WORKER_PARALLEL_PARALLEL_TRAINER_H

#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/parallel/held_out.h"
#include "worker/parallel/layer.h"
#include "worker/parallel/parallel.h"
#include "worker/parallel/plateau.h"
#include "worker/parallel/whole_model.h"

/* The buffers that checkpoints are written from and read into. The lead has all of them; of the other
 * trainers one that resumes has the states and the text. The saver's thread reads them while it writes. */
struct parallel_values {
    struct whole whole;
    struct backend *backend; /* of `hidden` */
    struct params *hidden;   /* every trainer's h and c */
    char *vocabulary;        /* NULL: synthetic data */
    size_t vocabulary_bytes;
    struct checkpoint_text text;
    struct checkpoint_extra extra; /* of the checkpoint that is being taken: names the above */
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
    struct rref *locals[DIST_PARAMETERS_MAX]; /* others: of the optimizer, until it is joined */
    uint32_t local_count;

    /* ---- progress ---- */
    uint64_t iteration; /* done */
    bool last;          /* no more iterations after the one that is done */
    bool epoch_open;    /* an epoch has ended and is not dealt with yet */
    bool in_iteration;  /* a step may be on its way to the optimizer */
    bool is_paused;     /* no iteration begins until the lead has read the values of a checkpoint */
    bool over;          /* everything is given back; waits for the order to leave */
    struct plateau plateau;
    double epoch_loss, line_loss; /* sums over the iterations of the running epoch, and since the last line */
    float *h, *c;                 /* the state before the next iteration */
    float *h_next, *c_next;       /* the one behind it, while it runs */
    int32_t *tokens, *targets;

    /* ---- for the records: the lead's ---- */
    uint64_t begun;                          /* the iteration with which this process began */
    uint64_t lines[2];                       /* the last line that was reported, and the one before */
    struct monotime line_begin, epoch_begin; /* what lies between two epochs is part of neither */
    struct parallel_values values;
    struct checkpoint_saver saver; /* the lead's */

    /* ---- parallel_trainer_peers.c ---- */
    struct rref *peers[JOB_TRAINERS_MAX]; /* the lead's references to trainer i */
    uint32_t peer_count;
    uint64_t told_epoch;    /* others: up to which epoch the lead has told the rate */
    uint64_t flushed_epoch; /* others: at whose end nothing of theirs is on its way any more */
    struct rpc_request *asked_state, *asked_holdings, *asked_leave;
    uint64_t asked_iteration, asked_epoch;
};

static inline bool parallel_trainer_leads(const struct parallel_trainer *t)
{
    return t->number == 0;
}

/* No more work is wanted: the job is ending in a hurry. */
static inline bool parallel_trainer_ending(const struct parallel_trainer *t)
{
    return t->base.worker->leave || t->base.worker->hurry;
}

/* ---- parallel_trainer_open.c ---- */

/* All that needs no other trainer; then CONTROL_READY may be said. */
enum status parallel_trainer_open(struct parallel_trainer *t, struct worker *worker, struct error *error);

/* The parts and the optimizer: made by the lead, with their values, or taken from it. */
enum status parallel_trainer_meet(struct parallel_trainer *t, struct error *error);

/* Gives every reference back; an error of a call on the way does not matter any more. */
void parallel_trainer_release(struct parallel_trainer *t);
void parallel_trainer_close(struct parallel_trainer *t, const char *why);

/* ---- parallel_trainer_step.c ---- */

/* One iteration: context, calls, loss, backward, step. */
enum status parallel_trainer_step(struct parallel_trainer *t, struct error *error);

/* A forward alone; `context`: the trainer. */
held_out_forward parallel_trainer_forward;

/* ---- parallel_trainer_epoch.c ---- */

/* After an iteration: the line that is due. */
enum status parallel_trainer_line(struct parallel_trainer *t, struct error *error);

/* The end of an epoch: the lead evaluates, settles the rate and reports; the others wait for the rate,
 * if they are in step. */
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
 */
enum status parallel_checkpoint_begin(struct parallel_trainer *t, struct error *error);

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

/* "trainer": the lead's handle on another trainer. */
extern const struct rref_class parallel_trainer_class;

/* The lead waits until all others are there; the others make themselves known to it. */
enum status parallel_peer_meet(struct parallel_trainer *t, struct error *error);

/* The lead's. The state of trainer `number` after `iteration` iterations ((layers, batch, hidden) each), and
 * how many they were. With `all` they are as many as the lead's. With `async` the trainer answers between two
 * iterations, and pauses there until parallel_peer_resume: once every trainer has answered, no step is on its
 * way to any owner, and the parameters, the momentum and the states do not change. */
enum status parallel_peer_state(struct parallel_trainer *t, uint32_t number, float *h, float *c,
                                uint64_t *iteration, struct error *error);

/* The lead's. All others begin their next iterations. */
enum status parallel_peer_resume(struct parallel_trainer *t, struct error *error);

/* Has everybody, the lead included, tell the supervisor what is held at the end of epoch `epoch`; with
 * `async` at this moment. */
enum status parallel_peer_holdings(struct parallel_trainer *t, uint64_t epoch, struct error *error);

/* Tells all others that epoch `epoch` is over, and the rate. */
enum status parallel_peer_rate(struct parallel_trainer *t, uint64_t epoch, struct error *error);

/* Bids all others end, and waits until they have given everything back. */
enum status parallel_peer_dismiss(struct parallel_trainer *t, struct error *error);

/* The others', in step, at the end of epoch `epoch`: tells what is held when the lead asks, and waits for the
 * rate. */
enum status parallel_peer_follow(struct parallel_trainer *t, uint64_t epoch, struct error *error);

/* For struct parallel. */
void parallel_peer_asked_holdings(struct parallel *parallel, uint64_t epoch, struct rpc_request *request);

/* The others': answers what was asked and can be answered now. */
void parallel_peer_answer(struct parallel_trainer *t);

#endif
