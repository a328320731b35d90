/* A parameter server outside of its rounds: checkpoints, resuming, the ends of a job. The servers are real
 * processes; this test plays the trainers and the supervisor. */
#include "kernels/params/gradients.h"
#include "test/worker/data_parallel/pserver_trainers.h"
#include "test/workplace.h"
#include "worker/checkpoint/checkpoint.h"

#include <sys/resource.h>

static const char *const arrangements[][2] = {
    {"/transport=shared", "/server/count=1"},
    {"/transport=inline", "/server/count=2"},
    {"/transport=shared", "/server/count=2"},
    {"/transport=inline", "/server/count=1"},
};

static const struct dataset_info no_data;

/* ---- checkpoints ---- */

static float *new_image(void)
{
    float *image = aligned_alloc(4096, ps.bytes);
    ck_assert_ptr_nonnull(image);
    return memset(image, 0, ps.bytes);
}

/* The plain model and its velocity must be in this checkpoint. */
static void expect_plain_model(const char *path, int64_t batches)
{
    float *image = new_image(), *momentum = new_image();
    struct params *own;
    struct classifier *classifier;
    struct gradients *gradients;
    PS_OK(params_new(&own, ps.backend, &ps.error));
    PS_OK(classifier_new(&classifier, &ps.job, own, &ps.error));
    PS_OK(params_lay_out(own, &ps.error));
    PS_OK(gradients_new_unplaced(&gradients, own, &ps.error));
    params_place(own, 0, params_count(own), image);
    params_place_buffers(own, image + ps.parameters);
    gradients_place(gradients, momentum);
    const struct checkpoint_values part = {.params = own, .momentum = gradients};
    PS_OK(checkpoint_load(path_of(path), &part, &ps.error));
    ck_assert_int_eq(memcmp(image, ps.model, ps.elements * sizeof *image), 0);
    ck_assert_int_eq(memcmp(momentum, ps.velocity, ps.parameters * sizeof *momentum), 0);
    ck_assert_int_eq(params_find(own, "bn1.num_batches_tracked")->counter, batches);
    gradients_free(gradients);
    classifier_free(classifier);
    params_free(own);
    free(image);
    free(momentum);
}

/* A sound checkpoint of this update, with the plain model in it. */
static void expect_checkpoint(uint64_t update)
{
    char name[32];
    struct checkpoint_counters counters;
    snprintf(name, sizeof name, "%08llu", (unsigned long long)update);
    PS_OK(checkpoint_check(path_of(ps_checkpoint(name)), &counters, &ps.error));
    ck_assert_uint_eq(counters.update, update);
    ck_assert_uint_eq(counters.trainers, ps.trainers);
    for (uint32_t i = 0; i < ps.trainers; i++)
        ck_assert_uint_eq(counters.steps[i], update);
    expect_plain_model(ps_checkpoint(name), (int64_t)update);
}
START_TEST(a_checkpoint_waits_for_the_log_and_the_answers_for_it)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_set("/checkpoint/every=2");
    ps_start(&no_data);
    ps_round();
    ps.hold_log = true;
    ps_push_all();
    PS_UNTIL(ps_has_checkpoint("00000002.tmp"));
    ps_turns(20);
    ck_assert(!ps_answered(0) && !ps_answered(1));
    ck_assert(!ps_has_checkpoint("00000002"));
    PS_OK(ps_get(0, PARAMETER_SERVER_NEWEST, args)); /* it goes on serving */
    ps_expect_model(args);
    ps_acknowledge(2);
    ps_pull_all(0);
    ck_assert(!ps_has_checkpoint("00000002.tmp"));
    ck_assert(!ps_has_checkpoint("00000001"));
    expect_checkpoint(2);
}
END_TEST

/* Its contribution is counted, so the successor's is one to the next round, and is not answered with this
 * one.
 */
START_TEST(a_successor_pushes_while_a_checkpoint_is_written)
{
    uint64_t args[WIRE_ARGS] = {0};
    struct control_died died = {.text = "the last trainer was killed"};
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_set("/checkpoint/every=1");
    ps_start(&no_data);
    ps.hold_log = true;
    ps_push_all();
    PS_UNTIL(ps_has_checkpoint("00000001.tmp"));
    died.worker = (uint16_t)(ps.servers + 1);
    died.incarnation = ps.trainer[1].incarnation; /* and not the successor's, should the order be read late */
    for (uint32_t i = 0; i < ps.servers; i++)
        control_send(ps.control[i], CONTROL_DIED, &died, sizeof died);
    ps_taken(0);
    ps_join(1);
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ck_assert_uint_eq(args[MODEL_STEP], 1);
    ps_push(1, 1, 1);
    ps_taken(1);
    ps.hold_log = false;
    ps_acknowledge(1);
    PS_OK(ps_pull(0, args));
    ps_expect_model(args);
    ps_turns(20);
    ck_assert(!ps_answered(1));
    ps_push(0, 1, 1);
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){1, 1}, 2);
    ps_pull_all(0);
}
END_TEST

START_TEST(checkpoints_come_by_the_clock_too)
{
    ps_set("/checkpoint/every=null");
    ps_set("/checkpoint/every_s=0.000001");
    ps_set("/checkpoint/keep=1");
    ps_start(&no_data);
    ps_round();
    expect_checkpoint(1);
    ps_round();
    expect_checkpoint(2);
    ck_assert(!ps_has_checkpoint("00000001"));
}
END_TEST

START_TEST(a_resumed_run_is_the_uninterrupted_one)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_set("/checkpoint/every=2");
    ps_start(&no_data);
    ps_round();
    ps_round();
    ps_resume("00000002");
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ck_assert_uint_eq(args[MODEL_STEP], 2);
    ps_expect_model(args);
    ps_round();
    ps_round();
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U3 U4 F0 ");
    ck_assert(ps.updates[4].lr == schedule_lr(&ps.schedule, 4));
    expect_checkpoint(4);
    ps_end(0);
}
END_TEST

START_TEST(a_finished_job_that_is_resumed_is_finished)
{
    ps_set("/stop/updates=1");
    ps_start(&no_data);
    ps_round();
    PS_UNTIL(ps.finished);
    ps_resume("00000001");
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "F0 ");
    ps_end(0);
}
END_TEST

START_TEST(a_checkpoint_of_other_trainers_is_refused)
{
    char checkpoint[256];
    ps_set("/stop/updates=1");
    ps_start(&no_data);
    ps_round();
    PS_UNTIL(ps.finished);
    ps_end(0);
    snprintf(checkpoint, sizeof checkpoint, "%s", ps_checkpoint("00000001"));
    ps_clear_reports();
    ps_close_model();
    ps_close_memory();
    ps_set("/trainers/count=3");
    ps_open(&no_data);
    ps_serve(checkpoint);
    ck_assert(ps.failed);
    ck_assert_ptr_nonnull(strstr(ps.failure.text, "comes from a job with 2 trainers: expected 3"));
}
END_TEST

/* The model alone: versions, momentum and counters begin anew. */
START_TEST(a_job_can_begin_with_a_file)
{
    char init[300];
    ps_set("/stop/updates=1");
    ps_start(&no_data);
    ps_round();
    PS_UNTIL(ps.finished);
    ps_end(0);
    snprintf(init, sizeof init, "/init=%s/model.safetensors", ps_checkpoint("00000001"));
    float *model = ps.model;
    ps.model = NULL;
    ps_close_model();
    ps_close_memory();
    ps_set(init);
    ps_set("/server/count=2");
    ps_open(&no_data);
    free(ps.model);
    ps.model = model;
    ps_play("");
    ps_round();
    ps_end(0);
}
END_TEST

START_TEST(a_disk_that_is_full_ends_the_job_and_leaves_what_is_there)
{
    const struct rlimit full = {.rlim_cur = 100000, .rlim_max = 100000};
    ps_set("/checkpoint/every=1");
    ps_start(&no_data);
    ps_round();
    ck_assert_int_eq(prlimit(ps.pid[0], RLIMIT_FSIZE, &full, NULL), 0);
    ps_push(0, 1, 1);
    ps_push(1, 1, 1);
    PS_UNTIL(ps.failed);
    ck_assert_msg(strstr(ps.failure.text, "checkpoints/00000002.tmp/") != NULL, "%s", ps.failure.text);
    ck_assert_int_eq(ps_wait(0), status_exit_code(STATUS_IO));
    ck_assert(!ps_has_checkpoint("00000002") && !ps_has_checkpoint("00000002.tmp"));
    expect_checkpoint(1);
}
END_TEST

/* What a server above 0 cannot write, server 0 tells of. */
START_TEST(a_part_that_fails_ends_the_job_too)
{
    ps_set("/server/count=2");
    ps_set("/checkpoint/every=1");
    ps_open(&no_data);
    ps_begin_model();
    ps.elsewhere = true; /* server 1's run directory is not there */
    ps_play("");
    ps_push_all();
    PS_UNTIL(ps.failed);
    ck_assert_msg(strstr(ps.failure.text, "pserver 1, checkpoint 1: ") != NULL, "%s", ps.failure.text);
    ck_assert_int_ne(ps_wait(0), 0);
    ck_assert(!ps_has_checkpoint("00000001") && !ps_has_checkpoint("00000001.tmp"));
}
END_TEST

/* ---- the order to stop ---- */

START_TEST(a_job_that_has_not_begun_stops_at_once)
{
    ps_start(&no_data);
    ps_order(CONTROL_DRAIN);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "F2 ");
    ck_assert(!ps_has_checkpoint("00000000"));
    ps_end(0);
}
END_TEST

START_TEST(an_order_to_stop_finds_a_round_empty)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_start(&no_data);
    ps_round();
    ps_order(CONTROL_DRAIN);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U1 F2 ");
    expect_checkpoint(1);
    PS_OK(ps_get(0, PARAMETER_SERVER_NEWEST, args));
    ck_assert_uint_eq(args[MODEL_FLAGS], PULL_LAST);
    ps_push(0, 1, 1); /* computed while the order came */
    PS_UNTIL(future_done(ps.trainer[0].calls[0]));
    ck_assert_int_eq(future_status(ps.trainer[0].calls[0]), STATUS_SHUTDOWN);
    ps_end(0);
}
END_TEST

START_TEST(an_order_to_stop_lets_a_round_be_finished)
{
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_start(&no_data);
    ps_round();
    ps_push(1, 1, 1);
    ps_taken(1);
    ps_order(CONTROL_DRAIN);
    ps_turns(5);
    ck_assert(!ps.finished);
    ps_push(0, 1, 1);
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){1, 1}, 2);
    ps_pull_all(PULL_LAST);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U1 U2 F2 ");
    expect_checkpoint(2);
    ps_end(0);
}
END_TEST

START_TEST(an_order_to_stop_comes_while_a_checkpoint_is_written)
{
    ps_set("/checkpoint/every=1");
    ps.hold_log = true;
    ps_start(&no_data);
    ps_push_all();
    PS_UNTIL(ps_has_checkpoint("00000001.tmp"));
    ps_order(CONTROL_DRAIN);
    ps_turns(10);
    ck_assert(!ps.finished);
    ps_acknowledge(1);
    ps_pull_all(PULL_LAST);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U1 F2 ");
    expect_checkpoint(1);
    ps_end(0);
}
END_TEST

/* Server 1 has all contributions of a round of which server 0 has none when it is told to stop: it gives the
 * version before for the checkpoint. */
START_TEST(a_server_that_has_gone_ahead_saves_what_server_0_has)
{
    const uint64_t step = 1;
    ps_set("/server/count=2");
    ps_start(&no_data);
    ps_round();
    for (uint32_t i = 0; i < 2; i++) {
        struct rpc_message push = {
            .args = {[PUSH_STEP] = step, [PUSH_BASE] = 1, [PUSH_BYTES] = ps.elements * sizeof(float)}};
        ps_write_outbox(i, step);
        PS_OK(rpc_call_async(ps.trainer[i].rpc, 1, METHOD_PUSH_PULL, &push, MONOTIME_NEVER,
                             &ps.trainer[i].calls[1], &ps.error));
    }
    for (uint32_t i = 0; i < 2; i++)
        PS_UNTIL(future_done(ps.trainer[i].calls[1]));
    ck_assert_uint_eq(future_value(ps.trainer[0].calls[1])->args[MODEL_VERSION], 2);
    ps_order(CONTROL_DRAIN);
    PS_UNTIL(ps.finished);
    expect_checkpoint(1);
    ps_end(0);
}
END_TEST

/* ---- the order to hurry ---- */

static void expect_hurry(const char *events)
{
    ps_order(CONTROL_HURRY);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, events);
    for (uint32_t i = 0; i < 2; i++)
        if (ps.trainer[i].calls[0] != NULL) {
            PS_UNTIL(ps_answered(i));
            ck_assert_int_eq(future_status(ps.trainer[i].calls[0]), STATUS_SHUTDOWN);
        }
    ps_end(0);
    ck_assert(!ps_has_checkpoint("00000001") && !ps_has_checkpoint("00000001.tmp") &&
              !ps_has_checkpoint("00000002"));
}

START_TEST(who_hurries_gives_the_round_up)
{
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_start(&no_data);
    ps_push(1, 0, 0);
    ps_taken(1);
    expect_hurry("F2 ");
}
END_TEST

START_TEST(who_hurries_gives_the_checkpoint_up)
{
    ps_set("/checkpoint/every=1");
    ps.hold_log = true;
    ps_start(&no_data);
    ps_push_all();
    PS_UNTIL(ps_has_checkpoint("00000001.tmp"));
    ps_order(CONTROL_HURRY);
    ps_turns(10);
    ck_assert(!ps.finished); /* the record is on its way into the log */
    ps_acknowledge(1);
    expect_hurry("U1 F2 ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pserver_ends");
    TCase *checkpoints = ps_case(suite, "checkpoints");
    tcase_add_loop_test(checkpoints, a_checkpoint_waits_for_the_log_and_the_answers_for_it, 0, 2);
    tcase_add_loop_test(checkpoints, a_successor_pushes_while_a_checkpoint_is_written, 0, 2);
    tcase_add_test(checkpoints, checkpoints_come_by_the_clock_too);
    tcase_add_loop_test(checkpoints, a_resumed_run_is_the_uninterrupted_one, 0, 4);
    tcase_add_test(checkpoints, a_finished_job_that_is_resumed_is_finished);
    tcase_add_test(checkpoints, a_checkpoint_of_other_trainers_is_refused);
    tcase_add_test(checkpoints, a_job_can_begin_with_a_file);
    tcase_add_test(checkpoints, a_disk_that_is_full_ends_the_job_and_leaves_what_is_there);
    tcase_add_test(checkpoints, a_part_that_fails_ends_the_job_too);
    TCase *orders = ps_case(suite, "orders");
    tcase_add_test(orders, a_job_that_has_not_begun_stops_at_once);
    tcase_add_loop_test(orders, an_order_to_stop_finds_a_round_empty, 0, 2);
    tcase_add_loop_test(orders, an_order_to_stop_lets_a_round_be_finished, 0, 2);
    tcase_add_test(orders, an_order_to_stop_comes_while_a_checkpoint_is_written);
    tcase_add_test(orders, a_server_that_has_gone_ahead_saves_what_server_0_has);
    tcase_add_loop_test(orders, who_hurries_gives_the_round_up, 0, 2);
    tcase_add_test(orders, who_hurries_gives_the_checkpoint_up);
    return suite_run(suite);
}
