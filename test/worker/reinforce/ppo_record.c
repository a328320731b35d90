/* Reads the cases of test/golden/ppo.py and its siblings. Linked into the tests that ask for it. */
#include "test/worker/reinforce/ppo_record.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES_MAX = 64 };

struct entry {
    char name[32];
    uint32_t count;
    double deviation, *numbers;
};

struct ppo_record {
    uint32_t count;
    struct entry entries[ENTRIES_MAX];
};

static void *memory_for(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void read_entry(struct entry *entry, const char *line)
{
    char *at;
    *entry = (struct entry){0};
    ck_assert_int_eq(sscanf(line, "%31s %u", entry->name, &entry->count), 2);
    entry->numbers = memory_for(entry->count, sizeof *entry->numbers);
    at = strchr(strchr(line, ' ') + 1, ' ');
    if (entry->name[0] == '=')
        entry->deviation = strtod(at, &at);
    for (uint32_t i = 0; i < entry->count; i++)
        entry->numbers[i] = strtod(at, &at);
    ck_assert_str_eq(at, "\n");
}

struct ppo_record *ppo_record_open(const char *path, const char *name)
{
    struct ppo_record *record = memory_for(1, sizeof *record);
    char *line = NULL, wanted[64];
    size_t capacity = 0;
    bool is_mine = false;
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s", path);
    snprintf(wanted, sizeof wanted, "case %s\n", name);
    while (getline(&line, &capacity, file) > 0) {
        if (strncmp(line, "case ", 5) == 0) {
            is_mine = strcmp(line, wanted) == 0;
        } else if (is_mine) {
            ck_assert_uint_lt(record->count, ENTRIES_MAX);
            read_entry(&record->entries[record->count++], line);
        }
    }
    ck_assert_msg(record->count > 0, "%s has no case %s", path, name);
    free(line);
    fclose(file);
    return record;
}

void ppo_record_close(struct ppo_record *record)
{
    for (uint32_t i = 0; i < record->count; i++)
        free(record->entries[i].numbers);
    free(record);
}

static const struct entry *find(const struct ppo_record *record, const char *name)
{
    for (uint32_t i = 0; i < record->count; i++)
        if (strcmp(record->entries[i].name, name) == 0)
            return &record->entries[i];
    ck_abort_msg("there is no %s", name);
    return NULL;
}

uint32_t ppo_record_count(const struct ppo_record *record, const char *entry)
{
    return find(record, entry)->count;
}

static const struct entry *find_of(const struct ppo_record *record, const char *name, uint32_t count)
{
    const struct entry *entry = find(record, name);
    ck_assert_msg(entry->count == count, "%s has %u numbers, not %u", name, entry->count, count);
    return entry;
}

void ppo_record_take(const struct ppo_record *record, const char *name, float *out, uint32_t count)
{
    const struct entry *entry = find_of(record, name, count);
    for (uint32_t i = 0; i < count; i++)
        out[i] = (float)entry->numbers[i];
}

void ppo_record_expect(const struct ppo_record *record, const char *name, const float *got, uint32_t count)
{
    const struct entry *entry = find_of(record, name, count);
    double largest = 0;
    for (uint32_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(entry->numbers[i]));
    const double bound = fmax(5 * entry->deviation, 1e-6 * largest);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(fabs((double)got[i] - entry->numbers[i]) <= bound, "%s[%u]: %.9g, not %.9g", name, i,
                      (double)got[i], entry->numbers[i]);
}
