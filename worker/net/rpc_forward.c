/* Calls between clients, which have no connection to each other: by way of the lowest server.
 *
 * A client's session with another client begins with the first message, ends with BYE or a death, and is like
 * any other in between: request ids, a window of those seen, bodies, references of its own. Its messages go
 * through the connection to worker 0, in order with all others there, and worker 0 passes them on as they
 * are: it has checked their headers, and that the source is the connection's own worker. What it cannot
 * pass on at once waits in the destination's queue, within what each source may have waiting. A request that
 * finds no room is answered in the destination's name, and any other message costs its source, but for an
 * answer that the destination has asked for: whoever takes no answers pays for them. When a client's
 * session ends, worker 0 says BYE to the others in that client's name, behind all that it had sent them; so
 * nobody waits for the dead, and what the dead sent last still counts before their end.
 *
 * A client learns another's incarnation from its first message. Later messages of an older one are dropped;
 * one of a newer one ends the session and begins the next.
 *
 * Between a client's end and the news of it lies what others still send it, and by then its successor may be
 * here. So each message says which incarnation it is meant for, and worker 0 passes it on to no other. Before
 * it has heard from the other a client cannot say that. But all that it sends until then is of one session,
 * the first with that worker, for once that has ended only a call of the other's begins the next, which says
 * who calls. And worker 0 knows with which incarnation that session is: with the one that is here, was last,
 * or comes first, when the first message between the two comes by, be it the client's own or a call of the
 * other's. It keeps that for each pair, and passes on nothing of that session to a successor, where it would
 * open a session, and whatever a request opens, that its sender has no part in. For the same reason it tells
 * of an end only those who had something to do with the dead: the others would take it for the end of the
 * session that they begin, maybe with the successor. */
#include "worker/net/rpc_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a client ---- */

/* Servers have the lowest server's role, and clients another. */
static bool is_client(const struct rpc *rpc, uint16_t worker)
{
    return worker < rpc->config.workers && rpc->roster[worker] != rpc->roster[0];
}

static void begin(struct rpc *rpc, struct rpc_session *session, uint16_t worker, uint32_t incarnation)
{
    session_begin(session, worker, rpc->roster[worker], incarnation);
    session->is_forwarded = true;
}

bool forward_may_begin(const struct rpc *rpc, uint16_t worker)
{
    return !rpc->is_server && rpc->sessions[0].is_live && is_client(rpc, worker) &&
           !rpc->sessions[worker].was_live;
}

struct rpc_session *forward_begin(struct rpc *rpc, uint16_t worker)
{
    if (!forward_may_begin(rpc, worker))
        return NULL;
    begin(rpc, &rpc->sessions[worker], worker, 0);
    return &rpc->sessions[worker];
}

struct rpc_session *forward_find(struct rpc *rpc, const struct wire_header *header, const char **fault)
{
    uint16_t source = header->source;
    bool is_call = header->kind == WIRE_REQUEST || header->kind == WIRE_PIECE;
    *fault = NULL;
    if (!is_client(rpc, source) || source == rpc->config.worker)
        *fault = "the source is no client whose messages are passed on";
    else if (header->kind == WIRE_HELLO || header->kind == WIRE_WELCOME)
        *fault = "a greeting that was passed on";
    if (*fault != NULL)
        return NULL;
    if (header->addressee != 0 && header->addressee != rpc->config.incarnation) {
        rpc->counters.stale++;
        return NULL;
    }
    struct rpc_session *session = &rpc->sessions[source];
    bool is_older = session->was_live && header->incarnation < session->incarnation;
    bool is_newer = session->was_live && header->incarnation > session->incarnation;
    if (session->is_live && session->incarnation != 0 && is_newer && is_call)
        session_end_quietly(rpc, session, STATUS_PEER_DIED, "replaced by a later incarnation");
    if (session->is_live && (!is_older || header->incarnation == 0)) {
        session->incarnation = is_newer ? header->incarnation : session->incarnation;
        return session;
    }
    if (session->is_live || !is_call || (session->was_live && !is_newer)) {
        rpc->counters.stale++;
        return NULL;
    }
    begin(rpc, session, source, header->incarnation);
    return session;
}

void forward_end_all(struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->config.workers; i++)
        if (rpc->sessions[i].is_live && rpc->sessions[i].is_forwarded)
            session_end_quietly(rpc, &rpc->sessions[i], STATUS_PEER_DIED,
                                "the server that passed on its messages is gone");
}

/* ---- the lowest server: whom a client means ---- */

/* What is kept of a pair beside an incarnation's number: the two have had nothing to do with each other; or
 * the one who has not been here yet is meant. */
enum { NOBODY = 0 };
static const uint32_t FIRST_TO_COME = UINT32_MAX;

enum status forward_new(struct rpc *rpc)
{
    if (!rpc->is_server || rpc->config.worker != 0)
        return STATUS_OK;
    rpc->pairs = calloc((size_t)rpc->config.workers * rpc->config.workers, sizeof *rpc->pairs);
    return rpc->pairs == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

void forward_free(struct rpc *rpc)
{
    free(rpc->pairs);
}

static struct forward_pair *pair_of(struct rpc *rpc, size_t source, size_t destination)
{
    return &rpc->pairs[source * rpc->config.workers + destination];
}

/* A successor has had nothing to do with anyone. */
void forward_note_joined(struct rpc *rpc, struct rpc_session *session, uint32_t incarnation)
{
    if (rpc->pairs == NULL)
        return;
    if (session->was_live)
        memset(pair_of(rpc, session->worker, 0), 0, rpc->config.workers * sizeof *rpc->pairs);
    else
        session->first_incarnation = incarnation;
}

/* A message of the one or the other comes by. */
static void note_met(struct rpc *rpc, uint16_t source, uint16_t destination)
{
    const struct rpc_session *to = &rpc->sessions[destination];
    struct forward_pair *pair = pair_of(rpc, source, destination);
    if (pair->meant == NOBODY)
        pair->meant = to->was_live ? to->incarnation : FIRST_TO_COME;
}

/* Whether a message is meant for an incarnation whose session is over: *incarnation. */
static bool is_for_gone(struct rpc *rpc, const struct wire_header *header, uint32_t *incarnation)
{
    const struct rpc_session *to = &rpc->sessions[header->destination];
    uint32_t meant = pair_of(rpc, header->source, header->destination)->meant;
    if (meant == FIRST_TO_COME)
        meant = to->first_incarnation;
    if (header->addressee != 0)
        meant = header->addressee;
    *incarnation = meant;
    return to->was_live && (meant != to->incarnation || !to->is_live);
}

/* ---- the lowest server: passing on ---- */

static const char *check_route(const struct rpc *rpc, const struct rpc_session *from,
                               const struct wire_header *header)
{
    if (rpc->config.worker != 0)
        return "the destination is another worker";
    if (!is_client(rpc, header->destination) || !is_client(rpc, from->worker) ||
        header->destination == from->worker)
        return "the destination is no client to whom messages are passed on";
    if (header->kind == WIRE_HELLO || header->kind == WIRE_WELCOME)
        return "a greeting for another worker";
    if (header->addressee > rpc->sessions[header->destination].incarnation)
        return "the addressee is an incarnation that has not been here";
    return from->answers_held.bytes > HELD_BYTES_MAX ? "its answers are not taken" : NULL;
}

static void say_in_name(struct rpc *rpc, uint16_t worker, uint32_t incarnation, struct rpc_session *to,
                        const struct wire_header *header, const char *text)
{
    struct wire_header said;
    rpc_header(rpc, &said, header->kind, to->worker);
    said.source = worker;
    said.incarnation = incarnation;
    said.status = header->status;
    said.method = header->method;
    said.request = header->request;
    send_notice(rpc, to, &said, text);
}

static void say_bye_for(struct rpc *rpc, uint16_t worker, uint32_t incarnation, struct rpc_session *to,
                        const char *text)
{
    const struct wire_header bye = {.kind = WIRE_BYE};
    say_in_name(rpc, worker, incarnation, to, &bye, text);
}

/* A request that finds no room fails, with its pieces; anything else cannot be left out. */
static const char *refuse(struct rpc *rpc, struct rpc_session *from, struct rpc_session *to,
                          const struct wire_header *header)
{
    bool is_piece = header->kind == WIRE_PIECE && header->args[PIECE_KIND] == WIRE_REQUEST;
    if (header->kind != WIRE_REQUEST && !is_piece)
        return "its messages for another worker are not taken";
    from->refused_destination = header->destination;
    from->refused_request = is_piece ? header->request : 0;
    if (is_piece)
        return NULL;
    char text[WIRE_ERROR_TEXT_MAX];
    struct wire_header reply = {
        .kind = WIRE_REPLY, .status = STATUS_BUSY, .method = header->method, .request = header->request};
    snprintf(text, sizeof text, "too much waits for worker %u already", header->destination);
    say_in_name(rpc, header->destination, to->incarnation, from, &reply, text);
    return NULL;
}

static bool is_of_refused(const struct rpc_session *from, const struct wire_header *header)
{
    bool is_request = header->kind == WIRE_REQUEST && header->body_bytes != 0;
    bool is_piece = header->kind == WIRE_PIECE && header->args[PIECE_KIND] == WIRE_REQUEST;
    return (is_request || is_piece) && header->request == from->refused_request &&
           header->destination == from->refused_destination;
}

static void answer_for_gone(struct rpc *rpc, struct rpc_session *from, uint32_t incarnation,
                            const struct wire_header *header)
{
    char text[48];
    snprintf(text, sizeof text, "worker %u has no session any more", header->destination);
    if (header->kind == WIRE_REQUEST || header->kind == WIRE_PIECE)
        say_bye_for(rpc, header->destination, incarnation, from, text);
}

/* An answer, or a piece of one. */
static bool is_answer(const struct wire_header *header)
{
    return header->kind == WIRE_REPLY ||
           (header->kind == WIRE_PIECE && header->args[PIECE_KIND] == WIRE_REPLY);
}

/* Of the answers that were asked for, too many wait, or too much of this one's: whoever leaves most of those
 * untaken. NULL: nobody leaves any. */
static struct rpc_session *slowest_asker(struct rpc *rpc, const struct rpc_session *from)
{
    const bool is_of_all = rpc->held_as[HELD_RETURNING] >= PASSING_TOTAL_MAX;
    struct rpc_session *most = NULL;
    uint32_t most_count = 0;
    for (size_t i = 0; i < rpc->config.workers; i++) {
        struct rpc_session *session = &rpc->sessions[i];
        uint32_t count = 0;
        for (const struct rpc_request *held = session->held.first; held != NULL; held = held->next)
            count += held->held_as == HELD_RETURNING && (is_of_all || held->source == from->worker);
        if (count <= most_count)
            continue;
        most = session;
        most_count = count;
    }
    return most;
}

/* An answer cannot be left out; one that was asked for costs the one who should take it. */
static enum status pass_asked(struct rpc *rpc, const struct rpc_session *from, struct rpc_session *to,
                              struct endpoint_message *message)
{
    enum status status = send_passing(rpc, to, from->worker, HELD_RETURNING, message);
    while (status == STATUS_BUSY) {
        struct rpc_session *slow = slowest_asker(rpc, from);
        if (slow == NULL)
            break;
        answers_drop(rpc, slow);
        status = send_passing(rpc, to, from->worker, HELD_RETURNING, message);
    }
    return status;
}

/* A farewell that finds no room takes the place of what is moot with it. */
static enum status pass_other(struct rpc *rpc, const struct rpc_session *from, struct rpc_session *to,
                              const struct wire_header *header, struct endpoint_message *message)
{
    enum status status = send_passing(rpc, to, from->worker, HELD_PASSING, message);
    if (status != STATUS_BUSY || header->kind != WIRE_BYE)
        return status;
    send_drop_passing(rpc, to, from->worker);
    return send_passing(rpc, to, from->worker, HELD_PASSING, message);
}

static void note_passed(struct rpc *rpc, const struct wire_header *header)
{
    const uint16_t source = header->source, destination = header->destination;
    if (header->kind == WIRE_REQUEST || header->kind == WIRE_PIECE)
        note_met(rpc, destination, source);
    if (header->kind == WIRE_REQUEST)
        pair_of(rpc, source, destination)->asked++;
    else if (header->kind == WIRE_REPLY && pair_of(rpc, destination, source)->asked > 0)
        pair_of(rpc, destination, source)->asked--;
}

const char *forward_pass(struct rpc *rpc, struct rpc_session *from, const struct wire_header *header,
                         struct endpoint_message *message)
{
    const char *fault = check_route(rpc, from, header);
    if (fault != NULL) {
        endpoint_release(message);
        return fault;
    }
    struct rpc_session *to = &rpc->sessions[header->destination];
    uint32_t gone;
    note_met(rpc, from->worker, header->destination);
    if (is_for_gone(rpc, header, &gone)) {
        endpoint_release(message);
        answer_for_gone(rpc, from, gone, header);
        return NULL;
    }
    to->worker = header->destination;
    enum status status = STATUS_BUSY;
    if (is_answer(header) && pair_of(rpc, header->destination, from->worker)->asked > 0)
        status = pass_asked(rpc, from, to, message);
    else if (!is_of_refused(from, header))
        status = pass_other(rpc, from, to, header, message);
    if (status == STATUS_OK) {
        note_passed(rpc, header);
        return NULL;
    }
    endpoint_release(message);
    if (status == STATUS_BUSY)
        return refuse(rpc, from, to, header);
    session_lose(rpc, to);
    return NULL;
}

/* Also those who are not here yet, for whom something may wait. */
void forward_tell_end(struct rpc *rpc, struct rpc_session *gone, const char *text)
{
    if (rpc->pairs == NULL || rpc->is_closing)
        return;
    for (size_t i = 0; i < rpc->config.workers; i++) {
        struct rpc_session *to = &rpc->sessions[i];
        struct forward_pair *pair = pair_of(rpc, i, gone->worker);
        pair->asked = 0;
        if (pair->meant != NOBODY && (to->is_live || !to->was_live))
            say_bye_for(rpc, gone->worker, gone->incarnation, to, text);
    }
}
