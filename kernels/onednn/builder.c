/* Builds plans. Errors stick: after the first failure each function does nothing, so that building an
 * operation reads as a list of its parts. */
#include "kernels/onednn/plan.h"

#include <assert.h>

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
                                        dnnl_query_t what)
{
    static const dnnl_memory_desc_t none;
    const dnnl_memory_desc_t *desc = NULL;
    if (!builder_failed(builder))
        desc = dnnl_primitive_desc_query_md(descriptor, what, 0);
    return desc == NULL ? &none : desc;
}

/* ---- slots ---- */

static int builder_slot(struct builder *builder, enum place place, uint32_t index,
                        const dnnl_memory_desc_t *desc)
{
    struct plan *plan = builder->plan;
    assert(plan->slots < PLAN_SLOTS_MAX);
    struct plan_slot *slot = &plan->slot[plan->slots];
    *slot = (struct plan_slot){.place = place, .index = index, .bytes = dnnl_memory_desc_get_size(desc)};
    builder->slot[plan->slots] = *desc;
    return (int)plan->slots++;
}

int builder_scratch(struct builder *builder, const dnnl_memory_desc_t *desc)
{
    if (builder_failed(builder))
        return 0;
    int slot = builder_slot(builder, PLACE_SCRATCH, 0, desc);
    builder->plan->slot[slot].offset = builder->plan->copies_bytes;
    builder->plan->copies_bytes += (builder->plan->slot[slot].bytes + 63) & ~(size_t)63;
    return slot;
}

int builder_saved(struct builder *builder, uint32_t index, const dnnl_memory_desc_t *desc)
{
    return builder_failed(builder) ? 0 : builder_slot(builder, PLACE_SAVED, index, desc);
}

void builder_reorder(struct builder *builder, int from, int to)
{
    dnnl_primitive_desc_t descriptor = NULL;
    if (builder_failed(builder) ||
        !builder_try(builder,
                     dnnl_reorder_primitive_desc_create(&descriptor, &builder->slot[from],
                                                        builder->onednn->engine, &builder->slot[to],
                                                        builder->onednn->engine, builder->onednn->attributes),
                     "dnnl_reorder_primitive_desc_create"))
        return;
    builder_step(builder, builder_keep(builder, descriptor),
                 (const struct binding[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {0, 0}});
}

int builder_input(struct builder *builder, enum place place, uint32_t index, const struct tensor *tensor,
                  const dnnl_memory_desc_t *want)
{
    if (builder_failed(builder))
        return 0;
    const dnnl_memory_desc_t have = layout_of(tensor);
    if (want == NULL || layout_same(&have, want))
        return builder_slot(builder, place, index, want == NULL ? &have : want);
    int from = builder_slot(builder, place, index, &have), to = builder_scratch(builder, want);
    builder_reorder(builder, from, to);
    return to;
}

int builder_output(struct builder *builder, enum place place, uint32_t index, const struct tensor *tensor,
                   const dnnl_memory_desc_t *want)
{
    if (builder_failed(builder))
        return 0;
    if (tensor->data != NULL) {
        const dnnl_memory_desc_t have = layout_of(tensor);
        if (!layout_same(&have, want)) {
            assert(builder->lates < OP_INPUTS_MAX);
            int from = builder_scratch(builder, want);
            builder->late[builder->lates++] =
                (struct builder_late){from, builder_slot(builder, place, index, &have)};
            return from;
        }
    }
    int slot = builder_slot(builder, place, index, want);
    builder->status = layout_intern(builder->onednn, want, &builder->plan->slot[slot].token, builder->error);
    return slot;
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

/* ---- steps ---- */

/* Arguments hold slots' numbers, in place of memory objects, until builder_finish has made those. */
void builder_step(struct builder *builder, dnnl_primitive_desc_t descriptor, const struct binding *bindings)
{
    struct plan *plan = builder->plan;
    if (builder_failed(builder))
        return;
    assert(plan->steps < PLAN_STEPS_MAX);
    struct plan_step *step = &plan->step[plan->steps];
    if (!builder_try(builder, dnnl_primitive_create(&step->primitive, descriptor), "dnnl_primitive_create"))
        return;
    for (const struct binding *binding = bindings; binding->argument != 0; binding++) {
        assert(step->count < PLAN_ARGUMENTS_MAX - 1);
        builder->binding[plan->steps][step->count] = binding->slot;
        step->arguments[step->count++].arg = binding->argument;
    }
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(descriptor, dnnl_query_scratchpad_md, 0);
    const size_t bytes = pad == NULL ? 0 : dnnl_memory_desc_get_size(pad);
    if (bytes > 0) {
        builder->binding[plan->steps][step->count] = builder_slot(builder, PLACE_PAD, 0, pad);
        step->arguments[step->count++].arg = DNNL_ARG_SCRATCHPAD;
        plan->pad_bytes = bytes > plan->pad_bytes ? bytes : plan->pad_bytes;
    }
    plan->steps++;
}

void builder_finish(struct builder *builder)
{
    struct plan *plan = builder->plan;
    for (uint32_t i = 0; i < builder->lates; i++)
        builder_reorder(builder, builder->late[i].from, builder->late[i].to);
    for (uint32_t i = 0; i < plan->slots && !builder_failed(builder); i++)
        builder_try(builder,
                    dnnl_memory_create(&plan->slot[i].memory, &builder->slot[i], builder->onednn->engine,
                                       DNNL_MEMORY_NONE),
                    "dnnl_memory_create");
    for (uint32_t s = 0; s < plan->steps; s++)
        for (int a = 0; a < plan->step[s].count; a++)
            plan->step[s].arguments[a].memory = plan->slot[builder->binding[s][a]].memory;
    if (!builder_failed(builder))
        builder->status = scratch_reserve(&builder->onednn->copies, plan->copies_bytes, builder->error);
    if (!builder_failed(builder))
        builder->status = scratch_reserve(&builder->onednn->pad, plan->pad_bytes, builder->error);
}

void builder_fini(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->descriptors; i++)
        dnnl_primitive_desc_destroy(builder->descriptor[i]);
}
