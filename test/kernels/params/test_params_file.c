/* Parameters in safetensors files: saved values are loaded, on the oracle, on the CPU backend, and from
 * one to the other; a file that does not fit is refused with a reason and changes no parameter; a full
 * disk is reported. */
#include "kernels/params/gradients.h"
#include "kernels/params/params_file.h"
#include "kernels/safetensors/safetensors.h"
#include "kernels/tape/tape.h"
#include "test/kernels/params/model_file.h"
#include "test/kernels/params/reorder.h"
#include "test/kernels/safetensors/safetensors_memory.h"
#include "test/oracle/ref.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES = 5, VALUES_MAX = 64 };

static struct backend *backends[2];
static const char *const backend_names[] = {"ref", "onednn"};
static char path[128], other_path[128];

/* ---- a small model ---- */

static const struct {
    const char *name;
    enum parameter_kind kind;
    struct shape shape;
    struct init init;
} registered[ENTRIES] = {
    {"conv.weight", PARAMETER_TRAINED, {4, {3, 2, 3, 1}}, {INIT_UNIFORM, 0.5}},
    {"conv.bias", PARAMETER_TRAINED, {1, {3}}, {INIT_NORMAL, 2}},
    {"bn.running_var", PARAMETER_BUFFER, {1, {7}}, {INIT_CONSTANT, 1.25}},
    {"bn.num_batches_tracked", PARAMETER_COUNTER, {0, {0}}, {INIT_CONSTANT, 0}},
    {"temperature", PARAMETER_TRAINED, {0, {0}}, {INIT_UNIFORM, 1}},
};

static struct params *model_new(struct backend *backend, uint64_t seed)
{
    struct params *params = NULL;
    struct error error = {0};
    struct parameter *parameter;
    ck_assert_int_eq(params_new(&params, backend, &error), STATUS_OK);
    for (size_t i = 0; i < ENTRIES; i++)
        ck_assert_int_eq(params_add(params, registered[i].name, registered[i].kind, registered[i].shape,
                                    registered[i].init, &parameter, &error),
                         STATUS_OK);
    ck_assert_msg(params_build(params, seed, &error) == STATUS_OK, "%s", error.text);
    params_find(params, "bn.num_batches_tracked")->counter = (int64_t)(seed << 40);
    return params;
}

/* All values as doubles, one row of VALUES_MAX an entry. */
struct values {
    double of[ENTRIES][VALUES_MAX];
};

static struct values model_read(struct params *params)
{
    struct values values = {0};
    struct error error = {0};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const struct parameter *parameter = params_at(params, i);
        if (parameter->kind == PARAMETER_COUNTER)
            values.of[i][0] = (double)parameter->counter;
        else
            ck_assert_msg(params_read(params, parameter, DTYPE_F64, values.of[i], &error) == STATUS_OK, "%s",
                          error.text);
    }
    return values;
}

static void expect_same(const struct values *a, const struct values *b)
{
    for (size_t i = 0; i < ENTRIES; i++)
        for (size_t j = 0; j < VALUES_MAX; j++)
            ck_assert_msg(a->of[i][j] == b->of[i][j], "%s, element %zu: %.17g and %.17g", registered[i].name,
                          j, a->of[i][j], b->of[i][j]);
}

/* As a float32 holds them, but for the counter. */
static struct values rounded(struct values values)
{
    for (size_t i = 0; i < ENTRIES; i++)
        for (size_t j = 0; j < VALUES_MAX && registered[i].kind != PARAMETER_COUNTER; j++)
            values.of[i][j] = (double)(float)values.of[i][j];
    return values;
}

static void save(struct params *params, const char *to)
{
    struct error error = {0};
    ck_assert_msg(model_file_save(params, to, &error) == STATUS_OK, "%s", error.text);
}

static void load(struct params *params, const char *from)
{
    struct error error = {0};
    ck_assert_msg(model_file_load(params, from, &error) == STATUS_OK, "%s", error.text);
}

/* Header and all; the data have `data_bytes`. */
static void expect_equal_files(const char *a, const char *b, size_t data_bytes)
{
    char *left = file_read(a), *right = file_read(b);
    uint64_t header_bytes;
    memcpy(&header_bytes, left, sizeof header_bytes);
    ck_assert_int_eq(memcmp(left, right, sizeof header_bytes + header_bytes + data_bytes), 0);
    free(left);
    free(right);
}

static void set_up(void)
{
    const struct backend_settings settings = {.threads = 1};
    struct error error = {0};
    workplace_open();
    snprintf(path, sizeof path, "%.63s/weights.safetensors", workplace.folder);
    snprintf(other_path, sizeof other_path, "%.63s/other.safetensors", workplace.folder);
    ck_assert_int_eq(backend_open(&backends[0], &ref_ops, &settings, &error), STATUS_OK);
    ck_assert_msg(backend_load(&backends[1], backend_names[1], &settings, &error) == STATUS_OK, "%s",
                  error.text);
}

static void tear_down(void)
{
    for (size_t i = 0; i < 2; i++)
        backend_close(backends[i]);
    workplace_close();
}

/* ---- what fits ---- */

START_TEST(what_was_saved_is_loaded)
{
    struct backend *backend = backends[_i];
    struct params *first = model_new(backend, 1), *second = model_new(backend, 2);
    struct values saved = model_read(first), before = model_read(second);
    ck_assert_double_ne(saved.of[0][0], before.of[0][0]);
    save(first, path);
    load(second, path);
    struct values loaded = model_read(second);
    expect_same(&saved, &loaded);
    ck_assert_int_eq(params_find(second, "bn.num_batches_tracked")->counter, 1LL << 40);
    save(second, other_path);
    expect_equal_files(path, other_path, 29 * dtype_bytes(backend->ops->dtype) + sizeof(int64_t));
    params_free(first);
    params_free(second);
}
END_TEST

START_TEST(the_file_holds_names_shapes_and_dtypes)
{
    struct params *params = model_new(backends[_i], 1);
    struct safetensors *file = NULL;
    struct error error = {0};
    save(params, path);
    ck_assert_int_eq(safetensors_open(&file, path_of(path), &error), STATUS_OK);
    ck_assert_uint_eq(file->count, ENTRIES);
    for (size_t i = 0; i < ENTRIES; i++) {
        const struct safetensors_entry *entry = safetensors_find(file, registered[i].name);
        ck_assert_ptr_nonnull(entry);
        ck_assert_uint_eq(entry->rank, registered[i].shape.rank);
        for (uint32_t j = 0; j < entry->rank; j++)
            ck_assert_uint_eq(entry->size[j], registered[i].shape.size[j]);
        ck_assert_str_eq(entry->dtype, registered[i].kind == PARAMETER_COUNTER ? "I64"
                                       : _i == 0                               ? "F64"
                                                                               : "F32");
    }
    safetensors_close(file);
    params_free(params);
}
END_TEST

START_TEST(a_file_goes_from_backend_to_backend)
{
    struct params *from = model_new(backends[_i], 1), *to = model_new(backends[1 - _i], 2);
    struct values saved = model_read(from), expected = rounded(saved);
    save(from, path);
    load(to, path);
    struct values loaded = model_read(to);
    expect_same(&expected, &loaded);
    params_free(from);
    params_free(to);
}
END_TEST

/* A forward whose weight the CPU backend wants in a blocked layout: the file stays canonical. */
START_TEST(a_reordered_layout_does_not_reach_the_file)
{
    static float images[2 * 32 * 8 * 8];
    struct params *params = NULL;
    struct parameter *weight;
    struct tape *tape = NULL;
    struct error error = {0};
    ck_assert_int_eq(params_new(&params, backends[1], &error), STATUS_OK);
    ck_assert_int_eq(params_add(params, "weight", PARAMETER_TRAINED, SHAPE4(32, 32, 3, 3),
                                (struct init){INIT_UNIFORM, 1}, &weight, &error),
                     STATUS_OK);
    ck_assert_int_eq(params_build(params, 1, &error), STATUS_OK);
    save(params, path);
    ck_assert_int_eq(tape_new(&tape, backends[1], &error), STATUS_OK);
    tape_begin(tape, TAPE_TRAIN, NULL);
    struct variable *x = tape_input(tape, SHAPE4(2, 32, 8, 8), DTYPE_F32, "images", images);
    tape_conv2d(tape, x, tape_parameter(tape, weight), NULL, 1, 1);
    ck_assert_msg(tape_finish(tape, &error) == STATUS_OK, "%s", error.text);
    reorder_params(params, NULL, 0);
    ck_assert_ptr_nonnull(weight->tensor.layout);
    save(params, other_path);
    expect_equal_files(path, other_path, 32 * 32 * 9 * sizeof(float));
    load(params, path);
    ck_assert_ptr_nonnull(weight->tensor.layout);
    save(params, other_path);
    expect_equal_files(path, other_path, 32 * 32 * 9 * sizeof(float));
    tape_free(tape);
    params_free(params);
}
END_TEST

/* ---- what does not ---- */

/* Saves the model, lets `change` alter the file's entries (there is room for ten), and loads the result into
 * another model: refused with all of `words`, and nothing changed. */
static void refuse(void (*change)(struct safetensors_entry *entries, size_t *count), const char *const *words)
{
    struct params *first = model_new(backends[0], 1), *second = model_new(backends[0], 2);
    struct values before = model_read(second);
    struct safetensors *file = NULL;
    struct safetensors_entry entries[10];
    const void *values[10];
    struct error error = {0};
    size_t count = ENTRIES;
    save(first, path);
    char *bytes = file_read(path);
    ck_assert_int_eq(safetensors_open(&file, path_of(path), &error), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        entries[i] = *safetensors_find(file, registered[i].name);
    change(entries, &count);
    for (size_t i = 0; i < count; i++)
        values[i] = bytes + entries[i].offset;
    ck_assert(safetensors_memory_write(other_path, entries, values, count));
    ck_assert_int_eq(model_file_load(second, other_path, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, other_path));
    for (; *words != NULL; words++)
        ck_assert_msg(strstr(error.text, *words) != NULL, "\"%s\" does not say \"%s\"", error.text, *words);
    struct values after = model_read(second);
    expect_same(&before, &after);
    safetensors_close(file);
    free(bytes);
    params_free(first);
    params_free(second);
}

static void drop_bias(struct safetensors_entry *entries, size_t *count)
{
    entries[1] = entries[--*count];
}

static void add_entry(struct safetensors_entry *entries, size_t *count)
{
    entries[*count] = entries[0];
    entries[(*count)++].name = "fc.weight\n";
}

static void transpose(struct safetensors_entry *entries, size_t *count)
{
    (void)count;
    entries[0].size[0] = 2;
    entries[0].size[1] = 3;
}

static void flatten(struct safetensors_entry *entries, size_t *count)
{
    (void)count;
    entries[0].rank = 3;
    entries[0].size[1] = 6;
    entries[0].size[2] = 1;
}

static void make_scalar(struct safetensors_entry *entries, size_t *count)
{
    (void)count;
    entries[1].rank = 0;
    entries[1].bytes = 8;
}

static void make_vector(struct safetensors_entry *entries, size_t *count)
{
    (void)count;
    entries[4].rank = 1;
    entries[4].size[0] = 1;
}

static void make_integers(struct safetensors_entry *entries, size_t *count)
{
    (void)count;
    entries[2].dtype = "I64";
    entries[3].dtype = "F64";
}

/* Four problems, of which a message has room for two. */
static void add_long_entries(struct safetensors_entry *entries, size_t *count)
{
    static const char *const names[] = {
        "first name \n\n\n\n\n\n\n\n\n\n characters", "second name \n\n\n\n\n\n\n\n\n\n characters",
        "third name \n\n\n\n\n\n\n\n\n\n characters", "fourth name \n\n\n\n\n\n\n\n\n\n characters"};
    for (size_t i = 0; i < 4; i++) {
        struct safetensors_entry *entry = &entries[(*count)++];
        *entry = (struct safetensors_entry){.name = names[i], .dtype = "F32", .rank = SAFETENSORS_RANK_MAX};
        for (uint32_t j = 1; j < SAFETENSORS_RANK_MAX; j++)
            entry->size[j] = UINT64_C(1) << 53;
    }
}

static void spoil_everything(struct safetensors_entry *entries, size_t *count)
{
    for (size_t i = 0; i < *count; i++)
        entries[i].dtype = "U64";
    add_entry(entries, count);
}

START_TEST(what_does_not_fit_changes_nothing)
{
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
    refuse(drop_bias, WORDS("does not fit the model: conv.bias is missing, expected 3"));
    refuse(add_entry, WORDS("fc.weight\\u000a of 3x2x3x1 is not in the model"));
    refuse(transpose, WORDS("conv.weight is 2x3x3x1, expected 3x2x3x1"));
    refuse(flatten, WORDS("conv.weight is 3x6x1, expected 3x2x3x1"));
    refuse(make_scalar, WORDS("conv.bias is scalar, expected 3"));
    refuse(make_vector, WORDS("temperature is 1, expected scalar"));
    refuse(make_integers, WORDS("bn.running_var holds I64, expected F32 or F64",
                                "; bn.num_batches_tracked holds F64, expected I64"));
    refuse(spoil_everything,
           WORDS("conv.weight holds U64", "bn.num_batches_tracked holds U64", "; and 2 more"));
    refuse(add_long_entries, WORDS("first name \\u000a", "0x9007199254740992x"));
}
END_TEST

/* ---- parts ---- */

static struct params_file *open_part(struct params *params, const char *from,
                                     const struct params_range *range, bool counters_optional,
                                     const char *words)
{
    struct params_file *file = NULL;
    struct error error = {0};
    enum status status = params_file_open(&file, params, path_of(from), range, counters_optional, &error);
    if (words == NULL) {
        ck_assert_msg(status == STATUS_OK, "%s", error.text);
        return file;
    }
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" does not say \"%s\"", error.text, words);
    ck_assert_ptr_null(file);
    return NULL;
}

static void save_part(const char *to, struct params_saving saving)
{
    struct error error = {0};
    ck_assert_msg(params_file_save(path_of(to), &saving, &error) == STATUS_OK, "%s", error.text);
}

/* Two models, a file of one's first entry, and a file of the other with that part in it. */
START_TEST(a_part_is_saved_merged_and_loaded)
{
    const struct params_range first = {.first = 0, .end = 1}, none = {0};
    struct params *one = model_new(backends[_i], 1), *two = model_new(backends[_i], 2);
    struct values of_one = model_read(one), expected = model_read(two);
    struct error error = {0};
    save_part(path, (struct params_saving){.params = one, .contents = first});
    open_part(two, path, &PARAMS_RANGE_ALL, false,
              "conv.bias is missing, expected 3; bn.running_var is missing");
    open_part(two, path, &none, false, "conv.weight of 3x2x3x1 is not in this shard of the model");
    struct params_file *part = open_part(two, path, &first, false, NULL);
    save_part(other_path,
              (struct params_saving){
                  .params = two, .contents = PARAMS_RANGE_ALL, .sources = &part, .source_count = 1});
    params_file_close(part);
    struct params *three = model_new(backends[_i], 3);
    load(three, other_path);
    struct values merged = model_read(three);
    memcpy(expected.of[0], of_one.of[0], sizeof expected.of[0]);
    expect_same(&merged, &expected);
    struct params *four = model_new(backends[_i], 4);
    expected = model_read(four);
    part = open_part(four, other_path, &PARAMS_RANGE_ALL, false, NULL);
    ck_assert_int_eq(params_file_load(part, NULL, &(struct params_range){.first = 1, .end = 4}, &error),
                     STATUS_OK);
    memcpy(expected.of[1], merged.of[1], sizeof expected.of[1]);
    struct values loaded = model_read(four);
    expect_same(&loaded, &expected);
    params_file_close(part);
    params_free(one);
    params_free(two);
    params_free(three);
    params_free(four);
}
END_TEST

START_TEST(a_slab_beside_the_parameters_is_saved_and_loaded)
{
    struct params *params = model_new(backends[_i], 1), *other = model_new(backends[_i], 2);
    struct gradients *saved = NULL, *loaded = NULL;
    struct error error = {0};
    struct values values = model_read(params), before = model_read(other), got = {0};
    bool fresh;
    ck_assert_int_eq(gradients_new(&saved, params, &error), STATUS_OK);
    ck_assert_int_eq(gradients_new(&loaded, other, &error), STATUS_OK);
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (registered[i].kind == PARAMETER_TRAINED)
            ck_assert_int_eq(backend_upload(backends[_i], gradients_take(saved, params_at(params, i), &fresh),
                                            DTYPE_F64, values.of[i], &error),
                             STATUS_OK);
    save_part(path,
              (struct params_saving){.params = params, .parallel = saved, .contents = PARAMS_RANGE_TRAINED});
    struct params_file *file = open_part(other, path, &PARAMS_RANGE_TRAINED, false, NULL);
    ck_assert_int_eq(params_file_load(file, loaded, &PARAMS_RANGE_TRAINED, &error), STATUS_OK);
    params_file_close(file);
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (registered[i].kind == PARAMETER_TRAINED)
            ck_assert_int_eq(gradients_read(loaded, params_at(other, i), DTYPE_F64, got.of[i], &error),
                             STATUS_OK);
        else
            memcpy(got.of[i], values.of[i], sizeof got.of[i]);
    expect_same(&got, &values);
    struct values after = model_read(other);
    expect_same(&after, &before);
    gradients_free(saved);
    gradients_free(loaded);
    params_free(params);
    params_free(other);
}
END_TEST

START_TEST(bad_files_are_told_apart)
{
    struct params *params = model_new(backends[0], 1);
    struct values before = model_read(params);
    struct error error = {0};
    ck_assert_int_eq(model_file_load(params, path, &error), STATUS_NOT_FOUND);
    save(params, path);
    params_find(params, "bn.num_batches_tracked")->counter = 3;
    ck_assert_int_eq(truncate(path, 400), 0);
    ck_assert_int_eq(model_file_load(params, path, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    before.of[3][0] = 3;
    struct values after = model_read(params);
    expect_same(&before, &after);
    params_free(params);
}
END_TEST

/* The first value of the first entry becomes a NaN, as F32 and as F64. */
START_TEST(a_value_that_is_not_finite_is_refused)
{
    struct params *params = model_new(backends[_i], 1);
    struct error error = {0};
    uint64_t header_bytes;
    save(params, path);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(&header_bytes, sizeof header_bytes, 1, file), 1);
    ck_assert_int_eq(fseek(file, (long)header_bytes, SEEK_CUR), 0);
    ck_assert_uint_eq(fwrite(&(uint64_t){UINT64_MAX}, sizeof(uint64_t), 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(model_file_load(params, path, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, registered[0].name));
    ck_assert_ptr_nonnull(strstr(error.text, "holds a NaN or an infinity"));
    params_free(params);
}
END_TEST

START_TEST(a_full_disk_is_told)
{
    struct params *params = model_new(backends[_i], 1);
    struct rlimit limit = {.rlim_cur = 300, .rlim_max = RLIM_INFINITY};
    struct error error = {0};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(model_file_save(params, path, &error), STATUS_IO);
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    params_free(params);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("params_file");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, set_up, tear_down);
    tcase_add_loop_test(files, what_was_saved_is_loaded, 0, 2);
    tcase_add_loop_test(files, the_file_holds_names_shapes_and_dtypes, 0, 2);
    tcase_add_loop_test(files, a_file_goes_from_backend_to_backend, 0, 2);
    tcase_add_test(files, a_reordered_layout_does_not_reach_the_file);
    tcase_add_test(files, what_does_not_fit_changes_nothing);
    tcase_add_loop_test(files, a_part_is_saved_merged_and_loaded, 0, 2);
    tcase_add_loop_test(files, a_slab_beside_the_parameters_is_saved_and_loaded, 0, 2);
    tcase_add_test(files, bad_files_are_told_apart);
    tcase_add_loop_test(files, a_value_that_is_not_finite_is_refused, 0, 2);
    tcase_add_loop_test(files, a_full_disk_is_told, 0, 2);
    tcase_set_timeout(files, 60);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
