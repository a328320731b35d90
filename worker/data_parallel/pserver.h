/* The parameter-server job kind, and in this header its role pserver. This room includes kernels/, the frame,
 * worker/job, net, model, data and checkpoint; daemon/ includes its schedule and its evaluation.
 *
 *     pserver.c             the role: the loop, and how a round goes on
 *     pserver_open.c        the start: memory, model, sockets; the end
 *     pserver_calls.c       the trainers' calls, and their answers
 *     pserver_update.c      a full round becomes the next version: the optimizer is applied
 *     pserver_finite.c      a contribution with a NaN or an infinity
 *     pserver_statistics.c  the running means and variances of batch norms, in that version
 *     pserver_epoch.c       the end of an epoch, with its evaluation by the trainers
 *     pserver_checkpoint.c  when a checkpoint is taken; the other servers' shards of it
 *     bfloat16.[ch]         gradients of half the bytes
 *     round.[ch]            which contributions make a round, and which slot is free
 *     schedule.[ch]         when epochs, evaluations and the job end; the learning rate
 *     shards.[ch]           the calls, the image in memory, and which server owns what
 *     trainer.c             the role trainer; evaluation.[ch]: its shares of an evaluation
 *
 * One thread owns the sockets and all of this; while a checkpoint is written a second one reads the version
 * that is saved (worker/checkpoint/checkpoint_saver.h).
 *
 * A round: contributions arrive until they make a round; one pass over them and the server's own range writes
 * the next version into a free slot; the update is reported to the supervisor; a checkpoint that is due is
 * written; an evaluation that is due is asked for; last, all members of the round are answered. No member can
 * send more before its answer, so server 0, which alone decides all this, holds the other servers at its
 * version by not answering. No update is made while an evaluation is running. */
#ifndef WORKER_DATA_PARALLEL_PSERVER_H
#define WORKER_DATA_PARALLEL_PSERVER_H

#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/data_parallel/round.h"
#include "worker/data_parallel/schedule.h"
#include "worker/data_parallel/shards.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/worker.h"

/* The contribution of a trainer that sends chunks, as they arrive. */
struct pserver_inbox {
    float *image;  /* in `inboxes`; only the server's range gets pages */
    uint64_t step; /* the step of the chunks in `image`; UINT64_MAX: none */
    uint8_t *come; /* in `marks`: 1 for each PIECE elements of the image that have come */
    size_t pieces; /* marks that are 1 */
};

/* The server's record of one trainer. */
struct pserver_seat {
    uint16_t worker; /* its number */
    bool joined;     /* it has a session */
    bool travels;    /* elements travel between it and this server (image_travels); known while joined */
    struct rpc_request *push; /* its PUSH_PULL, until it is answered */
    double loss;              /* of that contribution */
    struct monotime arrived;  /* when it arrived */
    const float *image;       /* its contribution, in `outbox` or `inbox`; NULL: not mapped yet */
    struct segment outbox;
    struct pserver_inbox inbox;
};

/* The running epoch; `open`: it has ended and is not reported yet. */
struct pserver_epoch {
    bool open;
    bool evaluates;        /* its end is evaluated */
    struct monotime begin; /* of the epoch that runs */
    struct monotime asked; /* when the evaluation began */
    double loss_sum;       /* of the running epoch's updates */
    struct {
        uint64_t version; /* the one with which the epoch before ended */
        double loss_sum;
        struct checkpoint_score score; /* with /checkpoint/best; unmeasured: it was not evaluated */
    } ended;
    struct pserver_share {
        struct future *call; /* METHOD_EVALUATE under way; NULL: not asked yet, or answered */
        bool answered;
        struct evaluation sums;
    } shares[JOB_TRAINERS_MAX]; /* (trainers of the job file) of the held-out data */
};

struct pserver {
    struct worker *worker;
    const struct job *job;
    struct rpc *rpc;
    uint32_t number, servers, trainers; /* this server's number; the job's servers and trainers */
    bool draining;                      /* the order to stop has lowered last_version */
    bool done;                          /* no update or checkpoint follows, and no contribution is needed */
    bool over;                          /* server 0: FINISHED is reported */
    enum control_end end;

    /* ---- the model ---- */
    struct backend *backend;
    struct params *params;      /* names, layouts, counters; placed on a version to begin, load or save it */
    struct gradients *momentum; /* likewise; NULL: the optimizer has none */
    struct shard shard;
    struct params_range ranges[JOB_SERVERS_MAX]; /* (servers) their shards, for checkpoints */
    size_t parameters, elements;                 /* P, P + B */
    size_t image_bytes;
    uint64_t fingerprint;
    struct segment segment;  /* the slots; transport "inline": mapped for this process alone */
    struct segment velocity; /* (2, P) of even and of odd versions; the server's range gets memory */
    struct segment inboxes;  /* (trainers) images; mapped when the first chunk comes */
    struct segment marks;    /* (trainers, elements / PIECE) bytes; likewise */
    uint32_t threads;        /* for an update */

    /* ---- the round ---- */
    struct round round;
    struct schedule schedule;
    uint64_t last_version; /* the job's last; lowered by an order to stop */
    struct pserver_seat seats[JOB_TRAINERS_MAX];
    uint32_t members[JOB_TRAINERS_MAX]; /* of the newest round, until they are answered */
    uint32_t member_count;
    const void *gradients[JOB_TRAINERS_MAX]; /* of the members of one update */

    struct pserver_epoch epoch;
    uint64_t evaluation_samples; /* of the held-out data */

    /* ---- checkpoints ---- */
    struct checkpoint_saver saver;
    struct future *shard_calls[JOB_SERVERS_MAX]; /* server 0: SAVE_SHARD to each of the others */
    struct rpc_request *shard_request;           /* above server 0: SAVE_SHARD, until it is answered */

    /* ---- for the records ---- */
    uint64_t begin_version; /* at the start of this process */
    uint64_t late_before;   /* of the run before a resume */
    uint64_t late_reported; /* round_late, at the last record */
    uint64_t models_given;  /* since the last record */
    struct monotime last_update;
};

/* The image in `slot`. */
static inline float *pserver_image(const struct pserver *p, uint32_t slot)
{
    return (float *)(void *)(p->segment.data + slot * p->image_bytes);
}

/* The momentum that belongs to `version`, (P). */
static inline float *pserver_velocity(const struct pserver *p, uint64_t version)
{
    return (float *)(void *)p->velocity.data + version % 2 * p->parameters;
}

/* ---- pserver_open.c ---- */

/* Opens the model at its first version, the sockets, and the sessions with the other servers. Waits for
 * CONTROL_CONNECT above server 0. After a failure too, pserver_close gives everything back. `why` is the
 * reason in the BYE to the peers. */
enum status pserver_open(struct pserver *p, struct worker *worker, struct error *error);
void pserver_close(struct pserver *p, const char *why);

/* ---- pserver_calls.c ---- */

rpc_handler pserver_get_model, pserver_push_chunk, pserver_push_pull;

/* For rpc_config.left: a worker's session has ended; drops its contribution and its hold. */
void pserver_left(void *context, uint16_t worker, enum status why, const char *text);

/* Answers a trainer's PUSH_PULL with the newest model; the trainer holds that version from then on. */
void pserver_answer(struct pserver *p, uint32_t trainer, uint64_t flags);

/* Answers every trainer whose contribution is late. */
void pserver_answer_late(struct pserver *p);

/* Ends every PUSH_PULL with STATUS_SHUTDOWN. */
void pserver_dismiss(struct pserver *p);

/* ---- pserver_finite.c ---- */

/* The index of the first NaN or infinity, or SIZE_MAX. */
size_t pserver_first_not_finite(const float *values, size_t count);

/* The name of the entry in which `element` of the slab of this kind lies. */
const char *pserver_entry_at(const struct pserver *p, enum parameter_kind kind, size_t element);

/* Looks for a NaN or an infinity in elements [first, first + count) of the trainer's contribution, whose
 * entries are of this kind. Where there is one, the contribution leaves the round, its sender loses its
 * session, and the answer is true. */
bool pserver_expel_not_finite(struct pserver *p, uint32_t trainer, enum parameter_kind kind, size_t first,
                              size_t count);

/* ---- pserver_update.c ---- */

/* Makes the next version from the members' contributions, into `slot`, and reports it. STATUS_AGAIN: a
 * contribution was not finite; its sender's session has ended, and nothing else has changed. */
enum status pserver_update(struct pserver *p, uint32_t slot, struct error *error);

/* ---- pserver_statistics.c ---- */

/* running' = 0.9 running + 0.1 (s_0 + s_1 + …) / n for each element, in double, over the members in the order
 * of their numbers. False: a member's statistics are not finite, and the member was expelled. */
bool pserver_statistics_move(struct pserver *p, float *next, const float *now);

/* num_batches_tracked: the batches of a round count as one. */
void pserver_statistics_count(struct pserver *p);

/* ---- pserver_epoch.c ---- */

/* The newest version ends an epoch; its evaluation, if due, begins with pserver_epoch_advance. */
void pserver_epoch_end(struct pserver *p);

/* Asks this trainer for its share of a running evaluation, unless it was asked already. Messages sent
 * afterwards reach it after the question. */
enum status pserver_epoch_ask(struct pserver *p, uint32_t trainer, struct error *error);

/* Continues an epoch's end: asks trainers that have joined since, takes answers, reports the epoch.
 * STATUS_AGAIN while answers are missing. An evaluation that failed at a trainer ends the job. */
enum status pserver_epoch_advance(struct pserver *p, struct error *error);
void pserver_epoch_release(struct pserver *p);

/* ---- pserver_checkpoint.c ---- */

rpc_handler pserver_save_shard;

/* Places the params and the momentum on a version that still lies in a slot. */
void pserver_place(struct pserver *p, uint64_t version);

/* This server's values, as they are placed now. */
struct checkpoint_values pserver_checkpoint_values(const struct pserver *p);

/* Server 0: whether the newest version is to be saved now; begins to save it. Without /checkpoint/best, a
 * version is saved before its members are answered. With it, a version that is evaluated is saved after its
 * evaluation, and one that the clock makes due may be saved after its members were answered. */
bool pserver_checkpoint_due(const struct pserver *p);
void pserver_checkpoint_begin(struct pserver *p);

/* Goes on with the checkpoint. STATUS_AGAIN: server 0 is still saving a version. A server above 0 reports a
 * failure to server 0 alone. */
enum status pserver_checkpoint_advance(struct pserver *p, struct error *error);

/* Whether a version is being written, so that no update may be made. */
bool pserver_checkpoint_holds(const struct pserver *p);

enum status pserver_checkpoint_open(struct pserver *p, struct error *error);
void pserver_checkpoint_close(struct pserver *p);

#endif
