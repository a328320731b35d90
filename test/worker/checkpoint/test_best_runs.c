/* Whole runs of each kind with /checkpoint/best: which checkpoint is kept, that equal runs keep equal ones,
 * broken off or not, and that the commands take it. */
#include "test/worker/model_parallel/language_fixture.h"
#include "test/worker/reinforce/reinforce_fixture.h"

#include <math.h>

enum { REINFORCE, IMAGES, TEXT, KINDS };

/* A record of episodes.jsonl that competes: how it begins, what follows its number, and its score. */
static const struct kind {
    const char *line, *number, *score;
    bool lowest;
    const char *killed_after; /* in the log, of a run that is to be killed */
} kinds[KINDS] = {
    {"{\"episode\":", "{\"episode\":", "\"running_reward\":", false, "{\"episode\":30,"},
    {"{\"epoch\":", "\"update\":", "\"accuracy\":", false, "{\"epoch\":4,"},
    {"{\"epoch\":", "\"update\":", "\"held_out\":{\"loss\":", true, "{\"epoch\":4,"},
};

enum { EVERY = 5 }; /* of reinforce */

static void setup(void)
{
    server_open();
}

/* Writes the job of the kind that keeps its best checkpoint, and its settings into `sets`, with `end` at
 * their end. Checkpoints at multiples of 3 show that the best ones are others, too. */
static void prepare(int kind, const char *sets[SETS_MAX], const char *end)
{
    static const char *const reinforce[] = {"/rollout/mode=episode", "/running_reward/weight=0.3",
                                            "/checkpoint={\"every\":5,\"every_s\":0.01,\"best\":true}", NULL};
    unsigned count = 0;
    sets[0] = NULL;
    if (kind == REINFORCE) {
        workplace_write_job(REINFORCE_JOB);
        memcpy(sets, reinforce, sizeof reinforce);
    } else if (kind == IMAGES) {
        workplace_write_job(TINY_JOB);
        data_sets(sets);
    } else {
        workplace_write_job(LANGUAGE_JOB);
        language_write_text();
        text_sets(sets);
    }
    while (sets[count] != NULL)
        count++;
    if (kind != REINFORCE)
        sets[count++] = "/checkpoint={\"every\":3,\"keep\":1,\"best\":true}";
    sets[count++] = end;
    sets[count] = NULL;
}

static const char *end_of(int kind, bool endless)
{
    if (kind == REINFORCE)
        return endless ? "/stop/episodes=1000000000" : "/stop/episodes=43";
    return endless ? "/stop={\"epochs\":1000000}" : "/stop={\"epochs\":5}";
}

/* The number of the best record in a run's log. */
static unsigned best_of_log(int number, const char *dir)
{
    const struct kind *kind = &kinds[number];
    char *json = run_text(dir, "episodes.jsonl"), *rest;
    unsigned best = 0, last = 0;
    double best_score = kind->lowest ? (double)INFINITY : (double)-INFINITY;
    if (number == REINFORCE)
        last = 43;
    for (char *line = strtok_r(json, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, kind->line, strlen(kind->line)) != 0)
            continue;
        const unsigned at = (unsigned)atoi(strstr(line, kind->number) + strlen(kind->number));
        const double score = strtod(strstr(line, kind->score) + strlen(kind->score), NULL);
        if (number == REINFORCE && at % EVERY != 0 && at != last)
            continue;
        if (kind->lowest ? score < best_score : score > best_score) {
            best = at;
            best_score = score;
        }
    }
    free(json);
    ck_assert_uint_gt(best, 0);
    return best;
}

static unsigned kept(const char *dir)
{
    char *text = run_text(dir, "checkpoints/best/manifest.json"), *at = strstr(text, "\"update\": ");
    ck_assert_msg(at != NULL, "no manifest of the best one: %s", text);
    const unsigned update = (unsigned)atoi(at + strlen("\"update\": "));
    free(text);
    return update;
}

static void expect_equal_folders(const char *a, const char *b, const char *name)
{
    char x[192], y[192], line[544];
    snprintf(line, sizeof line, DIFF_CHECKPOINTS " '%s' '%s'", place(x, a, name), place(y, b, name));
    ck_assert_int_eq(system(line), 0);
}

START_TEST(the_best_one_is_kept)
{
    const char *sets[SETS_MAX];
    char path[192];
    prepare(_i, sets, end_of(_i, false));
    server_run(workplace.run_dir, sets, false);
    ck_assert_uint_eq(kept("run"), best_of_log(_i, "run"));
    ck_assert(!run_has("run", "checkpoints/best.tmp"));
    free(evaluate(place(path, "run", "checkpoints/best"), sets, 0));
    const char *generate[] = {"generate", path, "--words", "3", NULL};
    if (_i == TEXT)
        free(command(generate, NULL, 0));
}
END_TEST

/* What one run finds best every equal run does, also one that has lost what it did after its last checkpoint.
 */
START_TEST(a_killed_run_keeps_the_same)
{
    const char *sets[SETS_MAX];
    char dir[192];
    prepare(_i, sets, end_of(_i, true));
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, kinds[_i].killed_after, 90));
    kill(daemon_process.pid, SIGKILL);
    ck_assert_int_eq(process_wait(&daemon_process, 10), 128 + SIGKILL);
    sleep_ms(200); /* for those who end with it */
    const unsigned units = _i == REINFORCE ? last_episode() + 7 : 9;
    char end[64];
    snprintf(end, sizeof end, _i == REINFORCE ? "/stop={\"episodes\":%u}" : "/stop={\"epochs\":%u}", units);
    prepare(_i, sets, end);
    server_run(workplace.run_dir, sets, true);
    server_run(place(dir, "whole", ""), sets, false);
    expect_same_logs("run", "whole");
    expect_equal_folders("run", "whole", "checkpoints/best");
}
END_TEST

/* A run that ended resumes at its end, where the epoch is evaluated again: nothing changes. */
START_TEST(a_resumed_run_with_nothing_to_do_keeps_it)
{
    const char *sets[SETS_MAX];
    prepare(_i, sets, end_of(_i, false));
    server_run(workplace.run_dir, sets, false);
    const unsigned before = kept("run");
    server_run(workplace.run_dir, sets, true);
    ck_assert_uint_eq(kept("run"), before);
}
END_TEST

START_TEST(without_the_key_none_is_kept)
{
    workplace_write_job(REINFORCE_JOB);
    server_run(workplace.run_dir, NULL, false);
    ck_assert(!run_has("run", "checkpoints/best"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("best_runs");
    TCase *tests = tcase_create("best_runs");
    tcase_add_checked_fixture(tests, setup, server_close);
    tcase_set_timeout(tests, 170);
    tcase_add_loop_test(tests, the_best_one_is_kept, 0, KINDS);
    tcase_add_loop_test(tests, a_killed_run_keeps_the_same, 0, KINDS);
    tcase_add_loop_test(tests, a_resumed_run_with_nothing_to_do_keeps_it, 0, KINDS);
    tcase_add_test(tests, without_the_key_none_is_kept);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
