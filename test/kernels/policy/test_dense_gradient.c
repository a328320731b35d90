/* A general policy's gradient on every instruction set of this machine: against the oracle in double, the
 * oracle against finite differences of itself, and the promised order of summation. */
#include "test/kernels/policy/dense_cases.h"
#include "test/kernels/policy/load_parameters.h"
#include "test/oracle/dense_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct dense_problem problem;

static bool open_case(int number)
{
    return dense_problem_open(&problem, dense_cases, number);
}

static void close_case(void)
{
    dense_problem_close(&problem);
}

static double *zeros(size_t count)
{
    double *values = calloc(count, sizeof *values);
    ck_assert_ptr_nonnull(values);
    return values;
}

/* The error of a parameter is held to the norm of the whole gradient of its layer's kind, which is what
 * rounding in float grows with; a gradient of zeros would fail by far. */
START_TEST(gradient_is_the_oracles)
{
    if (!open_case(_i))
        return;
    double *expected = zeros(problem.count), norm = 0, worst = 0;
    const struct dense_pulls pulls = dense_problem_pulls(&problem, 0);
    dense_problem_learn(&problem);
    dense_ref_gradient(&problem.shape, problem.exact, &problem.batch, &pulls, expected);
    for (size_t p = 0; p < problem.count; p++) {
        const double error = fabs((double)problem.gradient[p] - expected[p]);
        worst = !(error <= worst) ? error : worst;
        norm += expected[p] * expected[p];
    }
    ck_assert_msg(worst <= 1e-6 * sqrt(norm), "%g of %g", worst, sqrt(norm));
    ck_assert_double_gt(norm, problem.outputs > 1 ? 0.1 : -1);
    free(expected);
    close_case();
}
END_TEST

/* Whether the parameter's slope is another one than the gradient's: deviations that depend on the state pull
 * at nothing below the last hidden layer. */
static bool is_held_back(size_t p)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t parameters = dense_parameters(&problem.shape, list);
    for (uint32_t i = 0; i < parameters && dense_explores(&problem.shape); i++)
        if (p >= list[i].offset && p < list[i].offset + list[i].count)
            return list[i].network == DENSE_POLICY && list[i].kind != DENSE_LOG_SIGMA &&
                   list[i].layer < problem.shape.layers;
    return false;
}

/* The oracle's formulas, by central differences in double. ReLU's corners are where a difference is none. */
START_TEST(oracle_is_the_slope_of_its_loss)
{
    struct dense_case one = dense_cases[_i];
    one.rows = one.rows < 10 ? one.rows : 10;
    dense_problem_init(&problem, &one, (uint64_t)_i + 1);
    const struct dense_pulls pulls = dense_problem_pulls(&problem, 0);
    double *slope = zeros(problem.count), worst = 0;
    dense_ref_gradient(&problem.shape, problem.exact, &problem.batch, &pulls, slope);
    const double h = 1e-6;
    for (size_t p = 0; p < problem.count; p += 1 + problem.count / 300) {
        const double kept = problem.exact[p];
        if (is_held_back(p))
            continue;
        problem.exact[p] = kept + h;
        const double above = dense_ref_gradient(&problem.shape, problem.exact, &problem.batch, &pulls, NULL);
        problem.exact[p] = kept - h;
        const double below = dense_ref_gradient(&problem.shape, problem.exact, &problem.batch, &pulls, NULL);
        problem.exact[p] = kept;
        worst = fmax(worst, fabs((above - below) / (2 * h) - slope[p]) / (1 + fabs(slope[p])));
    }
    ck_assert_msg(worst <= 3e-7, "%g", worst);
    free(slope);
    dense_problem_fini(&problem);
}
END_TEST

START_TEST(instruction_sets_agree_bit_for_bit)
{
    ck_assert(open_case(_i * DENSE_ISAS + DENSE_ISAS - 1));
    const size_t bytes = problem.count * sizeof(float);
    float *baseline = malloc(bytes);
    ck_assert_ptr_nonnull(baseline);
    dense_problem_learn(&problem);
    memcpy(baseline, problem.gradient, bytes);
    close_case();
    for (int j = 0; j < DENSE_ISAS - 1; j++) {
        if (!open_case(_i * DENSE_ISAS + j))
            continue;
        dense_problem_learn(&problem);
        ck_assert_mem_eq(problem.gradient, baseline, bytes);
        close_case();
    }
    free(baseline);
}
END_TEST

static void add_gradient_of(const struct dense_batch *batch, const struct dense_pulls *pulls, float *gradient)
{
    float log_probability[DENSE_CHUNK_ROWS], value[DENSE_CHUNK_ROWS];
    const struct dense_results results = {.log_probability = log_probability,
                                          .value = problem.shape.value ? value : NULL};
    dense_evaluate(problem.dense, problem.work, batch, &results);
    dense_gradient(problem.dense, problem.work, pulls, gradient, true);
}

/* Each chunk is summed from zero and then added: the same bits as adding the chunks' own gradients. */
START_TEST(chunks_are_added_in_order)
{
    if (!open_case(_i))
        return;
    dense_problem_learn(&problem);
    float *sum = calloc(problem.count, sizeof *sum), *own = calloc(problem.count, sizeof *own);
    ck_assert(sum != NULL && own != NULL);
    for (uint32_t first = 0; first < problem.rows; first += DENSE_CHUNK_ROWS) {
        const struct dense_batch chunk = dense_problem_piece(&problem, first, DENSE_CHUNK_ROWS);
        const struct dense_pulls pulls = dense_problem_pulls(&problem, first);
        memset(own, 0, problem.count * sizeof *own);
        add_gradient_of(&chunk, &pulls, own);
        for (size_t p = 0; p < problem.count; p++)
            sum[p] += own[p];
    }
    ck_assert_mem_eq(sum, problem.gradient, problem.count * sizeof *sum);
    free(sum);
    free(own);
    close_case();
}
END_TEST

/* The biases by hand: a row alone gives its own pull, exactly; a chunk gives their sum, rows ascending. */
START_TEST(rows_are_added_in_order)
{
    if (!open_case(_i))
        return;
    const struct dense_batch chunk = dense_problem_piece(&problem, 0, DENSE_CHUNK_ROWS);
    const struct dense_pulls pulls = dense_problem_pulls(&problem, 0);
    float *all = calloc(problem.count, sizeof *all), *sum = calloc(problem.count, sizeof *sum);
    float *own = calloc(problem.count, sizeof *own);
    ck_assert(all != NULL && sum != NULL && own != NULL);
    add_gradient_of(&chunk, &pulls, all);
    for (uint32_t i = 0; i < chunk.count; i++) {
        const struct dense_batch row = dense_problem_piece(&problem, i, 1);
        const struct dense_pulls pull = dense_problem_pulls(&problem, i);
        memset(own, 0, problem.count * sizeof *own);
        add_gradient_of(&row, &pull, own);
        for (size_t p = 0; p < problem.count; p++)
            sum[p] += own[p];
    }
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t parameters = dense_parameters(&problem.shape, list);
    for (uint32_t p = 0; p < parameters; p++)
        if (list[p].kind != DENSE_WEIGHT &&
            !(list[p].kind == DENSE_LOG_SIGMA && dense_explores(&problem.shape)))
            ck_assert_mem_eq(sum + list[p].offset, all + list[p].offset, list[p].count * sizeof *sum);
    free(all);
    free(sum);
    free(own);
    close_case();
}
END_TEST

/* A pull that is not given is 0, and a network that nothing pulls at gets nothing. */
START_TEST(pulls_that_are_not_given_are_zero)
{
    if (!open_case(_i))
        return;
    const struct dense_batch chunk = dense_problem_piece(&problem, 0, DENSE_CHUNK_ROWS);
    float none[DENSE_CHUNK_ROWS] = {0};
    float *value = problem.shape.value ? none : NULL;
    const struct {
        struct dense_pulls sparse, full;
    } pairs[] = {{{.log_probability = problem.pull[0]}, {problem.pull[0], none, value, NULL}},
                 {{.entropy = problem.pull[1]}, {none, problem.pull[1], value, NULL}},
                 {{.value = problem.shape.value ? problem.pull[2] : NULL},
                  {none, none, problem.shape.value ? problem.pull[2] : NULL, NULL}}};
    float *sparse = calloc(problem.count, sizeof *sparse), *full = calloc(problem.count, sizeof *full);
    ck_assert(sparse != NULL && full != NULL);
    for (int i = 0; i < 3; i++) {
        memset(sparse, 0, problem.count * sizeof *sparse);
        memset(full, 0, problem.count * sizeof *full);
        add_gradient_of(&chunk, &pairs[i].sparse, sparse);
        add_gradient_of(&chunk, &pairs[i].full, full);
        for (size_t p = 0; p < problem.count; p++)
            if (!(sparse[p] == full[p])) // -0 is 0
                ck_abort_msg("pair %d, parameter %zu: %g and %g", i, p, (double)sparse[p], (double)full[p]);
    }
    free(sparse);
    free(full);
    close_case();
}
END_TEST

/* A forbidden choice's logit takes no gradient, and the certain choice neither. */
START_TEST(masks_keep_gradients_away)
{
    ck_assert(open_case(3 * DENSE_ISAS + _i % DENSE_ISAS) || _i < DENSE_ISAS - 1);
    if (problem.dense == NULL)
        return;
    for (uint32_t row = 0; row < problem.rows; row++) {
        memcpy(problem.mask + (size_t)row * 5, (uint8_t[]){0, row % 2 == 0, 1, 0, 0}, 5);
        problem.batch.choices[row] = 2;
    }
    dense_problem_learn(&problem);
    const float *bias = problem.gradient + 5 * 3;
    ck_assert(bias[0] == 0 && bias[3] == 0 && bias[4] == 0);
    ck_assert(bias[1] != 0 && bias[2] != 0);
    for (uint32_t row = 0; row < problem.rows; row++)
        problem.mask[(size_t)row * 5 + 1] = 0;
    dense_problem_learn(&problem);
    for (uint32_t p = 0; p < 5 * (3 + 1); p++)
        ck_assert(problem.gradient[p] == 0);
    close_case();
}
END_TEST

START_TEST(no_rows_are_no_gradient)
{
    ck_assert(open_case(DENSE_ISAS - 1));
    const struct dense_batch none = dense_problem_piece(&problem, 0, 0);
    const struct dense_pulls pulls = dense_problem_pulls(&problem, 0);
    memset(problem.gradient, 0, problem.count * sizeof(float));
    add_gradient_of(&none, &pulls, problem.gradient);
    for (size_t p = 0; p < problem.count; p++)
        if (problem.gradient[p] != 0)
            ck_abort_msg("parameter %zu", p);
    close_case();
}
END_TEST

/* ---- features in the observations' place ---- */

/* Learns from the chunk that begins the problem, with its observations given as features, and writes the
 * gradient, and dL/d features (count, stride). */
static void learn_from_features(const struct dense_case *one, float *gradient, float *d_features,
                                size_t stride)
{
    struct dense_shape shape = one->shape;
    struct dense_batch batch = problem.batch;
    struct dense_pulls pulls = dense_problem_pulls(&problem, 0);
    const struct dense_results results = dense_problem_results(&problem);
    float *features = calloc(batch.count * stride, sizeof *features);
    struct dense *dense;
    struct dense_work *work;
    struct error error;
    ck_assert_ptr_nonnull(features);
    shape.pulls_inputs = true;
    for (uint32_t i = 0; i < batch.count; i++)
        memcpy(features + i * stride, batch.observations + (size_t)batch.row[i] * shape.inputs,
               shape.inputs * sizeof *features);
    batch.features = features;
    batch.observations = NULL;
    batch.stride = stride;
    pulls.features = d_features;
    ck_assert_int_eq(dense_new(&dense, &shape, &error), STATUS_OK);
    ck_assert_int_eq(dense_work_new(&work, dense, &error), STATUS_OK);
    load_dense(dense, &shape, problem.parameters);
    dense_evaluate(dense, work, &batch, &results);
    dense_gradient(dense, work, &pulls, gradient, false);
    dense_work_free(work);
    dense_free(dense);
    free(features);
}

/* L at the observations moved by `by` along a direction of ones and minus ones. *along: sum of d_features
 * times how far they were moved. */
static double loss_at(const struct dense_pulls *pulls, float by, const float *d_features, size_t stride,
                      double *along)
{
    struct dense_batch moved = problem.batch;
    const uint32_t inputs = problem.shape.inputs;
    float *observations = calloc((size_t)problem.rows * inputs, sizeof *observations);
    ck_assert_ptr_nonnull(observations);
    *along = 0;
    for (uint32_t i = 0; i < moved.count; i++)
        for (uint32_t k = 0; k < inputs; k++) {
            const size_t at = (size_t)moved.row[i] * inputs + k;
            observations[at] = moved.observations[at] + ((i + k) % 3 == 0 ? -by : by);
            *along += (double)d_features[i * stride + k] *
                      ((double)observations[at] - (double)moved.observations[at]);
        }
    moved.observations = observations;
    const double loss = dense_ref_gradient(&problem.shape, problem.exact, &moved, pulls, NULL);
    free(observations);
    return loss;
}

/* The parameters' gradient has the bits that observations give; dL/d features is the loss's slope. */
START_TEST(features_are_read_and_pulled_at)
{
    struct dense_case one = dense_cases[_i];
    if (one.shape.activation == DENSE_RELU || one.shape.state_dependent || one.shape.inputs > DENSE_WIDTH_MAX)
        return;
    one.rows = one.rows < 100 ? one.rows : 100;
    dense_problem_init(&problem, &one, 5);
    ck_assert(dense_problem_load(&problem, NULL));
    const size_t stride = (one.shape.inputs + 15) / 16 * 16;
    const struct dense_pulls pulls = dense_problem_pulls(&problem, 0);
    float *gradient = calloc(problem.count, sizeof *gradient);
    float *d_features = calloc(problem.rows * stride, sizeof *d_features);
    double above, below;
    ck_assert(gradient != NULL && d_features != NULL);
    dense_problem_learn(&problem);
    learn_from_features(&one, gradient, d_features, stride);
    ck_assert_mem_eq(gradient, problem.gradient, problem.count * sizeof *gradient);
    const double high = loss_at(&pulls, 0x1p-9f, d_features, stride, &above);
    const double low = loss_at(&pulls, -0x1p-9f, d_features, stride, &below);
    ck_assert_msg(fabs((high - low) - (above - below)) <= 1e-3 * fabs(above - below) + 1e-6,
                  "%g, expected %g", above - below, high - low);
    free(gradient);
    free(d_features);
    dense_problem_unload(&problem);
    dense_problem_fini(&problem);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dense_gradient");
    TCase *backward = tcase_create("backward");
    tcase_set_timeout(backward, 120);
    tcase_add_loop_test(backward, gradient_is_the_oracles, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(backward, oracle_is_the_slope_of_its_loss, 0, DENSE_CASES);
    tcase_add_loop_test(backward, instruction_sets_agree_bit_for_bit, 0, DENSE_CASES);
    tcase_add_loop_test(backward, chunks_are_added_in_order, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(backward, rows_are_added_in_order, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(backward, pulls_that_are_not_given_are_zero, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(backward, masks_keep_gradients_away, 0, DENSE_ISAS);
    tcase_add_test(backward, no_rows_are_no_gradient);
    tcase_add_loop_test(backward, features_are_read_and_pulled_at, 0, DENSE_CASES);
    suite_add_tcase(suite, backward);
    return suite_run(suite);
}
