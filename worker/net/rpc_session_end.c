/* The end of a session for every reason: BYE, a death, a bad message. Thread: the owner of the rpc. */
#include "worker/net/rpc_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void session_say_bye(struct rpc *rpc, struct rpc_socket *socket, uint32_t peer, uint16_t destination,
                     const char *text)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_BYE, destination);
    size_t bytes = strlen(text);
    send_text(rpc, socket->endpoint, &header, peer, text,
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
    session->is_lost = false;
    if (session->socket->dialed != NULL) {
        rpc->gone_count++;
    } else {
        peer_ignore(rpc, session->socket, session->peer);
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

void sessions_reap(struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->config.workers && rpc->lost_count > 0; i++) {
        struct rpc_session *session = &rpc->sessions[i];
        if (session->is_lost)
            session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "the connection is gone");
    }
}

void rpc_peer_died(struct rpc *rpc, uint16_t worker, uint32_t incarnation, const char *text)
{
    struct rpc_session *session = session_of(rpc, worker);
    if (session != NULL && session->incarnation <= incarnation)
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

void rpc_reject(struct rpc_request *request, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    struct rpc *rpc = request->rpc;
    struct rpc_session *session = request->session;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    rpc_fail(request, STATUS_INVALID, "%s", text);
    if (session != NULL && !session->is_self)
        session_end_bad(rpc, session, text);
}
