/* Checkpoints there and back: bit for bit, from any number of servers to any other, in any layout; any
 * number of servers writes the same bytes, and a run may begin with a file that is no checkpoint. */
#include "test/worker/checkpoint/checkpoint_fixture.h"

#include "kernels/safetensors/safetensors.h"
#include "test/kernels/safetensors/safetensors_memory.h"

#include <math.h>
#include <unistd.h>

static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};
enum { FILES = 3 };

/* ---- helpers ---- */

struct contents {
    char *bytes[FILES];
    size_t size[FILES];
};

static struct contents contents_read(const char *checkpoint)
{
    struct contents contents;
    for (int i = 0; i < FILES; i++) {
        char path[256];
        struct stat stat_of;
        snprintf(path, sizeof path, "%s/%s", checkpoint_at(checkpoint), file_names[i]);
        ck_assert_msg(stat(path, &stat_of) == 0, "%s is missing", path);
        contents.size[i] = (size_t)stat_of.st_size;
        contents.bytes[i] = file_read(path);
    }
    return contents;
}

static void contents_free(struct contents *contents)
{
    for (int i = 0; i < FILES; i++)
        free(contents->bytes[i]);
}

static void expect_same_contents(const struct contents *a, const struct contents *b)
{
    for (int i = 0; i < FILES; i++) {
        ck_assert_msg(a->size[i] == b->size[i], "%s: %zu and %zu bytes", file_names[i], a->size[i],
                      b->size[i]);
        ck_assert_msg(memcmp(a->bytes[i], b->bytes[i], a->size[i]) == 0, "%s differs", file_names[i]);
    }
}

/* Loads with every one of `servers` into params full of something else. */
static void expect_loads(const char *path, uint64_t seed, uint32_t servers, bool blocked)
{
    for (uint32_t server = 0; server < servers; server++) {
        struct member member;
        member_open(&member, server, servers, blocked, true);
        member_write(&member, seed + 1);
        CK_OK(checkpoint_load(path_of(path), &member.values, &checkpoint_error));
        member_expect(&member, seed, seed);
        member_close(&member);
    }
}

/* ---- there and back ---- */

START_TEST(any_servers_write_the_same_files_and_any_read_them)
{
    struct contents first = {0};
    struct checkpoint_counters counters;
    for (uint32_t round = 0; round < 2 * SERVERS_MAX; round++) {
        const uint32_t servers = 1 + round / 2;
        const bool blocked = round % 2 == 1;
        CK_OK(checkpoint_prepare(7, 40, servers, blocked, true));
        CK_OK(checkpoint_publish(path_of(workplace.run_dir), 7, 3, &checkpoint_error));
        struct contents contents = contents_read("00000007");
        if (round == 0)
            first = contents_read("00000007");
        expect_same_contents(&contents, &first);
        expect_names("00000007", "manifest.json model.safetensors optimizer.safetensors");
        contents_free(&contents);
        CK_OK(checkpoint_check(path_of(checkpoint_at("00000007")), &counters, &checkpoint_error));
        expect_counters(&counters, 7);
        for (uint32_t readers = 1; readers <= SERVERS_MAX; readers++)
            expect_loads(checkpoint_at("00000007"), 40, readers, !blocked);
    }
    contents_free(&first);
}
END_TEST

START_TEST(the_files_hold_what_pytorch_calls_it)
{
    struct safetensors *file = NULL;
    char path[256];
    checkpoint_make(7, 1, 3);
    snprintf(path, sizeof path, "%s/model.safetensors", checkpoint_at("00000007"));
    CK_OK(safetensors_open(&file, path_of(path), &checkpoint_error));
    ck_assert_uint_eq(file->count, MODEL_ENTRIES);
    for (uint32_t i = 0; i < MODEL_ENTRIES; i++) {
        const struct safetensors_entry *entry = safetensors_find(file, model_entries[i].name);
        ck_assert_ptr_nonnull(entry);
        ck_assert_uint_eq(entry->rank, model_entries[i].shape.rank);
        ck_assert_str_eq(entry->dtype, i == MODEL_TRACKED ? "I64" : "F32");
    }
    safetensors_close(file);
    snprintf(path, sizeof path, "%s/optimizer.safetensors", checkpoint_at("00000007"));
    CK_OK(safetensors_open(&file, path_of(path), &checkpoint_error));
    ck_assert_uint_eq(file->count, MODEL_ENTRIES - 3);
    ck_assert_ptr_null(safetensors_find(file, "bn.running_mean"));
    ck_assert_ptr_nonnull(safetensors_find(file, "temperature"));
    safetensors_close(file);
    expect_names("00000007", "manifest.json model.safetensors optimizer.safetensors");
}
END_TEST

START_TEST(an_optimizer_without_momentum_saves_none)
{
    struct member with, without;
    CK_OK(checkpoint_prepare(7, 1, 2, false, false));
    CK_OK(checkpoint_publish(path_of(workplace.run_dir), 7, 3, &checkpoint_error));
    checkpoint_make(8, 1, 3);
    member_open(&with, 0, 1, false, true);
    member_open(&without, 0, 1, false, false);
    member_write(&with, 2);
    member_write(&without, 2);
    expect_failure(checkpoint_load(path_of(checkpoint_at("00000007")), &with.values, &checkpoint_error),
                   STATUS_INVALID, "saved without optimizer state, but the job's optimizer needs it");
    expect_failure(checkpoint_load(path_of(checkpoint_at("00000008")), &without.values, &checkpoint_error),
                   STATUS_INVALID, "saved with optimizer state, but the job's optimizer has none");
    member_expect(&with, 2, 2);
    member_expect(&without, 2, 2);
    CK_OK(checkpoint_load(path_of(checkpoint_at("00000007")), &without.values, &checkpoint_error));
    member_expect(&without, 1, 1);
    member_close(&with);
    member_close(&without);
}
END_TEST

START_TEST(counters_come_back_to_the_bit)
{
    static const double losses[] = {0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, -1.0 / 3};
    struct member member;
    member_open(&member, 0, 1, false, true);
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        struct checkpoint_counters saved = {.update = UINT64_MAX - i, .trainers = JOB_TRAINERS_MAX}, read;
        for (uint32_t j = 0; j < JOB_TRAINERS_MAX; j++)
            saved.steps[j] = UINT64_MAX / (j + 1);
        saved.epoch_loss = losses[i];
        saved.train = i % 2 * UINT64_MAX;
        saved.held_out = i / 2 % 2 * 9007199254740993; /* no double */
        CK_OK(checkpoint_begin(path_of(workplace.run_dir), saved.update, &checkpoint_error));
        CK_OK(checkpoint_write(path_of(workplace.run_dir), &saved, &checkpoint_place, &member.values, NULL,
                               &checkpoint_error));
        CK_OK(checkpoint_publish(path_of(workplace.run_dir), saved.update, 9, &checkpoint_error));
        char name[32];
        snprintf(name, sizeof name, "%" PRIu64, saved.update);
        memset(&read, 0xA5, sizeof read);
        CK_OK(checkpoint_facts(path_of(checkpoint_at(name)), &read, NULL, &checkpoint_error));
        ck_assert_mem_eq(read.steps, saved.steps, sizeof read.steps);
        ck_assert_mem_eq(&read.epoch_loss, &saved.epoch_loss, sizeof read.epoch_loss);
        ck_assert(read.update == saved.update && read.trainers == saved.trainers && read.late == saved.late);
        ck_assert(read.train == saved.train && read.held_out == saved.held_out);
    }
    struct checkpoint_counters endless = counters_of(1);
    endless.epoch_loss = INFINITY;
    expect_failure(checkpoint_write(path_of(workplace.run_dir), &endless, &checkpoint_place, &member.values,
                                    NULL, &checkpoint_error),
                   STATUS_INVALID, "the epoch's loss is inf");
    member_close(&member);
}
END_TEST

/* ---- a model alone ---- */

/* Another program's file of the same model: all values of `seed` as `dtype`, with the counter or without. */
static void write_weights(const char *path, uint64_t seed, const char *dtype, bool tracked)
{
    static double values[MODEL_ENTRIES][MODEL_ELEMENTS_MAX];
    float floats[MODEL_ELEMENTS_MAX];
    struct safetensors_entry entries[MODEL_ENTRIES] = {0};
    const void *memory[MODEL_ENTRIES];
    size_t count = 0;
    for (uint32_t i = MODEL_ENTRIES; i-- > 0;) {
        const struct shape *shape = &model_entries[i].shape;
        struct safetensors_entry *entry = &entries[count++];
        *entry = (struct safetensors_entry){.name = model_entries[i].name, .dtype = dtype};
        memory[count - 1] = values[i];
        const size_t elements = model_values(floats, seed, i, false);
        memcpy(values[i], floats, elements * sizeof *floats);
        for (size_t j = 0; strcmp(dtype, "F64") == 0 && j < elements; j++)
            values[i][j] = (double)floats[j] * (1 + 1e-9);
        entry->bytes = elements * (strcmp(dtype, "F64") == 0 ? 8 : strcmp(dtype, "F32") == 0 ? 4 : 2);
        for (entry->rank = 0; entry->rank < shape->rank; entry->rank++)
            entry->size[entry->rank] = shape->size[entry->rank];
        if (i == MODEL_TRACKED) {
            const int64_t number = model_tracked(seed);
            memcpy(values[i], &number, sizeof number);
            entry->dtype = "I64";
            entry->bytes = sizeof number;
            count -= !tracked;
        }
    }
    ck_assert(safetensors_memory_write(path, entries, memory, count));
}

START_TEST(any_file_of_the_model_can_be_begun_from)
{
    struct member member;
    char path[128];
    snprintf(path, sizeof path, "%.63s/weights.safetensors", workplace.folder);
    for (uint32_t server = 0; server < 2; server++) {
        member_open(&member, server, 2, true, true);
        member_write(&member, 2);
        for (uint64_t seed = 3; seed < 5; seed++) {
            write_weights(path, seed, seed == 3 ? "F32" : "F64", true);
            CK_OK(checkpoint_load_model(path_of(path), &member.values, &checkpoint_error));
            member_expect(&member, seed, 2);
        }
        write_weights(path, 5, "F32", false);
        CK_OK(checkpoint_load_model(path_of(path), &member.values, &checkpoint_error));
        struct parameter *tracked = params_at(member.values.params, MODEL_TRACKED);
        ck_assert_int_eq(tracked->counter, server == 0 ? 0 : tracked->counter);
        tracked->counter = model_tracked(5);
        member_expect(&member, 5, 2);
        checkpoint_make(7, 6, 3);
        CK_OK(checkpoint_load_model(path_of(checkpoint_at("00000007")), &member.values, &checkpoint_error));
        member_expect(&member, 6, 2);
        member_close(&member);
    }
}
END_TEST

START_TEST(a_model_that_does_not_fit_changes_nothing)
{
    struct member member;
    char path[128];
    snprintf(path, sizeof path, "%.63s/weights.safetensors", workplace.folder);
    member_open(&member, 0, 1, false, true);
    member_write(&member, 2);
    write_weights(path, 3, "BF16", true);
    expect_failure(checkpoint_load_model(path_of(path), &member.values, &checkpoint_error), STATUS_INVALID,
                   "conv.weight holds BF16, expected F32 or F64");
    expect_failure(checkpoint_load_model(path_of(workplace.run_dir), &member.values, &checkpoint_error),
                   STATUS_NOT_FOUND, "run/manifest.json");
    expect_failure(checkpoint_load_model(path_of("nowhere"), &member.values, &checkpoint_error),
                   STATUS_NOT_FOUND, "nowhere");
    struct params *params = NULL;
    CK_OK(params_new(&params, checkpoint_backend, &checkpoint_error));
    struct parameter *parameter;
    CK_OK(params_add(params, "conv.weight", PARAMETER_TRAINED, SHAPE1(3), (struct init){INIT_CONSTANT, 1},
                     &parameter, &checkpoint_error));
    CK_OK(params_build(params, 1, &checkpoint_error));
    const struct checkpoint_values other = {.params = params};
    checkpoint_make(7, 6, 3);
    expect_failure(checkpoint_load(path_of(checkpoint_at("00000007")), &other, &checkpoint_error),
                   STATUS_INVALID,
                   "00000007/model.safetensors does not fit the model: conv.weight is 32x32x3x3, expected 3");
    ck_assert_float_eq(((const float *)parameter->tensor.data)[0], 1);
    params_free(params);
    member_expect(&member, 2, 2);
    member_close(&member);
}
END_TEST

/* ---- folders ---- */

START_TEST(the_newest_is_the_largest_number_and_nothing_else_counts)
{
    static const char *const others[] = {
        "0100000001", "000000123",           "123",          "x",
        "00000123x",  "00000123.tmp",        "00000123.TMP", "99999999999999999999999",
        "-0000123",   "18446744073709551616"};
    struct checkpoint_counters counters;
    char path[CHECKPOINT_PATH_BYTES];
    expect_failure(find_newest(path, &counters), STATUS_NOT_FOUND, "run/checkpoints");
    CK_OK(checkpoint_begin(path_of(workplace.run_dir), 1, &checkpoint_error));
    expect_failure(find_newest(path, &counters), STATUS_NOT_FOUND,
                   "run/checkpoints: no sound checkpoint is there");
    checkpoint_make(99999999, 1, 9);
    checkpoint_make(0, 1, 9);
    expect_newest(99999999, "99999999");
    checkpoint_make(100000000, 1, 9);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        ck_assert_int_eq(mkdir(checkpoint_at(others[i]), 0755), 0);
    expect_newest(100000000, "100000000");
    ck_assert_str_eq(told, "");
    checkpoint_make(UINT64_MAX, 1, 9);
    expect_newest(UINT64_MAX, "18446744073709551615");
    ck_assert_str_eq(told, "");
}
END_TEST

START_TEST(the_newest_few_stay)
{
    for (uint64_t update = 1; update <= 4; update++)
        checkpoint_make(update, update, 3);
    expect_names("", "00000002 00000003 00000004");
    checkpoint_make(5, 5, 1);
    expect_names("", "00000005");
    checkpoint_make(6, 6, 2);
    expect_names("", "00000005 00000006");
    expect_newest(6, "00000006");
}
END_TEST

/* A run that resumed from an older checkpoint: what is damaged counts for nothing until it is replaced. */
START_TEST(a_damaged_newer_one_is_replaced_when_its_turn_comes)
{
    checkpoint_make(1, 1, 9);
    checkpoint_make(4, 4, 9);
    ck_assert_int_eq(unlink(checkpoint_at("00000004/model.safetensors")), 0);
    expect_newest(1, "00000001");
    ck_assert_ptr_nonnull(strstr(told, "00000004: "));
    ck_assert_ptr_nonnull(strstr(told, "/00000004/model.safetensors: No such file"));
    checkpoint_make(2, 2, 1);
    expect_names("", "00000002 00000004");
    expect_newest(2, "00000002");
    checkpoint_make(4, 4, 2);
    expect_names("", "00000002 00000004");
    expect_newest(4, "00000004");
    ck_assert_str_eq(told, "");
    expect_loads(checkpoint_at("00000004"), 4, 1, false);
    ck_assert_int_eq(truncate(checkpoint_at("00000002/manifest.json"), 0), 0);
    ck_assert_int_eq(rename(checkpoint_at("00000002"), checkpoint_at("00000004.tmp")), 0);
    checkpoint_make(5, 5, 2);
    expect_names("", "00000004 00000005");
}
END_TEST

START_TEST(leftovers_of_a_death_are_removed_by_the_next)
{
    checkpoint_make(1, 1, 9);
    CK_OK(checkpoint_prepare(2, 2, 2, false, true));
    expect_names("", "00000001 00000002.tmp");
    ck_assert_int_eq(mkdir(checkpoint_at("00000009.tmp"), 0755), 0);
    ck_assert_int_eq(mkdir(checkpoint_at("00000009.tmp/deep"), 0755), 0);
    ck_assert_int_eq(symlink(checkpoint_at("00000001"), checkpoint_at("00000010.tmp")), 0);
    ck_assert_int_eq(mkdir(checkpoint_at("notes.tmp"), 0755), 0);
    expect_newest(1, "00000001");
    ck_assert_str_eq(told, "");
    CK_OK(checkpoint_begin(path_of(workplace.run_dir), 2, &checkpoint_error));
    expect_names("", "00000001 00000002.tmp notes.tmp");
    expect_names("00000002.tmp", "");
    checkpoint_abandon(path_of(workplace.run_dir), 2);
    checkpoint_abandon(path_of(workplace.run_dir), 2);
    expect_names("", "00000001 notes.tmp");
    expect_newest(1, "00000001");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, checkpoint_open, checkpoint_close);
    tcase_add_test(files, any_servers_write_the_same_files_and_any_read_them);
    tcase_add_test(files, the_files_hold_what_pytorch_calls_it);
    tcase_add_test(files, an_optimizer_without_momentum_saves_none);
    tcase_add_test(files, counters_come_back_to_the_bit);
    tcase_add_test(files, any_file_of_the_model_can_be_begun_from);
    tcase_add_test(files, a_model_that_does_not_fit_changes_nothing);
    suite_add_tcase(suite, files);
    TCase *folders = tcase_create("folders");
    tcase_add_checked_fixture(folders, checkpoint_open, checkpoint_close);
    tcase_add_test(folders, the_newest_is_the_largest_number_and_nothing_else_counts);
    tcase_add_test(folders, the_newest_few_stay);
    tcase_add_test(folders, a_damaged_newer_one_is_replaced_when_its_turn_comes);
    tcase_add_test(folders, leftovers_of_a_death_are_removed_by_the_next);
    suite_add_tcase(suite, folders);
    return suite_run(suite);
}
