/* ref's gradients against central differences of ref's forwards, in double: for every input that has one, of
 * every row of the table that is small enough.
 *
 * With L = sum of (output gradient x output), the derivative of L along a direction v is <gradient, v>. An
 * input of few elements is moved along each of them by itself, a larger one along random directions in which
 * all elements take part and along some single ones. Directions have length 1. The step h = 3e-5 leaves
 * h^2 = 1e-9 of truncation and 1e-16 / h = 3e-12 of rounding, relative to L; the bound is 1e-6 of the
 * gradient's length, which no directional derivative exceeds.
 *
 * Kinks are kept away: test/kernels/op_run.h leaves out outputs near a ReLU's, and a max pool's inputs are
 * further apart than h moves them. */
#include "test/kernels/op_run.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SINGLE_MAX = 40, DENSE = 6, SINGLES = 6 };

static const double step = 3e-5, bound = 1e-6;

static struct backend *ref;
static struct arena *arena;

static void open_ref(void)
{
    struct error error = {0};
    ck_assert_msg(backend_open(&ref, &ref_ops, &(struct backend_settings){0}, &error) == STATUS_OK, "ref: %s",
                  error.text);
    ck_assert_int_eq(arena_new(&arena, &ref->source, &error), STATUS_OK);
}

static void close_ref(void)
{
    arena_free(arena);
    backend_close(ref);
}

static double loss(const struct op_problem *problem)
{
    struct op_answer answer = {0};
    struct error error = {0};
    double sum = 0;
    enum status status = op_run(&answer, problem, &(struct op_wish){0}, ref, arena, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        for (size_t e = 0; e < problem->dout[i].count; e++)
            sum += problem->dout[i].real[e] * answer.out[i].real[e];
    op_answer_fini(&answer);
    return sum;
}

static double length(const double *x, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* The derivative of the loss along v, where the problem's input i begins; it is put back. */
static double difference(struct op_problem *problem, uint32_t i, const double *v)
{
    struct values begin = problem->in[i], moved = values_new(begin.shape, begin.dtype);
    double side[2];
    problem->in[i] = moved;
    for (int s = 0; s < 2; s++) {
        for (size_t e = 0; e < begin.count; e++)
            moved.real[e] = begin.real[e] + (s == 0 ? step : -step) * v[e];
        side[s] = loss(problem);
    }
    problem->in[i] = begin;
    values_free(&moved);
    return (side[0] - side[1]) / (2 * step);
}

/* Direction number d of an input: unit vectors, or dense ones first. */
static void direction(double *v, size_t count, size_t d, uint64_t *state)
{
    const bool each = count <= SINGLE_MAX;
    for (size_t e = 0; e < count; e++)
        v[e] = !each && d < DENSE ? (double)mlp_problem_number(state) : 0;
    if (each)
        v[d] = 1;
    else if (d >= DENSE)
        v[(size_t)((double)(mlp_problem_number(state) + 1) / 2 * (double)count)] = 1;
    const double norm = length(v, count);
    for (size_t e = 0; e < count; e++)
        v[e] /= norm;
}

/* How far the claimed gradient of input i is off along the worst direction, relative to its length. */
static double worst(struct op_problem *problem, uint32_t i, const struct values *gradient)
{
    const size_t count = gradient->count, directions = count <= SINGLE_MAX ? count : DENSE + SINGLES;
    const double norm = length(gradient->real, count);
    double *v = values_memory(count, sizeof *v), furthest = 0;
    uint64_t state = 1 + i;
    for (size_t d = 0; d < directions; d++) {
        double along = 0;
        direction(v, count, d, &state);
        for (size_t e = 0; e < count; e++)
            along += gradient->real[e] * v[e];
        double off = fabs(along - difference(problem, i, v));
        furthest = fmax(furthest, norm > 0 ? off / norm : off);
    }
    free(v);
    return furthest;
}

/* Complains of the row's gradients; with `spoilt`, of one that has a wrong element, and returns how many. */
static unsigned wrong_gradients(const struct op_case *op_case, bool spoilt, unsigned *checked)
{
    struct op_problem problem;
    struct op_answer answer = {0};
    struct error error = {0};
    char text[OP_CASE_TEXT_BYTES];
    unsigned wrong = 0;
    op_problem_init(&problem, op_case, ref);
    struct op_wish wish = op_wish_all(&problem);
    ck_assert_msg(op_run(&answer, &problem, &wish, ref, arena, &error) == STATUS_OK, "%s", error.text);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++) {
        struct values *gradient = &answer.din[i];
        if (gradient->count == 0)
            continue;
        if (spoilt)
            gradient->real[gradient->count / 2] += 1e-3 * (length(gradient->real, gradient->count) + 1);
        double off = worst(&problem, i, gradient);
        if (!(off <= bound)) {
            wrong++;
            if (!spoilt)
                printf("%s: gradient of %s: off by %.2g\n", op_case_text(op_case, text),
                       op_rule(op_case->op)->in[i].name, off);
        }
        (*checked)++;
    }
    op_answer_fini(&answer);
    op_problem_fini(&problem);
    return wrong;
}

static bool has_differences(const struct op_case *op_case)
{
    return (op_case->use & OP_CASE_DIFFER) != 0 && op_case_gradient(op_case) != 0;
}

START_TEST(gradients_are_the_differences)
{
    unsigned wrong = 0, checked = 0;
    for (size_t i = 0; i < op_cases_count; i++)
        if (op_cases[i].op == (enum op)_i && has_differences(&op_cases[i]))
            wrong += wrong_gradients(&op_cases[i], false, &checked);
    ck_assert_msg(wrong == 0, "%s: %u of %u gradients are wrong", op_rule((enum op)_i)->name, wrong, checked);
    ck_assert_int_gt(checked, 0);
}
END_TEST

/* In the first row of every operation that has one. */
START_TEST(a_wrong_element_is_seen)
{
    unsigned wrong = 0, checked = 0;
    for (size_t i = 0; i < op_cases_count && checked == 0; i++)
        if (op_cases[i].op == (enum op)_i && has_differences(&op_cases[i]))
            wrong += wrong_gradients(&op_cases[i], true, &checked);
    ck_assert_uint_eq(wrong, checked);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradients");
    TCase *differences = tcase_create("differences");
    tcase_add_checked_fixture(differences, open_ref, close_ref);
    tcase_add_loop_test(differences, gradients_are_the_differences, 0, OP_COUNT);
    tcase_add_loop_test(differences, a_wrong_element_is_seen, 0, OP_COUNT);
    suite_add_tcase(suite, differences);
    return suite_run(suite);
}
