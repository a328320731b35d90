/* When epochs, evaluations and the end are due, and the learning rate. */
#include "test/workplace.h"
#include "worker/data_parallel/schedule.h"

#include <check.h>
#include <string.h>

static struct job job;
static struct dataset_info info;
static struct schedule schedule;
static struct error error;

/* 1,007 samples for 2 trainers with batches of 10: 50 updates an epoch, 7 samples left out. */
static void setup(void)
{
    memset(&job, 0, sizeof job);
    job.kind = JOB_PARAMETER_SERVER;
    job.trainers.count = 2;
    job.trainers.batch = 10;
    job.data.kind = JOB_DATA_IDX;
    job.optimizer.lr = 0.1;
    job.stop.has_epochs = true;
    job.stop.epochs = 3;
    job.evaluation.has_every = true;
    job.evaluation.every = 2;
    info = (struct dataset_info){.train = 1007, .evaluation = 100};
}

static void make(void)
{
    enum status status = schedule_of(&schedule, &job, &info, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void refuse(const char *text)
{
    ck_assert_int_eq(schedule_of(&schedule, &job, &info, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, text) != NULL, "\"%s\" is not in \"%s\"", text, error.text);
}

START_TEST(epochs_are_whole_updates)
{
    make();
    ck_assert_uint_eq(schedule.epoch_updates, 50);
    ck_assert_uint_eq(schedule.updates, 150);
    ck_assert(!schedule_ends_epoch(&schedule, 0));
    ck_assert(!schedule_ends_epoch(&schedule, 49));
    ck_assert(schedule_ends_epoch(&schedule, 50));
    ck_assert(!schedule_ends_epoch(&schedule, 51));
    ck_assert(schedule_ends_epoch(&schedule, 150));
}
END_TEST

START_TEST(evaluations_come_every_so_many_epochs_and_at_the_end)
{
    make();
    ck_assert(!schedule_evaluates(&schedule, 0));
    ck_assert(!schedule_evaluates(&schedule, 50));
    ck_assert(schedule_evaluates(&schedule, 100));
    ck_assert(schedule_evaluates(&schedule, 150));
    job.evaluation.has_every = false;
    make();
    ck_assert(!schedule_evaluates(&schedule, 100));
    ck_assert(!schedule_evaluates(&schedule, 150));
    job.evaluation.has_every = true;
    info.evaluation = 0; /* a folder without a test split */
    make();
    ck_assert(!schedule_evaluates(&schedule, 150));
}
END_TEST

START_TEST(the_first_limit_ends_the_job_and_its_last_epoch)
{
    job.stop.has_updates = true;
    job.stop.updates = 120;
    make();
    ck_assert_uint_eq(schedule.updates, 120);
    ck_assert(schedule_ends_epoch(&schedule, 120));
    ck_assert(schedule_evaluates(&schedule, 120));
    job.stop.updates = 1000;
    make();
    ck_assert_uint_eq(schedule.updates, 150);
    job.stop.epochs = UINT64_MAX; /* more than can be counted is no limit */
    make();
    ck_assert_uint_eq(schedule.updates, 1000);
}
END_TEST

START_TEST(async_makes_an_update_of_each_batch)
{
    job.server.round.name = JOB_ROUND_ASYNC;
    make();
    ck_assert_uint_eq(schedule.epoch_updates, 100);
    ck_assert_uint_eq(schedule.updates, 300);
    ck_assert(schedule_evaluates(&schedule, 200));
    job.server.round.name = JOB_ROUND_FIRST;
    make();
    ck_assert_uint_eq(schedule.epoch_updates, 50);
}
END_TEST

START_TEST(synthetic_data_has_no_epochs)
{
    job.data.kind = JOB_DATA_SYNTHETIC;
    info = (struct dataset_info){0};
    refuse("synthetic data has no epochs");
    job.stop.has_updates = true;
    job.stop.updates = 6;
    make();
    ck_assert_uint_eq(schedule.updates, 6);
    ck_assert(!schedule_ends_epoch(&schedule, 6));
    ck_assert(!schedule_evaluates(&schedule, 6));
}
END_TEST

/* The class may say how many samples it has. */
START_TEST(a_classs_data_has_epochs_where_it_has_a_size)
{
    job.data.kind = JOB_DATA_CLASS;
    make();
    ck_assert_uint_eq(schedule.epoch_updates, 50);
    ck_assert(schedule_ends_epoch(&schedule, 50));
    info.train = 0;
    refuse("the class's data has no epochs: expected a limit in /stop/updates");
    job.stop.has_updates = true;
    job.stop.updates = 6;
    make();
    ck_assert_uint_eq(schedule.updates, 6);
    ck_assert(!schedule_ends_epoch(&schedule, 6));
    info.train = 19;
    refuse("19 training samples: one step of 2 trainers with batches of 10 takes 20");
}
END_TEST

START_TEST(too_few_samples_are_refused)
{
    info.train = 19;
    refuse("19 training samples: one step of 2 trainers with batches of 10 takes 20");
    info.train = 20;
    make();
    ck_assert_uint_eq(schedule.epoch_updates, 1);
}
END_TEST

START_TEST(the_rate_stays_or_falls_in_a_line)
{
    make();
    ck_assert(schedule_lr(&schedule, 1) == 0.1);
    ck_assert(schedule_lr(&schedule, 150) == 0.1);
    job.optimizer.schedule = JOB_SCHEDULE_LINEAR;
    make();
    ck_assert(schedule_lr(&schedule, 1) == 0.1);
    ck_assert_double_eq_tol(schedule_lr(&schedule, 76), 0.05, 1e-15);
    ck_assert_double_eq_tol(schedule_lr(&schedule, 150), 0.1 / 150, 1e-15);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule");
    TCase *dues = tcase_create("dues");
    tcase_add_checked_fixture(dues, setup, NULL);
    tcase_add_test(dues, epochs_are_whole_updates);
    tcase_add_test(dues, evaluations_come_every_so_many_epochs_and_at_the_end);
    tcase_add_test(dues, the_first_limit_ends_the_job_and_its_last_epoch);
    tcase_add_test(dues, async_makes_an_update_of_each_batch);
    tcase_add_test(dues, synthetic_data_has_no_epochs);
    tcase_add_test(dues, a_classs_data_has_epochs_where_it_has_a_size);
    tcase_add_test(dues, too_few_samples_are_refused);
    tcase_add_test(dues, the_rate_stays_or_falls_in_a_line);
    suite_add_tcase(suite, dues);
    return suite_run(suite);
}
