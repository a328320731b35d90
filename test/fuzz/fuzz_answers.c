/* A worker that does what a trainer does, with two peers that answer anything: it makes objects on them and
 * calls those within contexts, walks back, fetches, shares, takes parameters and makes optimizers of them and
 * steps, and its own object calls theirs. Whatever comes, and whoever goes in the middle of it, each function
 * ends with a status, and says of a failure which; and when all handles are given back and the peers have
 * gone, nothing is left: neither a context, nor a call, nor a reference, nor a future.
 *
 * The input is a row of actions of the worker, 8 bytes each (enum acting), and in between of messages, which
 * fuzz_answer.h describes: these say what the peers do other than to answer honestly. */
#include "test/fuzz/fuzz_endpoint.h"

#include <sys/mman.h>

enum { REFS = 8, FUTURES = 4, OPTIMIZERS = 2, CONTEXTS = 2, VALUES = WIDTH * WIDTH };

/* What a byte of an action says. */
enum acting { ACT_WHAT, ACT_REF, ACT_OTHER, ACT_HOW, ACT_INPUT, ACT_CONTEXT, ACT_NUMBER, ACT_LATER };

static struct segment outbox;
static struct tape *tapes[CONTEXTS];
static struct dist_context *contexts[CONTEXTS];
static struct variable *inputs[CONTEXTS];
static struct variable *outputs[CONTEXTS], *before[CONTEXTS]; /* of the newest call, and of that before */
static struct rref *refs[REFS];
static struct future *futures[FUTURES];
static struct dist_optimizer *optimizers[OPTIMIZERS];
static unsigned refs_next, futures_next;

/* ---- the worker ---- */

/* Handles go round: the oldest is given back. */
static void keep_ref(struct rref *ref)
{
    struct rref **place = &refs[refs_next++ % REFS];
    rref_release(*place);
    *place = ref;
}

static void keep_future(struct future *future)
{
    struct future **place = &futures[futures_next++ % FUTURES];
    if (*place != NULL)
        future_release(*place);
    *place = future;
}

static void on_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    (void)context, (void)tag;
    require(from != SELF || rref_ready(rref, NULL) != STATUS_AGAIN);
    keep_ref(rref);
}

static void open_segment(struct segment *segment, unsigned worker, size_t bytes)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int at = SEGMENT_FD_FIRST + (int)worker;
    require(fd >= 0 && dup2(fd, at) == at);
    if (fd != at)
        close(fd);
    require(segment_create(segment, (uint16_t)worker, bytes, NULL) == STATUS_OK);
}

static void open_all(void)
{
    struct segment theirs;
    open_segment(&outbox, SELF, 16 << 20);
    for (unsigned worker = 1; worker <= PEERS; worker++)
        open_segment(&theirs, worker, LENT_BYTES);
    peer_open_rpc("answers", &outbox);
    open_worker(&outbox, on_taken);
    const struct arena_source source = dist_arena_source(dist);
    for (unsigned i = 0; i < CONTEXTS; i++)
        require(tape_new_in(&tapes[i], backend, &source, NULL) == STATUS_OK);
}

/* ---- what is required of every function ---- */

static bool is_well(enum status status, const struct error *error)
{
    require(status >= STATUS_OK && status < STATUS_COUNT && status != STATUS_AGAIN);
    require(status == STATUS_OK || error->status == status);
    return status == STATUS_OK;
}

/* Reads what a value is said to have: the address sanitizer sees whether it has. */
static void look_at(const struct rpc_message *value)
{
    require(value != NULL);
    for (unsigned i = 0; i < value->tensor_count; i++) {
        const volatile uint8_t *data = value->data[i];
        const size_t bytes = wire_tensor_bytes(&value->tensors[i]);
        (void)data[0];
        (void)data[bytes / 2];
        (void)data[bytes - 1];
    }
}

static void wait_or_keep(struct future *future, bool waits)
{
    struct error error = {0};
    keep_future(future);
    if (waits && is_well(rpc_wait(rpc, future, &error), &error))
        look_at(future_value(future));
}

/* ---- references ---- */

static struct rref *ref_of(uint8_t byte)
{
    return (byte & 0xf) == 0xf ? own : refs[byte % REFS];
}

/* Until it is ready, or for some turns; or not at all. */
static void act_remote(const uint8_t *bytes)
{
    static const char *const names[4] = {"k", "k", "parameter", "nothing"};
    const struct rpc_message arguments = {.args = {0, bytes[ACT_NUMBER]}};
    struct rref *ref;
    struct error error = {0};
    if (!is_well(rpc_remote(rrefs, bytes[ACT_OTHER] % WORKERS, names[bytes[ACT_HOW] & 3], &arguments, &ref,
                            &error),
                 &error))
        return;
    keep_ref(ref);
    for (unsigned i = 0; i < 8 && rref_ready(ref, NULL) == STATUS_AGAIN && bytes[ACT_LATER] == 0; i++)
        rpc_turn(rpc, (struct monotime){1});
}

static void act_share(struct rref *ref, const uint8_t *bytes)
{
    struct future *future;
    struct error error = {0};
    if (is_well(rref_share(ref, bytes[ACT_OTHER] % WORKERS, bytes[ACT_NUMBER], &future, &error), &error))
        wait_or_keep(future, bytes[ACT_LATER] == 0);
}

static void act_object(struct rref *ref, const uint8_t *bytes)
{
    struct future *future;
    struct error error = {0};
    const struct rpc_message message = {.args = {0, 0, bytes[ACT_NUMBER], bytes[ACT_INPUT]}};
    if (is_well(rref_call(ref, bytes[ACT_HOW] % 8, &message, MONOTIME_NEVER, &future, &error), &error))
        wait_or_keep(future, bytes[ACT_LATER] == 0);
}

static void act_release(const uint8_t *bytes)
{
    struct rref **place = &refs[bytes[ACT_REF] % REFS];
    if ((bytes[ACT_HOW] & 1) != 0 && *place != NULL) {
        keep_ref(rref_copy(*place));
        return;
    }
    rref_release(*place);
    *place = NULL;
}

static void act_link(struct rref *ref)
{
    if (called != own)
        rref_release(called);
    called = ref == own ? own : rref_copy(ref);
}

/* ---- contexts ---- */

static void end_context(unsigned which)
{
    dist_context_free(contexts[which]);
    contexts[which] = NULL;
    inputs[which] = outputs[which] = before[which] = NULL;
}

static void act_begin(unsigned which, const uint8_t *bytes)
{
    struct error error = {0};
    const enum tape_mode mode = (bytes[ACT_HOW] & 1) != 0 ? TAPE_INFER : TAPE_TRAIN;
    end_context(which);
    if (!is_well(dist_context_new(&contexts[which], dist, mode, tapes[which], &error), &error))
        contexts[which] = NULL;
}

enum input { INPUT_SMALL, INPUT_LARGE, INPUT_NEWEST, INPUT_BEFORE, INPUT_INDICES, INPUT_SCALAR };

static struct variable *input_of(unsigned which, enum input kind)
{
    static const float values[ROWS_LARGE * WIDTH] = {1, 2, 3};
    static const int32_t indices[2 * WIDTH] = {1, 2, 0};
    if (kind == INPUT_NEWEST && outputs[which] != NULL)
        return outputs[which];
    if (kind == INPUT_BEFORE && before[which] != NULL)
        return before[which];
    if (kind == INPUT_INDICES)
        return tape_input(tapes[which], SHAPE2(2, WIDTH), DTYPE_I32, "indices", indices);
    const uint32_t rows = kind == INPUT_LARGE ? ROWS_LARGE : 2;
    const struct shape shape = kind == INPUT_SCALAR ? SHAPE0() : SHAPE2(rows, WIDTH);
    struct variable *input = tape_input(tapes[which], shape, DTYPE_F32, "x", values);
    if (input != NULL)
        tape_want_gradient(input);
    inputs[which] = input;
    return input;
}

static void act_call(unsigned which, struct rref *ref, const uint8_t *bytes)
{
    static const uint64_t numbers[DIST_NUMBERS_MAX] = {1};
    struct variable *in[DIST_INPUTS_MAX] = {NULL}, *out[DIST_OUTPUTS_MAX] = {NULL};
    const uint32_t in_count = 1 + (bytes[ACT_INPUT] >> 6) % DIST_INPUTS_MAX;
    const bool is_own = rref_owner(ref) == SELF; /* whose function 3 never answers */
    const uint32_t function = bytes[ACT_HOW] % 8 == 3 && is_own ? 0 : bytes[ACT_HOW] % 8;
    const uint32_t out_count = bytes[ACT_HOW] >> 4 != 0 ? (bytes[ACT_HOW] >> 4) % 4 : 1;
    if (contexts[which] == NULL)
        return;
    in[0] = input_of(which, bytes[ACT_INPUT] & 7);
    if (in_count > 1)
        in[in_count - 1] = input_of(which, bytes[ACT_INPUT] >> 3 & 7);
    const enum status status =
        dist_call(contexts[which], ref, function, numbers, bytes[ACT_NUMBER] % (DIST_NUMBERS_MAX + 1), in,
                  in_count, out, out_count);
    struct error error = {0};
    is_well(status, &(struct error){.status = status});
    require(status == STATUS_OK || tape_status(tapes[which], &error) != STATUS_OK);
    for (uint32_t i = 0; i < out_count; i++)
        require((status == STATUS_OK) == (out[i] != NULL));
    before[which] = outputs[which];
    outputs[which] = out_count > 0 ? out[0] : NULL;
}

/* From the newest output, or from a map of it. */
static void act_backward(unsigned which, const uint8_t *bytes)
{
    struct error error = {0};
    struct variable *loss = outputs[which];
    if (contexts[which] == NULL)
        return;
    if (loss != NULL && (bytes[ACT_HOW] & 1) == 0)
        loss = tape_sum(tapes[which], loss, NULL, 1);
    outputs[which] = before[which] = NULL;
    if (is_well(dist_backward(contexts[which], loss, &error), &error) && inputs[which] != NULL) {
        const struct tensor *gradient = variable_gradient(inputs[which]);
        require(gradient == NULL || shape_equal(&gradient->shape, &variable_tensor(inputs[which])->shape));
    }
}

/* ---- parameters and optimizers ---- */

static void act_parameters(struct rref *ref)
{
    struct rref *found[DIST_PARAMETERS_MAX];
    struct error error = {0};
    uint32_t count = 0;
    if (!is_well(dist_parameters(dist, ref, found, &count, &error), &error))
        return;
    require(count >= 1 && count <= DIST_PARAMETERS_MAX);
    for (uint32_t i = 0; i < count; i++)
        keep_ref(found[i]);
}

static void act_parameter(struct rref *ref, const uint8_t *bytes)
{
    struct error error = {0};
    float values[VALUES] = {0};
    const size_t count = (bytes[ACT_NUMBER] & 1) != 0 ? WIDTH : VALUES;
    enum status status;
    if ((bytes[ACT_HOW] & 3) <= 1)
        status = dist_parameter_get(dist, ref, bytes[ACT_OTHER] % 3, values, count, &error);
    else
        status = dist_parameter_set(ref, bytes[ACT_OTHER] % 3, values, count, &error);
    is_well(status, &error);
}

static void act_optimizer(const uint8_t *bytes)
{
    static const uint16_t participants[3] = {0, 1, 2};
    struct dist_optimizer **place = &optimizers[bytes[ACT_CONTEXT] % OPTIMIZERS];
    struct rref *parameters[3] = {ref_of(bytes[ACT_REF]), ref_of(bytes[ACT_OTHER]), ref_of(bytes[ACT_INPUT])};
    const uint32_t count = 1 + bytes[ACT_NUMBER] % 3;
    struct error error = {0};
    struct dist_optimizer_config config = {
        .settings = {.kind = (bytes[ACT_HOW] & 1) != 0 ? OPTIMIZER_ADAM : OPTIMIZER_SGD,
                     .sgd = {.lr = 0.1, .momentum = 0.5},
                     .adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8}},
        .async = (bytes[ACT_HOW] & 2) != 0,
        .participants = participants,
        .participant_count = 1 + (bytes[ACT_HOW] >> 2) % 3};
    for (uint32_t i = 0; i < count; i++)
        if (parameters[i] == NULL)
            return;
    dist_optimizer_free(*place);
    *place = NULL;
    if (!is_well(dist_optimizer_new(place, dist, &config, parameters, count, &error), &error))
        require(*place == NULL);
}

/* The newest references of this worker, with the same handle twice where there are not so many. */
static void act_join(const uint8_t *bytes)
{
    struct dist_optimizer **place = &optimizers[bytes[ACT_CONTEXT] % OPTIMIZERS];
    struct rref *locals[2] = {ref_of(bytes[ACT_REF]), ref_of(bytes[ACT_OTHER])};
    struct error error = {0};
    if (locals[0] == NULL || locals[1] == NULL)
        return;
    dist_optimizer_free(*place);
    *place = NULL;
    if (!is_well(dist_optimizer_join(place, dist, locals, 1 + bytes[ACT_NUMBER] % 2, &error), &error))
        require(*place == NULL);
}

static void act_step(struct dist_optimizer *optimizer, unsigned which, const uint8_t *bytes)
{
    struct dist_step step = {.lr = 0.1, .max_norm = bytes[ACT_HOW] & 1, .last = (bytes[ACT_HOW] & 2) != 0};
    struct error error = {0};
    if (contexts[which] != NULL)
        is_well(dist_optimizer_step(optimizer, contexts[which], &step, &error), &error);
}

static void act_state(struct dist_optimizer *optimizer, const uint8_t *bytes)
{
    struct error error = {0};
    enum status status =
        (bytes[ACT_HOW] & 1) != 0
            ? dist_optimizer_steps_set(optimizer, bytes[ACT_NUMBER], &error)
            : dist_optimizer_share(optimizer, bytes[ACT_OTHER] % WORKERS, bytes[ACT_NUMBER], &error);
    is_well(status, &error);
}

/* ---- an input ---- */

static void act_on_ref(struct rref *ref, const uint8_t *bytes)
{
    switch (bytes[ACT_WHAT] % 16) {
    case 2:
        act_share(ref, bytes);
        break;
    case 3:
        act_object(ref, bytes);
        break;
    case 4:
        act_link(ref);
        break;
    case 5:
        act_call(bytes[ACT_CONTEXT] % CONTEXTS, ref, bytes);
        break;
    case 6:
        act_parameters(ref);
        break;
    default:
        act_parameter(ref, bytes);
    }
}

static void act(const uint8_t *bytes)
{
    const unsigned context = bytes[ACT_CONTEXT] % CONTEXTS, what = bytes[ACT_WHAT] % 16;
    struct dist_optimizer *optimizer = optimizers[bytes[ACT_REF] % OPTIMIZERS];
    if (what == 0)
        act_remote(bytes);
    else if (what < 8 && ref_of(bytes[ACT_REF]) != NULL)
        act_on_ref(ref_of(bytes[ACT_REF]), bytes);
    else if (what == 8)
        act_begin(context, bytes);
    else if (what == 9)
        act_backward(context, bytes);
    else if (what == 10)
        end_context(context);
    else if (what == 11)
        act_optimizer(bytes);
    else if (what == 12 && optimizer != NULL)
        act_step(optimizer, context, bytes);
    else if (what == 13 && optimizer != NULL)
        act_state(optimizer, bytes);
    else if (what == 14)
        act_join(bytes);
    else if (what == 15 && (bytes[ACT_OTHER] & 1) != 0)
        act_release(bytes);
    else if (what == 15)
        rpc_turn(rpc, (struct monotime){1});
}

static void begin(const uint8_t *data, size_t size)
{
    input = data;
    input_left = size;
    asked_count = made_count = 0;
    memset(asked, 0, sizeof asked);
    memset(made, 0, sizeof made);
    leaving.header.body_bytes = leaving.offset = 0;
    memset(is_full, 0, sizeof is_full);
    memset(is_cut, 0, sizeof is_cut);
    all_leave = false;
    idle_looks = refs_next = futures_next = 0;
    dist->lost = (struct error){0}; // by the end of the input before
    greeter = 1;
    rpc_turn(rpc, (struct monotime){1});
}

static void give_all_back(void)
{
    act_link(own);
    for (unsigned i = 0; i < CONTEXTS; i++)
        end_context(i);
    for (unsigned i = 0; i < OPTIMIZERS; i++) {
        dist_optimizer_free(optimizers[i]);
        optimizers[i] = NULL;
    }
    for (unsigned i = 0; i < FUTURES; i++)
        keep_future(NULL);
    for (unsigned i = 0; i < REFS; i++)
        keep_ref(NULL);
}

/* Of the caller's side, beside what require_nothing_left looks at. */
static void require_no_call_left(void)
{
    size_t free_count = 0;
    for (const struct future *future = rpc->free_futures; future != NULL; future = future->next)
        free_count++;
    require(rpc->pending == 0 && rpc->open == NULL && free_count == rpc->future_count);
    require(rpc->notices == NULL);
    for (unsigned worker = 0; worker < WORKERS; worker++)
        require(rpc->peers[worker].bodies.bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dist_counts counts;
    struct rref_counts references;
    const uint8_t *bytes;
    if (rpc == NULL)
        open_all();
    begin(data, size);
    while ((bytes = next_record(false)) != NULL || input_left >= SAYINGS) {
        if (bytes != NULL)
            act(bytes);
        else if (all_leave)
            drop_record();
        else
            rpc_turn(rpc, (struct monotime){1});
        dist_counts(dist, &counts);
        rrefs_counts(rrefs, &references);
        require(counts.contexts <= CONTEXTS_MAX && counts.pieces <= PIECES_MAX);
        require(references.references <= REFERENCES_MAX && references.objects <= OBJECTS_MAX);
    }
    give_all_back();
    memset(is_full, 0, sizeof is_full);
    all_leave = true;
    for (unsigned i = 0; i < 16; i++) {
        give_all_back(); /* what was on its way may have been taken meanwhile */
        rpc_turn(rpc, (struct monotime){1});
    }
    require_nothing_left();
    require_no_call_left();
    return 0;
}
