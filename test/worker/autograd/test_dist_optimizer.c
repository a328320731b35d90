/* The distributed optimizer with one participant: the same bits on one owner and on several, clipping,
 * parameters that do not move, refusals, a run that continues elsewhere, and memory. */
#include "test/worker/autograd/optimizer_stage.h"
#include "test/workplace.h"

#include <malloc.h>

enum { STEPS = 4 };

static const uint16_t one_participant[] = {TRAINER};
static const unsigned together[] = {0, 0, 0};

static struct dist_optimizer_config settings_of(enum optimizer_kind kind)
{
    return (struct dist_optimizer_config){
        .settings = {kind, .sgd = {.lr = 0.1, .momentum = 0.9}, .adam = ADAM_DEFAULTS},
        .participants = one_participant,
        .participant_count = 1};
}

static struct dist_optimizer *make_optimizer(const struct model *model, enum optimizer_kind kind)
{
    struct dist_optimizer *optimizer;
    const struct dist_optimizer_config config = settings_of(kind);
    STAGE_OK(dist_optimizer_new(&optimizer, dist_of(model), &config, model->parameters,
                                model->parameter_count, &stage.error));
    return optimizer;
}

/* One step on input number `seed`; the norm. */
static double step_on(const struct model *model, struct dist_optimizer *optimizer, unsigned seed,
                      double max_norm)
{
    struct dist_step step = {.lr = 0.05, .max_norm = max_norm};
    struct dist_context *context = model_backward(model, seed, model->count);
    STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
    ck_assert(!step.was_last);
    end_context(context);
    return step.norm;
}

/* ---- the same bits wherever parts lie ---- */

static void run(const unsigned owners[PARTS_MAX], enum optimizer_kind kind, double max_norm,
                float values[PARTS_MAX * PART_VALUES], double norms[STEPS])
{
    struct model model;
    stage_open();
    model_make(&model, TRAINER, owners, PARTS_MAX, 0);
    float before[PARTS_MAX * PART_VALUES];
    model_read(&model, before);
    struct dist_optimizer *optimizer = make_optimizer(&model, kind);
    for (unsigned i = 0; i < STEPS; i++)
        norms[i] = step_on(&model, optimizer, i, max_norm);
    model_read(&model, values);
    for (unsigned i = 0; i < PARTS_MAX * PART_VALUES; i++)
        ck_assert_msg(values[i] != before[i], "value %u has not moved", i);
    dist_optimizer_free(optimizer);
    model_release(&model);
    stage_close_empty();
}

static void same_on_all(enum optimizer_kind kind, double max_norm)
{
    static const unsigned placements[][PARTS_MAX] = {
        {0, 1, 2}, {2, 0, 2}, {TRAINER, 1, TRAINER}, {TRAINER, TRAINER, TRAINER}};
    float expected[PARTS_MAX * PART_VALUES], got[PARTS_MAX * PART_VALUES];
    double norms[STEPS], got_norms[STEPS];
    run(together, kind, max_norm, expected, norms);
    for (unsigned i = 0; i < sizeof placements / sizeof placements[0]; i++) {
        run(placements[i], kind, max_norm, got, got_norms);
        expect_equal(got, expected, PARTS_MAX * PART_VALUES, "elsewhere");
        for (unsigned s = 0; s < STEPS; s++)
            ck_assert(max_norm > 0 ? got_norms[s] == norms[s] : isnan(got_norms[s]));
    }
}

START_TEST(sgd_is_the_same_wherever_parts_lie)
{
    same_on_all(OPTIMIZER_SGD, 0);
}
END_TEST

START_TEST(adam_is_the_same_wherever_parts_lie)
{
    same_on_all(OPTIMIZER_ADAM, 0);
}
END_TEST

START_TEST(clipping_is_the_same_wherever_parts_lie)
{
    same_on_all(OPTIMIZER_SGD, 0.125);
}
END_TEST

/* ---- clipping ---- */

START_TEST(clipping_is_what_it_is_by_hand)
{
    enum { COUNT = PARTS_MAX * PART_VALUES };
    static const unsigned apart[] = {1, 0, 2};
    static const double max_norms[] = {0.01, 1e6};
    float before[COUNT], gradient[COUNT], after[COUNT];
    struct model model;
    stage_open();
    model_make(&model, TRAINER, apart, PARTS_MAX, 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        struct dist_optimizer *optimizer = make_optimizer(&model, OPTIMIZER_SGD);
        struct dist_step step = {.lr = 0.5, .max_norm = max_norms[turn]};
        double sum = 0;
        model_read(&model, before);
        struct dist_context *context = model_backward(&model, 1, PARTS_MAX);
        model_read_gradient(&model, context, gradient);
        STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
        model_read(&model, after);
        for (unsigned i = 0; i < COUNT; i++)
            sum += (double)gradient[i] * (double)gradient[i];
        ck_assert_double_eq_tol(step.norm, sqrt(sum), 1e-12 * sqrt(sum));
        ck_assert_double_gt(step.norm, 0.05);
        const double factor = fmin(1, max_norms[turn] / (sqrt(sum) + 1e-6));
        for (unsigned i = 0; i < COUNT; i++)
            ck_assert_double_eq_tol((double)after[i], (double)before[i] - 0.5 * factor * (double)gradient[i],
                                    2e-7);
        end_context(context);
        dist_optimizer_free(optimizer);
        await_optimizers(0);
    }
    model_release(&model);
    stage_close_empty();
}
END_TEST

/* ---- what moves, and what does not ---- */

/* An optimizer of every second parameter moves them as one of all does, and no other. */
static void some_move(enum optimizer_kind kind)
{
    enum { COUNT = 2 * PART_VALUES };
    static const unsigned owners[] = {0, 1};
    float first[COUNT], all[COUNT] = {0}, some[COUNT] = {0};
    struct rref *biases[2];
    for (unsigned turn = 0; turn < 2; turn++) {
        struct model model;
        struct dist_optimizer *optimizer;
        const struct dist_optimizer_config config = settings_of(kind);
        stage_open();
        model_make(&model, TRAINER, owners, 2, 0);
        model_read(&model, first);
        for (unsigned i = 0; i < 2; i++)
            biases[i] = model.parameters[2 * i + 1];
        if (turn == 0)
            optimizer = make_optimizer(&model, kind);
        else
            STAGE_OK(dist_optimizer_new(&optimizer, dist_of(&model), &config, biases, 2, &stage.error));
        step_on(&model, optimizer, 3, 0);
        if (turn == 1) {
            step_on(&model, optimizer, 4, 0);
            step_on(&model, optimizer, 5, 0);
        }
        model_read(&model, turn == 0 ? all : some);
        dist_optimizer_free(optimizer);
        model_release(&model);
        stage_close();
    }
    for (uint32_t p = 0; p < 2; p++) {
        expect_equal(values_of(some, 2 * p), values_of(first, 2 * p), WIDTH * WIDTH, "a weight");
        for (unsigned i = 0; i < WIDTH; i++)
            ck_assert(values_of(some, 2 * p + 1)[i] != values_of(all, 2 * p + 1)[i]);
    }
}

START_TEST(parameters_that_were_not_given_do_not_move)
{
    some_move(OPTIMIZER_SGD);
    some_move(OPTIMIZER_ADAM);
}
END_TEST

START_TEST(some_parameters_move_as_all_do)
{
    static const unsigned owners[] = {0, 1};
    enum { COUNT = 2 * PART_VALUES };
    float all[COUNT] = {0}, some[COUNT] = {0};
    for (unsigned turn = 0; turn < 2; turn++) {
        struct model model;
        struct dist_optimizer *optimizers[2];
        const struct dist_optimizer_config config = settings_of(OPTIMIZER_ADAM);
        stage_open();
        model_make(&model, TRAINER, owners, 2, 0);
        struct rref *some_of[2][2];
        for (unsigned i = 0; i < 4; i++)
            some_of[i % 2][i / 2] = model.parameters[i];
        struct dist_context *context = model_backward(&model, 3, 2);
        struct dist_step step = {.lr = 0.05};
        if (turn == 0)
            optimizers[0] = make_optimizer(&model, OPTIMIZER_ADAM);
        for (unsigned i = 0; i < 2 && turn == 1; i++)
            STAGE_OK(
                dist_optimizer_new(&optimizers[i], dist_of(&model), &config, some_of[i], 2, &stage.error));
        for (unsigned i = 0; i <= turn; i++)
            STAGE_OK(dist_optimizer_step(optimizers[i], context, &step, &stage.error));
        model_read(&model, turn == 0 ? all : some);
        end_context(context);
        for (unsigned i = 0; i <= turn; i++)
            dist_optimizer_free(optimizers[i]);
        model_release(&model);
        stage_close_empty();
    }
    expect_equal(some, all, COUNT, "two optimizers");
}
END_TEST

/* The second part has no part in the second loss: its momentum alone moves it. */
START_TEST(what_had_no_part_in_the_loss_moves_by_its_momentum)
{
    static const unsigned owners[] = {0, 1};
    float before[2 * PART_VALUES], after[2 * PART_VALUES], momentum[WIDTH];
    struct model model;
    stage_open();
    model_make(&model, TRAINER, owners, 2, 0);
    struct dist_optimizer *optimizer = make_optimizer(&model, OPTIMIZER_SGD);
    step_on(&model, optimizer, 0, 0);
    model_read(&model, before);
    STAGE_OK(dist_parameter_get(dist_of(&model), model.parameters[3], DIST_MOMENT_FIRST, momentum, WIDTH,
                                &stage.error));
    struct dist_context *context = model_backward(&model, 1, 1);
    struct dist_step step = {.lr = 0.5, .last = true};
    STAGE_OK(dist_optimizer_step(optimizer, context, &step, &stage.error));
    ck_assert(step.was_last);
    end_context(context);
    model_read(&model, after);
    const float *from = values_of(before, 3), *to = values_of(after, 3);
    for (unsigned i = 0; i < WIDTH; i++) {
        ck_assert_float_ne(momentum[i], 0);
        ck_assert_float_eq(to[i], from[i] - 0.5f * (0.9f * momentum[i]));
    }
    dist_optimizer_free(optimizer);
    model_release(&model);
    stage_close_empty();
}
END_TEST

/* ---- what is not finite ---- */

/* A bias of infinity in the second of two parts: its own gradient, and that of the first, are not finite. */
static void not_finite(double max_norm, const char *name)
{
    static const unsigned owners[] = {0, 1};
    float before[2 * PART_VALUES], after[2 * PART_VALUES];
    struct model model;
    stage_open();
    model_make(&model, TRAINER, owners, 2, 0);
    struct dist_optimizer *optimizer = make_optimizer(&model, OPTIMIZER_SGD);
    model_read(&model, before);
    values_of(before, 3)[2] = INFINITY;
    model_write(&model, before);
    struct dist_context *context = model_backward(&model, 0, 2);
    struct dist_step step = {.lr = 0.5, .max_norm = max_norm};
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INTERNAL, name);
    end_context(context);
    model_read(&model, after);
    expect_equal(after, before, 2 * PART_VALUES, "after a NaN");
    dist_optimizer_free(optimizer);
    model_release(&model);
    stage_close_empty();
}

START_TEST(a_gradient_that_is_not_finite_changes_nothing)
{
    not_finite(0, "gradient of part0.weight");
    not_finite(1, "gradient of part0.weight");
}
END_TEST

/* The first part is not reached by the loss of the second alone, so only one owner has a NaN: with clipping
 * the other one does not step either. */
START_TEST(with_clipping_one_owners_nan_stops_all)
{
    static const unsigned owners[] = {0, 1};
    float before[2 * PART_VALUES], after[2 * PART_VALUES];
    struct model model;
    stage_open();
    model_make(&model, TRAINER, owners, 2, 0);
    struct dist_optimizer *optimizer = make_optimizer(&model, OPTIMIZER_SGD);
    step_on(&model, optimizer, 0, 1); // a momentum, which would move the second part
    model_read(&model, before);
    values_of(before, 1)[0] = NAN;
    model_write(&model, before);
    struct dist_step step = {.lr = 0.5, .max_norm = 1};
    struct dist_context *context = model_backward(&model, 0, 1);
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INTERNAL, "part0");
    model_read(&model, after);
    expect_equal(after, before, 2 * PART_VALUES, "after a NaN");
    step.max_norm = 0; // without clipping the other owner has stepped
    STAGE_FAILS(dist_optimizer_step(optimizer, context, &step, &stage.error), STATUS_INTERNAL, "part0");
    model_read(&model, after);
    expect_equal(after, before, PART_VALUES, "where the NaN is");
    ck_assert(values_of(after, 3)[0] != values_of(before, 3)[0]);
    end_context(context);
    dist_optimizer_free(optimizer);
    model_release(&model);
    stage_close_empty();
}
END_TEST

/* ---- state ---- */

struct state {
    float values[PARTS_MAX * PART_VALUES], moments[2][PARTS_MAX * PART_VALUES];
};

static void save(const struct model *model, struct state *state)
{
    model_read(model, state->values);
    for (unsigned m = 0; m < 2; m++)
        for (uint32_t i = 0; i < model->parameter_count; i++)
            STAGE_OK(dist_parameter_get(dist_of(model), model->parameters[i], DIST_MOMENT_FIRST + m,
                                        values_of(state->moments[m], i), elements_of(i), &stage.error));
}

static void restore(const struct model *model, struct dist_optimizer *optimizer, struct state *state,
                    uint64_t steps)
{
    model_write(model, state->values);
    for (unsigned m = 0; m < 2; m++)
        for (uint32_t i = 0; i < model->parameter_count; i++)
            STAGE_OK(dist_parameter_set(model->parameters[i], DIST_MOMENT_FIRST + m,
                                        values_of(state->moments[m], i), elements_of(i), &stage.error));
    STAGE_OK(dist_optimizer_steps_set(optimizer, steps, &stage.error));
}

START_TEST(a_run_goes_on_elsewhere_with_its_state)
{
    enum { HALFWAY = 2 };
    static const unsigned before[] = {0, 1, 2}, after[] = {1, TRAINER, TRAINER};
    static struct state halfway, expected, got;
    struct model model;
    for (unsigned turn = 0; turn < 2; turn++) {
        stage_open();
        model_make(&model, TRAINER, turn == 0 ? before : after, PARTS_MAX, 0);
        struct dist_optimizer *optimizer = make_optimizer(&model, OPTIMIZER_ADAM);
        for (unsigned i = 0; i < HALFWAY && turn == 0; i++)
            step_on(&model, optimizer, i, 0);
        if (turn == 0)
            save(&model, &halfway);
        else
            restore(&model, optimizer, &halfway, HALFWAY);
        for (unsigned i = HALFWAY; i < STEPS; i++)
            step_on(&model, optimizer, i, 0);
        save(&model, turn == 0 ? &expected : &got);
        dist_optimizer_free(optimizer);
        model_release(&model);
        stage_close_empty();
    }
    expect_equal(got.values, expected.values, PARTS_MAX * PART_VALUES, "parameters");
    expect_equal(got.moments[0], expected.moments[0], PARTS_MAX * PART_VALUES, "first moments");
    expect_equal(got.moments[1], expected.moments[1], PARTS_MAX * PART_VALUES, "second moments");
}
END_TEST

/* ---- memory ---- */

static size_t bytes_in_use(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* A checkpoint asks for all values and moments: no owner keeps a copy of them until the job's end. */
START_TEST(values_that_were_asked_for_leave_no_copy_at_their_owner)
{
    enum { LARGE_ROWS = 1 << 18, LARGE = LARGE_ROWS * WIDTH };
    const size_t copy = LARGE * sizeof(float);
    const unsigned owner = _i == 0 ? 1 : TRAINER; /* another worker, or the one that asks */
    struct model model = {.worker = TRAINER, .count = 1};
    const struct rpc_message arguments = {.args = {0, 0, 0, LARGE_ROWS}};
    float *values = malloc(copy);
    stage_open();
    STAGE_OK(rpc_remote(stage.sides[TRAINER].rrefs, (uint16_t)owner, "part", &arguments, &model.parts[0],
                        &stage.error));
    await_ready(model.parts[0]);
    find_parameters(&model);
    struct dist_optimizer *optimizer = make_optimizer(&model, OPTIMIZER_SGD);
    STAGE_OK(dist_parameter_get(dist_of(&model), model.parameters[1], DIST_MOMENT_FIRST, values, WIDTH,
                                &stage.error)); // warm up
    const size_t before = bytes_in_use();
    STAGE_OK(
        dist_parameter_get(dist_of(&model), model.parameters[0], DIST_VALUES, values, LARGE, &stage.error));
    STAGE_OK(dist_parameter_get(dist_of(&model), model.parameters[0], DIST_MOMENT_FIRST, values, LARGE,
                                &stage.error));
    STAGE_OK(dist_parameter_set(model.parameters[0], DIST_MOMENT_FIRST, values, LARGE, &stage.error));
    stage_turns(4);
    const size_t after = bytes_in_use();
    ck_assert_msg(after < before + copy, "%zu bytes were in use, then %zu; a copy has %zu", before, after,
                  copy);
    dist_optimizer_free(optimizer);
    model_release(&model);
    free(values);
    stage_close_empty();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist_optimizer");
    TCase *steps = tcase_create("steps");
    tcase_set_timeout(steps, 30);
    tcase_add_test(steps, sgd_is_the_same_wherever_parts_lie);
    tcase_add_test(steps, adam_is_the_same_wherever_parts_lie);
    tcase_add_test(steps, clipping_is_the_same_wherever_parts_lie);
    tcase_add_test(steps, clipping_is_what_it_is_by_hand);
    tcase_add_test(steps, parameters_that_were_not_given_do_not_move);
    tcase_add_test(steps, some_parameters_move_as_all_do);
    tcase_add_test(steps, what_had_no_part_in_the_loss_moves_by_its_momentum);
    tcase_add_test(steps, a_gradient_that_is_not_finite_changes_nothing);
    tcase_add_test(steps, with_clipping_one_owners_nan_stops_all);
    tcase_add_test(steps, a_run_goes_on_elsewhere_with_its_state);
    tcase_add_loop_test(steps, values_that_were_asked_for_leave_no_copy_at_their_owner, 0, 2);
    suite_add_tcase(suite, steps);
    return suite_run(suite);
}
