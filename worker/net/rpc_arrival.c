/* Joins the pieces of bodies, and keeps messages that have come. Thread: the owner of the rpc. */
#include "worker/net/rpc_arrival.h"

#include "worker/net/rpc_rules.h"

#include <stdlib.h>
#include <string.h>

static void body_free(struct body *body)
{
    if (body->bytes != NULL)
        body->bodies->bytes -= body->count;
    free(body->bytes);
    *body = (struct body){0};
}

void bodies_drop_arriving(struct bodies *bodies)
{
    if (bodies->arriving.total == 0)
        return;
    body_free(&bodies->arriving.body);
    memset(&bodies->arriving, 0, sizeof bodies->arriving);
}

/* The whole body is allocated with the first piece; the kernel provides pages only as bytes are written. */
static void bodies_begin(struct bodies *bodies, const struct wire_header *header)
{
    bodies_drop_arriving(bodies);
    bodies->arriving.request = header->request;
    bodies->arriving.kind = (uint8_t)header->args[PIECE_KIND];
    bodies->arriving.total = header->body_bytes;
    if (header->body_bytes > RPC_BODY_BYTES_MAX - bodies->bytes)
        return;
    bodies->arriving.body = (struct body){malloc(header->body_bytes), header->body_bytes, bodies};
    if (bodies->arriving.body.bytes != NULL)
        bodies->bytes += header->body_bytes;
}

static bool bodies_await(const struct bodies *bodies, const struct wire_header *header, uint64_t kind)
{
    return bodies->arriving.total == header->body_bytes && bodies->arriving.request == header->request &&
           bodies->arriving.kind == kind;
}

const char *bodies_receive_piece(struct bodies *bodies, const struct wire_header *header,
                                 const uint8_t *payload)
{
    if (!bodies_await(bodies, header, header->args[PIECE_KIND])) {
        if (header->args[PIECE_OFFSET] != 0)
            return "a piece of a body that has not begun";
        bodies_begin(bodies, header);
    }
    if (header->args[PIECE_OFFSET] != bodies->arriving.have)
        return "a piece out of order";
    if (bodies->arriving.body.bytes != NULL)
        memcpy(bodies->arriving.body.bytes + bodies->arriving.have, payload, header->payload_bytes);
    bodies->arriving.have += header->payload_bytes;
    return NULL;
}

void arrival_take_body(struct arrival *arrival, struct bodies *bodies)
{
    const struct wire_header *header = &arrival->header;
    const bool is_whole =
        bodies_await(bodies, header, header->kind) && bodies->arriving.have == bodies->arriving.total;
    arrival->body = (struct body){0};
    arrival->body_state = STATUS_OK;
    if (header->body_bytes != 0 && !is_whole) {
        arrival->body_state = STATUS_INVALID;
    } else if (header->body_bytes != 0 && bodies->arriving.body.bytes == NULL) {
        arrival->body_state = STATUS_BUSY;
    } else if (header->body_bytes != 0) {
        arrival->body = bodies->arriving.body;
        bodies->arriving.body = (struct body){0};
    }
    bodies_drop_arriving(bodies);
}

void arrival_drop(struct arrival *arrival)
{
    endpoint_release(&arrival->frames);
    body_free(&arrival->body);
}

void arrival_keep(struct arrival *arrival, struct kept *kept)
{
    endpoint_move(&kept->frames, &arrival->frames);
    kept->body = arrival->body;
    rules_open_message(&kept->message, &arrival->header,
                       kept->body.bytes != NULL ? kept->body.bytes : kept->frames.payload, arrival->lent);
}

void kept_drop(struct kept *kept)
{
    endpoint_release(&kept->frames);
    body_free(&kept->body);
}
