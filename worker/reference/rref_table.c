/* What the other files of the references share: tables by (owner, number), classes by name, and the memory,
 * which outlives rrefs_free until no call of ours is pending. */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

enum status rref_table_new(struct rref_table *table, uint64_t count)
{
    uint64_t buckets = 4;
    while (buckets < count)
        buckets *= 2;
    table->mask = buckets - 1;
    table->buckets = calloc(buckets, sizeof *table->buckets);
    return table->buckets == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

void rref_table_free(struct rref_table *table)
{
    free(table->buckets);
}

static struct rref_link **bucket_of(const struct rref_table *table, uint16_t owner, uint64_t number)
{
    uint64_t mixed = (number ^ (uint64_t)owner << 48) * UINT64_C(0x9e3779b97f4a7c15);
    return &table->buckets[mixed >> 32 & table->mask];
}

struct rref_link *rref_table_find(const struct rref_table *table, uint16_t owner, uint64_t number)
{
    struct rref_link *link = *bucket_of(table, owner, number);
    while (link != NULL && (link->number != number || link->owner != owner))
        link = link->next;
    return link;
}

void rref_table_add(struct rref_table *table, struct rref_link *link)
{
    struct rref_link **bucket = bucket_of(table, link->owner, link->number);
    link->next = *bucket;
    *bucket = link;
}

void rref_table_remove(struct rref_table *table, struct rref_link *link)
{
    struct rref_link **at = bucket_of(table, link->owner, link->number);
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
}

/* ---- classes and owners ---- */

const struct rref_class *rrefs_class(const struct rrefs *rrefs, const char *name, size_t bytes)
{
    for (size_t i = 0; i < rrefs->config.class_count; i++) {
        const struct rref_class *class = rrefs->config.classes[i];
        if (strlen(class->name) == bytes && memcmp(class->name, name, bytes) == 0)
            return class;
    }
    return NULL;
}

enum status rrefs_check_owner(const struct rrefs *rrefs, uint16_t owner, uint64_t number, struct error *error)
{
    if (rpc_reaches(rrefs->rpc, owner))
        return STATUS_OK;
    return error_set(error, STATUS_PEER_DIED, "worker %u, which had object %llu, is gone", owner,
                     (unsigned long long)number);
}

/* ---- memory ---- */

void rrefs_free_memory(struct rrefs *rrefs)
{
    rref_table_free(&rrefs->object_table);
    free(rrefs->objects);
    free(rrefs->uses);
    free(rrefs->users_of);
    while (rrefs->ref_blocks != NULL) {
        struct rref_block *block = rrefs->ref_blocks;
        rrefs->ref_blocks = block->next;
        for (size_t i = 0; i < block->count; i++)
            free(block->refs[i].text);
        free(block);
    }
    rref_table_free(&rrefs->refs_table);
    free(rrefs);
}

void rrefs_call_begins(struct rrefs *rrefs)
{
    rrefs->pending++;
}

bool rrefs_call_ends(struct rrefs *rrefs)
{
    assert(rrefs->pending > 0);
    rrefs->pending--;
    bool is_open = !rrefs->is_closed;
    if (!is_open && rrefs->pending == 0)
        rrefs_free_memory(rrefs);
    return is_open;
}
