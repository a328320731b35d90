/* A step does not wait for participants that are gone; and a context sees one version of its parameters. */
#include "test/worker/autograd/optimizer_stage.h"
#include "test/workplace.h"

enum { TAG = 9, FAR = 2, OWNERS = 2 };

static const unsigned servers[OWNERS] = {0, 1};
static struct model model;
static struct dist_optimizer *optimizer; /* the model's worker's */
static struct rref *locals[OWNERS];      /* its own references to its owners' parts, in their order */

static void make_optimizer(bool async, const uint16_t *participants, uint32_t count)
{
    const struct dist_optimizer_config config = {.settings = {OPTIMIZER_SGD, .sgd = {.lr = 1}},
                                                 .async = async,
                                                 .participants = participants,
                                                 .participant_count = count};
    STAGE_OK(dist_optimizer_new(&optimizer, dist_of(&model), &config, model.parameters, model.parameter_count,
                                &stage.error));
}

/* References of `worker` to the local optimizers, in the order of the owners' numbers. */
static void share_with(unsigned worker, struct rref *out[OWNERS])
{
    struct side *side = &stage.sides[worker];
    const uint32_t first = side->taken_count;
    STAGE_OK(dist_optimizer_share(optimizer, (uint16_t)worker, TAG, &stage.error));
    const uint32_t count = side->taken_count - first;
    ck_assert_uint_eq(count, model.count);
    for (uint32_t i = 0; i < count; i++)
        out[count == 1 ? 0 : rref_owner(side->taken[first + i])] = side->taken[first + i];
}

static struct future *ask_for_step(struct rref *local, const struct dist_context *context)
{
    struct future *future;
    const struct step_words words = {.lr = 0.5};
    struct rpc_message message = {.context = dist_context_id(context)};
    message_add(&message, WIRE_U64, &words, STEP_WORDS);
    STAGE_OK(rref_call(local, LOCAL_STEP, &message, MONOTIME_NEVER, &future, &stage.error));
    return future;
}

static void expect_gone(struct future *future, enum status why, const char *words)
{
    cluster_expect_failure(&stage.cluster, future, why, words);
}

static void close_all(void)
{
    dist_optimizer_free(optimizer);
    model_release(&model);
    stage_close_empty();
}

/* ---- participants ---- */

START_TEST(an_owner_hears_of_the_end_of_one_that_has_never_spoken_to_it)
{
    static const uint16_t participants[] = {FAR, OTHER_TRAINER};
    stage_open();
    model_make(&model, FAR, (unsigned[]){TRAINER}, 1, 0);
    make_optimizer(false, participants, 2);
    share_with(FAR, locals);
    struct dist_context *context = model_backward(&model, 1, 1);
    struct future *future = ask_for_step(locals[0], context);
    await_handled(TRAINER);
    stage_kill(OTHER_TRAINER);
    expect_gone(future, STATUS_PEER_DIED, "worker 4");
    expect_gone(ask_for_step(locals[0], context), STATUS_PEER_DIED,
                "worker 4, which takes part in every step, has died");
    end_context(context);
    rref_release(locals[0]);
    close_all();
}
END_TEST

/* One participant's request has reached one owner alone. */
START_TEST(who_gives_its_optimizer_up_is_waited_for_no_more)
{
    static const uint16_t participants[] = {FAR, TRAINER};
    struct rref *others[OWNERS] = {NULL};
    struct dist_optimizer *joined;
    struct future *futures[OWNERS], *lone;
    struct model shared;
    stage_open();
    model_make(&model, FAR, servers, OWNERS, 0);
    model_share(&shared, &model, TRAINER);
    make_optimizer(false, participants, 2);
    share_with(FAR, locals);
    share_with(TRAINER, others);
    STAGE_OK(dist_optimizer_join(&joined, dist_of(&shared), others, OWNERS, &stage.error));
    struct dist_context *context = model_backward(&model, 1, OWNERS),
                        *other = model_backward(&shared, 2, OWNERS);
    lone = ask_for_step(others[1], other);
    for (unsigned o = 0; o < OWNERS; o++)
        futures[o] = ask_for_step(locals[o], context);
    ck_assert_int_eq(cluster_await(&stage.cluster, lone), STATUS_OK);
    ck_assert_int_eq(cluster_await(&stage.cluster, futures[1]), STATUS_OK);
    await_handled(0);
    for (unsigned o = 0; o < OWNERS; o++)
        rref_release(others[o]); // as long as it has one more nothing is given up
    STAGE_OK(dist_optimizer_steps_set(joined, 1, &stage.error));
    ck_assert(!future_done(futures[0]));
    dist_optimizer_free(joined);
    expect_gone(futures[0], STATUS_SHUTDOWN, "worker 3, which takes part in every step, has left");
    expect_gone(ask_for_step(locals[0], context), STATUS_SHUTDOWN,
                "worker 3, which takes part in every step, has left");
    end_context(other);
    end_context(context);
    future_release(lone);
    future_release(futures[1]);
    for (unsigned o = 0; o < OWNERS; o++)
        rref_release(locals[o]);
    model_release(&shared);
    close_all();
}
END_TEST

START_TEST(an_owner_that_gives_its_own_up_is_waited_for_no_more)
{
    static const uint16_t participants[] = {0, TRAINER};
    struct rref *own[OWNERS] = {NULL};
    stage_open();
    model_make(&model, TRAINER, servers, 1, 0);
    make_optimizer(false, participants, 2);
    share_with(TRAINER, locals);
    share_with(0, own);
    struct dist_context *context = model_backward(&model, 1, 1);
    struct future *future = ask_for_step(locals[0], context);
    await_handled(0);
    rref_release(own[0]);
    expect_gone(future, STATUS_SHUTDOWN, "worker 0, which takes part in every step, has left");
    end_context(context);
    rref_release(locals[0]);
    close_all();
}
END_TEST

/* ---- contexts ---- */

/* The first value of what the trainer's part makes of `values`. */
static float call_alone(const struct model *shared, const float values[ROWS * WIDTH])
{
    struct side *side = &stage.sides[TRAINER];
    struct dist_context *context;
    struct variable *out;
    STAGE_OK(dist_context_new(&context, side->dist, TAPE_INFER, side->tape, &stage.error));
    struct variable *x = tape_input(side->tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", values);
    dist_call(context, shared->parts[0], PART_MAP, NULL, 0, &x, 1, &out, 1);
    STAGE_OK(tape_status(side->tape, &stage.error));
    const float value = ((const float *)variable_tensor(out)->data)[0];
    dist_context_free(context);
    return value;
}

/* Calls around others' steps: the context stays with the version that its first one has read, and takes one
 * slot, however many steps are taken meanwhile. */
START_TEST(a_context_sees_one_version)
{
    enum { CALLS = 5, ELEMENTS = ROWS * WIDTH };
    static const uint16_t participants[] = {FAR, TRAINER};
    struct side *side = &stage.sides[TRAINER];
    struct dist_step step = {.lr = 0.5};
    struct dist_context *context;
    struct variable *out[CALLS], *sum = NULL;
    struct model other;
    const float values[ELEMENTS] = {1, 2, 3};
    stage_open();
    model_make(&model, FAR, servers, 1, 3);
    model_share(&other, &model, TRAINER);
    make_optimizer(true, participants, 2);
    const float first = call_alone(&other, values);
    STAGE_OK(dist_context_new(&context, side->dist, TAPE_TRAIN, side->tape, &stage.error));
    side->context = context;
    struct variable *x = tape_input(side->tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", values);
    for (unsigned i = 0; i < CALLS; i++) {
        dist_call(context, other.parts[0], PART_MAP, NULL, 0, &x, 1, &out[i], 1);
        STAGE_OK(tape_status(side->tape, &stage.error));
        expect_equal(variable_tensor(out[i])->data, &first, 1, "a later call");
        sum = i == 0 ? out[i] : tape_add(side->tape, sum, out[i], false);
        struct dist_context *stepping = model_backward(&model, i, 1);
        STAGE_OK(dist_optimizer_step(optimizer, stepping, &step, &stage.error));
        end_context(stepping);
    }
    struct variable *loss =
        tape_mse(side->tape, sum, tape_input(side->tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "target", values));
    STAGE_OK(dist_backward(context, loss, &stage.error));
    end_context(context);
    ck_assert_float_ne(call_alone(&other, values), first); // the newest
    model_release(&other);
    close_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist_optimizer_left");
    TCase *left = tcase_create("left");
    tcase_set_timeout(left, 60);
    tcase_add_test(left, an_owner_hears_of_the_end_of_one_that_has_never_spoken_to_it);
    tcase_add_test(left, who_gives_its_optimizer_up_is_waited_for_no_more);
    tcase_add_test(left, an_owner_that_gives_its_own_up_is_waited_for_no_more);
    tcase_add_test(left, a_context_sees_one_version);
    suite_add_tcase(suite, left);
    return suite_run(suite);
}
