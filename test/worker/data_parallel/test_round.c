/* The round: every rule, replays, late contributions, deaths, slots that run out. */
#include "test/workplace.h"
#include "worker/data_parallel/round.h"

#include <check.h>
#include <string.h>

static struct round the_round, *const r = &the_round;
static uint32_t members[JOB_TRAINERS_MAX];
static struct error error;

static void make(int rule, uint32_t number, uint32_t trainers, uint64_t version, const uint64_t *steps)
{
    static const uint64_t zeros[JOB_TRAINERS_MAX];
    static struct job job;
    job.server.round.name = rule;
    job.server.round.number = number;
    job.server.count = 2;
    job.trainers.count = trainers;
    round_open(r, &job, version, steps != NULL ? steps : zeros);
}

static void give_all(uint32_t trainers)
{
    for (uint32_t i = 0; i < trainers; i++)
        round_hold(r, i, r->version);
}

static bool add(uint32_t trainer, uint64_t step, uint64_t base)
{
    bool replay;
    enum status status = round_check_step(r, trainer, step, &error);
    if (status == STATUS_OK)
        status = round_add(r, trainer, base, &replay, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return replay;
}

static void refuse(uint32_t trainer, uint64_t step, uint64_t base, const char *text)
{
    bool replay;
    uint32_t waiting = round_waiting(r);
    bool waits = r->seat[trainer].waiting;
    enum status status = round_check_step(r, trainer, step, &error);
    if (status == STATUS_OK)
        status = round_add(r, trainer, base, &replay, &error);
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_msg(strstr(error.text, text) != NULL, "\"%s\" is not in \"%s\"", text, error.text);
    ck_assert_uint_eq(round_waiting(r), waiting);
    ck_assert(r->seat[trainer].waiting == waits);
}

/* The next round's members must be these, as a text of digits ("": it is not full). */
static void expect_members(const char *digits)
{
    uint32_t count = round_members(r, members);
    ck_assert_uint_eq(count, strlen(digits));
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(members[i], (uint32_t)(digits[i] - '0'));
}

static void expect_slot(bool free)
{
    uint32_t slot;
    ck_assert(round_free_slot(r, &slot) == free);
}

static void expect_no_late(void)
{
    uint32_t trainer;
    ck_assert(!round_take_late(r, &trainer));
}

/* Makes the round of those who must be its members. */
static void make_round(const char *digits)
{
    uint32_t slot;
    uint64_t version = r->version;
    expect_members(digits);
    ck_assert(round_free_slot(r, &slot));
    round_advance(r, slot, members, (uint32_t)strlen(digits));
    ck_assert_uint_eq(r->version, version + 1);
}

static void answer(const char *digits)
{
    for (; *digits != '\0'; digits++)
        round_hold(r, (uint32_t)(*digits - '0'), r->version);
}

START_TEST(all_waits_for_everyone_and_lists_by_number)
{
    make(JOB_ROUND_ALL, 0, 3, 0, NULL);
    give_all(3);
    for (uint64_t version = 0; version < 5; version++) {
        ck_assert(!add(2, version, version));
        expect_members("");
        ck_assert(!add(0, version, version));
        expect_members("");
        ck_assert_uint_eq(round_waiting(r), 2);
        ck_assert(!add(1, version, version));
        make_round("012");
        ck_assert_uint_eq(round_waiting(r), 0);
        expect_members("");
        expect_no_late();
        answer("012");
    }
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(r->seat[i].step, 5);
}
END_TEST

/* Two slots in turn: every server of a job writes a version into the same one. */
START_TEST(all_alternates_between_two_slots)
{
    uint32_t slot;
    make(JOB_ROUND_ALL, 0, 2, 7, NULL);
    for (uint64_t version = 7; version < 12; version++) {
        ck_assert(round_slot_of(r, version, &slot));
        ck_assert_uint_eq(slot, (version - 7) % 2);
        give_all(2);
        add(0, version - 7, version);
        add(1, version - 7, version);
        make_round("01");
        ck_assert(round_slot_of(r, version, &slot)); /* the version before is still there */
    }
    ck_assert(!round_slot_of(r, 10, &slot));
    ck_assert(!round_slot_of(r, ROUND_NO_VERSION, &slot));
}
END_TEST

START_TEST(a_replay_replaces_and_counts_once)
{
    make(JOB_ROUND_ALL, 0, 2, 0, NULL);
    give_all(2);
    ck_assert(!add(1, 0, 0));
    ck_assert(add(1, 0, 0));
    ck_assert(add(1, 0, 0));
    ck_assert_uint_eq(round_waiting(r), 1);
    expect_members("");
    refuse(1, 0, 1, "trainer 3, step 0: computed from version 1: expected none above 0");
    add(0, 0, 0);
    make_round("01");
    ck_assert_uint_eq(r->seat[1].step, 1);
    refuse(1, 0, 0, "trainer 3 sent step 0: expected step 1"); /* its round is made */
}
END_TEST

START_TEST(a_withdrawn_contribution_can_be_sent_anew)
{
    make(JOB_ROUND_ALL, 0, 1, 0, NULL);
    give_all(1);
    add(0, 0, 0);
    ck_assert(r->seat[0].waiting);
    round_withdraw(r, 0);
    round_withdraw(r, 0);
    ck_assert(!r->seat[0].waiting);
    expect_members("");
    ck_assert(!add(0, 0, 0));
    expect_members("0");
}
END_TEST

START_TEST(wrong_numbers_are_told_by_name)
{
    const uint64_t steps[] = {4, 9};
    make(JOB_ROUND_ALL, 0, 2, 5, steps);
    refuse(1, 9, 5, "trainer 3, step 9: computed from version 5: the trainer holds no version");
    give_all(2);
    refuse(1, 10, 5, "trainer 3 sent step 10: expected step 9");
    refuse(1, 8, 5, "trainer 3 sent step 8: expected step 9");
    refuse(0, UINT64_MAX, 5, "trainer 2 sent step 18446744073709551615: expected step 4");
    refuse(1, 9, 6, "trainer 3, step 9: computed from version 6: expected none above 5");
    refuse(1, 9, 4, "trainer 3, step 9: computed from version 4: expected 5, which it was given");
    refuse(1, 9, ROUND_NO_VERSION, "expected none above 5");
    add(1, 9, 5);
}
END_TEST

START_TEST(a_dead_trainer_leaves_neither_hold_nor_contribution)
{
    make(JOB_ROUND_ALL, 0, 2, 0, NULL);
    give_all(2);
    add(0, 0, 0);
    add(1, 0, 0);
    expect_members("01");
    round_forget(r, 1);
    expect_members("");
    refuse(1, 0, 0, "the trainer holds no version");
    round_hold(r, 1, 0); /* its successor asks for the model and repeats the step */
    ck_assert_uint_eq(r->seat[1].step, 0);
    ck_assert(!add(1, 0, 0));
    make_round("01");
}
END_TEST

START_TEST(first_takes_the_first_k_and_the_rest_is_late)
{
    uint32_t trainer;
    make(JOB_ROUND_FIRST, 2, 4, 0, NULL);
    give_all(4);
    add(3, 0, 0);
    expect_members("");
    add(1, 0, 0);
    expect_members("13");
    add(0, 0, 0); /* before the round is made, yet one too many */
    expect_members("13");
    expect_no_late();
    make_round("13");
    ck_assert(round_take_late(r, &trainer));
    ck_assert_uint_eq(trainer, 0);
    expect_no_late();
    ck_assert_uint_eq(r->late, 1);
    ck_assert_uint_eq(r->seat[0].step, 1);
    answer("013");
    add(2, 0, 0); /* still of version 0 */
    ck_assert(round_take_late(r, &trainer));
    ck_assert_uint_eq(trainer, 2);
    ck_assert_uint_eq(r->late, 2);
    answer("2");
    add(2, 1, 1);
    add(0, 1, 1);
    make_round("02");
}
END_TEST

/* Two who keep old versions use up the slots; the update waits until one of them contributes. */
START_TEST(first_waits_for_a_slot)
{
    uint32_t trainer, slot;
    make(JOB_ROUND_FIRST, 1, 3, 0, NULL);
    give_all(3);
    add(0, 0, 0);
    make_round("0");
    answer("0"); /* 1 and 2 hold version 0 */
    add(1, 0, 0);
    ck_assert(round_take_late(r, &trainer));
    answer("1"); /* 1 holds version 1, 2 holds version 0 */
    add(0, 1, 1);
    make_round("0");
    answer("0");
    add(0, 2, 2);
    expect_members("0");
    expect_slot(false);
    add(2, 0, 0);
    expect_slot(true); /* released by what came, before it is answered */
    ck_assert(round_take_late(r, &trainer));
    ck_assert_uint_eq(trainer, 2);
    make_round("0");
    ck_assert(round_slot_of(r, 1, &slot)); /* trainer 1's */
    ck_assert(!round_slot_of(r, 0, &slot));
}
END_TEST

START_TEST(a_death_frees_a_slot)
{
    make(JOB_ROUND_ASYNC, 0, 2, 0, NULL);
    give_all(2);
    add(0, 0, 0);
    make_round("0");
    answer("0");
    add(0, 1, 1);
    expect_slot(false); /* versions 1 and 0, which trainer 1 holds */
    round_forget(r, 1);
    make_round("0");
}
END_TEST

START_TEST(async_is_in_order_of_arrival_within_its_bound)
{
    uint32_t trainer;
    make(JOB_ROUND_ASYNC, 1, 4, 0, NULL);
    give_all(4);
    add(2, 0, 0);
    add(0, 0, 0);
    make_round("2"); /* version 1 */
    answer("2");
    expect_no_late(); /* trainer 0 is one behind: allowed */
    add(1, 0, 0);
    make_round("0"); /* version 2 */
    ck_assert(round_take_late(r, &trainer));
    ck_assert_uint_eq(trainer, 1); /* two behind by now */
    expect_no_late();
    expect_members("");
    add(3, 0, 0);
    ck_assert(round_take_late(r, &trainer));
    ck_assert_uint_eq(trainer, 3);
    answer("013");
    add(2, 1, 1);
    make_round("2"); /* from version 1 on version 2 */
    ck_assert_uint_eq(r->late, 2);
}
END_TEST

/* The trainer that contributes next is chosen at random; no order of events puts the next update out of reach
 * for ever, and no trainer's version is overwritten. */
START_TEST(holders_always_have_their_version)
{
    enum { TRAINERS = 5, TURNS = 2000 };
    static const struct {
        int rule;
        uint32_t number;
    } rules[] = {{JOB_ROUND_FIRST, 1}, {JOB_ROUND_FIRST, 3}, {JOB_ROUND_ASYNC, 0},
                 {JOB_ROUND_ASYNC, 2}, {JOB_ROUND_ASYNC, 9}, {JOB_ROUND_ALL, 0}};
    uint32_t state = 1, slot, trainer;
    make(rules[_i].rule, rules[_i].number, TRAINERS, 0, NULL);
    give_all(TRAINERS);
    uint64_t given[TRAINERS] = {0}; /* the version that each trainer was given last */
    for (int turn = 0; turn < TURNS; turn++) {
        state = state * 1664525 + 1013904223;
        trainer = (state >> 16) % TRAINERS;
        if (!r->seat[trainer].waiting)
            add(trainer, r->seat[trainer].step, given[trainer]);
        while (round_take_late(r, &trainer))
            round_hold(r, trainer, given[trainer] = r->version);
        uint32_t count = round_members(r, members);
        if (count > 0 && round_free_slot(r, &slot)) {
            round_advance(r, slot, members, count);
            for (uint32_t i = 0; i < count; i++)
                round_hold(r, members[i], given[members[i]] = r->version);
        }
        for (uint32_t i = 0; i < TRAINERS; i++)
            ck_assert(r->seat[i].waiting || round_slot_of(r, given[i], &slot));
        ck_assert(round_slot_of(r, r->version, &slot));
        ck_assert_uint_lt(round_waiting(r), TRAINERS); /* else nobody would ever release anything */
    }
    ck_assert_uint_gt(r->version, TURNS / 50);
}
END_TEST

START_TEST(slots_are_as_many_as_can_be_used)
{
    static const struct {
        int rule;
        uint32_t number, trainers, slots;
    } cases[] = {{JOB_ROUND_ALL, 0, 1, 2},   {JOB_ROUND_ALL, 0, 5, 2},   {JOB_ROUND_FIRST, 1, 1, 2},
                 {JOB_ROUND_FIRST, 1, 2, 3}, {JOB_ROUND_FIRST, 4, 5, 3}, {JOB_ROUND_ASYNC, 0, 5, 2},
                 {JOB_ROUND_ASYNC, 2, 5, 4}, {JOB_ROUND_ASYNC, 4, 5, 6}, {JOB_ROUND_ASYNC, 5, 5, 6},
                 {JOB_ROUND_ASYNC, 9, 5, 6}, {JOB_ROUND_ASYNC, 0, 1, 2}, {JOB_ROUND_ASYNC, UINT32_MAX, 5, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(cases[i].rule, cases[i].number, cases[i].trainers, 0, NULL);
        ck_assert_uint_eq(r->slots, cases[i].slots);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("round");
    TCase *rules = tcase_create("rules");
    tcase_add_test(rules, all_waits_for_everyone_and_lists_by_number);
    tcase_add_test(rules, all_alternates_between_two_slots);
    tcase_add_test(rules, a_replay_replaces_and_counts_once);
    tcase_add_test(rules, a_withdrawn_contribution_can_be_sent_anew);
    tcase_add_test(rules, wrong_numbers_are_told_by_name);
    tcase_add_test(rules, a_dead_trainer_leaves_neither_hold_nor_contribution);
    tcase_add_test(rules, first_takes_the_first_k_and_the_rest_is_late);
    tcase_add_test(rules, first_waits_for_a_slot);
    tcase_add_test(rules, a_death_frees_a_slot);
    tcase_add_test(rules, async_is_in_order_of_arrival_within_its_bound);
    tcase_add_loop_test(rules, holders_always_have_their_version, 0, 6);
    tcase_add_test(rules, slots_are_as_many_as_can_be_used);
    suite_add_tcase(suite, rules);
    return suite_run(suite);
}
