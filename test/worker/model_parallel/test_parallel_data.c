/* The data of a model-parallel job, by trainer and iteration: epochs, limits, counts of tokens, shapes,
 * and the first state of a training. */
#include "test/workplace.h"
#include "worker/model_parallel/parallel_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB_OF(more)                                                                                         \
    "{\"kind\":\"model-parallel\",\"trainers\":{\"count\":2,\"batch\":3},"                                   \
    "\"placement\":{\"lstm\":\"server 0\"}," more "}"

static struct job job;
static struct parallel_data data;
static struct error error;

static void open_job(const char *text)
{
    char *problems = NULL;
    const enum status status = job_parse(&job, text, strlen(text), "job.json", NULL, 0, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems != NULL ? problems : "");
    free(problems);
}

static void open_data(const char *text)
{
    open_job(text);
    const enum status status = parallel_data_open(&data, &job, NULL, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- random numbers ---- */

START_TEST(random_data_has_the_jobs_shapes_and_epochs)
{
    int32_t tokens[15], targets[50], others[50];
    open_data(JOB_OF("\"loss\":{\"classes\":\"batch\"},\"data\":{\"updates\":4},\"stop\":{\"epochs\":3}"));
    ck_assert_uint_eq(data.epoch_updates, 4);
    ck_assert_uint_eq(data.updates, 12);
    ck_assert(!parallel_data_ends_epoch(&data, 0) && !parallel_data_ends_epoch(&data, 3));
    ck_assert(parallel_data_ends_epoch(&data, 4) && parallel_data_ends_epoch(&data, 12));
    ck_assert_uint_eq(parallel_data_tokens_max(&data), 15);
    ck_assert_uint_eq(parallel_data_targets_max(&data), 50);
    ck_assert_uint_eq(parallel_data_batch(&data, 1, 7, tokens, targets), 5);
    for (int i = 0; i < 50; i++)
        ck_assert(targets[i] >= 0 && targets[i] < 3);
    parallel_data_batch(&data, 1, 8, tokens, others);
    ck_assert_mem_ne(targets, others, sizeof targets);
    parallel_data_batch(&data, 0, 7, tokens, others);
    ck_assert_mem_ne(targets, others, sizeof targets);
    parallel_data_batch(&data, 1, 7, tokens, others);
    ck_assert_mem_eq(targets, others, sizeof targets);
    ck_assert_uint_eq(parallel_data_tokens(&data, 3, 9), 6 * 15);
    ck_assert(data.held_out_batches == 0);
    parallel_data_close(&data);
}
END_TEST

/* Three updates are less than an epoch, and end one. */
START_TEST(the_last_update_ends_an_epoch)
{
    open_data(JOB_OF("\"stop\":{\"updates\":3}"));
    ck_assert_uint_eq(data.updates, 3);
    ck_assert(parallel_data_ends_epoch(&data, 3) && !parallel_data_ends_epoch(&data, 2));
    parallel_data_close(&data);
}
END_TEST

START_TEST(trainers_begin_with_states_of_their_own)
{
    float h[2][36], c[2][36];
    double squares = 0;
    open_data(JOB_OF("\"stop\":{\"updates\":3}"));
    ck_assert_uint_eq(parallel_data_state_count(&data, 3), 36);
    for (uint32_t trainer = 0; trainer < 2; trainer++)
        parallel_data_first_state(&data, trainer, h[trainer], c[trainer]);
    ck_assert_mem_ne(h[0], h[1], sizeof h[0]);
    ck_assert_mem_ne(h[0], c[0], sizeof h[0]);
    for (int i = 0; i < 36; i++)
        squares += (double)(h[0][i] * h[0][i] + c[1][i] * c[1][i]);
    ck_assert_double_eq_tol(squares / 72, 1, 0.6);
    parallel_data_close(&data);
}
END_TEST

/* ---- a text ---- */

/* Lines of four tokens with the line's end: a b c. 60 lines to train on, 20 held out. */
static void open_text(const char *more)
{
    char path[96], text[512];
    snprintf(path, sizeof path, "%s/text", workplace.folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 80; i++)
        ck_assert_int_ge(fputs(i % 2 == 0 ? "a b c\n" : "b c a\n", file), 0);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(text, sizeof text,
             JOB_OF("\"data\":{\"kind\":\"text\",\"path\":\"%s\",\"steps\":6,\"held_out\":0.25},"
                    "\"evaluation\":{\"batch\":2},\"stop\":{\"epochs\":2}%s"),
             path, more);
    open_job(text);
}

/* 240 tokens in 6 columns are 40 rows, 39 of which are somebody's targets: six batches of 6, and one of 3. */
START_TEST(a_text_is_cut_into_everybodys_columns)
{
    int32_t tokens[18], targets[18];
    float h[36], c[36];
    open_text("");
    ck_assert_int_eq(parallel_data_open(&data, &job, NULL, &error), STATUS_OK);
    ck_assert_uint_eq(data.rnn.tokens, 5);
    ck_assert_uint_eq(data.epoch_updates, 7);
    ck_assert_uint_eq(data.updates, 14);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < data.updates; i++) {
        const uint32_t steps = parallel_data_batch(&data, 1, i, tokens, targets);
        ck_assert_uint_eq(steps, i % 7 == 6 ? 3 : 6);
        for (uint32_t k = 0; k + 3 < 3 * steps; k++)
            ck_assert_int_eq(targets[k], tokens[k + 3]);
        ck_assert_uint_eq(parallel_data_tokens(&data, i, i + 1), 3 * steps);
        sum += 3 * steps;
    }
    ck_assert_uint_eq(parallel_data_tokens(&data, 0, data.updates), sum);
    parallel_data_first_state(&data, 1, h, c);
    for (int i = 0; i < 36; i++)
        ck_assert(h[i] == 0 && c[i] == 0);
    parallel_data_close(&data);
}
END_TEST

/* Answers with the batch's number of steps, and counts calls in the state. */
static enum status forward(void *context, const struct parallel_batch *batch, double *loss,
                           struct error *problem)
{
    unsigned *calls = context;
    (void)problem;
    ck_assert_uint_eq(batch->columns, 2);
    ck_assert_float_eq(batch->h[23], (float)*calls);
    ++*calls;
    for (int i = 0; i < 24; i++)
        batch->h_out[i] = batch->c_out[i] = (float)*calls;
    *loss = batch->steps;
    return STATUS_OK;
}

/* 80 tokens in 2 columns: 39 targets in each, six batches of 6 and one of 3, weighted by their sizes. */
START_TEST(what_is_held_out_is_weighted_by_its_targets)
{
    unsigned calls = 0;
    double loss;
    uint64_t count;
    open_text("");
    ck_assert_int_eq(parallel_data_open(&data, &job, NULL, &error), STATUS_OK);
    ck_assert(data.held_out_batches > 0);
    ck_assert_int_eq(held_out_loss(&data, forward, &calls, &loss, &count, &error), STATUS_OK);
    ck_assert_uint_eq(calls, 7);
    ck_assert_uint_eq(count, 78);
    ck_assert_double_eq_tol(loss, (6 * 12.0 * 6 + 6.0 * 3) / 78, 1e-12);
    parallel_data_close(&data);
}
END_TEST

START_TEST(a_text_that_is_too_short_to_train_on_is_refused)
{
    open_text(",\"model\":{\"tokens\":null}");
    job.trainers.batch = 100;
    ck_assert_int_eq(parallel_data_open(&data, &job, NULL, &error), STATUS_OK);
    ck_assert_int_eq(parallel_data_check(&data, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "too few for 2 trainers with 100 columns each") != NULL, "%s",
                  error.text);
    parallel_data_close(&data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_data");
    TCase *all = tcase_create("data");
    tcase_add_checked_fixture(all, workplace_open, workplace_close);
    tcase_add_test(all, random_data_has_the_jobs_shapes_and_epochs);
    tcase_add_test(all, the_last_update_ends_an_epoch);
    tcase_add_test(all, trainers_begin_with_states_of_their_own);
    tcase_add_test(all, a_text_is_cut_into_everybodys_columns);
    tcase_add_test(all, what_is_held_out_is_weighted_by_its_targets);
    tcase_add_test(all, a_text_that_is_too_short_to_train_on_is_refused);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
