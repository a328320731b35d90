/* References against a worker that says anything: the requests REMOTE, SHARE, CLAIM, RELEASE, FETCH and
 * OBJECT with any arguments and tensors, in any order, from a worker that the rpc knows and that nothing
 * leaves to (its connection is made up, so that no input needs a socket). Its session may be over in the
 * middle, for that is what lies cost. When it has ended, nothing may be left: neither an object, nor a use,
 * nor a reference. Each message is 8 bytes of the input and what they ask for behind them. */
#include "worker/net/rpc_internal.h"
#include "worker/net/rref_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SELF = 0, PEER = 1, WORKERS = 3, TAKEN_MAX = 8, KEPT_MAX = 8, CONNECTION = 4242 };

static const uint8_t roster[WORKERS] = {WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER};

static struct rpc *rpc;
static struct rrefs *rrefs;
static uint32_t incarnation;
static uint64_t request_id;
static unsigned alive, taken_count, kept_count;
static struct rref *taken[TAKEN_MAX];
static struct rpc_request *kept[KEPT_MAX];

static void require(int holds)
{
    if (!holds)
        abort();
}

/* ---- what the worker has ---- */

struct thing {
    uint64_t sum;
};

static enum status thing_create(void *context, uint16_t creator, const struct rpc_message *arguments,
                                void **object, struct error *error)
{
    (void)context;
    require(creator == PEER && arguments->tensor_count >= 1);
    if (arguments->args[1] % 8 == 7)
        return error_set(error, STATUS_INVALID, "no thing of %u tensors", arguments->tensor_count);
    struct thing *thing = calloc(1, sizeof *thing);
    for (unsigned i = 1; i < arguments->tensor_count; i++) {
        const volatile uint8_t *data = arguments->data[i];
        thing->sum += data[0] + data[wire_tensor_bytes(&arguments->tensors[i]) - 1];
    }
    *object = thing;
    alive++;
    return STATUS_OK;
}

static void thing_destroy(void *object)
{
    require(alive > 0);
    alive--;
    free(object);
}

static enum status thing_value(void *object, struct rpc_message *value, struct error *error)
{
    struct thing *thing = object;
    (void)error;
    *value = (struct rpc_message){.tensor_count = 1, .tensors = {{WIRE_U64, 1, {1}}}, .data = {&thing->sum}};
    return STATUS_OK;
}

static void thing_add(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct thing *thing = object;
    rpc_reply(request, message);
    thing->sum += message->args[2];
}

static void thing_keep(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    if (kept_count == KEPT_MAX)
        thing_add(object, request, message);
    else
        kept[kept_count++] = request;
}

static rref_function *const functions[] = {thing_add, thing_keep};
static const struct rref_class thing_class = {.name = "t",
                                              .create = thing_create,
                                              .destroy = thing_destroy,
                                              .value = thing_value,
                                              .functions = functions,
                                              .function_count = 2};
static const struct rref_class bare_class = {.name = "u", .create = thing_create, .destroy = thing_destroy};
static const struct rref_class *const classes[] = {&thing_class, &bare_class};

static void on_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    (void)context;
    (void)tag;
    require(from == PEER && rref_ready(rref, NULL) == STATUS_OK);
    if (taken_count == TAKEN_MAX)
        rref_release(rref);
    else
        taken[taken_count++] = rref;
}

static void open_worker(void)
{
    char address[64];
    struct error error = {0};
    struct rpc_config config = {.worker = SELF,
                                .role = WIRE_ROLE_PSERVER,
                                .incarnation = 1,
                                .generation = 1,
                                .roster = roster,
                                .workers = WORKERS,
                                .pending_max = 16,
                                .incoming_max = 16,
                                .rows_max = 4};
    snprintf(address, sizeof address, "ipc:///tmp/fuzz-rref-%d", (int)getpid());
    require(rpc_serve(&rpc, &config, address, &error) == STATUS_OK);
    unlink(address + strlen("ipc://"));
    struct rrefs_config references = {.rpc = rpc,
                                      .classes = classes,
                                      .class_count = 2,
                                      .objects_max = 6,
                                      .references_max = 4,
                                      .taken = on_taken};
    require(rrefs_new(&rrefs, &references, &error) == STATUS_OK);
}

/* ---- what the peer says ---- */

static struct rpc_session *open_session(void)
{
    struct rpc_session *session = &rpc->sessions[PEER];
    session_begin(session, PEER, roster[PEER], ++incarnation);
    session->socket = &rpc->sockets[0];
    session->peer = CONNECTION;
    peers_add(rpc, session);
    request_id = 1;
    return session;
}

/* Mostly the number of an object that there has been lately, or one beside. */
static uint64_t object_number(uint8_t byte, uint64_t newest)
{
    if (byte >= 0xf0)
        return (uint64_t)byte * UINT64_C(0x0101010101010101);
    return (byte & 8) != 0 ? newest + 1 - (byte & 7) : newest - (byte & 7);
}

static uint64_t small_or_not(uint8_t byte)
{
    return byte >= 0xf8 ? UINT64_MAX - byte : byte & 3;
}

/* Up to two tensors out of one byte each: type, rank, a length of few bytes. */
static size_t add_tensor(struct wire_header *header, uint8_t byte)
{
    struct wire_tensor *tensor = &header->tensors[header->tensor_count++];
    tensor->dtype = (uint8_t)(1 + (byte & 3));
    tensor->rank = (uint8_t)(1 + (byte >> 2 & 1));
    tensor->dims[0] = 1u + (byte >> 3 & 7);
    tensor->dims[1] = tensor->rank == 2 ? 1u + (byte >> 6) : 0;
    if (byte == 0xff)
        tensor->dims[0] = RREF_NAME_BYTES + 1;
    return wire_tensor_bytes(tensor);
}

/* Takes one message off the input; false: it is used up. */
static bool say_one(struct rpc_session *session, const uint8_t **data, size_t *size, uint64_t newest)
{
    if (*size < 8)
        return false;
    const uint8_t *bytes = *data;
    struct rpc_arrival arrival = {0};
    struct wire_header *header = &arrival.header;
    struct endpoint_message frames;
    header->kind = WIRE_REQUEST;
    header->method = (uint16_t)(METHOD_REMOTE + bytes[0] % 6);
    header->source = PEER;
    header->incarnation = incarnation;
    header->generation = 1;
    header->request = request_id++;
    header->left_us = UINT64_MAX;
    header->args[0] = header->method == METHOD_REMOTE ? bytes[1] & 1 : object_number(bytes[1], newest);
    header->args[1] = small_or_not(bytes[2]);
    header->args[2] = bytes[3];
    header->args[3] = bytes[4];
    size_t payload_bytes = 0;
    for (unsigned i = 0; i < (bytes[5] & 3); i++)
        payload_bytes += add_tensor(header, bytes[6 + (i & 1)]);
    header->payload_bytes = (uint32_t)payload_bytes;
    *data += 8;
    *size -= 8;
    uint8_t encoded[WIRE_HEADER_BYTES];
    require(wire_check(header, NULL) == STATUS_OK);
    wire_encode(header, encoded);
    require(endpoint_prepare(&frames, CONNECTION, encoded, sizeof encoded, payload_bytes) == STATUS_OK);
    size_t given = *size < payload_bytes ? *size : payload_bytes;
    if (payload_bytes > 0) {
        memset(frames.payload, 't', payload_bytes);
        memcpy(frames.payload, *data, given);
    }
    *data += given;
    *size -= given;
    arrival.frames = &frames;
    answers_receive_request(rpc, session, &arrival);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t newest = UINT64_C(1) << 40;
    struct rref_counts counts;
    if (rpc == NULL)
        open_worker();
    struct rpc_session *session = open_session();
    while (session->is_live && say_one(session, &data, &size, newest)) {
        rrefs_counts(rrefs, &counts);
        require(counts.objects <= 6 && counts.references <= 4 && counts.users <= counts.objects);
        require(rrefs_of_peer(rrefs, PEER) == counts.users && alive == counts.objects);
        newest = rrefs->last_number;
        if (size % 3 == 0)
            rpc_turn(rpc, (struct monotime){1});
    }
    rpc_peer_died(rpc, PEER, "the input is over");
    while (kept_count > 0)
        rpc_fail(kept[--kept_count], STATUS_IO, "to nobody");
    while (taken_count > 0)
        rref_release(taken[--taken_count]);
    rpc_turn(rpc, (struct monotime){1});
    rrefs_counts(rrefs, &counts);
    require(alive == 0 && counts.objects + counts.references + counts.users == 0);
    return 0;
}
