/* A general policy's parameters: their list is PyTorch's, and their first values have the stated
 * distributions, with the same bits everywhere. */
#include "kernels/base/rng.h"
#include "kernels/lanes/normal.h"
#include "kernels/policy/dense_shape.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const struct dense_shape categorical = {
    .inputs = 4, .layers = 2, .width = {64, 32}, .value = true, .components = 2, .choices = {2, 3}};
static const struct dense_shape gaussian = {
    .inputs = 17, .layers = 1, .width = {48}, .gaussian = true, .components = 6};
static const struct dense_shape bare = {.inputs = 7, .components = 1, .choices = {3}};

struct line {
    const char *name;
    uint32_t rank, first, second;
};

static void expect_list(const struct dense_shape *shape, const struct line *lines, uint32_t count)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    size_t offset = 0;
    ck_assert_uint_eq(dense_parameters(shape, list), count);
    for (uint32_t p = 0; p < count; p++) {
        ck_assert_str_eq(list[p].name, lines[p].name);
        ck_assert_uint_eq(list[p].rank, lines[p].rank);
        ck_assert_uint_eq(list[p].shape[0], lines[p].first);
        ck_assert_uint_eq(list[p].shape[1], lines[p].second);
        ck_assert_uint_eq(list[p].offset, offset);
        ck_assert_uint_eq(list[p].count, (size_t)lines[p].first * lines[p].second);
        offset += list[p].count;
    }
}

START_TEST(the_list_is_that_of_a_state_dict)
{
    const struct line of_categorical[] = {{"mlp_extractor.policy_net.0.weight", 2, 64, 4},
                                          {"mlp_extractor.policy_net.0.bias", 1, 64, 1},
                                          {"mlp_extractor.policy_net.2.weight", 2, 32, 64},
                                          {"mlp_extractor.policy_net.2.bias", 1, 32, 1},
                                          {"mlp_extractor.value_net.0.weight", 2, 64, 4},
                                          {"mlp_extractor.value_net.0.bias", 1, 64, 1},
                                          {"mlp_extractor.value_net.2.weight", 2, 32, 64},
                                          {"mlp_extractor.value_net.2.bias", 1, 32, 1},
                                          {"action_net.weight", 2, 5, 32},
                                          {"action_net.bias", 1, 5, 1},
                                          {"value_net.weight", 2, 1, 32},
                                          {"value_net.bias", 1, 1, 1}};
    const struct line of_gaussian[] = {{"log_std", 1, 6, 1},
                                       {"mlp_extractor.policy_net.0.weight", 2, 48, 17},
                                       {"mlp_extractor.policy_net.0.bias", 1, 48, 1},
                                       {"action_net.weight", 2, 6, 48},
                                       {"action_net.bias", 1, 6, 1}};
    struct dense_shape sharing = categorical;
    const struct line of_sharing[] = {{"mlp_extractor.shared_net.0.weight", 2, 64, 4},
                                      {"mlp_extractor.shared_net.0.bias", 1, 64, 1},
                                      {"mlp_extractor.shared_net.2.weight", 2, 32, 64},
                                      {"mlp_extractor.shared_net.2.bias", 1, 32, 1},
                                      {"action_net.weight", 2, 5, 32},
                                      {"action_net.bias", 1, 5, 1},
                                      {"value_net.weight", 2, 1, 32},
                                      {"value_net.bias", 1, 1, 1}};
    const struct line of_bare[] = {{"action_net.weight", 2, 3, 7}, {"action_net.bias", 1, 3, 1}};
    expect_list(&categorical, of_categorical, 12);
    expect_list(&gaussian, of_gaussian, 5);
    sharing.shared = true;
    expect_list(&sharing, of_sharing, 8);
    expect_list(&bare, of_bare, 2);
}
END_TEST

START_TEST(the_longest_list_fits)
{
    struct dense_shape shape = {.inputs = 1, .layers = 8, .value = true, .gaussian = true, .components = 1};
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    for (int l = 0; l < 8; l++)
        shape.width[l] = 1024;
    ck_assert_uint_eq(dense_parameters(&shape, list), DENSE_PARAMETERS_MAX);
    ck_assert_str_eq(list[15].name, "mlp_extractor.policy_net.14.weight");
}
END_TEST

static size_t count_of(const struct dense_shape *shape)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const struct dense_parameter *last = &list[dense_parameters(shape, list) - 1];
    return last->offset + last->count;
}

static float *begin(const struct dense_shape *shape, const struct dense_initial *initial, uint64_t seed)
{
    struct error error = {0};
    float *parameters = malloc(count_of(shape) * sizeof *parameters);
    ck_assert_ptr_nonnull(parameters);
    ck_assert_msg(dense_begin(parameters, shape, initial, seed, &error) == STATUS_OK, "%s", error.text);
    return parameters;
}

START_TEST(linear_layers_begin_as_pytorchs)
{
    const struct dense_initial initial = {.log_sigma = -0.5};
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t count = dense_parameters(&gaussian, list);
    float *parameters = begin(&gaussian, &initial, 99);
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

static double gain_of(const struct dense_parameter *parameter)
{
    if (strncmp(parameter->name, "mlp_extractor", 13) == 0)
        return sqrt(2);
    return strncmp(parameter->name, "action_net", 10) == 0 ? 0.01 : 1;
}

static const struct dense_initial orthogonal = {
    .orthogonal = true, .gain_hidden = 1.41421356237309505, .gain_policy = 0.01, .gain_value = 1};

/* Vectors are perpendicular and as long as the gain, and R = Q^T A of the draws A has zeros below a positive
 * diagonal: which no other Q has. */
START_TEST(orthogonal_weights_are_those_of_their_draws)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t count = dense_parameters(&categorical, list);
    float *parameters = begin(&categorical, &orthogonal, 12345678901), draws[64 * 64];
    normal_group *normal;
    ck_assert_int_eq(normal_choose(&normal, NULL), STATUS_OK);
    for (uint32_t p = 0; p < count; p++) {
        const float *weight = parameters + list[p].offset;
        const uint32_t rows = list[p].shape[0], columns = list[p].shape[1];
        const double gain = gain_of(&list[p]), bound = 1e-6 * gain;
        if (list[p].kind == DENSE_BIAS) {
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
    float *one = begin(&categorical, &orthogonal, 1), *two = begin(&categorical, &orthogonal, 2);
    ck_assert_mem_ne(one, two, 64 * sizeof *one);
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    dense_parameters(&categorical, list);
    ck_assert_mem_ne(one, one + list[4].offset,
                     list[0].count * sizeof *one); // the same shape in the value network
    free(one);
    free(two);
}
END_TEST

/* FNV-1a of all bits, recorded once: other compilers, processors and C libraries must find it too. */
START_TEST(first_values_are_the_same_everywhere)
{
    float *parameters = begin(&categorical, &orthogonal, 543);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < count_of(&categorical); i++) {
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
    Suite *suite = suite_create("dense_parameters");
    TCase *parameters = tcase_create("parameters");
    tcase_set_timeout(parameters, 60);
    tcase_add_test(parameters, the_list_is_that_of_a_state_dict);
    tcase_add_test(parameters, the_longest_list_fits);
    tcase_add_test(parameters, linear_layers_begin_as_pytorchs);
    tcase_add_test(parameters, orthogonal_weights_are_those_of_their_draws);
    tcase_add_test(parameters, draws_differ);
    tcase_add_test(parameters, first_values_are_the_same_everywhere);
    suite_add_tcase(suite, parameters);
    return suite_run(suite);
}
