/* Products of matrices: each element is the promised chain of fused multiply-adds, bit for bit, on every
 * instruction set, however the product is laid out or cut. */
#include "kernels/lanes/isa.h"
#include "kernels/lanes/product_lanes.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_MAX = 70, COLUMNS_MAX = 112, FLOATS = SIDE_MAX * COLUMNS_MAX };

static float a[FLOATS], transposed[FLOATS], b[FLOATS], panels[FLOATS], begin[COLUMNS_MAX], c[FLOATS];

/* NULL, and a line that says so, where this processor lacks it. */
static product_function *choose(const char *name)
{
    static product_function *const products[ISA_COUNT] = {
        [ISA_BASELINE] = product_baseline, [ISA_AVX2] = product_avx2, [ISA_AVX512] = product_avx512};
    enum isa isa;
    struct error error;
    setenv("COALESCED_ISA", name, 1);
    if (isa_choose(&isa, &error) == STATUS_OK)
        return products[isa];
    printf("test_product: %s is not tested: %s\n", name, error.text);
    return NULL;
}

/* Numbers of both signs and many sizes, so that a sum in another order has other bits. */
static void fill_numbers(float *values, size_t count, uint64_t seed)
{
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++)
        values[i] = ldexpf(mlp_problem_number(&state), (int)(i * 7 % 12));
}

/* Element (r, n): a[r][k] at r * depth + k, b[k][n] at k * COLUMNS_MAX + n. */
static float chain(uint32_t depth, uint32_t r, uint32_t n, float from)
{
    for (uint32_t k = 0; k < depth; k++)
        from = fmaf(a[r * depth + k], b[k * COLUMNS_MAX + n], from);
    return from;
}

static void fill(uint32_t rows, uint32_t depth, uint32_t columns)
{
    const uint32_t blocks = product_blocks(columns);
    fill_numbers(a, FLOATS, rows);
    fill_numbers(b, FLOATS, depth + 100);
    fill_numbers(begin, COLUMNS_MAX, blocks + 200);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < depth; k++)
            transposed[k * SIDE_MAX + r] = a[r * depth + k];
    for (uint32_t n = 0; n < blocks * PRODUCT_BLOCK; n++)
        for (uint32_t k = 0; k < depth; k++)
            panels[(n / PRODUCT_BLOCK * depth + k) * PRODUCT_BLOCK + n % PRODUCT_BLOCK] =
                b[k * COLUMNS_MAX + n];
}

static bool same_bits(float left, float right)
{
    uint32_t bits[2];
    memcpy(&bits[0], &left, sizeof left);
    memcpy(&bits[1], &right, sizeof right);
    return bits[0] == bits[1];
}

/* How many elements of c, whose rows are COLUMNS_MAX apart, are not the chain; elements beyond the last block
 * must be 99. */
static uint32_t wrong_elements(uint32_t rows, uint32_t depth, uint32_t columns)
{
    uint32_t wrong = 0;
    for (uint32_t r = 0; r < SIDE_MAX; r++)
        for (uint32_t n = 0; n < COLUMNS_MAX; n++) {
            const bool computed = r < rows && n < product_blocks(columns) * PRODUCT_BLOCK;
            const float expected = computed ? chain(depth, r, n, begin[n]) : 99;
            wrong += (!computed || n < columns) && !same_bits(expected, c[r * COLUMNS_MAX + n]);
        }
    return wrong;
}

static void forget(void)
{
    for (size_t i = 0; i < FLOATS; i++)
        c[i] = 99;
}

static const char *const names[] = {"avx512", "avx2", "baseline"};
static const uint32_t sizes[][3] = {{1, 1, 16},   {1, 5, 112},   {2, 3, 32},   {3, 64, 64}, {4, 17, 16},
                                    {5, 2, 80},   {6, 16, 32},   {7, 70, 48},  {8, 1, 32},  {9, 31, 16},
                                    {12, 8, 48},  {13, 4, 96},   {16, 0, 32},  {0, 4, 16},  {23, 33, 64},
                                    {64, 9, 112}, {70, 70, 112}, {15, 12, 80}, {70, 33, 1}, {9, 64, 2},
                                    {16, 5, 7},   {1, 20, 8},    {30, 11, 9},  {31, 7, 17}, {8, 0, 3}};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* All combinations of a by rows or by columns, and b in panels or as a matrix. */
START_TEST(elements_are_the_chain)
{
    product_function *product = choose(names[_i]);
    for (size_t s = 0; product != NULL && s < SIZES; s++) {
        const uint32_t rows = sizes[s][0], depth = sizes[s][1], columns = sizes[s][2];
        fill(rows, depth, columns);
        for (int layout = 0; layout < 4; layout++) {
            struct product p = {.rows = rows,
                                .depth = depth,
                                .columns = columns,
                                .begin = begin,
                                .c = c,
                                .c_row = COLUMNS_MAX};
            p.a = layout & 1 ? transposed : a;
            p.a_row = layout & 1 ? 1 : depth;
            p.a_depth = layout & 1 ? SIDE_MAX : 1;
            p.b = layout & 2 ? panels : b;
            p.b_depth = layout & 2 ? PRODUCT_BLOCK : COLUMNS_MAX;
            p.b_block = layout & 2 ? (size_t)depth * PRODUCT_BLOCK : PRODUCT_BLOCK;
            forget();
            product(&p);
            ck_assert_msg(wrong_elements(rows, depth, columns) == 0, "%u x %u x %u, layout %d", rows, depth,
                          columns, layout);
        }
    }
}
END_TEST

/* Range after range of k, on top of what c holds. */
START_TEST(ranges_of_k_go_on)
{
    product_function *product = choose(names[_i]);
    for (size_t s = 0; product != NULL && s < SIZES; s++) {
        const uint32_t rows = sizes[s][0], depth = sizes[s][1], columns = sizes[s][2];
        fill(rows, depth, columns);
        forget();
        for (uint32_t k = 0, count = 1; k == 0 || k < depth; k += count++) {
            const uint32_t left = depth - k;
            product(&(struct product){.rows = rows,
                                      .depth = count < left ? count : left,
                                      .columns = columns,
                                      .a = a + k,
                                      .a_row = depth,
                                      .a_depth = 1,
                                      .b = b + (size_t)k * COLUMNS_MAX,
                                      .b_depth = COLUMNS_MAX,
                                      .b_block = PRODUCT_BLOCK,
                                      .begin = k == 0 ? begin : NULL,
                                      .c = c,
                                      .c_row = COLUMNS_MAX});
        }
        ck_assert_msg(wrong_elements(rows, depth, columns) == 0, "%u x %u x %u", rows, depth, columns);
    }
}
END_TEST

START_TEST(strides_are_an_odd_number_of_lines)
{
    for (uint32_t width = 1; width < 3000; width++) {
        const size_t stride = product_stride(width);
        ck_assert(stride % PRODUCT_BLOCK == 0 && stride / PRODUCT_BLOCK % 2 == 1);
        ck_assert(stride >= product_blocks(width) * PRODUCT_BLOCK && stride < width + 2 * PRODUCT_BLOCK);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("product");
    TCase *products = tcase_create("products");
    tcase_set_timeout(products, 60);
    tcase_add_loop_test(products, elements_are_the_chain, 0, 3);
    tcase_add_loop_test(products, ranges_of_k_go_on, 0, 3);
    tcase_add_test(products, strides_are_an_odd_number_of_lines);
    suite_add_tcase(suite, products);
    return suite_run(suite);
}
