/* Bodies in pieces: joined as they arrive; and the rest of a body that leaves.
 *
 * A sender's messages come in order, and the pieces of a body one after the other right before the message
 * that they belong to, so that a session joins one body at a time. The whole body is allocated with the first
 * piece; the kernel provides pages only as bytes are written. The bodies of one peer (arriving, in open
 * requests, and in replies that are not released) take up at most RPC_BODY_BYTES_MAX. The pieces of a body
 * beyond that are checked and dropped, and the call ends with STATUS_BUSY. A body whose message does not
 * follow is dropped with the next message. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>
#include <string.h>

void body_free(struct rpc_body *body)
{
    if (body->bytes != NULL)
        body->session->body_bytes -= body->count;
    free(body->bytes);
    *body = (struct rpc_body){0};
}

void bodies_drop(struct rpc_session *session)
{
    body_free(&session->arriving.body);
    session->arriving = (struct arriving_body){0};
}

static void body_begin_arriving(struct rpc_session *session, const struct wire_header *header)
{
    struct arriving_body *arriving = &session->arriving;
    bodies_drop(session);
    arriving->request = header->request;
    arriving->kind = (uint8_t)header->args[PIECE_KIND];
    arriving->total = header->body_bytes;
    if (arriving->total > RPC_BODY_BYTES_MAX - session->body_bytes)
        return;
    arriving->body = (struct rpc_body){malloc(arriving->total), arriving->total, session};
    if (arriving->body.bytes != NULL)
        session->body_bytes += arriving->total;
}

const char *bodies_receive_piece(struct rpc_session *session, const struct wire_header *header,
                                 const uint8_t *payload)
{
    struct arriving_body *arriving = &session->arriving;
    bool is_known = arriving->total == header->body_bytes && arriving->request == header->request &&
                    arriving->kind == header->args[PIECE_KIND];
    if (!is_known && header->args[PIECE_OFFSET] == 0)
        body_begin_arriving(session, header);
    else if (!is_known)
        return "a piece of a body that has not begun";
    if (header->args[PIECE_OFFSET] != arriving->have)
        return "a piece out of order";
    if (arriving->body.bytes != NULL)
        memcpy(arriving->body.bytes + arriving->have, payload, header->payload_bytes);
    arriving->have += header->payload_bytes;
    return NULL;
}

void bodies_take(struct rpc_session *session, const struct wire_header *header, struct rpc_body *body,
                 enum status *state)
{
    struct arriving_body *arriving = &session->arriving;
    bool is_whole = arriving->total == header->body_bytes && arriving->request == header->request &&
                    arriving->kind == header->kind && arriving->have == arriving->total;
    *body = (struct rpc_body){0};
    *state = STATUS_OK;
    if (header->body_bytes != 0 && !is_whole) {
        *state = STATUS_INVALID;
    } else if (header->body_bytes != 0 && arriving->body.bytes == NULL) {
        *state = STATUS_BUSY;
    } else if (header->body_bytes != 0) {
        *body = arriving->body;
        arriving->body = (struct rpc_body){0};
    }
    if (arriving->total != 0)
        bodies_drop(session);
}

void arrival_drop(struct rpc_arrival *arrival)
{
    endpoint_release(arrival->frames);
    if (arrival->body.bytes != NULL)
        body_free(&arrival->body);
}

void leaving_free(struct rpc_request *request)
{
    if (request->leaving->has_piece)
        endpoint_release(&request->leaving->piece);
    free(request->leaving);
    request->leaving = NULL;
}
