/* The tape's messages about calls with wrong arguments, and about a loss that is not finite. */
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"

#include <math.h>

static void expect_once(const char *words)
{
    fixture_expect_failure(STATUS_INVALID, words);
    ck_assert_int_eq(tape_finish(fixture.tape, NULL), STATUS_INVALID);
    fixture_begin();
}

START_TEST(misuse_is_told)
{
    fixture_open();
    struct parameter *p = fixture_add("p", SHAPE1(2)), *counter = NULL, *strange = NULL;
    struct params *others = NULL;
    CK_OK(params_add(fixture.params, "counter", PARAMETER_COUNTER, SHAPE0(), (struct init){0}, &counter,
                     &fixture.error));
    fixture_build(0);
    CK_OK(params_new(&others, fixture.backend, &fixture.error));
    CK_OK(params_add(others, "strange", PARAMETER_TRAINED, SHAPE1(2), (struct init){0}, &strange,
                     &fixture.error));
    CK_OK(params_build(others, 1, &fixture.error));
    fixture_begin();
    fixture_use(counter);
    expect_once("counter");
    fixture_use(strange);
    expect_once("parameter strange belongs to other params");
    tape_backward(fixture.tape, fixture_use(p));
    expect_once("a loss of shape 2, expected a scalar");
    tape_backward(fixture.tape, NULL);
    expect_once("no variable");
    tape_resume(fixture.tape);
    expect_once("does not wait");
    struct variable *past = fixture_input(SHAPE1(1), "past", (double[]){1});
    fixture_begin();
    tape_want_gradient(past);
    expect_once("of an earlier step");
    fixture_input(SHAPE2(2, 0), "empty", (double[]){1});
    expect_once("empty");
    struct variable *loss = tape_sum(fixture.tape, fixture_use(p), NULL, 1);
    CK_OK(tape_backward(fixture.tape, loss));
    tape_walk(fixture.tape);
    expect_once("a second walk");
    CK_OK(tape_walk(fixture.tape)); // nothing seeded, nothing to do
    tape_relu(fixture.tape, fixture_use(p));
    expect_once("walked already");
    tape_seed(fixture.tape, fixture_input(SHAPE0(), "x", (double[]){1}),
              &(struct tensor){.dtype = DTYPE_F32});
    expect_once("a seed of float32");
    tape_seed(fixture.tape, tape_input(fixture.tape, SHAPE0(), DTYPE_I32, "i", (int32_t[]){1}), NULL);
    expect_once("int32");
    params_free(others);
    fixture_close();
}
END_TEST

/* ---- the loss ---- */

static void expect_blame(struct variable *loss, const char *words)
{
    double value = 1;
    ck_assert_int_eq(tape_loss(fixture.tape, loss, &value), STATUS_INTERNAL);
    fixture_expect_failure(STATUS_INTERNAL, words);
    ck_assert(value == 1);
    ck_assert_int_eq(tape_finish(fixture.tape, NULL), STATUS_INTERNAL);
    fixture_begin();
}

START_TEST(a_loss_that_is_not_finite_names_the_first_culprit)
{
    fixture_open();
    struct parameter *w1 = fixture_add("l1.weight", SHAPE2(2, 2)),
                     *w2 = fixture_add("l2.weight", SHAPE2(1, 2));
    fixture_build(0);
    static const double huge[] = {1e200, 1, 1, 1}, fine[] = {1, 1, 1, 1}, broken[] = {1, NAN, 1, 1};
    struct tape *tape = fixture.tape;
    fixture_write(w1, fine);
    fixture_write(w2, fine);
    fixture_begin();
    struct variable *x = fixture_input(SHAPE2(1, 2), "x", fine);
    struct variable *loss =
        tape_sum(tape,
                 tape_linear(tape, tape_relu(tape, tape_linear(tape, x, fixture_use(w1), NULL)),
                             fixture_use(w2), NULL),
                 NULL, 1);
    double value = 0;
    CK_OK(tape_loss(tape, loss, &value));
    ck_assert(value == 4);
    fixture_begin();
    fixture_write(w1, huge);
    x = fixture_input(SHAPE2(1, 2), "x", huge);
    loss = tape_sum(tape,
                    tape_linear(tape, tape_relu(tape, tape_linear(tape, x, fixture_use(w1), NULL)),
                                fixture_use(w2), NULL),
                    NULL, 1);
    expect_blame(loss, "the loss is inf; the first tensor that holds a NaN or an infinity is the output of "
                       "linear of l1.weight");
    x = tape_reshape(tape, fixture_input(SHAPE1(2), "x", huge), SHAPE2(1, 2));
    loss =
        tape_sum(tape, tape_relu(tape, tape_add(tape, x, tape_linear(tape, x, fixture_use(w1), NULL), false)),
                 NULL, 1);
    expect_blame(loss, "output of linear of l1.weight");
    fixture_write(w1, fine);
    fixture_write(w2, broken);
    x = fixture_input(SHAPE2(1, 2), "x", fine);
    loss = tape_sum(tape,
                    tape_linear(tape, tape_relu(tape, tape_linear(tape, x, fixture_use(w1), NULL)),
                                fixture_use(w2), NULL),
                    NULL, 1);
    expect_blame(loss, "the parameter l2.weight");
    x = fixture_input(SHAPE2(1, 2), "images", broken);
    loss = tape_sum(tape, tape_relu(tape, tape_linear(tape, x, fixture_use(w1), NULL)), NULL, 1);
    expect_blame(loss, "the input images");
    x = fixture_input(SHAPE2(1, 2), "x", (double[]){1e308, 1});
    loss = tape_sum(tape, tape_add(tape, tape_relu(tape, x), tape_relu(tape, x), false), NULL, 1);
    expect_blame(loss, "the output of add after x");
    loss = tape_sum(tape, fixture_input(SHAPE2(1, 2), "x", (double[]){1e308, 1e308}), NULL, 1);
    expect_blame(loss, "the output of sum of x");
    tape_loss(tape, fixture_use(w1), &value);
    fixture_expect_failure(STATUS_INVALID, "no scalar");
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tape_failures");
    TCase *failures = tcase_create("failures");
    tcase_add_test(failures, misuse_is_told);
    tcase_add_test(failures, a_loss_that_is_not_finite_names_the_first_culprit);
    suite_add_tcase(suite, failures);
    return suite_run(suite);
}
