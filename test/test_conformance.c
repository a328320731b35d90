/* Every backend that can be opened against ref, operation by operation, over the table of test/op_cases.c:
 * outputs and all gradients, every set of wanted gradients, output gradients that are absent, memory that is
 * given, the same bits twice. And backends that are wrong in one element, which must be seen. */
#include "kernels/ref/ref.h"
#include "test/conformance.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

START_TEST(operation_agrees_with_ref)
{
    const enum op op = (enum op)(_i % OP_COUNT);
    struct conformance pair;
    unsigned cases = 0;
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
                      rule->output[i]);
    for (uint32_t i = 0; i < rule->inputs; i++)
        if ((op_case_gradient(op_case) >> i & 1) != 0)
            ck_assert_msg(complaints_with_fault(op_case, NONE, i, 0) > 0, "%s: a wrong gradient of %s passes",
                          rule->name, rule->input[i]);
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
    ops.backward[OP_SOFTMAX] = adding_backward;
    conformance_open_ops(&pair, "adding", &ops);
    pair.quiet = true;
    conformance_case(&pair, some_case(OP_SOFTMAX));
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
    suite_add_tcase(suite, operations);
    tcase_add_loop_test(faults, one_wrong_element_is_seen, 0, OP_COUNT);
    tcase_add_loop_test(faults, a_fault_that_comes_later_is_seen, 0, OP_COUNT);
    tcase_add_test(faults, adding_to_given_memory_is_seen);
    suite_add_tcase(suite, faults);
    return suite_run(suite);
}
