/* Requests that owners refuse: impossible optimizers, references to other objects, wrong numbers of values,
 * and messages that no caller of ours sends. None of them changes anything on the owner. */
#include "test/worker/autograd/optimizer_stage.h"
#include "test/workplace.h"

static const uint16_t one_participant[] = {TRAINER}, two_participants[] = {0, TRAINER};
static const unsigned owners[] = {0, 1};
static const struct dist_optimizer_config good = {
    .settings = {OPTIMIZER_SGD, .sgd = {.lr = 0.1}}, .participants = one_participant, .participant_count = 1};
static struct model model;
static struct dist_optimizer *optimizer;

static void open_model(uint32_t slots)
{
    stage_open();
    model_make(&model, TRAINER, owners, 2, slots);
}

static void close_model(void)
{
    model_release(&model);
    stage_close_empty();
}

static enum status make(const struct dist_optimizer_config *config, struct rref *const *parameters,
                        uint32_t count)
{
    stage.error = (struct error){0};
    return dist_optimizer_new(&optimizer, dist_of(&model), config, parameters, count, &stage.error);
}

/* After all that was refused an optimizer can be made, and steps. */
static void expect_works(void)
{
    struct dist_step step = {.lr = 0.5, .max_norm = 1};
    STAGE_OK(make(&good, model.parameters, model.parameter_count));
    struct dist_context *context = model_backward(&model, 1, 2);
    STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
    end_context(context);
    dist_optimizer_free(optimizer);
}

START_TEST(optimizers_that_cannot_be)
{
    struct dist_optimizer_config config = good;
    open_model(0);
    STAGE_FAILS(make(&good, model.parameters, 0), STATUS_INVALID, "0 parameters, expected 1..256");
    STAGE_FAILS(make(&good, (struct rref *[]){model.parameters[0], model.parts[0]}, 2), STATUS_INVALID,
                "reference 1 of an optimizer's 2 is not to a parameter");
    STAGE_FAILS(
        make(&good, (struct rref *[]){model.parameters[3], model.parameters[0], model.parameters[3]}, 3),
        STATUS_INVALID, "parameter part1.bias is given twice");
    config.participant_count = 0;
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_INVALID, "0 participants");
    config.participants = (const uint16_t[]){3, 3};
    config.participant_count = 2;
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_INVALID, "worker 3 after 3");
    config.participants = (const uint16_t[]){3, 70};
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_INVALID, "participant 70");
    config = good;
    config.settings.sgd.lr = NAN;
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_INVALID, "sgd: expected a finite lr > 0, got nan");
    config.settings.kind = OPTIMIZER_ADAM;
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_INVALID, "adam");
    expect_works();
    close_model();
}
END_TEST

START_TEST(no_parameter_has_two_optimizers)
{
    struct dist_optimizer *first;
    struct rref *again[DIST_PARAMETERS_MAX];
    uint32_t count;
    open_model(0);
    STAGE_OK(make(&good, &model.parameters[1], 1));
    first = optimizer;
    STAGE_FAILS(make(&good, model.parameters, 4), STATUS_INVALID,
                "parameter part0.bias has an optimizer already");
    STAGE_OK(dist_parameters(dist_of(&model), model.parts[0], again, &count, &stage.error));
    ck_assert_uint_eq(count, 2);
    STAGE_FAILS(make(&good, &again[1], 1), STATUS_INVALID, "part0.bias has an optimizer already");
    STAGE_OK(make(&good, &again[0], 1));
    dist_optimizer_free(optimizer);
    dist_optimizer_free(first);
    await_optimizers(0);
    STAGE_OK(make(&good, &again[1], 1));
    dist_optimizer_free(optimizer);
    rref_release(again[0]);
    rref_release(again[1]);
    await_optimizers(0);
    expect_works();
    close_model();
}
END_TEST

START_TEST(async_needs_versions)
{
    struct dist_optimizer_config config = good;
    config.async = true;
    open_model(0);
    STAGE_FAILS(
        make(&config, model.parameters, 4), STATUS_INVALID,
        "parameter part0.weight: a round that is async with 1 participants needs 2 versions of it, its "
        "object has 1");
    close_model();
    open_model(2);
    STAGE_OK(make(&config, model.parameters, 4));
    dist_optimizer_free(optimizer);
    await_optimizers(0);
    config.participants = two_participants;
    config.participant_count = 2;
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_INVALID,
                "needs 3 versions of it, its object has 2");
    close_model();
}
END_TEST

/* A backend like this one but with its memory elsewhere. */
START_TEST(async_is_not_available_where_memory_is_not_the_hosts)
{
    struct dist_optimizer_config config = good;
    struct backend_ops far;
    config.async = true;
    open_model(0);
    const struct backend_ops *near = stage.backend->ops;
    far = *near;
    far.host = false;
    stage.backend->ops = &far;
    STAGE_FAILS(make(&config, model.parameters, 4), STATUS_UNAVAILABLE, "parameter part0.weight");
    stage.backend->ops = near;
    close_model();
}
END_TEST

START_TEST(objects_without_parameters_and_what_is_no_parameter)
{
    struct rref *hollow, *some[DIST_PARAMETERS_MAX];
    uint32_t count;
    float values[PART_VALUES];
    open_model(0);
    STAGE_OK(rpc_remote(stage.sides[TRAINER].rrefs, 0, "hollow", NULL, &hollow, &stage.error));
    STAGE_FAILS(dist_parameters(dist_of(&model), hollow, some, &count, &stage.error), STATUS_BUSY,
                "not ready");
    await_ready(hollow);
    char words[96]; // an object is named by its owner's counter alone
    snprintf(words, sizeof words, "object %llu of class hollow has 0 trained parameters",
             (unsigned long long)rref_object(hollow));
    STAGE_FAILS(dist_parameters(dist_of(&model), hollow, some, &count, &stage.error), STATUS_INVALID, words);
    STAGE_FAILS(dist_parameter_get(dist_of(&model), hollow, DIST_VALUES, values, 1, &stage.error),
                STATUS_INVALID, "expected a reference to a parameter of worker 0");
    rref_release(hollow);
    close_model();
}
END_TEST

START_TEST(wrong_numbers_of_values)
{
    float values[PART_VALUES] = {0};
    open_model(0);
    struct rref *weight = model.parameters[0];
    STAGE_FAILS(dist_parameter_get(dist_of(&model), weight, DIST_VALUES, values, 15, &stage.error),
                STATUS_INVALID, "the parameter has 16 values, room for 15");
    STAGE_FAILS(dist_parameter_get(dist_of(&model), weight, DIST_VALUES, values, 17, &stage.error),
                STATUS_INVALID, "16 values, room for 17");
    STAGE_FAILS(dist_parameter_set(weight, DIST_VALUES, values, 17, &stage.error), STATUS_INVALID,
                "parameter part0.weight has 16 values, got 17");
    STAGE_FAILS(dist_parameter_set(weight, DIST_VALUES, values, 0, &stage.error), STATUS_INVALID, "got 0");
    STAGE_OK(make(&good, model.parameters, 4));
    STAGE_FAILS(dist_parameter_get(dist_of(&model), weight, DIST_MOMENT_FIRST, values, 16, &stage.error),
                STATUS_INVALID, "parameter part0.weight has no first moment here");
    dist_optimizer_free(optimizer);
    await_optimizers(0);
    struct dist_optimizer_config config = good;
    config.settings.sgd.momentum = 0.5;
    STAGE_OK(make(&config, model.parameters, 4));
    STAGE_OK(
        dist_parameter_get(dist_of(&model), model.parameters[3], DIST_MOMENT_FIRST, values, 4, &stage.error));
    for (unsigned i = 0; i < WIDTH; i++)
        ck_assert_float_eq(values[i], 0);
    STAGE_FAILS(
        dist_parameter_get(dist_of(&model), model.parameters[3], DIST_MOMENT_SECOND, values, 4, &stage.error),
        STATUS_INVALID, "has no second moment here");
    STAGE_FAILS(dist_parameter_set(model.parameters[3], DIST_MOMENT_FIRST, values, 5, &stage.error),
                STATUS_INVALID, "parameter part1.bias has 4 values, got 5");
    dist_optimizer_free(optimizer);
    close_model();
}
END_TEST

START_TEST(steps_with_numbers_out_of_range)
{
    struct dist_step step = {.lr = 0};
    open_model(0);
    STAGE_OK(make(&good, model.parameters, 4));
    struct dist_context *context = model_backward(&model, 1, 2);
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INVALID,
                "lr > 0, got 0");
    step = (struct dist_step){.lr = 1, .max_norm = INFINITY};
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INVALID, "max_norm");
    step.max_norm = -1;
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INVALID,
                "max_norm >= 0");
    step.max_norm = 0;
    STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
    end_context(context);
    dist_optimizer_free(optimizer);
    close_model();
}
END_TEST

START_TEST(who_has_no_part_cannot_step)
{
    struct dist_optimizer_config config = good;
    struct dist_step step = {.lr = 0.5};
    config.participants = (const uint16_t[]){OTHER_TRAINER};
    open_model(0);
    STAGE_OK(make(&config, model.parameters, 4));
    struct dist_context *context = model_backward(&model, 1, 2);
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INVALID,
                "worker 3 takes no part in this optimizer");
    end_context(context);
    dist_optimizer_free(optimizer);
    close_model();
}
END_TEST

/* Two optimizers of two owners each. */
START_TEST(what_is_joined_is_one_optimizer)
{
    struct dist_optimizer *first, *joined;
    struct dist_step step = {.lr = 0.5, .max_norm = 1};
    struct dist_optimizer_config config = good;
    struct side *side;
    config.participants = (const uint16_t[]){OTHER_TRAINER};
    open_model(0);
    side = &stage.sides[OTHER_TRAINER];
    STAGE_OK(make(&config, (struct rref *[]){model.parameters[0], model.parameters[2]}, 2));
    first = optimizer;
    STAGE_OK(make(&config, (struct rref *[]){model.parameters[1], model.parameters[3]}, 2));
    STAGE_OK(dist_optimizer_share(first, OTHER_TRAINER, 1, &stage.error));
    STAGE_OK(dist_optimizer_share(optimizer, OTHER_TRAINER, 2, &stage.error));
    ck_assert_uint_eq(side->taken_count, 4);
    struct rref *const *got = side->taken;
    STAGE_FAILS(dist_optimizer_join(&joined, side->dist, got, 0, &stage.error), STATUS_INVALID, "got 0");
    STAGE_FAILS(dist_optimizer_join(&joined, dist_of(&model), model.parameters, 2, &stage.error),
                STATUS_INVALID, "references to optimizers");
    struct dist_context *context;
    STAGE_OK(dist_context_new(&context, side->dist, TAPE_TRAIN, side->tape, &stage.error));
    const unsigned second =
        rref_owner(got[1]) == rref_owner(model.parameters[2]); /* they come in any order */
    STAGE_OK(dist_optimizer_join(&joined, side->dist, &got[second], 1, &stage.error));
    STAGE_FAILS(dist_optimizer_step(joined, context, &step, &stage.error), STATUS_INVALID,
                "1 references to optimizers are not all of one");
    dist_optimizer_free(joined);
    STAGE_OK(dist_optimizer_join(&joined, side->dist, (struct rref *[]){got[3], got[2]}, 2, &stage.error));
    STAGE_OK(dist_optimizer_step(joined, context, &step, &stage.error));
    ck_assert_double_eq(step.norm, 0);
    dist_context_free(context);
    dist_optimizer_free(joined);
    for (unsigned i = 0; i < 4; i++)
        rref_release(side->taken[i]);
    dist_optimizer_free(first);
    dist_optimizer_free(optimizer);
    close_model();
}
END_TEST

/* ---- messages that no caller of ours sends ---- */

static void expect_hostile(struct rref *object, uint32_t function, const struct rpc_message *message,
                           const char *words)
{
    struct future *future;
    STAGE_OK(rref_call(object, function, message, MONOTIME_NEVER, &future, &stage.error));
    cluster_expect_failure(&stage.cluster, future, STATUS_INVALID, words);
}

/* A description that is good but for what the caller changes in it. */
struct description {
    struct optimizer_words words;
    uint64_t numbers[2];
    uint32_t indices[2], participants[1], count;
};

static struct description description_of(uint32_t count)
{
    return (struct description){
        .words = {.lr = 0.1},
        .numbers = {rref_object(model.parameters[0]), rref_object(model.parameters[1])},
        .indices = {0, 1},
        .participants = {TRAINER},
        .count = count};
}

static void refuse(const struct description *description, const char *words)
{
    struct rpc_message message = {0};
    message_add(&message, WIRE_U64, &description->words, OPTIMIZER_WORDS);
    message_add(&message, WIRE_U64, description->numbers, description->count);
    message_add(&message, WIRE_U32, description->indices, 2);
    message_add(&message, WIRE_U32, description->participants, 1);
    expect_hostile(model.parameters[0], PARAMETER_OPTIMIZER, &message, words);
}

START_TEST(descriptions_that_are_none)
{
    struct description bad;
    open_model(0);
    expect_hostile(model.parameters[0], PARAMETER_OPTIMIZER, &(struct rpc_message){0}, "no description");
    bad = description_of(1);
    refuse(&bad, "no description");
    bad = description_of(2);
    bad.words.kind = 2;
    refuse(&bad, "no description");
    bad = description_of(2);
    bad.words.async = 2;
    refuse(&bad, "no description");
    bad = description_of(2);
    bad.participants[0] = UINT32_MAX;
    refuse(&bad, "participant 4294967295");
    bad = description_of(2);
    bad.numbers[1] = rref_object(model.parts[0]);
    char words[64];
    snprintf(words, sizeof words, "object %llu is of class part, expected a parameter",
             (unsigned long long)bad.numbers[1]);
    refuse(&bad, words);
    expect_works();
    close_model();
}
END_TEST

/* What is not there at all has its own status. */
START_TEST(numbers_of_others_and_of_nobody)
{
    struct future *future;
    struct rpc_message message = {0};
    struct description bad;
    open_model(0);
    bad = description_of(2);
    bad.numbers[1] += 1000;
    message_add(&message, WIRE_U64, &bad.words, OPTIMIZER_WORDS);
    message_add(&message, WIRE_U64, bad.numbers, 2);
    message_add(&message, WIRE_U32, bad.indices, 2);
    message_add(&message, WIRE_U32, bad.participants, 1);
    STAGE_OK(
        rref_call(model.parameters[0], PARAMETER_OPTIMIZER, &message, MONOTIME_NEVER, &future, &stage.error));
    cluster_expect_failure(&stage.cluster, future, STATUS_NOT_FOUND, "does not exist");
    const struct rpc_message unknown = {.args = {rref_object(model.parts[0]) + 1000}},
                             others = {.args = {rref_object(model.parts[0])}};
    STAGE_OK(rpc_call_async(stage.cluster.members[TRAINER].rpc, 0, METHOD_PARAMETERS, &unknown,
                            MONOTIME_NEVER, &future, &stage.error));
    cluster_expect_failure(&stage.cluster, future, STATUS_NOT_FOUND, "does not exist");
    STAGE_OK(rpc_call_async(stage.cluster.members[OTHER_TRAINER].rpc, 0, METHOD_PARAMETERS, &others,
                            MONOTIME_NEVER, &future, &stage.error));
    cluster_expect_failure(&stage.cluster, future, STATUS_PERMISSION, "worker 4 holds no reference");
    expect_works();
    close_model();
}
END_TEST

START_TEST(calls_of_functions_that_do_not_fit)
{
    static const uint64_t words[STEP_WORDS] = {0};
    const uint64_t context = UINT64_C(3) << 48 | 1;
    struct rref *parameter, *local;
    open_model(0);
    STAGE_OK(make(&good, model.parameters, 4));
    STAGE_OK(dist_optimizer_share(optimizer, TRAINER, 1, &stage.error));
    local = stage.sides[TRAINER].taken[0];
    parameter = model.parameters[0];
    struct rpc_message message = {.context = context};
    expect_hostile(parameter, PARAMETER_FUNCTIONS, &message, "function 3");
    expect_hostile(parameter, PARAMETER_SET, &message, "part0.weight has 16 values, got 0");
    expect_hostile(local, LOCAL_FUNCTIONS, &message, "function 3");
    expect_hostile(local, LOCAL_STEP, &message, "a step has 4 words");
    expect_hostile(local, LOCAL_NORM, &(struct rpc_message){0}, "which is not its own");
    message_add(&message, WIRE_U64, words, STEP_WORDS);
    expect_hostile(local, LOCAL_STEP, &message, "lr > 0, got 0");
    expect_hostile(parameter, PARAMETER_SET, &message, "got 0");
    message.args[VALUES_WHICH] = UINT64_MAX;
    expect_hostile(parameter, PARAMETER_GET, &message, "has no such values here");
    rref_release(local);
    rref_release(stage.sides[TRAINER].taken[1]);
    dist_optimizer_free(optimizer);
    await_optimizers(0);
    expect_works();
    close_model();
}
END_TEST

/* ---- ends ---- */

START_TEST(a_worker_ends_with_everything_alive)
{
    open_model(0);
    STAGE_OK(make(&good, model.parameters, 4));
    struct dist_context *context = model_backward(&model, 1, 2);
    ck_assert_ptr_nonnull(context);
    stage_close();
}
END_TEST

START_TEST(what_an_optimizer_keeps_outlives_the_references)
{
    struct dist_step step = {.lr = 0.5, .max_norm = 1};
    open_model(0);
    STAGE_OK(make(&good, model.parameters, 4));
    struct dist_context *context = model_backward(&model, 1, 2);
    model_release(&model);
    stage_turns(20);
    ck_assert_uint_eq(stage.parts, 2);
    STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
    end_context(context);
    dist_optimizer_free(optimizer);
    stage_close_empty();
}
END_TEST

START_TEST(a_dead_owner_is_told)
{
    struct dist_step step = {.lr = 0.5};
    float values[16];
    open_model(0);
    STAGE_OK(make(&good, model.parameters, 4));
    struct dist_context *context = model_backward(&model, 1, 2);
    stage_kill(1);
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_PEER_DIED, "");
    STAGE_FAILS(
        dist_parameter_get(dist_of(&model), model.parameters[2], DIST_VALUES, values, 16, &stage.error),
        STATUS_PEER_DIED, "");
    end_context(context);
    dist_optimizer_free(optimizer);
    close_model();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist_optimizer_refused");
    TCase *refused = tcase_create("refused");
    tcase_set_timeout(refused, 30);
    tcase_add_test(refused, optimizers_that_cannot_be);
    tcase_add_test(refused, no_parameter_has_two_optimizers);
    tcase_add_test(refused, async_needs_versions);
    tcase_add_test(refused, async_is_not_available_where_memory_is_not_the_hosts);
    tcase_add_test(refused, objects_without_parameters_and_what_is_no_parameter);
    tcase_add_test(refused, wrong_numbers_of_values);
    tcase_add_test(refused, steps_with_numbers_out_of_range);
    tcase_add_test(refused, who_has_no_part_cannot_step);
    tcase_add_test(refused, what_is_joined_is_one_optimizer);
    tcase_add_test(refused, descriptions_that_are_none);
    tcase_add_test(refused, numbers_of_others_and_of_nobody);
    tcase_add_test(refused, calls_of_functions_that_do_not_fit);
    tcase_add_test(refused, a_worker_ends_with_everything_alive);
    tcase_add_test(refused, what_an_optimizer_keeps_outlives_the_references);
    tcase_add_test(refused, a_dead_owner_is_told);
    suite_add_tcase(suite, refused);
    return suite_run(suite);
}
