/* Runs of the kind reinforce that are broken off and resumed: whatever stopped them, their logs and their
 * checkpoints are in the end those of a run that never stopped. */
#include "test/worker/reinforce/reinforce_fixture.h"

enum { WAYS = 3 };

/* One observer whose episodes end when they are done; eight, whose requests are joined as they come; and no
 * checkpoint but by the clock. */
static const char *const ways[WAYS][SETS_MAX] = {
    {"/rollout/mode=episode", "/observers/count=1", "/observers/environments=1", "/log/every=2"},
    {"/coalesce/mode=dynamic", "/observers/count=8"},
    {"/checkpoint/every=null", "/checkpoint/every_s=0.02"},
};

/* Resumes `run` up to an episode, and expects it to be what `whole`, a run without a break, is. */
static void resume_and_compare(const char *const *more, unsigned episodes, const char *said)
{
    const char *sets[SETS_MAX] = {stop_after(episodes)};
    char dir[192];
    for (unsigned i = 0; more != NULL && more[i] != NULL; i++)
        sets[1 + i] = more[i];
    server_start(workplace.run_dir, sets, true, NULL);
    char *err = server_end(0);
    if (said != NULL)
        ck_assert_msg(strstr(err, said) != NULL, "expected \"%s\" in: %s", said, err);
    free(err);
    server_run(place(dir, "whole", ""), sets, false);
    expect_same_logs("run", "whole");
    expect_same_checkpoint("run", "whole", episodes);
}

static unsigned kill_a_run(const char *const *more)
{
    reinforce_start_endless(more);
    kill(daemon_process.pid, SIGKILL);
    ck_assert_int_eq(process_wait(&daemon_process, 10), 128 + SIGKILL);
    sleep_ms(200); /* for those who end with it */
    return last_episode();
}

/* Runs a shell's command in the folder of the run `run`. */
static void in_run(const char *commands)
{
    char line[512];
    ck_assert_int_lt(snprintf(line, sizeof line, "cd '%s' && %s", workplace.run_dir, commands),
                     (int)sizeof line);
    ck_assert_int_eq(system(line), 0);
}

START_TEST(checkpoints_are_multiples_and_the_last_episode)
{
    server_run(workplace.run_dir, NULL, false);
    for (unsigned episode = 1; episode <= 7; episode++)
        expect_checkpoint(episode, episode == 3 || episode == 6 || episode == 7);
}
END_TEST

START_TEST(a_finished_run_goes_on)
{
    server_run(workplace.run_dir, NULL, false);
    resume_and_compare(NULL, 11, "checkpoints/00000007");
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"event\":\"resumed\",\"episode\":7,"), 1);
    ck_assert_uint_eq(text_count(json, "{\"event\":\"finished\",\"episodes\":11,"), 1);
    free(json);
}
END_TEST

START_TEST(a_run_with_nothing_left_to_do_stays_as_it_is)
{
    server_run(workplace.run_dir, NULL, false);
    char *before = file_read(workplace.jsonl);
    server_start(workplace.run_dir, NULL, true, NULL);
    expect_said(server_end(0), "has ended, and /stop asks for no more");
    char *after = file_read(workplace.jsonl);
    ck_assert_str_eq(after, before);
    free(before);
    free(after);
}
END_TEST

/* Solved is solved: resumed, it ends at once and says so once; with a higher bar it goes on. */
START_TEST(a_solved_run_goes_on_where_more_is_asked)
{
    const char *easy[] = {"/stop={\"episodes\":40,\"running_reward\":9}", "/rollout/mode=episode", NULL};
    const char *hard[] = {"/stop={\"episodes\":40,\"running_reward\":400}", "/rollout/mode=episode", NULL};
    char dir[192];
    server_run(workplace.run_dir, easy, false);
    const unsigned solved = last_episode();
    char *before = file_read(workplace.log);
    ck_assert_uint_eq(text_count(before, "Solved! Running reward is now "), 1);
    server_run(workplace.run_dir, easy, true);
    char *after = file_read(workplace.log);
    ck_assert_str_eq(after, before);
    ck_assert_uint_eq(last_episode(), solved);
    free(before);
    free(after);
    server_run(workplace.run_dir, hard, true);
    ck_assert_uint_eq(last_episode(), 40);
    char *text = file_read(workplace.log);
    ck_assert_uint_eq(text_count(text, "Not solved: "), 1);
    free(text);
    server_run(place(dir, "whole", ""), hard, false);
    expect_same_checkpoint("run", "whole", 40);
}
END_TEST

START_TEST(a_stopped_run_goes_on)
{
    reinforce_start_endless(NULL);
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
    expect_checkpoint(last_episode(), true);
    resume_and_compare(NULL, last_episode() + 2, NULL);
}
END_TEST

/* The episode that is given up has no record, and there is no time for a checkpoint. */
START_TEST(a_hurried_run_goes_on)
{
    pid_t observer;
    reinforce_start_endless(NULL);
    ck_assert_uint_eq(process_children(daemon_process.pid, "observer", &observer, 1), 1);
    kill(observer, SIGSTOP);
    sleep_ms(100);
    kill(daemon_process.pid, SIGTERM);
    sleep_ms(100);
    kill(daemon_process.pid, SIGTERM);
    expect_said(server_end(0), "hurrying");
    resume_and_compare(NULL, last_episode() + 2, NULL);
}
END_TEST

/* The log is ahead of the checkpoint, and ends in the middle of a line. */
START_TEST(a_killed_run_goes_on)
{
    const unsigned last = kill_a_run(ways[_i]);
    text_append(workplace.jsonl, "{\"episode\":1000000,\"reward\":0.12");
    text_append(workplace.log, "Episode 10");
    resume_and_compare(ways[_i], last + 3, "lines behind the checkpoint are cut: ");
}
END_TEST

/* Without the newest one the run goes on from the one before; without any, from its beginning. */
START_TEST(damaged_checkpoints_are_named_and_skipped)
{
    static const char *const words[] = {
        " is skipped: ", " is skipped: ", "has no sound checkpoint: the run starts again"};
    server_run(workplace.run_dir, NULL, false);
    if (_i == 0)
        in_run("printf x | dd of=checkpoints/00000007/optimizer.safetensors bs=1 seek=1900 conv=notrunc");
    else if (_i == 1)
        in_run("truncate -s 20 checkpoints/00000007/manifest.json");
    else
        in_run("rm -r checkpoints");
    resume_and_compare(NULL, 9, words[_i]);
}
END_TEST

/* The folders may have been mixed up by hand. */
static const char *const further[] = {"/stop/episodes=9", NULL};

START_TEST(a_checkpoint_of_another_shape_is_refused)
{
    const char *narrow[] = {"/policy/hidden=[64]", NULL};
    char other[192];
    server_run(workplace.run_dir, NULL, false);
    server_run(place(other, "other", ""), narrow, false);
    in_run("rm -r checkpoints && cp -r ../other/checkpoints .");
    server_start(workplace.run_dir, further, true, NULL);
    expect_said(server_end(78), "has no checkpoint of this run, but another run's: its run had another job");
}
END_TEST

START_TEST(a_checkpoint_of_another_kind_is_refused)
{
    char other[192];
    server_run(workplace.run_dir, NULL, false);
    workplace_write_job(TINY_JOB);
    server_run(place(other, "other", ""), NULL, false);
    workplace_write_job(REINFORCE_JOB);
    in_run("rm -r checkpoints && cp -r ../other/checkpoints .");
    server_start(workplace.run_dir, further, true, NULL);
    expect_said(server_end(78), "has no checkpoint of this run, but another run's: its run had ");
}
END_TEST

START_TEST(another_job_is_refused)
{
    const char *other[] = {"/optimizer/lr=0.02", NULL};
    server_run(workplace.run_dir, NULL, false);
    server_start(workplace.run_dir, other, true, NULL);
    expect_said(server_end(78), "/optimizer/lr (was 0.01, now 0.02)");
}
END_TEST

/* The files of the logs stay below the limit that stands for a full disk; a checkpoint's do not. */
START_TEST(a_full_disk_ends_the_job_and_spares_what_is_saved)
{
    const char *wide[] = {"/policy/hidden=[1024]", "/stop/episodes=6", NULL};
    const char *more[] = {"/policy/hidden=[1024]", "/stop/episodes=12", NULL};
    const struct process_options full = {.file_bytes_max = 20000};
    server_run(workplace.run_dir, wide, false);
    server_start(workplace.run_dir, more, true, &full);
    expect_said(server_end(74), ".tmp/model.safetensors: cannot be written: File too large");
    expect_checkpoint(6, true);
    expect_checkpoint(9, false);
    const char *same[] = {"/policy/hidden=[1024]", NULL};
    resume_and_compare(same, 12, "checkpoints/00000006");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reinforce_resume");
    TCase *resumed = tcase_create("resumed");
    tcase_add_checked_fixture(resumed, reinforce_open, server_close);
    tcase_set_timeout(resumed, 170);
    tcase_add_test(resumed, checkpoints_are_multiples_and_the_last_episode);
    tcase_add_test(resumed, a_finished_run_goes_on);
    tcase_add_test(resumed, a_run_with_nothing_left_to_do_stays_as_it_is);
    tcase_add_test(resumed, a_solved_run_goes_on_where_more_is_asked);
    tcase_add_test(resumed, a_stopped_run_goes_on);
    tcase_add_test(resumed, a_hurried_run_goes_on);
    tcase_add_loop_test(resumed, a_killed_run_goes_on, 0, WAYS);
    tcase_add_loop_test(resumed, damaged_checkpoints_are_named_and_skipped, 0, 3);
    tcase_add_test(resumed, a_checkpoint_of_another_shape_is_refused);
    tcase_add_test(resumed, a_checkpoint_of_another_kind_is_refused);
    tcase_add_test(resumed, another_job_is_refused);
    tcase_add_test(resumed, a_full_disk_ends_the_job_and_spares_what_is_saved);
    suite_add_tcase(suite, resumed);
    return suite_run(suite);
}
