/* What an observer tells of its environment: the text of a spec, and the spec of a text that nobody trusts.
 */
#include "test/workplace.h"
#include "worker/environment/environment_description.h"
#include "worker/environment/environment_spec.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double low[3] = {-1, -INFINITY, 0.1}, high[3] = {1, INFINITY, 0.30000000000000004};
static const double zeros[12], bytes_high[12] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
static const double push_low[1] = {-2}, push_high[1] = {2};
static const uint32_t choices[2] = {3, 2}, two[1] = {2};
static const char *const metrics[] = {"is_success", "d\"istance"};
static const struct environment_part parts[] = {
    {"ey\"e", {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {2, 2, 3}, .low = zeros, .high = bytes_high}},
    {"pace", {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {3}, .low = low, .high = high}},
};

#define SPEC .size = sizeof(struct environment_spec), .agents = 1

static const struct {
    struct environment_spec spec;
    bool can_save;
    const char *text;
} cases[] = {
    {{SPEC, .steps_max = 500,
      .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {3}, .low = low, .high = high},
      .action = {.dtype = ENVIRONMENT_I32, .choices = two}},
     false,
     "{\"name\":\"A\",\"agents\":1,\"steps_max\":500,\"mask\":false,\"can_seed\":true,\"can_save\":false,"
     "\"singleton\":false,"
     "\"metrics\":[],"
     "\"observation\":{\"dtype\":\"float32\",\"shape\":[3],\"low\":[-1,null,0.1],\"high\":[1,null,0."
     "30000000000000004]},"
     "\"action\":{\"dtype\":\"int32\",\"shape\":[],\"choices\":2}}"},
    {{SPEC, .limits = ENVIRONMENT_CANNOT_SEED | ENVIRONMENT_SINGLETON, .has_mask = 1, .metric_count = 2,
      .metrics = metrics,
      .observation =
          {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {2, 2, 3}, .low = zeros, .high = bytes_high},
      .action = {.dtype = ENVIRONMENT_I32, .rank = 1, .shape = {2}, .choices = choices}},
     true,
     "{\"name\":\"A\",\"agents\":1,\"steps_max\":0,\"mask\":true,\"can_seed\":false,\"can_save\":true,"
     "\"singleton\":true,"
     "\"metrics\":[\"is_success\",\"d\\\"istance\"],"
     "\"observation\":{\"dtype\":\"uint8\",\"shape\":[2,2,3],\"low\":0,\"high\":255},"
     "\"action\":{\"dtype\":\"int32\",\"shape\":[2],\"choices\":[3,2]}}"},
    {{SPEC, .observation = {.dtype = ENVIRONMENT_F32, .rank = 2, .shape = {4, 5}},
      .action = {.dtype = ENVIRONMENT_F32, .low = push_low, .high = push_high}},
     false,
     "{\"name\":\"A\",\"agents\":1,\"steps_max\":0,\"mask\":false,\"can_seed\":true,\"can_save\":false,"
     "\"singleton\":false,"
     "\"metrics\":[],"
     "\"observation\":{\"dtype\":\"float32\",\"shape\":[4,5]},"
     "\"action\":{\"dtype\":\"float32\",\"shape\":[],\"low\":-2,\"high\":2}}"},
    {{SPEC, .observation = {.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {24}},
      .action = {.dtype = ENVIRONMENT_I32, .choices = two}, .part_count = 2, .parts = parts},
     false,
     "{\"name\":\"A\",\"agents\":1,\"steps_max\":0,\"mask\":false,\"can_seed\":true,\"can_save\":false,"
     "\"singleton\":false,"
     "\"metrics\":[],"
     "\"observation\":{\"dtype\":\"uint8\",\"shape\":[24],\"parts\":["
     "{\"name\":\"ey\\\"e\",\"dtype\":\"uint8\",\"shape\":[2,2,3],\"low\":0,\"high\":255},"
     "{\"name\":\"pace\",\"dtype\":\"float32\",\"shape\":[3],\"low\":[-1,null,0.1],\"high\":[1,null,0."
     "30000000000000004]}]},"
     "\"action\":{\"dtype\":\"int32\",\"shape\":[],\"choices\":2}}"},
};
enum { CASES = sizeof cases / sizeof cases[0] };

START_TEST(a_spec_has_one_text)
{
    char *text = environment_describe("A", &cases[_i].spec, cases[_i].can_save);
    ck_assert_str_eq(text, cases[_i].text);
    free(text);
}
END_TEST

static void expect_equal_bounds(const double *found, const double *expected, size_t count)
{
    ck_assert_int_eq(found != NULL, expected != NULL);
    for (size_t i = 0; i < count && found != NULL; i++)
        ck_assert(found[i] == expected[i]);
}

static void expect_equal_spaces(const struct environment_space *found,
                                const struct environment_space *expected)
{
    const size_t count = environment_space_elements(expected);
    ck_assert_uint_eq(found->dtype, expected->dtype);
    ck_assert_uint_eq(found->rank, expected->rank);
    ck_assert_mem_eq(found->shape, expected->shape, sizeof found->shape);
    expect_equal_bounds(found->low, expected->low, count);
    expect_equal_bounds(found->high, expected->high, count);
    ck_assert_int_eq(found->choices != NULL, expected->choices != NULL);
    if (expected->choices != NULL)
        ck_assert_mem_eq(found->choices, expected->choices, count * sizeof *expected->choices);
}

START_TEST(the_text_gives_the_spec_back)
{
    struct environment_description found;
    struct error error = {0};
    const struct environment_spec *expected = &cases[_i].spec;
    const enum status status =
        environment_description_read(&found, cases[_i].text, strlen(cases[_i].text), &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_str_eq(found.name, "A");
    ck_assert_uint_eq(found.spec.limits, expected->limits);
    ck_assert(found.can_save == cases[_i].can_save);
    ck_assert_uint_eq(found.spec.steps_max, expected->steps_max);
    ck_assert_uint_eq(found.spec.has_mask, expected->has_mask);
    ck_assert_uint_eq(found.spec.metric_count, expected->metric_count);
    for (uint32_t i = 0; i < expected->metric_count; i++)
        ck_assert_str_eq(found.spec.metrics[i], expected->metrics[i]);
    expect_equal_spaces(&found.spec.observation, &expected->observation);
    expect_equal_spaces(&found.spec.action, &expected->action);
    ck_assert_uint_eq(found.spec.part_count, expected->part_count);
    for (uint32_t i = 0; i < expected->part_count; i++) {
        ck_assert_str_eq(found.spec.parts[i].name, expected->parts[i].name);
        expect_equal_spaces(&found.spec.parts[i].space, &expected->parts[i].space);
    }
    environment_description_fini(&found);
}
END_TEST

/* The second text, with one piece replaced. */
static const struct spoiled {
    const char *part, *replacement, *said;
} spoiled[] = {
    {"{\"name\"", "[\"name\"", "expected a JSON object"},
    {"\"A\"", "\"\"", "name: expected a text of 1..127 bytes"},
    {"\"A\"", "7", "name: expected a text"},
    {"\"agents\":1", "\"agents\":0", "agents is 0: expected 1..1024"},
    {"\"agents\":1", "\"agents\":1.5", "agents: expected a whole number"},
    {"\"agents\":1", "\"agents\":1e99", "agents: expected a whole number"},
    {"\"agents\":1,", "", "agents: expected a whole number"},
    {"\"steps_max\":0", "\"steps_max\":-1", "steps_max: expected a whole number"},
    {"\"mask\":true", "\"mask\":1", "mask: expected true or false"},
    {"\"can_seed\":false,", "", "can_seed: expected true or false"},
    {"\"can_save\":true,", "", "can_save: expected true or false"},
    {"\"singleton\":true", "\"singleton\":true,\"more\":0", "more: an unknown member"},
    {"\"metrics\":[", "\"metrics\":[3,", "metrics: expected names"},
    {"\"is_success\"", "\"\"", "metrics[0] has no name"},
    {"\"observation\":{", "\"observation\":[1],\"more\":{", "observation: expected an object"},
    {"\"action\":{", "\"action\":[1],\"more\":{", "action: expected an object"},
    {"\"uint8\"", "\"float64\"", "observation.dtype: expected \"float32\", \"int32\" or \"uint8\""},
    {"\"uint8\"", "\"int32\"", "observation.dtype is 2: expected ENVIRONMENT_F32 or ENVIRONMENT_U8"},
    {"[2,2,3]", "[2,2,3,1]", "observation.shape: expected a list of at most 3 numbers"},
    {"[2,2,3]", "[2,0,3]", "observation.shape: expected sizes from 1"},
    {"[2,2,3]", "[65536,65536,65536]",
     "observation.shape: expected sizes from 1, of at most 4194304 elements"},
    {"[2,2,3]", "12", "observation.shape: expected a list"},
    {"\"low\":0", "\"low\":[0,0]", "observation.low: 2 numbers, expected 12"},
    {"\"low\":0", "\"low\":\"0\"", "observation.low: number 0 is none"},
    {"\"low\":0", "\"low\":300", "observation has the bounds low[0] = 300 and high[0] = 255"},
    {"\"high\":255", "\"high\":255,\"wide\":1", "observation.wide: an unknown member"},
    {"[3,2]", "[3,0]", "action.choices: number 1 is 0, expected 1..65536"},
    {"[3,2]", "[3,null]", "action.choices: number 1 is none"},
    {"[3,2]", "[3]", "action.choices: 1 numbers, expected 2"},
    {",\"choices\":[3,2]", "", "has_mask is 1: expected 0, or 1 of an action with choices"},
};

/* The same of the last text. */
static const struct spoiled spoiled_parts[] = {
    {"\"parts\":[", "\"parts\":3,\"more\":[", "observation.parts: expected a list of 1..256 objects"},
    {"\"parts\":[", "\"parts\":[],\"more\":[", "observation.parts: expected a list of 1..256 objects"},
    {"\"parts\":[", "\"parts\":[7,", "observation.parts[0]: expected an object"},
    {"\"parts\":[", "\"parts\":[[1],", "observation.parts[0]: expected an object"},
    {"\"name\":\"pace\",", "", "observation.parts[1].name: expected a text"},
    {"\"name\":\"pace\",", "\"name\":\"pace\",\"wide\":1,", "observation.parts[1].wide: an unknown member"},
    {"\"shape\":[3]", "\"shape\":[4]", "observation.parts[1].low: 3 numbers, expected 4"},
    {"\"shape\":[2,2,3]", "\"shape\":[4194303]",
     "observation.parts[1].shape: expected sizes from 1, of at most 1 elements"},
    {"[24]", "[20]", "observation is uint8 (20): expected uint8 (24)"},
    {"[24]", "[24],\"low\":0", "observation has bounds: expected those of its parts alone"},
};

static void expect_refused(const char *whole, const struct spoiled *how)
{
    char text[1024];
    const char *part = strstr(whole, how->part);
    ck_assert_ptr_nonnull(part);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(part - whole), whole, how->replacement,
             part + strlen(how->part));
    struct environment_description found;
    struct error error = {0};
    ck_assert_int_eq(environment_description_read(&found, text, strlen(text), &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, how->said) != NULL, "%s", error.text);
    environment_description_fini(&found);
}

START_TEST(a_bad_text_is_refused_with_a_sentence)
{
    expect_refused(cases[1].text, &spoiled[_i]);
}
END_TEST

START_TEST(so_are_bad_parts)
{
    expect_refused(cases[CASES - 1].text, &spoiled_parts[_i]);
}
END_TEST

/* Each beginning of a text, and each text with one byte changed, is read or refused. */
START_TEST(no_text_does_harm)
{
    char text[1024];
    const size_t bytes = strlen(cases[_i].text);
    ck_assert_uint_gt(bytes, 0);
    for (size_t i = 0; i < 3 * bytes; i++) {
        struct environment_description found;
        struct error error = {0};
        memcpy(text, cases[_i].text, bytes);
        if (i >= bytes)
            text[i % bytes] = i < 2 * bytes ? '9' : '}';
        if (environment_description_read(&found, text, i < bytes ? i : bytes, &error) != STATUS_OK)
            ck_assert_uint_gt(strlen(error.text), 0);
        environment_description_fini(&found);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environment_description");
    TCase *tests = tcase_create("description");
    tcase_add_loop_test(tests, a_spec_has_one_text, 0, CASES);
    tcase_add_loop_test(tests, the_text_gives_the_spec_back, 0, CASES);
    tcase_add_loop_test(tests, a_bad_text_is_refused_with_a_sentence, 0, sizeof spoiled / sizeof spoiled[0]);
    tcase_add_loop_test(tests, so_are_bad_parts, 0, sizeof spoiled_parts / sizeof spoiled_parts[0]);
    tcase_add_loop_test(tests, no_text_does_harm, 0, CASES);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
