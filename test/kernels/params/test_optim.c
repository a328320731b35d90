/* Optimizers over a whole slab, on the oracle: the formulas by hand, Adam against adam_update, refused
 * settings. */
#include "kernels/params/gradients.h"
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"

#include <math.h>

static struct parameter *first, *second;
static struct optimizer *optimizer;

static void open_optimizer(const struct optimizer_settings *settings)
{
    fixture_open();
    first = fixture_add("first", SHAPE1(2));
    second = fixture_add("second", SHAPE1(1));
    fixture_build(0);
    CK_OK(optimizer_new(&optimizer, settings, fixture.params, &fixture.error));
}

static void close_optimizer(void)
{
    optimizer_free(optimizer);
    fixture_close();
}

static void step_with(const double *gradient)
{
    bool fresh;
    gradients_begin(fixture.gradients);
    struct tensor *part = gradients_take(fixture.gradients, first, &fresh);
    CK_OK(backend_upload(fixture.backend, part, DTYPE_F64, gradient, &fixture.error));
    CK_OK(optimizer_step(optimizer, fixture.gradients, &fixture.error));
}

static void expect_parameters(const double *expected_first, double expected_second)
{
    double got[3];
    CK_OK(params_read(fixture.params, first, DTYPE_F64, got, &fixture.error));
    CK_OK(params_read(fixture.params, second, DTYPE_F64, got + 2, &fixture.error));
    fixture_expect(got, expected_first, 2, "first");
    fixture_expect(got + 2, &expected_second, 1, "second");
    const struct tensor *slab = params_slab(fixture.params);
    for (size_t i = 0; i < slab->shape.size[0]; i++)
        ck_assert_msg(i < 2 || i == 8 || ((const double *)slab->data)[i] == 0, "the gap at %zu has moved", i);
}

START_TEST(plain_sgd_goes_against_the_gradient)
{
    const struct optimizer_settings settings = {OPTIMIZER_SGD, .sgd = {.lr = 0.5}};
    open_optimizer(&settings);
    fixture_write(second, (double[]){7});
    step_with((double[]){2, -4});
    step_with((double[]){1, 0});
    expect_parameters((double[]){-1.5, 2}, 7);
    close_optimizer();
}
END_TEST

/* v: 2, 1 + 1 = 2, 0 + 1 = 1 and the parameter their negative sum by lr. What is out of the step's reach goes
 * on by its momentum alone. */
START_TEST(momentum_carries_on)
{
    const struct optimizer_settings settings = {OPTIMIZER_SGD, .sgd = {.lr = 0.25, .momentum = 0.5}};
    open_optimizer(&settings);
    step_with((double[]){2, 0});
    step_with((double[]){1, 0});
    step_with((double[]){0, 0});
    expect_parameters((double[]){-0.25 * (2 + 2 + 1), 0}, 0);
    close_optimizer();
}
END_TEST

START_TEST(adam_is_adams_update)
{
    const struct optimizer_settings settings = {OPTIMIZER_ADAM, .adam = {0.01, 0.9, 0.99, 1e-6}};
    static const double gradients[3][2] = {{1, -2}, {0.5, 3}, {0, 0.125}};
    float parameters[2] = {0.5f, -1}, m[2] = {0}, v[2] = {0};
    open_optimizer(&settings);
    fixture_write(first, (double[]){0.5, -1});
    for (uint64_t step = 1; step <= 3; step++) {
        const float gradient[2] = {(float)gradients[step - 1][0], (float)gradients[step - 1][1]};
        double got[2];
        step_with(gradients[step - 1]);
        adam_update(&settings.adam, step, parameters, m, v, gradient, 2);
        CK_OK(params_read(fixture.params, first, DTYPE_F64, got, &fixture.error));
        for (int i = 0; i < 2; i++)
            ck_assert_double_eq_tol(got[i], (double)parameters[i], 1e-6);
    }
    ck_assert_double_gt(fabs((double)parameters[0] - 0.5), 0.005);
    close_optimizer();
}
END_TEST

START_TEST(each_step_may_have_its_own_lr)
{
    const struct optimizer_settings settings = {OPTIMIZER_SGD, .sgd = {.lr = 0.5}};
    open_optimizer(&settings);
    step_with((double[]){2, -4});
    CK_OK(optimizer_lr_set(optimizer, 0.25, &fixture.error));
    step_with((double[]){2, -4});
    struct error error = {0};
    ck_assert_int_eq(optimizer_lr_set(optimizer, NAN, &error), STATUS_INVALID);
    step_with((double[]){2, -4});
    expect_parameters((double[]){-2, 4}, 0);
    close_optimizer();
}
END_TEST

/* One entry of each moment into the same entry of another optimizer's. */
static void carry_over(struct optimizer *from, struct optimizer *to, const struct parameter *parameter,
                       uint64_t steps)
{
    for (uint32_t i = 0; i < 2; i++) {
        double values[2];
        CK_OK(gradients_read(optimizer_moment(from, i), parameter, DTYPE_F64, values, &fixture.error));
        CK_OK(gradients_write(optimizer_moment(to, i), parameter, DTYPE_F64, values, &fixture.error));
    }
    optimizer_steps_set(to, steps);
}

START_TEST(one_that_is_given_anothers_state_goes_on_like_it)
{
    const struct optimizer_settings settings = {OPTIMIZER_ADAM, .adam = {0.01, 0.9, 0.99, 1e-6}};
    double halfway[2], expected[2], got[2];
    struct optimizer *other;
    open_optimizer(&settings);
    step_with((double[]){1, -2});
    step_with((double[]){0.5, 3});
    CK_OK(optimizer_new(&other, &settings, fixture.params, &fixture.error));
    carry_over(optimizer, other, first, 2);
    CK_OK(params_read(fixture.params, first, DTYPE_F64, halfway, &fixture.error));
    step_with((double[]){0.25, 0.125});
    CK_OK(params_read(fixture.params, first, DTYPE_F64, expected, &fixture.error));
    fixture_write(first, halfway);
    CK_OK(optimizer_step(other, fixture.gradients, &fixture.error));
    CK_OK(params_read(fixture.params, first, DTYPE_F64, got, &fixture.error));
    fixture_expect(got, expected, 2, "first");
    ck_assert_ptr_null(optimizer_moment(other, 2));
    optimizer_free(other);
    close_optimizer();
}
END_TEST

/* Whoever must not move is given a gradient of zero in every step. */
static void zero_does_not_move(struct optimizer_settings settings)
{
    double got;
    open_optimizer(&settings);
    fixture_write(second, (double[]){-0.7});
    for (int step = 0; step < 3; step++)
        step_with((double[]){step - 0.5, 3});
    CK_OK(params_read(fixture.params, second, DTYPE_F64, &got, &fixture.error));
    ck_assert(got == -0.7);
    close_optimizer();
}

START_TEST(a_gradient_of_zero_moves_nothing_without_a_past)
{
    zero_does_not_move((struct optimizer_settings){OPTIMIZER_SGD, .sgd = {.lr = 0.5}});
    zero_does_not_move((struct optimizer_settings){OPTIMIZER_SGD, .sgd = {.lr = 0.5, .momentum = 0.9}});
    zero_does_not_move((struct optimizer_settings){OPTIMIZER_ADAM, .adam = ADAM_DEFAULTS});
}
END_TEST

START_TEST(gradients_add_up_entry_by_entry)
{
    const struct optimizer_settings settings = {OPTIMIZER_SGD, .sgd = {.lr = 1}};
    struct gradients *sum;
    double got[2];
    open_optimizer(&settings);
    CK_OK(gradients_new(&sum, fixture.params, &fixture.error));
    gradients_begin(sum);
    CK_OK(gradients_write(fixture.gradients, first, DTYPE_F64, (double[]){-0.0, 3}, &fixture.error));
    CK_OK(gradients_write(fixture.gradients, second, DTYPE_F64, (double[]){8}, &fixture.error));
    CK_OK(gradients_add(sum, fixture.gradients, first, &fixture.error));
    CK_OK(gradients_read(sum, first, DTYPE_F64, got, &fixture.error));
    ck_assert(signbit(got[0]) && got[1] == 3);
    CK_OK(gradients_add(sum, fixture.gradients, first, &fixture.error));
    CK_OK(gradients_read(sum, first, DTYPE_F64, got, &fixture.error));
    ck_assert(got[1] == 6);
    CK_OK(gradients_read(sum, second, DTYPE_F64, got, &fixture.error));
    ck_assert(got[0] == 0);
    CK_OK(gradients_square_sum(sum, first, got, &fixture.error));
    ck_assert(got[0] == 36);
    CK_OK(gradients_check(sum, &fixture.error));
    CK_OK(gradients_write(sum, second, DTYPE_F64, (double[]){2}, &fixture.error));
    CK_OK(gradients_squares(sum, got, &fixture.error));
    ck_assert(got[0] == 40);
    CK_OK(gradients_write(sum, second, DTYPE_F64, (double[]){INFINITY}, &fixture.error));
    struct error error = {0};
    ck_assert_int_eq(gradients_check(sum, &error), STATUS_INTERNAL);
    ck_assert_ptr_nonnull(strstr(error.text, "gradient of second holds a NaN or an infinity (element 0 "));
    gradients_free(sum);
    close_optimizer();
}
END_TEST

static void refused(struct optimizer_settings settings, const char *words)
{
    struct optimizer *none = NULL;
    struct error error = {0};
    ck_assert_int_eq(optimizer_new(&none, &settings, fixture.params, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" does not say \"%s\"", error.text, words);
    ck_assert_ptr_null(none);
}

START_TEST(settings_out_of_range_are_refused_by_name)
{
    fixture_open();
    fixture_build(0);
    refused((struct optimizer_settings){OPTIMIZER_SGD, .sgd = {0, 0}},
            "sgd: expected a finite lr > 0, got 0");
    refused((struct optimizer_settings){OPTIMIZER_SGD, .sgd = {INFINITY, 0}}, "lr > 0, got inf");
    refused((struct optimizer_settings){OPTIMIZER_SGD, .sgd = {0.1, 1}}, "momentum < 1, got 1");
    refused((struct optimizer_settings){OPTIMIZER_SGD, .sgd = {0.1, NAN}}, "momentum < 1, got nan");
    refused((struct optimizer_settings){OPTIMIZER_ADAM, .adam = {0.1, 0.9, 0.999, 0}}, "epsilon > 0, got 0");
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("optim");
    TCase *steps = tcase_create("steps");
    tcase_add_test(steps, plain_sgd_goes_against_the_gradient);
    tcase_add_test(steps, momentum_carries_on);
    tcase_add_test(steps, adam_is_adams_update);
    tcase_add_test(steps, each_step_may_have_its_own_lr);
    tcase_add_test(steps, one_that_is_given_anothers_state_goes_on_like_it);
    tcase_add_test(steps, a_gradient_of_zero_moves_nothing_without_a_past);
    tcase_add_test(steps, gradients_add_up_entry_by_entry);
    tcase_add_test(steps, settings_out_of_range_are_refused_by_name);
    suite_add_tcase(suite, steps);
    return suite_run(suite);
}
