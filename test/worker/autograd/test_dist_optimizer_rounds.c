/* Rounds of several participants: three workers share two parts. Requests are sent one by one, in orders that
 * the test chooses; `async` by whole steps. */
#include "test/worker/autograd/optimizer_stage.h"
#include "test/workplace.h"

enum { OWNERS = 2, SHARERS = 3, COUNT = OWNERS * PART_VALUES, TAG = 9 };

static const uint16_t sharers[SHARERS] = {2, TRAINER, OTHER_TRAINER};
static const unsigned owners[OWNERS] = {0, 1};

static struct model models[SHARERS];
static struct rref *locals[SHARERS][OWNERS];
static struct dist_optimizer *optimizer; /* of the first trainer, who made it */
static struct dist_context *contexts[SHARERS];

static void share_optimizer(unsigned sharer)
{
    struct side *side = &stage.sides[sharers[sharer]];
    const uint32_t before = side->taken_count;
    STAGE_OK(dist_optimizer_share(optimizer, sharers[sharer], TAG, &stage.error));
    ck_assert_uint_eq(side->taken_count, before + OWNERS);
    for (unsigned i = 0; i < OWNERS; i++) { // in the order in which the owners have counted it
        struct rref *local = side->taken[before + i];
        ck_assert_uint_eq(side->tags[before + i], TAG);
        ck_assert_uint_lt(rref_owner(local), OWNERS);
        locals[sharer][rref_owner(local)] = local; // owner number i is worker i
    }
}

/* Parts with that many versions; all sharers hold them, and the local optimizers. */
static void open_round(bool async, uint32_t slots)
{
    const struct dist_optimizer_config config = {.settings = {OPTIMIZER_SGD, .sgd = {.lr = 1}},
                                                 .async = async,
                                                 .participants = sharers,
                                                 .participant_count = SHARERS};
    stage_open();
    model_make(&models[1], TRAINER, owners, OWNERS, slots);
    model_share(&models[0], &models[1], sharers[0]);
    model_share(&models[2], &models[1], sharers[2]);
    STAGE_OK(dist_optimizer_new(&optimizer, dist_of(&models[1]), &config, models[1].parameters,
                                models[1].parameter_count, &stage.error));
    for (unsigned i = 0; i < SHARERS; i++)
        share_optimizer(i);
}

static void close_round(void)
{
    dist_optimizer_free(optimizer);
    for (unsigned i = 0; i < SHARERS; i++) {
        if (stage.sides[sharers[i]].rrefs == NULL)
            continue;
        for (unsigned o = 0; o < OWNERS; o++)
            rref_release(locals[i][o]);
        model_release(&models[i]);
    }
    stage_close_empty();
}

static void all_backward(void)
{
    for (unsigned i = 0; i < SHARERS; i++)
        contexts[i] = model_backward(&models[i], i, OWNERS);
}

static void end_contexts(void)
{
    for (unsigned i = 0; i < SHARERS; i++)
        if (stage.sides[sharers[i]].rrefs != NULL)
            end_context(contexts[i]);
}

/* ---- one request of one sharer to one owner ---- */

static struct future *send_words(unsigned sharer, unsigned owner, uint64_t context, uint32_t function,
                                 const struct step_words *words)
{
    struct future *future = NULL;
    struct rpc_message message = {.context = context};
    if (words != NULL)
        message_add(&message, WIRE_U64, words, STEP_WORDS);
    STAGE_OK(rref_call(locals[sharer][owner], function, &message, MONOTIME_NEVER, &future, &stage.error));
    return future;
}

static struct future *send_step(unsigned sharer, unsigned owner, double lr, bool last)
{
    const struct step_words words = {.lr = lr, .last = last};
    return send_words(sharer, owner, dist_context_id(contexts[sharer]), LOCAL_STEP, &words);
}

static struct future *send_norm(unsigned sharer, unsigned owner)
{
    return send_words(sharer, owner, dist_context_id(contexts[sharer]), LOCAL_NORM, NULL);
}

/* Its answer's first number. */
static uint64_t expect_answer(struct future *future)
{
    const enum status status = cluster_await(&stage.cluster, future);
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), future_text(future));
    const uint64_t answer = future_value(future)->args[0];
    future_release(future);
    return answer;
}

static void expect_refusal(struct future *future, enum status status, const char *words)
{
    cluster_expect_failure(&stage.cluster, future, status, words);
}

/* ---- all ---- */

/* The sum in the order of the workers' numbers, of each parameter. */
static void sum_gradients(float sum[COUNT])
{
    float each[SHARERS][COUNT];
    for (unsigned i = 0; i < SHARERS; i++)
        model_read_gradient(&models[i], contexts[i], each[i]);
    for (unsigned i = 0; i < COUNT; i++)
        sum[i] = (each[0][i] + each[1][i]) + each[2][i];
}

static void step_in_order(const unsigned order[SHARERS])
{
    float before[COUNT], after[COUNT], sum[COUNT];
    struct future *futures[SHARERS][OWNERS];
    open_round(false, 0);
    all_backward();
    model_read(&models[0], before);
    sum_gradients(sum);
    for (unsigned i = 0; i < SHARERS; i++) {
        for (unsigned o = 0; o < OWNERS; o++)
            futures[i][o] = send_step(order[i], o, 0.5, order[i] == 1);
        if (i == SHARERS - 1)
            break;
        await_handled(owners[0]);
        ck_assert(!future_done(futures[0][0]));
    }
    for (unsigned i = 0; i < SHARERS; i++)
        for (unsigned o = 0; o < OWNERS; o++)
            ck_assert_uint_eq(expect_answer(futures[i][o]), 1); // one of them said that it is the last
    model_read(&models[0], after);
    for (unsigned i = 0; i < COUNT; i++)
        before[i] -= 0.5f * sum[i];
    expect_equal(after, before, COUNT, "one step by the sum");
    end_contexts();
    close_round();
}

START_TEST(gradients_add_up_in_the_order_of_workers_whoever_comes_first)
{
    step_in_order((unsigned[]){0, 1, 2});
    step_in_order((unsigned[]){2, 0, 1});
    step_in_order((unsigned[]){1, 2, 0});
}
END_TEST

START_TEST(a_round_with_clipping_scales_the_sum)
{
    float before[COUNT], after[COUNT], sum[COUNT];
    struct future *futures[SHARERS];
    double squares = 0;
    open_round(false, 0);
    all_backward();
    model_read(&models[0], before);
    sum_gradients(sum);
    for (unsigned o = 0; o < OWNERS; o++) {
        for (unsigned i = SHARERS; i-- > 0;)
            futures[i] = send_norm(i, o);
        for (unsigned i = 0; i < SHARERS; i++) {
            double sums[2];
            ck_assert_int_eq(cluster_await(&stage.cluster, futures[i]), STATUS_OK);
            ck_assert_uint_eq(message_flat(future_value(futures[i]), 0, WIRE_U64), 2);
            memcpy(sums, future_value(futures[i])->data[0], sizeof sums);
            squares += i == 0 ? sums[0] + sums[1] : 0;
            future_release(futures[i]);
        }
    }
    double expected = 0;
    for (unsigned i = 0; i < COUNT; i++)
        expected += (double)sum[i] * (double)sum[i];
    ck_assert_double_eq_tol(squares, expected, 1e-12 * expected);
    const double norm = sqrt(squares), max_norm = norm / 3;
    const struct step_words words = {.lr = 0.5, .max_norm = max_norm, .norm = norm};
    for (unsigned o = 0; o < OWNERS; o++) {
        for (unsigned i = 0; i < SHARERS; i++)
            futures[i] = send_words(i, o, dist_context_id(contexts[i]), LOCAL_STEP, &words);
        for (unsigned i = 0; i < SHARERS; i++)
            ck_assert_uint_eq(expect_answer(futures[i]), 0);
    }
    model_read(&models[0], after);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert_double_eq_tol((double)after[i], (double)before[i] - 0.5 / 3 * (double)sum[i], 1e-6);
    end_contexts();
    close_round();
}
END_TEST

START_TEST(all_name_the_same_numbers_or_none_steps)
{
    float before[COUNT], after[COUNT];
    struct future *futures[SHARERS];
    open_round(false, 0);
    all_backward();
    model_read(&models[0], before);
    futures[0] = send_step(0, 0, 0.5, false);
    await_handled(owners[0]);
    futures[1] = send_step(1, 0, 0.25, false);
    expect_refusal(futures[0], STATUS_INVALID,
                   "worker 3 asks for lr 0.25, max_norm 0 of norm 0, worker 2 for 0.5");
    expect_refusal(futures[1], STATUS_INVALID, "worker 3 asks for lr 0.25");
    futures[0] = send_step(0, 0, 0.5, false);
    await_handled(owners[0]);
    futures[1] = send_norm(1, 0);
    expect_refusal(futures[0], STATUS_INVALID, "worker 3 asks for a step with clipping, others do not");
    expect_refusal(futures[1], STATUS_INVALID, "with clipping");
    model_read(&models[0], after);
    expect_equal(after, before, COUNT, "refused steps");
    for (unsigned i = 0; i < SHARERS; i++)
        futures[i] = send_step(i, 0, 0.5, false);
    for (unsigned i = 0; i < SHARERS; i++)
        ck_assert_uint_eq(expect_answer(futures[i]), 0);
    end_contexts();
    close_round();
}
END_TEST

START_TEST(who_asks_twice_or_has_no_part_is_refused_alone)
{
    struct future *futures[SHARERS], *again;
    open_round(false, 0);
    all_backward();
    for (unsigned i = 0; i < SHARERS - 1; i++)
        futures[i] = send_step(i, 0, 0.5, false);
    again = send_step(1, 0, 0.5, false);
    expect_refusal(again, STATUS_INVALID, "worker 3 has asked already in this round");
    const struct step_words words = {.lr = 0.5};
    again = send_words(2, 0, dist_context_id(contexts[1]), LOCAL_STEP, &words);
    expect_refusal(again, STATUS_INVALID, "worker 4 cannot step by context");
    again = send_words(2, 0, dist_context_id(contexts[2]), LOCAL_STEP, NULL);
    expect_refusal(again, STATUS_INVALID, "a step has 4 words");
    ck_assert(!future_done(futures[0]));
    futures[2] = send_step(2, 0, 0.5, false);
    for (unsigned i = 0; i < SHARERS; i++)
        ck_assert_uint_eq(expect_answer(futures[i]), 0);
    end_contexts();
    close_round();
}
END_TEST

START_TEST(a_step_by_a_norm_follows_that_norm)
{
    const struct step_words words = {.lr = 0.5, .max_norm = 1, .norm = 2};
    struct future *futures[SHARERS];
    open_round(false, 0);
    all_backward();
    for (unsigned i = 0; i < SHARERS; i++)
        futures[i] = send_words(i, 1, dist_context_id(contexts[i]), LOCAL_STEP, &words);
    for (unsigned i = 0; i < SHARERS; i++)
        expect_refusal(futures[i], STATUS_INVALID, "has not been asked for");
    end_contexts();
    close_round();
}
END_TEST

START_TEST(a_death_ends_the_round_for_all)
{
    float before[COUNT], after[COUNT];
    struct future *futures[2];
    open_round(false, 0);
    all_backward();
    model_read(&models[0], before);
    for (unsigned i = 0; i < 2; i++)
        futures[i] = send_step(i, 0, 0.5, false);
    await_handled(owners[0]);
    stage_kill(OTHER_TRAINER);
    for (unsigned i = 0; i < 2; i++)
        expect_refusal(futures[i], STATUS_PEER_DIED, "worker 4, which takes part in every step, has died");
    expect_refusal(send_step(0, 0, 0.5, false), STATUS_PEER_DIED, "worker 4, which takes part");
    expect_refusal(send_step(1, 1, 0.5, false), STATUS_PEER_DIED, "has died");
    model_read(&models[0], after);
    expect_equal(after, before, COUNT, "a failed round");
    end_contexts();
    close_round();
}
END_TEST

/* One that has contributed dies: the others' later requests do not find its gradient in their round. */
START_TEST(a_contributors_death_ends_the_round_too)
{
    struct future *future, *gone;
    open_round(false, 0);
    all_backward();
    gone = send_step(2, 0, 0.5, false);
    await_handled(owners[0]);
    future = send_step(0, 0, 0.5, false);
    await_handled(owners[0]);
    future_release(gone);
    stage_kill(OTHER_TRAINER);
    expect_refusal(future, STATUS_PEER_DIED, "worker 4, which takes part in every step, has died");
    end_contexts();
    close_round();
}
END_TEST

/* ---- async ---- */

/* The gradient of the first trainer's context, when the other one steps between its forward and its backward
 * (`between`), or before both of them, or not at all. */
enum when { NEVER, BEFORE, BETWEEN };

static void gradient_when(enum when when, float gradient[COUNT], float values[COUNT])
{
    struct dist_optimizer *others;
    struct dist_context *context, *other = NULL;
    struct variable *loss = NULL;
    struct dist_step step = {.lr = 0.5};
    open_round(true, SHARERS + 1);
    STAGE_OK(dist_optimizer_join(&others, dist_of(&models[2]), locals[2], OWNERS, &stage.error));
    if (when != BEFORE)
        loss = model_forward(&models[1], &context, 1, OWNERS);
    if (when != NEVER) {
        other = model_backward(&models[2], 2, OWNERS);
        STAGE_OK(dist_optimizer_step(others, other, &step, &stage.error));
    }
    if (when == BEFORE)
        loss = model_forward(&models[1], &context, 1, OWNERS);
    STAGE_OK(dist_backward(context, loss, &stage.error));
    model_read_gradient(&models[1], context, gradient);
    STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
    model_read(&models[0], values);
    if (other != NULL)
        end_context(other);
    end_context(context);
    dist_optimizer_free(others);
    close_round();
}

START_TEST(a_backward_uses_what_its_forward_read)
{
    float alone[COUNT], after[COUNT], between[COUNT], values[COUNT];
    gradient_when(NEVER, alone, values);
    gradient_when(BEFORE, after, values);
    gradient_when(BETWEEN, between, values);
    expect_equal(between, alone, COUNT, "a gradient beside another's step");
    ck_assert_float_ne(after[0], alone[0]);
}
END_TEST

/* Both steps count, whatever version their gradients were made of. */
START_TEST(each_step_moves_the_newest_version)
{
    float first[COUNT], gradients[2][COUNT], values[COUNT];
    struct dist_optimizer *others;
    struct dist_context *context, *other;
    struct dist_step step = {.lr = 0.5, .last = true}, second = {.lr = 0.25};
    open_round(true, SHARERS + 1);
    STAGE_OK(dist_optimizer_join(&others, dist_of(&models[2]), locals[2], OWNERS, &stage.error));
    model_read(&models[0], first);
    struct variable *loss = model_forward(&models[1], &context, 1, OWNERS);
    other = model_backward(&models[2], 2, OWNERS);
    model_read_gradient(&models[2], other, gradients[0]);
    STAGE_OK(dist_optimizer_step(others, other, &step, &stage.error));
    STAGE_OK(dist_backward(context, loss, &stage.error));
    model_read_gradient(&models[1], context, gradients[1]);
    STAGE_OK(dist_optimizer_step(optimizer, context, &second, &stage.error));
    ck_assert(step.was_last && !second.was_last);
    model_read(&models[0], values);
    for (unsigned i = 0; i < COUNT; i++)
        first[i] = (first[i] - 0.5f * gradients[0][i]) - 0.25f * gradients[1][i];
    expect_equal(values, first, COUNT, "two steps");
    end_context(other);
    end_context(context);
    dist_optimizer_free(others);
    close_round();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist_optimizer_rounds");
    TCase *rounds = tcase_create("rounds");
    tcase_set_timeout(rounds, 30);
    tcase_add_test(rounds, gradients_add_up_in_the_order_of_workers_whoever_comes_first);
    tcase_add_test(rounds, a_round_with_clipping_scales_the_sum);
    tcase_add_test(rounds, all_name_the_same_numbers_or_none_steps);
    tcase_add_test(rounds, who_asks_twice_or_has_no_part_is_refused_alone);
    tcase_add_test(rounds, a_step_by_a_norm_follows_that_norm);
    tcase_add_test(rounds, a_death_ends_the_round_for_all);
    tcase_add_test(rounds, a_contributors_death_ends_the_round_too);
    tcase_add_test(rounds, a_backward_uses_what_its_forward_read);
    tcase_add_test(rounds, each_step_moves_the_newest_version);
    suite_add_tcase(suite, rounds);
    return suite_run(suite);
}
