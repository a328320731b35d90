/* kernels/policy/recurrent.h against its oracle: results, states, gradients by finite differences; and that
 * the bits depend on nothing but a row's own sequence. */
#include "kernels/base/rng.h"
#include "kernels/lanes/isa.h"
#include "test/kernels/policy/load_parameters.h"
#include "test/oracle/recurrent_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, STEPS = 9, ROWS_MAX = SLOTS * STEPS };

static const struct recurrent_shape shapes[] = {
    {RECURRENT_LSTM, 3, 5, 1},    {RECURRENT_GRU, 3, 5, 1},  {RECURRENT_LSTM, 17, 16, 1},
    {RECURRENT_GRU, 17, 16, 1},   {RECURRENT_LSTM, 4, 7, 2}, {RECURRENT_GRU, 4, 7, 3},
    {RECURRENT_LINEAR, 6, 21, 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], WITH_STATE = SHAPES - 1 };

/* Sequences of unequal length, with starts in their middles and steps that they miss. */
struct problem {
    struct recurrent_shape shape;
    struct recurrent_rows rows;
    uint32_t first[STEPS + 1], slot[ROWS_MAX], count;
    uint8_t starts[ROWS_MAX];
    size_t parameter_count, state_floats;
    float *parameters, *x, *state, *pulls; /* (count, inputs), (slots, floats), (count, hidden) */
};

static float *draw(uint32_t stream, size_t count, double bound)
{
    float *to = calloc(count + 1, sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (size_t i = 0; i < count; i++)
        to[i] = rng_initial_uniform(7, stream, (uint32_t)i, bound);
    return to;
}

static void open_problem(struct problem *p, const struct recurrent_shape *shape)
{
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    *p = (struct problem){.shape = *shape};
    const uint32_t parameters = recurrent_parameters(shape, list);
    p->parameter_count = list[parameters - 1].offset + list[parameters - 1].count;
    p->state_floats = recurrent_state_floats(shape);
    for (uint32_t step = 0; step < STEPS; step++) {
        p->first[step] = p->count;
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            if ((slot + step) % 6 == 5 || (slot == 3 && step > 5))
                continue;
            p->slot[p->count] = slot;
            p->starts[p->count++] = (2 * slot + step) % 5 == 4;
        }
    }
    p->first[STEPS] = p->count;
    p->rows =
        (struct recurrent_rows){.steps = STEPS, .first = p->first, .slot = p->slot, .starts = p->starts};
    p->parameters = draw(1, p->parameter_count, 0.9);
    p->x = draw(2, (size_t)p->count * shape->inputs, 1.5);
    p->state = draw(3, SLOTS * p->state_floats, 0.8);
    p->pulls = draw(4, (size_t)p->count * shape->hidden, 1);
}

static void close_problem(struct problem *p)
{
    free(p->parameters);
    free(p->x);
    free(p->state);
    free(p->pulls);
}

/* What the kernel made of a problem. */
struct outcome {
    float *y, *state, *gradient;
};

static void put_rows(struct dense_matrix to, const float *from, uint32_t rows, uint32_t columns)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(to.at + r * to.stride, from + (size_t)r * columns, columns * sizeof *from);
}

static void get_rows(float *to, struct dense_matrix from, uint32_t rows, uint32_t columns)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(to + (size_t)r * columns, from.at + r * from.stride, columns * sizeof *to);
}

/* In ranges of `length` steps. */
static struct outcome compute_ranges(const struct problem *p, uint32_t length)
{
    const struct recurrent_shape *shape = &p->shape;
    struct outcome out = {.y = draw(0, (size_t)p->count * shape->hidden, 0),
                          .state = draw(0, SLOTS * p->state_floats, 0),
                          .gradient = draw(0, p->parameter_count, 0)};
    struct recurrent *recurrent;
    struct recurrent_work *work;
    struct error error;
    ck_assert_int_eq(recurrent_new(&recurrent, shape, &error), STATUS_OK);
    ck_assert_int_eq(recurrent_work_new(&work, recurrent, ROWS_MAX, SLOTS, &error), STATUS_OK);
    load_recurrent(recurrent, shape, p->parameters);
    memcpy(out.state, p->state, SLOTS * p->state_floats * sizeof *out.state);
    put_rows(recurrent_inputs(work), p->x, p->count, shape->inputs);
    for (uint32_t begin = 0; begin < STEPS; begin += length) {
        const struct recurrent_range range = {begin, begin + length};
        const uint32_t first = p->first[begin];
        get_rows(out.y + (size_t)first * shape->hidden,
                 recurrent_forward(recurrent, work, &p->rows, range, out.state), p->first[range.end] - first,
                 shape->hidden);
    }
    put_rows(recurrent_pulls(work), p->pulls, p->count, shape->hidden);
    for (uint32_t end = STEPS; end > 0; end -= length)
        recurrent_backward(recurrent, work, &p->rows, (struct recurrent_range){end - length, end},
                           out.gradient, end < STEPS);
    recurrent_work_free(work);
    recurrent_free(recurrent);
    return out;
}

static struct outcome compute(const struct problem *p)
{
    return compute_ranges(p, STEPS);
}

static void free_outcome(struct outcome *out)
{
    free(out->y);
    free(out->state);
    free(out->gradient);
}

/* ---- against the oracle ---- */

/* The problem in double, and L = sum pull * y of it. */
struct reference {
    double *parameters, *x, *state, *y;
};

static double *in_double(const float *from, size_t count)
{
    double *to = calloc(count + 1, sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (size_t i = 0; i < count; i++)
        to[i] = (double)from[i];
    return to;
}

static struct reference open_reference(const struct problem *p)
{
    const size_t outputs = (size_t)p->count * p->shape.hidden;
    return (struct reference){.parameters = in_double(p->parameters, p->parameter_count),
                              .x = in_double(p->x, (size_t)p->count * p->shape.inputs),
                              .state = in_double(p->state, SLOTS * p->state_floats),
                              .y = in_double(p->pulls, outputs)};
}

static void close_reference(struct reference *of)
{
    free(of->parameters);
    free(of->x);
    free(of->state);
    free(of->y);
}

static double run_reference(const struct problem *p, struct reference *of)
{
    double loss = 0;
    for (size_t i = 0; i < SLOTS * p->state_floats; i++)
        of->state[i] = (double)p->state[i];
    recurrent_ref_forward(&p->shape, of->parameters, &p->rows, of->x, of->state, of->y);
    for (size_t i = 0; i < (size_t)p->count * p->shape.hidden; i++)
        loss += (double)p->pulls[i] * of->y[i];
    return loss;
}

/* dL/d *at, by a central difference. */
static double slope(const struct problem *p, struct reference *of, double *at)
{
    const double before = *at, step = 1e-5;
    *at = before + step;
    const double above = run_reference(p, of);
    *at = before - step;
    const double below = run_reference(p, of);
    *at = before;
    return (above - below) / (2 * step);
}

static void expect_close(const char *what, size_t at, double found, double expected, double bound)
{
    ck_assert_msg(fabs(found - expected) <= bound * (1 + fabs(expected)), "%s %zu: %.9g, expected %.9g", what,
                  at, found, expected);
}

START_TEST(results_and_gradients_are_the_oracles)
{
    struct problem p;
    open_problem(&p, &shapes[_i]);
    struct outcome out = compute(&p);
    struct reference of = open_reference(&p);
    run_reference(&p, &of);
    for (size_t i = 0; i < (size_t)p.count * p.shape.hidden; i++)
        expect_close("y", i, (double)out.y[i], of.y[i], 2e-6);
    for (size_t i = 0; i < SLOTS * p.state_floats; i++)
        expect_close("state", i, (double)out.state[i], of.state[i], 2e-6);
    for (size_t i = 0; i < p.parameter_count; i += 1 + p.parameter_count / 300)
        expect_close("gradient", i, (double)out.gradient[i], slope(&p, &of, &of.parameters[i]), 2e-5);
    close_reference(&of);
    free_outcome(&out);
    close_problem(&p);
}
END_TEST

/* ---- the same bits ---- */

/* Step by step, each step's rows in another order, as acting computes them. */
START_TEST(steps_are_the_bits_of_the_whole)
{
    struct problem p;
    open_problem(&p, &shapes[_i]);
    struct outcome whole = compute(&p);
    struct recurrent *recurrent;
    struct recurrent_work *work;
    struct error error;
    ck_assert_int_eq(recurrent_new(&recurrent, &p.shape, &error), STATUS_OK);
    ck_assert_int_eq(recurrent_work_new(&work, recurrent, SLOTS, SLOTS, &error), STATUS_OK);
    load_recurrent(recurrent, &p.shape, p.parameters);
    for (uint32_t step = 0; step < STEPS; step++) {
        const uint32_t begin = p.first[step], n = p.first[step + 1] - begin;
        const uint32_t first[2] = {0, n};
        uint32_t slot[SLOTS];
        uint8_t starts[SLOTS];
        const struct dense_matrix x = recurrent_inputs(work);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t from = begin + n - 1 - i;
            slot[i] = p.slot[from];
            starts[i] = p.starts[from];
            memcpy(x.at + i * x.stride, p.x + (size_t)from * p.shape.inputs, p.shape.inputs * sizeof(float));
        }
        const struct recurrent_rows rows = {.steps = 1, .first = first, .slot = slot, .starts = starts};
        const struct dense_matrix y =
            recurrent_forward(recurrent, work, &rows, (struct recurrent_range){0, 1}, p.state);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_mem_eq(y.at + i * y.stride, whole.y + (size_t)(begin + n - 1 - i) * p.shape.hidden,
                             p.shape.hidden * sizeof(float));
    }
    ck_assert_mem_eq(p.state, whole.state, SLOTS * p.state_floats * sizeof(float));
    recurrent_work_free(work);
    recurrent_free(recurrent);
    free_outcome(&whole);
    close_problem(&p);
}
END_TEST

/* STEPS is a multiple of 1 and 3. The gradient's sums have another order. */
START_TEST(ranges_compute_what_the_whole_computes)
{
    struct problem p;
    open_problem(&p, &shapes[_i]);
    struct outcome whole = compute(&p);
    for (uint32_t length = 1; length <= 3; length += 2) {
        struct outcome cut = compute_ranges(&p, length);
        ck_assert_mem_eq(cut.y, whole.y, (size_t)p.count * p.shape.hidden * sizeof(float));
        ck_assert_mem_eq(cut.state, whole.state, SLOTS * p.state_floats * sizeof(float));
        for (size_t i = 0; i < p.parameter_count; i++)
            expect_close("gradient", i, (double)cut.gradient[i], (double)whole.gradient[i], 1e-5);
        free_outcome(&cut);
    }
    free_outcome(&whole);
    close_problem(&p);
}
END_TEST

START_TEST(every_instruction_set_has_the_same_bits)
{
    static const char *const names[] = {"baseline", "avx2", "avx512"};
    struct problem p;
    enum isa best = ISA_BASELINE;
    struct error error;
    open_problem(&p, &shapes[_i]);
    ck_assert_int_eq(isa_choose(&best, &error), STATUS_OK);
    struct outcome out = compute(&p);
    for (enum isa isa = ISA_BASELINE; isa <= best; isa++) {
        setenv("COALESCED_ISA", names[isa], 1);
        struct outcome other = compute(&p);
        ck_assert_mem_eq(out.y, other.y, (size_t)p.count * p.shape.hidden * sizeof(float));
        ck_assert_mem_eq(out.gradient, other.gradient, p.parameter_count * sizeof(float));
        free_outcome(&other);
    }
    unsetenv("COALESCED_ISA");
    free_outcome(&out);
    close_problem(&p);
}
END_TEST

/* A NaN in one sequence reaches neither the others nor what follows its next start. */
START_TEST(a_nan_stays_in_its_episode)
{
    enum { SICK = 1 };
    struct problem p;
    open_problem(&p, &shapes[_i]);
    struct outcome sound = compute(&p);
    bool sick = true;
    p.state[SICK * p.state_floats] = NAN;
    struct outcome out = compute(&p);
    for (uint32_t row = 0; row < p.count; row++) {
        const float *y = out.y + (size_t)row * p.shape.hidden;
        if (p.slot[row] == SICK && p.starts[row] != 0)
            sick = false;
        if (p.slot[row] == SICK && sick)
            ck_assert(isnan(y[0]));
        else
            ck_assert_mem_eq(y, sound.y + (size_t)row * p.shape.hidden, p.shape.hidden * sizeof *y);
    }
    ck_assert(!sick);
    free_outcome(&sound);
    free_outcome(&out);
    close_problem(&p);
}
END_TEST

/* ---- chunks, and the list ---- */

/* 400 rows are two chunks: `adds` adds the whole to what is there. */
START_TEST(a_gradient_is_added_to_one)
{
    enum { LONG = 400 };
    const struct recurrent_shape shape = {RECURRENT_GRU, 3, 5, 1};
    static uint32_t first[LONG + 1], slot[LONG];
    const struct recurrent_rows rows = {.steps = LONG, .first = first, .slot = slot};
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const uint32_t last = recurrent_parameters(&shape, list) - 1;
    const size_t count = list[last].offset + list[last].count;
    float *parameters = draw(1, count, 0.9), *x = draw(2, (size_t)LONG * 3, 1);
    float *pulls = draw(3, (size_t)LONG * 5, 1), *once = draw(0, count, 0), *twice = draw(0, count, 0);
    struct recurrent *recurrent;
    struct recurrent_work *work;
    struct error error;
    for (uint32_t i = 0; i <= LONG; i++)
        first[i] = i;
    ck_assert_int_eq(recurrent_new(&recurrent, &shape, &error), STATUS_OK);
    ck_assert_int_eq(recurrent_work_new(&work, recurrent, LONG, 1, &error), STATUS_OK);
    load_recurrent(recurrent, &shape, parameters);
    for (int time = 0; time < 3; time++) {
        float state[5] = {0};
        put_rows(recurrent_inputs(work), x, LONG, 3);
        recurrent_forward(recurrent, work, &rows, (struct recurrent_range){0, LONG}, state);
        put_rows(recurrent_pulls(work), pulls, LONG, 5);
        recurrent_backward(recurrent, work, &rows, (struct recurrent_range){0, LONG},
                           time == 0 ? once : twice, time == 2);
    }
    for (size_t i = 0; i < count; i++)
        expect_close("gradient", i, (double)twice[i], 2 * (double)once[i], 1e-5);
    recurrent_work_free(work);
    recurrent_free(recurrent);
    free(parameters);
    free(x);
    free(pulls);
    free(once);
    free(twice);
}
END_TEST

/* The names and shapes of nn.GRU(4, 7, 2).state_dict(). */
START_TEST(the_parameters_are_pytorchs)
{
    const struct recurrent_shape shape = {RECURRENT_GRU, 4, 7, 2};
    static const struct {
        const char *name;
        uint32_t shape[2];
    } expected[] = {{"weight_ih_l0", {21, 4}}, {"weight_hh_l0", {21, 7}}, {"bias_ih_l0", {21, 1}},
                    {"bias_hh_l0", {21, 1}},   {"weight_ih_l1", {21, 7}}, {"weight_hh_l1", {21, 7}},
                    {"bias_ih_l1", {21, 1}},   {"bias_hh_l1", {21, 1}}};
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    size_t offset = 0;
    ck_assert_uint_eq(recurrent_parameters(&shape, list), 8);
    for (int i = 0; i < 8; i++) {
        ck_assert_str_eq(list[i].name, expected[i].name);
        ck_assert_uint_eq(list[i].shape[0], expected[i].shape[0]);
        ck_assert_uint_eq(list[i].shape[1], expected[i].shape[1]);
        ck_assert_uint_eq(list[i].rank, i % 4 < 2 ? 2 : 1);
        ck_assert_uint_eq(list[i].offset, offset);
        offset += list[i].count;
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recurrent");
    TCase *tcase = tcase_create("recurrent");
    tcase_add_loop_test(tcase, results_and_gradients_are_the_oracles, 0, SHAPES);
    tcase_add_loop_test(tcase, steps_are_the_bits_of_the_whole, 0, SHAPES);
    tcase_add_loop_test(tcase, ranges_compute_what_the_whole_computes, 0, SHAPES);
    tcase_add_loop_test(tcase, every_instruction_set_has_the_same_bits, 0, SHAPES);
    tcase_add_loop_test(tcase, a_nan_stays_in_its_episode, 0, WITH_STATE);
    tcase_add_test(tcase, a_gradient_is_added_to_one);
    tcase_add_test(tcase, the_parameters_are_pytorchs);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
