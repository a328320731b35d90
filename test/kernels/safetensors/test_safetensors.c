/* The reader of safetensors: sound headers are read, and every rule of the header comment refuses the bytes
 * that break it. test_safetensors_file covers writing and files. */
#include "test/kernels/safetensors/safetensors_memory.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

static enum status open_bytes(struct safetensors **file, const void *bytes, size_t count, struct error *error)
{
    ck_assert(safetensors_memory_put(bytes, count));
    return safetensors_open(file, path_of(SAFETENSORS_MEMORY_PATH), error);
}

static void refuse_bytes(const char *what, const void *bytes, size_t count, const char *words)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    enum status status = open_bytes(&file, bytes, count, &error);
    ck_assert_msg(status == STATUS_CORRUPT, "%s: expected corrupt, got %s", what, status_name(status));
    ck_assert_int_eq(error.status, STATUS_CORRUPT);
    ck_assert_ptr_null(file);
    ck_assert_msg(strstr(error.text, SAFETENSORS_MEMORY_PATH ": ") == error.text &&
                      strstr(error.text, words) != NULL,
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
    enum status status = open_bytes(&file, *bytes, count, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", header, error.text);
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
        {"{\"__metadata__\":[8,null]}", 0, 0},
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
        ck_assert_uint_eq(file->count, sound[i].count);
        ck_assert_ptr_null(safetensors_find(file, "nowhere"));
        safetensors_close(file);
        free(bytes);
    }
    safetensors_close(NULL);
}
END_TEST

START_TEST(entries_come_in_the_order_of_their_names)
{
    unsigned char *bytes;
    struct safetensors *file =
        accept("{\"a\":" F32_AT(16, 24) ",\"b\":" F32_AT(0, 8) ",\"c\":" F32_AT(8, 16) "}", 24, &bytes);
    static const struct {
        const char *name;
        size_t offset;
    } order[] = {{"a", 16}, {"b", 0}, {"c", 8}};
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes, sizeof header_bytes);
    ck_assert_uint_eq(file->count, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        ck_assert_str_eq(entry->name, order[i].name);
        ck_assert_uint_eq(entry->offset, sizeof header_bytes + header_bytes + order[i].offset);
        char values[8];
        ck_assert_int_eq(safetensors_read(file, entry, values, NULL), STATUS_OK);
        ck_assert_mem_eq(values, bytes + entry->offset, 8);
        ck_assert_ptr_eq(safetensors_find(file, order[i].name), entry);
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
    refuse_bytes("no header", bytes, 8, "no JSON object");
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
    {"[]", 0, "no JSON object"},
    {"{", 0, "no JSON"},
    {"{\"a\":", 0, "no JSON"},
    {"{\"a\":[1,", 0, "no JSON"},
    {"{\"a\"", 0, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) "}}", 8, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) "}{}", 8, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) ",}", 8, "no JSON"},
    {"{\"a\":" F32_AT(0, 8) "} x", 8, "no JSON"},
    {"{\"a\":[[[]]]}", 0, "expected an object of dtype"},
    {"{\"a\":"
     "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8}}}",
     8, "no JSON"},
    {"{\"a\":null}", 0, "expected an object of dtype"},
    {"{\"a\":true}", 0, "expected an object of dtype"},
    {"{\"a", 0, "no JSON"},
    {"{\"a\\", 0, "no JSON"},
    {"{\"\xC3\":" F32_AT(0, 8) "}", 8, "bytes that are not UTF-8"},
    {"{\"\xED\xA0\x80\":" F32_AT(0, 8) "}", 8, "bytes that are not UTF-8"},
    {"{\"\\u00", 0, "no JSON"},
    {"{\"\\ud800\":" F32_AT(0, 8) "}", 8, "no JSON"},
    {"{\"\\x\":" F32_AT(0, 8) "}", 8, "no JSON"},
    /* numbers */
    {"{\"a\":" F32_AT(-8, 0) "}", 8, "are not two integers"},
    {"{\"a\":" F32_AT(0.5, 8) "}", 8, "are not two integers"},
    {"{\"a\":" F32_AT(0, 1e999) "}", 8, "are not two integers"},
    {"{\"a\":" F32_AT(0, 9007199254740994) "}", 8, "are not two integers"},
    {"{\"a\":" F32_AT(0, 18446744073709551624) "}", 8, "are not two integers"},
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
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}}", 8,
     "its shape is not an array"},
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
    {"{\"\\u001b[31m\":8}", 0, "tensor \"\\u001b[31m\""},
};

START_TEST(broken_headers_are_refused)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        refuse(refused[i].header, strlen(refused[i].header), refused[i].data_bytes, refused[i].words);
    refuse("{}\0 ", 4, 0, "a zero byte");
    refuse("{\"a\0\":8}", 8, 0, "a zero byte");
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
            enum status status = open_bytes(&file, bytes, count, &error);
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
    refuse(header, length, 0, "too many values");
    refuse(header, 1 << 19, 0, "no JSON object"); // cJSON bounds the depth
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
        status = open_bytes(&file, bytes, count, &error);
        ck_assert_msg(status == STATUS_OK || status == STATUS_NO_MEMORY, "%s", error.text);
        safetensors_close(file);
    }
    cJSON_InitHooks(NULL);
    free(bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *memory = tcase_create("memory");
    tcase_add_test(memory, sound_headers_are_read);
    tcase_add_test(memory, entries_come_in_the_order_of_their_names);
    tcase_add_test(memory, broken_frames_are_refused);
    tcase_add_test(memory, broken_headers_are_refused);
    tcase_add_test(memory, want_of_memory_is_no_corruption);
    tcase_add_test(memory, no_cut_and_no_changed_byte_does_harm);
    tcase_add_test(memory, the_number_of_values_is_bounded);
    suite_add_tcase(suite, memory);
    return suite_run(suite);
}
