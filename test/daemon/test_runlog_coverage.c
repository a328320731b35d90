/* How far logs can be trusted (daemon/runlog_coverage.h, daemon/runlog_sequence.h): each file's lines are
 * written as words, such as "start 1 2 e1@2 3": a start, updates 1 and 2, epoch 1 that ended with update 2,
 * update 3. */
#include "daemon/runlog_coverage.h"
#include "test/process.h"
#include "test/workplace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct job job;
static int dir_fd;
static struct error error;

static void open_place(void)
{
    workplace_open();
    ck_assert_int_eq(mkdir(workplace.run_dir, 0700), 0);
    dir_fd = open(workplace.run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(dir_fd, 0);
    job = (struct job){.kind = JOB_PARAMETER_SERVER, .log = {.every = 1}};
}

static void close_place(void)
{
    close(dir_fd);
    workplace_close();
}

/* One word's line of episodes.jsonl, or of episodes.log, which has no events. */
static void print_line(FILE *file, const char *word, bool is_json)
{
    unsigned epoch, update;
    if (sscanf(word, "e%u@%u", &epoch, &update) == 2 && is_json)
        fprintf(file, "{\"epoch\":%u,\"update\":%u,\"loss\":1,\"timing\":{\"unix_s\":1}}\n", epoch, update);
    else if (sscanf(word, "e%u@%u", &epoch, &update) == 2)
        fprintf(file, "Epoch %u\tLoss: 1.0000\n", epoch);
    else if (word[0] >= '0' && word[0] <= '9' && job.kind == JOB_REINFORCE)
        fprintf(file, is_json ? "{\"episode\":%s,\"timing\":{}}\n" : "Episode %s\tLast\n", word);
    else if (word[0] >= '0' && word[0] <= '9')
        fprintf(file, is_json ? "{\"update\":%s,\"loss\":1,\"timing\":{}}\n" : "Update %s\tLoss\n", word);
    else if (word[0] == 'r' && is_json)
        fprintf(file, "{\"event\":\"resumed\",\"update\":%s,\"timing\":{}}\n", word + 1);
    else if (word[0] == 'd' && is_json) /* a death */
        fprintf(file, "{\"event\":\"resumed\",\"update\":%s,\"generation\":2,\"timing\":{}}\n", word + 1);
    else if (strcmp(word, "zeros") == 0)
        fwrite("\0\0\0\0\n", 1, 5, file);
    else if (strcmp(word, "torn") == 0)
        fputs("{\"upd", file);
    else if (strcmp(word, "noise") == 0)
        fputs("noise\n", file);
    else if (is_json)
        fprintf(file, "{\"event\":\"%s\",\"seed\":1,\"timing\":{}}\n", word);
}

static void write_file(const char *path, const char *words, bool is_json)
{
    char copy[256], *rest;
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        print_line(file, word, is_json);
    ck_assert_int_eq(fclose(file), 0);
}

static uint64_t covered_by(uint64_t epoch_updates)
{
    uint64_t covered = 0;
    const enum status status =
        runlog_covered(dir_fd, workplace.run_dir, &job, epoch_updates, &covered, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return covered;
}

static unsigned lines_of(const char *path)
{
    char *text = file_read(path);
    const unsigned lines = text_count(text, "\n");
    free(text);
    return lines;
}

enum { NO_WRONG_LINE = 0 };
#define NOTHING UINT64_MAX

/* Two updates to an epoch. */
static const struct {
    const char *json;
    uint64_t covered;
    unsigned wrong; /* line */
} of_json[] = {
    {"start 1 2 e1@2 3 4 e2@4 5", 5, NO_WRONG_LINE},
    {"start 1 2 e1@2 3 torn", 3, NO_WRONG_LINE},
    {"start 1 2", 2, NO_WRONG_LINE},
    {"", NOTHING, NO_WRONG_LINE},
    {"start 2 e1@2 3", 0, 2},          /* the first is missing */
    {"start 1 2 e1@2 4 e2@4", 2, 5},   /* one is missing */
    {"start 1 2 3 4 e2@4", 2, 4},      /* an epoch is missing */
    {"start 1 2 e1@2 3 4 5 6", 4, 7},  /* the second is */
    {"start 1 2 e1@2 3 3 4", 3, 6},    /* there twice */
    {"start 1 2 e1@2 4 3 e2@4", 2, 5}, /* swapped */
    {"start 1 e1@2 2 3", 1, 3},        /* an epoch too early */
    {"start 1 2 3 e1@2 4", 2, 4},      /* too late */
    {"start 1 2 e2@4 3", 2, 4},        /* another epoch */
    {"start 1 2 e1@4 3", 2, 4},        /* with another's update */
    {"start 1 2 e1@2 e1@2 3", 2, 5},   /* an epoch twice */
    {"start 1 noise 2", 1, 3},
    {"start 1 zeros 2", 1, 3},
    {"start 1 2 e1@2 r2 3 4 e2@4", 4, NO_WRONG_LINE},
    {"5 6 e3@6 7", 7, NO_WRONG_LINE}, /* the beginning was moved away */
    {"e2@4 5 6 e3@6", 6, NO_WRONG_LINE},
    {"7 e3@6 8", 7, 2},
    {"r4 5 6 e3@6", 6, NO_WRONG_LINE},
    {"r4 6 e3@6", 4, 2},
    {"d4 7 8 e4@8", 8, NO_WRONG_LINE}, /* a death after the beginning was moved away */
    {"5 7", 5, 2},
    {"start 1 2 e1@2 3 e2@3 finished r3 4 e2@4 5", 5, NO_WRONG_LINE},             /* cut short, then whole */
    {"start 1 2 e1@2 3 4 e2@4 finished r2 e1@2 finished r4 5", 5, NO_WRONG_LINE}, /* evaluated later */
    {"start 1 2 e1@2 3 4 e2@4 finished r2 e2@3", 4, NO_WRONG_LINE},
    {"start 1 2 e1@2 3 4 e2@4 e1@2 5", 4, 8}, /* that is no end of a run */
};

START_TEST(the_first_wrong_line_is_found)
{
    write_file(workplace.jsonl, of_json[_i].json, true);
    const unsigned lines = lines_of(workplace.jsonl);
    ck_assert_uint_eq(covered_by(2), of_json[_i].covered);
    char cut[160];
    snprintf(cut, sizeof cut, "%s.cut", workplace.jsonl);
    if (of_json[_i].wrong == NO_WRONG_LINE) {
        ck_assert_uint_eq(lines_of(workplace.jsonl), lines);
        ck_assert_int_ne(access(cut, F_OK), 0);
        return;
    }
    ck_assert_uint_eq(lines_of(workplace.jsonl), of_json[_i].wrong - 1);
    ck_assert_uint_eq(lines_of(cut), lines - of_json[_i].wrong + 1);
    ck_assert_uint_eq(covered_by(2), of_json[_i].covered); /* what is left is right */
    ck_assert_uint_eq(lines_of(cut), lines - of_json[_i].wrong + 1);
}
END_TEST

/* A line for every third update, five to an epoch; the epoch's line follows the newest line. */
START_TEST(a_language_models_lines_are_thinned)
{
    job.kind = JOB_MODEL_PARALLEL;
    job.log.every = 3;
    write_file(workplace.jsonl, "start 3 e1@5 6 9 e2@10 12", true);
    ck_assert_uint_eq(covered_by(5), 14);
    write_file(workplace.jsonl, "start 3 e1@5 6 9", true);
    ck_assert_uint_eq(covered_by(5), 10); /* the epoch's line is not there yet */
    write_file(workplace.jsonl, "start 3 6 9", true);
    ck_assert_uint_eq(covered_by(5), 5);
    ck_assert_uint_eq(lines_of(workplace.jsonl), 2);
    write_file(workplace.jsonl, "start 3 e1@5 9", true);
    ck_assert_uint_eq(covered_by(5), 5);
}
END_TEST

START_TEST(episodes_have_no_epochs)
{
    job.kind = JOB_REINFORCE;
    write_file(workplace.jsonl, "start 1 2 3", true);
    ck_assert_uint_eq(covered_by(0), 3);
    write_file(workplace.jsonl, "start 1 3", true);
    ck_assert_uint_eq(covered_by(0), 1);
}
END_TEST

static const struct {
    const char *text;
    uint64_t covered;
    unsigned wrong;
} of_text[] = {
    {"1 2 e1@2 3 4 e2@4 5", 5, NO_WRONG_LINE},
    {"2 e1@2 4 e2@4", 5, NO_WRONG_LINE}, /* thinned by /log/every */
    {"", 5, NO_WRONG_LINE},              /* moved away */
    {"1 2 2 e1@2", 2, 3},
    {"2 1 e1@2", 2, 2},
    {"1 2 3 4", 2, 3},               /* an epoch is missing */
    {"1 2 e1@2 3 4 e2@4 5 6", 5, 8}, /* more than episodes.jsonl has */
    {"1 2 e1@2 3 4 e2@4 e3@6", 5, 7},
    {"1 2 e1@2 e1@2 3", 2, 4},
    {"1 2 e1@2 noise 3", 2, 4},
    {"1 2 e1@2 zeros 3", 2, 4},
};

START_TEST(the_text_is_held_to_the_other_log)
{
    write_file(workplace.jsonl, "start 1 2 e1@2 3 4 e2@4 5", true);
    write_file(workplace.log, of_text[_i].text, false);
    const unsigned lines = lines_of(workplace.log);
    ck_assert_uint_eq(covered_by(2), of_text[_i].covered);
    ck_assert_uint_eq(lines_of(workplace.log),
                      of_text[_i].wrong == NO_WRONG_LINE ? lines : of_text[_i].wrong - 1);
    ck_assert_uint_eq(lines_of(workplace.jsonl), 8);
}
END_TEST

/* Several cuts are kept, one behind the other. */
START_TEST(nothing_that_was_cut_is_lost)
{
    char cut[160], *text;
    snprintf(cut, sizeof cut, "%s.cut", workplace.jsonl);
    for (unsigned i = 0; i < 2; i++) {
        write_file(workplace.jsonl, i == 0 ? "start 1 3 4" : "start 1 7", true);
        ck_assert_uint_eq(covered_by(0), 1);
    }
    text = file_read(cut);
    ck_assert_str_eq(text,
                     "{\"update\":3,\"loss\":1,\"timing\":{}}\n{\"update\":4,\"loss\":1,\"timing\":{}}\n"
                     "{\"update\":7,\"loss\":1,\"timing\":{}}\n");
    free(text);
}
END_TEST

START_TEST(a_rest_that_cannot_be_kept_is_not_cut)
{
    char cut[160];
    uint64_t covered;
    snprintf(cut, sizeof cut, "%s.cut", workplace.jsonl);
    ck_assert_int_eq(mkdir(cut, 0700), 0);
    write_file(workplace.jsonl, "start 1 3", true);
    ck_assert_int_eq(runlog_covered(dir_fd, workplace.run_dir, &job, 0, &covered, &error), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "episodes.jsonl.cut"));
    ck_assert_uint_eq(lines_of(workplace.jsonl), 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runlog_coverage");
    TCase *tests = tcase_create("runlog_coverage");
    tcase_add_checked_fixture(tests, open_place, close_place);
    tcase_add_loop_test(tests, the_first_wrong_line_is_found, 0, sizeof of_json / sizeof of_json[0]);
    tcase_add_test(tests, a_language_models_lines_are_thinned);
    tcase_add_test(tests, episodes_have_no_epochs);
    tcase_add_loop_test(tests, the_text_is_held_to_the_other_log, 0, sizeof of_text / sizeof of_text[0]);
    tcase_add_test(tests, nothing_that_was_cut_is_lost);
    tcase_add_test(tests, a_rest_that_cannot_be_kept_is_not_cut);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
