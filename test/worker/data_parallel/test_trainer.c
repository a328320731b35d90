/* The trainer against parameter servers that this test plays itself: its requests, and its gradients,
 * which have the bits of a tape with the same model and batch. */
#include "test/worker/data_parallel/trainer_stage.h"
#include "test/workplace.h"

/* ---- steps ---- */

static const struct arrangement {
    const char *transport, *device;
    uint32_t servers;
} arrangements[] = {{"shared", "cpu", 1},     {"shared", "cpu", 2},     {"inline", "cpu", 1},
                    {"inline", "cpu", 2},     {"shared", "gpu", 2},     {"shared", "auto", 1},
                    {"inline", "gpu", 2},     {"far shared", "cpu", 1}, {"far shared", "cpu", 2},
                    {"mixed", "cpu", 2},      {"mixed", "gpu", 2},      {"far inline", "cpu", 2},
                    {"far rounded", "cpu", 2}};
enum { ARRANGEMENTS = sizeof arrangements / sizeof arrangements[0] };

START_TEST(contributions_are_the_tapes_bit_for_bit)
{
    open_stage(arrangements[_i].transport, arrangements[_i].servers, "all", arrangements[_i].device);
    begin();
    for (uint64_t i = 0; i < 3; i++) {
        expect_push(STEP + i, BASE + i);
        answer_all(BASE + i + 1, STEP + i + 1, i == 2 ? PULL_LAST : 0);
    }
    ck_assert_uint_eq(stage.server[0].gets, 1);
    end();
}
END_TEST

/* The version that comes with the answer, not the one after its base. */
START_TEST(a_late_one_goes_on_from_the_newest)
{
    open_stage("shared", 1, "first 1", "cpu");
    begin();
    expect_push(STEP, BASE);
    answer_all(BASE + 3, STEP + 1, PULL_LATE);
    expect_push(STEP + 1, BASE + 3);
    answer_all(BASE + 4, STEP + 2, PULL_LAST);
    end();
}
END_TEST

/* It answers calls, and makes no step. */
START_TEST(after_the_last_it_waits_to_be_told)
{
    struct future *echo;
    open_stage("shared", 2, "all", "cpu");
    begin();
    expect_push(STEP, BASE);
    answer_all(BASE + 1, STEP + 1, PULL_LAST);
    for (int i = 0; i < 2; i++) {
        ok(rpc_call_async(stage.server[1].rpc, 3, METHOD_ECHO, &(struct rpc_message){0}, MONOTIME_NEVER,
                          &echo, &error));
        TURN_UNTIL(future_done(echo));
        ck_assert_int_eq(future_status(echo), STATUS_OK);
        future_release(echo);
    }
    ck_assert(stage.server[0].push == NULL && stage.server[1].push == NULL);
    end();
}
END_TEST

/* A predecessor died between its two messages: server 0 has the step, server 1 waits for it. */
START_TEST(a_step_that_one_server_lacks_is_made_again_for_it)
{
    open_stage(_i == 0 ? "shared" : _i == 1 ? "inline" : "far shared", 2, "all", "cpu");
    write_version(BASE + 1);
    stage.server[0].version = BASE + 1;
    stage.server[0].step = STEP + 1;
    begin();
    ck_assert_uint_eq(stage.server[0].asked, BASE);
    ck_assert_uint_eq(stage.server[1].asked, BASE);
    TURN_UNTIL(stage.server[1].push != NULL);
    TURN_UNTIL(stage.server[0].gets == 3); // the newest, the older one, and the newest once more
    ck_assert_ptr_null(stage.server[0].push);
    ck_assert_uint_eq(stage.server[1].args[PUSH_STEP], STEP);
    ck_assert_uint_eq(stage.server[1].args[PUSH_BASE], BASE);
    ck_assert(!stage.travels[1] || stage.pieces == stage.shards[1].end - stage.shards[1].first);
    stage.pieces = 0;
    data_next(stage.loader);
    answer(1, BASE + 1, STEP + 1, 0);
    expect_push(STEP + 1, BASE + 1);
    answer_all(BASE + 2, STEP + 2, PULL_LAST);
    end();
}
END_TEST

/* ---- evaluation ---- */

static struct future *ask_to_evaluate(uint64_t version, uint32_t share)
{
    const struct rpc_message model = model_message(0, version, 0, 0);
    const struct rpc_message call = {.args = {[EVALUATE_VERSION] = version,
                                              [EVALUATE_OFFSET] = model.args[MODEL_OFFSET],
                                              [EVALUATE_SHARE] = share,
                                              [EVALUATE_SHARES] = TRAINERS}};
    struct future *future = NULL;
    ok(rpc_call_async(stage.server[0].rpc, (uint16_t)(stage.servers + NUMBER), METHOD_EVALUATE, &call,
                      MONOTIME_NEVER, &future, &error));
    return future;
}

/* A beat tells of the trainer's own samples. */
static bool tells_of(uint64_t samples)
{
    const struct control_share *evaluation = &stage.message.body.beat.evaluation;
    while (control_receive(stage.control, false, &stage.message) == STATUS_OK)
        if (stage.message.kind == CONTROL_BEAT && evaluation->done == samples && evaluation->total == samples)
            return true;
    return false;
}

static void expect_evaluation(struct future *future, uint64_t version, uint32_t share)
{
    struct twin *twin = &stage.twin;
    struct evaluation sums;
    double loss;
    TURN_UNTIL(future_done(future));
    ck_assert_msg(future_status(future) == STATUS_OK, "%s", future_text(future));
    ok(params_begin(twin->params, version, 0, params_count(twin->params), &error));
    struct evaluator evaluator = {.job = &data.job, .classifier = twin->classifier, .tape = twin->tape};
    ok(evaluator_run(&evaluator, share, &sums, &error));
    evaluator_close(&evaluator);
    const uint64_t *args = future_value(future)->args;
    memcpy(&loss, &args[EVALUATED_LOSS], sizeof loss);
    ck_assert_uint_eq(args[EVALUATED_SAMPLES], share == 0 ? 3 : 4); // of seven
    ck_assert_uint_eq(args[EVALUATED_SAMPLES], sums.samples);
    ck_assert_uint_eq(args[EVALUATED_CORRECT], sums.correct);
    ck_assert(loss > 0 && loss == sums.loss_sum);
    future_release(future);
}

/* As server 0 does it: the call goes out before the answer that gives the version. */
START_TEST(the_version_that_comes_next_is_evaluated_first)
{
    open_stage(arrangements[_i].transport, arrangements[_i].servers, "all", arrangements[_i].device);
    begin();
    expect_push(STEP, BASE);
    write_version(BASE + 1);
    struct future *evaluation = ask_to_evaluate(BASE + 1, 1);
    answer_all(BASE + 1, STEP + 1, 0);
    expect_evaluation(evaluation, BASE + 1, 1);
    expect_push(STEP + 1, BASE + 1);
    answer_all(BASE + 2, STEP + 2, PULL_LAST);
    evaluation = ask_to_evaluate(BASE + 2, 0);
    expect_evaluation(evaluation, BASE + 2, 0);
    end();
}
END_TEST

/* The server keeps the answer back until the evaluation is over: it must not wait for the answer. */
START_TEST(it_evaluates_while_its_push_is_held)
{
    open_stage(_i == 0 ? "shared" : _i == 1 ? "inline" : "far shared", 1, "async 2", "cpu");
    begin();
    expect_push(STEP, BASE);
    write_version(BASE + 1);
    expect_evaluation(ask_to_evaluate(BASE + 1, 0), BASE + 1, 0);
    TURN_UNTIL(tells_of(3)); // it waits for the answer
    answer_all(BASE + 2, STEP + 1, 0);
    expect_push(STEP + 1, BASE + 2);
    answer_all(BASE + 3, STEP + 2, PULL_LAST);
    expect_evaluation(ask_to_evaluate(BASE + 3, 1), BASE + 3, 1);
    end();
}
END_TEST

/* The job has made its last update while this trainer computed: its push is not needed, and its share of the
 * evaluation is. Both messages come at once. */
START_TEST(a_trainer_whose_push_is_not_needed_evaluates)
{
    open_stage(_i == 0 ? "shared" : "inline", 1, "async 2", "cpu");
    begin();
    expect_push(STEP, BASE);
    write_version(BASE + 1);
    struct future *evaluation = ask_to_evaluate(BASE + 1, 0);
    rpc_fail(stage.server[0].push, STATUS_SHUTDOWN, "the job is over");
    stage.server[0].push = NULL;
    expect_evaluation(evaluation, BASE + 1, 0);
    end();
}
END_TEST

/* One who came while the version that ends an epoch was being saved is asked for it behind its next push. */
START_TEST(its_own_version_is_evaluated_behind_a_push)
{
    open_stage(arrangements[_i].transport, arrangements[_i].servers, "all", arrangements[_i].device);
    begin();
    expect_push(STEP, BASE);
    expect_evaluation(ask_to_evaluate(BASE, 1), BASE, 1);
    answer_all(BASE + 1, STEP + 1, 0);
    expect_push(STEP + 1, BASE + 1);
    answer_all(BASE + 2, STEP + 2, PULL_LAST);
    end();
}
END_TEST

/* ---- ends ---- */

START_TEST(a_loss_that_is_nan_is_the_last_word)
{
    char expected[64];
    open_stage("shared", 2, "all", "cpu");
    struct parameter *weight = params_find(stage.model.params, "layer2.0.conv1.weight");
    ((float *)weight->tensor.data)[5] = NAN;
    begin();
    TURN_UNTIL(has_reported(CONTROL_FAILED));
    ck_assert_int_eq(stage.message.body.failed.status, STATUS_INTERNAL);
    const char *text = stage.message.body.failed.text;
    snprintf(expected, sizeof expected, "trainer %d, step %d: the loss is ", 2 + NUMBER, STEP);
    ck_assert_msg(strstr(text, expected) != NULL, "%s", text);
    ck_assert_msg(strstr(text, "the parameter layer2.0.conv1.weight") != NULL, "%s", text);
    expect_exit(70);
    ck_assert_ptr_null(stage.server[0].push);
    close_stage();
}
END_TEST

START_TEST(it_leaves_when_the_job_hurries)
{
    open_stage("shared", 1, "all", "cpu");
    begin();
    expect_push(STEP, BASE);
    tell(CONTROL_HURRY, NULL, 0);
    end();
}
END_TEST

START_TEST(servers_that_answer_two_versions_are_refused)
{
    open_stage("shared", 2, "all", "cpu");
    begin();
    expect_push(STEP, BASE);
    write_version(BASE + 1);
    answer(0, BASE + 1, STEP + 1, 0);
    answer(1, BASE, STEP + 1, 0);
    TURN_UNTIL(has_reported(CONTROL_FAILED));
    ck_assert_msg(strstr(stage.message.body.failed.text, "one version") != NULL, "%s",
                  stage.message.body.failed.text);
    expect_exit(70);
    close_stage();
}
END_TEST

START_TEST(a_place_beyond_the_segment_is_refused)
{
    open_stage("shared", 1, "all", "cpu");
    begin();
    expect_push(STEP, BASE);
    struct rpc_message value = model_message(0, BASE + 1, STEP + 1, 0);
    value.args[MODEL_OFFSET] = 2 * stage.image_bytes;
    rpc_reply(stage.server[0].push, &value);
    TURN_UNTIL(has_reported(CONTROL_FAILED));
    ck_assert_msg(strstr(stage.message.body.failed.text, "server 0 says that version 5 lies at") != NULL,
                  "%s", stage.message.body.failed.text);
    expect_exit(70);
    close_stage();
}
END_TEST

START_TEST(a_server_that_dies_ends_it)
{
    open_stage("shared", 2, "all", "cpu");
    begin();
    expect_push(STEP, BASE);
    rpc_free(stage.server[1].rpc, "an accident", 200);
    stage.server[1].rpc = NULL;
    stage.servers = 1; // to be turned
    TURN_UNTIL(has_reported(CONTROL_FAILED));
    stage.servers = 2;
    ck_assert_int_eq(stage.message.body.failed.status, STATUS_PEER_DIED);
    kill(stage.trainer, SIGKILL);
    waitpid(stage.trainer, NULL, 0);
    close_stage();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trainer");
    TCase *steps = tcase_create("steps");
    tcase_add_loop_test(steps, contributions_are_the_tapes_bit_for_bit, 0, ARRANGEMENTS);
    tcase_add_test(steps, a_late_one_goes_on_from_the_newest);
    tcase_add_test(steps, after_the_last_it_waits_to_be_told);
    tcase_add_loop_test(steps, a_step_that_one_server_lacks_is_made_again_for_it, 0, 3);
    tcase_set_timeout(steps, 120);
    suite_add_tcase(suite, steps);
    TCase *evaluations = tcase_create("evaluations");
    tcase_add_loop_test(evaluations, the_version_that_comes_next_is_evaluated_first, 0, ARRANGEMENTS);
    tcase_add_loop_test(evaluations, it_evaluates_while_its_push_is_held, 0, 3);
    tcase_add_loop_test(evaluations, a_trainer_whose_push_is_not_needed_evaluates, 0, 2);
    tcase_add_loop_test(evaluations, its_own_version_is_evaluated_behind_a_push, 1, 3);
    tcase_set_timeout(evaluations, 120);
    suite_add_tcase(suite, evaluations);
    TCase *ends = tcase_create("ends");
    tcase_add_test(ends, a_loss_that_is_nan_is_the_last_word);
    tcase_add_test(ends, it_leaves_when_the_job_hurries);
    tcase_add_test(ends, servers_that_answer_two_versions_are_refused);
    tcase_add_test(ends, a_place_beyond_the_segment_is_refused);
    tcase_add_test(ends, a_server_that_dies_ends_it);
    tcase_set_timeout(ends, 120);
    suite_add_tcase(suite, ends);
    return suite_run(suite);
}
