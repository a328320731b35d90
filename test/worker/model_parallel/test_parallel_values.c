/* The state that the lead and the other trainers keep for checkpoints. Whole runs that save and go on:
 * test_model_parallel_resume.c. */
#include "test/workplace.h"
#include "worker/model_parallel/parallel_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct parallel_values values;
static struct parallel_data data;
static struct worker worker;
static struct error error;

static void open_trainer(bool leads, const char *resume)
{
    static const char text[] =
        "{\"kind\":\"model-parallel\",\"model\":{\"embedding\":4,\"hidden\":5,\"layers\":2},"
        "\"placement\":{\"lstm\":\"server 0\"},\"trainers\":{\"count\":2,\"batch\":3},"
        "\"optimizer\":{\"momentum\":0.5}}";
    char *problems = NULL;
    const enum status status = job_parse(&worker.job, text, strlen(text), "job.json", NULL, 0, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems != NULL ? problems : "");
    free(problems);
    snprintf(worker.self.resume, sizeof worker.self.resume, "%s", resume);
    ck_assert_int_eq(parallel_data_open(&data, &worker.job, NULL, &error), STATUS_OK);
    ck_assert_msg(parallel_values_open(&values, &worker, leads, &data, &error) == STATUS_OK, "%s",
                  error.text);
}

static void close_trainer(void)
{
    parallel_values_close(&values);
    parallel_data_close(&data);
}

/* A model per trainer would be memory for nothing. */
START_TEST(only_the_lead_keeps_a_model)
{
    open_trainer(false, "");
    ck_assert_ptr_null(values.whole.params);
    ck_assert_ptr_null(values.whole.momentum);
    ck_assert_ptr_null(values.states);
    close_trainer();
}
END_TEST

/* It reads its own state there. */
START_TEST(who_goes_on_keeps_the_state_alone)
{
    open_trainer(false, "/nowhere");
    ck_assert_ptr_null(values.whole.params);
    ck_assert_ptr_nonnull(values.states);
    ck_assert_uint_eq(params_count(values.states), 4);
    close_trainer();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_values");
    TCase *all = tcase_create("resume");
    tcase_add_test(all, only_the_lead_keeps_a_model);
    tcase_add_test(all, who_goes_on_keeps_the_state_alone);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
