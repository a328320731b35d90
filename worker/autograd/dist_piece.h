/* The callee's side of a context (dist_piece.c): the pieces that this worker computes for callers. */
#ifndef WORKER_AUTOGRAD_DIST_PIECE_H
#define WORKER_AUTOGRAD_DIST_PIECE_H

#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_object.h"

struct dist_caller;

/* One for each context here. The first five are set by the context. */
struct dist_callee {
    struct rpc *rpc;
    struct dist_objects *objects;
    struct dist_caller *caller; /* for calls that the pieces make */
    uint32_t *piece_count;      /* of all contexts here; at most pieces_max */
    uint32_t pieces_max;
    struct dist_piece *pieces; /* newest first */
    struct dist_use *uses;
};

/* Make and walk a piece; they answer the request, at once or later. */
void callee_forward(struct dist_callee *callee, struct rpc_request *request,
                    const struct rpc_message *message, const struct forward_flags *flags);
void callee_backward(struct dist_callee *callee, struct rpc_request *request,
                     const struct rpc_message *message);

/* Fails what is open, and frees every piece and use. The newest pieces end first, so that rooms are taken
 * again in the same order. */
void callee_end(struct dist_callee *callee, enum status status, const char *text);

/* There is a piece of `caller`, or no piece at all. */
bool callee_serves(const struct dist_callee *callee, uint16_t caller);

#endif
