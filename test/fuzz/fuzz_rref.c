/* References against a hostile worker: the requests REMOTE, SHARE, CLAIM, RELEASE and OBJECT with any
 * arguments and tensors, in any order. The worker's connection is made up, so that no input needs a socket,
 * and nothing is sent to it. Its session may end in the middle. After its end no object, use or reference may
 * be left. A message is 8 bytes of the input, and the payload that they ask for behind them. */
#include "test/fuzz/fuzz_peer.h"
#include "worker/reference/rref.h"

enum { TAKEN_MAX = 8, KEPT_MAX = 8 };

static struct rrefs *rrefs;
static unsigned alive, taken_count, kept_count;
static struct rref *taken[TAKEN_MAX];
static struct rpc_request *kept[KEPT_MAX];

/* ---- what the worker has ---- */

struct thing {
    uint64_t sum;
};

static enum status thing_create(void *context, const struct rref_class *class,
                                const struct rpc_message *arguments, void **object, struct error *error)
{
    (void)context, (void)class;
    require(arguments->tensor_count >= 1);
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
    struct error error = {0};
    peer_open_rpc("rref", NULL);
    struct rrefs_config references = {.rpc = rpc,
                                      .classes = classes,
                                      .class_count = 2,
                                      .objects_max = 6,
                                      .references_max = 4,
                                      .taken = on_taken};
    require(rrefs_new(&rrefs, &references, &error) == STATUS_OK);
}

/* ---- what the peer says ---- */

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
static bool say_one(const uint8_t **data, size_t *size, uint64_t newest)
{
    if (*size < 8)
        return false;
    const uint8_t *bytes = *data;
    struct wire_header header = {.method = (uint16_t)(METHOD_REMOTE + bytes[0] % 6)};
    uint8_t payload[4 * (RREF_NAME_BYTES + 1) * 8 * 4];
    header.args[0] = header.method == METHOD_REMOTE ? bytes[1] & 1 : object_number(bytes[1], newest);
    header.args[1] = small_or_not(bytes[2]);
    header.args[2] = bytes[3];
    header.args[3] = bytes[4];
    size_t payload_bytes = 0;
    for (unsigned i = 0; i < (bytes[5] & 3); i++)
        payload_bytes += add_tensor(&header, bytes[6 + (i & 1)]);
    *data += 8;
    *size -= 8;
    const size_t given = *size < payload_bytes ? *size : payload_bytes;
    require(payload_bytes <= sizeof payload);
    memset(payload, 't', payload_bytes);
    memcpy(payload, *data, given);
    *data += given;
    *size -= given;
    peer_say(&header, payload);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t newest = UINT64_C(1) << 40;
    struct rref_counts counts;
    if (rpc == NULL)
        open_worker();
    peer_open_session();
    while (rpc_reaches(rpc, PEER) && say_one(&data, &size, newest)) {
        rrefs_counts(rrefs, &counts);
        require(counts.objects <= 6 && counts.references <= 4 && counts.users <= counts.objects);
        require(rrefs_of_peer(rrefs, PEER) == counts.users && alive == counts.objects);
        newest = peer_newest_object(rrefs);
        if (size % 3 == 0)
            peer_turn();
    }
    rpc_peer_died(rpc, PEER, UINT32_MAX, "the input is over");
    while (kept_count > 0)
        rpc_fail(kept[--kept_count], STATUS_IO, "to nobody");
    while (taken_count > 0)
        rref_release(taken[--taken_count]);
    rpc_turn(rpc, (struct monotime){1});
    rrefs_counts(rrefs, &counts);
    require(alive == 0 && counts.objects + counts.references + counts.users == 0);
    return 0;
}
