/* The logs of a parameter-server job (daemon/log/runlog.h): updates and epochs, byte for byte; and how a
 * resumed run treats the lines that it finds. */
#include "test/daemon/log/runlog_fixture.h"

#include <math.h>

/* Makes the fixture's job a parameter-server one. */
static void open_updates(void)
{
    open_place();
    job.kind = JOB_PARAMETER_SERVER;
    job.server.count = 2;
    job.trainers.count = 3;
    job.trainers.batch = 20;
    job.trainers.threads = 4;
    job.log.every = 1;
    stdout_to_file();
}

static struct control_update update_of(uint64_t number)
{
    return (struct control_update){
        .update = number,
        .loss = 1.0 / (double)number,
        .lr = 0.125,
        .samples = 40,
        .late = number - 1,
        .trainers = 3,
        .losses = {0.5, (double)NAN, 0.1},
        .timing = {.round_s = 0.5, .wait_s = 0.25, .update_s = 0.0625, .bytes = 1000}};
}

static struct control_epoch epoch_of(uint64_t number, uint64_t evaluated)
{
    return (struct control_epoch){.epoch = number,
                                  .update = 2 * number,
                                  .loss = 0.75,
                                  .evaluated = evaluated,
                                  .evaluation_loss = 0.5,
                                  .correct = 3,
                                  .timing = {.epoch_s = 2, .evaluation_s = 0.25}};
}

static void log_update(uint64_t number)
{
    struct control_update record = update_of(number);
    enum status status = add_update(&record);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void log_epoch(uint64_t number, uint64_t evaluated)
{
    struct control_epoch record = epoch_of(number, evaluated);
    enum status status = add_epoch(&record);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* Logs the updates first to last; every other one ends an epoch. */
static void log_updates(uint64_t first, uint64_t last)
{
    for (uint64_t number = first; number <= last; number++) {
        log_update(number);
        if (number % 2 == 0)
            log_epoch(number / 2, 4);
    }
}

static void finish_run(const char *why)
{
    struct control_finished finished = {.end = CONTROL_END_FINISHED};
    ck_assert_int_eq(runlog_finish(runlog, why, NULL, &finished, held, &error), STATUS_OK);
    close_log();
}

/* Logs the updates first to last, and takes the place behind update `saved`. 0: none. */
static void log_and_take_place(uint64_t first, uint64_t saved, uint64_t last, struct run_place *place)
{
    log_updates(first, saved);
    runlog_place(runlog, place);
    log_updates(saved + 1, last);
}

static void resume_run(const struct run_place *place, uint64_t update)
{
    open_log();
    enum status status = runlog_resume(runlog, place, update, 0, NULL, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* Expects both logs to be those of an uninterrupted run of `last` updates. */
static void expect_as_if_never_stopped(uint64_t last)
{
    char *json = log_numbers(workplace.jsonl), *text = log_numbers(workplace.log);
    ck_assert_int_eq(remove(workplace.jsonl), 0);
    ck_assert_int_eq(remove(workplace.log), 0);
    open_log();
    log_updates(1, last);
    close_log();
    char *wanted_json = log_numbers(workplace.jsonl), *wanted_text = log_numbers(workplace.log);
    ck_assert_str_eq(json, wanted_json);
    ck_assert_str_eq(text, wanted_text);
    free(json);
    free(text);
    free(wanted_json);
    free(wanted_text);
}

/* ---- lines ---- */

START_TEST(every_update_and_epoch_has_its_lines)
{
    char wanted[2048];
    open_log();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    log_update(4);
    log_epoch(1, 4);
    log_epoch(2, 0);
    finish_run("finished");
    snprintf(wanted, sizeof wanted,
             "{\"event\":\"start\",\"seed\":7,\"timing\":{\"unix_s\":#,\"run\":"
             "\"ab010000000000000000000000000000\",\"pid\":%ld,\"version\":\"%s\","
             "\"servers\":2,\"trainers\":3,\"batch\":20,\"threads\":4}}\n"
             "{\"update\":4,\"loss\":0.25,\"losses\":[0.5,null,0.10000000000000001],\"lr\":0.125,"
             "\"samples\":40,\"late\":3,\"version\":4,\"timing\":{\"unix_s\":#,\"round_s\":0.500000,"
             "\"wait_s\":0.250000,\"update_s\":0.062500,\"samples_per_s\":80.0,\"bytes\":1000}}\n"
             "{\"epoch\":1,\"update\":2,\"loss\":0.75,\"test_loss\":0.5,\"accuracy\":0.75,\"correct\":3,"
             "\"evaluated\":4,\"timing\":{\"unix_s\":#,\"epoch_s\":2.000000,\"evaluation_s\":0.250000}}\n"
             "{\"epoch\":2,\"update\":4,\"loss\":0.75,\"test_loss\":null,\"accuracy\":null,\"correct\":null,"
             "\"evaluated\":0,\"timing\":{\"unix_s\":#,\"epoch_s\":2.000000,\"evaluation_s\":0.250000}}\n"
             "{\"event\":\"finished\",\"updates\":4,\"stop\":{\"updates\":null,\"epochs\":null},\"timing\":{"
             "\"unix_s\":#,\"job_s\":#}}\n",
             (long)getpid(), COALESCED_VERSION);
    expect_file(workplace.jsonl, wanted);
    static const char text[] = "Update 4\tLoss: 0.2500\tSamples/s: 80.0\n"
                               "Epoch 1\tLoss: 0.7500\tTest loss: 0.5000\tAccuracy: 75.00 %\t(3 of 4)\n"
                               "Epoch 2\tLoss: 0.7500\n";
    expect_text(text, "finished: 4 updates, loss 0.2500; RUN (coalesced evaluate RUN)\n");
}
END_TEST

/* episodes.log has every `every`th update, the one that ends the job, and every epoch. */
START_TEST(every_thins_updates_alone)
{
    struct control_update last = {.update = 5, .is_last = true, .trainers = 3};
    job.log.every = 3;
    open_log();
    log_updates(1, 4);
    ck_assert_int_eq(add_update(&last), STATUS_OK);
    close_log();
    char *text = file_read(workplace.log), *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(text, "Update "), 2);
    ck_assert_ptr_nonnull(strstr(text, "Update 3\t"));
    ck_assert_ptr_nonnull(strstr(text, "Update 5\t"));
    ck_assert_uint_eq(text_count(text, "Epoch "), 2);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 5);
    free(text);
    free(json);
}
END_TEST

/* The longest line that a worker's numbers can make. */
START_TEST(the_longest_line_is_whole)
{
    static const double values[] = {-1.7976931348623157e308, (double)NAN, -(double)INFINITY};
    struct control_update record = {.update = UINT64_MAX,
                                    .loss = values[_i],
                                    .lr = values[_i],
                                    .samples = UINT64_MAX,
                                    .late = UINT64_MAX,
                                    .trainers = JOB_TRAINERS_MAX,
                                    .timing = {values[_i], values[_i], values[_i], UINT64_MAX}};
    char command[256];
    for (unsigned i = 0; i < JOB_TRAINERS_MAX; i++)
        record.losses[i] = values[_i];
    struct control_epoch epoch = {.epoch = UINT64_MAX,
                                  .update = UINT64_MAX,
                                  .loss = values[_i],
                                  .evaluated = 1,
                                  .evaluation_loss = values[_i],
                                  .correct = UINT64_MAX,
                                  .timing = {values[_i], values[_i]}};
    open_log();
    ck_assert_int_eq(add_update(&record), STATUS_OK);
    ck_assert_int_eq(add_epoch(&epoch), STATUS_OK);
    close_log();
    snprintf(command, sizeof command,
             "jq -se 'length == 2 and (.[0].losses | length) == 256 and all(has(\"timing\"))' '%.127s' "
             ">/dev/null",
             workplace.jsonl);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* ---- resumed runs ---- */

/* The log is ahead of the checkpoint by no update, some, or all. */
START_TEST(lines_behind_the_checkpoint_are_cut_and_written_anew)
{
    struct run_place place;
    open_log();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    log_and_take_place(1, (uint64_t)_i, 5, &place);
    close_log();
    resume_run(&place, (uint64_t)_i);
    log_updates((uint64_t)_i + 1, 8);
    finish_run("finished");
    char *json = file_read(workplace.jsonl), event[64];
    snprintf(event, sizeof event, "{\"event\":\"resumed\",\"update\":%d,\"timing\":{\"unix_s\":", _i);
    ck_assert_uint_eq(text_count(json, event), 1);
    ck_assert_uint_eq(text_count(json, "{\"event\":\"start\""), 1);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":8,"));
    free(json);
    expect_as_if_never_stopped(8);
}
END_TEST

START_TEST(a_run_may_be_resumed_again_and_again)
{
    struct run_place place;
    open_log();
    log_and_take_place(1, 2, 4, &place);
    close_log();
    resume_run(&place, 2);
    log_update(3); /* and is killed before the next checkpoint */
    close_log();
    resume_run(&place, 2);
    log_updates(3, 6);
    close_log();
    resume_run(NULL, 0);
    log_updates(1, 7);
    finish_run("stopped");
    expect_as_if_never_stopped(7);
}
END_TEST

START_TEST(a_line_that_was_cut_is_printed_once)
{
    struct run_place place;
    open_log();
    log_and_take_place(1, 3, 6, &place);
    const struct line_restart death = {.role = "pserver", .generation = 2, .reason = "a death"};
    ck_assert_msg(runlog_resume(runlog, &place, 3, 0, &death, &error) == STATUS_OK, "%s", error.text);
    log_updates(4, 7);
    close_log();
    char path[128];
    snprintf(path, sizeof path, "%s/stdout", workplace.folder);
    char *shown = log_numbers(path), *text = log_numbers(workplace.log);
    ck_assert_str_eq(shown, text);
    free(shown);
    free(text);
    expect_as_if_never_stopped(7);
}
END_TEST

/* Nor by a run that is killed before it has come as far, and is resumed once more. */
START_TEST(a_line_that_was_cut_earlier_is_printed_once)
{
    struct run_place place;
    char path[128];
    open_log();
    log_and_take_place(1, 3, 6, &place);
    close_log();
    resume_run(&place, 3);
    log_update(4);
    close_log();
    resume_run(&place, 3);
    log_updates(4, 7);
    close_log();
    snprintf(path, sizeof path, "%s/stdout", workplace.folder);
    char *shown = log_numbers(path), *text = log_numbers(workplace.log);
    ck_assert_str_eq(shown, text);
    free(shown);
    free(text);
}
END_TEST

/* A number that so few lines cannot reach is damage: it silences no line of standard output. */
START_TEST(a_damaged_number_silences_nothing)
{
    struct run_place place;
    char path[128];
    open_log();
    log_and_take_place(1, 3, 4, &place);
    close_log();
    text_append(workplace.log, "Update 925\tLoss: 0.1\n");
    resume_run(&place, 3);
    log_updates(4, 7);
    close_log();
    snprintf(path, sizeof path, "%s/stdout", workplace.folder);
    char *shown = file_read(path);
    ck_assert_uint_eq(text_count(shown, "Update "), 7);
    free(shown);
}
END_TEST

/* Each file may end in half a line of an update, an epoch or an event. */
START_TEST(a_torn_line_is_cut)
{
    static const char *const torn[] = {"{\"update\":6,\"loss\":0.16666", "{\"epoch\":3,\"update\":6,\"lo",
                                       "{\"event\":\"stopp", "{\"update\":123456"};
    struct run_place place;
    open_log();
    log_and_take_place(1, 4, 5, &place);
    if (_i == 1)
        log_update(6);
    close_log();
    text_append(workplace.jsonl, torn[_i]);
    text_append(workplace.log, _i == 1 ? "Epoch 3\tLoss" : "Update 6\tLoss: 0.1");
    resume_run(&place, 4);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_null(strstr(json, torn[_i]));
    ck_assert_ptr_nonnull(strstr(json, "}\n{\"event\":\"resumed\""));
    free(json);
    log_updates(5, 8);
    close_log();
    expect_as_if_never_stopped(8);
}
END_TEST

static void move_logs_away(void)
{
    char old_json[160], old_text[160];
    snprintf(old_json, sizeof old_json, "%s.1", workplace.jsonl);
    snprintf(old_text, sizeof old_text, "%s.1", workplace.log);
    ck_assert_int_eq(rename(workplace.jsonl, old_json), 0);
    ck_assert_int_eq(rename(workplace.log, old_text), 0);
}

/* Appends the second file to the first, and expects the two to be one log. */
static void join_logs(const char *path)
{
    char old[160];
    snprintf(old, sizeof old, "%s.1", path);
    char *rest = file_read(path);
    text_append(old, rest);
    free(rest);
    ck_assert_int_eq(rename(old, path), 0);
}

/* A worker, or the supervisor, dies just after the logs were moved away: before SIGUSR1 comes, or before the
 * checkpoint that it asks for. */
START_TEST(a_rotation_before_a_death_repeats_no_line)
{
    struct run_place place;
    open_log();
    log_and_take_place(1, 3, 5, &place);
    move_logs_away();
    if (_i == 0)
        close_log();
    if (_i == 0)
        open_log();
    const struct line_restart death = {.role = "pserver", .generation = 2, .reason = "a death"};
    enum status status = runlog_resume(runlog, &place, 3, 0, _i == 0 ? NULL : &death, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert(_i == 0 || runlog_is_moved(runlog));
    runlog_place(runlog, &place);
    ck_assert_int_eq(runlog_continue(runlog, &place, &error), STATUS_OK);
    log_updates(4, 7);
    close_log();
    join_logs(workplace.jsonl);
    join_logs(workplace.log);
    char *text = file_read(workplace.log), *at = strstr(text, "Continued: "), *end = strchr(at, '\n') + 1;
    memmove(at, end, strlen(end) + 1);
    text_write(workplace.log, text);
    free(text);
    expect_as_if_never_stopped(7);
}
END_TEST

static TCase *add_updates_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, open_updates, close_place);
    suite_add_tcase(suite, tests);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("runlog_updates");
    TCase *lines = add_updates_case(suite, "lines");
    tcase_add_test(lines, every_update_and_epoch_has_its_lines);
    tcase_add_test(lines, every_thins_updates_alone);
    tcase_add_loop_test(lines, the_longest_line_is_whole, 0, 3);
    TCase *resumed = add_updates_case(suite, "resumed");
    tcase_add_loop_test(resumed, lines_behind_the_checkpoint_are_cut_and_written_anew, 0, 6);
    tcase_add_test(resumed, a_run_may_be_resumed_again_and_again);
    tcase_add_test(resumed, a_line_that_was_cut_is_printed_once);
    tcase_add_test(resumed, a_line_that_was_cut_earlier_is_printed_once);
    tcase_add_test(resumed, a_damaged_number_silences_nothing);
    tcase_add_loop_test(resumed, a_torn_line_is_cut, 0, 4);
    tcase_add_loop_test(resumed, a_rotation_before_a_death_repeats_no_line, 0, 2);
    return suite_run(suite);
}
