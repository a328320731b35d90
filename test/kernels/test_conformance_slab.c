/* The functions of a backend other than the operations, compared with ref or with exact values: upload and
 * download, fill, accumulate, scale, sums of squares, the search for an element that is not finite, and
 * the optimizers; on canonical memory of every awkward length, and on a tensor in a layout of the
 * backend's own, whose padding must not count.
 *
 * All are single operations on each element, two or three roundings of 2^-24: the bound is 8 of them, and 16
 * for Adam, which has a root and a division. */
#include "test/kernels/conformance.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const double few = 8 * 0x1p-24, more = 16 * 0x1p-24;

static const uint32_t lengths[] = {1, 2, 3, 7, 8, 13, 16, 17, 31, 33, 65, 127, 1000, 4099, 100003};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void must(enum status status, const struct error *error)
{
    ck_assert_msg(status == STATUS_OK, "%s", error->text);
}

/* The same numbers in a new tensor of each of the two. */
struct twin {
    struct tensor ref, mine;
};

static struct twin twin_of(struct conformance *pair, const struct values *values)
{
    struct twin twin;
    struct error error = {0};
    must(values_upload(values, pair->ref, pair->ref_arena, "ref", &twin.ref, &error), &error);
    must(values_upload(values, pair->backend, pair->arena, "mine", &twin.mine, &error), &error);
    return twin;
}

static struct twin twin_drawn(struct conformance *pair, uint32_t length, uint64_t seed)
{
    struct values values = values_drawn(SHAPE1(length), seed);
    struct twin twin = twin_of(pair, &values);
    values_free(&values);
    return twin;
}

static void compare(struct conformance *pair, const char *what, const struct twin *twin, double bound)
{
    struct values expected = {0}, got = {0};
    struct error error = {0};
    must(values_download(&expected, pair->ref, &twin->ref, &error), &error);
    must(values_download(&got, pair->backend, &twin->mine, &error), &error);
    conformance_compare(pair, what, &expected, &got, bound);
    values_free(&expected);
    values_free(&got);
}

/* The twin in a layout of the backend's own, if it has one for the channels of images: what a convolution
 * makes. Twenty-one channels from five; the numbers are read back, so that ref has exactly them. */
static struct twin twin_laid_out(struct conformance *pair, uint64_t seed)
{
    struct error error = {0};
    struct values x = values_drawn(SHAPE4(3, 5, 7, 3), seed),
                  weight = values_drawn(SHAPE4(21, 5, 1, 1), seed + 1);
    struct values numbers = {0};
    struct twin from = twin_of(pair, &x), by = twin_of(pair, &weight), twin = {0};
    struct op_call call = {.op = OP_CONV2D,
                           .attributes = {.stride = {1, 1}},
                           .arena = pair->arena,
                           .in = {&from.mine, &by.mine},
                           .out = {&twin.mine}};
    must(op_forward(pair->backend, &call, &error), &error);
    must(values_download(&numbers, pair->backend, &twin.mine, &error), &error);
    must(values_upload(&numbers, pair->ref, pair->ref_arena, "ref", &twin.ref, &error), &error);
    values_free(&x);
    values_free(&weight);
    values_free(&numbers);
    return twin;
}

/* ---- the checks, each on a twin ---- */

static void check_accumulate(struct conformance *pair, const char *what, struct twin *to,
                             const struct twin *from)
{
    struct error error = {0};
    must(backend_accumulate(pair->ref, &to->ref, &from->ref, &error), &error);
    must(backend_accumulate(pair->backend, &to->mine, &from->mine, &error), &error);
    compare(pair, what, to, few);
}

static void check_scale_and_fill(struct conformance *pair, struct twin *twin)
{
    struct error error = {0};
    must(backend_scale(pair->ref, &twin->ref, -0.3, &error), &error);
    must(backend_scale(pair->backend, &twin->mine, -0.3, &error), &error);
    compare(pair, "scale", twin, few);
    must(backend_fill(pair->ref, &twin->ref, 0.625, &error), &error);
    must(backend_fill(pair->backend, &twin->mine, 0.625, &error), &error);
    compare(pair, "fill", twin, 0);
}

static void check_square_sum(struct conformance *pair, const struct twin *twin)
{
    struct error error = {0};
    double expected, got, again;
    must(backend_square_sum(pair->ref, &twin->ref, &expected, &error), &error);
    must(backend_square_sum(pair->backend, &twin->mine, &got, &error), &error);
    must(backend_square_sum(pair->backend, &twin->mine, &again, &error), &error);
    if (!(fabs(expected - got) <= 1e-12 * expected) || got != again)
        conformance_complain(pair, "square sum of %zu: %.17g, then %.17g, expected %.17g",
                             shape_elements(&twin->ref.shape), got, again, expected);
}

static size_t first_not_finite(struct conformance *pair, struct tensor *tensor)
{
    struct error error = {0};
    size_t index = 12345;
    must(backend_first_not_finite(pair->backend, tensor, &index, &error), &error);
    return index;
}

/* In canonical memory the order is the elements'. */
static void check_not_finite(struct conformance *pair, uint32_t length)
{
    static const double strange[] = {NAN, INFINITY, -INFINITY};
    const uint32_t places[] = {length - 1, length / 2, 0};
    struct error error = {0};
    struct values values = values_drawn(SHAPE1(length), 5);
    struct twin twin = twin_of(pair, &values);
    ck_assert_uint_eq(first_not_finite(pair, &twin.mine), SIZE_MAX);
    for (int s = 0; s < 3; s++) {
        struct values changed = values_drawn(SHAPE1(length), 5);
        for (int p = 0; p < 3; p++) {
            changed.real[places[p]] = strange[(s + p) % 3]; // from the end forwards: the first counts
            must(backend_upload(pair->backend, &twin.mine, DTYPE_F64, changed.data, &error), &error);
            size_t index = first_not_finite(pair, &twin.mine);
            if (index != places[p])
                conformance_complain(pair, "first of %u that is not finite: %zu, expected %u", length, index,
                                     places[p]);
        }
        values_free(&changed);
    }
    values_free(&values);
}

static void check_sgd(struct conformance *pair, uint32_t length, double momentum)
{
    const struct sgd_settings settings = {.lr = 0.5, .momentum = momentum};
    struct error error = {0};
    struct twin parameters = twin_drawn(pair, length, 8), v = twin_drawn(pair, length, 9);
    struct tensor *ref_v = momentum == 0 ? NULL : &v.ref, *my_v = momentum == 0 ? NULL : &v.mine;
    for (uint64_t step = 1; step <= 3; step++) { // at the first, v's numbers do not count
        struct twin gradient = twin_drawn(pair, length, 10 + step);
        must(backend_sgd(pair->ref, &settings, step, &parameters.ref, &gradient.ref, ref_v, &error), &error);
        must(backend_sgd(pair->backend, &settings, step, &parameters.mine, &gradient.mine, my_v, &error),
             &error);
        compare(pair, "sgd: parameters", &parameters, few);
        if (momentum != 0)
            compare(pair, "sgd: momentum", &v, few);
    }
}

static void check_adam(struct conformance *pair, uint32_t length)
{
    const struct adam_settings settings = {.lr = 0.5, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    struct error error = {0};
    struct values zeros = values_new(SHAPE1(length), DTYPE_F64);
    struct twin parameters = twin_drawn(pair, length, 8);
    struct twin m = twin_of(pair, &zeros), v = twin_of(pair, &zeros);
    for (uint64_t step = 1; step <= 3; step++) {
        struct twin gradient = twin_drawn(pair, length, 20 + step);
        must(backend_adam(pair->ref, &settings, step, &parameters.ref, &gradient.ref, &m.ref, &v.ref, &error),
             &error);
        must(backend_adam(pair->backend, &settings, step, &parameters.mine, &gradient.mine, &m.mine, &v.mine,
                          &error),
             &error);
        compare(pair, "adam: parameters", &parameters, more);
        compare(pair, "adam: first moment", &m, few);
        compare(pair, "adam: second moment", &v, few);
    }
    values_free(&zeros);
}

/* Up from one dtype, down to another: nothing is lost of numbers that float32 holds. */
static void check_copies(struct conformance *pair, uint32_t length)
{
    struct error error = {0};
    struct values values = values_drawn(SHAPE1(length), 3);
    float *single = values_memory(length, sizeof *single), *down = values_memory(length, sizeof *down);
    double *wide = values_memory(length, sizeof *wide);
    int32_t *whole = values_memory(length, sizeof *whole), *back = values_memory(length, sizeof *back);
    struct tensor real, integers;
    for (uint32_t i = 0; i < length; i++) {
        single[i] = (float)values.real[i];
        whole[i] = (int32_t)(i * 2654435761u);
    }
    must(tensor_new(&real, pair->arena, SHAPE1(length), pair->backend->ops->dtype, "real", &error), &error);
    must(tensor_new(&integers, pair->arena, SHAPE1(length), DTYPE_I32, "integers", &error), &error);
    must(backend_upload(pair->backend, &real, DTYPE_F32, single, &error), &error);
    must(backend_download(pair->backend, &real, DTYPE_F64, wide, &error), &error);
    ck_assert_mem_eq(wide, values.real, length * sizeof *wide);
    must(backend_fill(pair->backend, &real, 0, &error), &error);
    must(backend_upload(pair->backend, &real, DTYPE_F64, wide, &error), &error);
    must(backend_download(pair->backend, &real, DTYPE_F32, down, &error), &error);
    ck_assert_mem_eq(down, single, length * sizeof *down);
    must(backend_upload(pair->backend, &integers, DTYPE_I32, whole, &error), &error);
    must(backend_download(pair->backend, &integers, DTYPE_I32, back, &error), &error);
    ck_assert_mem_eq(back, whole, length * sizeof *back);
    values_free(&values);
    free(single);
    free(down);
    free(wide);
    free(whole);
    free(back);
}

START_TEST(flat_memory_agrees_with_ref)
{
    struct conformance pair;
    if (!conformance_open(&pair, (unsigned)_i, true))
        return;
    for (int l = 0; l < LENGTHS; l++) {
        const uint32_t length = lengths[l];
        arena_reset(pair.arena);
        arena_reset(pair.ref_arena);
        struct twin a = twin_drawn(&pair, length, 1), b = twin_drawn(&pair, length, 2);
        check_copies(&pair, length);
        check_square_sum(&pair, &a);
        check_accumulate(&pair, "accumulate", &a, &b);
        check_scale_and_fill(&pair, &a);
        check_not_finite(&pair, length);
        check_sgd(&pair, length, 0);
        check_sgd(&pair, length, 0.9);
        check_adam(&pair, length);
    }
    ck_assert_uint_eq(pair.complaints, 0);
    conformance_close(&pair);
}
END_TEST

START_TEST(laid_out_memory_agrees_with_ref)
{
    struct conformance pair;
    if (!conformance_open(&pair, (unsigned)_i, false))
        return;
    struct twin a = twin_laid_out(&pair, 31), b = twin_laid_out(&pair, 41);
    struct values numbers = values_drawn(a.ref.shape, 51);
    struct twin canonical = twin_of(&pair, &numbers);
    check_square_sum(&pair, &a);
    ck_assert_uint_eq(first_not_finite(&pair, &a.mine), SIZE_MAX);
    check_accumulate(&pair, "accumulate two of one layout", &a, &b);
    check_accumulate(&pair, "accumulate canonical to laid out", &a, &canonical);
    check_accumulate(&pair, "accumulate laid out to canonical", &canonical, &b);
    check_scale_and_fill(&pair, &a);
    check_square_sum(&pair, &a);
    numbers.real[numbers.count / 2] = NAN;
    struct error error = {0};
    must(backend_upload(pair.backend, &b.mine, DTYPE_F64, numbers.data, &error), &error);
    ck_assert_uint_ne(first_not_finite(&pair, &b.mine), SIZE_MAX);
    ck_assert_uint_eq(pair.complaints, 0);
    values_free(&numbers);
    conformance_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conformance_slab");
    TCase *memory = tcase_create("memory");
    tcase_add_loop_test(memory, flat_memory_agrees_with_ref, 0, CONFORMANCE_BACKENDS);
    tcase_add_loop_test(memory, laid_out_memory_agrees_with_ref, 0, CONFORMANCE_BACKENDS);
    suite_add_tcase(suite, memory);
    return suite_run(suite);
}
