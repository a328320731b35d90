/* The role trainer. Its files share this header: trainer.c (opening, steps, evaluations), trainer_model.c
 * (where the model and the gradient lie), trainer_chunks.c (chunks in messages, and turns), trainer_give.c
 * (the gradient to the servers). No other file includes it.
 *
 * One thread, beside the math library's while it computes. All memory of a step is allocated at the start.
 *
 * ---- The memories ----
 *     image    P + B float32: a model or a gradient as it is sent (shards.h)
 *     slot     a place for one image in a server's segment. A trainer reads parameters there.
 *     outbox   the image that the gradient is written to. Servers that share memory read it.
 *     inbox    the image that a version is pulled into, from far servers
 *     far      of a server: elements travel to and from it in messages
 *     net      the network that computes
 *     mirror   a second net that only holds values, in the layouts of the servers' images
 *     placed   the one of the two whose parameters lie on slots and inbox, and whose gradients on the outbox
 *
 * In place: with transport "shared" and a backend that computes in the host's memory, the net is placed, and
 * nothing is copied. Otherwise the net has memory of its own, and the mirror is placed. Values are copied
 * between both. Then the inbox is the outbox: the gradient is written after the version was copied. */
#ifndef WORKER_DATA_PARALLEL_TRAINER_H
#define WORKER_DATA_PARALLEL_TRAINER_H

#include "kernels/tape/tape.h"
#include "worker/data/loader.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/data_parallel/shards.h"
#include "worker/model/classifier.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/worker.h"

enum { TRAINER_IN_FLIGHT = 8 }; /* chunks on their way to or from one server */

/* A version of the model, and where each server's shard of it lies. */
struct trainer_version {
    uint64_t version, step; /* this trainer's next step */
    uint64_t offset[JOB_SERVERS_MAX];
    bool counted[JOB_SERVERS_MAX]; /* this server has made the next version already, with this step in it */
    bool last;                     /* PULL_LAST, of any server */
};

struct trainer_chunk {
    struct future *future; /* NULL: not under way */
    size_t first, count;   /* elements of the image */
};

/* The chunks to or from one server: those under way, and the elements left to send. */
struct trainer_lane {
    size_t first[2], end[2]; /* of the parameters' range, then of the statistics' */
    struct trainer_chunk chunks[TRAINER_IN_FLIGHT];
};

/* The elements that travel: at any time those of one version or of one contribution. */
struct trainer_transfer {
    bool push;
    uint64_t key; /* version that is pulled; step that is pushed */
    size_t ready; /* push: parameters from this element on are final */
    bool whole;   /* push: so is the whole image, with the statistics */
    struct trainer_lane lanes[JOB_SERVERS_MAX];
};

/* Params with the network of the job on them. */
struct trainer_net {
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct classifier *classifier;
    struct tape *tape;
};

struct trainer {
    struct worker *worker;
    const struct job *job; /* WELCOME's */
    struct rpc *rpc;
    uint32_t servers, number;     /* of the job's; which of its trainers this is, from 0 */
    bool over;                    /* no more steps: the job has made its last update, or is ending */
    struct rpc_request *evaluate; /* METHOD_EVALUATE, until it is answered */

    struct trainer_version at; /* the version given last */
    struct evaluator evaluator;
    struct loader *loader;
    const struct batch *batch; /* of at.step; NULL: not there yet */

    /* trainer_model.c */
    struct trainer_net net;     /* computes */
    struct trainer_net mirror;  /* no tape; all NULL in place */
    struct trainer_net *placed; /* the one of the two on slots, inbox and outbox: in place `net` */
    float *scratch;             /* (the largest entry) for copies to and from a mirror with layouts */
    uint64_t fingerprint;
    struct shard shards[JOB_SERVERS_MAX];
    bool travels[JOB_SERVERS_MAX];         /* the server is far (image_travels) */
    uint32_t far;                          /* how many servers are far */
    struct segment slots[JOB_SERVERS_MAX]; /* of the servers that are not far */
    size_t parameters, elements;           /* P, P + B */
    struct segment outbox;                 /* or memory of this process alone */
    float *outbox_image;                   /* (elements) in `outbox` */
    struct segment inbox;
    float *inbox_image; /* (elements) in `inbox`, or outbox_image; only the far servers' ranges are used */
    uint32_t given;     /* entries from this index on have their gradient in the outbox */

    /* trainer_chunks.c */
    struct trainer_transfer transfer;
    struct segment errors; /* of bfloat16_round; not mapped: gradients travel as float32 */
    float *kept;           /* (P) in `errors`; only the far servers' ranges are used */
    uint16_t *rounded;     /* (PARAMETER_SERVER_CHUNK_ELEMENTS_MAX) */
};

/* ---- trainer_model.c ---- */

/* Opens the device and the model, as far as no server is needed. The sessions with the servers are open
 * before. */
enum status trainer_model_open(struct trainer *trainer, struct error *error);
void trainer_model_close(struct trainer *trainer);

/* Computes with this version from now on. */
enum status trainer_model_take(struct trainer *trainer, const struct trainer_version *version,
                               struct error *error);

/* The backward pass of the step begins. Until trainer_model_give, trainer_progress may send the chunks that
 * are complete (trainer_give.c says when). */
void trainer_model_begin_giving(struct trainer *trainer);

/* Gives the step's gradient to the servers. Its statistics lie behind it, at outbox_image + P. Returns when
 * all servers have what travels. */
enum status trainer_model_give(struct trainer *trainer, struct error *error);

/* Between operations on a tape: beats, fails the tape when the job is ending, and sends what is complete of
 * the gradient. `arg`: the trainer. */
void trainer_progress(void *arg);

/* ---- trainer_chunks.c ---- */

/* One turn of the rpc, at the role's top level. STATUS_PEER_DIED: a server is gone. */
enum status trainer_turn(struct trainer *trainer, struct monotime until, struct error *error);

/* Memory for gradients that travel as bfloat16, where any do. */
enum status trainer_open_rounding(struct trainer *trainer, struct error *error);
void trainer_close_rounding(struct trainer *trainer);

/* Pulls a version into the inbox, from all servers at once from which elements travel. Waits. */
enum status trainer_pull(struct trainer *trainer, uint64_t version, struct error *error);

/* Pushes the outbox as the contribution of the present step, to all servers at once to which elements travel.
 * trainer_push_from sends what leaves without waiting of the parameters from element `ready` on, whose values
 * are final; trainer_push_finish waits until the servers have all of the image. */
void trainer_push_begin(struct trainer *trainer);
enum status trainer_push_from(struct trainer *trainer, size_t ready, struct error *error);
enum status trainer_push_finish(struct trainer *trainer, struct error *error);

#endif
