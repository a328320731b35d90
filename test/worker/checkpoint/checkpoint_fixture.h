/* The fixture of the tests of checkpoints: a small model on the CPU backend, cut among one or several
 * servers, with values that are functions of (seed, entry, element); and a run's folder. */
#ifndef TEST_WORKER_CHECKPOINT_CHECKPOINT_FIXTURE_H
#define TEST_WORKER_CHECKPOINT_CHECKPOINT_FIXTURE_H

#include "kernels/base/rng.h"
#include "kernels/params/gradients.h"
#include "kernels/tape/tape.h"
#include "test/process.h"
#include "test/workplace.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data_parallel/shards.h"

#include <check.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CK_OK(call) checkpoint_ok(call, #call)

enum { MODEL_ENTRIES = 9, MODEL_ELEMENTS_MAX = 32 * 32 * 9, MODEL_TRACKED = 5, SERVERS_MAX = 3 };

static struct error checkpoint_error;
static struct backend *checkpoint_backend;

static inline void checkpoint_ok(enum status status, const char *call)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s: %s", call, status_name(status), checkpoint_error.text);
}

/* The convolution's weight is one that the CPU backend wants in a blocked layout. */
static const struct {
    const char *name;
    enum parameter_kind kind;
    struct shape shape;
} model_entries[MODEL_ENTRIES] = {
    {"conv.weight", PARAMETER_TRAINED, {4, {32, 32, 3, 3}}},
    {"bn.weight", PARAMETER_TRAINED, {1, {32}}},
    {"bn.bias", PARAMETER_TRAINED, {1, {32}}},
    {"bn.running_mean", PARAMETER_BUFFER, {1, {32}}},
    {"bn.running_var", PARAMETER_BUFFER, {1, {32}}},
    {"bn.num_batches_tracked", PARAMETER_COUNTER, {0, {0}}},
    {"fc.weight", PARAMETER_TRAINED, {2, {5, 32}}},
    {"fc.bias", PARAMETER_TRAINED, {1, {5}}},
    {"temperature", PARAMETER_TRAINED, {0, {0}}},
};

static inline void checkpoint_open(void)
{
    const struct backend_settings settings = {.threads = 1};
    workplace_open();
    ck_assert_int_eq(mkdir(workplace.run_dir, 0755), 0);
    CK_OK(backend_load(&checkpoint_backend, "onednn", &settings, &checkpoint_error));
}

static inline void checkpoint_close(void)
{
    backend_close(checkpoint_backend);
    workplace_close();
}

/* ---- one server ---- */

struct member {
    struct checkpoint_values values; /* what the functions under test are given */
    struct shard shard;
    struct params_range shards[SERVERS_MAX];
    void *slab, *buffers, *momentum; /* NULL where params_build took the memory */
};

static inline float *slab_new(size_t elements)
{
    float *slab = aligned_alloc(64, (elements + 16) * sizeof *slab);
    ck_assert_ptr_nonnull(slab);
    memset(slab, 0, (elements + 16) * sizeof *slab);
    return slab;
}

static inline void run_forward(struct params *params)
{
    static const float images[2 * 32 * 4 * 4];
    struct tape *tape = NULL;
    CK_OK(tape_new(&tape, checkpoint_backend, &checkpoint_error));
    tape_begin(tape, TAPE_TRAIN, NULL);
    struct variable *x = tape_input(tape, SHAPE4(2, 32, 4, 4), DTYPE_F32, "images", images);
    tape_conv2d(tape, x, tape_parameter(tape, params_at(params, 0)), NULL, 1, 1);
    CK_OK(tape_finish(tape, &checkpoint_error));
    tape_free(tape);
}

static inline void member_place(struct member *member)
{
    struct params *params = member->values.params;
    const struct shard *shard = &member->shard;
    params_displace(params);
    params_place(params, shard->entry_first, shard->entry_end, member->slab);
    if (member->values.server == 0)
        params_place_buffers(params, member->buffers);
    if (member->values.momentum != NULL)
        gradients_place(member->values.momentum, member->momentum);
}

/* A server's view: its own entries alone have a place. Blocked: in the layouts that a forward wants. */
static inline void member_open(struct member *member, uint32_t server, uint32_t servers, bool blocked,
                               bool with_momentum)
{
    const struct init zero = {INIT_CONSTANT, 0};
    struct params *params = NULL;
    struct parameter *parameter;
    struct error *error = &checkpoint_error;
    CK_OK(params_new(&params, checkpoint_backend, error));
    for (size_t i = 0; i < MODEL_ENTRIES; i++)
        CK_OK(params_add(params, model_entries[i].name, model_entries[i].kind, model_entries[i].shape, zero,
                         &parameter, error));
    CK_OK(params_lay_out(params, error));
    *member = (struct member){.values = {.params = params, .server = server, .servers = servers}};
    member->slab = slab_new(params_elements(params));
    member->buffers = slab_new(params_buffer_elements(params));
    member->momentum = slab_new(params_elements(params));
    if (with_momentum)
        CK_OK(gradients_new_unplaced(&member->values.momentum, params, error));
    if (blocked) {
        params_place(params, 0, MODEL_ENTRIES, member->slab);
        run_forward(params);
        params_adopt(params);
    }
    struct shard shards[JOB_SERVERS_MAX];
    CK_OK(shards_of(shards, params, servers, error));
    member->shard = shards[server];
    for (uint32_t i = 0; i < servers; i++)
        member->shards[i] = (struct params_range){shards[i].entry_first, shards[i].entry_end, i == 0};
    member->values.shards = member->shards;
    member_place(member);
    ck_assert_int_eq(params_at(params, 0)->tensor.layout != NULL, blocked);
}

static inline void member_close(struct member *member)
{
    gradients_free(member->values.momentum);
    params_free(member->values.params);
    free(member->slab);
    free(member->buffers);
    free(member->momentum);
}

static inline bool member_owns(const struct member *member, const struct parameter *parameter)
{
    if (parameter->kind != PARAMETER_TRAINED)
        return member->values.server == 0;
    return parameter->index >= member->shard.entry_first && parameter->index < member->shard.entry_end;
}

/* ---- values ---- */

static inline size_t model_values(float *values, uint64_t seed, uint32_t entry, bool momentum)
{
    const size_t count = shape_elements(&model_entries[entry].shape);
    const struct rng_key key = {.seed = seed, .episode = entry, .step = momentum};
    for (uint32_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        rng_block(&key, RNG_INIT, i, words);
        for (uint32_t j = 0; j < 4 && i + j < count; j++)
            values[i + j] = rng_uniform_float(words[j]) - 0.5F;
    }
    return count;
}

static inline int64_t model_tracked(uint64_t seed)
{
    return (int64_t)((seed << 33) + 7);
}

static inline void member_write(struct member *member, uint64_t seed)
{
    struct checkpoint_values *values_of = &member->values;
    float values[MODEL_ELEMENTS_MAX];
    bool fresh;
    for (uint32_t i = 0; i < MODEL_ENTRIES; i++) {
        struct parameter *parameter = params_at(values_of->params, i);
        if (!member_owns(member, parameter))
            continue;
        if (parameter->kind == PARAMETER_COUNTER) {
            parameter->counter = model_tracked(seed);
            continue;
        }
        model_values(values, seed, i, false);
        CK_OK(params_write(values_of->params, parameter, DTYPE_F32, values, &checkpoint_error));
        model_values(values, seed, i, true);
        if (parameter->kind == PARAMETER_TRAINED && values_of->momentum != NULL)
            CK_OK(backend_upload(checkpoint_backend, gradients_take(values_of->momentum, parameter, &fresh),
                                 DTYPE_F32, values, &checkpoint_error));
    }
}

static inline void expect_values(const float *got, uint64_t seed, uint32_t entry, bool momentum)
{
    float expected[MODEL_ELEMENTS_MAX];
    const size_t count = model_values(expected, seed, entry, momentum);
    ck_assert_msg(memcmp(got, expected, count * sizeof *got) == 0, "%s%s is not that of seed %" PRIu64,
                  momentum ? "momentum of " : "", model_entries[entry].name, seed);
}

/* Holds what the server owns to the seed, bit for bit. */
static inline void member_expect(struct member *member, uint64_t seed, uint64_t momentum_seed)
{
    struct checkpoint_values *values_of = &member->values;
    float values[MODEL_ELEMENTS_MAX];
    bool fresh;
    for (uint32_t i = 0; i < MODEL_ENTRIES; i++) {
        struct parameter *parameter = params_at(values_of->params, i);
        if (!member_owns(member, parameter))
            continue;
        if (parameter->kind == PARAMETER_COUNTER) {
            ck_assert_int_eq(parameter->counter, model_tracked(seed));
            continue;
        }
        CK_OK(params_read(values_of->params, parameter, DTYPE_F32, values, &checkpoint_error));
        expect_values(values, seed, i, false);
        if (parameter->kind != PARAMETER_TRAINED || values_of->momentum == NULL)
            continue;
        CK_OK(backend_download(checkpoint_backend, gradients_take(values_of->momentum, parameter, &fresh),
                               DTYPE_F32, values, &checkpoint_error));
        expect_values(values, momentum_seed, i, true);
    }
}

/* ---- checkpoints ---- */

static inline struct checkpoint_counters counters_of(uint64_t update)
{
    return (struct checkpoint_counters){.update = update,
                                        .trainers = 3,
                                        .steps = {update, UINT64_MAX, update + 1},
                                        .late = 9007199254740993, /* no double */
                                        .epoch_loss = 1.0 / 3 + (double)update};
}

static inline void expect_counters(const struct checkpoint_counters *got, uint64_t update)
{
    const struct checkpoint_counters expected = counters_of(update);
    ck_assert_uint_eq(got->update, expected.update);
    ck_assert_uint_eq(got->trainers, expected.trainers);
    ck_assert_mem_eq(got->steps, expected.steps, sizeof got->steps);
    ck_assert_uint_eq(got->late, expected.late);
    ck_assert_mem_eq(&got->epoch_loss, &expected.epoch_loss, sizeof got->epoch_loss);
}

static const struct run_place checkpoint_place = {
    .run = {.id = {1, 2}, .seed = 543, .numbers = {3}},
    .logs = {{.lines = 4, .bytes = 500, .sha256 = {6}}, {.lines = 3, .bytes = 100, .sha256 = {7}}}};

/* All that `servers` do for a checkpoint before it is published. */
static inline enum status checkpoint_prepare(uint64_t update, uint64_t seed, uint32_t servers, bool blocked,
                                             bool momentum)
{
    const struct checkpoint_counters counters = counters_of(update);
    enum status status = checkpoint_begin(path_of(workplace.run_dir), update, &checkpoint_error);
    for (uint32_t server = servers; server-- > 0 && status == STATUS_OK;) {
        struct member member;
        member_open(&member, server, servers, blocked, momentum);
        member_write(&member, seed);
        status = server == 0 ? checkpoint_write(path_of(workplace.run_dir), &counters, &checkpoint_place,
                                                &member.values, NULL, &checkpoint_error)
                             : checkpoint_write_shard(path_of(workplace.run_dir), update, &member.values,
                                                      &checkpoint_error);
        member_close(&member);
    }
    return status;
}

static inline void checkpoint_make(uint64_t update, uint64_t seed, uint32_t keep)
{
    CK_OK(checkpoint_prepare(update, seed, 1, false, true));
    CK_OK(checkpoint_publish(path_of(workplace.run_dir), update, keep, &checkpoint_error));
}

static inline int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* The names in RUN/checkpoints (or NAME in it), sorted, with a blank between them. */
static inline void expect_names(const char *name, const char *expected)
{
    char path[160], names[512] = "";
    struct dirent **entries;
    snprintf(path, sizeof path, "%s/checkpoints/%s", workplace.run_dir, name);
    const int count = scandir(path, &entries, NULL, compare_names);
    ck_assert_msg(count >= 0, "%s cannot be listed", path);
    for (int i = 0; i < count; i++) {
        const size_t length = strlen(names);
        if (entries[i]->d_name[0] != '.')
            snprintf(names + length, sizeof names - length, "%s%s", length == 0 ? "" : " ",
                     entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    ck_assert_str_eq(names, expected);
}

static inline void expect_failure(enum status status, enum status expected, const char *words)
{
    ck_assert_msg(status == expected, "expected %s, got %s: %s", status_name(expected), status_name(status),
                  checkpoint_error.text);
    ck_assert_int_eq(checkpoint_error.status, expected);
    ck_assert_msg(strstr(checkpoint_error.text, words) != NULL, "\"%s\" does not say \"%s\"",
                  checkpoint_error.text, words);
}

/* RUN/checkpoints/NAME, until the next call but one. */
static inline const char *checkpoint_at(const char *name)
{
    static char paths[2][192];
    static unsigned turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/checkpoints/%s", workplace.run_dir, name);
    return path;
}

static char
    told[512]; /* what checkpoint_newest told of: the paths' last parts and why, one behind the other */

static inline void tell(void *context, const char *path, const char *why)
{
    (void)context;
    const size_t length = strlen(told);
    snprintf(told + length, sizeof told - length, "%s: %s; ", strrchr(path, '/') + 1, why);
}

/* A checkpoint of another seed than 543 belongs to another run. */
static inline enum status fits_seed(void *context, const struct run_place *place, struct error *why)
{
    (void)context;
    return place->run.seed == 543 ? STATUS_OK : error_set(why, STATUS_CORRUPT, "another seed");
}

static const struct checkpoint_judge judge = {.fits = fits_seed, .skipped = tell};

static inline enum status find_newest(char path[CHECKPOINT_PATH_BYTES], struct checkpoint_counters *counters)
{
    struct run_place place;
    const enum status status =
        checkpoint_newest(path_of(workplace.run_dir), &judge, path, counters, &place, &checkpoint_error);
    ck_assert(status != STATUS_OK || memcmp(&place, &checkpoint_place, sizeof place) == 0);
    return status;
}

static inline void expect_newest(uint64_t update, const char *name)
{
    struct checkpoint_counters counters;
    char path[CHECKPOINT_PATH_BYTES];
    told[0] = '\0';
    CK_OK(find_newest(path, &counters));
    ck_assert_str_eq(path, checkpoint_at(name));
    ck_assert_uint_eq(counters.update, update);
}

#endif
