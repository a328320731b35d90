/* The state machine of checkpoints: when one is due, and that it becomes visible only after its values were
 * gathered and its place in the logs is known. */
#include "test/worker/checkpoint/checkpoint_fixture.h"
#include "test/worker/net/net_fixture.h"
#include "worker/checkpoint/checkpoint_saver.h"

#include <math.h>
#include <unistd.h>

static struct net net;
static struct job job;
static struct checkpoint_saver saver;
static struct member member;
static enum status gathered; /* the answer of gather */
static unsigned gathers, published;

static enum status gather(void *context, struct error *error)
{
    ck_assert_ptr_eq(context, &job);
    gathers++;
    if (gathered != STATUS_OK && gathered != STATUS_AGAIN)
        return error_set(error, gathered, "a shard is missing");
    return gathered;
}

static void setup(void)
{
    const struct rpc_config config = net_server_config(NULL, 0, NULL);
    checkpoint_open();
    net_serve(&net, &config);
    memset(&job, 0, sizeof job);
    job.checkpoint.has_every = true;
    job.checkpoint.every = 2;
    job.checkpoint.keep = 1;
    gathered = STATUS_OK;
    gathers = published = 0;
    member_open(&member, 0, 1, false, true);
    member_write(&member, 7);
}

static void teardown(void)
{
    checkpoint_saver_close(&saver);
    member_close(&member);
    rpc_free(net.server, "the test is over", 0);
    rmdir(net.folder);
    checkpoint_close();
}

static void note_published(const struct run_place *place)
{
    ck_assert_mem_eq(place, &checkpoint_place, sizeof *place);
    published++;
}

static void open_saver_of(uint64_t saved, bool again)
{
    const struct checkpoint_saver_config config = {.run_dir = path_of(workplace.run_dir),
                                                   .job = &job,
                                                   .rpc = net.server,
                                                   .publishes = true,
                                                   .saved = saved,
                                                   .again = again,
                                                   .gather = gather,
                                                   .context = &job,
                                                   .published = note_published};
    CK_OK(checkpoint_saver_open(&saver, &config, &checkpoint_error));
}

static void open_saver(uint64_t saved)
{
    open_saver_of(saved, false);
}

static void begin(uint64_t update)
{
    const struct checkpoint_saving saving = {
        .counters = counters_of(update), .values = member.values, .asked = update == 2};
    checkpoint_saver_begin(&saver, &saving);
}

/* Turns and advances until the saver is in `state`, or has failed. */
static enum status advance_to(enum checkpoint_saver_state state, const struct run_place *place)
{
    enum status status = checkpoint_saver_advance(&saver, place, &checkpoint_error);
    while (status == STATUS_AGAIN && saver.state != state) {
        ck_assert_int_eq(rpc_turn(net.server, MONOTIME_NEVER), STATUS_OK);
        status = checkpoint_saver_advance(&saver, place, &checkpoint_error);
    }
    return status;
}

START_TEST(a_checkpoint_names_its_place_in_the_logs)
{
    open_saver(0);
    begin(2);
    ck_assert_int_eq(advance_to(CHECKPOINT_GATHERING, NULL), STATUS_AGAIN);
    ck_assert_int_eq(checkpoint_saver_advance(&saver, NULL, &checkpoint_error), STATUS_AGAIN);
    expect_names("", "00000002.tmp");
    ck_assert(checkpoint_saver_holds(&saver));
    ck_assert_int_eq(advance_to(CHECKPOINT_IDLE, &checkpoint_place), STATUS_OK);
    ck_assert(!checkpoint_saver_holds(&saver));
    ck_assert_uint_eq(published, 1);
    expect_newest(2, "00000002");
    begin(4); /* nobody has asked for this one */
    ck_assert(!checkpoint_saver_holds(&saver));
    ck_assert_int_eq(advance_to(CHECKPOINT_IDLE, &checkpoint_place), STATUS_OK);
    ck_assert_uint_eq(published, 1);
    expect_names("", "00000004"); /* keep: 1 */
}
END_TEST

START_TEST(nothing_is_written_before_everything_is_gathered)
{
    open_saver(0);
    gathered = STATUS_AGAIN;
    begin(2);
    ck_assert_int_eq(advance_to(CHECKPOINT_GATHERING, &checkpoint_place), STATUS_AGAIN);
    const unsigned before = gathers;
    ck_assert_int_eq(checkpoint_saver_advance(&saver, &checkpoint_place, &checkpoint_error), STATUS_AGAIN);
    ck_assert_uint_eq(gathers, before + 1);
    expect_names("00000002.tmp", "");
    gathered = STATUS_OK;
    ck_assert_int_eq(advance_to(CHECKPOINT_IDLE, &checkpoint_place), STATUS_OK);
    expect_newest(2, "00000002");
}
END_TEST

START_TEST(a_failure_leaves_the_older_checkpoint_alone)
{
    open_saver(0);
    begin(2);
    ck_assert_int_eq(advance_to(CHECKPOINT_IDLE, &checkpoint_place), STATUS_OK);
    gathered = STATUS_IO;
    begin(4);
    ck_assert_int_eq(advance_to(CHECKPOINT_IDLE, &checkpoint_place), STATUS_IO);
    ck_assert_str_eq(checkpoint_error.text, "a shard is missing");
    ck_assert_int_eq(saver.state, CHECKPOINT_IDLE);
    expect_names("", "00000002");
}
END_TEST

START_TEST(an_unfinished_checkpoint_goes_with_the_saver)
{
    open_saver(0);
    begin(2);
    ck_assert_int_eq(advance_to(CHECKPOINT_GATHERING, NULL), STATUS_AGAIN);
    checkpoint_saver_close(&saver);
    expect_names("", "");
}
END_TEST

START_TEST(a_checkpoint_is_due_at_multiples_at_the_end_and_by_the_clock)
{
    open_saver(2);
    ck_assert(!checkpoint_saver_due(&saver, 2, true)); /* saved already */
    ck_assert(!checkpoint_saver_due(&saver, 3, false));
    ck_assert(checkpoint_saver_due(&saver, 3, true));
    ck_assert(checkpoint_saver_due(&saver, 4, false));
    job.checkpoint.has_every_s = true;
    job.checkpoint.every_s = 3600;
    ck_assert(!checkpoint_saver_due(&saver, 3, false));
    job.checkpoint.every_s = 0.01;
    usleep(20000);
    ck_assert(checkpoint_saver_due(&saver, 3, false));
    saver.config.publishes = false;
    ck_assert(!checkpoint_saver_due(&saver, 4, true));
}
END_TEST

/* A run that goes on after a break saves early, and doubles the interval with each checkpoint, whatever
 * /checkpoint/every_s is. */
START_TEST(a_run_that_goes_on_saves_soon)
{
    job.checkpoint.every = 1000000;
    open_saver_of(2, true);
    ck_assert_double_eq(saver.soon_s, 0.25);
    saver.soon_s = 3600;
    ck_assert(!checkpoint_saver_due(&saver, 3, false));
    saver.soon_s = 1e-6;
    usleep(10);
    ck_assert(checkpoint_saver_due(&saver, 3, false));
    saver.soon_s = 0.25;
    begin(3);
    CK_OK(advance_to(CHECKPOINT_IDLE, &checkpoint_place));
    ck_assert_double_eq(saver.soon_s, 0.5);
    saver.soon_s = 16;
    begin(4);
    CK_OK(advance_to(CHECKPOINT_IDLE, &checkpoint_place));
    ck_assert(isinf(saver.soon_s));
}
END_TEST

/* For the start of a run: a file has the folder's name. */
START_TEST(an_unusable_folder_is_found_by_the_probe)
{
    char path[192];
    CK_OK(checkpoint_probe(path_of(workplace.run_dir), &checkpoint_error));
    expect_names("", "");
    snprintf(path, sizeof path, "%s/checkpoints", workplace.run_dir);
    ck_assert_int_eq(rmdir(path), 0);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    expect_failure(checkpoint_probe(path_of(workplace.run_dir), &checkpoint_error), STATUS_IO,
                   "found a regular file, expected a directory");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_saver");
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, a_checkpoint_names_its_place_in_the_logs);
    tcase_add_test(all, nothing_is_written_before_everything_is_gathered);
    tcase_add_test(all, a_failure_leaves_the_older_checkpoint_alone);
    tcase_add_test(all, an_unfinished_checkpoint_goes_with_the_saver);
    tcase_add_test(all, a_checkpoint_is_due_at_multiples_at_the_end_and_by_the_clock);
    tcase_add_test(all, a_run_that_goes_on_saves_soon);
    tcase_add_test(all, an_unusable_folder_is_found_by_the_probe);
    tcase_set_timeout(all, 60);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
