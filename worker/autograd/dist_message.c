/* Moves tensors between tapes and messages, packs FORWARD's flags, and gives arenas memory that other workers
 * can read. A tensor in a message is canonical, float32 or int32, in host memory. A tensor that lies so
 * already is neither copied nor converted. */
#include "worker/autograd/dist_message.h"
#include "kernels/base/arena.h"

#include <assert.h>
#include <string.h>

/* A received frame may lie at any address; tensors that are computed on lie at multiples of 64. */
static bool is_aligned(const void *data, size_t alignment)
{
    return (uintptr_t)data % alignment == 0;
}

/* ---- shapes ---- */

static struct wire_tensor describe(const struct tensor *tensor)
{
    struct wire_tensor wire = {.dtype = tensor->dtype == DTYPE_I32 ? WIRE_U32 : WIRE_F32,
                               .rank = tensor->shape.rank == 0 ? 1 : (uint8_t)tensor->shape.rank,
                               .dims = {1}};
    for (uint32_t i = 0; i < tensor->shape.rank; i++)
        wire.dims[i] = tensor->shape.size[i];
    return wire;
}

static bool has_one_element(const struct wire_tensor *wire)
{
    return wire->rank == 1 && wire->dims[0] == 1;
}

static struct shape shape_of(const struct wire_tensor *wire, bool is_scalar)
{
    struct shape shape = {.rank = is_scalar && has_one_element(wire) ? 0 : wire->rank};
    for (uint32_t i = 0; i < shape.rank; i++)
        shape.size[i] = wire->dims[i];
    return shape;
}

static enum dtype host_dtype(const struct wire_tensor *wire)
{
    return wire->dtype == WIRE_U32 ? DTYPE_I32 : DTYPE_F32;
}

bool wire_tensor_is_sound(const struct wire_tensor *tensor, bool is_scalar)
{
    const struct shape shape = shape_of(tensor, false);
    return (tensor->dtype == WIRE_F32 || tensor->dtype == WIRE_U32) && shape_elements(&shape) > 0 &&
           (!is_scalar || has_one_element(tensor));
}

bool message_is_large(const struct rpc_message *message)
{
    for (uint32_t i = 0; i < message->tensor_count; i++)
        if (wire_tensor_bytes(&message->tensors[i]) >= RPC_LEND_BYTES)
            return true;
    return false;
}

/* ---- from a tape into a message ---- */

enum status message_put_tensor(struct tape *tape, struct arena *staging, const struct tensor *tensor,
                               bool in_place, struct rpc_message *message, void **block, struct error *error)
{
    struct backend *backend = tape_backend(tape);
    const uint32_t index = message->tensor_count;
    char shape[SHAPE_TEXT_BYTES];
    assert(index < WIRE_TENSORS_MAX);
    *block = NULL;
    message->tensors[index] = describe(tensor);
    if (wire_tensor_bytes(&message->tensors[index]) > WIRE_BODY_BYTES_MAX)
        return error_set(error, STATUS_INVALID,
                         "a tensor of shape %s has more than the %d bytes of a message",
                         shape_text(&tensor->shape, shape), WIRE_BODY_BYTES_MAX);
    message->data[index] = tensor->data;
    message->tensor_count++;
    if (in_place && backend->ops->host && tensor->layout == NULL && tensor->dtype != DTYPE_F64)
        return STATUS_OK;
    struct tensor copy;
    const enum dtype dtype = host_dtype(&message->tensors[index]);
    enum status status = tensor_new(&copy, staging, tensor->shape, dtype, tensor->name, error);
    if (status != STATUS_OK)
        return status;
    *block = copy.data;
    message->data[index] = copy.data;
    return backend_download(backend, tensor, dtype, copy.data, error);
}

/* ---- from a message into a tape ---- */

/* Values of a frame that are not aligned to their size are copied to an aligned block first. */
static enum status upload(struct tape *tape, struct arena *staging, const struct wire_tensor *wire,
                          const void *data, struct tensor *to, struct error *error)
{
    struct backend *backend = tape_backend(tape);
    const enum dtype dtype = host_dtype(wire);
    if (is_aligned(data, dtype_bytes(dtype)))
        return backend_upload(backend, to, dtype, data, error);
    const size_t bytes = wire_tensor_bytes(wire);
    void *aligned = arena_take(staging, bytes);
    if (aligned == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu bytes that have arrived", bytes);
    memcpy(aligned, data, bytes);
    enum status status = backend_upload(backend, to, dtype, aligned, error);
    arena_release(staging, aligned);
    return status;
}

/* Lent memory is only read; struct tensor has no const. */
static void *readable(const void *data)
{
    union {
        const void *given;
        void *taken;
    } pointer = {.given = data};
    return pointer.taken;
}

/* Floating values may be read in the lender's memory: a lender that changes them makes the result wrong, no
 * more. Indices are checked once and must not change after that, so they are always copied. */
static bool is_taken_in_place(const struct rpc_message *message, uint32_t index,
                              const struct backend_ops *ops)
{
    return (message->lent >> index & 1) && ops->host && ops->dtype == DTYPE_F32 &&
           message->tensors[index].dtype == WIRE_F32 && is_aligned(message->data[index], ARENA_ALIGNMENT);
}

enum status message_take_tensor(struct tape *tape, struct arena *staging, const struct rpc_message *message,
                                uint32_t index, bool is_scalar, struct tensor *out, struct error *error)
{
    const struct wire_tensor *wire = &message->tensors[index];
    const struct backend_ops *ops = tape_backend(tape)->ops;
    const enum dtype dtype = host_dtype(wire);
    const struct shape shape = shape_of(wire, is_scalar);
    const void *data = message->data[index];
    if (is_taken_in_place(message, index, ops)) {
        *out = (struct tensor){
            .shape = shape, .dtype = dtype, .data = readable(data), .bytes = wire_tensor_bytes(wire)};
        return STATUS_OK;
    }
    enum status status =
        tensor_new(out, tape_arena(tape), shape, dtype == DTYPE_I32 ? DTYPE_I32 : ops->dtype, NULL, error);
    return status == STATUS_OK ? upload(tape, staging, wire, data, out, error) : status;
}

enum status message_copy_tensor(struct tape *tape, struct arena *staging, const struct rpc_message *message,
                                uint32_t index, struct tensor *to, struct error *error)
{
    const struct wire_tensor *wire = &message->tensors[index];
    const struct shape shape = shape_of(wire, to->shape.rank == 0);
    char got[SHAPE_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    if (wire->dtype != WIRE_F32 || !shape_equal(&shape, &to->shape))
        return error_set(error, STATUS_INVALID, "a gradient of shape %s, expected float32 %s",
                         shape_text(&shape, got), shape_text(&to->shape, expected));
    return upload(tape, staging, wire, message->data[index], to, error);
}

/* ---- tensors of rank 1 ---- */

void message_add(struct rpc_message *message, enum wire_dtype dtype, const void *data, uint32_t count)
{
    const uint8_t index = message->tensor_count++;
    message->tensors[index] = (struct wire_tensor){.dtype = (uint8_t)dtype, .rank = 1, .dims = {count}};
    message->data[index] = data;
}

uint32_t message_flat(const struct rpc_message *message, uint32_t index, enum wire_dtype dtype)
{
    const struct wire_tensor *tensor = &message->tensors[index];
    return index < message->tensor_count && tensor->dtype == dtype && tensor->rank == 1 ? tensor->dims[0] : 0;
}

/* ---- flags ---- */

enum { MASK = (1 << DIST_INPUTS_MAX) - 1 };

uint64_t flags_pack(const struct forward_flags *flags)
{
    return (uint64_t)flags->depth | (uint64_t)flags->trains << 8 | (uint64_t)flags->inputs << 12 |
           (uint64_t)flags->present << 16 | (uint64_t)flags->wanted << 20 | (uint64_t)flags->scalars << 24 |
           (uint64_t)flags->numbers << 32;
}

/* Whether the message has exactly the tensors that the flags name. */
static bool tensors_match(const struct rpc_message *message, const struct forward_flags *flags)
{
    uint32_t at = flags->numbers > 0;
    if (flags->numbers > 0 && message_flat(message, 0, WIRE_U64) != flags->numbers)
        return false;
    for (uint32_t i = 0; i < DIST_INPUTS_MAX; i++) {
        if (!(flags->present >> i & 1))
            continue;
        const struct wire_tensor *tensor = &message->tensors[at];
        if (at++ >= message->tensor_count || !wire_tensor_is_sound(tensor, flags->scalars >> i & 1))
            return false;
        if ((flags->wanted >> i & 1) && tensor->dtype != WIRE_F32)
            return false;
    }
    return at == message->tensor_count;
}

bool flags_unpack(const struct rpc_message *message, struct forward_flags *flags)
{
    const uint64_t bits = message->args[FORWARD_FLAGS];
    *flags = (struct forward_flags){.depth = bits & 0xff,
                                    .trains = bits >> 8 & 1,
                                    .inputs = bits >> 12 & 3,
                                    .present = bits >> 16 & MASK,
                                    .wanted = bits >> 20 & MASK,
                                    .scalars = bits >> 24 & MASK,
                                    .numbers = bits >> 32 & 31,
                                    .function = (uint32_t)message->args[FORWARD_FUNCTION]};
    if (flags_pack(flags) != bits || message->args[FORWARD_FUNCTION] > UINT32_MAX || flags->depth == 0 ||
        flags->numbers > DIST_NUMBERS_MAX)
        return false;
    if (flags->present >> flags->inputs != 0 || (flags->wanted & ~flags->present) != 0 ||
        (flags->scalars & ~flags->present) != 0 || (flags->wanted != 0 && !flags->trains))
        return false;
    return tensors_match(message, flags);
}

/* ---- memory that other workers can read ----
 * Chunks are blocks of one arena, the heap, whose only chunk is the whole outbox: first fit, neighbours
 * merged. A large chunk that is given back leaves a hole in the memory file. When the outbox is full, chunks
 * come from host memory, and tensors there are copied instead of lent. */

enum { DISCARD_BYTES_MIN = 256 << 10 };

/* The heap's own chunk: all of the segment, or nothing. */
static void *segment_take(void *context, size_t bytes)
{
    struct dist_memory *memory = context;
    if (memory->is_taken || bytes > memory->segment->bytes)
        return NULL;
    memory->is_taken = true;
    return memory->segment->data;
}

static void segment_give(void *context, void *chunk, size_t bytes)
{
    struct dist_memory *memory = context;
    (void)chunk;
    (void)bytes;
    memory->is_taken = false;
}

/* An empty arena takes one chunk as large as its largest step so far. Taking and releasing one block of the
 * segment's size makes that chunk the whole segment. */
enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error)
{
    *memory = (struct dist_memory){.segment = segment};
    if (segment == NULL)
        return STATUS_OK;
    const struct arena_source whole = {
        .context = memory, .take = segment_take, .give = segment_give, .poison = arena_host.poison};
    enum status status = arena_new(&memory->heap, &whole, error);
    if (status != STATUS_OK)
        return status;
    arena_poison(memory->heap, false); // the arenas on top poison their blocks
    void *all = arena_take(memory->heap, segment->bytes);
    if (all == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the outbox's heap");
    arena_release(memory->heap, all);
    return STATUS_OK;
}

void memory_free(struct dist_memory *memory)
{
    arena_free(memory->heap);
    memory->heap = NULL;
}

static bool is_inside(const struct dist_memory *memory, const void *chunk)
{
    const struct segment *segment = memory->segment;
    const unsigned char *at = chunk;
    return segment != NULL && at >= segment->data && at < segment->data + segment->bytes;
}

static void *chunk_take(void *context, size_t bytes)
{
    struct dist_memory *memory = context;
    void *chunk = memory->heap != NULL ? arena_take(memory->heap, bytes) : NULL;
    return chunk != NULL ? chunk : arena_host.take(arena_host.context, bytes);
}

static void chunk_give(void *context, void *chunk, size_t bytes)
{
    struct dist_memory *memory = context;
    if (!is_inside(memory, chunk)) {
        arena_host.give(arena_host.context, chunk, bytes);
        return;
    }
    arena_release(memory->heap, chunk);
    if (bytes >= DISCARD_BYTES_MIN)
        segment_discard(memory->segment, chunk, bytes);
}

struct arena_source memory_source(struct dist_memory *memory)
{
    return (struct arena_source){
        .context = memory, .take = chunk_take, .give = chunk_give, .poison = arena_host.poison};
}
