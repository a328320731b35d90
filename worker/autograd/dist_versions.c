/* Keeps several versions of an object's parameters, each in a slot with a count of readers. There are a
 * handful of slots, so finding a free one is a pass over all. The owner's thread runs this. */
#include "worker/autograd/dist_versions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    void *slab; // NULL: not taken (yet)
    uint32_t readers;
};

struct dist_versions {
    struct params *params;
    size_t slab_bytes, buffer_bytes;
    void *buffers;   // NULL: there are none
    uint32_t newest; // slot
    uint32_t count;
    struct slot slots[]; // (count)
};

static enum status take(struct dist_versions *versions, size_t bytes, void **out, struct error *error)
{
    const struct arena_source *source = &params_backend(versions->params)->source;
    *out = source->take(source->context, bytes);
    if (*out == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a version of %zu bytes", bytes);
    memset(*out, 0, bytes);
    return STATUS_OK;
}

static void give(struct dist_versions *versions, void *memory, size_t bytes)
{
    const struct arena_source *source = &params_backend(versions->params)->source;
    if (memory != NULL)
        source->give(source->context, memory, bytes);
}

static enum status take_all(struct dist_versions *versions, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < versions->count && status == STATUS_OK; i++)
        status = take(versions, versions->slab_bytes, &versions->slots[i].slab, error);
    if (status == STATUS_OK && versions->buffer_bytes > 0)
        status = take(versions, versions->buffer_bytes, &versions->buffers, error);
    return status;
}

enum status dist_versions_new(struct dist_versions **out, struct params *params, uint32_t slots,
                              struct error *error)
{
    const struct backend_ops *ops = params_backend(params)->ops;
    if (!ops->host)
        return error_set(error, STATUS_UNAVAILABLE,
                         "parameters on %s have one version: its memory is not the host's", ops->name);
    if (slots < 2 || slots > DIST_VERSIONS_MAX)
        return error_set(error, STATUS_INVALID, "expected 2..%d versions of parameters, got %u",
                         DIST_VERSIONS_MAX, slots);
    struct dist_versions *versions = calloc(1, sizeof *versions + slots * sizeof versions->slots[0]);
    if (versions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u versions", slots);
    versions->params = params;
    versions->count = slots;
    versions->slab_bytes = params_elements(params) * dtype_bytes(ops->dtype);
    versions->buffer_bytes = params_buffer_elements(params) * dtype_bytes(ops->dtype);
    enum status status = versions->slab_bytes > 0
                             ? take_all(versions, error)
                             : error_set(error, STATUS_INVALID, "no parameter to version");
    if (status != STATUS_OK) {
        dist_versions_free(versions);
        return status;
    }
    if (versions->buffers != NULL)
        params_place_buffers(params, versions->buffers);
    dist_versions_place_newest(versions);
    *out = versions;
    return STATUS_OK;
}

void dist_versions_free(struct dist_versions *versions)
{
    if (versions == NULL)
        return;
    params_displace(versions->params);
    for (uint32_t i = 0; i < versions->count; i++) {
        assert(versions->slots[i].readers == 0);
        give(versions, versions->slots[i].slab, versions->slab_bytes);
    }
    give(versions, versions->buffers, versions->buffer_bytes);
    free(versions);
}

uint32_t dist_versions_slots(const struct dist_versions *versions)
{
    return versions->count;
}

/* ---- readers ---- */

uint32_t dist_versions_hold(struct dist_versions *versions)
{
    versions->slots[versions->newest].readers++;
    return versions->newest;
}

void dist_versions_drop(struct dist_versions *versions, uint32_t slot)
{
    assert(versions->slots[slot].readers > 0);
    versions->slots[slot].readers--;
}

void dist_versions_place(struct dist_versions *versions, uint32_t slot)
{
    params_place(versions->params, 0, params_count(versions->params), versions->slots[slot].slab);
}

void dist_versions_place_newest(struct dist_versions *versions)
{
    dist_versions_place(versions, versions->newest);
}

/* ---- changing ---- */

/* The slot for the next version, or `count` when none is free. */
static uint32_t next_slot(const struct dist_versions *versions)
{
    if (versions->slots[versions->newest].readers == 0)
        return versions->newest;
    uint32_t slot = 0;
    while (slot < versions->count && versions->slots[slot].readers > 0)
        slot++;
    return slot;
}

bool dist_versions_can_advance(const struct dist_versions *versions)
{
    return next_slot(versions) < versions->count;
}

enum status dist_versions_advance(struct dist_versions *versions, struct error *error)
{
    const uint32_t from = versions->newest, to = next_slot(versions);
    if (to == versions->count)
        return error_set(error, STATUS_BUSY, "all %u versions of the parameters are being read",
                         versions->count);
    if (to != from)
        memcpy(versions->slots[to].slab, versions->slots[from].slab, versions->slab_bytes);
    versions->newest = to;
    dist_versions_place_newest(versions);
    return STATUS_OK;
}
