/* The table of sessions: one place for each worker of the roster; and a ring of the connections that this
 * worker ended last with BYE, which are ignored while they stand in the ring. A session opens with HELLO and
 * WELCOME (rpc_hello.c) and ends in rpc_session_end.c. Thread: the owner of the rpc. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status sessions_new(struct rpc *rpc)
{
    rpc->sessions = calloc(rpc->config.workers, sizeof *rpc->sessions);
    return rpc->sessions == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

/* A session that never opened is not touched. */
static void session_release(struct rpc_session *session)
{
    if (session->segment.data != NULL)
        segment_detach(&session->segment);
    if (session->arriving.total != 0)
        bodies_drop(session);
}

void sessions_free(struct rpc *rpc)
{
    for (size_t i = 0; rpc->sessions != NULL && i < rpc->config.workers; i++)
        session_release(&rpc->sessions[i]);
    free(rpc->sessions);
}

struct rpc_session *session_of(struct rpc *rpc, uint16_t worker)
{
    if (worker >= rpc->config.workers || !rpc->sessions[worker].is_live)
        return NULL;
    return &rpc->sessions[worker];
}

void session_open(struct rpc_session *session, struct rpc_socket *socket, const struct wire_header *greeting,
                  uint32_t peer)
{
    session->worker = greeting->source;
    session->role = greeting->role;
    session->incarnation = greeting->incarnation;
    session->is_live = session->was_live = true;
    session->next_request = 1;
    session->window_top = 0;
    memset(session->window, 0, sizeof session->window);
    session->socket = socket;
    session->peer = peer;
}

bool session_lends(const struct rpc *rpc, const struct rpc_session *session)
{
    return session->is_self || (rpc->config.outbox != NULL && !session->socket->is_far);
}

/* ---- connections of the bound sockets ---- */

/* Routing ids are names within one socket. */
static bool session_is_of(const struct rpc_session *session, const struct rpc_socket *socket, uint32_t peer)
{
    return session->is_live && session->peer == peer && session->socket == socket;
}

struct rpc_session *session_of_peer(struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer,
                                    uint16_t source)
{
    if (peer != 0 && source < rpc->config.workers && session_is_of(&rpc->sessions[source], socket, peer))
        return &rpc->sessions[source];
    if (peer == 0 || peer_is_ignored(rpc, socket, peer))
        return NULL;
    for (size_t i = 0; i < rpc->config.workers; i++)
        if (session_is_of(&rpc->sessions[i], socket, peer))
            return &rpc->sessions[i];
    return NULL;
}

bool peer_is_ignored(const struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer)
{
    for (unsigned i = 0; i < rpc->stranger_count; i++)
        if (rpc->strangers[i].peer == peer && rpc->strangers[i].socket == socket)
            return true;
    return false;
}

void peer_ignore(struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer)
{
    rpc->strangers[rpc->stranger_next] = (struct rpc_stranger){socket, peer};
    rpc->stranger_next = (rpc->stranger_next + 1) % STRANGERS_MAX;
    if (rpc->stranger_count < STRANGERS_MAX)
        rpc->stranger_count++;
}

/* ---- lost sessions ---- */

void session_lose(struct rpc *rpc, struct rpc_session *session)
{
    assert(!session->is_self);
    if (!session->is_live || session->is_lost)
        return;
    session->is_lost = true;
    rpc->lost_count++;
}
