/* One row of the table, run. Linked into the tests and benchmarks that go by the table. */
#include "test/kernels/op_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void op_stage_init(struct op_stage *stage, const struct op_case *op_case, struct arena *arena)
{
    const struct op_rule *rule = op_rule(op_case->op);
    *stage = (struct op_stage){
        .call = {.op = op_case->op, .attributes = op_case->attributes, .arena = arena, .keep = true}};
    for (uint32_t i = 0; i < rule->inputs; i++)
        if (op_case_has(op_case, i))
            stage->call.in[i] = &stage->in[i];
    const bool statistics = op_case->op != OP_BATCH_NORM || op_case->attributes.training;
    for (uint32_t i = 0; i < rule->outputs; i++)
        if (i == 0 || statistics)
            stage->call.out[i] = &stage->out[i];
}

static enum status fill_inputs(struct op_stage *stage, const struct op_problem *problem,
                               struct backend *backend, struct error *error)
{
    const struct op_rule *rule = op_rule(stage->call.op);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < rule->inputs && status == STATUS_OK; i++)
        if (stage->call.in[i] != NULL)
            status = values_upload(&problem->in[i], backend, stage->call.arena, rule->in[i].name,
                                   &stage->in[i], error);
    return status;
}

/* Memory for a result that a run must overwrite altogether. */
static enum status preset(struct tensor *tensor, struct op_stage *stage, struct backend *backend,
                          struct shape shape, struct error *error)
{
    enum status status = tensor_new(tensor, stage->call.arena, shape, backend->ops->dtype, "preset", error);
    return status == STATUS_OK ? backend_fill(backend, tensor, (double)NAN, error) : status;
}

static enum status forward(struct op_stage *stage, const struct op_problem *problem,
                           const struct op_wish *wish, struct backend *backend, struct error *error)
{
    const struct op_rule *rule = op_rule(stage->call.op);
    enum status status = fill_inputs(stage, problem, backend, error);
    stage->call.keep = !wish->inference;
    for (uint32_t i = 0; wish->preset && i < rule->outputs && status == STATUS_OK; i++)
        if ((rule->out[i].flags & OP_OFFERED) != 0 && stage->call.out[i] != NULL)
            status = preset(&stage->out[i], stage, backend, problem->out_shape[i], error);
    return status == STATUS_OK ? op_forward(backend, &stage->call, error) : status;
}

static bool in_use(const struct op_call *call, const void *data)
{
    const struct op_rule *rule = op_rule(call->op);
    bool used = false;
    for (uint32_t i = 0; i < rule->inputs; i++)
        used =
            used || ((rule->in[i].flags & OP_READ) != 0 && call->in[i] != NULL && call->in[i]->data == data);
    for (uint32_t i = 0; i < rule->outputs; i++)
        used = used ||
               ((rule->out[i].flags & OP_READ) != 0 && call->out[i] != NULL && call->out[i]->data == data);
    for (uint32_t i = 0; i < OP_SAVED_MAX; i++)
        used = used || call->saved[i].data == data;
    return used;
}

/* A tape may have given such memory to somebody else. An output can be an input's memory; what is read under
 * one name stays. */
static enum status forget(struct tensor *const tensors[], uint32_t count, const struct op_call *call,
                          struct backend *backend, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        if (tensors[i] != NULL && tensors[i]->dtype != DTYPE_I32 && !in_use(call, tensors[i]->data))
            status = backend_fill(backend, tensors[i], (double)NAN, error);
    return status;
}

static enum status backward(struct op_stage *stage, const struct op_problem *problem,
                            const struct op_wish *wish, struct backend *backend, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX && status == STATUS_OK; i++)
        if ((wish->dout >> i & 1) != 0) {
            stage->call.dout[i] = &stage->dout[i];
            status = values_upload(&problem->dout[i], backend, stage->call.arena, "output gradient",
                                   &stage->dout[i], error);
        }
    for (uint32_t i = 0; i < OP_INPUTS_MAX && status == STATUS_OK; i++)
        if ((wish->din >> i & 1) != 0) {
            stage->call.din[i] = &stage->din[i];
            if (wish->preset)
                status = preset(&stage->din[i], stage, backend, problem->in[i].shape, error);
        }
    if (wish->forget && status == STATUS_OK)
        status = forget(stage->call.in, OP_INPUTS_MAX, &stage->call, backend, error);
    if (wish->forget && status == STATUS_OK)
        status = forget(stage->call.out, OP_OUTPUTS_MAX, &stage->call, backend, error);
    return status == STATUS_OK ? op_backward(backend, &stage->call, error) : status;
}

enum status op_run(struct op_answer *answer, const struct op_problem *problem, const struct op_wish *wish,
                   struct backend *backend, struct arena *arena, struct error *error)
{
    struct op_stage stage;
    op_answer_fini(answer);
    arena_reset(arena);
    op_stage_init(&stage, problem->op_case, arena);
    enum status status = forward(&stage, problem, wish, backend, error);
    if (status != STATUS_OK)
        return status;
    answer->out_bound = op_bound_output(&stage.call);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX && status == STATUS_OK; i++)
        if (stage.call.out[i] != NULL)
            status = values_download(&answer->out[i], backend, &stage.out[i], error);
    if (wish->din == 0 || status != STATUS_OK)
        return status;
    status = backward(&stage, problem, wish, backend, error);
    for (uint32_t i = 0; i < OP_INPUTS_MAX && status == STATUS_OK; i++)
        if (stage.call.din[i] != NULL) {
            answer->din_bound[i] = op_bound_gradient(&stage.call, i);
            status = values_download(&answer->din[i], backend, &stage.din[i], error);
        }
    return status;
}

void op_answer_fini(struct op_answer *answer)
{
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        values_free(&answer->out[i]);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        values_free(&answer->din[i]);
}

struct op_wish op_wish_all(const struct op_problem *problem)
{
    return (struct op_wish){.din = op_case_gradient(problem->op_case),
                            .dout = op_case_outputs(problem->op_case)};
}

/* ---- the problem ---- */

static void must(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "ref: %s\n", error->text);
    exit(EXIT_FAILURE);
}

/* The values whose sign a ReLU reads, output by output: the same operation without it. */
static struct values before_relu(const struct op_problem *problem, struct backend *ref, struct arena *arena)
{
    struct op_case plain = *problem->op_case;
    struct op_problem without = *problem;
    struct op_answer answer = {0};
    struct error error = {0};
    if (plain.op == OP_RELU)
        return op_case_input(&plain, 0);
    plain.attributes.relu = false;
    without.op_case = &plain;
    must(op_run(&answer, &without, &(struct op_wish){0}, ref, arena, &error), &error);
    struct values values = answer.out[0];
    answer.out[0] = (struct values){0};
    op_answer_fini(&answer);
    return values;
}

static void leave_out_kinks(struct op_problem *problem, struct backend *ref, struct arena *arena)
{
    struct values before = before_relu(problem, ref, arena);
    double largest = 0;
    for (size_t i = 0; i < before.count; i++)
        largest = fmax(largest, fabs(before.real[i]));
    for (size_t i = 0; i < before.count; i++)
        if (fabs(before.real[i]) < largest / 100)
            problem->dout[0].real[i] = 0;
    values_free(&before);
}

static void draw_output_gradients(struct op_problem *problem)
{
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        if ((op_case_outputs(problem->op_case) >> i & 1) != 0 && problem->out_dtype[i] == DTYPE_F64)
            problem->dout[i] = values_drawn(problem->out_shape[i], 7 + i);
}

static void find_shapes(struct op_problem *problem, struct backend *ref)
{
    struct op_stage stage;
    struct error error = {0};
    const uint32_t outputs = op_outputs(problem->op_case->op, &problem->op_case->attributes);
    op_stage_init(&stage, problem->op_case, NULL);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        stage.in[i] = (struct tensor){.shape = problem->in[i].shape, .dtype = problem->in[i].dtype};
    must(op_shapes(ref, &stage.call, problem->out_shape, &error), &error);
    for (uint32_t i = 0; i < outputs; i++)
        problem->out_dtype[i] = DTYPE_F64;
}

void op_problem_init(struct op_problem *problem, const struct op_case *op_case, struct backend *ref)
{
    struct arena *arena = NULL;
    struct error error = {0};
    *problem = (struct op_problem){.op_case = op_case};
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        problem->in[i] = op_case_input(op_case, i);
    find_shapes(problem, ref);
    draw_output_gradients(problem);
    must(arena_new(&arena, &ref->source, &error), &error);
    if ((op_case->attributes.relu || op_case->op == OP_RELU) && !op_case->ties)
        leave_out_kinks(problem, ref, arena);
    arena_free(arena);
}

void op_problem_fini(struct op_problem *problem)
{
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        values_free(&problem->in[i]);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        values_free(&problem->dout[i]);
}
