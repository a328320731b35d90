/* Calls to oneself: a queue in place of a socket, otherwise as calls to other workers.
 *
 * A message to oneself is built like any other and stands in a queue (rpc_send.c) until the next turn, which
 * handles it as if it had arrived: the same checks, the same dispatch, the same replies. A request that is
 * not permitted, or finds no memory for its answer, fails with that status: the session with oneself cannot
 * end. Tensors of RPC_LEND_BYTES or more are not copied: behind the payload stand four addresses, NULL for a
 * tensor that travels. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <string.h>

void self_open(struct rpc *rpc)
{
    struct rpc_session *session = &rpc->sessions[rpc->config.worker];
    session->worker = rpc->config.worker;
    session->role = rpc->config.role;
    session->incarnation = rpc->config.incarnation;
    session->is_live = session->was_live = session->is_self = true;
    session->next_request = 1;
}

static void self_take_one(struct rpc *rpc)
{
    struct rpc_session *session = &rpc->sessions[rpc->config.worker];
    struct rpc_request *holder = rpc->local.first;
    struct endpoint_message frames;
    struct rpc_arrival arrival = {.frames = &frames};
    queue_remove(&rpc->local, holder);
    endpoint_move(&frames, &holder->frames);
    request_give_back(rpc, holder);
    size_t payload_bytes = frames.payload_bytes - sizeof arrival.lent;
    enum status status =
        wire_decode(&arrival.header, frames.header, frames.header_bytes, payload_bytes, NULL);
    assert(status == STATUS_OK);
    (void)status;
    memcpy(arrival.lent, frames.payload + payload_bytes, sizeof arrival.lent);
    rpc->counters.received++;
    struct error error;
    const char *fault = NULL;
    if (arrival.header.kind == WIRE_REQUEST)
        status = answers_receive_request(rpc, session, &arrival, &error);
    else
        fault = calls_receive_reply(rpc, session, &arrival);
    assert(status == STATUS_OK && fault == NULL);
    (void)fault;
}

unsigned self_drain(struct rpc *rpc, const struct future *awaited)
{
    unsigned count = 0;
    while (rpc->local.first != NULL && count < DRAIN_MAX && (awaited == NULL || !awaited->is_done)) {
        self_take_one(rpc);
        count++;
    }
    return count;
}
