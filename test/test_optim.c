/* Optimizers over a whole slab, on the oracle: the formulas by hand, Adam against adam_update, refused
 * settings. */
#include "test/tape_fixture.h"
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
    ck_assert_uint_eq(optimizer_steps(optimizer), 0);
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
    ck_assert_uint_eq(optimizer_steps(optimizer), 2);
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
        ck_assert_uint_eq(optimizer_steps(optimizer), step);
    }
    ck_assert_double_gt(fabs((double)parameters[0] - 0.5), 0.005);
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
    tcase_add_test(steps, settings_out_of_range_are_refused_by_name);
    suite_add_tcase(suite, steps);
    return suite_run(suite);
}
