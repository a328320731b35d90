/* The logs of a parameter-server job (daemon/runlog.h): updates and epochs, byte for byte; and how a resumed
 * run treats the lines that it finds (daemon/runlog_replay.h). */
#include "test/daemon/runlog_fixture.h"

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
    ck_assert_int_eq(runlog_finish(runlog, why, &finished, held, &error), STATUS_OK);
    close_log();
}

static void resume_run(uint64_t update)
{
    open_log();
    enum status status = runlog_resume(runlog, update, 0, NULL, &error);
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
             "{\"event\":\"start\",\"seed\":7,\"timing\":{\"unix_s\":#,\"pid\":%ld,\"version\":\"%s\","
             "\"servers\":2,\"trainers\":3,\"batch\":20,\"threads\":4}}\n"
             "{\"update\":4,\"loss\":0.25,\"losses\":[0.5,null,0.10000000000000001],\"lr\":0.125,"
             "\"samples\":40,\"late\":3,\"version\":4,\"timing\":{\"unix_s\":#,\"round_s\":0.500000,"
             "\"wait_s\":0.250000,\"update_s\":0.062500,\"samples_per_s\":80.0,\"bytes\":1000}}\n"
             "{\"epoch\":1,\"update\":2,\"loss\":0.75,\"test_loss\":0.5,\"accuracy\":0.75,\"correct\":3,"
             "\"evaluated\":4,\"timing\":{\"unix_s\":#,\"epoch_s\":2.000000,\"evaluation_s\":0.250000}}\n"
             "{\"epoch\":2,\"update\":4,\"loss\":0.75,\"test_loss\":null,\"accuracy\":null,\"correct\":null,"
             "\"evaluated\":0,\"timing\":{\"unix_s\":#,\"epoch_s\":2.000000,\"evaluation_s\":0.250000}}\n"
             "{\"event\":\"finished\",\"updates\":4,\"timing\":{\"unix_s\":#,\"job_s\":#}}\n",
             (long)getpid(), COALESCED_VERSION);
    expect_file(workplace.jsonl, wanted);
    static const char text[] = "Update 4\tLoss: 0.2500\tSamples/s: 80.0\n"
                               "Epoch 1\tLoss: 0.7500\tTest loss: 0.5000\tAccuracy: 75.00 %\t(3 of 4)\n"
                               "Epoch 2\tLoss: 0.7500\n";
    expect_text(text);
}
END_TEST

/* episodes.log has every `every`th update, and every epoch. */
START_TEST(every_thins_updates_alone)
{
    job.log.every = 3;
    open_log();
    log_updates(1, 4);
    close_log();
    char *text = file_read(workplace.log), *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(text, "Update "), 1);
    ck_assert_ptr_nonnull(strstr(text, "Update 3\t"));
    ck_assert_uint_eq(text_count(text, "Epoch "), 2);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 4);
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
START_TEST(what_is_logged_is_not_logged_again)
{
    open_log();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    log_updates(1, 5);
    close_log();
    resume_run((uint64_t)_i);
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
    open_log();
    log_updates(1, 4);
    close_log();
    resume_run(2);
    log_update(3); /* and is killed before it computes a new update */
    close_log();
    resume_run(2);
    log_updates(3, 6);
    close_log();
    resume_run(0);
    log_updates(1, 7);
    finish_run("stopped");
    expect_as_if_never_stopped(7);
}
END_TEST

/* Each file may end in half a line of an update, an epoch or an event. */
START_TEST(a_torn_line_is_cut_and_written_anew)
{
    static const char *const torn[] = {"{\"update\":6,\"loss\":0.16666", "{\"epoch\":3,\"update\":6,\"lo",
                                       "{\"event\":\"stopp", "{\"update\":123456"};
    open_log();
    log_updates(1, 5);
    if (_i == 1)
        log_update(6);
    close_log();
    text_append(workplace.jsonl, torn[_i]);
    text_append(workplace.log, _i == 1 ? "Epoch 3\tLoss" : "Update 6\tLoss: 0.1");
    resume_run(4);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_null(strstr(json, torn[_i]));
    ck_assert_ptr_nonnull(strstr(json, "}\n{\"event\":\"resumed\""));
    free(json);
    log_updates(5, 8);
    close_log();
    expect_as_if_never_stopped(8);
}
END_TEST

/* The supervisor was killed between its writes to the two files. */
START_TEST(the_two_files_may_differ_by_a_line)
{
    open_log();
    log_updates(1, 5);
    close_log();
    char *text = file_read(workplace.log);
    ck_assert_int_eq(truncate(workplace.log, (off_t)(strstr(text, "Update 5") - text)), 0);
    free(text);
    resume_run(3);
    log_updates(4, 6);
    close_log();
    expect_as_if_never_stopped(6);
}
END_TEST

/* The job's end cut an epoch short; in a run with a later end the epoch is whole. Each has its line, once. */
START_TEST(an_epoch_that_was_cut_short_ends_again)
{
    struct control_epoch cut = epoch_of(2, 4);
    cut.update = 3;
    open_log();
    log_updates(1, 3);
    ck_assert_int_eq(add_epoch(&cut), STATUS_OK);
    close_log();
    resume_run(2);
    log_update(3);
    ck_assert_int_eq(add_epoch(&cut), STATUS_OK);
    log_updates(4, 5);
    close_log();
    char *json = log_numbers(workplace.jsonl), *text = log_numbers(workplace.log);
    ck_assert_uint_eq(text_count(json, "{\"epoch\":2,\"update\":3,"), 1);
    ck_assert_uint_eq(text_count(json, "{\"epoch\":2,\"update\":4,"), 1);
    ck_assert_uint_eq(text_count(json, "\n"), 8);
    ck_assert_uint_eq(text_count(text, "Epoch 2\t"), 2);
    ck_assert_uint_eq(text_count(text, "\n"), 8);
    free(json);
    free(text);
}
END_TEST

/* Cuts the last line off episodes.log, as if the supervisor had been killed between the two writes. */
static void lose_last_text(void)
{
    char *text = file_read(workplace.log);
    size_t length = strlen(text) - 1;
    while (length > 0 && text[length - 1] != '\n')
        length--;
    ck_assert_int_eq(truncate(workplace.log, (off_t)length), 0);
    free(text);
}

/* Logs the end of epoch 2 in a run that goes on from update 2: cut short by an earlier end of the job, or
 * whole. */
static void go_on_to_epoch(const struct control_epoch *epoch)
{
    resume_run(2);
    for (uint64_t number = 3; number <= epoch->update; number++)
        log_update(number);
    ck_assert_int_eq(add_epoch(epoch), STATUS_OK);
    close_log();
}

static void expect_text_is(const char *wanted)
{
    char *text = file_read(workplace.log);
    ck_assert_str_eq(text, wanted);
    free(text);
}

/* The second line of an epoch: after the line of an end that cut it short; of an end that cuts it short in
 * the middle of the log; after a line without an evaluation, with another epoch between the two or not. If it
 * was lost in episodes.log, the next resume writes it, once. */
START_TEST(a_lost_second_line_of_an_epoch_is_written)
{
    struct control_epoch whole = epoch_of(2, 4), cut = whole, bare = epoch_of(2, 0), next = epoch_of(3, 4);
    const struct control_epoch *const firsts[] = {&cut, &whole, &bare, &bare};
    const struct control_epoch *const seconds[] = {&whole, &cut, &whole, &whole};
    cut.update = 3;
    cut.loss = 0.25;
    open_log();
    log_updates(1, 2);
    close_log();
    go_on_to_epoch(firsts[_i]);
    if (_i == 3)
        go_on_to_epoch(&next);
    go_on_to_epoch(seconds[_i]);
    char *wanted = file_read(workplace.log);
    ck_assert_uint_eq(text_count(wanted, "Epoch 2\t"), 2);
    lose_last_text();
    char *lost = file_read(workplace.log);
    go_on_to_epoch(firsts[_i]); /* the whole epoch's line is there */
    expect_text_is(lost);
    for (unsigned again = 0; again < 2; again++) {
        go_on_to_epoch(seconds[_i]);
        expect_text_is(wanted);
    }
    free(wanted);
    free(lost);
}
END_TEST

/* An earlier end than before cuts an epoch short in the middle of the log: it has its line, once. */
START_TEST(an_earlier_end_cuts_an_epoch_short)
{
    struct control_epoch cut = epoch_of(2, 4);
    cut.update = 3;
    open_log();
    log_updates(1, 5);
    close_log();
    for (unsigned again = 0; again < 2; again++) {
        resume_run(2);
        log_update(3);
        ck_assert_int_eq(add_epoch(&cut), STATUS_OK);
        close_log();
    }
    resume_run(2);
    log_updates(3, 6);
    close_log();
    char *json = log_numbers(workplace.jsonl), *text = log_numbers(workplace.log);
    ck_assert_uint_eq(text_count(json, "{\"epoch\":2,\"update\":3,"), 1);
    ck_assert_uint_eq(text_count(json, "{\"epoch\":2,\"update\":4,"), 1);
    ck_assert_uint_eq(text_count(json, "\n"), 10);
    ck_assert_uint_eq(text_count(text, "Epoch 2\t"), 2);
    ck_assert_uint_eq(text_count(text, "\n"), 10);
    free(json);
    free(text);
}
END_TEST

/* Every number outside of `timing` is compared, to its last bit. */
START_TEST(other_numbers_than_before_are_an_error)
{
    struct control_update record = update_of(5);
    struct control_epoch epoch = epoch_of(2, 4);
    static const char *const words[] = {
        "update 5, computed again, is not what the log says: it is now \"loss\":0.20000000000000007,",
        "it is now \"losses\":[0.5,null,0.125],",
        "it is now \"samples\":41,",
        "it is now \"late\":5,",
        "it is now \"lr\":0.0625,",
        "update 4, computed again, is not what the log says: it is now \"accuracy\":0.5,\"correct\":2,"};
    open_log();
    log_updates(1, 5);
    close_log();
    char *before = file_read(workplace.jsonl);
    resume_run(3);
    log_update(4);
    record.loss = _i == 0 ? nextafter(nextafter(0.2, 1), 1) : record.loss;
    record.losses[2] = _i == 1 ? 0.125 : record.losses[2];
    record.samples += _i == 2;
    record.late += _i == 3;
    record.lr /= _i == 4 ? 2 : 1;
    epoch.correct -= _i == 5;
    enum status status = add_epoch(&epoch);
    if (_i < 5) {
        ck_assert_int_eq(status, STATUS_OK);
        status = add_update(&record);
    }
    ck_assert_int_eq(status, STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, words[_i]) != NULL, "expected \"%s\" in: %s", words[_i], error.text);
    ck_assert_ptr_nonnull(strstr(error.text, ", it was \""));
    ck_assert(strchr(error.text, '\n') == NULL && strstr(error.text, "unix_s") == NULL);
    char *after = file_read(workplace.jsonl);
    ck_assert_int_eq(strncmp(after, before, strlen(before)), 0);
    ck_assert_uint_eq(text_count(after, "\n"), text_count(before, "\n") + 1); /* the resume's */
    free(before);
    free(after);
}
END_TEST

/* With a linear schedule another end means another learning rate, which is the job file's fault. */
START_TEST(another_end_of_a_linear_schedule_is_told_as_such)
{
    struct control_update record = update_of(4);
    job.optimizer.schedule = JOB_SCHEDULE_LINEAR;
    open_log();
    log_updates(1, 5);
    close_log();
    resume_run(3);
    record.lr = _i == 0 ? 0.25 : record.lr;
    record.loss = _i == 1 ? 0.5 : record.loss;
    ck_assert_int_eq(add_update(&record), _i == 0 ? STATUS_INVALID : STATUS_INTERNAL);
    if (_i == 0)
        ck_assert_str_eq(
            error.text,
            "update 4, computed again, has another learning rate than in the log: it is now 0.25, it "
            "was 0.125; with the schedule \"linear\" the rate depends on /stop: expected the "
            "former /stop until a checkpoint is as far as the log, at update 5");
}
END_TEST

/* A job's last epoch is always evaluated: the log keeps the evaluation that one of two ends made, once, and
 * the rest of the line is compared. */
START_TEST(an_evaluation_may_be_missing_on_either_side)
{
    struct control_epoch other = epoch_of(2, 4);
    open_log();
    log_updates(1, 2);
    log_update(3);
    log_update(4);
    log_epoch(2, 0);
    close_log();
    for (unsigned again = 0; again < 2; again++) {
        resume_run(0);
        log_update(1);
        log_update(2);
        log_epoch(1, 0);
        log_update(3);
        log_update(4);
        log_epoch(2, 4);
        close_log();
    }
    char *json = log_numbers(workplace.jsonl), *text = log_numbers(workplace.log);
    ck_assert_uint_eq(text_count(json, "\n"), 7);
    ck_assert_uint_eq(text_count(json, ",\"test_loss\":0.5,"), 2);
    ck_assert_uint_eq(text_count(text, "\n"), 7);
    ck_assert_uint_eq(text_count(text, "\tTest loss: 0.5000"), 2);
    free(json);
    free(text);
    other.loss = 0.5;
    other.evaluated = _i == 0 ? 0 : 4;
    resume_run(4);
    ck_assert_int_eq(add_epoch(&other), STATUS_INTERNAL);
    ck_assert_ptr_nonnull(strstr(error.text, ": it is now \"loss\":0.5,"));
}
END_TEST

/* With `first` and `async` the order of arrival changes the numbers: the line in the log stands. */
START_TEST(rules_that_do_not_repeat_are_not_compared)
{
    struct control_update record = update_of(3);
    job.server.round.name = _i == 0 ? JOB_ROUND_FIRST : JOB_ROUND_ASYNC;
    open_log();
    log_updates(1, 3);
    close_log();
    resume_run(2);
    record.loss = 99;
    ck_assert_int_eq(add_update(&record), STATUS_OK);
    log_updates(4, 5);
    close_log();
    job.server.round.name = JOB_ROUND_ALL;
    expect_as_if_never_stopped(5);
}
END_TEST

/* A part of the run had two trainers more: `coalesced join` had brought them. */
START_TEST(numbers_of_another_size_are_not_compared)
{
    struct control_update record = update_of(4);
    open_log();
    log_updates(1, 2);
    close_log();
    job.added = _i == 0 ? 2 : 0;
    resume_run(2);
    log_updates(3, 5);
    close_log();
    job.added = 0;
    resume_run(3);
    record.loss = 99;
    ck_assert_int_eq(add_update(&record), _i == 0 ? STATUS_OK : STATUS_INTERNAL);
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

/* Expects so many records in each log, and this one first. */
static void expect_lines(const char *first, unsigned json_lines, unsigned text_lines)
{
    char *json = log_numbers(workplace.jsonl), *text = log_numbers(workplace.log);
    ck_assert_int_eq(strncmp(json, first, strlen(first)), 0);
    ck_assert_uint_eq(text_count(json, "\n"), json_lines);
    ck_assert_uint_eq(text_count(text, "\n"), text_lines);
    free(json);
    free(text);
}

/* Rotation moved the first lines away: the others are still not written twice. */
START_TEST(a_rotated_log_goes_on)
{
    open_log();
    log_updates(1, 3);
    move_logs_away();
    ck_assert_int_eq(runlog_reopen(runlog, &error), STATUS_OK);
    log_updates(4, 5);
    close_log();
    resume_run(1);
    log_updates(2, 6);
    close_log();
    expect_lines("{\"update\":4,", 5, 5); /* updates 4, 5 and 6, epochs 2 and 3 */
}
END_TEST

/* A worker dies just after the logs were moved away, before SIGUSR1 comes or after it. */
START_TEST(a_rotation_before_a_death_repeats_no_line)
{
    const struct line_restart death = {.role = "pserver", .generation = 2, .reason = "a death"};
    open_log();
    log_updates(1, 5);
    move_logs_away();
    ck_assert(_i == 0 || runlog_reopen(runlog, &error) == STATUS_OK);
    ck_assert_msg(runlog_resume(runlog, 1, 0, &death, &error) == STATUS_OK, "%s", error.text);
    log_updates(2, 7);
    close_log();
    expect_lines("{\"update\":6,", 3, 3); /* updates 6 and 7, epoch 3 */
}
END_TEST

/* Only episodes.jsonl was moved away. */
START_TEST(a_text_that_stays_has_no_line_twice)
{
    open_log();
    log_updates(1, 5);
    close_log();
    ck_assert_int_eq(remove(workplace.jsonl), 0);
    resume_run(4);
    log_updates(5, 7);
    close_log();
    expect_lines("{\"update\":5,", 4, 10);
}
END_TEST

START_TEST(a_log_that_cannot_be_read_is_named)
{
    open_log();
    log_updates(1, 2);
    close_log();
    ck_assert_int_eq(remove(workplace.log), 0);
    open_log(); /* makes the file again */
    ck_assert_int_eq(remove(workplace.jsonl), 0);
    ck_assert_int_eq(runlog_resume(runlog, 2, 0, NULL, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, workplace.jsonl));
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
    tcase_add_loop_test(resumed, what_is_logged_is_not_logged_again, 0, 6);
    tcase_add_test(resumed, a_run_may_be_resumed_again_and_again);
    tcase_add_loop_test(resumed, a_torn_line_is_cut_and_written_anew, 0, 4);
    tcase_add_test(resumed, the_two_files_may_differ_by_a_line);
    tcase_add_test(resumed, an_epoch_that_was_cut_short_ends_again);
    tcase_add_test(resumed, an_earlier_end_cuts_an_epoch_short);
    tcase_add_loop_test(resumed, a_lost_second_line_of_an_epoch_is_written, 0, 4);
    tcase_add_loop_test(resumed, other_numbers_than_before_are_an_error, 0, 6);
    tcase_add_loop_test(resumed, another_end_of_a_linear_schedule_is_told_as_such, 0, 2);
    tcase_add_loop_test(resumed, an_evaluation_may_be_missing_on_either_side, 0, 2);
    tcase_add_loop_test(resumed, rules_that_do_not_repeat_are_not_compared, 0, 2);
    tcase_add_loop_test(resumed, numbers_of_another_size_are_not_compared, 0, 2);
    tcase_add_test(resumed, a_rotated_log_goes_on);
    tcase_add_loop_test(resumed, a_rotation_before_a_death_repeats_no_line, 0, 2);
    tcase_add_test(resumed, a_text_that_stays_has_no_line_twice);
    tcase_add_test(resumed, a_log_that_cannot_be_read_is_named);
    return suite_run(suite);
}
