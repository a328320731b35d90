/* The data of a row of the table, and its name in messages. */
#include "test/kernels/op_cases.h"
#include "test/kernels/policy/mlp_problem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

bool op_case_has(const struct op_case *op_case, uint32_t i)
{
    return i < op_rule(op_case->op)->inputs && (op_case->absent >> i & 1) == 0;
}

uint32_t op_case_gradient(const struct op_case *op_case)
{
    if (op_case->op == OP_BATCH_NORM && !op_case->attributes.training)
        return 0;
    uint32_t gradient = 0;
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        if (op_rule(op_case->op)->in[i].flags & OP_GRADIENT)
            gradient |= 1u << i;
    return gradient & ~op_case->absent;
}

/* A batch norm's mean and variance go to the running ones, which nothing differentiates. */
uint32_t op_case_outputs(const struct op_case *op_case)
{
    return op_case->op == OP_LSTM_LAYER ? 7 : op_case->op == OP_GRU_LAYER ? 3 : 1;
}

/* Text that grows behind `used` bytes and is cut where the buffer ends. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t *used, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + *used, OP_CASE_TEXT_BYTES - *used, format, arguments);
    va_end(arguments);
    if (more > 0)
        *used += (size_t)more < OP_CASE_TEXT_BYTES - *used ? (size_t)more : OP_CASE_TEXT_BYTES - 1 - *used;
}

static void append_pair(char *text, size_t *used, const char *name, const uint32_t pair[2])
{
    if (pair[0] != 0 || pair[1] != 0)
        append(text, used, ", %s %ux%u", name, pair[0], pair[1]);
}

const char *op_case_text(const struct op_case *op_case, char text[OP_CASE_TEXT_BYTES])
{
    const struct op_rule *rule = op_rule(op_case->op);
    const struct op_attributes *attributes = &op_case->attributes;
    char shape[SHAPE_TEXT_BYTES];
    size_t used = 0;
    append(text, &used, "%s%s%s:", rule->name, op_case->name[0] == '\0' ? "" : " ", op_case->name);
    for (uint32_t i = 0; i < rule->inputs; i++)
        if (op_case_has(op_case, i))
            append(text, &used, " %s %s", rule->in[i].name, shape_text(&op_case->in[i], shape));
    append_pair(text, &used, "kernel", attributes->kernel);
    append_pair(text, &used, "stride", attributes->stride);
    append_pair(text, &used, "padding", attributes->padding);
    if (op_case->op == OP_DROPOUT)
        append(text, &used, ", p %g", attributes->dropout);
    if (attributes->relu)
        append(text, &used, ", relu");
    return text;
}

/* ---- numbers ---- */

static uint64_t seed_of(const struct op_case *op_case, uint32_t i)
{
    uint64_t state = (uint64_t)op_case->op * OP_INPUTS_MAX + i;
    for (uint32_t d = 0; d < op_case->in[i].rank; d++)
        state = state * 1000003 + op_case->in[i].size[d];
    mlp_problem_number(&state);
    return state;
}

/* In steps of a quarter where ties are wanted, so that sums are exact and zero is met. */
static void fill_uniform(struct values *values, uint64_t state, double bound, bool ties)
{
    for (size_t i = 0; i < values->count; i++) {
        double number = (double)mlp_problem_number(&state);
        values->real[i] = ties ? round(4 * number) / 4 : (double)(float)(bound * number);
    }
}

/* Every multiple of 2 / elements once, scattered by a prime that no count here is a multiple of, so that no
 * two are close. */
static void fill_spread(struct values *values)
{
    const uint64_t count = values->count;
    for (uint64_t i = 0; i < count; i++)
        values->real[i] = (double)(float)(2.0 * (double)(i * 1000003 % count) / (double)count - 1);
}

static void fill_variance(struct values *values, uint64_t state)
{
    for (size_t i = 0; i < values->count; i++)
        values->real[i] = 1 + 0.5 * (double)mlp_problem_number(&state);
}

static void fill_indices(struct values *values, uint64_t state, uint32_t range)
{
    for (size_t i = 0; i < values->count; i++)
        values->whole[i] = (int32_t)((double)(mlp_problem_number(&state) + 1) / 2 * range);
}

/* (environment, step, episode), as five environments' rows come. */
static void fill_rows(struct values *values)
{
    for (int32_t r = 0; r < (int32_t)values->shape.size[0]; r++) {
        values->whole[3 * r] = r % 5;
        values->whole[3 * r + 1] = r / 5;
        values->whole[3 * r + 2] = 3;
    }
}

static void fill_whole(const struct op_case *op_case, uint32_t i, struct values *values)
{
    const uint64_t state = seed_of(op_case, i);
    if (op_case->op == OP_EMBEDDING)
        fill_indices(values, state, op_case->in[1].size[0]);
    else if (op_case->op == OP_CROSS_ENTROPY || op_case->op == OP_LOG_PROBABILITY)
        fill_indices(values, state, op_case->in[0].size[1]);
    else
        fill_rows(values);
}

static void fill_real(const struct op_case *op_case, uint32_t i, struct values *values)
{
    const uint64_t state = seed_of(op_case, i);
    switch (op_case->op) {
    case OP_BATCH_NORM:
        if (i == 4)
            fill_variance(values, state);
        else
            fill_uniform(values, state, 1, op_case->ties);
        return;
    case OP_MAX_POOL:
        if (op_case->ties)
            fill_uniform(values, state, 1, true);
        else
            fill_spread(values);
        return;
    case OP_LOG_SOFTMAX:
    case OP_CROSS_ENTROPY:
    case OP_LOG_PROBABILITY:
        fill_uniform(values, state, 4, op_case->ties);
        return;
    case OP_LSTM_LAYER:
        fill_uniform(values, state, i < 3 ? 1 : 1 / sqrt(op_case->in[4].size[1]), op_case->ties);
        return;
    case OP_GRU_LAYER:
        fill_uniform(values, state, i < 2 ? 1 : 1 / sqrt(op_case->in[3].size[1]), op_case->ties);
        return;
    default:
        fill_uniform(values, state, 1, op_case->ties);
        return;
    }
}

struct values op_case_input(const struct op_case *op_case, uint32_t i)
{
    if (!op_case_has(op_case, i))
        return (struct values){0};
    const bool whole = (op_rule(op_case->op)->in[i].flags & OP_INTEGERS) != 0;
    struct values values = values_new(op_case->in[i], whole ? DTYPE_I32 : DTYPE_F64);
    if (whole)
        fill_whole(op_case, i, &values);
    else
        fill_real(op_case, i, &values);
    return values;
}
