/* Keeps several versions of an object's parameters, each in a slot with a count of readers. There are a
 * handful of slots, so finding a free one is a pass over all. The owner's thread runs this. */
#include "worker/autograd/dist_versions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct dist_versions {
    struct params *params;
    size_t slab_bytes, bytes;
    char *slabs;        // one for each slot, then the buffers
    uint32_t newest;    // slot
    uint32_t count;     // of slots
    uint32_t readers[]; // (count)
};

enum status dist_versions_new(struct dist_versions **out, struct params *params, uint32_t slots,
                              struct error *error)
{
    const struct backend *backend = params_backend(params);
    const size_t slab_bytes = params_elements(params) * dtype_bytes(backend->ops->dtype),
                 buffer_bytes = params_buffer_elements(params) * dtype_bytes(backend->ops->dtype);
    if (!backend->ops->host)
        return error_set(error, STATUS_UNAVAILABLE,
                         "parameters on %s have one version: its memory is not the host's",
                         backend->ops->name);
    if (slots < 2 || slots > DIST_VERSIONS_MAX)
        return error_set(error, STATUS_INVALID, "expected 2..%d versions of parameters, got %u",
                         DIST_VERSIONS_MAX, slots);
    if (slab_bytes == 0)
        return error_set(error, STATUS_INVALID, "no parameter to version");
    struct dist_versions *versions = calloc(1, sizeof *versions + slots * sizeof versions->readers[0]);
    if (versions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u versions", slots);
    versions->params = params;
    versions->count = slots;
    versions->slab_bytes = slab_bytes;
    versions->bytes = slots * slab_bytes + buffer_bytes;
    versions->slabs = backend->source.take(backend->source.context, versions->bytes);
    if (versions->slabs == NULL) {
        free(versions);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u versions of %zu bytes", slots,
                         slab_bytes);
    }
    memset(versions->slabs, 0, versions->bytes);
    if (buffer_bytes > 0)
        params_place_buffers(params, versions->slabs + slots * slab_bytes);
    dist_versions_place_newest(versions);
    *out = versions;
    return STATUS_OK;
}

void dist_versions_free(struct dist_versions *versions)
{
    if (versions == NULL)
        return;
    const struct arena_source *source = &params_backend(versions->params)->source;
    params_displace(versions->params);
    for (uint32_t i = 0; i < versions->count; i++)
        assert(versions->readers[i] == 0);
    source->give(source->context, versions->slabs, versions->bytes);
    free(versions);
}

uint32_t dist_versions_slots(const struct dist_versions *versions)
{
    return versions->count;
}

/* ---- readers ---- */

uint32_t dist_versions_hold(struct dist_versions *versions)
{
    versions->readers[versions->newest]++;
    return versions->newest;
}

void dist_versions_drop(struct dist_versions *versions, uint32_t slot)
{
    assert(versions->readers[slot] > 0);
    versions->readers[slot]--;
}

void dist_versions_place(struct dist_versions *versions, uint32_t slot)
{
    params_place(versions->params, 0, params_count(versions->params),
                 versions->slabs + slot * versions->slab_bytes);
}

void dist_versions_place_newest(struct dist_versions *versions)
{
    dist_versions_place(versions, versions->newest);
}

/* ---- changing ---- */

/* The slot for the next version, or `count` when none is free. */
static uint32_t next_slot(const struct dist_versions *versions)
{
    if (versions->readers[versions->newest] == 0)
        return versions->newest;
    uint32_t slot = 0;
    while (slot < versions->count && versions->readers[slot] > 0)
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
        memcpy(versions->slabs + to * versions->slab_bytes, versions->slabs + from * versions->slab_bytes,
               versions->slab_bytes);
    versions->newest = to;
    dist_versions_place_newest(versions);
    return STATUS_OK;
}
