/* Whether a policy that has learned with one spec fits another (environment_spec_compare); and which flags
 * several agents may have together. */
#include "test/workplace.h"
#include "worker/environment/environment_spec.h"

#include <check.h>
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

int main(void)
{
    Suite *suite = suite_create("environment_spec");
    TCase *compare = tcase_create("compare");
    tcase_add_test(compare, the_same_spec_fits);
    tcase_add_test(compare, each_difference_is_named);
    suite_add_tcase(suite, compare);
    TCase *flags = tcase_create("flags");
    tcase_add_loop_test(flags, flags_fit_together, 0, sizeof steps / sizeof steps[0]);
    suite_add_tcase(suite, flags);
    return suite_run(suite);
}
