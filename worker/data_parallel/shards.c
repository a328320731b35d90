/* Cuts a model into shards for the parameter servers, and computes the size of its image. Every process
 * computes the same cut. */
#include "worker/data_parallel/shards.h"

#include "worker/device.h"
#include "worker/net/rpc.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

/* The distance of `element`, times `servers`, from the cut `server` that makes equal shares. */
static uint64_t shards_distance(size_t element, uint64_t total, uint32_t server, uint32_t servers)
{
    const uint64_t at = (uint64_t)element * servers, wanted = total * server; // both below 2^31 * 2^32
    return at > wanted ? at - wanted : wanted - at;
}

/* The first trained entry with an index of at least `index`; the number of entries: there is none. */
static uint32_t shards_next_trained(struct params *params, uint32_t index)
{
    while (index < params_count(params) && params_at(params, index)->kind != PARAMETER_TRAINED)
        index++;
    return index;
}

/* The entry at which the shard of `server` begins: of the trained entries from `entry` on, the one whose
 * begin is nearest to `server` equal shares (the first of two as near), but none behind which there are too
 * few for the later servers. *left: the trained entries from `entry` on, then those from the cut on. */
static uint32_t shards_next_cut(struct params *params, uint32_t entry, uint32_t *left, uint32_t server,
                                uint32_t servers)
{
    const uint64_t total = params_elements(params);
    uint64_t apart = shards_distance(params_at(params, entry)->offset, total, server, servers);
    for (; *left > servers - server; --*left) {
        const uint32_t next = shards_next_trained(params, entry + 1);
        const uint64_t farther = shards_distance(params_at(params, next)->offset, total, server, servers);
        if (farther >= apart)
            break;
        entry = next;
        apart = farther;
    }
    return entry;
}

enum status shards_of(struct shard shards[], struct params *params, uint32_t servers, struct error *error)
{
    const size_t elements = params_elements(params), image = image_elements(params);
    uint32_t left = 0, entry = 0;
    for (uint32_t i = 0; i < params_count(params); i++)
        left += params_at(params, i)->kind == PARAMETER_TRAINED;
    if (left < servers)
        return error_set(error, STATUS_INVALID,
                         "%u parameter servers cannot share %u trained parameters: each needs at least one",
                         servers, left);
    shards[0] = (struct shard){.statistics_first = elements, .statistics_end = image};
    for (uint32_t server = 1; server < servers; server++) {
        entry = shards_next_trained(params, shards_next_trained(params, entry) + 1);
        left--;
        entry = shards_next_cut(params, entry, &left, server, servers);
        const size_t element = params_at(params, entry)->offset;
        shards[server - 1].entry_end = entry;
        shards[server - 1].end = element;
        shards[server] = (struct shard){
            .entry_first = entry, .first = element, .statistics_first = image, .statistics_end = image};
    }
    shards[servers - 1].entry_end = params_count(params);
    shards[servers - 1].end = elements;
    return STATUS_OK;
}

enum status image_map(struct segment *memory, size_t bytes, const char *what, struct error *error)
{
    void *data =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return error_set_errno(error, errno, "cannot map %zu bytes for %s", bytes, what);
    *memory = (struct segment){.data = data, .bytes = bytes};
    return STATUS_OK;
}

bool image_travels(const struct job *job, const struct rpc *rpc, uint16_t worker)
{
    return job->transport != JOB_TRANSPORT_SHARED || rpc_is_far(rpc, worker);
}

bool image_reordered(const struct job *job)
{
    return job->transport == JOB_TRANSPORT_SHARED && !device_is_gpu(job);
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
