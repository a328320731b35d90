/* Whether a policy that has learned with one spec fits another (environment_spec_compare); the parts of an
 * observation, and their rows; and which flags several agents may have together. */
#include "test/workplace.h"
#include "worker/environment/environment_spec.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static const uint32_t two[] = {2}, three[] = {3};
static const double low[] = {-1, -2}, high[] = {1, 2}, higher[] = {1, 3};

static struct environment_spec choosing(void)
{
    return (struct environment_spec){
        .size = sizeof(struct environment_spec),
        .agents = 1,
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {4}},
        .action = {.dtype = ENVIRONMENT_I32, .choices = two},
    };
}

static struct environment_spec pushing(void)
{
    struct environment_spec spec = choosing();
    spec.action = (struct environment_space){
        .dtype = ENVIRONMENT_F32, .rank = 1, .shape = {2}, .low = low, .high = high};
    return spec;
}

static void expect(struct environment_spec was, struct environment_spec is, const char *sentence)
{
    struct error error = {0};
    const enum status status = environment_spec_compare(&was, &is, &error);
    ck_assert_int_eq(status, sentence == NULL ? STATUS_OK : STATUS_INVALID);
    if (sentence != NULL)
        ck_assert_str_eq(error.text, sentence);
}

START_TEST(the_same_spec_fits)
{
    struct environment_spec longer = choosing();
    longer.steps_max = 100; // a limit does not matter to a policy
    expect(choosing(), longer, NULL);
    expect(pushing(), pushing(), NULL);
}
END_TEST

START_TEST(each_difference_is_named)
{
    struct environment_spec is = choosing();
    is.agents = 3;
    expect(choosing(), is, "it has 3 agents: it had 1");
    is = choosing();
    is.has_mask = 1;
    expect(choosing(), is, "it has action masks: it had none");
    expect(is, choosing(), "it has no action masks: it had some");
    is = choosing();
    is.observation.shape[0] = 5;
    expect(choosing(), is, "its observation is float32 (5): it was float32 (4)");
    is.observation = (struct environment_space){.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {84, 84, 4}};
    expect(choosing(), is, "its observation is uint8 (84, 84, 4): it was float32 (4)");
    is = choosing();
    is.action.choices = three;
    expect(choosing(), is, "its action's element 0 has 3 choices: it had 2");
    expect(choosing(), pushing(), "its action is float32 (2): it was int32 ()");
    is = pushing();
    is.action.high = higher;
    expect(pushing(), is, "its action's upper bound 1 is 3: it was 2");
}
END_TEST

/* ---- parts ---- */

static const double byte_low[] = {0, 0, 0, 0, 0, 0}, byte_high[] = {9, 9, 9, 9, 9, 9};
static const struct environment_part seen[] = {
    {"place", {.dtype = ENVIRONMENT_F32, .low = low, .high = high}},
    {"eye", {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {2, 3, 1}, .low = byte_low, .high = byte_high}},
    {"pace", {.dtype = ENVIRONMENT_F32, .rank = 2, .shape = {1, 2}}},
};
enum { EYE_AT = 4, PACE_AT = 12, ROW_BYTES = 20 }; /* the image has 6 bytes, and 2 behind it */

static struct environment_spec seeing(void)
{
    struct environment_spec spec = choosing();
    spec.observation = (struct environment_space){.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {ROW_BYTES}};
    spec.part_count = 3;
    spec.parts = seen;
    return spec;
}

START_TEST(parts_begin_at_multiples_of_4)
{
    const struct environment_spec spec = seeing();
    struct error error;
    char row[ROW_BYTES] = {0};
    const float place = 0.5f, pace[] = {3, 4};
    float floats[3];
    ck_assert_msg(environment_spec_check(&spec, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(environment_part_offset(seen, 0), 0);
    ck_assert_uint_eq(environment_part_offset(seen, 1), EYE_AT);
    ck_assert_uint_eq(environment_part_offset(seen, 2), PACE_AT);
    ck_assert_uint_eq(environment_part_offset(seen, 3), ROW_BYTES);
    memcpy(row, &place, sizeof place);
    memset(row + EYE_AT, 7, 6);
    memcpy(row + PACE_AT, pace, sizeof pace);
    ck_assert_uint_eq(environment_part_floats(seen, 3, row, floats), 3);
    ck_assert(floats[0] == place && floats[1] == 3 && floats[2] == 4);
    ck_assert_uint_eq(environment_part_floats(seen, 3, NULL, NULL), 3);
}
END_TEST

/* Each with one member of the spec, or of its last part, changed. */
static const struct {
    const char *sentence;
    struct environment_part last;
    struct environment_space whole;
    uint32_t count;
    bool no_list;
} bad_parts[] = {
    {.sentence = "part_count is 257: expected at most 256", .count = 257},
    {.sentence = "parts is NULL: expected 3 parts", .no_list = true},
    {.sentence = "parts[2] has the name of parts[1]", .last = {"eye", {.dtype = ENVIRONMENT_F32}}},
    {.sentence = "parts[2] has no name", .last = {"", {.dtype = ENVIRONMENT_F32}}},
    {.sentence = "parts[2] has a name of more than 63 bytes",
     .last = {"0123456789012345678901234567890123456789012345678901234567890123",
              {.dtype = ENVIRONMENT_F32}}},
    {.sentence = "parts[2] has a name that is not UTF-8", .last = {"pac\xe9", {.dtype = ENVIRONMENT_F32}}},
    {.sentence = "part pace.dtype is 2: expected ENVIRONMENT_F32 or ENVIRONMENT_U8",
     .last = {"pace", {.dtype = ENVIRONMENT_I32}}},
    {.sentence = "part pace.rank is 1: expected 3 of ENVIRONMENT_U8, height, width and channels",
     .last = {"pace", {.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {8}}}},
    {.sentence = "observation is uint8 (20): expected uint8 (16), which its parts take",
     .last = {"pace", {.dtype = ENVIRONMENT_F32}}},
    {.sentence = "observation is float32 (5): expected uint8 (20), which its parts take",
     .whole = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {5}}},
    {.sentence = "observation is uint8 (5, 4): expected uint8 (20)",
     .whole = {.dtype = ENVIRONMENT_U8, .rank = 2, .shape = {5, 4}}},
};

START_TEST(bad_parts_are_named)
{
    struct environment_spec spec = seeing();
    struct environment_part parts[3];
    struct error error = {0};
    memcpy(parts, seen, sizeof parts);
    if (bad_parts[_i].last.name != NULL)
        parts[2] = bad_parts[_i].last;
    if (bad_parts[_i].whole.rank > 0)
        spec.observation = bad_parts[_i].whole;
    spec.parts = bad_parts[_i].no_list ? NULL : parts;
    spec.part_count = bad_parts[_i].count > 0 ? bad_parts[_i].count : 3;
    ck_assert_int_eq(environment_spec_check(&spec, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, bad_parts[_i].sentence) != NULL, "%s", error.text);
}
END_TEST

/* A plug-in of version 1 has no parts, and whatever lies behind its spec. */
/* Two rows. The image's bytes would be no finite float. */
START_TEST(floats_among_bytes_are_looked_at)
{
    const struct environment_spec spec = seeing();
    char rows[2 * ROW_BYTES] = {0};
    const float bad = NAN;
    ck_assert(environment_observes_floats(&spec));
    memset(rows + EYE_AT, 0xff, PACE_AT - EYE_AT);
    ck_assert(environment_observations_are_finite(&spec, rows, 2));
    memcpy(rows + ROW_BYTES + PACE_AT + 4, &bad, sizeof bad);
    ck_assert(environment_observations_are_finite(&spec, rows, 1));
    ck_assert(!environment_observations_are_finite(&spec, rows, 2));
}
END_TEST

START_TEST(a_spec_of_version_1_is_taken)
{
    struct environment_spec spec = seeing(), taken;
    struct error error;
    spec.observation = choosing().observation;
    spec.size = offsetof(struct environment_spec, part_count);
    ck_assert_msg(environment_spec_take(&taken, &spec, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(taken.part_count, 0);
    ck_assert_ptr_null(taken.parts);
    expect(choosing(), taken, NULL);
    spec.size--;
    ck_assert_int_eq(environment_spec_take(&taken, &spec, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "spec.size is "));
}
END_TEST

START_TEST(other_parts_do_not_fit)
{
    struct environment_spec is = seeing(), old = seeing();
    struct environment_part parts[3];
    memcpy(parts, seen, sizeof parts);
    is.parts = parts;
    expect(seeing(), is, NULL);
    parts[2].name = "speed";
    expect(seeing(), is, "its observation's part 2 is speed: it was pace");
    memcpy(parts, seen, sizeof parts);
    parts[1].space.shape[0] = 4;
    expect(seeing(), is, "its observation's part eye is uint8 (4, 3, 1): it was uint8 (2, 3, 1)");
    is.part_count = 2;
    parts[1] = seen[1];
    expect(seeing(), is, "its observation has 2 parts: it had 3");
    old.part_count = 0; // of a checkpoint that knows no parts
    expect(old, seeing(), NULL);
}
END_TEST

/* A row's bytes, one float of which, or one byte, is spoiled. */
static const struct {
    uint32_t at;
    float value;
    const char *sentence;
} bad_rows[] = {
    {0, NAN, "element 0 of its place is nan: expected a finite number"},
    {PACE_AT + 4, INFINITY, "element 1 of its pace is inf: expected a finite number"},
    {0, 1.5f, "element 0 of its place is 1.5: expected -1..1"},
    {EYE_AT + 5, 10, "element 5 of its eye is 10: expected 0..9"},
};

START_TEST(rows_are_checked_part_by_part)
{
    const struct environment_spec spec = seeing();
    struct error error = {0};
    char row[ROW_BYTES] = {0};
    float reward = 0;
    uint8_t flags = 0;
    const bool is_byte = bad_rows[_i].at == EYE_AT + 5;
    const struct environment_buffers buffers = {.observation = row, .reward = &reward, .flags = &flags};
    const struct environment_rows rows = environment_rows_of(&spec, &buffers, 0);
    ck_assert_msg(environment_row_check(&rows, 0, true, &error) == STATUS_OK, "%s", error.text);
    if (is_byte)
        row[bad_rows[_i].at] = (char)bad_rows[_i].value;
    else
        memcpy(row + bad_rows[_i].at, &bad_rows[_i].value, sizeof(float));
    ck_assert_int_eq(environment_row_check(&rows, 0, true, &error), STATUS_CORRUPT);
    ck_assert_msg(strstr(error.text, bad_rows[_i].sentence) != NULL, "%s", error.text);
}
END_TEST

/* ---- flags of three agents ---- */

enum {
    ENDS = ENVIRONMENT_TERMINATED,
    AGAIN = ENVIRONMENT_TERMINATED | ENVIRONMENT_RESTARTED,
    GONE = ENVIRONMENT_ABSENT,
    LIFE = ENVIRONMENT_LIFE_LOST
};

static const struct {
    uint8_t flags[3];
    const char *sentence; /* NULL: they are good */
} steps[] = {
    {{0, ENDS, GONE}, NULL},
    {{LIFE, 0, LIFE | ENDS}, NULL},
    {{AGAIN, AGAIN, GONE}, NULL},
    {{AGAIN, AGAIN, 0}, "2 of 3 agents that are present say RESTARTED: expected all or none"},
    {{AGAIN, ENDS, GONE}, "1 of 2 agents that are present say RESTARTED: expected all or none"},
    {{GONE, GONE, GONE}, "no agent is present: expected an end in the step before"},
    {{0, GONE | LIFE, 0}, "its flags say ABSENT, and LIFE_LOST"},
    {{0, 0, 64}, "its flags are 0x40, which has bits without a meaning"},
};

START_TEST(flags_fit_together)
{
    struct environment_spec spec = choosing();
    struct error error = {0};
    uint8_t flags[3];
    memcpy(flags, steps[_i].flags, sizeof flags);
    const struct environment_buffers buffers = {.flags = flags};
    spec.agents = 3;
    const struct environment_rows rows = environment_rows_of(&spec, &buffers, 7);
    const enum status status = environment_rows_check_flags(&rows, 1, NULL, &error);
    ck_assert_int_eq(status, steps[_i].sentence == NULL ? STATUS_OK : STATUS_CORRUPT);
    ck_assert_msg(status == STATUS_OK || strstr(error.text, steps[_i].sentence) != NULL, "%s", error.text);
    ck_assert_msg(status == STATUS_OK || strncmp(error.text, "environment 7, agent ", 21) == 0, "%s",
                  error.text);
}
END_TEST

/* What learns from a buffer takes a lost life for an end without a future, though the episode goes on and is
 * not counted; PPO and REINFORCE do so by the same function. */
START_TEST(a_lost_life_ends_what_is_learned_from_alone)
{
    static const struct {
        uint8_t flags;
        bool has_no_future, is_counted, waits_for_reset;
    } of[] = {{0, false, false, false},
              {LIFE, true, false, false},
              {ENDS, true, true, true},
              {ENDS | LIFE, true, true, true},
              {ENVIRONMENT_TRUNCATED, false, true, true},
              {ENVIRONMENT_TRUNCATED | LIFE, true, true, true},
              {AGAIN, true, true, false}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        ck_assert(environment_flags_have_no_future(of[i].flags) == of[i].has_no_future);
        ck_assert(environment_flags_count(of[i].flags) == of[i].is_counted);
        ck_assert(environment_flags_end(of[i].flags) == of[i].waits_for_reset);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environment_spec");
    TCase *compare = tcase_create("compare");
    tcase_add_test(compare, the_same_spec_fits);
    tcase_add_test(compare, each_difference_is_named);
    suite_add_tcase(suite, compare);
    TCase *parts = tcase_create("parts");
    tcase_add_test(parts, parts_begin_at_multiples_of_4);
    tcase_add_loop_test(parts, bad_parts_are_named, 0, sizeof bad_parts / sizeof bad_parts[0]);
    tcase_add_test(parts, floats_among_bytes_are_looked_at);
    tcase_add_test(parts, a_spec_of_version_1_is_taken);
    tcase_add_test(parts, other_parts_do_not_fit);
    tcase_add_loop_test(parts, rows_are_checked_part_by_part, 0, sizeof bad_rows / sizeof bad_rows[0]);
    suite_add_tcase(suite, parts);
    TCase *flags = tcase_create("flags");
    tcase_add_loop_test(flags, flags_fit_together, 0, sizeof steps / sizeof steps[0]);
    tcase_add_test(flags, a_lost_life_ends_what_is_learned_from_alone);
    suite_add_tcase(suite, flags);
    return suite_run(suite);
}
