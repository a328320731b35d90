/* The caller's side of a context (dist_caller.c): calls, and the tapes on which they are recorded. */
#ifndef WORKER_AUTOGRAD_DIST_CALLER_H
#define WORKER_AUTOGRAD_DIST_CALLER_H

#include "worker/autograd/dist.h"

/* A call: exists until the tape releases its node and no function of a future refers to it. */
struct dist_call;

/* What a context here has called. The context sets all but `calls`. */
struct dist_caller {
    struct rpc *rpc;
    const struct error *lost; /* while its status is not STATUS_OK, every call fails with it */
    uint64_t context;         /* its id */
    uint64_t calls;           /* ids given out */
    bool *called;             /* (workers) called in the context by this one */
};

/* STATUS_PEER_DIED: a worker of the job is gone, so no context can be right. */
enum status lost_check(const struct error *lost, struct error *error);

/* Sends END_CONTEXT to the workers that were called. */
void caller_send_ends(const struct dist_caller *caller);

/* A tape on which calls are recorded: a context's root has one, and so has each piece. */
struct dist_frame {
    struct dist_caller *caller;
    struct dist_piece *piece; /* NULL: the root's */
    struct tape *tape;
    struct arena *staging;   /* host memory for tensors of messages */
    uint32_t depth;          /* of the calls it makes */
    struct dist_call *calls; /* newest first; those that are not on the tape yet are the newest */
    /* The gradients have come for which the piece's walk has paused. The root waits in dist_backward. */
    void (*resume)(struct dist_piece *piece);
};

/* No answer is waited for any more: each `then` that is to come is called with `status`. Before the tape's
 * end. */
void frame_close(struct dist_frame *frame, enum status status);

/* What dist_call and dist_call_async are given. */
struct dist_asked {
    struct rref *object;
    uint32_t function;
    const uint64_t *numbers;
    uint32_t number_count;
    struct variable *const *in;
    uint32_t in_count;
};

/* What follows an answer. */
struct dist_follow {
    dist_then *then;
    void *arg;
};

/* Sends FORWARD. `done` (NULL: none) runs when it is answered, and begins with call_answered. `follow` is
 * kept for `done`. On failure there is no call. */
enum status call_start(struct dist_frame *frame, const struct dist_asked *asked,
                       const struct dist_follow *follow, future_then_function *done, struct dist_call **out,
                       struct error *error);
struct dist_follow call_follow(const struct dist_call *call);

/* The piece of an answered call. NULL: the call has ended meanwhile, and is gone. */
struct dist_piece *call_answered(struct dist_call *call);

/* The next call to record: answered, and later than all that are recorded. NULL: none. */
struct dist_call *frame_next_answered(const struct dist_frame *frame);

/* Records an answered call: the tape's from then on, or gone. */
enum status call_record(struct dist_call *call, struct variable *out[DIST_OUTPUTS_MAX], uint32_t *out_count,
                        struct error *error);

/* Gives back what the call holds; frees it when no function of its future is to come. */
void call_end(struct dist_call *call);

/* ---- for a root: these turn the rpc ---- */

/* Calls, waits and records. Another number of outputs than out_count is STATUS_INVALID. */
enum status frame_call(struct dist_frame *frame, const struct dist_asked *asked, struct variable *out[],
                       uint32_t out_count, struct error *error);

/* Serves calls until the backward is answered that the tape's walk waits for. */
enum status frame_wait(struct dist_frame *frame, struct error *error);

#endif
