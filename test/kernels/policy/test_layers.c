/* kernels/policy/layers.h on every instruction set of this machine: against its oracle in double, the oracle
 * against finite differences, and the bits that the header promises. */
#include "kernels/base/rng.h"
#include "kernels/lanes/isa.h"
#include "kernels/policy/layers.h"
#include "test/oracle/layers_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN(...) .layers = sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), .width = {__VA_ARGS__}

/* A Q-network, SAC's critic and actor, TD3's actor, hidden layers that a head reads, no hidden layer and
 * eight, several pieces of inputs, ones, primes and both sides of a multiple of 16. */
static const struct {
    struct layers_shape shape;
    uint32_t rows;
} cases[] = {
    {{.inputs = 4, .outputs = 2, HIDDEN(64, 64), .activation = DENSE_RELU}, 64},
    {{.inputs = 23, .outputs = 1, HIDDEN(256, 256), .activation = DENSE_RELU}, 256},
    {{.inputs = 17, .outputs = 12, HIDDEN(40, 300), .activation = DENSE_RELU}, 100},
    {{.inputs = 11, .outputs = 3, HIDDEN(40, 30), .activation = DENSE_RELU, .last = LAYERS_TANH}, 37},
    {{.inputs = 5, .outputs = 33, HIDDEN(15), .last = LAYERS_ACTIVATED}, 21},
    {{.inputs = 7, .outputs = 16, .activation = DENSE_RELU, .last = LAYERS_ACTIVATED}, 18},
    {{.inputs = 3, .outputs = 5}, 9},
    {{.inputs = 1, .outputs = 1, HIDDEN(1)}, 1},
    {{.inputs = 2, .outputs = 9, HIDDEN(8, 7, 6, 5, 4, 3, 2, 31), .last = LAYERS_TANH}, 40},
    {{.inputs = 1237, .outputs = 6, HIDDEN(18)}, 21},
    {{.inputs = 65536, .outputs = 2, HIDDEN(3)}, 4},
};
enum { CASES = sizeof cases / sizeof *cases, ISAS = 3 };

static const char *const isas[ISAS] = {"avx512", "avx2", "baseline"};

/* Row r of each matrix at r * its stride. */
struct problem {
    struct layers_shape shape;
    uint32_t rows;
    size_t count; // parameters
    float *parameters;
    struct dense_matrix x, pull;
    struct layers *layers;
    struct layers_work *work;
};

static float *draw(uint32_t stream, size_t count, double bound)
{
    float *to = calloc(count + 1, sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (size_t i = 0; i < count; i++)
        to[i] = rng_initial_uniform(7, stream, (uint32_t)i, bound);
    return to;
}

static size_t stride_of(uint32_t columns)
{
    return (columns + 15) / 16 * 16;
}

static struct dense_matrix draw_matrix(uint32_t stream, uint32_t rows, uint32_t columns)
{
    const size_t stride = stride_of(columns);
    return (struct dense_matrix){draw(stream, rows * stride, 1), stride};
}

static void fill(struct problem *p, int number)
{
    *p = (struct problem){.shape = cases[number].shape, .rows = cases[number].rows};
    p->shape.pulls_inputs = true;
    p->count = layers_parameters(&p->shape);
    p->parameters = draw(1, p->count, 1);
    for (uint32_t l = 0; l <= p->shape.layers; l++) {
        const struct layers_place place = layers_place(&p->shape, l);
        for (size_t i = place.weight; i < place.bias; i++)
            p->parameters[i] *= 2 / sqrtf((float)place.inputs);
    }
    p->x = draw_matrix(2, p->rows, p->shape.inputs);
    p->pull = draw_matrix(3, p->rows, p->shape.outputs);
}

/* With the instruction set `isa`; NULL: the best. False: this processor has no such. */
static bool load(struct problem *p, const char *isa)
{
    struct error error;
    enum isa chosen;
    if (isa != NULL)
        setenv("COALESCED_ISA", isa, 1);
    enum status status = isa_choose(&chosen, &error);
    if (status == STATUS_OK)
        status = layers_new(&p->layers, &p->shape, &error);
    unsetenv("COALESCED_ISA");
    if (status == STATUS_UNAVAILABLE)
        return false;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(layers_work_new(&p->work, p->layers, &error), STATUS_OK);
    layers_load(p->layers, p->parameters);
    return true;
}

static void unload(struct problem *p)
{
    layers_work_free(p->work);
    layers_free(p->layers);
}

static void empty(struct problem *p)
{
    free(p->parameters);
    free(p->x.at);
    free(p->pull.at);
}

/* What the kernel makes of a problem: (rows, outputs), (rows, inputs) without gaps, and the gradient. */
struct outcome {
    float *y, *dx, *gradient;
};

static struct outcome outcome_new(const struct problem *p)
{
    return (struct outcome){.y = draw(0, (size_t)p->rows * p->shape.outputs, 0),
                            .dx = draw(0, (size_t)p->rows * p->shape.inputs, 0),
                            .gradient = draw(0, p->count, 0)};
}

static void outcome_free(struct outcome *out)
{
    free(out->y);
    free(out->dx);
    free(out->gradient);
}

static void take(float *to, struct dense_matrix from, uint32_t rows, uint32_t columns)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(to + (size_t)r * columns, from.at + r * from.stride, columns * sizeof *to);
}

/* A copy, which a backward may overwrite. */
static struct dense_matrix copy_of(struct dense_matrix from, uint32_t rows)
{
    struct dense_matrix to = {draw(0, rows * from.stride, 0), from.stride};
    memcpy(to.at, from.at, rows * from.stride * sizeof *to.at);
    return to;
}

/* Rows [first, first + rows), in their places; the gradient as layers_backward has it. */
static void compute(const struct problem *p, uint32_t first, uint32_t rows, struct outcome *out, bool adds)
{
    const uint32_t inputs = p->shape.inputs, outputs = p->shape.outputs;
    const struct dense_matrix x = {p->x.at + first * p->x.stride, p->x.stride};
    const struct dense_matrix from = {p->pull.at + first * p->pull.stride, p->pull.stride};
    const struct dense_matrix pull = copy_of(from, rows), dx = draw_matrix(0, rows, inputs);
    take(out->y + (size_t)first * outputs, layers_forward(p->layers, p->work, rows, x), rows, outputs);
    layers_backward(p->layers, p->work, pull, out->gradient, adds, dx);
    take(out->dx + (size_t)first * inputs, dx, rows, inputs);
    free(pull.at);
    free(dx.at);
}

static void expect_same(const struct problem *p, const struct outcome *a, const struct outcome *b)
{
    ck_assert_mem_eq(a->y, b->y, (size_t)p->rows * p->shape.outputs * sizeof(float));
    ck_assert_mem_eq(a->dx, b->dx, (size_t)p->rows * p->shape.inputs * sizeof(float));
    ck_assert_mem_eq(a->gradient, b->gradient, p->count * sizeof(float));
}

/* ---- against the oracle ---- */

static double *in_double(const float *from, size_t count)
{
    double *to = calloc(count + 1, sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (size_t i = 0; i < count && from != NULL; i++)
        to[i] = (double)from[i];
    return to;
}

/* The worst error is held to the norm, which is what rounding in float grows with. */
static void expect_close(const char *what, const float *found, const double *expected, size_t count)
{
    double worst = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        const double error = fabs((double)found[i] - expected[i]);
        worst = !(error <= worst) ? error : worst;
        norm += expected[i] * expected[i];
    }
    ck_assert_msg(worst <= 1e-6 * sqrt(norm) && norm > 0, "%s: %g of %g", what, worst, sqrt(norm));
}

START_TEST(results_are_the_oracles)
{
    static struct layers_ref_row row;
    struct problem p;
    fill(&p, _i / ISAS);
    if (load(&p, isas[_i % ISAS])) {
        struct outcome out = outcome_new(&p);
        double *parameters = in_double(p.parameters, p.count), *gradient = in_double(NULL, p.count);
        double *y = in_double(NULL, (size_t)p.rows * p.shape.outputs);
        double *dx = in_double(NULL, (size_t)p.rows * p.shape.inputs);
        compute(&p, 0, p.rows, &out, false);
        for (uint32_t r = 0; r < p.rows; r++) {
            double *x = in_double(p.x.at + r * p.x.stride, p.shape.inputs);
            double *pull = in_double(p.pull.at + r * p.pull.stride, p.shape.outputs);
            layers_ref_forward(&p.shape, parameters, x, &row);
            memcpy(y + (size_t)r * p.shape.outputs, row.of[p.shape.layers], p.shape.outputs * sizeof *y);
            layers_ref_backward(&p.shape, parameters, x, &row, pull, gradient,
                                dx + (size_t)r * p.shape.inputs);
            free(x);
            free(pull);
        }
        expect_close("y", out.y, y, (size_t)p.rows * p.shape.outputs);
        expect_close("dx", out.dx, dx, (size_t)p.rows * p.shape.inputs);
        expect_close("gradient", out.gradient, gradient, p.count);
        free(parameters);
        free(gradient);
        free(y);
        free(dx);
        outcome_free(&out);
        unload(&p);
    }
    empty(&p);
}
END_TEST

/* sum pull * outputs of one row. */
static double loss_of(const struct layers_shape *shape, const double *parameters, const double *x,
                      const double *pull)
{
    static struct layers_ref_row row;
    double loss = 0;
    layers_ref_forward(shape, parameters, x, &row);
    for (uint32_t j = 0; j < shape->outputs; j++)
        loss += pull[j] * row.of[shape->layers][j];
    return loss;
}

/* Central differences of the oracle in some of the `count` numbers at `at`. */
static void expect_slope(const struct problem *p, const double *parameters, const double *x,
                         const double *pull, double *at, const double *gradient, size_t count)
{
    const double h = 1e-6;
    for (size_t i = 0; i < count; i += 1 + count / 100) {
        const double kept = at[i];
        at[i] = kept + h;
        const double above = loss_of(&p->shape, parameters, x, pull);
        at[i] = kept - h;
        const double below = loss_of(&p->shape, parameters, x, pull);
        at[i] = kept;
        const double slope = (above - below) / (2 * h);
        ck_assert_msg(fabs(slope - gradient[i]) <= 1e-7 * (1 + fabs(slope)), "%zu of %zu: %g, expected %g", i,
                      count, gradient[i], slope);
    }
}

START_TEST(the_oracle_is_the_slope_of_its_loss)
{
    static struct layers_ref_row row;
    struct problem p;
    fill(&p, _i);
    double *parameters = in_double(p.parameters, p.count), *gradient = in_double(NULL, p.count);
    double *x = in_double(p.x.at, p.shape.inputs), *dx = in_double(NULL, p.shape.inputs);
    double *pull = in_double(p.pull.at, p.shape.outputs);
    layers_ref_forward(&p.shape, parameters, x, &row);
    layers_ref_backward(&p.shape, parameters, x, &row, pull, gradient, dx);
    expect_slope(&p, parameters, x, pull, parameters, gradient, p.count);
    expect_slope(&p, parameters, x, pull, x, dx, p.shape.inputs);
    free(parameters);
    free(gradient);
    free(x);
    free(dx);
    free(pull);
    empty(&p);
}
END_TEST

/* ---- the same bits ---- */

START_TEST(every_instruction_set_has_the_same_bits)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, "baseline"));
    struct outcome expected = outcome_new(&p);
    compute(&p, 0, p.rows, &expected, false);
    unload(&p);
    for (int i = 0; i < ISAS - 1; i++)
        if (load(&p, isas[i])) {
            struct outcome out = outcome_new(&p);
            compute(&p, 0, p.rows, &out, false);
            expect_same(&p, &out, &expected);
            outcome_free(&out);
            unload(&p);
        }
    outcome_free(&expected);
    empty(&p);
}
END_TEST

/* A row alone has the bits of its batch; its gradients, added up, those of the biases, and nearly those of
 * the weights, whose products are fused. */
START_TEST(rows_alone_are_the_bits_of_the_batch)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome batch = outcome_new(&p), alone = outcome_new(&p);
    compute(&p, 0, p.rows, &batch, false);
    for (uint32_t r = 0; r < p.rows; r++)
        compute(&p, r, 1, &alone, true);
    for (uint32_t l = 0; l <= p.shape.layers; l++) {
        const struct layers_place place = layers_place(&p.shape, l);
        ck_assert_mem_eq(alone.gradient + place.bias, batch.gradient + place.bias,
                         place.outputs * sizeof(float));
    }
    double *sums = in_double(alone.gradient, p.count);
    expect_close("gradient", batch.gradient, sums, p.count);
    memcpy(alone.gradient, batch.gradient, p.count * sizeof(float));
    expect_same(&p, &alone, &batch);
    free(sums);
    outcome_free(&batch);
    outcome_free(&alone);
    unload(&p);
    empty(&p);
}
END_TEST

/* What is not wanted changes nothing of the rest; the gradient is written once and then added. */
START_TEST(parts_of_the_backward_are_its_bits)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome all = outcome_new(&p), parts = outcome_new(&p);
    compute(&p, 0, p.rows, &all, false);
    const struct dense_matrix dx = draw_matrix(0, p.rows, p.shape.inputs), none = {0};
    for (int time = 0; time < 3; time++) {
        const struct dense_matrix pull = copy_of(p.pull, p.rows);
        layers_backward(p.layers, p.work, pull, time == 0 ? NULL : parts.gradient, time == 2,
                        time == 0 ? dx : none);
        free(pull.at);
    }
    take(parts.dx, dx, p.rows, p.shape.inputs);
    ck_assert_mem_eq(parts.dx, all.dx, (size_t)p.rows * p.shape.inputs * sizeof(float));
    for (size_t i = 0; i < p.count; i++)
        if (!(parts.gradient[i] == 2 * all.gradient[i]))
            ck_abort_msg("%zu: %g, expected %g", i, (double)parts.gradient[i], 2 * (double)all.gradient[i]);
    free(dx.at);
    outcome_free(&all);
    outcome_free(&parts);
    unload(&p);
    empty(&p);
}
END_TEST

static struct dense_matrix columns_from(struct dense_matrix from, uint32_t first)
{
    return (struct dense_matrix){from.at + first, from.stride};
}

/* Inputs in three pieces, of widths that are no multiples of anything; dL/d inputs is added to zeros. */
START_TEST(pieces_have_the_bits_of_the_whole)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome whole = outcome_new(&p), pieces = outcome_new(&p);
    const uint32_t inputs = p.shape.inputs, ends[] = {0, inputs / 5, inputs / 2, inputs};
    /* a piece's last block may reach beyond a row's end */
    const struct dense_matrix x = {draw(0, p.rows * p.x.stride + 16, 0), p.x.stride};
    const struct dense_matrix pull = copy_of(p.pull, p.rows), dx = draw_matrix(0, p.rows, inputs);
    memcpy(x.at, p.x.at, p.rows * x.stride * sizeof *x.at);
    memset(dx.at, 0, p.rows * dx.stride * sizeof *dx.at);
    compute(&p, 0, p.rows, &whole, false);
    for (int i = 0; i < 3; i++)
        if (ends[i] < ends[i + 1])
            layers_read(p.layers, p.work, p.rows, columns_from(x, ends[i]), ends[i], ends[i + 1] - ends[i]);
    take(pieces.y, layers_finish(p.layers, p.work), p.rows, p.shape.outputs);
    layers_pull(p.layers, p.work, pull, pieces.gradient, false);
    for (int i = 0; i < 3; i++)
        layers_pull_weight(p.layers, p.work, columns_from(x, ends[i]), ends[i], ends[i + 1] - ends[i],
                           pieces.gradient, false);
    layers_pull_inputs(p.layers, p.work, dx, true);
    take(pieces.dx, dx, p.rows, inputs);
    expect_same(&p, &pieces, &whole);
    free(x.at);
    free(pull.at);
    free(dx.at);
    outcome_free(&whole);
    outcome_free(&pieces);
    unload(&p);
    empty(&p);
}
END_TEST

/* A target network's outputs, its weights loaded one by one. */
START_TEST(a_target_network_has_the_same_outputs)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome out = outcome_new(&p), target = outcome_new(&p);
    compute(&p, 0, p.rows, &out, false);
    unload(&p);
    p.shape.forward_only = true;
    ck_assert(load(&p, NULL));
    float *none = draw(0, p.count, 0);
    layers_load(p.layers, none);
    for (uint32_t l = 0; l <= p.shape.layers; l++) {
        const struct layers_place place = layers_place(&p.shape, l);
        layers_load_bias(p.layers, l, p.parameters + place.bias);
        layers_load_weight(p.layers, l, p.parameters + place.weight);
    }
    take(target.y, layers_forward(p.layers, p.work, p.rows, p.x), p.rows, p.shape.outputs);
    ck_assert_mem_eq(target.y, out.y, (size_t)p.rows * p.shape.outputs * sizeof(float));
    free(none);
    outcome_free(&out);
    outcome_free(&target);
    unload(&p);
    empty(&p);
}
END_TEST

START_TEST(a_nan_stays_in_its_row)
{
    enum { SICK = 5 };
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome sound = outcome_new(&p), out = outcome_new(&p);
    compute(&p, 0, p.rows, &sound, false);
    p.x.at[SICK * p.x.stride] = NAN;
    compute(&p, 0, p.rows, &out, false);
    for (uint32_t r = 0; r < p.rows; r++) {
        const size_t at = (size_t)r * p.shape.outputs;
        if (r == SICK)
            ck_assert(isnan(out.y[at]));
        else
            ck_assert_mem_eq(out.y + at, sound.y + at, p.shape.outputs * sizeof(float));
        if (r != SICK)
            ck_assert_mem_eq(out.dx + (size_t)r * p.shape.inputs, sound.dx + (size_t)r * p.shape.inputs,
                             p.shape.inputs * sizeof(float));
    }
    outcome_free(&sound);
    outcome_free(&out);
    unload(&p);
    empty(&p);
}
END_TEST

/* ---- the parameters ---- */

START_TEST(places_follow_each_other)
{
    const struct layers_shape shape = {.inputs = 23, .outputs = 1, HIDDEN(256, 128)};
    const struct layers_place expected[] = {{23, 256, 0, 23 * 256},
                                            {256, 128, 24 * 256, 24 * 256 + 256 * 128},
                                            {128, 1, 24 * 256 + 257 * 128, 24 * 256 + 258 * 128}};
    for (uint32_t l = 0; l <= shape.layers; l++) {
        const struct layers_place place = layers_place(&shape, l);
        ck_assert_uint_eq(place.inputs, expected[l].inputs);
        ck_assert_uint_eq(place.outputs, expected[l].outputs);
        ck_assert_uint_eq(place.weight, expected[l].weight);
        ck_assert_uint_eq(place.bias, expected[l].bias);
    }
    ck_assert_uint_eq(layers_parameters(&shape), 24 * 256 + 258 * 128 + 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layers");
    TCase *tcase = tcase_create("layers");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, results_are_the_oracles, 0, CASES * ISAS);
    tcase_add_loop_test(tcase, the_oracle_is_the_slope_of_its_loss, 0, CASES);
    tcase_add_loop_test(tcase, every_instruction_set_has_the_same_bits, 0, CASES);
    tcase_add_loop_test(tcase, rows_alone_are_the_bits_of_the_batch, 0, CASES);
    tcase_add_loop_test(tcase, parts_of_the_backward_are_its_bits, 0, CASES);
    tcase_add_loop_test(tcase, pieces_have_the_bits_of_the_whole, 0, CASES);
    tcase_add_loop_test(tcase, a_target_network_has_the_same_outputs, 0, CASES);
    tcase_add_loop_test(tcase, a_nan_stays_in_its_row, 0, 7);
    tcase_add_test(tcase, places_follow_each_other);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
