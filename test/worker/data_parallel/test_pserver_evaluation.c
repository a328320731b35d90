/* Evaluations by the trainers, and the ends of epochs. The servers are real processes; this test plays the
 * trainers and the supervisor. */
#include "test/worker/data_parallel/pserver_trainers.h"
#include "test/workplace.h"

enum { TRAIN = 8, HELD_OUT = 5, SIDE = 8 }; /* 2 updates an epoch of 2 trainers with batches of 2 */

static const struct dataset_info info = {.train = TRAIN, .evaluation = HELD_OUT};

static const char *const arrangements[][2] = {
    {"/transport=shared", "/server/count=1"},
    {"/transport=inline", "/server/count=2"},
};

static void write_idx(const char *name, uint32_t count, bool images)
{
    char path[128];
    uint8_t pixels[SIDE * SIDE] = {0};
    const uint32_t head[] = {images ? 0x803 : 0x801, count, SIDE, SIDE};
    snprintf(path, sizeof path, "%s/%s", ps.folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < (images ? 4 : 2); i++) {
        const uint8_t bytes[] = {(uint8_t)(head[i] >> 24), (uint8_t)(head[i] >> 16), (uint8_t)(head[i] >> 8),
                                 (uint8_t)head[i]};
        fwrite(bytes, sizeof bytes, 1, file);
    }
    for (uint32_t i = 0; i < count; i++) {
        pixels[0] = (uint8_t)(i % 3);
        fwrite(pixels, images ? sizeof pixels : 1, 1, file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* A job on files: 2 updates an epoch, 2 epochs, each evaluated. */
static void set_data(void)
{
    static char path[128];
    write_idx("train-images-idx3-ubyte", TRAIN, true);
    write_idx("train-labels-idx1-ubyte", TRAIN, false);
    write_idx("t10k-images-idx3-ubyte", HELD_OUT, true);
    write_idx("t10k-labels-idx1-ubyte", HELD_OUT, false);
    snprintf(path, sizeof path, "/data={\"kind\":\"idx\",\"size\":32,\"path\":\"%s\"}", ps.folder);
    ps_set(path);
    ps_set("/evaluation/every=1");
    ps_set("/stop={\"epochs\":2}");
}

static void answer_evaluation(uint32_t trainer, double loss, uint64_t correct, uint64_t samples)
{
    struct rpc_message answer = {.args = {[EVALUATED_CORRECT] = correct, [EVALUATED_SAMPLES] = samples}};
    memcpy(&answer.args[EVALUATED_LOSS], &loss, sizeof loss);
    rpc_reply(ps.trainer[trainer].evaluate, &answer);
    ps.trainer[trainer].evaluate = NULL;
}

/* The question must have come, before the version that it is about was given. */
static void expect_question(uint32_t trainer, uint64_t version)
{
    char before[64];
    const uint64_t *args = ps.trainer[trainer].evaluate_args;
    PS_UNTIL(ps.trainer[trainer].evaluate != NULL);
    snprintf(before, sizeof before, "after %llu", (unsigned long long)version - 1);
    ck_assert_str_eq(ps.trainer[trainer].evaluated, before);
    ck_assert_uint_eq(args[EVALUATE_VERSION], version);
    ck_assert_uint_eq(args[EVALUATE_SHARE], trainer);
    ck_assert_uint_eq(args[EVALUATE_SHARES], 2);
    ck_assert(ps_shared() ? args[EVALUATE_OFFSET] % ps.bytes == 0
                          : args[EVALUATE_OFFSET] == PARAMETER_SERVER_NOWHERE);
}

/* The job's first epoch, up to the question that both trainers get at its end. */
static void play_first_epoch(const char *const arrangement[2])
{
    set_data();
    ps_set(arrangement[0]);
    ps_set(arrangement[1]);
    ps_start(&info);
    ps_round();
    ps_push_all();
    PS_UNTIL(ps_answered(0) && ps_answered(1));
    expect_question(0, 2);
    expect_question(1, 2);
    ps_pull_all(0);
}

START_TEST(an_epoch_is_evaluated_by_its_trainers)
{
    play_first_epoch(arrangements[_i]);
    answer_evaluation(1, 0.25, 1, 3);
    ps_push_all(); /* the next round is full before the evaluation is over, and waits */
    ps_turns(20);
    ck_assert_str_eq(ps.events, "U1 U2 ");
    answer_evaluation(0, 1.5, 2, 2);
    ps_pull_all(0);
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 U3 ") == 0);
    ck_assert_uint_eq(ps.epoch.update, 2);
    ck_assert(ps.epoch.loss == (ps.updates[1].loss + ps.updates[2].loss) / 2);
    ck_assert_uint_eq(ps.epoch.evaluated, 5);
    ck_assert_uint_eq(ps.epoch.correct, 3);
    ck_assert(ps.epoch.evaluation_loss == (1.5 + 0.25) / 5);
    ps_push_all();
    PS_UNTIL(ps_answered(0) && ps_answered(1));
    ps_pull_all(PULL_LAST);
    expect_question(0, 4);
    expect_question(1, 4);
    ps_turns(10);
    ck_assert(!ps.finished);
    answer_evaluation(0, 0, 0, 2);
    answer_evaluation(1, 0, 0, 3);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U1 U2 E1 U3 U4 E2 F0 ");
    ck_assert(ps.epoch.loss == (ps.updates[3].loss + ps.updates[4].loss) / 2);
    ps_end(0);
}
END_TEST

static double number_in_manifest(const char *checkpoint, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "%s/manifest.json", checkpoint);
    char *text = file_read(ps_checkpoint(name)), *at = strstr(text, key);
    ck_assert_msg(at != NULL, "no %s in: %s", key, text);
    const double number = strtod(at + strlen(key), NULL);
    free(text);
    return number;
}

/* A run that resumes there tells the epoch again: its losses must be in the checkpoint. */
START_TEST(a_job_that_is_stopped_behind_an_epoch_saves_the_epochs_losses)
{
    play_first_epoch(arrangements[_i]);
    answer_evaluation(0, 1.5, 2, 2);
    answer_evaluation(1, 0.25, 1, 3);
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 ") == 0);
    ps_order(CONTROL_DRAIN);
    PS_UNTIL(ps.finished);
    ck_assert(number_in_manifest("00000002", "\"epoch_loss\": ") == ps.updates[1].loss + ps.updates[2].loss);
    ps_end(0);
}
END_TEST

/* The version that is evaluated is saved afterwards, with its score, though the next round waits already. */
START_TEST(a_version_that_is_the_best_so_far_is_saved)
{
    set_data();
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_set("/checkpoint={\"every\":null,\"best\":true}");
    ps_start(&info);
    ps_round();
    ps_push_all();
    PS_UNTIL(ps_answered(0) && ps_answered(1));
    expect_question(0, 2);
    expect_question(1, 2);
    ps_pull_all(0);
    ps_push_all();
    answer_evaluation(1, 0.25, 1, 3);
    answer_evaluation(0, 1.5, 2, 2);
    ps_pull_all(0);
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 U3 ") == 0);
    PS_UNTIL(ps_has_checkpoint("00000002"));
    ck_assert(number_in_manifest("best", "\"update\": ") == 2);
    ck_assert(number_in_manifest("best", "\"accuracy\": ") == 0.6);
    ck_assert(number_in_manifest("best", "\"epoch_loss\": ") == ps.updates[1].loss + ps.updates[2].loss);
    ps_push_all();
    PS_UNTIL(ps_answered(0) && ps_answered(1));
    ps_pull_all(PULL_LAST);
    expect_question(0, 4);
    expect_question(1, 4);
    answer_evaluation(0, 0, 0, 2);
    answer_evaluation(1, 0, 0, 3);
    PS_UNTIL(ps.finished);
    ck_assert(number_in_manifest("00000004", "\"accuracy\": ") == 0);
    ck_assert(number_in_manifest("best", "\"update\": ") == 2);
    ps_end(0);
}
END_TEST

START_TEST(an_epoch_that_is_not_evaluated_is_told_all_the_same)
{
    set_data();
    ps_set("/evaluation/every=null");
    ps_start(&info);
    ps_round();
    ps_round();
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 ") == 0);
    ck_assert_uint_eq(ps.epoch.evaluated, 0);
}
END_TEST

START_TEST(an_evaluation_is_repeated_by_a_resumed_run)
{
    double loss;
    set_data();
    ps_set("/checkpoint/every=2");
    ps_start(&info);
    ps_round();
    ps_push_all();
    ps_pull_all(0);
    loss = (ps.updates[1].loss + ps.updates[2].loss) / 2;
    ps_resume("00000002");
    PS_UNTIL(ps.trainer[0].evaluate != NULL && ps.trainer[1].evaluate != NULL);
    ps_push_all();
    ps_turns(20);
    ck_assert_str_eq(ps.events, "");
    answer_evaluation(0, 1, 1, 2);
    answer_evaluation(1, 1, 1, 3);
    ps_pull_all(0);
    PS_UNTIL(strcmp(ps.events, "E1 U3 ") == 0);
    ck_assert(ps.epoch.loss == loss);
}
END_TEST

START_TEST(a_dead_trainers_part_is_its_successors)
{
    uint64_t args[WIRE_ARGS] = {0};
    struct control_died died = {.worker = 2, .text = "trainer 2 was killed"};
    set_data();
    ps_start(&info);
    ps_round();
    ps_push_all();
    ps_pull_all(0);
    PS_UNTIL(ps.trainer[0].evaluate != NULL && ps.trainer[1].evaluate != NULL);
    answer_evaluation(0, 1, 1, 2);
    died.incarnation = ps.trainer[1].incarnation;
    control_send(ps.control[0], CONTROL_DIED, &died, sizeof died);
    ps_taken(0);
    ps.trainer[1].evaluate = NULL;
    ps_join(1);
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ck_assert_ptr_nonnull(ps.trainer[1].evaluate); /* the question came before the model */
    answer_evaluation(1, 1, 1, 3);
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 ") == 0);
}
END_TEST

START_TEST(who_hurries_gives_the_evaluation_up)
{
    set_data();
    ps_start(&info);
    ps_round();
    ps_push_all();
    ps_pull_all(0);
    PS_UNTIL(ps.trainer[0].evaluate != NULL);
    ps_push(0, 2, 2);
    ps_taken(0);
    ps_order(CONTROL_HURRY);
    PS_UNTIL(ps.finished && ps_answered(0));
    ck_assert_int_eq(future_status(ps.trainer[0].calls[0]), STATUS_SHUTDOWN);
    ck_assert_str_eq(ps.events, "U1 U2 F2 ");
    ps_end(0);
    ck_assert(!ps_has_checkpoint("00000002"));
}
END_TEST

static const struct {
    double loss;
    uint64_t correct, samples;
} bad_sums[] = {{1, 1, 4}, {1, 3, 2}};

START_TEST(sums_that_cannot_be_cost_their_sender_the_session)
{
    uint64_t args[WIRE_ARGS] = {0};
    set_data();
    ps_start(&info);
    ps_round();
    ps_round();
    PS_UNTIL(ps.trainer[0].evaluate != NULL && ps.trainer[1].evaluate != NULL);
    answer_evaluation(0, 1, 1, 2);
    answer_evaluation(1, bad_sums[_i].loss, bad_sums[_i].correct, bad_sums[_i].samples);
    PS_UNTIL(!ps_has_session(1));
    ck_assert_str_eq(ps.events, "U1 U2 ");
    ps_join(1);
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ck_assert_ptr_nonnull(ps.trainer[1].evaluate); /* the question came before the model */
    answer_evaluation(1, 1, 1, 3);
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 ") == 0);
}
END_TEST

START_TEST(a_trainer_that_cannot_evaluate_ends_the_job)
{
    set_data();
    ps_start(&info);
    ps_round();
    ps_round();
    PS_UNTIL(ps.trainer[1].evaluate != NULL);
    rpc_fail(ps.trainer[1].evaluate, STATUS_CORRUPT, "no image can be read");
    PS_UNTIL(ps.failed);
    ck_assert_str_eq(ps.failure.text, "trainer 2 cannot evaluate: no image can be read");
}
END_TEST

/* ---- data of the trainers' class: they say its size ---- */

/* The servers of a job like set_data's, from a checkpoint or from the beginning (""). */
static void serve_class(const char *checkpoint)
{
    if (checkpoint[0] == '\0') {
        ps_set("/data/kind=class");
        ps_set("/trainers/class=module:Class");
        ps_set("/transport=inline");
        ps_set("/stop={\"epochs\":2}");
        ps_open(&info);
        ps_begin_model();
    }
    ps_clear_reports();
    ps_serve(checkpoint);
}

/* A trainer's size of the data, to each server; with an error the last answer's. */
static enum status describe(uint32_t trainer, uint64_t train, uint64_t held_out)
{
    const struct rpc_message message = {.args = {[DATA_TRAIN] = train, [DATA_HELD_OUT] = held_out}};
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < ps.servers && status == STATUS_OK; i++)
        status = ps_call(trainer, i, METHOD_DESCRIBE_DATA, &message, NULL);
    return status;
}

static void join_class(uint32_t trainer)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_join(trainer);
    PS_OK(describe(trainer, TRAIN, HELD_OUT));
    PS_OK(ps_get(trainer, PARAMETER_SERVER_NEWEST, args));
}

static void expect_refusal(enum status status, const char *text)
{
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_str_eq(ps.error.text, text);
}

static void play_class_epoch(void)
{
    join_class(0);
    join_class(1);
    ps_round();
    ps_push_all();
    PS_UNTIL(ps_answered(0) && ps_answered(1));
    expect_question(0, 2);
    expect_question(1, 2);
    ps_pull_all(0);
}

START_TEST(the_epochs_of_a_class_are_told_and_evaluated)
{
    ps_set(_i == 0 ? "/server/count=1" : "/server/count=2");
    ps_set("/checkpoint/every=2");
    serve_class("");
    play_class_epoch();
    answer_evaluation(0, 1.5, 2, 2);
    answer_evaluation(1, 0.25, 1, 3);
    PS_UNTIL(strcmp(ps.events, "U1 U2 E1 ") == 0);
    ck_assert_uint_eq(ps.epoch.evaluated, 5);
    ck_assert(number_in_manifest("00000002", "\"train\": ") == TRAIN);
    ck_assert(number_in_manifest("00000002", "\"held_out\": ") == HELD_OUT);
    ps_round();
    ps_push_all();
    PS_UNTIL(ps_answered(0) && ps_answered(1));
    ps_pull_all(PULL_LAST);
    PS_UNTIL(ps.trainer[0].evaluate != NULL && ps.trainer[1].evaluate != NULL);
    answer_evaluation(0, 0, 0, 2);
    answer_evaluation(1, 0, 0, 3);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U1 U2 E1 U3 U4 E2 F0 ");
    ps_end(0);
}
END_TEST

START_TEST(a_resumed_run_has_its_checkpoints_size)
{
    char checkpoint[256];
    uint64_t args[WIRE_ARGS] = {0};
    ps_set("/checkpoint/every=2");
    serve_class("");
    play_class_epoch();
    PS_UNTIL(ps_has_checkpoint("00000002"));
    snprintf(checkpoint, sizeof checkpoint, "%s", ps_checkpoint("00000002"));
    ps_end(0);
    serve_class(checkpoint);
    ps_join(0);
    expect_refusal(
        describe(0, TRAIN, HELD_OUT + 1),
        "trainer 1 has 8 training and 6 held-out samples: expected 8 and 5, as the checkpoint has");
    PS_OK(describe(0, TRAIN, HELD_OUT));
    PS_OK(ps_get(0, PARAMETER_SERVER_NEWEST, args));
    join_class(1);
    PS_UNTIL(ps.trainer[0].evaluate != NULL && ps.trainer[1].evaluate != NULL);
    answer_evaluation(0, 1, 1, 2);
    answer_evaluation(1, 1, 1, 3);
    ps_push_all();
    ps_pull_all(0);
    PS_UNTIL(strcmp(ps.events, "E1 U3 ") == 0);
}
END_TEST

START_TEST(another_size_is_refused_and_both_are_named)
{
    uint64_t args[WIRE_ARGS] = {0};
    serve_class("");
    ps_join(0);
    expect_refusal(describe(0, 3, 0), "3 training samples: one step of 2 trainers with batches of 2 takes 4");
    PS_OK(describe(0, TRAIN, HELD_OUT));
    ps_join(1);
    expect_refusal(describe(1, TRAIN + 1, HELD_OUT),
                   "trainer 2 has 9 training and 5 held-out samples: expected 8 and 5, as trainer 1 has");
    PS_OK(describe(1, TRAIN, HELD_OUT));
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ps_join(1); /* a successor says it again */
    expect_refusal(ps_get(1, PARAMETER_SERVER_NEWEST, args),
                   "trainer 2 asks for the model: expected its data's size first");
    PS_UNTIL(!ps_has_session(1));
}
END_TEST

START_TEST(a_size_that_is_out_of_place_costs_the_session)
{
    serve_class("");
    join_class(0);
    expect_refusal(describe(0, TRAIN, HELD_OUT),
                   "trainer 1 says its data's size, 8 and 5: expected once, where /data/kind is \"class\", "
                   "numbers of at most 4294967295");
    PS_UNTIL(!ps_has_session(0));
    ps_join(1);
    ck_assert_int_eq(describe(1, UINT64_C(1) << 32, 0), STATUS_INVALID);
    PS_UNTIL(!ps_has_session(1));
}
END_TEST

START_TEST(files_have_their_own_size)
{
    set_data();
    ps_start(&info);
    ck_assert_int_eq(describe(0, TRAIN, HELD_OUT), STATUS_INVALID);
    PS_UNTIL(!ps_has_session(0));
}
END_TEST

/* Nothing is known of the data yet. */
START_TEST(a_job_is_stopped_before_a_trainer_says_its_size)
{
    serve_class("");
    ps_order(CONTROL_DRAIN);
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "F2 ");
    ps_end(0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pserver_evaluation");
    TCase *evaluation = ps_case(suite, "evaluation");
    tcase_add_loop_test(evaluation, an_epoch_is_evaluated_by_its_trainers, 0, 2);
    tcase_add_loop_test(evaluation, a_job_that_is_stopped_behind_an_epoch_saves_the_epochs_losses, 0, 2);
    tcase_add_loop_test(evaluation, a_version_that_is_the_best_so_far_is_saved, 0, 2);
    tcase_add_test(evaluation, an_epoch_that_is_not_evaluated_is_told_all_the_same);
    tcase_add_test(evaluation, an_evaluation_is_repeated_by_a_resumed_run);
    tcase_add_test(evaluation, a_dead_trainers_part_is_its_successors);
    tcase_add_test(evaluation, who_hurries_gives_the_evaluation_up);
    tcase_add_test(evaluation, a_trainer_that_cannot_evaluate_ends_the_job);
    tcase_add_loop_test(evaluation, sums_that_cannot_be_cost_their_sender_the_session, 0,
                        sizeof bad_sums / sizeof bad_sums[0]);
    TCase *class = ps_case(suite, "a class's data");
    tcase_add_loop_test(class, the_epochs_of_a_class_are_told_and_evaluated, 0, 2);
    tcase_add_test(class, a_resumed_run_has_its_checkpoints_size);
    tcase_add_test(class, another_size_is_refused_and_both_are_named);
    tcase_add_test(class, a_size_that_is_out_of_place_costs_the_session);
    tcase_add_test(class, files_have_their_own_size);
    tcase_add_test(class, a_job_is_stopped_before_a_trainer_says_its_size);
    return suite_run(suite);
}
