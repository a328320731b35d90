/* kernels/policy/squashed.h on every instruction set of this machine: against its oracle in double and its
 * finite differences, and the bits that the header promises. */
#include "kernels/base/rng.h"
#include "kernels/lanes/isa.h"
#include "kernels/policy/squashed.h"
#include "test/oracle/squashed_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    struct squashed_shape shape;
    uint32_t rows;
} cases[] = {
    {{.components = 6}, 256},
    {{.components = 1}, 1},
    {{.components = 17, .clip_mean = 0.75f}, 37},
    {{.components = 3, .features = 5, .clip_mean = 0.75f}, 21},
    {{.components = 6, .features = 64, .expln = true, .clip_mean = 2}, 100},
    {{.components = 17, .features = 33}, 18},
    {{.components = 40, .features = 1, .expln = true}, 7},
};
enum { CASES = sizeof cases / sizeof *cases, ISAS = 3, GAP = 5 };

static const char *const isas[ISAS] = {"avx512", "avx2", "baseline"};

static float *draw(uint32_t stream, size_t count, double bound)
{
    float *to = calloc(count + 1, sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (size_t i = 0; i < count; i++)
        to[i] = rng_initial_uniform(11, stream, (uint32_t)i, bound);
    return to;
}

/* Rows GAP numbers apart, which nothing writes. */
static struct dense_matrix matrix(uint32_t stream, uint32_t rows, uint32_t columns, double bound)
{
    return (struct dense_matrix){draw(stream, (size_t)rows * (columns + GAP), bound), columns + GAP};
}

/* Rows of whole blocks, as features are. */
static struct dense_matrix blocks(uint32_t stream, uint32_t rows, uint32_t columns, double bound)
{
    const size_t stride = (columns + 15) / 16 * 16;
    return (struct dense_matrix){draw(stream, rows * stride, bound), stride};
}

struct problem {
    struct squashed_shape shape;
    struct squashed_rows rows;
    uint32_t outputs;
    struct dense_matrix d_actions;
    float d_log_probability;
    float *log_std, *noise; // state-dependent, (features, components)
    size_t deviations;      // features * components
    struct squashed *squashed;
};

static void fill(struct problem *p, int number)
{
    const struct squashed_shape *shape = &cases[number].shape;
    const uint32_t rows = cases[number].rows;
    *p = (struct problem){.shape = *shape,
                          .outputs = shape->features > 0 ? shape->components : 2 * shape->components,
                          .d_log_probability = 0.375f};
    p->deviations = (size_t)shape->features * shape->components;
    p->rows = (struct squashed_rows){.count = rows,
                                     .z = matrix(1, rows, p->outputs, 1),
                                     .noise = matrix(2, rows, shape->components, 1.5),
                                     .features = blocks(3, rows, shape->features, 1)};
    p->d_actions = matrix(4, rows, shape->components, 1);
    p->log_std = draw(5, p->deviations, 0.8);
    p->noise = draw(6, p->deviations, shape->features > 0 ? 1.5 / sqrt(shape->features) : 0);
    if (shape->features == 0) { /* clamped, both ways; little noise, for tanh to keep digits */
        p->rows.z.at[shape->components] = -21;
        p->rows.z.at[p->outputs - 1] = rows > 1 ? 2.5f : -21;
        p->rows.noise.at[shape->components - 1] = 0.1f;
    }
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
        status = squashed_new(&p->squashed, &p->shape, &error);
    unsetenv("COALESCED_ISA");
    if (status == STATUS_UNAVAILABLE)
        return false;
    ck_assert_int_eq(status, STATUS_OK);
    if (p->shape.features > 0)
        squashed_load(p->squashed, p->log_std, p->noise);
    return true;
}

static void empty(struct problem *p)
{
    free(p->rows.z.at);
    free(p->rows.noise.at);
    free(p->rows.features.at);
    free(p->d_actions.at);
    free(p->log_std);
    free(p->noise);
}

struct outcome {
    struct dense_matrix actions;
    float *log_probability;
    struct squashed_pulls pulls;
};

static struct outcome outcome_new(const struct problem *p)
{
    const uint32_t rows = p->rows.count;
    return (struct outcome){.actions = matrix(0, rows, p->shape.components, 0),
                            .log_probability = draw(0, rows, 0),
                            .pulls = {.z = matrix(0, rows, p->outputs, 0),
                                      .features = blocks(0, rows, p->shape.features, 0),
                                      .log_std = draw(0, p->deviations, 0)}};
}

static void outcome_free(struct outcome *out)
{
    free(out->actions.at);
    free(out->log_probability);
    free(out->pulls.z.at);
    free(out->pulls.features.at);
    free(out->pulls.log_std);
}

static struct dense_matrix from_row(struct dense_matrix from, uint32_t row)
{
    return (struct dense_matrix){from.at + row * from.stride, from.stride};
}

/* Rows [first, first + count), in their places. */
static void compute(const struct problem *p, uint32_t first, uint32_t count, struct outcome *out, bool adds)
{
    const struct squashed_rows rows = {.count = count,
                                       .z = from_row(p->rows.z, first),
                                       .noise = from_row(p->rows.noise, first),
                                       .features = from_row(p->rows.features, first)};
    const struct squashed_pulls pulls = {.z = from_row(out->pulls.z, first),
                                         .features = from_row(out->pulls.features, first),
                                         .log_std = out->pulls.log_std,
                                         .adds = adds};
    squashed_act(p->squashed, &rows, from_row(out->actions, first), out->log_probability + first);
    squashed_pull(p->squashed, &rows, from_row(out->actions, first), from_row(p->d_actions, first),
                  p->d_log_probability, &pulls);
}

static size_t bytes_of(struct dense_matrix matrix, uint32_t rows)
{
    return rows * matrix.stride * sizeof *matrix.at;
}

static void expect_same_rows(const struct problem *p, const struct outcome *a, const struct outcome *b)
{
    const uint32_t rows = p->rows.count;
    ck_assert_mem_eq(a->actions.at, b->actions.at, bytes_of(a->actions, rows));
    ck_assert_mem_eq(a->log_probability, b->log_probability, rows * sizeof(float));
    ck_assert_mem_eq(a->pulls.z.at, b->pulls.z.at, bytes_of(a->pulls.z, rows));
    for (uint32_t r = 0; r < rows; r++)
        ck_assert_mem_eq(from_row(a->pulls.features, r).at, from_row(b->pulls.features, r).at,
                         p->shape.features * sizeof(float));
}

/* ---- against the oracle ---- */

static double *in_double(const float *from, size_t count)
{
    double *to = calloc(count + 1, sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (size_t i = 0; i < count; i++)
        to[i] = (double)from[i];
    return to;
}

/* One row in double. */
struct reference {
    double *z, *noise, *h, *log_std, *action;
};

static struct reference reference_new(const struct problem *p, uint32_t row)
{
    const uint32_t components = p->shape.components, features = p->shape.features;
    return (struct reference){
        .z = in_double(from_row(p->rows.z, row).at, p->outputs),
        .noise = features > 0 ? in_double(p->noise, p->deviations)
                              : in_double(from_row(p->rows.noise, row).at, components),
        .h = in_double(from_row(p->rows.features, row).at, features),
        .log_std = in_double(p->log_std, p->deviations),
        .action = calloc(components, sizeof(double)),
    };
}

static void reference_free(struct reference *of)
{
    free(of->z);
    free(of->noise);
    free(of->h);
    free(of->log_std);
    free(of->action);
}

static double reference_act(const struct problem *p, const struct reference *of)
{
    return squashed_ref_act(&p->shape, &(struct squashed_ref_row){of->z, of->noise, of->h, of->log_std},
                            of->action);
}

static double reference_loss(const struct problem *p, const struct reference *of, uint32_t row)
{
    double loss = (double)p->d_log_probability * reference_act(p, of);
    for (uint32_t d = 0; d < p->shape.components; d++)
        loss += (double)from_row(p->d_actions, row).at[d] * of->action[d];
    return loss;
}

/* dL/d *at of one row's loss, by a central difference. */
static double slope(const struct problem *p, const struct reference *of, uint32_t row, double *at)
{
    const double before = *at, step = 1e-5;
    *at = before + step;
    const double above = reference_loss(p, of, row);
    *at = before - step;
    const double below = reference_loss(p, of, row);
    *at = before;
    return (above - below) / (2 * step);
}

static void expect_close(const char *what, uint32_t row, size_t at, double found, double expected,
                         double bound)
{
    ck_assert_msg(fabs(found - expected) <= bound, "%s (%u, %zu): %.9g, expected %.9g", what, row, at, found,
                  expected);
}

/* 1 - a^2 has an error of 1e-7 where a has one, and log P takes it as a share of 1 - a^2. */
START_TEST(actions_are_the_oracles)
{
    struct problem p;
    fill(&p, _i / ISAS);
    if (load(&p, isas[_i % ISAS])) {
        struct outcome out = outcome_new(&p);
        compute(&p, 0, p.rows.count, &out, false);
        for (uint32_t r = 0; r < p.rows.count; r++) {
            struct reference of = reference_new(&p, r);
            const double log_probability = reference_act(&p, &of);
            double bound = 2e-6 * (1 + fabs(log_probability));
            for (uint32_t d = 0; d < p.shape.components; d++) {
                expect_close("action", r, d, (double)from_row(out.actions, r).at[d], of.action[d], 5e-7);
                bound += 1e-6 / (1 - of.action[d] * of.action[d]);
            }
            expect_close("log P", r, 0, (double)out.log_probability[r], log_probability, bound);
            reference_free(&of);
        }
        outcome_free(&out);
        squashed_free(p.squashed);
    }
    empty(&p);
}
END_TEST

static void expect_slopes(const struct problem *p, const struct outcome *out, uint32_t row, double *d_log_std)
{
    struct reference of = reference_new(p, row);
    for (uint32_t i = 0; i < p->outputs; i++) {
        const double expected = slope(p, &of, row, &of.z[i]);
        expect_close("dz", row, i, (double)from_row(out->pulls.z, row).at[i], expected,
                     3e-5 * (1 + fabs(expected)));
    }
    for (uint32_t f = 0; f < p->shape.features; f++) {
        const double expected = slope(p, &of, row, &of.h[f]);
        expect_close("dh", row, f, (double)from_row(out->pulls.features, row).at[f], expected,
                     3e-5 * (1 + fabs(expected)));
    }
    for (size_t i = 0; i < p->deviations; i++)
        d_log_std[i] += slope(p, &of, row, &of.log_std[i]);
    reference_free(&of);
}

START_TEST(pulls_are_the_slopes_of_the_oracle)
{
    struct problem p;
    fill(&p, _i / ISAS);
    if (load(&p, isas[_i % ISAS])) {
        struct outcome out = outcome_new(&p);
        double *d_log_std = in_double(out.pulls.log_std, p.deviations), norm = 0;
        compute(&p, 0, p.rows.count, &out, false);
        for (uint32_t r = 0; r < p.rows.count; r++)
            expect_slopes(&p, &out, r, d_log_std);
        for (size_t i = 0; i < p.deviations; i++) {
            expect_close("dlog_std", 0, i, (double)out.pulls.log_std[i], d_log_std[i],
                         3e-5 * (1 + fabs(d_log_std[i])));
            norm += fabs(d_log_std[i]);
        }
        ck_assert(norm > 0.1 || p.deviations == 0);
        free(d_log_std);
        outcome_free(&out);
        squashed_free(p.squashed);
    }
    empty(&p);
}
END_TEST

/* ---- what takes no gradient ---- */

START_TEST(clamped_log_stds_take_no_gradient)
{
    struct problem p;
    fill(&p, 0);
    ck_assert(load(&p, NULL));
    struct outcome out = outcome_new(&p);
    const float bounds[] = {-20, 2}, within[] = {-19.5f, 1.5f}, beyond[] = {-20.5f, 2.5f};
    for (int i = 0; i < 2; i++) {
        float *log_std = &p.rows.z.at[p.shape.components], *d = &out.pulls.z.at[p.shape.components];
        log_std[0] = beyond[i];
        log_std[1] = bounds[i]; /* torch.clamp: the bounds are inside */
        log_std[2] = within[i];
        compute(&p, 0, p.rows.count, &out, false);
        ck_assert(d[0] == 0 && d[1] != 0 && d[2] != 0);
    }
    outcome_free(&out);
    squashed_free(p.squashed);
    empty(&p);
}
END_TEST

START_TEST(clipped_means_take_no_gradient)
{
    struct problem p;
    fill(&p, 3);
    ck_assert(load(&p, NULL));
    struct outcome out = outcome_new(&p);
    for (int sign = -1; sign <= 1; sign += 2) {
        p.rows.z.at[0] = 1.5f * (float)sign;
        p.rows.z.at[1] = 0.75f * (float)sign; /* torch.nn.Hardtanh: the bounds are outside */
        p.rows.z.at[2] = 0.5f * (float)sign;
        compute(&p, 0, p.rows.count, &out, false);
        ck_assert(out.pulls.z.at[0] == 0 && out.pulls.z.at[1] == 0 && out.pulls.z.at[2] != 0);
    }
    outcome_free(&out);
    squashed_free(p.squashed);
    empty(&p);
}
END_TEST

/* Without noise, an action is its mean's; without pulls at actions, they are zeros. */
START_TEST(what_is_not_given_is_zero)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome without = outcome_new(&p), zeros = outcome_new(&p);
    float *log_probability = without.log_probability;
    memset(p.rows.noise.at, 0, bytes_of(p.rows.noise, p.rows.count));
    memset(p.d_actions.at, 0, bytes_of(p.d_actions, p.rows.count));
    memset(p.noise, 0, p.deviations * sizeof *p.noise);
    if (p.shape.features > 0)
        squashed_load(p.squashed, p.log_std, p.noise);
    compute(&p, 0, p.rows.count, &zeros, false);
    if (p.shape.features > 0)
        squashed_load(p.squashed, p.log_std, NULL);
    const struct dense_matrix none = {0};
    struct squashed_rows rows = p.rows;
    rows.noise = none;
    squashed_act(p.squashed, &rows, without.actions, NULL);
    squashed_act(p.squashed, &rows, without.actions, log_probability);
    squashed_pull(p.squashed, &rows, without.actions, none, p.d_log_probability, &without.pulls);
    expect_same_rows(&p, &without, &zeros);
    const float clip = p.shape.clip_mean > 0 ? p.shape.clip_mean : INFINITY;
    const double mean = (double)fmaxf(-clip, fminf(clip, p.rows.z.at[0]));
    expect_close("action", 0, 0, (double)without.actions.at[0], tanh(mean), 5e-7);
    outcome_free(&without);
    outcome_free(&zeros);
    squashed_free(p.squashed);
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
    compute(&p, 0, p.rows.count, &expected, false);
    squashed_free(p.squashed);
    for (int i = 0; i < ISAS - 1; i++)
        if (load(&p, isas[i])) {
            struct outcome out = outcome_new(&p);
            compute(&p, 0, p.rows.count, &out, false);
            expect_same_rows(&p, &out, &expected);
            ck_assert_mem_eq(out.pulls.log_std, expected.pulls.log_std, p.deviations * sizeof(float));
            outcome_free(&out);
            squashed_free(p.squashed);
        }
    outcome_free(&expected);
    empty(&p);
}
END_TEST

/* Rows alone, which come after others in the same arrays, have the batch's bits; their dL/d log_std add up.
 */
START_TEST(rows_alone_are_the_bits_of_the_batch)
{
    struct problem p;
    fill(&p, _i);
    ck_assert(load(&p, NULL));
    struct outcome batch = outcome_new(&p), alone = outcome_new(&p);
    compute(&p, 0, p.rows.count, &batch, false);
    for (uint32_t r = p.rows.count; r-- > 0;)
        compute(&p, r, 1, &alone, true);
    expect_same_rows(&p, &alone, &batch);
    for (size_t i = 0; i < p.deviations; i++)
        expect_close("dlog_std", 0, i, (double)alone.pulls.log_std[i], (double)batch.pulls.log_std[i],
                     1e-5 * (1 + fabs((double)batch.pulls.log_std[i])));
    outcome_free(&batch);
    outcome_free(&alone);
    squashed_free(p.squashed);
    empty(&p);
}
END_TEST

START_TEST(a_nan_stays_in_its_row)
{
    enum { SICK = 4 };
    struct problem p;
    fill(&p, _i == 1 ? 0 : _i);
    ck_assert(load(&p, NULL));
    struct outcome sound = outcome_new(&p), out = outcome_new(&p);
    compute(&p, 0, p.rows.count, &sound, false);
    p.rows.z.at[SICK * p.rows.z.stride] = NAN;
    compute(&p, 0, p.rows.count, &out, false);
    ck_assert(isnan(out.log_probability[SICK]) && isnan(from_row(out.pulls.z, SICK).at[0]));
    memcpy(from_row(out.actions, SICK).at, from_row(sound.actions, SICK).at, bytes_of(out.actions, 1));
    memcpy(from_row(out.pulls.z, SICK).at, from_row(sound.pulls.z, SICK).at, bytes_of(out.pulls.z, 1));
    memcpy(from_row(out.pulls.features, SICK).at, from_row(sound.pulls.features, SICK).at,
           bytes_of(out.pulls.features, 1));
    out.log_probability[SICK] = sound.log_probability[SICK];
    expect_same_rows(&p, &out, &sound);
    outcome_free(&sound);
    outcome_free(&out);
    squashed_free(p.squashed);
    empty(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("squashed");
    TCase *tcase = tcase_create("squashed");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, actions_are_the_oracles, 0, CASES * ISAS);
    tcase_add_loop_test(tcase, pulls_are_the_slopes_of_the_oracle, 0, CASES * ISAS);
    tcase_add_test(tcase, clamped_log_stds_take_no_gradient);
    tcase_add_test(tcase, clipped_means_take_no_gradient);
    tcase_add_loop_test(tcase, what_is_not_given_is_zero, 0, CASES);
    tcase_add_loop_test(tcase, every_instruction_set_has_the_same_bits, 0, CASES);
    tcase_add_loop_test(tcase, rows_alone_are_the_bits_of_the_batch, 0, CASES);
    tcase_add_loop_test(tcase, a_nan_stays_in_its_row, 0, CASES);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
