/* The logs of a model-parallel job (daemon/log/runlog.h): updates, epochs and the end, byte for byte; and the
 * comparison of a resumed run's lines. */
#include "test/daemon/log/runlog_fixture.h"

#include <float.h>
#include <math.h>

enum { WORKERS = 3 };

static struct control_status holdings[WORKERS];

/* Makes the fixture's job a model-parallel one. */
static void open_language(void)
{
    open_place();
    job.kind = JOB_MODEL_PARALLEL;
    job.server.count = 1;
    job.trainers.count = 2;
    job.trainers.batch = 20;
    job.trainers.threads = 4;
    for (int part = 0; part < JOB_LAYERS; part++)
        job.threads[part].count = (uint32_t)part + 1;
    job.log.every = 200;
    memset(holdings, 0, sizeof holdings);
    stdout_to_file();
}

static void start(void)
{
    open_log();
    held = holdings;
}

/* Losses whose exponentials every libm rounds alike. */
static enum status log_update(uint64_t number, double loss)
{
    const struct control_update record = {
        .update = number, .loss = loss, .lr = 20, .samples = 1000, .timing = {.round_s = 0.5}};
    return add_update(&record);
}

static enum status log_epoch(uint64_t number, uint64_t evaluated, double held_out)
{
    const struct control_epoch record = {.epoch = number,
                                         .update = 400 * number,
                                         .loss = 0,
                                         .evaluated = evaluated,
                                         .evaluation_loss = held_out,
                                         .unigram_perplexity = 64.5,
                                         .timing = {.epoch_s = 2, .evaluation_s = 0.25}};
    return add_epoch(&record);
}

static void finish_run(const char *why)
{
    const struct control_finished finished = {.end = CONTROL_END_FINISHED, .updates = 311};
    ck_assert_int_eq(runlog_finish(runlog, why, NULL, &finished, held, &error), STATUS_OK);
    close_log();
}

START_TEST(every_line_that_comes_is_in_both_logs)
{
    char wanted[2048];
    start();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    ck_assert_int_eq(log_update(200, 0), STATUS_OK);
    ck_assert_int_eq(log_update(307, 0), STATUS_OK);
    holdings[0] = (struct control_status){0, 3, 1, 14, 2, 4, {0, 6, 8}};
    holdings[2] = (struct control_status){.references = UINT32_MAX};
    ck_assert_int_eq(log_epoch(1, 50, 0), STATUS_OK);
    ck_assert_int_eq(log_epoch(2, 0, 9), STATUS_OK);
    finish_run("failed");
    snprintf(wanted, sizeof wanted,
             "{\"event\":\"start\",\"seed\":7,\"timing\":{\"unix_s\":#,\"run\":"
             "\"ab010000000000000000000000000000\",\"pid\":%ld,\"version\":\"%s\","
             "\"servers\":1,\"trainers\":2,\"batch\":20,\"threads\":4,\"layer_threads\":[1,2,3]}}\n"
             "{\"update\":200,\"loss\":0,\"lr\":20,\"samples\":1000,\"timing\":{\"unix_s\":#,"
             "\"round_s\":0.500000,\"samples_per_s\":2000.0}}\n"
             "{\"update\":307,\"loss\":0,\"lr\":20,\"samples\":1000,\"timing\":{\"unix_s\":#,"
             "\"round_s\":0.500000,\"samples_per_s\":2000.0}}\n"
             "{\"epoch\":1,\"update\":400,\"loss\":0,\"perplexity\":1,\"held_out\":{\"loss\":0,"
             "\"perplexity\":1,\"unigram_perplexity\":64.5,\"tokens\":50},\"timing\":{\"unix_s\":#,\"epoch_"
             "s\":2.000000,"
             "\"evaluation_s\":0.250000,\"objects\":[3,0,0],\"references\":[1,0,4294967295],"
             "\"users\":[14,0,0],\"users_of\":[{\"1\":6,\"2\":8},{},{}],\"contexts\":[2,0,0],\"pieces\":[4,0,"
             "0]}}\n"
             "{\"epoch\":2,\"update\":800,\"loss\":0,\"perplexity\":1,\"held_out\":null,"
             "\"timing\":{\"unix_s\":#,\"epoch_s\":2.000000,"
             "\"evaluation_s\":0.250000,\"objects\":[3,0,0],\"references\":[1,0,4294967295],"
             "\"users\":[14,0,0],\"users_of\":[{\"1\":6,\"2\":8},{},{}],\"contexts\":[2,0,0],\"pieces\":[4,0,"
             "0]}}\n"
             "{\"event\":\"failed\",\"updates\":311,\"objects\":3,\"references\":4294967296,\"users\":14,"
             "\"contexts\":2,\"pieces\":4,\"timing\":{\"unix_s\":#,\"job_s\":#}}\n",
             (long)getpid(), COALESCED_VERSION);
    expect_file(workplace.jsonl, wanted);
    static const char text[] =
        "Update 200\tLoss: 0.0000\tPerplexity: 1.00\tLr: 20\tTokens/s: 2000\n"
        "Update 307\tLoss: 0.0000\tPerplexity: 1.00\tLr: 20\tTokens/s: 2000\n"
        "Epoch 1\tLoss: 0.0000\tPerplexity: 1.00\tHeld-out loss: 0.0000\tHeld-out perplexity: 1.00\t"
        "(unigram: 64.50; 50 tokens)\n"
        "Epoch 2\tLoss: 0.0000\tPerplexity: 1.00\n";
    expect_text(text, "failed: 307 updates, perplexity 1.00; RUN (coalesced generate RUN)\n");
}
END_TEST

/* Tokens that were read before a resume do not count in the rate: their time is not known. */
START_TEST(a_rate_is_of_what_was_read_since_a_resume)
{
    const struct control_update record = {
        .update = 200, .lr = 20, .samples = 1000, .timing = {.round_s = 0.5, .samples_before = 600}};
    start();
    ck_assert_int_eq(add_update(&record), STATUS_OK);
    close_log();
    expect_file(workplace.jsonl, "{\"update\":200,\"loss\":0,\"lr\":20,\"samples\":1000,\"timing\":"
                                 "{\"unix_s\":#,\"round_s\":0.500000,\"samples_per_s\":800.0}}\n");
    expect_text("Update 200\tLoss: 0.0000\tPerplexity: 1.00\tLr: 20\tTokens/s: 800\n", "");
}
END_TEST

/* A loss whose exponential is infinite, and the longest line. */
START_TEST(no_number_is_too_large_for_a_line)
{
    static struct control_status many[JOB_SERVERS_MAX + JOB_TRAINERS_MAX];
    const struct control_update update = {
        .update = UINT64_MAX, .loss = -DBL_MAX, .lr = DBL_MAX, .samples = UINT64_MAX};
    const struct control_epoch epoch = {.epoch = UINT64_MAX,
                                        .update = UINT64_MAX,
                                        .loss = 709,
                                        .evaluated = UINT64_MAX,
                                        .evaluation_loss = DBL_MAX,
                                        .unigram_perplexity = DBL_MAX,
                                        .timing = {.epoch_s = DBL_MAX, .evaluation_s = DBL_MAX}};
    memset(many, 0xFF, sizeof many);
    open_log();
    held = many;
    job.server.count = JOB_SERVERS_MAX;
    job.trainers.count = JOB_TRAINERS_MAX;
    ck_assert_int_eq(add_update(&update), STATUS_OK);
    ck_assert_int_eq(add_epoch(&epoch), STATUS_OK);
    finish_run("finished");
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "\"perplexity\":null,\"unigram_perplexity\":1.7976931348623157e+308,"
                                       "\"tokens\":18446744073709551615}"));
    ck_assert_uint_eq(text_count(json, "\n"), 3);
    free(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runlog_language");
    TCase *tests = tcase_create("lines");
    tcase_add_checked_fixture(tests, open_language, close_place);
    tcase_add_test(tests, every_line_that_comes_is_in_both_logs);
    tcase_add_test(tests, a_rate_is_of_what_was_read_since_a_resume);
    tcase_add_test(tests, no_number_is_too_large_for_a_line);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
