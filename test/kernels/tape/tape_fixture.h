/* The fixture of the tests of tape, parameters and optimizers: a backend, params, a tape, and functions
 * that build a graph. The backend is the oracle, or a table made from it. */
#ifndef TEST_KERNELS_TAPE_TAPE_FIXTURE_H
#define TEST_KERNELS_TAPE_TAPE_FIXTURE_H

#include "kernels/params/optim.h"
#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "test/oracle/ref.h"

#include <check.h>
#include <string.h>

#define CK_OK(call) fixture_ok(call, #call)

static struct fixture {
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct tape *tape;
    struct error error;
} fixture;

static inline void fixture_ok(enum status status, const char *call)
{
    if (status != STATUS_OK && fixture.error.status == STATUS_OK)
        tape_status(fixture.tape, &fixture.error);
    ck_assert_msg(status == STATUS_OK, "%s: %s: %s", call, status_name(status), fixture.error.text);
}

/* A backend and params to register with. */
static inline void fixture_open_with(const struct backend_ops *ops)
{
    fixture = (struct fixture){0};
    const struct backend_settings settings = {.threads = 1};
    CK_OK(backend_open(&fixture.backend, ops, &settings, &fixture.error));
    CK_OK(params_new(&fixture.params, fixture.backend, &fixture.error));
    CK_OK(tape_new(&fixture.tape, fixture.backend, &fixture.error));
    arena_poison(tape_arena(fixture.tape), true);
}

static inline void fixture_open(void)
{
    fixture_open_with(&ref_ops);
}

static inline void fixture_close(void)
{
    tape_free(fixture.tape);
    gradients_free(fixture.gradients);
    params_free(fixture.params);
    backend_close(fixture.backend);
}

/* A trained parameter, zero at first. */
static inline struct parameter *fixture_add(const char *name, struct shape shape)
{
    struct parameter *parameter = NULL;
    const struct init zero = {INIT_CONSTANT, 0};
    CK_OK(params_add(fixture.params, name, PARAMETER_TRAINED, shape, zero, &parameter, &fixture.error));
    return parameter;
}

static inline void fixture_build(uint64_t seed)
{
    CK_OK(params_build(fixture.params, seed, &fixture.error));
    CK_OK(gradients_new(&fixture.gradients, fixture.params, &fixture.error));
}

static inline void fixture_begin(void)
{
    tape_begin(fixture.tape, TAPE_TRAIN, fixture.gradients);
}

static inline struct variable *fixture_use(struct parameter *parameter)
{
    return tape_parameter(fixture.tape, parameter);
}

static inline void fixture_write(struct parameter *parameter, const double *values)
{
    CK_OK(params_write(fixture.params, parameter, DTYPE_F64, values, &fixture.error));
}

static inline struct variable *fixture_input(struct shape shape, const char *name, const double *values)
{
    return tape_input(fixture.tape, shape, DTYPE_F64, name, values);
}

/* A step of 8 KiB. The blocks of the next steps lie in one chunk of that size, so a test can look at a block
 * after its release. */
static inline void fixture_settle(void)
{
    static const double zeros[1024];
    fixture_begin();
    ck_assert_ptr_nonnull(fixture_input(SHAPE1(1024), "settle", zeros));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
}

static inline void fixture_expect(const double *got, const double *expected, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(got[i] == expected[i], "%s[%zu] is %.17g, expected %.17g", what, i, got[i],
                      expected[i]);
}

/* The gradient of a parameter, number by number. */
static inline void fixture_expect_gradient(const struct parameter *parameter, const double *expected)
{
    double got[64];
    size_t count = shape_elements(&parameter->tensor.shape);
    ck_assert_uint_le(count, 64);
    CK_OK(gradients_read(fixture.gradients, parameter, DTYPE_F64, got, &fixture.error));
    fixture_expect(got, expected, count, parameter->name);
}

static inline void fixture_expect_value(const struct variable *variable, const double *expected)
{
    double got[64];
    ck_assert_ptr_nonnull(variable);
    size_t count = shape_elements(&variable_tensor(variable)->shape);
    ck_assert_uint_le(count, 64);
    CK_OK(tape_read(fixture.tape, variable, DTYPE_F64, got));
    fixture_expect(got, expected, count, "value");
}

static inline void fixture_expect_failure(enum status status, const char *words)
{
    struct error error = {0};
    ck_assert_int_eq(tape_status(fixture.tape, &error), status);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" does not say \"%s\"", error.text, words);
}

#endif
