/* The best checkpoint, kept apart: which score wins, and that its folder is whole whatever becomes of the
 * others. Whole runs are test_best_runs.c's. */
#include "test/worker/checkpoint/checkpoint_fixture.h"

#include <unistd.h>

static struct checkpoint_score reward(double value)
{
    return (struct checkpoint_score){CHECKPOINT_RUNNING_REWARD, value};
}

START_TEST(scores_are_compared_by_their_measure)
{
    const struct checkpoint_score none = {0}, low = reward(1), high = reward(2);
    const struct checkpoint_score little_loss = {CHECKPOINT_HELD_OUT_LOSS, 1},
                                  much_loss = {CHECKPOINT_HELD_OUT_LOSS, 2};
    const struct checkpoint_score accuracy = {CHECKPOINT_ACCURACY, 0.5};
    ck_assert(checkpoint_score_better(&high, &low) && !checkpoint_score_better(&low, &high));
    ck_assert(!checkpoint_score_better(&low, &low));
    ck_assert(checkpoint_score_better(&little_loss, &much_loss));
    ck_assert(!checkpoint_score_better(&much_loss, &little_loss));
    ck_assert(checkpoint_score_better(&low, &none) && !checkpoint_score_better(&none, &low));
    ck_assert(!checkpoint_score_better(&none, &none));
    ck_assert(checkpoint_score_better(&accuracy, &high)); /* nothing can be compared with that */
}
END_TEST

/* Writes checkpoint `update` with the values of seed `update`; keeps it as the best one; publishes. */
static void keep(uint64_t update, struct checkpoint_score score)
{
    struct checkpoint_counters counters = counters_of(update);
    struct member member;
    counters.score = score;
    member_open(&member, 0, 1, false, true);
    member_write(&member, update);
    CK_OK(checkpoint_begin(path_of(workplace.run_dir), update, &checkpoint_error));
    CK_OK(checkpoint_write(path_of(workplace.run_dir), &counters, &checkpoint_place, &member.values, NULL,
                           &checkpoint_error));
    member_close(&member);
    CK_OK(checkpoint_keep_best(path_of(workplace.run_dir), update, &checkpoint_error));
    CK_OK(checkpoint_publish(path_of(workplace.run_dir), update, 1, &checkpoint_error));
}

static void expect_best(uint64_t update, struct checkpoint_score expected)
{
    struct checkpoint_score score;
    struct checkpoint_counters counters;
    struct member member;
    CK_OK(checkpoint_best_score(path_of(workplace.run_dir), &score, &checkpoint_error));
    ck_assert(score.measure == expected.measure && score.value == expected.value);
    CK_OK(checkpoint_check(path_of(checkpoint_at("best")), &counters, &checkpoint_error));
    ck_assert_uint_eq(counters.update, update);
    member_open(&member, 0, 1, false, true);
    CK_OK(checkpoint_load(path_of(checkpoint_at("best")), &member.values, &checkpoint_error));
    member_expect(&member, update, update);
    member_close(&member);
}

START_TEST(it_outlives_its_checkpoint)
{
    keep(2, reward(7));
    checkpoint_make(4, 4, 1);
    expect_names("", "00000004 best");
    expect_names("best", "manifest.json model.safetensors optimizer.safetensors");
    expect_best(2, reward(7));
    expect_newest(4, "00000004");
    keep(6, reward(8));
    expect_names("", "00000006 best");
    expect_best(6, reward(8));
}
END_TEST

/* Dead before the exchange: what was made is removed by the next checkpoint; dead after it: what was there.
 */
START_TEST(an_unfinished_folder_is_removed)
{
    keep(2, reward(7));
    ck_assert_int_eq(mkdir(checkpoint_at("best.tmp"), 0777), 0);
    CK_OK(checkpoint_probe(path_of(workplace.run_dir), &checkpoint_error));
    expect_names("", "00000002 best");
    ck_assert_int_eq(mkdir(checkpoint_at("best.tmp"), 0777), 0);
    keep(4, reward(8));
    expect_names("", "00000004 best");
    expect_best(4, reward(8));
}
END_TEST

START_TEST(where_there_is_none_nothing_is_known)
{
    struct checkpoint_score score = reward(1);
    CK_OK(checkpoint_best_score(path_of(workplace.run_dir), &score, &checkpoint_error));
    ck_assert_int_eq(score.measure, CHECKPOINT_UNMEASURED);
}
END_TEST

START_TEST(a_damaged_one_is_replaced)
{
    char path[256];
    struct checkpoint_score score;
    keep(2, reward(7));
    snprintf(path, sizeof path, "%s/model.safetensors", checkpoint_at("best"));
    ck_assert_int_eq(truncate(path, 100), 0);
    CK_OK(checkpoint_best_score(path_of(workplace.run_dir), &score, &checkpoint_error));
    ck_assert_int_eq(score.measure, CHECKPOINT_UNMEASURED);
    keep(4, reward(6));
    expect_best(4, reward(6));
}
END_TEST

/* A file has the folder's name, and the new one takes its place. */
START_TEST(whatever_stands_in_its_place_goes)
{
    keep(2, reward(7));
    CK_OK(checkpoint_probe(path_of(workplace.run_dir), &checkpoint_error));
    char line[256];
    snprintf(line, sizeof line, "rm -r '%s' && touch '%s'", checkpoint_at("best"), checkpoint_at("best"));
    ck_assert_int_eq(system(line), 0);
    keep(4, reward(8));
    expect_names("", "00000004 best");
    expect_best(4, reward(8));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint best");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, checkpoint_open, checkpoint_close);
    tcase_add_test(files, scores_are_compared_by_their_measure);
    tcase_add_test(files, it_outlives_its_checkpoint);
    tcase_add_test(files, an_unfinished_folder_is_removed);
    tcase_add_test(files, where_there_is_none_nothing_is_known);
    tcase_add_test(files, a_damaged_one_is_replaced);
    tcase_add_test(files, whatever_stands_in_its_place_goes);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
