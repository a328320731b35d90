/* The strict reader of JSON text: good and bad texts, the places of values and errors, and that the scanner
 * and cJSON find the same values in every good text. */
#include "test/workplace.h"
#include "worker/job/job.h"
#include "worker/job/json_document.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ---- helpers ---- */

/* As ck_assert_msg, which writes to a pipe at every call: too slow for millions. */
#define require(condition, ...)                                                                              \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            ck_abort_msg(__VA_ARGS__);                                                                       \
    } while (0)

/* Whether the `length` bytes of `text` are JSON. */
static bool judge_bytes(const char *text, size_t length)
{
    struct json_document document;
    struct json_error error = {0};
    const enum status status = json_document_parse(&document, text, length, &error);
    ck_assert_msg(status == STATUS_OK || (status == STATUS_INVALID && error.text[0] != '\0'), "%s", text);
    ck_assert((status == STATUS_OK) == (document.root != NULL));
    json_document_fini(&document);
    return status == STATUS_OK;
}

static bool judge_text(const char *text)
{
    return judge_bytes(text, strlen(text));
}

static struct json_document parse_text(const char *text)
{
    struct json_document document;
    struct json_error error;
    ck_assert_int_eq(json_document_parse(&document, text, strlen(text), &error), STATUS_OK);
    return document;
}

/* ---- what is JSON ---- */

START_TEST(good_texts_pass)
{
    static const char *const good[] = {
        "0",
        "-0",
        "-0.0e-0",
        "1E+2",
        "10",
        "1.7976931348623157e308",
        "1e-999",
        "null",
        "true",
        "false",
        "\"\"",
        "[]",
        "{}",
        " [ ] ",
        "[[],[{}]]",
        "{\"\":{\"\":[]}}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\"",
        "\"\\uD83D\\uDE00\\ud83d\\ude00\"",
        "\"\xF4\x8F\xBF\xBF\x7F\"",
        "[1,2,3]",
        "\r\n\t 1 \r\n\t",
        "{\"a\":1,\"b\":{\"a\":1},\"A\":1}",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(judge_text(good[i]), "%s", good[i]);
}
END_TEST

START_TEST(broken_texts_are_refused)
{
    static const char *const broken[] = {
        "[007]",
        "[+1]",
        "[1e999, -1e999]",
        "[1., .5, 1e, -]",
        "[NaN]",
        "[nul]",
        "[True]",
        "[0x1]",
        "[\"\\x\"]",
        "[\"\\u12\"]",
        "[\"\\u0000\"]",
        "[\"\\ud800\"]",
        "[\"\\udc00\"]",
        "[\"\\ud800\\ud800\"]",
        "[\"\\ud800\\n\"]",
        "[\"\x01\"]",
        "[\"\t\"]",
        "[\"\xFF\"]",
        "[\"\xC0\x80\"]",
        "[\"\xED\xA0\x80\"]",
        "[\"a\xFF\xFE\"]",
        "[\"\xFF-\xFF\"]",
        "[1,]",
        "{\"a\":1,}",
        "[1] // x",
        "[1] # x",
        "/*\n*/ [1]",
        "\xEF\xBB\xBF[]",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "{\"a\":1,\"b\":2,\"a\":3,\"a\":4}",
        "{\"\\ud800\":1,\"\\ud801\":2}",
        "",
        " ",
        "[",
        "{",
        "]",
        "}",
        "[1",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\" 1}",
        "{1:2}",
        "\"",
        "\"a",
        "\"a\n\"",
        "\"\\",
        "\"\\\"",
        "[,1]",
        "[1,,2]",
        "{,}",
        "1 2",
        "[] []",
        "[}",
        "{]",
        "'a'",
        "/",
        "/*",
        "[1] /* ",
        "\xA0[]",
        "\xC2\xA0[]",
        "\xFF\xFE[\0",
        ":",
        "{a:1}",
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        ck_assert_msg(!judge_text(broken[i]), "%s", broken[i]);
    ck_assert(!judge_bytes("[]\0", 3));
    ck_assert(!judge_bytes("\0[]", 3));
    ck_assert(!judge_bytes("[\"a\0b\"]", 7));
}
END_TEST

START_TEST(depth_values_and_digits_have_limits)
{
    char text[4 * JSON_DEPTH_MAX];
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        ck_assert(judge_bytes(text, 2 * (size_t)depth) == (depth <= JSON_DEPTH_MAX));
    }
    char *many = malloc(2 * JSON_VALUES_MAX + 8);
    size_t length = 0;
    many[length++] = '[';
    for (int i = 1; i < JSON_VALUES_MAX; i++)
        length += (size_t)sprintf(many + length, "%s1", i == 1 ? "" : ",");
    memcpy(many + length, "]", 2);
    ck_assert(judge_bytes(many, length + 1));
    memcpy(many + length, ",1]", 4);
    ck_assert(!judge_bytes(many, length + 3));
    free(many);
    memset(text, '1', sizeof text);
    ck_assert(judge_bytes(text, JSON_NUMBER_BYTES_MAX));
    ck_assert(!judge_bytes(text, JSON_NUMBER_BYTES_MAX + 1));
}
END_TEST

START_TEST(a_duplicate_among_thousands_of_alike_keys_is_found)
{
    /* All keys with one long common beginning; the last is again the first. */
    enum { KEYS = JSON_VALUES_MAX - 2 };
    char *text = malloc(JOB_TEXT_BYTES_MAX);
    for (int same = 0; same < 2; same++) {
        size_t length = 0;
        for (int i = 0; i < KEYS; i++)
            length += (size_t)sprintf(text + length, "%s\"the same beginning of all keys %d\":%d",
                                      i == 0 ? "{" : ",", i % (KEYS - same), i);
        text[length++] = '}';
        ck_assert(judge_bytes(text, length) == (same == 0));
    }
    free(text);
}
END_TEST

/* ---- what it says of values ---- */

/* The place of a value, and where its key begins. */
static void expect_place(const struct json_document *document, const cJSON *item, uint32_t key,
                         uint32_t value, uint32_t length, uint32_t line, uint32_t column)
{
    const struct json_place *place = json_place_of(document, item);
    const struct json_position position = json_position(document->text, place->value);
    ck_assert_uint_eq(place->key, key);
    ck_assert_uint_eq(place->value, value);
    ck_assert_uint_eq(place->length, length);
    ck_assert_uint_eq(position.line, line);
    ck_assert_uint_eq(position.column, column);
}

START_TEST(places_are_lines_and_characters)
{
    static const char text[] = "{\r\n\t\"\xC3\xA9\xF0\x9F\x98\x80\": [1,\n22], \"b\" :\n\n {}}";
    struct json_document document = parse_text(text);
    const cJSON *first = document.root->child, *second = first->next;
    ck_assert_uint_eq(document.count, 5);
    expect_place(&document, document.root, 0, 0, (uint32_t)strlen(text), 1, 1);
    expect_place(&document, first, 4, 14, 7, 2, 8);
    expect_place(&document, first->child, 0, 15, 1, 2, 9);
    expect_place(&document, first->child->next, 0, 18, 2, 3, 1);
    expect_place(&document, second, 23, 31, 2, 5, 2);
    ck_assert_str_eq(second->string, "b");
    json_document_fini(&document);
}
END_TEST

START_TEST(errors_are_told_where_they_are)
{
    static const struct {
        const char *text;
        uint32_t line, column;
    } places[] = {
        {"[1,\n  007]", 2, 3},
        {"[\"\xC3\xA9\\x\"]", 1, 4},
        {"\xEF\xBB\xBF[\xFF]", 1, 1},
        {"[1,\n2\n  ", 3, 3},
        {"[\n\n\"a\n\"]", 3, 1},
        {"[\"\xC3\xA9\xFF\"]", 1, 4},
        {"[1\n ,\n]", 2, 2},
        {"[] x", 1, 4},
        {"{\"a\":1,\n \"a\":2}", 2, 2},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        struct json_document document;
        struct json_error error;
        const char *text = places[i].text;
        ck_assert_int_eq(json_document_parse(&document, text, strlen(text), &error), STATUS_INVALID);
        const struct json_position at = json_position(text, error.offset);
        ck_assert_msg(at.line == places[i].line && at.column == places[i].column, "%s: %u:%u", text, at.line,
                      at.column);
        json_document_fini(&document);
    }
}
END_TEST

START_TEST(errors_are_told_in_words)
{
    static const char *const errors[][2] = {
        {"[+1]", "+1 is not a JSON number: a number has no plus sign"},
        {"[01]", "01 is not a JSON number: a number has no leading zeros"},
        {"[0x10]", "0x10 is not a JSON number"},
        {"[-01]", "-01 is not a JSON number"},
        {"[-Infinity]", "-Infinity is not a JSON number"},
        {"[1.0.0]", "1.0.0 is not a JSON number"},
        {"[NaN]", "NaN is not a JSON value; a string stands in double quotes"},
        {"[True]", "True is not a JSON value; did you mean true?"},
        {"[None]", "None is not a JSON value; did you mean null?"},
        {"[autoautoautoautoautoautoauto]",
         "autoautoautoautoautoauto... is not a JSON value; a string stands in double quotes"},
        {"[-1e999]", "-1e999 is too large for a 64-bit floating point number"},
        {"[\"\\x\"]", "a bad escape in a string: behind \\ stands one of \" \\ / b f n r t uXXXX"},
        {"[\"\\u0000\"]", "\\u0000 in a string: no text here may hold a zero"},
        {"[\"\\uDC00\"]", "\\udc00 in a string is half of a surrogate pair, and stands alone"},
        {"[\"\x1B\"]", "a raw control character in a string; write it as \\u001b"},
        {"[\"\xC0\x80\"]", "the byte \\xc0 in a string is not UTF-8"},
        {"{\"a\":1,}", "a comma behind the last element; JSON has commas only between elements"},
        {"{\"_\":{\"a~/b\":[{\"x\":1,\"x\":2}]}}", "/_/a~0~1b/0/x: duplicate key; it stands already at 1:16"},
    };
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct json_document document;
        struct json_error error;
        ck_assert_int_eq(json_document_parse(&document, errors[i][0], strlen(errors[i][0]), &error),
                         STATUS_INVALID);
        ck_assert_str_eq(error.text, errors[i][1]);
        json_document_fini(&document);
    }
}
END_TEST

START_TEST(integers_are_known_by_their_digits)
{
    static const char text[] =
        "[0, -0, 0.0, 3, 3.0, 1e2, 1.5e1, 100e-2, 30e-1, 0e-9, 9007199254740993, 0.000e-5, 1e300,"
        " 3.5, 1e-1, 12e-1, 3.00000000000000000001, 1.25e1, 100e-3, 1e-99999999999]";
    enum { INTEGERS = 13 };
    struct json_document document = parse_text(text);
    ck_assert_uint_eq(document.count, 1 + INTEGERS + 7);
    int i = 0;
    for (const cJSON *number = document.root->child; number != NULL; number = number->next, i++)
        ck_assert_msg(json_is_integer(&document, number) == (i < INTEGERS), "element %d", i);
    json_document_fini(&document);
}
END_TEST

START_TEST(values_are_shown)
{
    static const char text[] = "[[1, 2], \"x\\u0007\", \"\x7F\", [], {}, -1e+2]";
    static const char *const expected[] = {"an array of 2",  "\"x\\u0007\"", "\"\\u007f\"",
                                           "an empty array", "an object",    "-1e+2"};
    struct json_document document = parse_text(text);
    int i = 0;
    for (const cJSON *item = document.root->child; item != NULL; item = item->next, i++) {
        char shown[JSON_SHOWN_BYTES];
        json_document_show(shown, &document, item);
        ck_assert_str_eq(shown, expected[i]);
    }
    json_document_fini(&document);
}
END_TEST

START_TEST(pointers_are_escaped_and_shown)
{
    char pointer[JSON_POINTER_BYTES] = "";
    json_pointer_add(pointer, "a~/b");
    json_pointer_add(pointer, "\x07");
    ck_assert_str_eq(pointer, "/a~0~1b/\\u0007");
}
END_TEST

START_TEST(a_string_that_no_text_says_is_shown_in_quotes)
{
    struct json_document document;
    char shown[JSON_SHOWN_BYTES];
    ck_assert_int_eq(json_document_of_string(&document, &"=\"4"[1]), STATUS_OK);
    ck_assert_str_eq(document.root->valuestring, "\"4");
    json_document_show(shown, &document, document.root);
    ck_assert_str_eq(shown, "\"\"4\"");
    json_document_fini(&document);
}
END_TEST

/* ---- agreement with cJSON ---- */

static void check_places(const struct json_document *document, const cJSON *item, size_t length,
                         const char *text)
{
    const struct json_place *place = json_place_of(document, item);
    const char first = text[place->value];
    require(place->value + place->length <= length, "%s: value at %u", text, place->value);
    require(cJSON_IsString(item) == (first == '"') && cJSON_IsObject(item) == (first == '{') &&
                cJSON_IsArray(item) == (first == '['),
            "%s: value at %u", text, place->value);
    require(!cJSON_IsNumber(item) || strtod(text + place->value, NULL) == item->valuedouble,
            "%s: value at %u", text, place->value);
    require(item->string == NULL || text[place->key] == '"', "%s: key at %u", text, place->key);
    for (const cJSON *child = item->child; child != NULL; child = child->next)
        check_places(document, child, length, text);
}

static void check_agreement(const char *text, size_t length)
{
    struct json_document document;
    struct json_error error = {0};
    char copy[260];
    memcpy(copy, text, length);
    copy[length] = '\0';
    const enum status status = json_document_parse(&document, text, length, &error);
    require(status == STATUS_OK || (status == STATUS_INVALID && error.text[0] != '\0'), "%s", copy);
    if (status == STATUS_OK)
        check_places(&document, document.root, length, copy);
    else
        require(error.offset <= length, "%s", copy);
    json_document_fini(&document);
}

START_TEST(every_good_text_is_read_by_cjson_in_the_same_order)
{
    static const char *const seeds[] = {"{\"a\": [1, -2.5e3, true], \"b\\u00e9\\ud83d\\ude00\": {\"c\": "
                                        "null, \"d\": \"x\\n\xC3\xA9\"}, \"a2\": false}",
                                        "[[[1,2],[\"\\\\\",\"\\\"\"]],{},[],\"\",0.1, 1e5]",
                                        "{\"x\":1,\"x\":2}//\n"};
    static const char pieces[] =
        "{}[]\",:\\u0123456789abcdefDE.+-eE \n\t/*#ntf\x01\x7F\x80\xC3\xA9\xED\xF4\xFF";
    uint64_t random = 88172645463325252u;
    for (int round = 0; round < 60000; round++) {
        char text[256];
        const char *seed = seeds[round % 3];
        size_t length = strlen(seed);
        memcpy(text, seed, length);
        for (int changes = 1 + round % 4; changes > 0; changes--) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t at = (size_t)(random % length);
            char piece = pieces[(random >> 20) % (sizeof pieces - 1)];
            if ((random >> 40) % 3 == 0) {
                memmove(text + at, text + at + 1, length - at - 1);
                length--;
            } else {
                if ((random >> 40) % 3 == 1)
                    memmove(text + at + 1, text + at, length++ - at);
                text[at] = piece;
            }
        }
        check_agreement(text, length);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_document");
    TCase *grammar = tcase_create("grammar");
    tcase_add_test(grammar, good_texts_pass);
    tcase_add_test(grammar, broken_texts_are_refused);
    tcase_add_test(grammar, depth_values_and_digits_have_limits);
    tcase_add_test(grammar, a_duplicate_among_thousands_of_alike_keys_is_found);
    TCase *places = tcase_create("places");
    tcase_add_test(places, places_are_lines_and_characters);
    tcase_add_test(places, errors_are_told_where_they_are);
    tcase_add_test(places, errors_are_told_in_words);
    tcase_add_test(places, integers_are_known_by_their_digits);
    tcase_add_test(places, values_are_shown);
    tcase_add_test(places, pointers_are_escaped_and_shown);
    tcase_add_test(places, a_string_that_no_text_says_is_shown_in_quotes);
    tcase_add_test(places, every_good_text_is_read_by_cjson_in_the_same_order);
    TCase *cases[] = {grammar, places};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tcase_set_timeout(cases[i], 60);
        suite_add_tcase(suite, cases[i]);
    }
    return suite_run(suite);
}
