/* A region's arrays are zero, aligned and given back together; one that cannot be had is remembered. */
#include "kernels/base/region.h"
#include "test/workplace.h"

#include <check.h>
#include <stdalign.h>
#include <stdint.h>
#include <string.h>

START_TEST(arrays_are_zero_and_apart)
{
    struct region region = {0};
    unsigned char *arrays[8];
    for (size_t i = 0; i < 8; i++) {
        arrays[i] = region_take(&region, i, 3);
        ck_assert_ptr_nonnull(arrays[i]);
        ck_assert_uint_eq((uintptr_t)arrays[i] % alignof(max_align_t), 0);
        for (size_t k = 0; k < 3 * i; k++)
            ck_assert_uint_eq(arrays[i][k], 0);
        memset(arrays[i], (int)i + 1, 3 * i);
    }
    for (size_t i = 0; i < 8; i++)
        for (size_t k = 0; k < 3 * i; k++)
            ck_assert_uint_eq(arrays[i][k], i + 1);
    ck_assert(!region.failed);
    region_free(&region);
    region_free(&region);
}
END_TEST

START_TEST(what_cannot_be_had_is_remembered)
{
    struct region region = {0};
    ck_assert_ptr_nonnull(region_take(&region, 1, 1));
    ck_assert_ptr_null(region_take(&region, SIZE_MAX, 2));
    ck_assert_ptr_null(region_take(&region, SIZE_MAX, 1));
    ck_assert_ptr_nonnull(region_take(&region, 1, 1));
    ck_assert(region.failed);
    region_free(&region);
    ck_assert(!region.failed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("region");
    TCase *tests = tcase_create("region");
    tcase_add_test(tests, arrays_are_zero_and_apart);
    tcase_add_test(tests, what_cannot_be_had_is_remembered);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
