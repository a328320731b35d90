/* How a model is cut among parameter servers, and how large its image is. Pure: every process computes the
 * same cut. */
#include "worker/server/shards.h"

#include <assert.h>
#include <unistd.h>

/* A cut: the entry before which it lies, and that entry's first element. */
struct cut {
    uint32_t entry;
    size_t element;
};

/* The distance of `element`, times `servers`, from the cut `server` that makes equal shares. */
static uint64_t shards_distance(size_t element, uint64_t total, uint32_t server, uint32_t servers)
{
    const uint64_t at = (uint64_t)element * servers, wanted = total * server; // both below 2^31 * 2^32
    return at > wanted ? at - wanted : wanted - at;
}

static uint32_t shards_count_trained(struct params *params)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < params_count(params); i++)
        count += params_at(params, i)->kind == PARAMETER_TRAINED;
    return count;
}

/* The next cut behind `before`: the trained entry whose begin is nearest to `server` shares of the whole (the
 * first of two as near), but not before one entry of server - 1, nor so late that a later server has none. */
static struct cut shards_next_cut(struct params *params, struct cut before, uint32_t *left, uint32_t server,
                                  uint32_t servers)
{
    const uint64_t total = params_elements(params);
    const uint32_t later = servers - server; // that many servers still need an entry each
    struct cut best = before;
    uint64_t nearest = UINT64_MAX;
    uint32_t best_left = *left, behind = *left; // trained entries from the candidate on
    for (uint32_t i = before.entry; i < params_count(params) && behind >= later; i++) {
        const struct parameter *parameter = params_at(params, i);
        if (parameter->kind != PARAMETER_TRAINED)
            continue;
        const uint64_t apart = shards_distance(parameter->offset, total, server, servers);
        if (behind < *left && apart < nearest) {
            nearest = apart;
            best = (struct cut){i, parameter->offset};
            best_left = behind;
        }
        behind--;
    }
    *left = best_left;
    return best;
}

enum status shard_of(struct shard *shard, struct params *params, uint32_t server, uint32_t servers,
                     struct error *error)
{
    const size_t elements = params_elements(params), image = image_elements(params);
    uint32_t left = shards_count_trained(params);
    assert(server < servers);
    if (left < servers)
        return error_set(error, STATUS_INVALID,
                         "%u parameter servers cannot share %u trained parameters: each needs at least one",
                         servers, left);
    struct cut cut = {0, 0};
    *shard = (struct shard){.statistics_first = image, .statistics_end = image};
    for (uint32_t i = 0; i <= server; i++) {
        shard->entry_first = cut.entry;
        shard->first = cut.element;
        cut = i + 1 < servers ? shards_next_cut(params, cut, &left, i + 1, servers)
                              : (struct cut){params_count(params), elements};
    }
    shard->entry_end = cut.entry;
    shard->end = cut.element;
    if (server == 0)
        shard->statistics_first = elements;
    return STATUS_OK;
}

enum status shard_ranges(struct params_range ranges[], struct params *params, uint32_t servers,
                         struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t server = 0; server < servers && status == STATUS_OK; server++) {
        struct shard shard;
        status = shard_of(&shard, params, server, servers, error);
        if (status == STATUS_OK)
            ranges[server] = (struct params_range){shard.entry_first, shard.entry_end, server == 0};
    }
    return status;
}

size_t image_elements(struct params *params)
{
    return params_elements(params) + params_buffer_elements(params);
}

size_t image_bytes(struct params *params)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = image_elements(params) * sizeof(float);
    return (bytes + page - 1) / page * page;
}
