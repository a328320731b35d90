/* The lines on stdout (daemon/log/runlog.h): a terminal, a pipe, and readers that stop or leave. */
#include "kernels/base/monotime.h"
#include "test/daemon/log/runlog_fixture.h"

#include <pty.h>
#include <termios.h>

/* Long enough for a loaded machine; ends a write that blocks. */
enum { PATIENCE_S = 30, MANY = 4000 };

/* The end from which the test reads. */
static int stdout_to_pipe(void)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    take_stdout(ends[1]);
    return ends[0];
}

/* The master side of a raw terminal. */
static int stdout_to_terminal(void)
{
    int screen, terminal;
    struct termios raw = {0};
    cfmakeraw(&raw);
    ck_assert_int_eq(openpty(&screen, &terminal, NULL, &raw, NULL), 0);
    ck_assert_int_eq(fcntl(screen, F_SETFL, O_NONBLOCK), 0);
    take_stdout(terminal);
    return screen;
}

/* Everything that can be read now, malloc'ed. */
static char *drain(int fd)
{
    enum { DRAIN_BYTES = 1 << 20 };
    char *text = malloc(DRAIN_BYTES);
    size_t length = 0;
    ssize_t got;
    ck_assert_ptr_nonnull(text);
    while ((got = read(fd, text + length, DRAIN_BYTES - 1 - length)) > 0)
        length += (size_t)got;
    text[length] = '\0';
    return text;
}

#define CLEAR "\r\033[K"

/* Waits longer than the time between two redraws, a tenth of a second. */
static void pause_for_redraw(void)
{
    sleep_ms(120);
}

START_TEST(a_terminal_has_the_lines_and_a_progress_line)
{
    int screen = stdout_to_terminal();
    job.log.every = 2;
    job.stop.has_episodes = false; /* an end's time would be another one each time */
    open_log();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    log_episode(1);
    pause_for_redraw();
    log_episode(2);
    pause_for_redraw();
    log_episode(3);
    close_log();
    char *seen = drain(screen);
    ck_assert_str_eq(seen, CLEAR "episode 1  running reward 0.25  80 steps/s" CLEAR
                                 "Episode 2\tLast reward: 2.50\tAverage reward: 0.50\n" CLEAR
                                 "episode 2  running reward 0.50  160 steps/s" CLEAR
                                 "episode 3  running reward 0.75  240 steps/s" CLEAR);
    free(seen);
    close(screen);
}
END_TEST

/* Beats bring it, before any record and after one. What came too soon to be drawn is drawn later. */
START_TEST(an_evaluation_is_drawn_without_a_record)
{
    int screen = stdout_to_terminal();
    job.log.every = 2;
    job.stop.has_episodes = false;
    open_log();
    runlog_evaluating(runlog, (struct control_share){3, 10});
    runlog_redraw(runlog); /* nothing has changed */
    log_episode(1);
    pause_for_redraw();
    runlog_redraw(runlog);
    close_log();
    char *seen = drain(screen);
    ck_assert_str_eq(seen, CLEAR "evaluating 3/10" CLEAR "episode 1  running reward 0.25  80 steps/s" CLEAR);
    free(seen);
    close(screen);
}
END_TEST

/* A resumed run shows its progress, but no line again. */
START_TEST(updates_have_a_progress_line_too)
{
    const struct control_update update = {
        .update = 1, .loss = 0.25, .samples = 40, .timing = {.round_s = 0.5}};
    const struct control_epoch epoch = {.epoch = 1, .update = 1, .loss = 0.5};
    int screen = stdout_to_terminal();
    job.kind = JOB_PARAMETER_SERVER;
    job.log.every = 1;
    open_log();
    ck_assert_int_eq(add_update(&update), STATUS_OK);
    ck_assert_int_eq(add_epoch(&epoch), STATUS_OK);
    close_log();
    open_log(); /* the run goes on; a line that was printed is not printed again */
    ck_assert_int_eq(runlog_resume(runlog, NULL, 0, 0, NULL, &error), STATUS_OK);
    ck_assert_int_eq(add_update(&update), STATUS_OK);
    close_log();
    char *seen = drain(screen);
    ck_assert_str_eq(seen, "Update 1\tLoss: 0.2500\tSamples/s: 80.0\n" CLEAR
                           "update 1  loss 0.2500  80 samples/s" CLEAR "Epoch 1\tLoss: 0.5000\n" CLEAR
                           "update 1  loss 0.2500  80 samples/s" CLEAR);
    free(seen);
    close(screen);
}
END_TEST

START_TEST(a_language_models_progress_is_in_tokens)
{
    const struct control_update update = {
        .update = 400, .loss = 0, .lr = 5, .samples = 700, .timing = {.round_s = 0.5}};
    int screen = stdout_to_terminal();
    job.kind = JOB_MODEL_PARALLEL;
    open_log();
    ck_assert_int_eq(add_update(&update), STATUS_OK);
    close_log();
    char *seen = drain(screen);
    ck_assert_str_eq(seen, "Update 400\tLoss: 0.0000\tPerplexity: 1.00\tLr: 5\tTokens/s: 1400\n" CLEAR
                           "update 400  perplexity 1.00  1400 tokens/s" CLEAR);
    free(seen);
    close(screen);
}
END_TEST

/* At most ten redraws a second, by the clock that this test reads before and after. */
START_TEST(a_fast_job_redraws_seldom)
{
    int screen = stdout_to_terminal();
    job.log.every = 1000000;
    open_log();
    struct monotime begin = monotime_now();
    log_episodes(1, 500);
    uint64_t took_us = monotime_us_between(begin, monotime_now());
    char *seen = drain(screen);
    ck_assert_uint_ge(text_count(seen, "episode "), 1);
    ck_assert_uint_le(text_count(seen, "episode "), 1 + took_us / 100000);
    free(seen);
    close_log();
    close(screen);
}
END_TEST

START_TEST(a_pipe_has_the_lines_and_nothing_else)
{
    char wanted[512] = "";
    int reader = stdout_to_pipe();
    open_log();
    for (unsigned number = 1; number <= 3; number++) {
        log_episode(number);
        append_line(wanted, sizeof wanted, number);
        if (number == 1)
            pause_for_redraw();
    }
    close_log();
    char *seen = drain(reader);
    ck_assert_str_eq(seen, wanted);
    free(seen);
    close(reader);
}
END_TEST

/* Expects the first lines, whole and in order; how many were shown depends on the system's buffers. */
static unsigned expect_first_lines(const char *seen)
{
    unsigned number = 0;
    char wanted[128];
    for (const char *at = seen; *at != '\0'; at += strlen(wanted)) {
        wanted[0] = '\0';
        append_line(wanted, sizeof wanted, ++number);
        ck_assert_msg(strncmp(at, wanted, strlen(wanted)) == 0, "expected %sat: %.200s", wanted, at);
    }
    return number;
}

/* A pager that does not read. If a line were waited for, the alarm would end this check. */
START_TEST(a_pipe_that_nobody_reads_stops_nobody)
{
    int reader = stdout_to_pipe();
    alarm(PATIENCE_S);
    open_log();
    log_episodes(1, MANY);
    char *seen = drain(reader);
    unsigned shown = expect_first_lines(seen);
    free(seen);
    ck_assert(shown > 100 && shown < MANY);
    expect_episodes(workplace.jsonl, 1, MANY);
    char *text = file_read(workplace.log);
    ck_assert_uint_eq(expect_first_lines(text), MANY);
    free(text);
    /* A reader that goes on sees the lines from now on. */
    char wanted[128] = "";
    log_episode(MANY + 1);
    append_line(wanted, sizeof wanted, MANY + 1);
    seen = drain(reader);
    ck_assert_str_eq(seen, wanted);
    free(seen);
    close_log();
    close(reader);
}
END_TEST

/* The same with a terminal that nobody reads, and with one that was stopped by ctrl-S. */
START_TEST(a_terminal_that_nobody_reads_stops_nobody)
{
    char wanted[128] = "";
    int screen = stdout_to_terminal();
    alarm(PATIENCE_S);
    if (_i == 1)
        ck_assert_int_eq(tcflow(STDOUT_FILENO, TCOOFF), 0);
    open_log();
    log_episodes(1, MANY);
    char *seen = drain(screen);
    ck_assert_uint_lt(text_count(seen, "Episode "), MANY);
    free(seen);
    expect_episodes(workplace.jsonl, 1, MANY);
    if (_i == 1)
        ck_assert_int_eq(tcflow(STDOUT_FILENO, TCOON), 0);
    free(drain(screen));
    log_episode(MANY + 1);
    append_line(wanted, sizeof wanted, MANY + 1);
    seen = drain(screen);
    ck_assert_ptr_nonnull(strstr(seen, wanted));
    free(seen);
    close_log();
    close(screen);
}
END_TEST

/* A closed pipe costs one message, not one for each line, and no line of the files. */
START_TEST(a_closed_pipe_costs_one_warning)
{
    char path[128];
    int old_stderr = dup(STDERR_FILENO);
    snprintf(path, sizeof path, "%s/stderr", workplace.folder);
    int err = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    ck_assert_int_eq(dup2(err, STDERR_FILENO), STDERR_FILENO);
    close(err);
    close(stdout_to_pipe());
    open_log();
    log_episodes(1, 3);
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    char *said = file_read(path), *text = file_read(workplace.log);
    ck_assert_uint_eq(text_count(said, "\n"), 1);
    ck_assert_uint_eq(text_count(said, "standard output is gone (Broken pipe)"), 1);
    ck_assert_uint_eq(expect_first_lines(text), 3);
    expect_episodes(workplace.jsonl, 1, 3);
    free(said);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runlog_stdout");
    TCase *screen = add_case(suite, "stdout");
    tcase_set_timeout(screen, 2 * PATIENCE_S);
    tcase_add_test(screen, a_terminal_has_the_lines_and_a_progress_line);
    tcase_add_test(screen, an_evaluation_is_drawn_without_a_record);
    tcase_add_test(screen, updates_have_a_progress_line_too);
    tcase_add_test(screen, a_language_models_progress_is_in_tokens);
    tcase_add_test(screen, a_fast_job_redraws_seldom);
    tcase_add_test(screen, a_pipe_has_the_lines_and_nothing_else);
    tcase_add_test(screen, a_pipe_that_nobody_reads_stops_nobody);
    tcase_add_loop_test(screen, a_terminal_that_nobody_reads_stops_nobody, 0, 2);
    tcase_add_test(screen, a_closed_pipe_costs_one_warning);
    return suite_run(suite);
}
