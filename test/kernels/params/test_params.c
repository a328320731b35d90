/* Parameters: names, layout of the slabs, draws word by word and as distributions, files' ways in and out,
 * and gradients beside them. */
#include "kernels/base/rng.h"
#include "kernels/params/gradients.h"
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"

#include <math.h>
#include <stdio.h>

static const struct init zero = {INIT_CONSTANT, 0};

static struct parameter *add(const char *name, enum parameter_kind kind, struct shape shape, struct init init)
{
    struct parameter *parameter = NULL;
    CK_OK(params_add(fixture.params, name, kind, shape, init, &parameter, &fixture.error));
    return parameter;
}

/* ---- names and layout ---- */

START_TEST(entries_are_found_by_name_and_index)
{
    static char name[40][16];
    fixture_open();
    for (uint32_t i = 0; i < 40; i++) { // more than one growth of the list
        snprintf(name[i], sizeof name[i], "layer%u.weight", i);
        struct parameter *parameter = add(name[i], PARAMETER_TRAINED, SHAPE1(i + 1), zero);
        ck_assert_uint_eq(parameter->index, i);
        ck_assert_str_eq(parameter->tensor.name, name[i]);
        ck_assert_ptr_eq(parameter->params, fixture.params);
    }
    ck_assert_uint_eq(params_count(fixture.params), 40);
    for (uint32_t i = 0; i < 40; i++) {
        ck_assert_ptr_eq(params_find(fixture.params, name[i]), params_at(fixture.params, i));
        ck_assert_str_eq(params_at(fixture.params, i)->name, name[i]);
    }
    ck_assert_ptr_null(params_find(fixture.params, "layer40.weight"));
    ck_assert_ptr_eq(params_backend(fixture.params), fixture.backend);
    fixture_close();
}
END_TEST

static void refused(const char *name, enum parameter_kind kind, struct shape shape, struct init init,
                    const char *words)
{
    struct parameter *none = NULL;
    struct error error = {0};
    uint32_t before = params_count(fixture.params);
    ck_assert_int_eq(params_add(fixture.params, name, kind, shape, init, &none, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" does not say \"%s\"", error.text, words);
    ck_assert_ptr_null(none);
    ck_assert_uint_eq(params_count(fixture.params), before);
}

START_TEST(entries_that_cannot_be_are_refused)
{
    fixture_open();
    add("w", PARAMETER_TRAINED, SHAPE1(2), zero);
    refused("w", PARAMETER_BUFFER, SHAPE1(2), zero, "\"w\" is there already");
    refused("none", PARAMETER_TRAINED, SHAPE2(3, 0), zero,
            "none: expected 1..2147483647 elements, got shape 3x0");
    refused("huge", PARAMETER_TRAINED, SHAPE2(65536, 65536), zero, "got shape 65536x65536");
    fixture_close();
}
END_TEST

START_TEST(too_many_elements_in_all_are_refused)
{
    struct error error = {0};
    fixture_open();
    add("first", PARAMETER_TRAINED, SHAPE2(32768, 32768), zero);
    add("second", PARAMETER_TRAINED, SHAPE2(32768, 32768), zero);
    ck_assert_int_eq(params_build(fixture.params, 0, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "second"));
    fixture_close();
}
END_TEST

START_TEST(slabs_are_laid_out_in_order_with_zeros_between)
{
    fixture_open();
    struct parameter *a = add("a", PARAMETER_TRAINED, SHAPE2(3, 3), (struct init){INIT_CONSTANT, 1});
    struct parameter *mean = add("mean", PARAMETER_BUFFER, SHAPE1(3), (struct init){INIT_CONSTANT, 2});
    struct parameter *tracked = add("tracked", PARAMETER_COUNTER, SHAPE0(), (struct init){INIT_CONSTANT, 6});
    struct parameter *b = add("b", PARAMETER_TRAINED, SHAPE0(), (struct init){INIT_CONSTANT, 3});
    struct parameter *variance =
        add("variance", PARAMETER_BUFFER, SHAPE1(1), (struct init){INIT_CONSTANT, 4});
    fixture_build(0);
    const struct tensor *slab = params_slab(fixture.params);
    const double *buffers = mean->tensor.data;
    ck_assert_uint_eq(a->offset, 0);
    ck_assert_uint_eq(b->offset, 16);
    ck_assert_uint_eq(mean->offset, 0);
    ck_assert_uint_eq(variance->offset, 8);
    ck_assert_uint_eq(slab->shape.size[0], 24);
    ck_assert_uint_eq(params_buffer_elements(fixture.params), 16);
    ck_assert_uint_eq((uintptr_t)slab->data % 64, 0);
    for (size_t i = 0; i < 24; i++)
        ck_assert(((double *)slab->data)[i] == (i < 9 ? 1 : i == 16 ? 3 : 0));
    for (size_t i = 0; i < 16; i++)
        ck_assert(buffers[i] == (i < 3 ? 2 : i == 8 ? 4 : 0));
    ck_assert_ptr_eq(b->tensor.data, (double *)slab->data + 16);
    ck_assert_ptr_eq(variance->tensor.data, buffers + 8);
    ck_assert_uint_eq(b->tensor.bytes, 8);
    ck_assert_int_eq(tracked->counter, 6);
    ck_assert_ptr_null(tracked->tensor.data);
    ck_assert_uint_eq(gradients_slab(fixture.gradients)->shape.size[0], 24);
    fixture_close();
}
END_TEST

START_TEST(values_are_read_and_written)
{
    fixture_open();
    struct parameter *w = add("w", PARAMETER_TRAINED, SHAPE1(3), zero);
    fixture_build(0);
    float single[3] = {1, 2.5f, -3}, back[3];
    CK_OK(params_write(fixture.params, w, DTYPE_F32, single, &fixture.error));
    CK_OK(params_read(fixture.params, w, DTYPE_F32, back, &fixture.error));
    ck_assert_mem_eq(single, back, sizeof single);
    fixture_close();
}
END_TEST

/* ---- draws ---- */

/* Any one element by the header's words; the index counts trained entries alone. */
START_TEST(draws_are_by_position)
{
    const uint64_t seed = 0x123456789abcdefULL;
    fixture_open();
    add("buffer", PARAMETER_BUFFER, SHAPE1(2), zero);
    struct parameter *u = add("u", PARAMETER_TRAINED, SHAPE2(10, 20), (struct init){INIT_UNIFORM, 0.25});
    add("counter", PARAMETER_COUNTER, SHAPE0(), zero);
    struct parameter *n = add("n", PARAMETER_TRAINED, SHAPE1(200), (struct init){INIT_NORMAL, 3});
    fixture_build(seed);
    for (uint32_t e = 0; e < 200; e += 33) {
        struct rng_key key = {.seed = seed, .environment = e, .episode = 0};
        uint32_t words[4];
        rng_block(&key, RNG_INIT, 0, words);
        double expected = (double)(float)(0.25 * (2 * (double)rng_uniform_float(words[0]) - 1));
        ck_assert(((double *)u->tensor.data)[e] == expected);
        key.episode = 1;
        rng_block(&key, RNG_INIT, 0, words);
        expected = 3 * sqrt(-2 * log(1 - rng_uniform_double(words[0], words[1]))) *
                   cos(2 * acos(-1) * rng_uniform_double(words[2], words[3]));
        ck_assert_double_eq_tol(((double *)n->tensor.data)[e], expected, 1e-6 * fabs(expected));
    }
    fixture_close();
}
END_TEST

/* The second half of a model, counted from where it begins, has the values that the whole gives it. */
START_TEST(a_part_begins_as_the_whole_does)
{
    double whole[2][30];
    const struct init init = {INIT_UNIFORM, 1};
    for (uint32_t first = 0; first < 3; first += 2) {
        fixture_open();
        for (uint32_t i = first; i < 4; i++) {
            char name[8];
            snprintf(name, sizeof name, "w%u", i);
            add(name, PARAMETER_TRAINED, SHAPE1(30), init);
        }
        params_count_from(fixture.params, first);
        fixture_build(9);
        for (uint32_t i = 2; i < 4; i++) {
            const double *values = params_at(fixture.params, i - first)->tensor.data;
            if (first == 0)
                memcpy(whole[i - 2], values, sizeof whole[0]);
            else
                ck_assert_mem_eq(whole[i - 2], values, sizeof whole[0]);
        }
        fixture_close();
    }
    ck_assert_mem_ne(whole[0], whole[1], sizeof whole[0]);
}
END_TEST

/* The first four moments, each within four standard errors of what the distribution has. */
START_TEST(draws_have_their_distributions_moments)
{
    enum { COUNT = 20000 };
    static const struct {
        struct init init;
        double variance, fourth, eighth;
    } cases[] = {{{INIT_UNIFORM, 2}, 4.0 / 3, 16.0 / 5, 256.0 / 9},
                 {{INIT_NORMAL, 0.5}, 0.25, 3.0 / 16, 105.0 / 256}};
    fixture_open();
    struct parameter *drawn = add("drawn", PARAMETER_TRAINED, SHAPE2(100, COUNT / 100), cases[_i].init);
    fixture_build(9);
    double sum = 0, squares = 0, fourths = 0, largest = 0;
    for (size_t e = 0; e < COUNT; e++) {
        double value = ((double *)drawn->tensor.data)[e], square = value * value;
        sum += value;
        squares += square;
        fourths += square * square;
        largest = fmax(largest, fabs(value));
    }
    const double variance = cases[_i].variance, fourth = cases[_i].fourth;
    ck_assert_double_eq_tol(sum / COUNT, 0, 4 * sqrt(variance / COUNT));
    ck_assert_double_eq_tol(squares / COUNT, variance, 4 * sqrt((fourth - variance * variance) / COUNT));
    ck_assert_double_eq_tol(fourths / COUNT, fourth, 4 * sqrt((cases[_i].eighth - fourth * fourth) / COUNT));
    ck_assert_double_gt(largest, cases[_i].init.kind == INIT_UNIFORM ? 1.99 : 1.5);
    ck_assert_double_le(largest, cases[_i].init.kind == INIT_UNIFORM ? 2 : 3);
    fixture_close();
}
END_TEST

/* ---- gradients ---- */

START_TEST(gradients_know_what_was_written)
{
    bool fresh = false;
    fixture_open();
    struct parameter *a = add("a", PARAMETER_TRAINED, SHAPE1(2), zero);
    add("buffer", PARAMETER_BUFFER, SHAPE1(2), zero);
    struct parameter *b = add("b", PARAMETER_TRAINED, SHAPE1(3), zero);
    fixture_build(0);
    gradients_begin(fixture.gradients);
    ck_assert_ptr_null(gradients_written(fixture.gradients, b));
    struct tensor *part = gradients_take(fixture.gradients, b, &fresh);
    ck_assert(fresh);
    ck_assert_ptr_eq(gradients_written(fixture.gradients, b), part);
    ck_assert_ptr_null(gradients_written(fixture.gradients, a));
    ck_assert_uint_eq(part->shape.size[0], 3);
    ck_assert_ptr_eq(part->data, (double *)gradients_slab(fixture.gradients)->data + 8);
    CK_OK(backend_upload(fixture.backend, part, DTYPE_F64, (double[]){2, -3, 6}, &fixture.error));
    ck_assert_ptr_eq(gradients_take(fixture.gradients, b, &fresh), part);
    ck_assert(!fresh);
    fixture_expect_gradient(b, (double[]){2, -3, 6});
    fixture_expect_gradient(a, (double[]){0, 0});
    double squares = 0;
    CK_OK(gradients_square_sum(fixture.gradients, b, &squares, &fixture.error));
    ck_assert(squares == 49);
    CK_OK(gradients_check(fixture.gradients, &fixture.error));
    ((double *)part->data)[1] = -INFINITY;
    struct error error = {0};
    ck_assert_int_eq(gradients_check(fixture.gradients, &error), STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "gradient of b holds a NaN or an infinity") != NULL, "%s", error.text);
    gradients_begin(fixture.gradients);
    CK_OK(gradients_check(fixture.gradients, &fixture.error)); // what was there is of an earlier step
    fixture_expect_gradient(b, (double[]){0, 0, 0});
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("params");
    TCase *entries = tcase_create("entries");
    tcase_add_test(entries, entries_are_found_by_name_and_index);
    tcase_add_test(entries, entries_that_cannot_be_are_refused);
    tcase_add_test(entries, too_many_elements_in_all_are_refused);
    tcase_add_test(entries, slabs_are_laid_out_in_order_with_zeros_between);
    tcase_add_test(entries, values_are_read_and_written);
    suite_add_tcase(suite, entries);
    TCase *draws = tcase_create("draws");
    tcase_add_test(draws, draws_are_by_position);
    tcase_add_test(draws, a_part_begins_as_the_whole_does);
    tcase_add_loop_test(draws, draws_have_their_distributions_moments, 0, 2);
    suite_add_tcase(suite, draws);
    TCase *beside = tcase_create("gradients");
    tcase_add_test(beside, gradients_know_what_was_written);
    suite_add_tcase(suite, beside);
    return suite_run(suite);
}
