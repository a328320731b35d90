/* First values of a policy's parameters: the stated distributions, with the same bits everywhere. */
#include "kernels/base/rng.h"
#include "kernels/lanes/normal.h"
#include "test/worker/model/policy_hidden.h"
#include "test/workplace.h"
#include "worker/model/policy_parameters.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t choices[] = {2, 3};
static const struct policy_config categorical = {
    .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {4}},
    .action = {.dtype = ENVIRONMENT_I32, .rank = 1, .shape = {2}, .choices = choices},
    POLICY_HIDDEN(64, 32),
    .has_value = true,
    .orthogonal = true};
static const struct policy_config apart = {
    .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {4}},
    .action = {.dtype = ENVIRONMENT_I32, .rank = 1, .shape = {2}, .choices = choices},
    POLICY_HIDDEN_POLICY(8),
    POLICY_HIDDEN_VALUE(16, 4),
    .has_value = true,
    .orthogonal = true};
static const struct policy_config gaussian = {
    .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {17}},
    .action = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {6}},
    POLICY_HIDDEN(48),
    .log_std_init = -0.5};

static struct policy_parameter list[POLICY_PARAMETERS_MAX];
static uint32_t count;

/* All first values; fills the list. */
static float *begin(struct policy_config config, uint64_t seed)
{
    struct error error = {0};
    config.seed = seed;
    count = policy_parameters(list, &config);
    float *parameters = malloc((list[count - 1].offset + list[count - 1].count) * sizeof *parameters);
    ck_assert_ptr_nonnull(parameters);
    for (uint32_t p = 0; p < count; p++)
        ck_assert_msg(policy_begin_parameter(parameters + list[p].offset, &list[p], p, &config, &error) ==
                          STATUS_OK,
                      "%s", error.text);
    return parameters;
}

START_TEST(linear_layers_begin_as_pytorchs)
{
    float *parameters = begin(gaussian, 99);
    for (uint32_t p = 0; p < count; p++) {
        const double bound = 1 / sqrt(p < 3 ? 17 : 48);
        double largest = 0;
        for (size_t e = 0; e < list[p].count; e++) {
            const float value = parameters[list[p].offset + e];
            const float expected = p == 0 ? -0.5f : rng_initial_uniform(99, p, (uint32_t)e, bound);
            ck_assert(value == expected);
            largest = fmax(largest, fabs((double)value));
        }
        ck_assert(p == 0 || (largest <= bound && largest > 0.6 * bound));
    }
    free(parameters);
}
END_TEST

/* The inner product of vectors u and v of a weight: its rows if it is wider than tall, else its columns. */
static double inner(const float *weight, uint32_t rows, uint32_t columns, uint32_t u, uint32_t v)
{
    const bool wide = columns > rows;
    double sum = 0;
    for (uint32_t e = 0; e < (wide ? columns : rows); e++)
        sum += wide ? (double)weight[u * columns + e] * (double)weight[v * columns + e]
                    : (double)weight[e * columns + u] * (double)weight[e * columns + v];
    return sum;
}

static double gain_of(const struct policy_parameter *parameter)
{
    if (strncmp(parameter->name, "mlp_extractor", 13) == 0)
        return sqrt(2);
    return strncmp(parameter->name, "action_net", 10) == 0 ? 0.01 : 1;
}

/* Vectors are perpendicular and as long as the gain, and R = Q^T A of the draws A has zeros below a positive
 * diagonal: which no other Q has. */
START_TEST(orthogonal_weights_are_those_of_their_draws)
{
    float *parameters = begin(_i == 0 ? categorical : apart, 12345678901), draws[64 * 64];
    normal_group *normal;
    normal = normal_choose();
    for (uint32_t p = 0; p < count; p++) {
        const float *weight = parameters + list[p].offset;
        const uint32_t rows = list[p].shape.size[0], columns = list[p].shape.size[1];
        const double gain = gain_of(&list[p]), bound = 1e-6 * gain;
        if (list[p].shape.rank == 1) {
            for (uint32_t e = 0; e < rows; e++)
                ck_assert(weight[e] == 0);
            continue;
        }
        const bool wide = columns > rows;
        const struct rng_key key = {.seed = 12345678901, .episode = p};
        normal_fill(normal, draws, list[p].count, &key, RNG_INIT, 1);
        for (uint32_t u = 0; u < (wide ? rows : columns); u++)
            for (uint32_t v = 0; v <= u; v++) {
                double r = 0; // of Q's vector u and A's vector v
                for (uint32_t e = 0; e < (wide ? columns : rows); e++)
                    r += wide ? (double)weight[u * columns + e] * (double)draws[v * columns + e]
                              : (double)weight[e * columns + u] * (double)draws[e * columns + v];
                ck_assert_double_eq_tol(inner(weight, rows, columns, u, v), u == v ? gain * gain : 0,
                                        bound * gain);
                if (u == v)
                    ck_assert_double_gt(r, 0.05 * gain);
                else
                    ck_assert_double_eq_tol(r, 0, 10 * bound);
            }
    }
    free(parameters);
}
END_TEST

/* A parameter's draws depend on the seed and on its number in the list. */
START_TEST(draws_differ)
{
    float *one = begin(categorical, 1), *two = begin(categorical, 2);
    ck_assert_mem_ne(one, two, 64 * sizeof *one);
    ck_assert_mem_ne(one, one + list[4].offset,
                     list[0].count * sizeof *one); // the same shape in the value network
    free(one);
    free(two);
}
END_TEST

/* FNV-1a of all bits, recorded once: other compilers, processors and C libraries must find it too. */
START_TEST(first_values_are_the_same_everywhere)
{
    float *parameters = begin(categorical, 543);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < list[count - 1].offset + list[count - 1].count; i++) {
        uint32_t bits;
        memcpy(&bits, &parameters[i], sizeof bits);
        for (int b = 0; b < 4; b++)
            hash = (hash ^ (bits >> 8 * b & 0xff)) * 0x100000001b3;
    }
    ck_assert_msg(hash == 0x7167a6214151048e, "%#llx", (unsigned long long)hash);
    free(parameters);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_parameters");
    TCase *tests = tcase_create("policy_parameters");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, linear_layers_begin_as_pytorchs);
    tcase_add_loop_test(tests, orthogonal_weights_are_those_of_their_draws, 0, 2);
    tcase_add_test(tests, draws_differ);
    tcase_add_test(tests, first_values_are_the_same_everywhere);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
