/* Reads the record of a training run and compares with it. */
#include "test/golden.h"

#include "test/kernels/policy/mlp_problem.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, STEPS_MAX = 16, SAMPLE = 256, VECTOR_VALUES = 2 };

static const char *const kind_names[GOLDEN_KINDS] = {"output", "loss", "gradient", "update", "statistic"};

struct record {
    uint32_t step;
    enum golden_kind kind;
    char name[NAME_BYTES];
    size_t count;
    double deviation;
    double *values;
    bool seen;
};

struct golden {
    bool exact;
    uint64_t direction; // the generator's state before the direction's first number
    size_t count;
    struct record *records;
    uint32_t violations[STEPS_MAX][GOLDEN_KINDS];
    char first[256]; // the first violation, in words
};

/* ---- the file ---- */

static enum golden_kind kind_of(const char *name)
{
    for (int kind = 0; kind < GOLDEN_KINDS; kind++)
        if (strcmp(name, kind_names[kind]) == 0)
            return (enum golden_kind)kind;
    ck_abort_msg("a golden file has a record of kind \"%s\"", name);
}

/* False at the file's end. */
static bool record_read(FILE *file, struct record *record)
{
    char kind[16];
    *record = (struct record){0};
    const int found = fscanf(file, " %u %15s %63s %zu %lf", &record->step, kind, record->name, &record->count,
                             &record->deviation);
    if (found == EOF)
        return false;
    ck_assert_int_eq(found, 5);
    ck_assert_uint_lt(record->step, STEPS_MAX);
    ck_assert_uint_gt(record->count, 0);
    record->kind = kind_of(kind);
    record->values = calloc(record->count, sizeof *record->values);
    ck_assert_ptr_nonnull(record->values);
    for (size_t i = 0; i < record->count; i++)
        ck_assert_int_eq(fscanf(file, "%lf", &record->values[i]), 1);
    return true;
}

struct golden *golden_open(const char *name, uint64_t state, bool exact)
{
    char path[128];
    struct record record;
    struct golden *golden = calloc(1, sizeof *golden);
    ck_assert_ptr_nonnull(golden);
    snprintf(path, sizeof path, "test/golden/%s.txt", name);
    golden->exact = exact;
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s: cannot be opened", path);
    ck_assert_msg(fscanf(file, "#%*[^\n]\nstate %lu", &golden->direction) == 1, "%s: no state", path);
    ck_assert_msg(golden->direction == state, "%s: made from other parameters or data", path);
    while (record_read(file, &record)) {
        if ((golden->count & (golden->count + 1)) == 0) // room doubles each time it is full
            golden->records =
                realloc(golden->records, (2 * golden->count + 1) * sizeof *golden->records); // NOLINT
        ck_assert_ptr_nonnull(golden->records);
        golden->records[golden->count++] = record;
    }
    fclose(file);
    ck_assert_uint_gt(golden->count, 0);
    return golden;
}

void golden_close(struct golden *golden)
{
    for (size_t i = 0; i < golden->count; i++)
        free(golden->records[i].values);
    free(golden->records);
    free(golden);
}

static struct record *record_find(struct golden *golden, uint32_t step, enum golden_kind kind,
                                  const char *name)
{
    for (size_t i = 0; i < golden->count; i++) {
        struct record *record = &golden->records[i];
        if (record->step == step && record->kind == kind && strcmp(record->name, name) == 0)
            return record;
    }
    return NULL;
}

/* ---- comparison ---- */

static double bound_of(const struct golden *golden, const struct record *record)
{
    double largest = 0;
    for (size_t i = 0; i < record->count; i++)
        largest = fmax(largest, fabs(record->values[i]));
    if (golden->exact)
        return 1e-8 * largest;
    return fmax(5 * record->deviation, 1e-6 * largest) + (record->kind == GOLDEN_GRADIENT ? 1e-7 : 0);
}

static void record_compare(struct golden *golden, struct record *record, const double *got)
{
    const double bound = bound_of(golden, record);
    record->seen = true;
    for (size_t i = 0; i < record->count; i++) {
        if (fabs(got[i] - record->values[i]) <= bound) // false for a NaN
            continue;
        golden->violations[record->step][record->kind]++;
        if (golden->first[0] == '\0')
            snprintf(golden->first, sizeof golden->first,
                     "step %u, %s of %s, value %zu of %zu: got %.9g, expected %.9g within %.3g", record->step,
                     kind_names[record->kind], record->name, i, record->count, got[i], record->values[i],
                     bound);
    }
}

/* The norm, and the dot product with the direction. */
static void record_compare_vector(struct golden *golden, struct record *record, const double *values,
                                  size_t count)
{
    double squares = 0, dot = 0;
    uint64_t state = golden->direction;
    for (size_t i = 0; i < count; i++) {
        squares += values[i] * values[i];
        dot += values[i] * (double)mlp_problem_number(&state);
    }
    record_compare(golden, record, (const double[VECTOR_VALUES]){sqrt(squares), dot});
}

static void record_compare_sample(struct golden *golden, struct record *record, const double *values,
                                  size_t count)
{
    double sample[SAMPLE];
    ck_assert_uint_eq(record->count, SAMPLE);
    for (size_t i = 0; i < SAMPLE; i++)
        sample[i] = values[i * (count / SAMPLE)];
    record_compare(golden, record, sample);
}

void golden_check(struct golden *golden, uint32_t step, enum golden_kind kind, const char *name,
                  const double *values, size_t count)
{
    char sample_name[NAME_BYTES + 8];
    struct record *record = record_find(golden, step, kind, name);
    ck_assert_msg(record != NULL, "no record of step %u, %s of %s", step, kind_names[kind], name);
    snprintf(sample_name, sizeof sample_name, "%s.sample", name);
    struct record *sample = record_find(golden, step, kind, sample_name);
    if (kind == GOLDEN_OUTPUT && sample != NULL) {
        record_compare_vector(golden, record, values, count);
        record_compare_sample(golden, sample, values, count);
    } else if (kind == GOLDEN_OUTPUT || kind == GOLDEN_LOSS) {
        ck_assert_msg(record->count == count, "%s has %zu values, got %zu", name, record->count, count);
        record_compare(golden, record, values);
    } else {
        record_compare_vector(golden, record, values, count);
    }
}

uint32_t golden_violations(const struct golden *golden, uint32_t step, enum golden_kind kind)
{
    uint32_t sum = 0;
    for (uint32_t s = 0; s < STEPS_MAX; s++)
        if (step == 0 || s == step)
            sum += golden->violations[s][kind];
    return sum;
}

void golden_assert_all(const struct golden *golden)
{
    uint32_t sum = 0;
    for (int kind = 0; kind < GOLDEN_KINDS; kind++)
        sum += golden_violations(golden, 0, (enum golden_kind)kind);
    ck_assert_msg(sum == 0, "%u numbers are out of bounds; the first is %s", sum, golden->first);
    for (size_t i = 0; i < golden->count; i++)
        ck_assert_msg(golden->records[i].seen, "step %u, %s of %s was never compared",
                      golden->records[i].step, kind_names[golden->records[i].kind], golden->records[i].name);
}
