/* The backend that only stores: what is uploaded comes back, from and to both widths. */
#include "kernels/backend.h"
#include "kernels/params/params.h"
#include "test/workplace.h"

#include <check.h>

static struct error error;
static struct backend *backend;
static struct params *params;
static struct parameter *entry;

static void setup(void)
{
    const struct backend_settings settings = {.threads = 1};
    ck_assert_int_eq(backend_open(&backend, &memory_ops, &settings, &error), STATUS_OK);
    ck_assert_int_eq(params_new(&params, backend, &error), STATUS_OK);
    ck_assert_int_eq(params_add(params, "weight", PARAMETER_TRAINED, SHAPE2(2, 2),
                                (struct init){INIT_CONSTANT, 0.25}, &entry, &error),
                     STATUS_OK);
    ck_assert_int_eq(params_build(params, 1, &error), STATUS_OK);
}

static void teardown(void)
{
    params_free(params);
    backend_close(backend);
}

START_TEST(values_begin_as_they_are_filled)
{
    float values[4];
    ck_assert_int_eq(params_read(params, entry, DTYPE_F32, values, &error), STATUS_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_float_eq(values[i], 0.25f);
}
END_TEST

START_TEST(values_come_back_in_either_width)
{
    static const float narrow[4] = {1, -2, 0x1p-20f, 3.5f};
    static const double wide[4] = {0.1, -2, 0x1p-20, 3.5};
    float narrow_back[4];
    double wide_back[4];
    ck_assert_int_eq(params_write(params, entry, DTYPE_F32, narrow, &error), STATUS_OK);
    ck_assert_int_eq(params_read(params, entry, DTYPE_F32, narrow_back, &error), STATUS_OK);
    ck_assert_mem_eq(narrow_back, narrow, sizeof narrow);
    ck_assert_int_eq(params_write(params, entry, DTYPE_F64, wide, &error), STATUS_OK);
    ck_assert_int_eq(params_read(params, entry, DTYPE_F64, wide_back, &error), STATUS_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq(wide_back[i], (double)(float)wide[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backend_memory");
    TCase *tests = tcase_create("backend_memory");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, values_begin_as_they_are_filled);
    tcase_add_test(tests, values_come_back_in_either_width);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
