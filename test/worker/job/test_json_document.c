/* The strict reader of JSON text: good and bad texts, the places of values and flaws, and that cJSON reads
 * every text without flaws alike, value for value. */
#include "test/workplace.h"
#include "worker/job/job.h"
#include "worker/job/json_document.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* ---- helpers ---- */

/* As ck_assert_msg, which writes to a pipe at every call: too slow for millions. */
#define require(condition, ...)                                                                              \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            ck_abort_msg(__VA_ARGS__);                                                                       \
    } while (0)

struct flaws {
    unsigned count;
    uint32_t line, column; /* of the first */
    char text[256];        /* of the first */
};

static void note_flaw(void *context, uint32_t line, uint32_t column, const char *text)
{
    struct flaws *flaws = context;
    if (flaws->count++ > 0)
        return;
    flaws->line = line;
    flaws->column = column;
    snprintf(flaws->text, sizeof flaws->text, "%s", text);
}

static struct flaws parse_bytes(struct json_document *document, const char *text, size_t length)
{
    struct flaws flaws = {0};
    require(json_document_parse(document, text, length, note_flaw, &flaws) == STATUS_OK, "no memory");
    return flaws;
}

/* The number of flaws in `text`, or -1 where it is broken. */
static int judge_bytes(const char *text, size_t length)
{
    struct json_document document;
    struct flaws flaws = parse_bytes(&document, text, length);
    int result = document.count == 0 ? -1 : (int)flaws.count;
    ck_assert_msg(document.count > 0 || flaws.count > 0, "broken without a word: %s", text);
    json_document_fini(&document);
    return result;
}

static int judge_text(const char *text)
{
    return judge_bytes(text, strlen(text));
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
        ck_assert_msg(judge_text(good[i]) == 0, "%s", good[i]);
}
END_TEST

START_TEST(flaws_are_counted_and_do_not_end_the_reading)
{
    static const struct {
        const char *text;
        int flaws;
    } flawed[] = {
        {"[007]", 1},
        {"[+1]", 1},
        {"[1e999, -1e999]", 2},
        {"[1., .5, 1e, -]", 4},
        {"[NaN]", 1},
        {"[nul]", 1},
        {"[True]", 1},
        {"[0x1]", 1},
        {"[\"\\x\"]", 1},
        {"[\"\\u12\"]", 1},
        {"[\"\\u0000\"]", 1},
        {"[\"\\ud800\"]", 1},
        {"[\"\\udc00\"]", 1},
        {"[\"\\ud800\\ud800\"]", 2},
        {"[\"\\ud800\\n\"]", 1},
        {"[\"\x01\"]", 1},
        {"[\"\t\"]", 1},
        {"[\"\xFF\"]", 1},
        {"[\"\xC0\x80\"]", 1},
        {"[\"\xED\xA0\x80\"]", 1},
        {"[\"a\xFF\xFE\"]", 1},
        {"[\"\xFF-\xFF\"]", 2},
        {"[1,]", 1},
        {"{\"a\":1,}", 1},
        {"[1] // x", 1},
        {"[1] # x", 1},
        {"/*\n*/ [1]", 1},
        {"\xEF\xBB\xBF[]", 1},
        {"{\"a\":1,\"a\":2}", 1},
        {"{\"a\":1,\"\\u0061\":2}", 1},
        {"{\"a\":1,\"b\":2,\"a\":3,\"a\":4}", 2},
        {"{\"\\ud800\":1,\"\\ud801\":2}", 2},
    };
    for (size_t i = 0; i < sizeof flawed / sizeof flawed[0]; i++)
        ck_assert_msg(judge_text(flawed[i].text) == flawed[i].flaws, "%s: %d", flawed[i].text,
                      judge_text(flawed[i].text));
}
END_TEST

START_TEST(broken_texts_are_refused)
{
    static const char *const broken[] = {
        "",         " ",         "[",          "{",           "]",   "}",       "[1",   "[1 2]",  "{\"a\"}",
        "{\"a\":}", "{\"a\" 1}", "{1:2}",      "\"",          "\"a", "\"a\n\"", "\"\\", "\"\\\"", "[,1]",
        "[1,,2]",   "{,}",       "1 2",        "[] []",       "[}",  "{]",      "'a'",  "/",      "/*",
        "[1] /* ",  "\xA0[]",    "\xC2\xA0[]", "\xFF\xFE[\0", ":",   "{a:1}",
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        ck_assert_msg(judge_text(broken[i]) == -1, "%s", broken[i]);
    ck_assert_int_eq(judge_bytes("[]\0", 3), -1);
    ck_assert_int_eq(judge_bytes("\0[]", 3), -1);
    ck_assert_int_eq(judge_bytes("[\"a\0b\"]", 7), 1);
}
END_TEST

START_TEST(depth_values_and_digits_have_limits)
{
    char text[4 * JSON_DEPTH_MAX];
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        ck_assert_int_eq(judge_bytes(text, 2 * (size_t)depth), depth > JSON_DEPTH_MAX ? -1 : 0);
    }
    char *many = malloc(2 * JSON_VALUES_MAX + 8);
    size_t length = 0;
    many[length++] = '[';
    for (int i = 1; i < JSON_VALUES_MAX; i++)
        length += (size_t)sprintf(many + length, "%s1", i == 1 ? "" : ",");
    memcpy(many + length, "]", 2);
    ck_assert_int_eq(judge_bytes(many, length + 1), 0);
    memcpy(many + length, ",1]", 4);
    ck_assert_int_eq(judge_bytes(many, length + 3), -1);
    free(many);
    memset(text, '1', sizeof text);
    ck_assert_int_eq(judge_bytes(text, JSON_NUMBER_BYTES_MAX), 0);
    ck_assert_int_eq(judge_bytes(text, JSON_NUMBER_BYTES_MAX + 1), 1);
}
END_TEST

START_TEST(duplicates_among_thousands_of_alike_keys_are_found)
{
    /* Every key twice, all with one long common beginning. */
    enum { KEYS = JSON_VALUES_MAX - 2 };
    char *text = malloc(JOB_TEXT_BYTES_MAX);
    size_t length = 0;
    for (int i = 0; i < KEYS; i++)
        length += (size_t)sprintf(text + length, "%s\"the same beginning of all keys %d\":%d",
                                  i == 0 ? "{" : ",", i % (KEYS / 2), i);
    text[length++] = '}';
    ck_assert_int_eq(judge_bytes(text, length), KEYS / 2);
    free(text);
}
END_TEST

/* ---- what it says of values ---- */

static void expect_span(struct json_span span, uint32_t offset, uint32_t length, uint32_t line,
                        uint32_t column)
{
    ck_assert_uint_eq(span.offset, offset);
    ck_assert_uint_eq(span.length, length);
    ck_assert_uint_eq(span.line, line);
    ck_assert_uint_eq(span.column, column);
}

START_TEST(places_are_lines_and_characters)
{
    static const char text[] = "{\r\n\t\"\xC3\xA9\xF0\x9F\x98\x80\": [1,\n22], \"b\" :\n\n {}}";
    struct json_document document;
    ck_assert_uint_eq(parse_bytes(&document, text, strlen(text)).count, 0);
    const struct json_node *nodes = document.nodes;
    ck_assert_uint_eq(document.count, 5);
    expect_span(nodes[0].value, 0, (uint32_t)strlen(text), 1, 1);
    ck_assert_uint_eq(nodes[0].key.length, 0);
    expect_span(nodes[1].key, 4, 8, 2, 2);
    expect_span(nodes[1].value, 14, 7, 2, 8);
    expect_span(nodes[2].value, 15, 1, 2, 9);
    expect_span(nodes[3].value, 18, 2, 3, 1);
    expect_span(nodes[4].key, 23, 3, 3, 6);
    expect_span(nodes[4].value, 31, 2, 5, 2);
    ck_assert_uint_eq(nodes[1].end, 4);
    ck_assert_uint_eq(nodes[3].parent, 1);
    ck_assert_str_eq(nodes[4].name, "b");
    ck_assert_double_eq(nodes[3].number, 22);
    json_document_fini(&document);
}
END_TEST

START_TEST(flaws_are_told_where_they_are)
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
        struct flaws flaws = parse_bytes(&document, places[i].text, strlen(places[i].text));
        ck_assert_msg(flaws.line == places[i].line && flaws.column == places[i].column, "%s: %u:%u",
                      places[i].text, flaws.line, flaws.column);
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
    struct json_document document;
    ck_assert_uint_eq(parse_bytes(&document, text, strlen(text)).count, 0);
    ck_assert_uint_eq(document.count, 1 + INTEGERS + 7);
    for (uint32_t i = 1; i < document.count; i++)
        ck_assert_msg(document.nodes[i].integral == (i <= INTEGERS), "element %u", i - 1);
    json_document_fini(&document);
}
END_TEST

START_TEST(pointers_and_values_are_shown)
{
    static const char text[] =
        "{\"a~/b\": [1, {\"\\u0007\": \"x\\u0007\"}], \"empty\": [], \"o\": {}, \"n\": -1e+2}";
    struct json_document document;
    ck_assert_uint_eq(parse_bytes(&document, text, strlen(text)).count, 0);
    static const char *const expected[][2] = {
        {"", "an object"},
        {"/a~0~1b", "an array of 2"},
        {"/a~0~1b/0", "1"},
        {"/a~0~1b/1", "an object"},
        {"/a~0~1b/1/\\u0007", "\"x\\u0007\""},
        {"/empty", "an empty array"},
        {"/o", "an object"},
        {"/n", "-1e+2"},
    };
    for (uint32_t i = 0; i < document.count; i++) {
        char pointer[JSON_POINTER_BYTES], shown[JSON_SHOWN_BYTES];
        json_document_pointer(pointer, &document, i);
        json_document_show(shown, &document, i);
        ck_assert_str_eq(pointer, expected[i][0]);
        ck_assert_str_eq(shown, expected[i][1]);
    }
    json_document_fini(&document);
}
END_TEST

/* ---- agreement with cJSON ---- */

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Compares cJSON's tree in pre-order, which is the document's order. Returns the index behind it. */
static uint32_t check_item(const struct json_document *document, uint32_t index, const cJSON *item,
                           const char *text)
{
    static const int types[] = {cJSON_NULL,   cJSON_False, cJSON_True,  cJSON_Number,
                                cJSON_String, cJSON_Array, cJSON_Object};
    const struct json_node *node = &document->nodes[index];
    require(index < document->count && (item->type & 0xFF) == types[node->type], "%s: value %u", text, index);
    require((node->name == NULL) == (item->string == NULL) &&
                (node->name == NULL || strcmp(node->name, item->string) == 0),
            "%s: key of %u", text, index);
    require(node->type != JSON_NUMBER || bits_of(node->number) == bits_of(item->valuedouble), "%s: number %u",
            text, index);
    require(node->type != JSON_STRING || strcmp(node->string, item->valuestring) == 0, "%s: string %u", text,
            index);
    uint32_t next = index + 1;
    for (const cJSON *child = item->child; child != NULL; child = child->next)
        next = check_item(document, next, child, text);
    require(next == node->end, "%s: end of %u", text, index);
    return next;
}

static void check_agreement(const char *text, size_t length)
{
    struct json_document document;
    char copy[260];
    memcpy(copy, text, length);
    copy[length] = '\0';
    struct flaws flaws = parse_bytes(&document, text, length);
    require(document.count > 0 || flaws.count > 0, "%s", copy);
    for (uint32_t i = 0; i < document.count; i++) {
        const struct json_node *node = &document.nodes[i];
        require(node->value.offset + node->value.length <= length, "%s: value %u", copy, i);
        require(node->end > i && node->end <= document.count, "%s: value %u", copy, i);
    }
    if (flaws.count == 0) {
        cJSON *root = cJSON_ParseWithLengthOpts(copy, length + 1, NULL, true);
        require(root != NULL, "%s", copy);
        check_item(&document, 0, root, copy);
        cJSON_Delete(root);
    }
    json_document_fini(&document);
}

START_TEST(cjson_reads_every_flawless_text_alike)
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
    tcase_add_test(grammar, flaws_are_counted_and_do_not_end_the_reading);
    tcase_add_test(grammar, broken_texts_are_refused);
    tcase_add_test(grammar, depth_values_and_digits_have_limits);
    tcase_add_test(grammar, duplicates_among_thousands_of_alike_keys_are_found);
    TCase *places = tcase_create("places");
    tcase_add_test(places, places_are_lines_and_characters);
    tcase_add_test(places, flaws_are_told_where_they_are);
    tcase_add_test(places, integers_are_known_by_their_digits);
    tcase_add_test(places, pointers_and_values_are_shown);
    tcase_add_test(places, cjson_reads_every_flawless_text_alike);
    TCase *cases[] = {grammar, places};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tcase_set_timeout(cases[i], 60);
        suite_add_tcase(suite, cases[i]);
    }
    return suite_run(suite);
}
