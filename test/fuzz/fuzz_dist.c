/* Distributed autograd, parameters and optimizers against a worker that says anything: it creates objects,
 * calls them within contexts, walks, drops and ends, asks for parameters, makes optimizers of them and steps,
 * in any order and with wrong numbers. Each message is right by itself, but for what the input changes in it;
 * that its parts do not fit together is left to chance. Its session may be over in the middle, for that is
 * what some lies cost. When it has ended, nothing may be left: neither a context, nor a call, nor an object.
 *
 * A message is 8 bytes of the input (enum part) and what is put over the payload behind them. */
#include "kernels/params.h"
#include "kernels/ref/ref.h"
#include "test/fuzz/fuzz_peer.h"
#include "worker/net/dist_internal.h"
#include "worker/net/dist_optimizer_internal.h"
#include "worker/net/rref_internal.h"

enum { WIDTH = 3, OBJECTS_MAX = 24, CONTEXTS_MAX = 3, PIECES_MAX = 12, KEPT_MAX = 8, PAYLOAD_MAX = 1024 };

/* What a byte of a message says. */
enum part { KIND, OBJECT, NUMBER, CONTEXT, SHAPE, CHANGE, PLACE, OVER, PARTS };

static struct backend *backend;
static struct rrefs *rrefs;
static struct dist *dist;
static struct dist_owner *owner;
static struct rref *own; /* an object that the worker's others call */
static unsigned alive;

/* ---- what the worker has ---- */

struct knot {
    struct params *params;
    struct parameter *weight, *bias;
    struct dist_versions *versions; /* NULL: one */
};

static void knot_destroy(void *object)
{
    struct knot *knot = object;
    dist_versions_free(knot->versions);
    params_free(knot->params);
    free(knot);
    require(alive-- > 0);
}

static enum status knot_create(void *context, uint16_t creator, const struct rpc_message *arguments,
                               void **object, struct error *error)
{
    const struct init init = {INIT_UNIFORM, 0.5};
    struct knot *knot = calloc(1, sizeof *knot);
    const bool has_versions = arguments->args[1] % 2 == 1;
    (void)context, (void)creator;
    alive++;
    enum status status = params_new(&knot->params, backend, error);
    if (status == STATUS_OK)
        status = params_add(knot->params, "weight", PARAMETER_TRAINED, SHAPE2(WIDTH, WIDTH), init,
                            &knot->weight, error);
    if (status == STATUS_OK)
        status = params_add(knot->params, "bias", PARAMETER_TRAINED, SHAPE1(WIDTH), init, &knot->bias, error);
    if (status == STATUS_OK)
        status = has_versions ? params_lay_out(knot->params, error) : params_build(knot->params, 1, error);
    if (status == STATUS_OK && has_versions)
        status = dist_versions_new(&knot->versions, knot->params, 2, error);
    require(status == STATUS_OK);
    *object = knot;
    return STATUS_OK;
}

static struct backend *knot_backend(void *object)
{
    (void)object;
    return backend;
}

static struct params *knot_params(void *object)
{
    return ((struct knot *)object)->params;
}

static struct dist_versions *knot_versions(void *object)
{
    return ((struct knot *)object)->versions;
}

static struct variable *knot_map(const struct knot *knot, struct dist_piece *piece)
{
    struct tape *tape = dist_piece_tape(piece);
    struct variable *x = dist_piece_input(piece, 0);
    if (x == NULL || variable_tensor(x)->dtype == DTYPE_I32) {
        dist_fail(piece, STATUS_INVALID, "expected an input");
        return NULL;
    }
    return tape_linear(tape, x, tape_parameter(tape, knot->weight), tape_parameter(tape, knot->bias), false);
}

static void knot_then(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                      uint32_t out_count)
{
    (void)arg;
    dist_return(piece, out, status == STATUS_OK ? out_count : 0);
}

/* 0: the map; 1: the map of the worker's own object of it; 2: the input as it came; 3: never answers; else
 * the numbers' sum. */
static void knot_forward(void *object, struct dist_piece *piece)
{
    struct variable *out = NULL;
    uint32_t count;
    const uint64_t *numbers = dist_piece_numbers(piece, &count);
    const uint32_t function = dist_piece_function(piece);
    float sum = 0;
    if (function == 3)
        return;
    for (uint32_t i = 0; i < count; i++)
        sum += (float)(numbers[i] % 16);
    if (function == 2)
        out = dist_piece_input(piece, 0);
    else if (function > 3)
        out = tape_input(dist_piece_tape(piece), SHAPE0(), DTYPE_F32, "sum", &sum);
    else if ((out = knot_map(object, piece)) == NULL)
        return;
    if (function == 1)
        dist_call_async(piece, own, 0, NULL, 0, &out, 1, knot_then, NULL);
    else
        dist_return(piece, &out, 1);
}

static const struct dist_class knot_rules = {
    .backend = knot_backend, .params = knot_params, .versions = knot_versions, .forward = knot_forward};
static const struct rref_class knot_class = {
    .name = "k", .create = knot_create, .destroy = knot_destroy, .extension = &knot_rules};
static const struct rref_class *const classes[] = {&knot_class, &dist_parameter_class, &dist_optimizer_class};

static void open_worker(void)
{
    struct error error = {0};
    const struct backend_settings settings = {.threads = 1};
    const struct rpc_message one = {0};
    void *knot;
    require(backend_open(&backend, &ref_ops, &settings, &error) == STATUS_OK);
    peer_open_rpc("dist");
    const struct rrefs_config references = {
        .rpc = rpc, .classes = classes, .class_count = 3, .objects_max = OBJECTS_MAX, .references_max = 32};
    require(rrefs_new(&rrefs, &references, &error) == STATUS_OK);
    const struct dist_config config = {
        .rpc = rpc, .rrefs = rrefs, .contexts_max = CONTEXTS_MAX, .pieces_max = PIECES_MAX};
    require(dist_new(&dist, &config, &error) == STATUS_OK);
    require(dist_owner_new(&owner, dist, &error) == STATUS_OK);
    require(knot_create(NULL, SELF, &one, &knot, &error) == STATUS_OK);
    require(rref_own(rrefs, &knot_class, knot, &own, &error) == STATUS_OK);
}

/* ---- what the peer says ---- */

struct request {
    struct wire_header header;
    uint8_t payload[PAYLOAD_MAX];
    size_t payload_bytes;
};

static void add(struct request *request, uint8_t dtype, uint32_t count, const void *data)
{
    struct wire_tensor *tensor = &request->header.tensors[request->header.tensor_count++];
    *tensor = (struct wire_tensor){.dtype = dtype, .rank = 1, .dims = {count}};
    const size_t bytes = wire_tensor_bytes(tensor);
    require(request->payload_bytes + bytes <= PAYLOAD_MAX);
    memcpy(request->payload + request->payload_bytes, data, bytes);
    request->payload_bytes += bytes;
}

/* (rows, WIDTH) floats, or what the shape's other bits make of that. */
static void add_rows(struct request *request, uint8_t shape)
{
    static const float values[4 * WIDTH * 2] = {1, 2, 3};
    add(request, (uint8_t)(WIRE_F32 + (shape >> 4 & 3) * (shape >> 7)), 4 * WIDTH, values);
    struct wire_tensor *tensor = &request->header.tensors[request->header.tensor_count - 1];
    request->payload_bytes -= wire_tensor_bytes(tensor);
    tensor->rank = 2;
    tensor->dims[0] = 1 + (shape & 3);
    tensor->dims[1] = (shape & 4) != 0 ? WIDTH - 1 : WIDTH;
    if ((shape & 8) != 0)
        tensor->rank = 1, tensor->dims[0] = 1, tensor->dims[1] = 0;
    request->payload_bytes += wire_tensor_bytes(tensor);
}

static uint64_t context_number(uint8_t byte)
{
    const uint64_t root = byte < 0xf0 ? PEER : byte & 7;
    return byte == 0xff ? 0 : root << 48 | (uint64_t)1 << 32 | (1u + (byte & 7));
}

static void call(struct request *request, const uint8_t *bytes)
{
    struct forward_flags flags = {
        .depth = 1, .trains = (bytes[SHAPE] & 0x40) == 0, .inputs = 1, .present = 1};
    const uint64_t numbers[2] = {bytes[NUMBER], bytes[OVER]};
    if ((bytes[NUMBER] & 0x40) != 0) {
        add(request, WIRE_U64, 2, numbers);
        flags.numbers = 2;
    }
    add_rows(request, bytes[SHAPE]);
    flags.wanted = flags.trains && (bytes[NUMBER] & 0x20) != 0;
    flags.scalars = (bytes[SHAPE] & 8) != 0;
    request->header.args[FORWARD_FUNCTION] = bytes[NUMBER] >> 2 & 7;
    request->header.args[FORWARD_CALL] = bytes[NUMBER] & 3;
    request->header.args[FORWARD_FLAGS] = flags_pack(&flags) ^ (uint64_t)bytes[CHANGE] << (bytes[PLACE] & 63);
}

static void make_optimizer(struct request *request, const uint8_t *bytes, uint64_t parameter)
{
    const double lr = 0.1;
    const uint32_t count = 1 + (bytes[SHAPE] & 1), indices[2] = {0, 1}, participants[2] = {PEER, 2};
    uint64_t words[NEW_WORDS] = {[NEW_KIND] = bytes[SHAPE] >> 1 & 1,
                                 [NEW_LR] = word_of_double(lr),
                                 [NEW_EPSILON] = word_of_double(lr),
                                 [NEW_ASYNC] = bytes[SHAPE] >> 2 & 1,
                                 [NEW_OWNERS] = 1,
                                 [NEW_TOTAL] = count};
    const uint64_t numbers[2] = {parameter, parameter + 1};
    add(request, WIRE_U64, NEW_WORDS, words);
    add(request, WIRE_U64, count, numbers);
    add(request, WIRE_U32, count, indices);
    add(request, WIRE_U32, 1 + (bytes[SHAPE] >> 3 & 1), participants);
}

static void step(struct request *request, const uint8_t *bytes)
{
    const uint64_t words[STEP_WORDS] = {word_of_double(0.1), (bytes[SHAPE] & 1) != 0 ? word_of_double(1) : 0,
                                        (bytes[SHAPE] & 1) != 0 ? word_of_double(2) : 0, 0};
    add(request, WIRE_U64, STEP_WORDS, words);
}

/* A function of a parameter or an optimizer, with what it takes, or with nothing. */
static void call_object(struct request *request, const uint8_t *bytes)
{
    static const float values[WIDTH * WIDTH] = {1};
    const unsigned what = bytes[NUMBER] % 8;
    request->header.args[1] = what;
    request->header.args[2] = bytes[CHANGE];
    request->header.args[3] = bytes[PLACE];
    if (bytes[SHAPE] >= 0xf0)
        return;
    if ((bytes[SHAPE] & 0x80) != 0)
        add(request, WIRE_F32, (bytes[SHAPE] & 1) != 0 ? WIDTH : WIDTH * WIDTH, values);
    else if (what == PARAMETER_OPTIMIZER && (bytes[SHAPE] & 0x40) != 0)
        make_optimizer(request, bytes, request->header.args[0]);
    else if (what == LOCAL_STEP && (bytes[SHAPE] & 0x40) != 0)
        step(request, bytes);
}

static void drop(struct request *request, const uint8_t *bytes)
{
    const uint64_t calls[3] = {bytes[NUMBER], bytes[NUMBER] + 1u, 0};
    add(request, (bytes[SHAPE] & 0x80) != 0 ? WIRE_U8 : WIRE_U64, 1 + bytes[SHAPE] % 3, calls);
}

static void fill(struct request *request, const uint8_t *bytes, uint64_t newest)
{
    static const uint16_t methods[] = {METHOD_REMOTE, METHOD_FORWARD,     METHOD_FORWARD, METHOD_BACKWARD,
                                       METHOD_DROP,   METHOD_END_CONTEXT, METHOD_RELEASE, METHOD_FETCH,
                                       METHOD_OBJECT, METHOD_OBJECT,      METHOD_OBJECT,  METHOD_PARAMETERS};
    struct wire_header *header = &request->header;
    header->method = methods[bytes[KIND] % (sizeof methods / sizeof methods[0])];
    header->context = context_number(bytes[CONTEXT]);
    header->args[0] = object_number(bytes[OBJECT], newest);
    if (header->method == METHOD_REMOTE) {
        header->args[0] = 0;
        header->args[1] = bytes[NUMBER];
        add(request, WIRE_U8, 1, "k");
    } else if (header->method == METHOD_FORWARD) {
        call(request, bytes);
    } else if (header->method == METHOD_BACKWARD) {
        header->args[BACKWARD_CALL] = bytes[NUMBER] & 3;
        header->args[BACKWARD_OUTPUTS] = 1 ^ (uint64_t)bytes[CHANGE] << (bytes[PLACE] & 63);
        add_rows(request, bytes[SHAPE]);
    } else if (header->method == METHOD_DROP) {
        drop(request, bytes);
    } else if (header->method == METHOD_END_CONTEXT) {
        header->args[END_ABANDONS] = bytes[NUMBER] & 1;
    } else if (header->method == METHOD_RELEASE) {
        header->args[1] = 1 + (bytes[NUMBER] & 1);
    } else if (header->method == METHOD_OBJECT) {
        call_object(request, bytes);
    }
}

/* Takes one message off the input; false: it is used up. */
static bool say_one(struct rpc_session *session, const uint8_t **data, size_t *size, uint64_t newest)
{
    if (*size < PARTS)
        return false;
    const uint8_t *bytes = *data;
    struct request request = {0};
    fill(&request, bytes, newest);
    *data += PARTS;
    *size -= PARTS;
    size_t over = *size < bytes[OVER] ? *size : bytes[OVER];
    over = over < request.payload_bytes ? over : request.payload_bytes;
    for (size_t i = 0; i < over; i++)
        request.payload[i] ^= (*data)[i];
    *data += over;
    *size -= over;
    peer_say(session, &request.header, request.payload);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rref_counts references;
    struct dist_counts counts;
    if (rpc == NULL)
        open_worker();
    struct rpc_session *session = peer_open_session();
    while (session->is_live && say_one(session, &data, &size, rrefs->last_number)) {
        if (size % 4 != 0)
            peer_turn(session);
        dist_counts(dist, &counts);
        require(counts.contexts <= CONTEXTS_MAX && counts.pieces <= PIECES_MAX);
    }
    rpc_peer_died(rpc, PEER, "the input is over");
    for (unsigned i = 0; i < 8; i++)
        rpc_turn(rpc, (struct monotime){1});
    dist_counts(dist, &counts);
    rrefs_counts(rrefs, &references);
    require(counts.contexts == 0 && counts.pieces == 0);
    require(alive == 1 && references.objects == 1 && references.references == 1 && references.users == 0);
    require(owner->owned == NULL && owner->locals == NULL);
    return 0;
}
