/* safetensors files: what is written is read, files of Python's library are read and ours by it, and a file
 * that cannot be written leaves the old one. */
#include "test/kernels/safetensors/safetensors_memory.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[128], new_path[132];
static const void *const four = "1234"; // bytes

static void folder_open(void)
{
    workplace_open();
    snprintf(path, sizeof path, "%.63s/weights.safetensors", workplace.folder);
    snprintf(new_path, sizeof new_path, "%s.tmp", path);
}

static struct safetensors *open_file(const char *name)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    ck_assert_msg(safetensors_open(&file, name, &error) == STATUS_OK, "%s", error.text);
    return file;
}

/* ---- files ---- */

START_TEST(no_file_is_told_apart_from_a_bad_one)
{
    struct safetensors *file;
    struct error error = {0};
    ck_assert_int_eq(safetensors_open(&file, path, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_int_eq(safetensors_open(&file, workplace.folder, &error), STATUS_IO);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(safetensors_open(&file, path, &error), STATUS_IO);
    ck_assert_int_eq(unlink(path), 0);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(safetensors_open(&file, path, &error), STATUS_CORRUPT);
    ck_assert_ptr_null(file);
}
END_TEST

/* The tensors of test/golden/safetensors_files.py, which says what they hold. */
enum { GOLDEN_COUNT = 6, SKIPPED = 77 };
static const struct {
    const char *name;
    enum safetensors_dtype dtype;
    uint32_t rank;
    uint64_t size[4];
    size_t bytes;
} golden[GOLDEN_COUNT] = {
    {"conv.weight", SAFETENSORS_F32, 4, {2, 3, 1, 2}, 48},
    {"double", SAFETENSORS_F64, 1, {3}, 24},
    {"empty", SAFETENSORS_F32, 2, {0, 4}, 0},
    {"indices", SAFETENSORS_I32, 2, {2, 2}, 16},
    {"num_batches_tracked", SAFETENSORS_I64, 0, {0}, 8},
    {"odd \"name\"\\\n\xC3\xA9", SAFETENSORS_F32, 1, {2}, 8},
};

static void golden_values(void *out, size_t tensor)
{
    for (size_t i = 0, at = 0; at < golden[tensor].bytes; i++) {
        int64_t integer = (int64_t)(100 * tensor + i);
        int32_t small = (int32_t)integer;
        double real = (double)integer - 7;
        float single = (float)real;
        const void *from[] = {&single, &real, &small, &integer};
        size_t bytes =
            golden[tensor].dtype == SAFETENSORS_F32 || golden[tensor].dtype == SAFETENSORS_I32 ? 4 : 8;
        memcpy((char *)out + at, from[golden[tensor].dtype], bytes);
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
    ck_assert_uint_eq(safetensors_count(file), GOLDEN_COUNT);
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        const struct safetensors_entry *entry = safetensors_find(file, golden[i].name);
        char values[64];
        ck_assert_msg(entry != NULL, "%s is missing", golden[i].name);
        ck_assert_int_eq(entry->dtype, golden[i].dtype);
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
    ck_assert(half != NULL && flags != NULL && safetensors_count(file) == 2);
    ck_assert(half->dtype == SAFETENSORS_OTHER && flags->dtype == SAFETENSORS_OTHER);
    ck_assert_str_eq(half->dtype_text, "F16");
    ck_assert_str_eq(flags->dtype_text, "BOOL");
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
    struct error error = {0};
    golden_entries(entries, values, memory);
    ck_assert_msg(safetensors_memory_write(path, entries, memory, GOLDEN_COUNT, &error) == STATUS_OK, "%s",
                  error.text);
    ck_assert_int_ne(access(new_path, F_OK), 0);
}

START_TEST(what_is_written_is_read)
{
    write_golden();
    struct safetensors *file = open_file(path);
    expect_golden(file);
    ck_assert_uint_eq(safetensors_at(file, 0)->offset % 8, 0);
    for (size_t i = 0; i < GOLDEN_COUNT; i++)
        ck_assert_str_eq(safetensors_at(file, i)->name, golden[i].name);
    char *once = file_read(path);
    struct stat stat_once, stat_twice;
    ck_assert_int_eq(stat(path, &stat_once), 0);
    write_golden();
    char *twice = file_read(path);
    ck_assert_int_eq(stat(path, &stat_twice), 0);
    ck_assert_int_eq(stat_once.st_size, stat_twice.st_size);
    ck_assert_int_eq(memcmp(once, twice, (size_t)stat_once.st_size), 0);
    ck_assert_uint_ne(stat_once.st_ino, stat_twice.st_ino);
    expect_golden(file); /* the old file's */
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
    const struct safetensors_entry *last = safetensors_at(file, GOLDEN_COUNT - 1);
    ck_assert_int_eq(truncate(path, (off_t)(last->offset + last->bytes - 1)), 0);
    expect_values(file, safetensors_find(file, "indices"), (const int32_t[]){300, 301, 302, 303});
    ck_assert_int_eq(safetensors_read(file, last, values, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_ptr_nonnull(strstr(error.text, "it ends within tensor \"odd "));
    safetensors_close(file);
}
END_TEST

/* ---- streams ---- */

struct streaming {
    const struct safetensors_entry *entries;
    const void **memory;
    size_t asked, fail_at;
    char *seen; /* what `written` was told, from its begin */
    size_t seen_bytes;
};

static enum status stream_fill(void *context, size_t index, void *values, struct error *error)
{
    struct streaming *streaming = context;
    ck_assert_uint_eq(index, streaming->asked++);
    if (index == streaming->fail_at)
        return error_set(error, STATUS_INTERNAL, "the source failed");
    memcpy(values, streaming->memory[index], streaming->entries[index].bytes);
    return STATUS_OK;
}

static void stream_written(void *observer, const void *bytes, size_t count)
{
    struct streaming *streaming = observer;
    ck_assert_uint_le(streaming->seen_bytes + count, 4096);
    memcpy(streaming->seen + streaming->seen_bytes, bytes, count);
    streaming->seen_bytes += count;
}

static enum status write_streaming(struct streaming *streaming, size_t fail_at, struct error *error)
{
    struct safetensors_entry entries[GOLDEN_COUNT];
    const void *memory[GOLDEN_COUNT];
    char values[GOLDEN_COUNT][64];
    golden_entries(entries, values, memory);
    *streaming =
        (struct streaming){.entries = entries, .memory = memory, .fail_at = fail_at, .seen = malloc(4096)};
    const struct safetensors_stream stream = {stream_fill, streaming, stream_written, streaming};
    enum status status = safetensors_write(path, entries, GOLDEN_COUNT, &stream, error);
    streaming->entries = NULL;
    streaming->memory = NULL;
    return status;
}

START_TEST(the_observer_sees_the_file)
{
    struct streaming streaming;
    struct error error = {0};
    struct stat stat_of;
    write_golden();
    char *from_memory = file_read(path);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_msg(write_streaming(&streaming, SIZE_MAX, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(streaming.asked, GOLDEN_COUNT);
    ck_assert_int_eq(stat(path, &stat_of), 0);
    char *from_stream = file_read(path);
    ck_assert_uint_eq(streaming.seen_bytes, (size_t)stat_of.st_size);
    ck_assert_mem_eq(from_stream, from_memory, streaming.seen_bytes);
    ck_assert_mem_eq(from_stream, streaming.seen, streaming.seen_bytes);
    free(streaming.seen);
    free(from_memory);
    free(from_stream);
}
END_TEST

START_TEST(a_stream_that_fails_leaves_nothing)
{
    struct streaming streaming;
    struct error error = {0};
    ck_assert_int_eq(write_streaming(&streaming, 2, &error), STATUS_INTERNAL);
    ck_assert_uint_eq(streaming.asked, 3);
    ck_assert_str_eq(error.text, "the source failed");
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_ne(access(new_path, F_OK), 0);
    free(streaming.seen);
}
END_TEST

START_TEST(other_dtypes_and_no_tensors_are_written)
{
    struct error error = {0};
    struct safetensors_entry entry = {
        .name = "half", .dtype = SAFETENSORS_OTHER, .dtype_text = "BF16", .rank = 1, .size = {2}, .bytes = 4};
    ck_assert_int_eq(safetensors_memory_write(path, &entry, &four, 1, &error), STATUS_OK);
    struct safetensors *file = open_file(path);
    ck_assert_str_eq(safetensors_at(file, 0)->dtype_text, "BF16");
    expect_values(file, safetensors_at(file, 0), "1234");
    safetensors_close(file);
    ck_assert_int_eq(safetensors_memory_write(path, NULL, NULL, 0, &error), STATUS_OK);
    file = open_file(path);
    ck_assert_uint_eq(safetensors_count(file), 0);
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

START_TEST(what_no_file_may_hold_is_not_written)
{
    static const struct {
        struct safetensors_entry entry;
        const char *words;
    } bad[] = {
        {{.name = "__metadata__", .dtype = SAFETENSORS_F32, .bytes = 4}, "keeps this name"},
        {{.name = "\xFF", .dtype = SAFETENSORS_F32, .bytes = 4},
         "tensor \"\\xff\" cannot be written: its name is not UTF-8"},
        {{.name = "a", .dtype = SAFETENSORS_F64, .bytes = 4}, "do not give its number of bytes"},
        {{.name = "a", .rank = 2, .size = {1, 2}, .bytes = 4}, "do not give its number of bytes"},
        {{.name = "a", .rank = 2, .size = {1ULL << 32, 1ULL << 32}}, "do not give its number of bytes"},
        {{.name = "a", .rank = SAFETENSORS_RANK_MAX + 1, .bytes = 4}, "too many dimensions"},
        {{.name = "a", .dtype = SAFETENSORS_OTHER, .dtype_text = "F31"}, "no such dtype"},
        {{.name = "a", .rank = 2, .size = {1ULL << 54, 0}}, "its header would hold an integer beyond 2^53"},
    };
    struct error error = {0};
    write_golden();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(safetensors_memory_write(path, &bad[i].entry, &four, 1, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, bad[i].words) != NULL, "\"%s\" does not say \"%s\"", error.text,
                      bad[i].words);
    }
    struct safetensors_entry twice[3] = {
        {.name = "b", .size = {0}, .rank = 1}, {.name = "a", .rank = 1}, {.name = "b", .rank = 1}};
    ck_assert_int_eq(safetensors_memory_write(path, twice, (const void *[]){four, four, four}, 3, &error),
                     STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "tensor \"b\" cannot be written twice"));
    struct safetensors *file = open_file(path);
    expect_golden(file);
    safetensors_close(file);
}
END_TEST

START_TEST(a_failure_leaves_the_old_file)
{
    struct safetensors_entry entry = {.name = "large", .rank = 1, .size = {1 << 18}, .bytes = 1 << 20};
    struct error error = {0};
    struct rlimit limit = {.rlim_cur = 1 << 16, .rlim_max = RLIM_INFINITY};
    const void *values = calloc(1, entry.bytes);
    write_golden();
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(safetensors_memory_write(path, &entry, &values, 1, &error), STATUS_IO);
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_ptr_nonnull(strstr(error.text, new_path));
    ck_assert_int_ne(access(new_path, F_OK), 0);
    struct safetensors *file = open_file(path);
    expect_golden(file);
    safetensors_close(file);
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/weights", path);
    ck_assert_int_eq(safetensors_memory_write(nowhere, &entry, &values, 1, &error), STATUS_NOT_FOUND);
    ck_assert_int_eq(safetensors_memory_write(workplace.folder, &entry, &values, 1, &error),
                     STATUS_IO); /* a folder */
    free((void *)(uintptr_t)values);
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
    tcase_add_test(files, the_observer_sees_the_file);
    tcase_add_test(files, a_stream_that_fails_leaves_nothing);
    tcase_add_test(files, other_dtypes_and_no_tensors_are_written);
    tcase_add_test(files, python_reads_ours);
    tcase_add_test(files, what_no_file_may_hold_is_not_written);
    tcase_add_test(files, a_failure_leaves_the_old_file);
    tcase_set_timeout(files, 120);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
