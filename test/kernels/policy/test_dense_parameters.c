/* The list of a general policy's parameters is PyTorch's; and COALESCED_ISA chooses the kernels' table. */
#include "kernels/policy/lanes_internal.h"
#include "test/kernels/policy/dense_cases.h"
#include "test/workplace.h"

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const struct dense_shape categorical = {
    .inputs = 4, DENSE_HIDDEN(64, 32), .value = true, DENSE_CATEGORICALS(2, 3)};
static const struct dense_shape gaussian = {
    .inputs = 17, .layers = 1, .width = {48}, .gaussian = true, .components = 6};
static const struct dense_shape apart = {
    .inputs = 3, DENSE_POLICY_HIDDEN(8), DENSE_VALUE_HIDDEN(16, 4), .value = true, DENSE_CATEGORICALS(2)};
static const struct dense_shape linear_value = {
    .inputs = 3, DENSE_POLICY_HIDDEN(8), .value = true, DENSE_CATEGORICALS(2)};
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
    const struct line of_apart[] = {{"mlp_extractor.policy_net.0.weight", 2, 8, 3},
                                    {"mlp_extractor.policy_net.0.bias", 1, 8, 1},
                                    {"mlp_extractor.value_net.0.weight", 2, 16, 3},
                                    {"mlp_extractor.value_net.0.bias", 1, 16, 1},
                                    {"mlp_extractor.value_net.2.weight", 2, 4, 16},
                                    {"mlp_extractor.value_net.2.bias", 1, 4, 1},
                                    {"action_net.weight", 2, 2, 8},
                                    {"action_net.bias", 1, 2, 1},
                                    {"value_net.weight", 2, 1, 4},
                                    {"value_net.bias", 1, 1, 1}};
    const struct line of_linear_value[] = {{"mlp_extractor.policy_net.0.weight", 2, 8, 3},
                                           {"mlp_extractor.policy_net.0.bias", 1, 8, 1},
                                           {"action_net.weight", 2, 2, 8},
                                           {"action_net.bias", 1, 2, 1},
                                           {"value_net.weight", 2, 1, 3},
                                           {"value_net.bias", 1, 1, 1}};
    const struct line of_bare[] = {{"action_net.weight", 2, 3, 7}, {"action_net.bias", 1, 3, 1}};
    expect_list(&categorical, of_categorical, 12);
    expect_list(&gaussian, of_gaussian, 5);
    sharing.shared = true;
    expect_list(&sharing, of_sharing, 8);
    expect_list(&apart, of_apart, 10);
    expect_list(&linear_value, of_linear_value, 6);
    expect_list(&bare, of_bare, 2);
}
END_TEST

START_TEST(the_longest_list_fits)
{
    struct dense_shape shape = {
        .inputs = 1, .layers = 8, .value_layers = 8, .value = true, .gaussian = true, .components = 1};
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    for (int l = 0; l < 8; l++)
        shape.width[l] = shape.value_width[l] = 1024;
    ck_assert_uint_eq(dense_parameters(&shape, list), DENSE_PARAMETERS_MAX);
    ck_assert_str_eq(list[15].name, "mlp_extractor.policy_net.14.weight");
}
END_TEST

START_TEST(the_environment_names_the_table)
{
    static const struct {
        const char *name;
        const struct dense_lanes *dense;
        const struct mlp_lanes *mlp;
    } sets[] = {{"baseline", &dense_lanes_baseline, &mlp_lanes_baseline},
                {"avx2", &dense_lanes_avx2, &mlp_lanes_avx2},
                {"avx512", &dense_lanes_avx512, &mlp_lanes_avx512}};
    struct error error;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        setenv("COALESCED_ISA", sets[i].name, 1);
        const enum status status = mlp_check_isa(&error);
        ck_assert(status == STATUS_OK || (i > 0 && status == STATUS_UNAVAILABLE));
        if (status != STATUS_OK)
            continue;
        ck_assert_ptr_eq(policy_lanes_choose()->dense, sets[i].dense);
        ck_assert_ptr_eq(policy_lanes_choose()->mlp, sets[i].mlp);
    }
    setenv("COALESCED_ISA", "sse9", 1);
    ck_assert_int_eq(mlp_check_isa(&error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "expected avx512, avx2 or baseline, got \"sse9\""));
    unsetenv("COALESCED_ISA");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dense_parameters");
    TCase *parameters = tcase_create("parameters");
    tcase_set_timeout(parameters, 60);
    tcase_add_test(parameters, the_list_is_that_of_a_state_dict);
    tcase_add_test(parameters, the_longest_list_fits);
    tcase_add_test(parameters, the_environment_names_the_table);
    suite_add_tcase(suite, parameters);
    return suite_run(suite);
}
