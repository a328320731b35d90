/* Shapes and dtypes: counts that overflow, and texts. */
#include "kernels/tensor.h"
#include "test/workplace.h"

#include <check.h>
#include <string.h>

static const struct {
    struct shape shape;
    size_t elements;
    const char *text;
} shapes[] = {
    {{0}, 1, "scalar"},
    {{1, {7}}, 7, "7"},
    {{2, {3, 5}}, 15, "3x5"},
    {{4, {20, 3, 64, 64}}, 245760, "20x3x64x64"},
    {{1, {0}}, 0, "0"},
    {{3, {4, 0, 2}}, 0, "4x0x2"},
    {{1, {INT32_MAX}}, INT32_MAX, "2147483647"},
    {{1, {INT32_MAX + 1u}}, 0, "2147483648"},
    {{2, {1 << 16, 1 << 15}}, 0, "65536x32768"},
    {{2, {2, 1073741823}}, INT32_MAX - 1, "2x1073741823"},
    {{4, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}}, 0, "4294967295x4294967295x4294967295x4294967295"},
    {{2, {UINT32_MAX, 0}}, 0, "4294967295x0"},
    {{4, {1 << 16, 1 << 16, 1 << 16, 1 << 16}}, 0, "65536x65536x65536x65536"}, // 2^64: 0 where it wraps
    {{5, {1, 1, 1, 1}}, 0, "rank 5"},
    {{UINT32_MAX, {0}}, 0, "rank 4294967295"},
};

START_TEST(elements_are_counted_and_shapes_written)
{
    char text[SHAPE_TEXT_BYTES];
    ck_assert_uint_eq(shape_elements(&shapes[_i].shape), shapes[_i].elements);
    ck_assert_ptr_eq(shape_text(&shapes[_i].shape, text), text);
    ck_assert_str_eq(text, shapes[_i].text);
}
END_TEST

START_TEST(equal_shapes_are_equal_where_they_are_read)
{
    struct shape a = SHAPE2(3, 5), b = SHAPE2(3, 5);
    b.size[2] = 99; // beyond the rank
    ck_assert(shape_equal(&a, &b));
    ck_assert(!shape_equal(&a, &SHAPE2(3, 6)));
    ck_assert(!shape_equal(&a, &SHAPE3(3, 5, 1)));
    ck_assert(!shape_equal(&SHAPE1(3), &a));
    ck_assert(shape_equal(&SHAPE0(), &SHAPE0()));
    struct shape broken = {.rank = 9};
    ck_assert(!shape_equal(&broken, &broken));
}
END_TEST

START_TEST(dtypes_have_sizes_and_names)
{
    ck_assert_uint_eq(dtype_bytes(DTYPE_F32), 4);
    ck_assert_uint_eq(dtype_bytes(DTYPE_F64), 8);
    ck_assert_uint_eq(dtype_bytes(DTYPE_I32), 4);
    ck_assert_str_eq(dtype_name(DTYPE_F32), "float32");
    ck_assert_str_eq(dtype_name(DTYPE_F64), "float64");
    ck_assert_str_eq(dtype_name(DTYPE_I32), "int32");
    ck_assert_str_eq(dtype_name((enum dtype)77), "unknown dtype");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor");
    TCase *tensor = tcase_create("tensor");
    tcase_add_loop_test(tensor, elements_are_counted_and_shapes_written, 0, sizeof shapes / sizeof *shapes);
    tcase_add_test(tensor, equal_shapes_are_equal_where_they_are_read);
    tcase_add_test(tensor, dtypes_have_sizes_and_names);
    suite_add_tcase(suite, tensor);
    return suite_run(suite);
}
