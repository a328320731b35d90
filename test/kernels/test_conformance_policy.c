/* The policy written in operations, on every backend, against kernels/policy/mlp.h, which computes it in
 * one pass and draws by itself: the same masks bit for bit, probabilities and gradients within float32's
 * rounding. So the agent acts by the same function from which the tape learns. */
#include "test/kernels/conformance.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const struct {
    struct mlp_shape shape;
    double dropout;
    uint32_t rows;
} cases[] = {
    {{4, 128, 2}, 0.6, 1},    {{4, 128, 2}, 0.6, 10},  {{4, 128, 2}, 0.6, 500}, {{3, 20, 5}, 0.25, 37},
    {{16, 257, 16}, 0.5, 33}, {{7, 1024, 3}, 0.9, 20}, {{4, 50, 2}, 0, 64},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Leaves, then what each operation makes. */
enum slot { X, W1, B1, W2, B2, ROWS, ACTIONS, COEFFICIENT, LEAVES };
enum { LINEAR1 = LEAVES, DROPPED, HIDDEN, LOGITS, LOGARITHMS, PICKED, LOSS, SLOTS };

static const struct {
    enum op op;
    uint32_t in[OP_INPUTS_MAX], out;
} steps[] = {
    {OP_LINEAR, {X, W1, B1}, LINEAR1},      {OP_DROPOUT, {LINEAR1, ROWS}, DROPPED},
    {OP_RELU, {DROPPED}, HIDDEN},           {OP_LINEAR, {HIDDEN, W2, B2}, LOGITS},
    {OP_LOG_SOFTMAX, {LOGITS}, LOGARITHMS}, {OP_LOG_PROBABILITY, {LOGARITHMS, ACTIONS}, PICKED},
    {OP_SUM, {PICKED, COEFFICIENT}, LOSS},
};
enum { STEPS = sizeof steps / sizeof *steps };

struct policy_run {
    struct backend *backend;
    struct arena *arena;
    struct op_call call[STEPS];
    struct tensor value[SLOTS], gradient[SLOTS];
};

static void must(enum status status, const struct error *error)
{
    ck_assert_msg(status == STATUS_OK, "%s", error->text);
}

static void upload(struct policy_run *run, uint32_t slot, struct shape shape, enum dtype dtype,
                   const void *from)
{
    struct error error = {0};
    const enum dtype device = dtype == DTYPE_I32 ? DTYPE_I32 : run->backend->ops->dtype;
    must(tensor_new(&run->value[slot], run->arena, shape, device, "leaf", &error), &error);
    must(backend_upload(run->backend, &run->value[slot], dtype, from, &error), &error);
}

static void upload_leaves(struct policy_run *run, const struct mlp_problem *problem)
{
    const struct mlp_shape *shape = &problem->shape;
    const uint32_t rows = problem->rows;
    const float *slab = problem->parameters;
    int32_t *words = values_memory((size_t)rows * 3, sizeof *words);
    int32_t *actions = values_memory(rows, sizeof *actions);
    for (uint32_t r = 0; r < rows; r++) {
        words[3 * r] = (int32_t)problem->environment[r];
        words[3 * r + 1] = (int32_t)problem->step[r];
        words[3 * r + 2] = (int32_t)problem->episode;
        actions[r] = problem->batch.actions[r];
    }
    upload(run, X, SHAPE2(rows, shape->inputs), DTYPE_F32, problem->batch.observations);
    upload(run, W1, SHAPE2(shape->hidden, shape->inputs), DTYPE_F32, slab);
    slab += (size_t)shape->hidden * shape->inputs;
    upload(run, B1, SHAPE1(shape->hidden), DTYPE_F32, slab);
    slab += shape->hidden;
    upload(run, W2, SHAPE2(shape->actions, shape->hidden), DTYPE_F32, slab);
    slab += (size_t)shape->actions * shape->hidden;
    upload(run, B2, SHAPE1(shape->actions), DTYPE_F32, slab);
    upload(run, ROWS, SHAPE2(rows, 3), DTYPE_I32, words);
    upload(run, ACTIONS, SHAPE1(rows), DTYPE_I32, actions);
    upload(run, COEFFICIENT, SHAPE1(rows), DTYPE_F32, problem->coefficient);
    free(words);
    free(actions);
}

static void forward(struct policy_run *run, const struct mlp_problem *problem)
{
    struct error error = {0};
    upload_leaves(run, problem);
    for (uint32_t s = 0; s < STEPS; s++) {
        struct op_call *call = &run->call[s];
        *call = (struct op_call){
            .op = steps[s].op,
            .attributes = {.dropout = problem->dropout, .draw = {.seed = problem->seed}, .scale = -1},
            .arena = run->arena,
            .keep = true,
            .out = {&run->value[steps[s].out]}};
        for (uint32_t i = 0; i < op_rule(steps[s].op)->inputs; i++)
            call->in[i] = &run->value[steps[s].in[i]];
        must(op_forward(run->backend, call, &error), &error);
    }
}

/* From the loss to the parameters. */
static void backward(struct policy_run *run)
{
    const float one = 1;
    struct error error = {0};
    must(tensor_new(&run->gradient[LOSS], run->arena, SHAPE0(), run->backend->ops->dtype, "one", &error),
         &error);
    must(backend_upload(run->backend, &run->gradient[LOSS], DTYPE_F32, &one, &error), &error);
    for (uint32_t s = STEPS; s-- > 0;) {
        struct op_call *call = &run->call[s];
        if (run->gradient[steps[s].out].data == NULL)
            continue;
        call->dout[0] = &run->gradient[steps[s].out];
        for (uint32_t i = 0; i < op_rule(call->op)->inputs; i++)
            if ((op_rule(call->op)->in[i].flags & OP_GRADIENT) != 0 && steps[s].in[i] != X)
                call->din[i] = &run->gradient[steps[s].in[i]];
        must(op_backward(run->backend, call, &error), &error);
    }
}

static struct values numbers(struct policy_run *run, const struct tensor *tensor)
{
    struct values values = {0};
    struct error error = {0};
    must(values_download(&values, run->backend, tensor, &error), &error);
    return values;
}

static void compare_masks(struct policy_run *run, const struct mlp_problem *problem)
{
    struct values before = numbers(run, &run->value[LINEAR1]), after = numbers(run, &run->value[DROPPED]);
    const uint32_t hidden = problem->shape.hidden, words = mlp_mask_words(&problem->shape);
    for (size_t i = 0; i < before.count; i++) {
        const size_t row = i / hidden, j = i % hidden;
        const bool kept = problem->batch.masks[row * words + j / 16] >> j % 16 & 1;
        ck_assert_msg(before.real[i] == 0 || kept == (after.real[i] != 0), "row %zu, unit %zu", row, j);
    }
    values_free(&before);
    values_free(&after);
}

/* The policy's numbers are float32's themselves: both are off the truth, so the bound is twice one's. */
static void compare_floats(struct conformance *pair, const char *what, const struct values *got,
                           const float *expected, double bound)
{
    struct values wanted = values_new(got->shape, DTYPE_F64);
    for (size_t i = 0; i < wanted.count; i++)
        wanted.real[i] = (double)expected[i];
    conformance_compare(pair, what, &wanted, got, 2 * bound);
    values_free(&wanted);
}

START_TEST(operations_are_the_policy)
{
    struct conformance pair;
    struct mlp_problem problem;
    if (!conformance_open(&pair, (unsigned)_i / CASES, _i % CASES == 0))
        return;
    mlp_problem_init(&problem, cases[_i % CASES].shape, cases[_i % CASES].dropout, cases[_i % CASES].rows,
                     77);
    for (uint32_t r = 0; r < problem.rows; r++)
        problem.row[r] = r;
    struct mlp *mlp = mlp_problem_load(&problem, NULL);
    mlp_problem_act(&problem, mlp);
    mlp_problem_learn(&problem, mlp);
    struct policy_run run = {.backend = pair.backend, .arena = pair.arena};
    forward(&run, &problem);
    backward(&run);
    compare_masks(&run, &problem);
    const double bound = op_bound_output(&run.call[0]) + op_bound_output(&run.call[3]) +
                         op_bound_output(&run.call[4]) + op_bound_gradient(&run.call[4], 0) +
                         op_bound_gradient(&run.call[3], 1) + op_bound_gradient(&run.call[0], 1);
    struct values probabilities = numbers(&run, &run.value[LOGARITHMS]);
    for (size_t i = 0; i < probabilities.count; i++)
        probabilities.real[i] = exp(probabilities.real[i]);
    compare_floats(&pair, "probabilities", &probabilities, problem.probabilities, bound);
    values_free(&probabilities);
    const float *gradient = problem.gradient;
    for (uint32_t slot = W1; slot <= B2; gradient += shape_elements(&run.value[slot].shape), slot++) {
        struct values got = numbers(&run, &run.gradient[slot]);
        compare_floats(&pair, "gradient of a parameter", &got, gradient, bound);
        values_free(&got);
    }
    ck_assert_uint_eq(pair.complaints, 0);
    mlp_free(mlp);
    mlp_problem_fini(&problem);
    conformance_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conformance_policy");
    TCase *policy = tcase_create("policy");
    tcase_add_loop_test(policy, operations_are_the_policy, 0, CONFORMANCE_BACKENDS * CASES);
    suite_add_tcase(suite, policy);
    return suite_run(suite);
}
