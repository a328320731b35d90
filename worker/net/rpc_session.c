/* The life of a session: it opens with HELLO and WELCOME (rpc_hello.c), and ends here, whatever the reason.
 * Thread: the owner of the rpc. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status sessions_new(struct rpc *rpc)
{
    rpc->sessions = calloc(rpc->config.workers, sizeof *rpc->sessions);
    return rpc->sessions == NULL ? STATUS_NO_MEMORY : peers_new(rpc);
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
    peers_free(rpc);
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

void session_open(struct rpc *rpc, struct rpc_session *session, struct rpc_socket *socket,
                  const struct wire_header *greeting, uint32_t peer)
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
    if (socket->dialed == NULL)
        peers_add(rpc, session);
}

/* ---- the end ---- */

void session_say_bye(struct rpc *rpc, struct rpc_socket *socket, uint32_t peer, uint16_t destination,
                     const char *text)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_BYE, destination);
    size_t bytes = strlen(text);
    rpc_send_text(rpc, socket->endpoint, &header, peer, text,
                  bytes < WIRE_ERROR_TEXT_MAX ? bytes : WIRE_ERROR_TEXT_MAX, true);
}

static void session_callback_left(struct rpc *rpc, uint16_t worker, enum status why, const char *text)
{
    rpc->callbacks++;
    if (rpc->config.left != NULL)
        rpc->config.left(rpc->config.context, worker, why, text);
    for (size_t i = 0; i < rpc->listener_count; i++)
        rpc->listeners[i].left(rpc->listeners[i].context, worker, why, text);
    rpc->callbacks--;
}

static void session_close(struct rpc *rpc, struct rpc_session *session)
{
    answers_detach(rpc, session);
    bodies_drop(session);
    session->is_live = false;
    if (session->is_lost)
        rpc->lost_count--;
    session->is_lost = session->leaves_answers = false;
    if (session->socket->dialed != NULL) {
        rpc->gone_count++;
    } else {
        peers_remove(rpc, session->peer);
        peers_ignore(rpc, session->peer);
    }
}

/* The text is copied first: it may lie in a message or an object that ends here. */
static void session_finish(struct rpc *rpc, struct rpc_session *session, enum status why,
                           enum status call_status, const char *text, bool says_bye)
{
    char copy[WIRE_ERROR_TEXT_MAX + 1];
    snprintf(copy, sizeof copy, "%s", text);
    session_close(rpc, session);
    if (says_bye)
        session_say_bye(rpc, session->socket, session->peer, session->worker, copy);
    calls_complete(rpc, session, call_status, copy);
    session_callback_left(rpc, session->worker, why, copy);
    futures_tell(rpc);
}

void session_end(struct rpc *rpc, struct rpc_session *session, enum status why, enum status call_status,
                 const char *text)
{
    if (session->is_live && !session->is_self)
        session_finish(rpc, session, why, call_status, text, true);
}

void session_end_quietly(struct rpc *rpc, struct rpc_session *session, enum status why, const char *text)
{
    session_finish(rpc, session, why, STATUS_PEER_DIED, text, false);
}

void session_end_bad(struct rpc *rpc, struct rpc_session *session, const char *text)
{
    rpc->counters.bad++;
    session_end(rpc, session, STATUS_INVALID, STATUS_PEER_DIED, text);
}

void session_lose(struct rpc *rpc, struct rpc_session *session)
{
    assert(!session->is_self);
    if (!session->is_live || session->is_lost)
        return;
    session->is_lost = true;
    rpc->lost_count++;
}

void session_lose_slow(struct rpc *rpc, struct rpc_session *session)
{
    session->leaves_answers |= !session->is_lost;
    session_lose(rpc, session);
}

void sessions_reap(struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->config.workers && rpc->lost_count > 0; i++) {
        struct rpc_session *session = &rpc->sessions[i];
        if (session->is_lost && session->leaves_answers)
            session_end_bad(rpc, session, "its answers are not taken");
        else if (session->is_lost)
            session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "its connection is gone");
    }
}

void rpc_peer_died(struct rpc *rpc, uint16_t worker, const char *text)
{
    struct rpc_session *session = session_of(rpc, worker);
    if (session != NULL)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, text);
}

void rpc_reject_worker(struct rpc *rpc, uint16_t worker, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    struct rpc_session *session = session_of(rpc, worker);
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (session != NULL)
        session_end_bad(rpc, session, text);
}
