/* safetensors files: written files are read again, our library reads the files of Python's, and Python's
 * reads ours. */
#include "test/kernels/safetensors/safetensors_memory.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <stdbool.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[128];
static const void *const four = "1234"; // bytes

static void folder_open(void)
{
    workplace_open();
    snprintf(path, sizeof path, "%.63s/weights.safetensors", workplace.folder);
}

static struct safetensors *open_file(const char *name)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    ck_assert_msg(safetensors_open(&file, path_of(name), &error) == STATUS_OK, "%s", error.text);
    return file;
}

/* ---- files ---- */

START_TEST(no_file_is_told_apart_from_a_bad_one)
{
    struct safetensors *file;
    struct error error = {0};
    ck_assert_int_eq(safetensors_open(&file, path_of(path), &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_int_eq(safetensors_open(&file, path_of(workplace.folder), &error), STATUS_IO);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(safetensors_open(&file, path_of(path), &error), STATUS_IO);
    ck_assert_int_eq(unlink(path), 0);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(safetensors_open(&file, path_of(path), &error), STATUS_CORRUPT);
    ck_assert_ptr_null(file);
}
END_TEST

/* The tensors of test/golden/safetensors_files.py, which says what they hold. */
enum { GOLDEN_COUNT = 6, SKIPPED = 77 };
static const struct {
    const char *name;
    const char *dtype;
    uint32_t rank;
    uint64_t size[4];
    size_t bytes;
} golden[GOLDEN_COUNT] = {
    {"conv.weight", "F32", 4, {2, 3, 1, 2}, 48},
    {"double", "F64", 1, {3}, 24},
    {"empty", "F32", 2, {0, 4}, 0},
    {"indices", "I32", 2, {2, 2}, 16},
    {"num_batches_tracked", "I64", 0, {0}, 8},
    {"odd \"name\"\\\n\xC3\xA9", "F32", 1, {2}, 8},
};

static void golden_values(void *out, size_t tensor)
{
    for (size_t i = 0, at = 0; at < golden[tensor].bytes; i++) {
        int64_t integer = (int64_t)(100 * tensor + i);
        int32_t small = (int32_t)integer;
        double real = (double)integer - 7;
        float single = (float)real;
        const bool wide = strcmp(golden[tensor].dtype + 1, "64") == 0;
        const void *real_from = wide ? (const void *)&real : &single;
        const void *integer_from = wide ? (const void *)&integer : &small;
        size_t bytes = wide ? 8 : 4;
        memcpy((char *)out + at, golden[tensor].dtype[0] == 'F' ? real_from : integer_from, bytes);
        at += bytes;
    }
}

static void expect_values(const struct safetensors *file, const struct safetensors_entry *entry,
                          const void *expected)
{
    char values[64];
    struct error error = {0};
    ck_assert_uint_le(entry->bytes, sizeof values);
    ck_assert_msg(safetensors_read(file, entry, values, &error) == STATUS_OK, "%s", error.text);
    ck_assert_int_eq(memcmp(values, expected, entry->bytes), 0);
}

static void expect_golden(const struct safetensors *file)
{
    ck_assert_uint_eq(file->count, GOLDEN_COUNT);
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        const struct safetensors_entry *entry = safetensors_find(file, golden[i].name);
        char values[64];
        ck_assert_msg(entry != NULL, "%s is missing", golden[i].name);
        ck_assert_str_eq(entry->dtype, golden[i].dtype);
        ck_assert_uint_eq(entry->rank, golden[i].rank);
        ck_assert_mem_eq(entry->size, golden[i].size, golden[i].rank * sizeof golden[i].size[0]);
        ck_assert_uint_eq(entry->bytes, golden[i].bytes);
        golden_values(values, i);
        expect_values(file, entry, values);
    }
}

/* The golden tensors as entries, in the table's order; `values` holds them, and `memory` points there. */
static void golden_entries(struct safetensors_entry *entries, char (*values)[64], const void **memory)
{
    memset(entries, 0, GOLDEN_COUNT * sizeof *entries);
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        golden_values(values[i], i);
        memory[i] = values[i];
        entries[i] = (struct safetensors_entry){.name = golden[i].name,
                                                .dtype = golden[i].dtype,
                                                .rank = golden[i].rank,
                                                .bytes = golden[i].bytes};
        memcpy(entries[i].size, golden[i].size, sizeof golden[i].size);
    }
}

START_TEST(files_of_python_are_read)
{
    struct safetensors *file = open_file("test/golden/python.safetensors");
    expect_golden(file);
    safetensors_close(file);
    file = open_file("test/golden/python-other.safetensors");
    const struct safetensors_entry *half = safetensors_find(file, "half");
    const struct safetensors_entry *flags = safetensors_find(file, "flags");
    ck_assert(half != NULL && flags != NULL && file->count == 2);
    ck_assert_str_eq(half->dtype, "F16");
    ck_assert_str_eq(flags->dtype, "BOOL");
    ck_assert_uint_eq(half->bytes, 6);
    expect_values(file, flags, "\1\0\1");
    safetensors_close(file);
}
END_TEST

static void write_golden(void)
{
    struct safetensors_entry entries[GOLDEN_COUNT];
    char values[GOLDEN_COUNT][64];
    const void *memory[GOLDEN_COUNT];
    golden_entries(entries, values, memory);
    ck_assert(safetensors_memory_write(path, entries, memory, GOLDEN_COUNT));
}

START_TEST(what_is_written_is_read)
{
    write_golden();
    struct safetensors *file = open_file(path);
    expect_golden(file);
    ck_assert_uint_eq(file->entries[0].offset % 8, 0);
    for (size_t i = 0; i < GOLDEN_COUNT; i++)
        ck_assert_str_eq(file->entries[i].name, golden[i].name);
    char *once = file_read(path);
    struct stat stat_once, stat_twice;
    ck_assert_int_eq(stat(path, &stat_once), 0);
    write_golden();
    char *twice = file_read(path);
    ck_assert_int_eq(stat(path, &stat_twice), 0);
    ck_assert_int_eq(stat_once.st_size, stat_twice.st_size);
    ck_assert_int_eq(memcmp(once, twice, (size_t)stat_once.st_size), 0);
    safetensors_close(file);
    free(once);
    free(twice);
}
END_TEST

/* What is read of an open file that somebody cuts is an error and ends nobody. */
START_TEST(a_file_cut_while_it_is_open_is_told)
{
    char values[64];
    struct error error = {0};
    write_golden();
    struct safetensors *file = open_file(path);
    const struct safetensors_entry *last = &file->entries[GOLDEN_COUNT - 1];
    ck_assert_int_eq(truncate(path, (off_t)(last->offset + last->bytes - 1)), 0);
    expect_values(file, safetensors_find(file, "indices"), (const int32_t[]){300, 301, 302, 303});
    ck_assert_int_eq(safetensors_read(file, last, values, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_ptr_nonnull(strstr(error.text, "tensor \"odd "));
    safetensors_close(file);
}
END_TEST

START_TEST(other_dtypes_and_no_tensors_are_written)
{
    struct safetensors_entry entry = {.name = "half", .dtype = "BF16", .rank = 1, .size = {2}, .bytes = 4};
    ck_assert(safetensors_memory_write(path, &entry, &four, 1));
    struct safetensors *file = open_file(path);
    ck_assert_str_eq(file->entries[0].dtype, "BF16");
    expect_values(file, &file->entries[0], "1234");
    safetensors_close(file);
    ck_assert(safetensors_memory_write(path, NULL, NULL, 0));
    file = open_file(path);
    ck_assert_uint_eq(file->count, 0);
    safetensors_close(file);
}
END_TEST

START_TEST(python_reads_ours)
{
    static const char python[] = "build/python-venv/bin/python";
    if (access(python, X_OK) != 0) {
        puts("python_reads_ours: skipped: there is no build/python-venv (scripts/deps python makes it)");
        return;
    }
    write_golden();
    struct process process;
    const char *const argv[] = {python, "test/golden/safetensors_files.py", path, NULL};
    const int code = process_run(&process, workplace.folder, argv, NULL, 120);
    char *out = process_out(&process), *err = process_err(&process);
    ck_assert_msg(code == 0 || code == SKIPPED, "exit code %d: %s", code, err);
    if (code == SKIPPED)
        printf("python_reads_ours: skipped: %s", out);
    free(out);
    free(err);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors files");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, folder_open, workplace_close);
    tcase_add_test(files, no_file_is_told_apart_from_a_bad_one);
    tcase_add_test(files, files_of_python_are_read);
    tcase_add_test(files, what_is_written_is_read);
    tcase_add_test(files, a_file_cut_while_it_is_open_is_told);
    tcase_add_test(files, other_dtypes_and_no_tensors_are_written);
    tcase_add_test(files, python_reads_ours);
    tcase_set_timeout(files, 120);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
