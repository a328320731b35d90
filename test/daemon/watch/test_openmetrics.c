/* The metrics' text (daemon/watch/openmetrics.h): each line is of the format, histograms add up, labels are
 * quoted, what is not known is left out, and the classic format has no line of the newer one. */
#include "daemon/watch/openmetrics.h"

#include <check.h>
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/process.h"
#include "test/workplace.h"

static struct run_totals totals;
static struct job job;
static struct worker_status workers[3];
static char *text;

static void begin(void)
{
    memset(&totals, 0, sizeof totals);
    memset(&job, 0, sizeof job);
    memset(workers, 0, sizeof workers);
    job.kind = JOB_REINFORCE;
    snprintf(job.name, sizeof job.name, "a-job");
    for (unsigned i = 0; i < 3; i++)
        workers[i] =
            (struct worker_status){.worker = (uint16_t)i,
                                   .role = i == 0 ? "agent" : "observer",
                                   .state = i == 2 ? "restarts" : "running",
                                   .restarts = i,
                                   .has_use = i < 2,
                                   .use = {.cpu_us = 1500000, .work = 10 + i, .stale = 1 + i, .queue = 4}};
}

static void end(void)
{
    free(text);
    text = NULL;
}

static void write_text(enum openmetrics_form form)
{
    const struct run_status status = {.path = "/runs/\"x\\y\"\n",
                                      .job = &job,
                                      .state = "training",
                                      .update = 12,
                                      .running_reward = 99.5,
                                      .checkpoint_age_s = (double)NAN,
                                      .totals = &totals,
                                      .worker_count = 3,
                                      .workers = workers};
    size_t length = 0;
    free(text);
    text = openmetrics_text(&status, form, &length);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(length, strlen(text));
}

static void expect(const char *line)
{
    ck_assert_msg(text_count(text, line) == 1, "expected once: %s in %s", line, text);
}

/* Every line is a sample, or says what samples are; the samples of a metric stand together. */
static void check_format(void)
{
    regex_t sample, comment;
    char last[80] = "", name[80];
    ck_assert_int_eq(
        regcomp(&sample,
                "^coalesced_[a-z_]+(\\{[a-z]+=\"([^\"\\\\]|\\\\[\\\\n\"])*\"(,[a-z]+=\"([^\"\\\\]|"
                "\\\\[\\\\n\"])*\")*\\})? -?[0-9.e+-]+$",
                REG_EXTENDED | REG_NOSUB),
        0);
    ck_assert_int_eq(regcomp(&comment, "^# (TYPE [a-z_]+ [a-z]+|UNIT [a-z_]+ [a-z]+|HELP [a-z_]+ .*|EOF)$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    char *copy = strdup(text);
    for (char *rest = copy, *line; (line = strsep(&rest, "\n")) != NULL && line[0] != '\0';) {
        const bool is_comment = line[0] == '#';
        ck_assert_msg(regexec(is_comment ? &comment : &sample, line, 0, NULL, 0) == 0, "%s", line);
        if (sscanf(line, "# TYPE %79s", name) == 1)
            memcpy(last, name, sizeof last);
        if (!is_comment && last[0] != '\0')
            ck_assert_msg(strncmp(line, last, strlen(last) - (strstr(last, "_total") != NULL ? 6 : 0)) == 0,
                          "%s behind %s", line, last);
    }
    free(copy);
    regfree(&sample);
    regfree(&comment);
}

START_TEST(each_line_is_of_the_format)
{
    static const int kinds[] = {JOB_REINFORCE, JOB_PARAMETER_SERVER, JOB_MODEL_PARALLEL};
    job.kind = kinds[_i];
    totals.has_episode = totals.has_update = totals.has_epoch = true;
    totals.epoch.evaluated = 10;
    totals.episode.has_figures = true;
    totals.episode.figures =
        (struct control_figures){.algorithm = JOB_ALGORITHM_PPO, .approx_kl = (double)NAN};
    for (int form = OPENMETRICS; form <= OPENMETRICS_TEXTFILE; form++) {
        write_text((enum openmetrics_form)form);
        check_format();
        ck_assert_uint_eq(text_count(text, "# UNIT") > 0, form == OPENMETRICS);
        ck_assert_uint_eq(text_count(text, "# EOF\n"), form == OPENMETRICS);
    }
}
END_TEST

START_TEST(buckets_add_up)
{
    totals.batches[0] = 1;
    totals.batches[4] = 2;
    totals.batches[CONTROL_BATCH_BUCKETS - 1] = 4;
    totals.launched_rows = 200000;
    totals.waits[1] = 8;
    totals.wait_s = 0.5;
    write_text(OPENMETRICS);
    expect("coalesced_coalescer_batch_rows_bucket{le=\"1.0\"} 1\n");
    expect("coalesced_coalescer_batch_rows_bucket{le=\"8.0\"} 1\n");
    expect("coalesced_coalescer_batch_rows_bucket{le=\"16.0\"} 3\n");
    expect("coalesced_coalescer_batch_rows_bucket{le=\"16384.0\"} 3\n");
    expect("coalesced_coalescer_batch_rows_bucket{le=\"+Inf\"} 7\n");
    expect("coalesced_coalescer_batch_rows_count 7\n");
    expect("coalesced_coalescer_batch_rows_sum 200000\n");
    expect("coalesced_coalescer_wait_seconds_bucket{le=\"1e-05\"} 0\n");
    expect("coalesced_coalescer_wait_seconds_bucket{le=\"2.5e-05\"} 8\n");
    expect("coalesced_coalescer_wait_seconds_sum 0.5\n");
}
END_TEST

/* The round of a parameter-server job may take a minute. */
START_TEST(rounds_have_limits_of_their_own)
{
    job.kind = JOB_PARAMETER_SERVER;
    totals.round_waits[RUN_ROUND_BUCKETS - 2] = 3;
    write_text(OPENMETRICS);
    expect("coalesced_round_wait_seconds_bucket{le=\"15.0\"} 0\n");
    expect("coalesced_round_wait_seconds_bucket{le=\"60.0\"} 3\n");
}
END_TEST

START_TEST(workers_add_up_by_role)
{
    write_text(OPENMETRICS);
    expect("coalesced_worker_restarts_total{role=\"agent\"} 0\n");
    expect("coalesced_worker_restarts_total{role=\"observer\"} 3\n");
    expect("coalesced_workers_running{role=\"observer\"} 1\n");
    expect("coalesced_worker_cpu_seconds_total{role=\"agent\",worker=\"0\"} 1.5\n");
    ck_assert_uint_eq(text_count(text, "worker=\"2\""), 0); /* it has not told */
    expect("coalesced_dropped_messages_total{reason=\"stale\"} 6\n");
}
END_TEST

START_TEST(what_is_not_known_is_left_out)
{
    write_text(OPENMETRICS);
    ck_assert_uint_eq(text_count(text, "checkpoint_age"), 0);
    ck_assert_uint_eq(text_count(text, "nan"), 0);
    ck_assert_uint_eq(text_count(text, "coalesced_loss"), 0);
    expect("coalesced_running_reward 99.5\n");
    expect("directory=\"/runs/\\\"x\\\\y\\\"\\n\"");
}
END_TEST

START_TEST(the_older_format_names_counters_whole)
{
    write_text(OPENMETRICS_CLASSIC);
    expect("# TYPE coalesced_episodes_total counter\n");
    expect("# TYPE coalesced_run_info gauge\n");
    ck_assert_uint_eq(text_count(text, "run=\""), 0);
    write_text(OPENMETRICS);
    expect("# TYPE coalesced_episodes counter\n");
    expect("# TYPE coalesced_run info\n");
}
END_TEST

/* node_exporter makes one text of the files of all runs. */
START_TEST(each_sample_of_the_older_format_names_its_run)
{
    const char *const run = "run=\"/runs/\\\"x\\\\y\\\"\\n\"} ";
    write_text(OPENMETRICS_TEXTFILE);
    expect("coalesced_episodes_total{run=\"/runs/");
    expect("coalesced_coalescer_batch_rows_bucket{le=\"+Inf\",run=\"/runs/");
    expect("coalesced_coalescer_batch_rows_count{run=\"/runs/");
    expect("coalesced_worker_restarts_total{role=\"agent\",run=\"/runs/");
    ck_assert_uint_eq(text_count(text, run), text_count(text, "\ncoalesced_"));
    write_text(OPENMETRICS);
    ck_assert_uint_eq(text_count(text, "run=\""), 0);
}
END_TEST

START_TEST(the_newest_evaluation_is_told)
{
    totals.has_episode = totals.episode.has_figures = true;
    totals.episode.figures.algorithm = JOB_ALGORITHM_PPO;
    write_text(OPENMETRICS);
    ck_assert_uint_eq(text_count(text, "evaluation_reward"), 0);
    totals.has_evaluation = true;
    totals.evaluation.mean_reward = 42;
    write_text(OPENMETRICS);
    expect("coalesced_evaluation_reward 42\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("openmetrics");
    TCase *tcase = tcase_create("text");
    tcase_add_checked_fixture(tcase, begin, end);
    tcase_add_loop_test(tcase, each_line_is_of_the_format, 0, 3);
    tcase_add_test(tcase, buckets_add_up);
    tcase_add_test(tcase, rounds_have_limits_of_their_own);
    tcase_add_test(tcase, workers_add_up_by_role);
    tcase_add_test(tcase, what_is_not_known_is_left_out);
    tcase_add_test(tcase, the_older_format_names_counters_whole);
    tcase_add_test(tcase, each_sample_of_the_older_format_names_its_run);
    tcase_add_test(tcase, the_newest_evaluation_is_told);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
