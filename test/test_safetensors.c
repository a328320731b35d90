/* safetensors: what is written is read, files of Python's library are read and ours by it, and every rule of
 * the header comment refuses the file that breaks it. */
#include "kernels/safetensors.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[128], new_path[132];

static void folder_open(void)
{
    workplace_open();
    snprintf(path, sizeof path, "%.63s/weights.safetensors", workplace.folder);
    snprintf(new_path, sizeof new_path, "%s.tmp", path);
}

/* ---- helpers ---- */

/* A file of that header and so many bytes of data, in memory that ends where the file does. */
static unsigned char *build(const char *header, size_t header_bytes, size_t data_bytes, size_t *count)
{
    uint64_t length = header_bytes;
    *count = 8 + header_bytes + data_bytes;
    unsigned char *bytes = malloc(*count);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + header_bytes + i] = (unsigned char)i;
    return bytes;
}

static void refuse_bytes(const char *what, const void *bytes, size_t count, const char *words)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    enum status status = safetensors_parse(&file, "weights", bytes, count, &error);
    ck_assert_msg(status == STATUS_CORRUPT, "%s: expected corrupt, got %s", what, status_name(status));
    ck_assert_int_eq(error.status, STATUS_CORRUPT);
    ck_assert_ptr_null(file);
    ck_assert_msg(strncmp(error.text, "weights: ", 9) == 0 && strstr(error.text, words) != NULL,
                  "%s: \"%s\" does not say \"%s\"", what, error.text, words);
}

static void refuse(const char *header, size_t header_bytes, size_t data_bytes, const char *words)
{
    size_t count;
    unsigned char *bytes = build(header, header_bytes, data_bytes, &count);
    refuse_bytes(header, bytes, count, words);
    free(bytes);
}

static struct safetensors *accept(const char *header, size_t data_bytes, unsigned char **bytes)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    size_t count;
    *bytes = build(header, strlen(header), data_bytes, &count);
    enum status status = safetensors_parse(&file, "weights", *bytes, count, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", header, error.text);
    return file;
}

static struct safetensors *open_file(const char *name)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    ck_assert_msg(safetensors_open(&file, name, &error) == STATUS_OK, "%s", error.text);
    return file;
}

/* ---- what is sound ---- */

#define F32_AT(begin, end) "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" #begin "," #end "]}"

START_TEST(sound_headers_are_read)
{
    static const struct {
        const char *header;
        size_t data_bytes, count;
    } sound[] = {
        {"{}", 0, 0},
        {"{ \t\r\n}   ", 0, 0},
        {"{\"a\":" F32_AT(0, 8) "}", 8, 1},
        {"{\"a\":" F32_AT(0, 8) ",\"__metadata__\":{}}", 8, 1},
        {"{\"__metadata__\":{\"a\":\"\",\"b\":\"x\"},\"a\":" F32_AT(0, 8) "}", 8, 1},
        {"{\"\":" F32_AT(0, 8) "}", 8, 1},
        {"{\"\\u00e9\\ud83d\\ude00\\n\":" F32_AT(0, 8) "}", 8, 1},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,8],\"dtype\":\"I64\"}}", 8, 1},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, 1},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]}}", 3, 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,5],\"data_offsets\":[0,5]}}", 5, 1},
    };
    for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
        unsigned char *bytes;
        struct safetensors *file = accept(sound[i].header, sound[i].data_bytes, &bytes);
        ck_assert_uint_eq(safetensors_count(file), sound[i].count);
        ck_assert_ptr_null(safetensors_find(file, "nowhere"));
        safetensors_close(file);
        free(bytes);
    }
    safetensors_close(NULL);
}
END_TEST

START_TEST(entries_come_in_the_order_of_their_offsets)
{
    unsigned char *bytes;
    struct safetensors *file =
        accept("{\"a\":" F32_AT(16, 24) ",\"b\":" F32_AT(0, 8) ",\"c\":" F32_AT(8, 16) "}", 24, &bytes);
    const char *const order[] = {"b", "c", "a"};
    const unsigned char *data = bytes + sizeof(uint64_t);
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes, sizeof header_bytes);
    ck_assert_uint_eq(safetensors_count(file), 3);
    for (size_t i = 0; i < 3; i++) {
        const struct safetensors_entry *entry = safetensors_at(file, i);
        ck_assert_str_eq(entry->name, order[i]);
        ck_assert_ptr_eq(entry->data, data + header_bytes + 8 * i);
        ck_assert_ptr_eq(entry->data, bytes + entry->offset);
        char values[8];
        ck_assert_int_eq(safetensors_read(file, entry, values, NULL), STATUS_OK);
        ck_assert_mem_eq(values, entry->data, 8);
        ck_assert_ptr_eq(safetensors_find(file, order[i]), entry);
    }
    safetensors_close(file);
    free(bytes);
}
END_TEST

/* ---- what is not ---- */

START_TEST(broken_frames_are_refused)
{
    unsigned char bytes[16] = {0};
    refuse_bytes("nothing", bytes, 0, "0 bytes are too few");
    refuse_bytes("no length", bytes, 7, "7 bytes are too few");
    refuse_bytes("no header", bytes, 8, "something else than the '{'");
    bytes[0] = 9;
    refuse_bytes("a header cut short", bytes, 16, "a header of 9 bytes, expected at most 100000000");
    bytes[7] = 0xff;
    refuse_bytes("a header without end", bytes, 16, "a header of 18374686479671623689 bytes");
    size_t count = 8 + 100000001;
    char *large = calloc(1, count);
    uint64_t length = count - 8;
    memcpy(large, &length, 8);
    refuse_bytes("more than the format allows", large, count, "a header of 100000001 bytes");
    free(large);
}
END_TEST

static const struct {
    const char *header;
    size_t data_bytes;
    const char *words;
} refused[] = {
    /* not the JSON of a header */
    {" {}", 0, "byte 0 of its header: something else than the '{'"},
    {"\xEF\xBB\xBF{}", 0, "something else than the '{'"},
    {"[]", 0, "something else than the '{'"},
    {"{", 0, "no JSON"},
    {"{\"a\":", 0, "no JSON"},
    {"{\"a\":[1,", 0, "no JSON"},
    {"{\"a\"", 0, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) "}}", 8, "a bracket that closes nothing"},
    {"{\"a\":" F32_AT(0, 8) "}{}", 8, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) ",}", 8, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) "} x", 8, "no string, no integer"},
    {"{\"a\":" F32_AT(0, 8) "}\f", 8, "no string, no integer"},
    {"{\"a\":[[[]]]}", 0, "more than three levels"},
    {"{\"a\":"
     "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8}}}",
     8, "no JSON"},
    {"{\"a\":null}", 0, "no string, no integer"},
    {"{\"a\":true}", 0, "no string, no integer"},
    {"{\"a", 0, "a string without an end"},
    {"{\"a\\", 0, "a string without an end"},
    {"{\"\xC3\":" F32_AT(0, 8) "}", 8, "bytes that are not UTF-8"},
    {"{\"\xED\xA0\x80\":" F32_AT(0, 8) "}", 8, "bytes that are not UTF-8"},
    {"{\"a\n\":" F32_AT(0, 8) "}", 8, "a raw control character"},
    {"{\"\\u0000\":" F32_AT(0, 8) "}", 8, "or a zero"},
    {"{\"\\u00zz\":" F32_AT(0, 8) "}", 8, "an escape that is no character"},
    {"{\"\\u00\":" F32_AT(0, 8) "}", 8, "an escape that is no character"},
    {"{\"\\u00", 0, "an escape that is no character"},
    {"{\"\\ud800\":" F32_AT(0, 8) "}", 8, "no JSON"},
    {"{\"\\x\":" F32_AT(0, 8) "}", 8, "no JSON"},
    /* numbers */
    {"{\"a\":" F32_AT(-8, 0) "}", 8, "no string, no integer"},
    {"{\"a\":" F32_AT(0.0, 8) "}", 8, "not written as a plain integer"},
    {"{\"a\":" F32_AT(0, 8e0) "}", 8, "not written as a plain integer"},
    {"{\"a\":" F32_AT(0, 1e999) "}", 8, "not written as a plain integer"},
    {"{\"a\":" F32_AT(00, 8) "}", 8, "leading zeros"},
    {"{\"a\":" F32_AT(0, 9007199254740993) "}", 8, "beyond 2^53"},
    {"{\"a\":" F32_AT(0, 18446744073709551624) "}", 8, "beyond 2^53"},
    {"{\"a\":" F32_AT(0, 9007199254740992) "}", 8,
     "tensor \"a\": its data_offsets are 0 and 9007199254740992"},
    /* entries */
    {"{\"a\":8}", 0, "expected an object of dtype, shape and data_offsets"},
    {"{\"a\":[]}", 0, "expected an object of dtype"},
    {"{\"a\":{}}", 0, "expected an object of dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "expected an object of dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":0}}", 8, "expected an object of"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"shape\":[2]}}", 8,
     "expected an object of"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2]}}", 8, "expected an object of dtype"},
    {"{\"a\":{\"Dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "expected an object of dtype"},
    {"{\"a\":{\"dtype\":8,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "its dtype is no string"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "there is no dtype \"F31\""},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "there is no dtype \"f32\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "its shape is not an array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "its shape is not an array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
     "at most 8 integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8, "are not two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "are not two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":{}}}", 8, "are not two integers"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "span 8 bytes, expected 16"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "span 8 bytes, expected 12"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,8]}}", 8, "span 8 bytes, expected 0"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "fills no whole bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}}", 8, "beyond 2^53"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2147483648,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0,
     "overflows"},
    /* places */
    {"{\"a\":" F32_AT(8, 0) "}", 8, "its data_offsets are 8 and 0, expected to ascend"},
    {"{\"a\":" F32_AT(4, 12) "}", 8, "within 8 bytes of data"},
    {"{\"a\":" F32_AT(0, 8) "}", 7, "within 7 bytes of data"},
    {"{\"a\":" F32_AT(0, 8) "}", 9, "its tensors end at byte 8 of 9"},
    {"{}", 1, "its tensors end at byte 0 of 1"},
    {"{\"a\":" F32_AT(4, 12) "}", 12, "tensor \"a\": it begins at byte 4 of the data, expected 0"},
    {"{\"a\":" F32_AT(0, 8) ",\"b\":" F32_AT(12, 20) "}", 20,
     "tensor \"b\": it begins at byte 12 of the data, expected 8"},
    {"{\"a\":" F32_AT(0, 8) ",\"b\":" F32_AT(4, 12) "}", 12,
     "tensor \"b\": it begins at byte 4 of the data, expected 8"},
    {"{\"a\":" F32_AT(0, 8) ",\"b\":" F32_AT(0, 8) "}", 8,
     "tensor \"b\": it begins at byte 0 of the data, expected 8"},
    {"{\"a\":" F32_AT(0, 8) ",\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}", 8,
     "tensor \"b\": it begins at"},
    /* names */
    {"{\"a\":" F32_AT(0, 8) ",\"a\":" F32_AT(8, 16) "}", 16, "the name \"a\" stands twice"},
    {"{\"a\":" F32_AT(0, 8) ",\"\\u0061\":" F32_AT(8, 16) "}", 16, "the name \"a\" stands twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "the name \"__metadata__\" stands twice"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "the name \"k\" stands twice"},
    {"{\"\\u001b[31m\":8}", 0, "tensor \"\\u001b[31m\""},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
    {"{\"__metadata__\":\"pt\"}", 0, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "a value in __metadata__ is no string"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, "a value in __metadata__ is no string"},
    {"{\"__metadata__\":" F32_AT(0, 8) "}", 8, "a value in __metadata__ is no string"},
};

START_TEST(broken_headers_are_refused)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        refuse(refused[i].header, strlen(refused[i].header), refused[i].data_bytes, refused[i].words);
    refuse("{}\0 ", 4, 0, "no string, no integer");
    refuse("{\"a\0\":8}", 8, 0, "a raw control character");
}
END_TEST

/* Every byte of a sound file cut off or changed: refused or read, and nothing is touched beyond its end. */
START_TEST(no_cut_and_no_changed_byte_does_harm)
{
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"\\u00e9\"},\"a\":" F32_AT(0, 8) ",\"b\":" F32_AT(8, 16) "}";
    struct error error;
    size_t count;
    unsigned char *bytes = build(header, strlen(header), 16, &count);
    for (size_t cut = 0; cut < count; cut++) {
        unsigned char *part = malloc(cut + 1);
        memcpy(part + 1, bytes, cut);
        refuse_bytes("cut", part + 1, cut, "");
        free(part);
    }
    for (size_t at = 0; at < count; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            struct safetensors *file;
            bytes[at] ^= (unsigned char)(1u << bit);
            enum status status = safetensors_parse(&file, "weights", bytes, count, &error);
            ck_assert(status == STATUS_OK || status == STATUS_CORRUPT);
            safetensors_close(file);
            bytes[at] ^= (unsigned char)(1u << bit);
        }
    free(bytes);
}
END_TEST

START_TEST(the_number_of_values_is_bounded)
{
    size_t length = 1 << 23;
    char *header = malloc(length);
    memset(header, ',', length);
    header[0] = '{';
    refuse(header, length, 0, "too many values");
    memset(header, '[', length);
    header[0] = '{';
    refuse(header, length, 0, "more than three levels");
    free(header);
}
END_TEST

static int allowed; /* allocations of the JSON library before the one that fails */

static void *scarce(size_t bytes)
{
    errno = ENOMEM; // success may leave anything there
    return allowed-- > 0 ? malloc(bytes) : NULL;
}

/* A sound file is not called corrupt for want of memory. */
START_TEST(want_of_memory_is_no_corruption)
{
    static const char header[] = "{\"a\":" F32_AT(0, 8) "}";
    cJSON_Hooks hooks = {.malloc_fn = scarce, .free_fn = free};
    size_t count;
    unsigned char *bytes = build(header, strlen(header), 8, &count);
    enum status status = STATUS_NO_MEMORY;
    cJSON_InitHooks(&hooks);
    for (int failures = 0; status != STATUS_OK; failures++) {
        struct safetensors *file = NULL;
        struct error error = {0};
        allowed = failures;
        status = safetensors_parse(&file, "weights", bytes, count, &error);
        ck_assert_msg(status == STATUS_OK || status == STATUS_NO_MEMORY, "%s", error.text);
        safetensors_close(file);
    }
    cJSON_InitHooks(NULL);
    free(bytes);
}
END_TEST

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
enum { GOLDEN_COUNT = 6 };
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
    ck_assert_ptr_null(entry->data);
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

/* The golden tensors as entries, in the table's order; `values` holds them. */
static void golden_entries(struct safetensors_entry *entries, char (*values)[64])
{
    memset(entries, 0, GOLDEN_COUNT * sizeof *entries);
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        golden_values(values[i], i);
        entries[i] = (struct safetensors_entry){.name = golden[i].name,
                                                .dtype = golden[i].dtype,
                                                .rank = golden[i].rank,
                                                .data = values[i],
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
    struct error error = {0};
    golden_entries(entries, values);
    ck_assert_msg(safetensors_write(path, entries, GOLDEN_COUNT, &error) == STATUS_OK, "%s", error.text);
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
    memcpy(values, streaming->entries[index].data, streaming->entries[index].bytes);
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
    struct safetensors_entry entries[GOLDEN_COUNT], without[GOLDEN_COUNT];
    char values[GOLDEN_COUNT][64];
    golden_entries(entries, values);
    memcpy(without, entries, sizeof without);
    for (size_t i = 0; i < GOLDEN_COUNT; i++)
        without[i].data = NULL;
    *streaming = (struct streaming){.entries = entries, .fail_at = fail_at, .seen = malloc(4096)};
    const struct safetensors_stream stream = {stream_fill, streaming, stream_written, streaming};
    enum status status = safetensors_write_stream(path, without, GOLDEN_COUNT, &stream, error);
    streaming->entries = NULL;
    return status;
}

START_TEST(a_stream_writes_the_same_file)
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
    struct safetensors_entry entry = {.name = "half",
                                      .dtype = SAFETENSORS_OTHER,
                                      .dtype_text = "BF16",
                                      .rank = 1,
                                      .size = {2},
                                      .data = "1234",
                                      .bytes = 4};
    ck_assert_int_eq(safetensors_write(path, &entry, 1, &error), STATUS_OK);
    struct safetensors *file = open_file(path);
    ck_assert_str_eq(safetensors_at(file, 0)->dtype_text, "BF16");
    expect_values(file, safetensors_at(file, 0), "1234");
    safetensors_close(file);
    ck_assert_int_eq(safetensors_write(path, NULL, 0, &error), STATUS_OK);
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
    int code = process_run(&process, workplace.folder, argv, NULL, 120);
    char *said = process_err(&process);
    ck_assert_msg(code == 0, "exit code %d: %s", code, said);
    free(said);
}
END_TEST

START_TEST(what_no_file_may_hold_is_not_written)
{
    static const struct {
        struct safetensors_entry entry;
        const char *words;
    } bad[] = {
        {{.name = "__metadata__", .dtype = SAFETENSORS_F32, .data = "1234", .bytes = 4}, "keeps this name"},
        {{.name = "\xFF", .dtype = SAFETENSORS_F32, .data = "1234", .bytes = 4},
         "tensor \"\\xff\" cannot be written: its name is not UTF-8"},
        {{.name = "a", .dtype = SAFETENSORS_F64, .data = "1234", .bytes = 4},
         "do not give its number of bytes"},
        {{.name = "a", .rank = 2, .size = {1, 2}, .data = "1234", .bytes = 4},
         "do not give its number of bytes"},
        {{.name = "a", .rank = 2, .size = {1ULL << 32, 1ULL << 32}}, "do not give its number of bytes"},
        {{.name = "a", .rank = SAFETENSORS_RANK_MAX + 1, .bytes = 4}, "too many dimensions"},
        {{.name = "a", .dtype = SAFETENSORS_OTHER, .dtype_text = "F31"}, "no such dtype"},
        {{.name = "a", .rank = 2, .size = {1ULL << 54, 0}}, "its header would hold an integer beyond 2^53"},
    };
    struct error error = {0};
    write_golden();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(safetensors_write(path, &bad[i].entry, 1, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, bad[i].words) != NULL, "\"%s\" does not say \"%s\"", error.text,
                      bad[i].words);
    }
    struct safetensors_entry twice[3] = {
        {.name = "b", .size = {0}, .rank = 1}, {.name = "a", .rank = 1}, {.name = "b", .rank = 1}};
    ck_assert_int_eq(safetensors_write(path, twice, 3, &error), STATUS_INVALID);
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
    void *values = calloc(1, entry.bytes);
    entry.data = values;
    write_golden();
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(safetensors_write(path, &entry, 1, &error), STATUS_IO);
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_ptr_nonnull(strstr(error.text, new_path));
    ck_assert_int_ne(access(new_path, F_OK), 0);
    struct safetensors *file = open_file(path);
    expect_golden(file);
    safetensors_close(file);
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/weights", path);
    ck_assert_int_eq(safetensors_write(nowhere, &entry, 1, &error), STATUS_NOT_FOUND);
    ck_assert_int_eq(safetensors_write(workplace.folder, &entry, 1, &error), STATUS_IO); /* a folder */
    free(values);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *memory = tcase_create("memory");
    tcase_add_test(memory, sound_headers_are_read);
    tcase_add_test(memory, entries_come_in_the_order_of_their_offsets);
    tcase_add_test(memory, broken_frames_are_refused);
    tcase_add_test(memory, broken_headers_are_refused);
    tcase_add_test(memory, want_of_memory_is_no_corruption);
    tcase_add_test(memory, no_cut_and_no_changed_byte_does_harm);
    tcase_add_test(memory, the_number_of_values_is_bounded);
    suite_add_tcase(suite, memory);
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, folder_open, workplace_close);
    tcase_add_test(files, no_file_is_told_apart_from_a_bad_one);
    tcase_add_test(files, files_of_python_are_read);
    tcase_add_test(files, what_is_written_is_read);
    tcase_add_test(files, a_file_cut_while_it_is_open_is_told);
    tcase_add_test(files, a_stream_writes_the_same_file);
    tcase_add_test(files, a_stream_that_fails_leaves_nothing);
    tcase_add_test(files, other_dtypes_and_no_tensors_are_written);
    tcase_add_test(files, python_reads_ours);
    tcase_add_test(files, what_no_file_may_hold_is_not_written);
    tcase_add_test(files, a_failure_leaves_the_old_file);
    tcase_set_timeout(files, 120);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
