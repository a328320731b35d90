/* One oracle per test, opened and closed around it. */
#include "test/kernels/op_fixture.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct op_fixture op_fixture;

void op_fixture_open(void)
{
    const struct backend_settings settings = {.threads = 1};
    op_fixture.error = (struct error){0};
    ck_assert_int_eq(backend_open(&op_fixture.backend, &ref_ops, &settings, &op_fixture.error), STATUS_OK);
    ck_assert_int_eq(arena_new(&op_fixture.arena, &op_fixture.backend->source, &op_fixture.error), STATUS_OK);
    arena_poison(op_fixture.arena, true);
}

void op_fixture_close(void)
{
    arena_free(op_fixture.arena);
    backend_close(op_fixture.backend);
}

static struct tensor filled(struct shape shape, enum dtype dtype, const char *name, const void *values)
{
    struct tensor tensor = {0};
    enum status status = tensor_new(&tensor, op_fixture.arena, shape, dtype, name, &op_fixture.error);
    ck_assert_msg(status == STATUS_OK, "%s", op_fixture.error.text);
    if (values != NULL)
        memcpy(tensor.data, values, tensor.bytes);
    else
        memset(tensor.data, 0, tensor.bytes);
    return tensor;
}

struct tensor op_fixture_doubles(struct shape shape, const char *name, const double *values)
{
    return filled(shape, DTYPE_F64, name, values);
}

struct tensor op_fixture_integers(struct shape shape, const char *name, const int32_t *values)
{
    return filled(shape, DTYPE_I32, name, values);
}

static const char *const names[OP_INPUTS_MAX] = {"in0", "in1", "in2", "in3", "in4", "in5", "in6"};

/* "3x5", or "" for a scalar. */
static struct shape parse_shape(const char *text)
{
    struct shape shape = {0};
    while (*text != '\0') {
        char *end;
        ck_assert_uint_lt(shape.rank, SHAPE_RANK_MAX);
        shape.size[shape.rank++] = (uint32_t)strtoul(text, &end, 10);
        text = *end == 'x' ? end + 1 : end;
    }
    return shape;
}

void op_fixture_describe(struct described *d, enum op op, const char *shapes, bool real)
{
    static double pretended[8];
    char word[64];
    int length;
    d->call.op = op;
    d->call.arena = op_fixture.arena;
    d->call.keep = true;
    for (int i = 0; sscanf(shapes, "%63s%n", word, &length) == 1; i++, shapes += length) {
        const bool integer = word[0] == 'i';
        if (strcmp(word, "-") == 0)
            continue;
        const struct shape shape = parse_shape(strcmp(word + integer, "()") == 0 ? "" : word + integer);
        ck_assert_int_lt(i, OP_INPUTS_MAX);
        if (!real)
            d->in[i] = (struct tensor){
                shape, integer ? DTYPE_I32 : DTYPE_F64, NULL, NULL, pretended, SIZE_MAX, names[i]};
        else if (integer)
            d->in[i] = op_fixture_integers(shape, names[i], NULL);
        else
            d->in[i] = op_fixture_doubles(shape, names[i], NULL);
        d->call.in[i] = &d->in[i];
    }
    for (uint32_t i = 0; (unsigned)op < OP_COUNT && i < op_rule(op)->outputs; i++)
        d->call.out[i] = &d->out[i];
}

void op_fixture_forward(struct op_call *call)
{
    call->arena = op_fixture.arena;
    enum status status = op_forward(op_fixture.backend, call, &op_fixture.error);
    ck_assert_msg(status == STATUS_OK, "%s", op_fixture.error.text);
}

void op_fixture_backward(struct op_call *call)
{
    enum status status = op_backward(op_fixture.backend, call, &op_fixture.error);
    ck_assert_msg(status == STATUS_OK, "%s", op_fixture.error.text);
}

void op_fixture_refused(enum status status, const char *first, const char *second)
{
    const struct error *error = &op_fixture.error;
    ck_assert_msg(status == STATUS_INVALID, "not refused, but %s: \"%s\" and \"%s\"", status_name(status),
                  first, second);
    ck_assert_int_eq(error->status, STATUS_INVALID);
    ck_assert_msg(strstr(error->text, first) != NULL, "\"%s\" does not say \"%s\"", error->text, first);
    ck_assert_msg(strstr(error->text, second) != NULL, "\"%s\" does not say \"%s\"", error->text, second);
}

double op_fixture_at(const struct tensor *tensor, size_t index)
{
    ck_assert_int_eq(tensor->dtype, DTYPE_F64);
    ck_assert_uint_lt(index, shape_elements(&tensor->shape));
    return ((const double *)tensor->data)[index];
}
