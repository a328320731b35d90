/* Every backend that can be opened against ref, operation by operation, over the table of
 * test/kernels/op_cases.c: outputs and all gradients, every set of wanted gradients, output gradients that
 * are absent, memory that is given, the same bits twice. A NaN that stays one. And backends that are wrong in
 * one element, which must be seen. $TEST_OPERATION names the one operation to compare. */
#include "test/kernels/conformance.h"
#include "test/oracle/ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(operation_agrees_with_ref)
{
    const enum op op = (enum op)(_i % OP_COUNT);
    const char *only = getenv("TEST_OPERATION");
    struct conformance pair;
    unsigned cases = 0;
    if (only != NULL && *only != '\0' && strcmp(only, op_rule(op)->name) != 0)
        return;
    if (!conformance_open(&pair, (unsigned)_i / OP_COUNT, op == 0))
        return;
    const unsigned use = pair.backend->ops == &ref_ops ? OP_CASE_DIFFER : OP_CASE_CHECK;
    for (size_t i = 0; i < op_cases_count; i++)
        if (op_cases[i].op == op && (op_cases[i].use & use) != 0) {
            conformance_case(&pair, &op_cases[i]);
            cases++;
        }
    ck_assert_msg(pair.complaints == 0, "%s, %s: %u complaints over %u cases", pair.name, op_rule(op)->name,
                  pair.complaints, cases);
    ck_assert(cases >= 2 || use == OP_CASE_DIFFER); // a sample has no gradient
    conformance_close(&pair);
}
END_TEST

/* ---- a NaN ---- */

/* Where a maximum is taken, a NaN could end; a loss would then be a number again, and nobody be told. */
static const struct op_case maxima[] = {
    {.name = "relu", .op = OP_RELU, .in = {SHAPE2(5, 33)}},
    {.name = "tanh", .op = OP_TANH, .in = {SHAPE2(5, 33)}},
    {.name = "batch norm",
     .op = OP_BATCH_NORM,
     .attributes = {.training = true, .epsilon = 1e-5},
     .absent = 24,
     .in = {SHAPE4(2, 20, 3, 3), SHAPE1(20), SHAPE1(20)}},
    {.name = "add", .op = OP_ADD, .in = {SHAPE2(5, 33), SHAPE2(5, 33)}},
    {.name = "max pool",
     .op = OP_MAX_POOL,
     .attributes = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
     .in = {SHAPE4(2, 20, 5, 5)}},
};
enum { MAXIMA = sizeof maxima / sizeof *maxima };

/* What ref says is NaN must be; with a NaN about, the rest may be as well. */
static void compare_nan(struct conformance *pair, const struct op_case *op_case, uint32_t input)
{
    struct op_problem problem;
    struct op_answer expected = {0}, got = {0};
    struct error error = {0};
    unsigned seen = 0;
    op_problem_init(&problem, op_case, pair->ref);
    problem.in[input].real[problem.in[input].count / 2] = NAN;
    const struct op_wish forward = {0};
    ck_assert(op_run(&expected, &problem, &forward, pair->ref, pair->ref_arena, &error) == STATUS_OK &&
              op_run(&got, &problem, &forward, pair->backend, pair->arena, &error) == STATUS_OK);
    for (size_t i = 0; i < expected.out[0].count; i++) {
        if (!isnan(expected.out[0].real[i]))
            continue;
        seen++;
        ck_assert_msg(isnan(got.out[0].real[i]), "%s: %s: a NaN in %s is gone from element %zu", pair->name,
                      op_case->name, op_rule(op_case->op)->in[input].name, i);
    }
    ck_assert_uint_gt(seen, 0);
    op_answer_fini(&expected);
    op_answer_fini(&got);
    op_problem_fini(&problem);
}

START_TEST(a_nan_passes_every_maximum)
{
    struct conformance pair;
    if (!conformance_open(&pair, (unsigned)_i, false))
        return;
    for (size_t i = 0; i < MAXIMA; i++)
        for (uint32_t input = 0; input < op_rule(maxima[i].op)->inputs; input++) {
            struct op_case op_case = maxima[i];
            op_case.attributes.relu = true;
            if (op_case_has(&op_case, input))
                compare_nan(&pair, &op_case, input);
        }
    conformance_close(&pair);
}
END_TEST

/* ---- backends that are wrong ---- */

/* A thousandth of the largest element, in one element in the middle; one more for an index. */
static void spoil(struct tensor *tensor)
{
    const size_t count = shape_elements(&tensor->shape);
    double *real = tensor->data, largest = 0;
    if (tensor->dtype == DTYPE_I32) {
        int32_t *whole = tensor->data;
        whole[count / 2]++;
        return;
    }
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(real[i]));
    real[count / 2] += largest > 0 ? largest / 1000 : 1;
}

static struct {
    uint32_t output, gradient; // which one is spoilt, by the next forward or backward; -1: none
    unsigned runs;             // the first of them are right
} fault;

static enum status wrong_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = ref_ops.forward[call->op](backend, call, error);
    if (status == STATUS_OK && fault.output < OP_OUTPUTS_MAX && call->out[fault.output] != NULL) {
        if (fault.runs == 0)
            spoil(call->out[fault.output]);
        else
            fault.runs--;
    }
    return status;
}

static enum status wrong_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = ref_ops.backward[call->op](backend, call, error);
    if (status == STATUS_OK && fault.gradient < OP_INPUTS_MAX && call->din[fault.gradient] != NULL)
        spoil(call->din[fault.gradient]);
    return status;
}

static unsigned complaints_with_fault(const struct op_case *op_case, uint32_t output, uint32_t gradient,
                                      unsigned runs)
{
    struct conformance pair;
    struct backend_ops ops = ref_ops;
    for (int op = 0; op < OP_COUNT; op++) {
        ops.forward[op] = wrong_forward;
        ops.backward[op] = wrong_backward;
    }
    fault.output = output;
    fault.gradient = gradient;
    fault.runs = runs;
    conformance_open_ops(&pair, "wrong", &ops);
    pair.quiet = true;
    conformance_case(&pair, op_case);
    conformance_close(&pair);
    return pair.complaints;
}

enum { NONE = 99 };

/* The first row of moderate size: one element of many is what must show. */
static const struct op_case *some_case(enum op op)
{
    const struct op_case *found = NULL;
    for (size_t i = 0; i < op_cases_count; i++)
        if (op_cases[i].op == op && (op_cases[i].use & OP_CASE_CHECK) != 0 && !op_cases[i].ties &&
            (op != OP_BATCH_NORM || op_cases[i].attributes.training) &&
            (found == NULL || shape_elements(&found->in[0]) < 30))
            found = &op_cases[i];
    ck_assert_ptr_nonnull(found);
    return found;
}

START_TEST(one_wrong_element_is_seen)
{
    const struct op_case *op_case = some_case((enum op)_i);
    const struct op_rule *rule = op_rule(op_case->op);
    ck_assert_uint_eq(complaints_with_fault(op_case, NONE, NONE, 0), 0);
    for (uint32_t i = 0; i < rule->outputs; i++)
        ck_assert_msg(complaints_with_fault(op_case, i, NONE, 0) > 0, "%s: a wrong %s passes", rule->name,
                      rule->out[i].name);
    for (uint32_t i = 0; i < rule->inputs; i++)
        if ((op_case_gradient(op_case) >> i & 1) != 0)
            ck_assert_msg(complaints_with_fault(op_case, NONE, i, 0) > 0, "%s: a wrong gradient of %s passes",
                          rule->name, rule->in[i].name);
}
END_TEST

/* The fifth forward of a row is neither its first nor the one that must give the first one's bits. */
START_TEST(a_fault_that_comes_later_is_seen)
{
    const struct op_case *op_case = some_case((enum op)_i);
    ck_assert_uint_gt(complaints_with_fault(op_case, 0, NONE, 1), 0);
    ck_assert_uint_gt(complaints_with_fault(op_case, 0, NONE, 2), 0);
}
END_TEST

/* What adds to the memory that it is given instead of overwriting it. */
static enum status adding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    double *before = values_memory(shape_elements(&call->in[0]->shape), sizeof *before);
    double *din = call->din[0]->data;
    const size_t count = din == NULL ? 0 : shape_elements(&call->in[0]->shape);
    for (size_t i = 0; i < count; i++)
        before[i] = din[i];
    enum status status = ref_ops.backward[call->op](backend, call, error);
    for (size_t i = 0; i < count; i++)
        din[i] += before[i];
    free(before);
    return status;
}

START_TEST(adding_to_given_memory_is_seen)
{
    struct conformance pair;
    struct backend_ops ops = ref_ops;
    ops.backward[OP_LOG_SOFTMAX] = adding_backward;
    conformance_open_ops(&pair, "adding", &ops);
    pair.quiet = true;
    conformance_case(&pair, some_case(OP_LOG_SOFTMAX));
    ck_assert_uint_eq(pair.complaints, 1);
    conformance_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conformance");
    TCase *operations = tcase_create("operations"), *faults = tcase_create("faults");
    tcase_set_timeout(operations, 120);
    tcase_add_loop_test(operations, operation_agrees_with_ref, 0, CONFORMANCE_BACKENDS * OP_COUNT);
    tcase_add_loop_test(operations, a_nan_passes_every_maximum, 0, CONFORMANCE_BACKENDS);
    suite_add_tcase(suite, operations);
    tcase_add_loop_test(faults, one_wrong_element_is_seen, 0, OP_COUNT);
    tcase_add_loop_test(faults, a_fault_that_comes_later_is_seen, 0, OP_COUNT);
    tcase_add_test(faults, adding_to_given_memory_is_seen);
    suite_add_tcase(suite, faults);
    return suite_run(suite);
}
