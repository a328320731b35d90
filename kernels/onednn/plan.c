/* Builds, finds and runs plans. A plan is cached under the call's shapes, layouts and attributes. Running a
 * plan only sets new data addresses.
 *
 * Errors stick to a builder: after the first failure each of its functions does nothing, so that building an
 * operation reads as a list of its parts. */
#include "kernels/onednn/onednn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLAN_SLOTS_MAX = 32,
    PLAN_STEPS_MAX = 16,
    PLAN_ARGUMENTS_MAX = 12,
    PLAN_DESCRIPTORS_MAX = 16,
    PLAN_TENSORS = 2 * (OP_INPUTS_MAX + OP_OUTPUTS_MAX),
    PLANS_MAX = 1024, /* then all are forgotten: shapes that come and go must not fill the memory */
};

/* All that a plan depends on, as numbers: operation and flags, attributes, the tensors that are present and
 * have memory, the inputs' shapes, and all layouts. */
enum {
    KEY_OPERATION,
    KEY_KERNEL,
    KEY_STRIDE,
    KEY_PADDING,
    KEY_EPSILON,
    KEY_PRESENT, /* bit t: tensor t is there; in, out, dout, din in this order */
    KEY_GIVEN,   /* bit t: tensor t has memory */
    KEY_SHAPES,  /* three words each */
    KEY_LAYOUTS = KEY_SHAPES + 3 * OP_INPUTS_MAX,
    KEY_WORDS = KEY_LAYOUTS + PLAN_TENSORS
};
struct plan_key {
    uint64_t word[KEY_WORDS];
};

/* One tensor or piece of scratch as the library sees it. */
struct plan_slot {
    enum place place;
    uint32_t index; /* in the call's array */
    size_t offset;  /* of scratch */
    size_t bytes;
    const void *token; /* of an output, for when it is allocated */
    dnnl_memory_t memory;
};

struct plan_step {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[PLAN_ARGUMENTS_MAX];
};

struct plan {
    struct plan *next;
    struct plan_key key;
    uint32_t slots, steps;
    struct plan_slot slot[PLAN_SLOTS_MAX];
    struct plan_step step[PLAN_STEPS_MAX];
    size_t copies_bytes, pad_bytes;
    uint32_t wanted_input; /* the input that builder_want named */
    const void *wanted;    /* the layout in which that input would be fastest; NULL: none was named */
};

/* A copy into the caller's layout, made after all steps. */
struct builder_late {
    const struct plan_slot *from, *to;
};

struct builder {
    struct onednn *onednn;
    struct plan *plan;
    const struct op_call *call;
    const char *name;
    const struct shape *shape;
    enum status status;
    struct error *error;
    uint32_t descriptors, lates;
    dnnl_primitive_desc_t descriptor[PLAN_DESCRIPTORS_MAX];
    struct builder_late late[OP_INPUTS_MAX];
};

/* ---- building ---- */

static bool builder_failed(const struct builder *builder)
{
    return builder->status != STATUS_OK;
}

/* Whether the call succeeded; remembers the first failure. */
static bool builder_try(struct builder *builder, dnnl_status_t result, const char *call)
{
    if (builder->status == STATUS_OK)
        builder->status = onednn_check(result, call, builder->name, builder->shape, builder->error);
    return builder->status == STATUS_OK;
}

/* ---- descriptors of primitives ---- */

static dnnl_primitive_desc_t builder_keep(struct builder *builder, dnnl_primitive_desc_t descriptor)
{
    assert(builder->descriptors < PLAN_DESCRIPTORS_MAX);
    builder->descriptor[builder->descriptors++] = descriptor;
    return descriptor;
}

dnnl_primitive_desc_t builder_describe(struct builder *builder, dnnl_status_t made, const void *operation,
                                       dnnl_primitive_desc_t hint)
{
    dnnl_primitive_desc_t descriptor = NULL;
    if (!builder_try(builder, made, "operation descriptor") ||
        !builder_try(builder,
                     dnnl_primitive_desc_create(&descriptor, operation, builder->onednn->attributes,
                                                builder->onednn->engine, hint),
                     "dnnl_primitive_desc_create"))
        return NULL;
    return builder_keep(builder, descriptor);
}

const dnnl_memory_desc_t *builder_query(struct builder *builder, dnnl_primitive_desc_t descriptor,
                                        int argument)
{
    static const dnnl_memory_desc_t none;
    const dnnl_memory_desc_t *desc = NULL;
    if (!builder_failed(builder))
        desc = dnnl_primitive_desc_query_md(descriptor, dnnl_query_exec_arg_md, argument);
    return desc == NULL ? &none : desc;
}

/* ---- slots, and the steps that use them ---- */

/* The call's array of tensors for `place`; the key's bits follow this order. */
static struct tensor *const *plan_tensors(const struct op_call *call, enum place place, uint32_t *count)
{
    *count = place == PLACE_OUT || place == PLACE_DOUT ? OP_OUTPUTS_MAX : OP_INPUTS_MAX;
    switch (place) {
    case PLACE_IN:
        return call->in;
    case PLACE_OUT:
        return call->out;
    case PLACE_DOUT:
        return call->dout;
    case PLACE_DIN:
        return call->din;
    default:
        *count = 0;
        return NULL;
    }
}

static struct plan_slot *builder_slot(struct builder *builder, enum place place, uint32_t index,
                                      const dnnl_memory_desc_t *desc)
{
    struct plan *plan = builder->plan;
    assert(plan->slots < PLAN_SLOTS_MAX);
    struct plan_slot *slot = &plan->slot[plan->slots++];
    *slot = (struct plan_slot){.place = place, .index = index, .bytes = dnnl_memory_desc_get_size(desc)};
    builder_try(builder, dnnl_memory_create(&slot->memory, desc, builder->onednn->engine, DNNL_MEMORY_NONE),
                "dnnl_memory_create");
    if (place == PLACE_SCRATCH) {
        slot->offset = plan->copies_bytes;
        plan->copies_bytes += (slot->bytes + 63) & ~(size_t)63;
    }
    return slot;
}

static void builder_add_step(struct builder *builder, dnnl_primitive_desc_t descriptor,
                             const dnnl_exec_arg_t *arguments, int count)
{
    struct plan *plan = builder->plan;
    if (builder_failed(builder))
        return;
    assert(plan->steps < PLAN_STEPS_MAX && count < PLAN_ARGUMENTS_MAX);
    struct plan_step *step = &plan->step[plan->steps];
    if (!builder_try(builder, dnnl_primitive_create(&step->primitive, descriptor), "dnnl_primitive_create"))
        return;
    memcpy(step->arguments, arguments, (size_t)count * sizeof *arguments);
    step->count = count;
    plan->steps++;
    const dnnl_memory_desc_t *pad = builder_query(builder, descriptor, DNNL_ARG_SCRATCHPAD);
    const size_t bytes = dnnl_memory_desc_get_size(pad);
    if (bytes == 0)
        return;
    plan->pad_bytes = bytes > plan->pad_bytes ? bytes : plan->pad_bytes;
    step->arguments[step->count++] =
        (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, builder_slot(builder, PLACE_PAD, 0, pad)->memory};
}

/* A step that copies one slot to another, each in its own layout. */
static void builder_reorder(struct builder *builder, const struct plan_slot *from, const struct plan_slot *to)
{
    const dnnl_memory_desc_t *have = NULL, *want = NULL;
    dnnl_primitive_desc_t descriptor = NULL;
    dnnl_engine_t engine = builder->onednn->engine;
    if (builder_failed(builder))
        return;
    dnnl_memory_get_memory_desc(from->memory, &have);
    dnnl_memory_get_memory_desc(to->memory, &want);
    if (builder_try(builder,
                    dnnl_reorder_primitive_desc_create(&descriptor, have, engine, want, engine,
                                                       builder->onednn->attributes),
                    "dnnl_reorder_primitive_desc_create"))
        builder_add_step(builder, builder_keep(builder, descriptor),
                         (const dnnl_exec_arg_t[]){{DNNL_ARG_FROM, from->memory}, {DNNL_ARG_TO, to->memory}},
                         2);
}

/* The slot of a binding, or NULL: the step does without it. */
static const struct plan_slot *builder_bind(struct builder *builder, dnnl_primitive_desc_t descriptor,
                                            const struct binding *binding)
{
    const enum place place = binding->place;
    const bool reads = place == PLACE_IN || place == PLACE_DOUT;
    const dnnl_memory_desc_t *want =
        binding->want != NULL ? binding->want : builder_query(builder, descriptor, binding->argument);
    if (builder_failed(builder) || dnnl_memory_desc_get_size(want) == 0)
        return NULL;
    if (place == PLACE_SAVED)
        return builder_slot(builder, place, binding->index, want);
    uint32_t count;
    struct tensor *const *tensors = plan_tensors(builder->call, place, &count);
    const struct tensor *tensor = tensors == NULL ? NULL : tensors[binding->index];
    if (tensor == NULL)
        return reads ? NULL : builder_slot(builder, PLACE_SCRATCH, 0, want);
    const dnnl_memory_desc_t have = layout_of(tensor);
    if ((reads || tensor->data != NULL) && !layout_same(&have, want)) {
        const struct plan_slot *own = builder_slot(builder, place, binding->index, &have);
        const struct plan_slot *copy = builder_slot(builder, PLACE_SCRATCH, 0, want);
        assert(builder->lates < OP_INPUTS_MAX);
        if (reads)
            builder_reorder(builder, own, copy);
        else
            builder->late[builder->lates++] = (struct builder_late){copy, own};
        return copy;
    }
    struct plan_slot *slot = builder_slot(builder, place, binding->index, want);
    if (!reads && !builder_failed(builder))
        builder->status = layout_intern(builder->onednn, want, &slot->token, builder->error);
    return slot;
}

void builder_step(struct builder *builder, dnnl_primitive_desc_t descriptor, const struct binding *bindings)
{
    dnnl_exec_arg_t arguments[PLAN_ARGUMENTS_MAX];
    int count = 0;
    for (; bindings->argument != 0; bindings++) {
        const struct plan_slot *slot = builder_bind(builder, descriptor, bindings);
        assert(count < PLAN_ARGUMENTS_MAX);
        if (slot != NULL)
            arguments[count++] = (dnnl_exec_arg_t){bindings->argument, slot->memory};
    }
    builder_add_step(builder, descriptor, arguments, count);
}

void builder_want(struct builder *builder, uint32_t index, const dnnl_memory_desc_t *desc)
{
    const struct tensor *tensor = builder->call->in[index];
    if (builder_failed(builder) || tensor->layout != NULL ||
        dnnl_memory_desc_get_size(desc) != shape_elements(&tensor->shape) * sizeof(float))
        return;
    builder->plan->wanted_input = index;
    builder->status = layout_intern(builder->onednn, desc, &builder->plan->wanted, builder->error);
}

static void builder_finish(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->lates; i++)
        builder_reorder(builder, builder->late[i].from, builder->late[i].to);
    if (!builder_failed(builder))
        builder->status =
            scratch_reserve(&builder->onednn->copies, builder->plan->copies_bytes, builder->error);
    if (!builder_failed(builder))
        builder->status = scratch_reserve(&builder->onednn->pad, builder->plan->pad_bytes, builder->error);
    for (uint32_t i = 0; i < builder->descriptors; i++)
        dnnl_primitive_desc_destroy(builder->descriptor[i]);
}

/* ---- finding and running ---- */

static void plan_free(struct plan *plan)
{
    for (uint32_t i = 0; i < plan->steps; i++)
        dnnl_primitive_destroy(plan->step[i].primitive);
    for (uint32_t i = 0; i < plan->slots; i++)
        dnnl_memory_destroy(plan->slot[i].memory);
    free(plan);
}

void plans_free(struct onednn *onednn)
{
    for (uint32_t b = 0; b < PLAN_BUCKETS; b++)
        while (onednn->plans[b] != NULL) {
            struct plan *plan = onednn->plans[b];
            onednn->plans[b] = plan->next;
            plan_free(plan);
        }
    onednn->plan_count = 0;
}

/* ---- finding ---- */

static uint64_t pair(const uint32_t numbers[2])
{
    return (uint64_t)numbers[0] << 32 | numbers[1];
}

/* Adds one tensor to the key: bit t, and index i within its place. If the pass writes the tensor and it has
 * no memory yet, the plan chooses its layout. */
static void key_add(struct plan_key *key, enum place place, const struct tensor *tensor, uint32_t t,
                    uint32_t i, bool written)
{
    key->word[KEY_PRESENT] |= UINT64_C(1) << t;
    if (!written || tensor->data != NULL)
        key->word[KEY_LAYOUTS + t] = (uintptr_t)tensor->layout;
    if (written && tensor->data != NULL)
        key->word[KEY_GIVEN] |= UINT64_C(1) << t;
    if (place != PLACE_IN)
        return;
    const struct shape *shape = &tensor->shape;
    uint32_t size[SHAPE_RANK_MAX] = {0};
    memcpy(size, shape->size, shape->rank * sizeof *size);
    key->word[KEY_SHAPES + 3 * i] = shape->rank;
    key->word[KEY_SHAPES + 3 * i + 1] = pair(size);
    key->word[KEY_SHAPES + 3 * i + 2] = pair(size + 2);
}

static void plan_key(struct plan_key *key, const struct op_call *call, enum pass pass)
{
    static const enum place places[] = {PLACE_IN, PLACE_OUT, PLACE_DOUT, PLACE_DIN};
    const enum place result = pass == PASS_FORWARD ? PLACE_OUT : PLACE_DIN;
    const struct op_attributes *attributes = &call->attributes;
    memset(key, 0, sizeof *key);
    key->word[KEY_OPERATION] = (uint64_t)call->op << 8 | (uint64_t)pass << 4 |
                               (uint64_t)attributes->relu << 2 | (uint64_t)attributes->training << 1 |
                               (uint64_t)call->keep;
    key->word[KEY_KERNEL] = pair(attributes->kernel);
    key->word[KEY_STRIDE] = pair(attributes->stride);
    key->word[KEY_PADDING] = pair(attributes->padding);
    memcpy(&key->word[KEY_EPSILON], &attributes->epsilon, sizeof attributes->epsilon);
    for (uint32_t p = 0, t = 0, count; p < sizeof places / sizeof *places; p++) {
        struct tensor *const *tensors = plan_tensors(call, places[p], &count);
        const bool used = pass != PASS_FORWARD || places[p] == PLACE_IN || places[p] == PLACE_OUT;
        for (uint32_t i = 0; i < count; i++, t++)
            if (used && tensors[i] != NULL)
                key_add(key, places[p], tensors[i], t, i, places[p] == result);
    }
}

/* FNV-1a over words instead of bytes; after each word the high bits are mixed into the low ones. */
static uint32_t plan_hash(const struct plan_key *key)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < KEY_WORDS; i++) {
        hash = (hash ^ key->word[i]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32) % PLAN_BUCKETS;
}

/* ---- building ---- */

static enum status plan_make(struct onednn *onednn, const struct plan_key *key, const struct op_call *call,
                             enum pass pass, plan_build *build, struct plan **out, struct error *error)
{
    struct plan *plan = calloc(1, sizeof *plan);
    struct builder *builder = calloc(1, sizeof *builder);
    enum status status = STATUS_NO_MEMORY;
    if (plan == NULL || builder == NULL) {
        free(plan);
        free(builder);
        return error_set(error, status, "no memory for a plan");
    }
    plan->key = *key;
    *builder = (struct builder){.onednn = onednn,
                                .plan = plan,
                                .call = call,
                                .name = pass == PASS_REORDER ? "reorder" : op_rule(call->op)->name,
                                .shape = &call->in[0]->shape,
                                .error = error};
    build(builder, call);
    builder_finish(builder);
    status = builder->status;
    free(builder);
    if (status != STATUS_OK) {
        plan_free(plan);
        return status;
    }
    *out = plan;
    return STATUS_OK;
}

static enum status plan_get(struct onednn *onednn, struct op_call *call, enum pass pass, plan_build *build,
                            struct plan **out, struct error *error)
{
    struct plan_key key;
    plan_key(&key, call, pass);
    const uint32_t bucket = plan_hash(&key);
    for (struct plan *plan = onednn->plans[bucket]; plan != NULL; plan = plan->next)
        if (memcmp(plan->key.word, key.word, sizeof key.word) == 0) {
            *out = plan;
            return STATUS_OK;
        }
    if (onednn->plan_count == PLANS_MAX)
        plans_free(onednn);
    enum status status = plan_make(onednn, &key, call, pass, build, out, error);
    if (status != STATUS_OK)
        return status;
    (*out)->next = onednn->plans[bucket];
    onednn->plans[bucket] = *out;
    onednn->plan_count++;
    return STATUS_OK;
}

/* ---- running ---- */

static struct tensor *plan_tensor(struct op_call *call, const struct plan_slot *slot)
{
    if (slot->place == PLACE_SAVED)
        return &call->saved[slot->index];
    uint32_t count;
    return plan_tensors(call, slot->place, &count)[slot->index];
}

enum status onednn_take(struct op_call *call, struct tensor *tensor, const void *layout, size_t bytes,
                        struct error *error)
{
    tensor->data = arena_take(call->arena, bytes);
    if (tensor->data == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", op_rule(call->op)->name,
                         bytes);
    tensor->layout = layout;
    tensor->bytes = bytes;
    return STATUS_OK;
}

/* Gives the slot's memory object its address. An output without data is taken from the arena; op_forward and
 * op_backward give it back if the call fails. */
static enum status plan_bind(struct onednn *onednn, struct op_call *call, const struct plan_slot *slot,
                             struct error *error)
{
    void *data;
    if (slot->place == PLACE_SCRATCH)
        data = (char *)onednn->copies.data + slot->offset;
    else if (slot->place == PLACE_PAD)
        data = onednn->pad.data;
    else {
        struct tensor *tensor = plan_tensor(call, slot);
        if (tensor->data == NULL && onednn_take(call, tensor, slot->token, slot->bytes, error) != STATUS_OK)
            return STATUS_NO_MEMORY;
        data = tensor->data;
    }
    return onednn_check(dnnl_memory_set_data_handle(slot->memory, data), "dnnl_memory_set_data_handle",
                        op_rule(call->op)->name, &call->in[0]->shape, error);
}

static enum status plan_execute(struct onednn *onednn, struct op_call *call, const struct plan *plan,
                                struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < plan->slots && status == STATUS_OK; i++)
        status = plan_bind(onednn, call, &plan->slot[i], error);
    for (uint32_t s = 0; s < plan->steps && status == STATUS_OK; s++) {
        const struct plan_step *step = &plan->step[s];
        status = onednn_check(
            dnnl_primitive_execute(step->primitive, onednn->stream, step->count, step->arguments),
            "dnnl_primitive_execute", op_rule(call->op)->name, &call->in[0]->shape, error);
    }
    return status;
}

enum status plan_run(struct backend *backend, struct op_call *call, enum pass pass, plan_build *build,
                     struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    struct plan *plan = NULL;
    onednn_use_threads(onednn);
    enum status status = plan_get(onednn, call, pass, build, &plan, error);
    if (status == STATUS_OK)
        status = plan_execute(onednn, call, plan, error);
    // Tells the caller which layout this input would be fastest in.
    if (status == STATUS_OK && plan->wanted != NULL)
        call->in[plan->wanted_input]->wanted = plan->wanted;
    return status;
}

/* ---- reordering by itself ---- */

static void build_reorder(struct builder *builder, const struct op_call *call)
{
    const dnnl_memory_desc_t from = layout_of(call->in[0]), to = layout_of(call->out[0]);
    const struct plan_slot *read = builder_slot(builder, PLACE_IN, 0, &from);
    builder_reorder(builder, read, builder_slot(builder, PLACE_OUT, 0, &to));
}

enum status onednn_reorder(struct backend *backend, struct tensor *to, const struct tensor *from,
                           struct error *error)
{
    struct tensor source = *from;
    struct op_call call = {.op = OP_RESHAPE, .in = {&source}, .out = {to}};
    call.attributes.shape = from->shape;
    return plan_run(backend, &call, PASS_REORDER, build_reorder, error);
}
