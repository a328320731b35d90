/* One oracle per test, opened and closed around it. */
#include "test/op_fixture.h"

#include <check.h>
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
