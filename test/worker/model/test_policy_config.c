/* Which network a configuration asks for, and what is refused by which words. */
#include "test/workplace.h"
#include "worker/model/policy_config.h"

#include <check.h>
#include <string.h>

static const uint32_t choices[300] = {4, 3, 16, 17};
static const double lows[300], highs[300];

static struct policy_config config;
static struct error error;

/* CartPole's, as the tutorial has it. */
static void setup(void)
{
    config = (struct policy_config){.observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {4}},
                                    .action = {.dtype = ENVIRONMENT_I32, .choices = choices},
                                    .layers = 1,
                                    .width = {128},
                                    .dropout = 0.6,
                                    .adam = ADAM_DEFAULTS};
}

static const struct environment_space image = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {84, 84, 4}},
                                      box = {.dtype = ENVIRONMENT_F32, .low = lows, .high = highs};

static void expect_form(enum policy_form form, enum policy_device device)
{
    ck_assert_int_eq(policy_form(&config), form);
    ck_assert_int_eq(policy_device(&config), device);
    setup();
}

START_TEST(the_tutorials_network_is_taken_where_it_fits)
{
    expect_form(POLICY_FORM_TUTORIAL, POLICY_ON_EITHER);
    config.observation.shape[0] = 16;
    config.action.choices = &choices[2];
    expect_form(POLICY_FORM_TUTORIAL, POLICY_ON_EITHER);
    config.observation.rank = 0;
    expect_form(POLICY_FORM_TUTORIAL, POLICY_ON_EITHER);
    config.action.rank = config.action.shape[0] = 1;
    expect_form(POLICY_FORM_TUTORIAL, POLICY_ON_EITHER);
}
END_TEST

START_TEST(everything_else_is_dense)
{
    config.observation.shape[0] = 17;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.observation.rank = 2;
    config.observation.shape[1] = 2;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.observation.dtype = ENVIRONMENT_U8;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.action.choices = &choices[3];
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.action.rank = 1;
    config.action.shape[0] = 2;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.action = box;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.has_mask = true;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.layers = 0;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.layers = 2;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.activation = POLICY_TANH;
    expect_form(POLICY_FORM_DENSE, POLICY_ON_CPU);
    config.network = POLICY_CNN;
    expect_form(POLICY_FORM_CNN, POLICY_ON_BACKEND);
}
END_TEST

/* `words` NULL: it is taken. */
static void expect_check(const char *words)
{
    const enum status status = policy_check(&config, &error);
    ck_assert_int_eq(status, words == NULL ? STATUS_OK : STATUS_INVALID);
    ck_assert_msg(words == NULL || strstr(error.text, words) != NULL, "%s", error.text);
    setup();
}

START_TEST(what_does_not_fit_is_refused_by_its_key)
{
    expect_check(NULL);
    config.layers = 2;
    expect_check("/policy/dropout: expected 0, got 0.6: only a policy of one hidden layer");
    config.dropout = 0;
    config.has_value = config.shared_value = true;
    config.value_layers = 1;
    config.value_width[0] = 128;
    expect_check(NULL);
    config.observation = (struct environment_space){.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {65537}};
    expect_check("observation has 65537 elements: expected at most 65536");
    config.action = box;
    config.action.rank = 1;
    config.action.shape[0] = 257;
    expect_check("action has 257 components: expected at most 256");
    config.action.rank = 1;
    config.action.shape[0] = 2;
    config.action.choices = (const uint32_t[]){1000, 25};
    expect_check("action has 1025 choices in all: expected at most 1024");
    config.width[0] = 1025;
    expect_check("/policy/hidden: expected 1..1024 units in a hidden layer, got 1025");
    config.dropout = 0;
    config.has_value = true;
    config.value_layers = 2;
    config.value_width[0] = config.value_width[1] = 1025;
    expect_check("/policy/hidden: expected 1..1024 units in a hidden layer, got 1025");
}
END_TEST

/* The value network's layers, beside the policy's one of 128 units. */
START_TEST(a_shared_value_has_the_policys_layers)
{
    static const struct {
        uint32_t layers, width[2];
        bool shared;
    } cases[] = {
        {0, {0}, true}, {1, {64}, true}, {2, {128, 128}, true}, {2, {16, 4}, false}, {0, {0}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int remembers = 0; remembers < 2; remembers++) {
            config.dropout = 0;
            config.has_value = true;
            config.shared_value = cases[i].shared;
            config.value_layers = cases[i].layers;
            memcpy(config.value_width, cases[i].width, sizeof cases[i].width);
            config.memory = remembers ? POLICY_LSTM : POLICY_NO_MEMORY;
            config.memory_units = config.memory_layers = 1;
            config.critic = cases[i].shared ? POLICY_CRITIC_SHARED : POLICY_CRITIC_OWN;
            expect_check(cases[i].shared ? "/policy/hidden: expected the same layers in \"pi\" and \"vf\""
                                         : NULL);
        }
}
END_TEST

/* ---- parts ---- */

static struct environment_part parts[2];

/* The CNN over a vector of 3 floats and an image of 40 x 40 bytes. */
static void make_parts(void)
{
    setup();
    parts[0] = (struct environment_part){"pace", {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {3}}};
    parts[1] = (struct environment_part){"eye", {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {40, 40, 1}}};
    config.observation = (struct environment_space){.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {1612}};
    config.part_count = 2;
    config.parts = parts;
    config.network = POLICY_CNN;
    config.dropout = 0;
}

START_TEST(the_cnn_joins_parts)
{
    make_parts();
    ck_assert(policy_joins_parts(&config));
    ck_assert_uint_eq(policy_features(&config), 3 + POLICY_PART_FEATURES);
    ck_assert_uint_eq(policy_normalized(&config), 3);
    expect_form(POLICY_FORM_CNN, POLICY_ON_BACKEND);
    make_parts();
    expect_check(NULL);
    make_parts();
    config.has_value = config.shared_value = config.normalizes = true;
    expect_check(NULL);
    make_parts();
    config.network = POLICY_MLP;
    expect_check("/policy/network: expected \"cnn\", got \"mlp\": the observation's part eye is an image");
    make_parts();
    parts[1].space.shape[1] = 35;
    expect_check(
        "the observation's part eye is an image of 40x35, of 1 channels; channels stand last: expected at "
        "least 36x36");
    make_parts();
    config.learning = POLICY_SAC;
    config.action = box;
    config.network = POLICY_MLP;
    expect_check(
        "/algorithm/name: \"sac\" and \"td3\" read no images, and the observation's part eye is one");
    make_parts();
    config.part_count = 9;
    static struct environment_part eyes[9];
    for (int i = 0; i < 9; i++)
        eyes[i] = parts[1];
    config.parts = eyes;
    expect_check("the environment's observation has 9 images among its parts: expected at most 8");
    make_parts();
    parts[0].space.shape[0] = POLICY_JOINED_MAX;
    expect_check("make 4352 features, 256 of each image: expected at most 4096");
    make_parts();
    parts[1].space.dtype = ENVIRONMENT_F32;
    expect_check(
        "/policy/network: expected \"mlp\": the environment's observation has no image among its parts");
    make_parts();
    config.part_count = 1;
    config.parts = &parts[1];
    config.has_value = config.normalizes = true;
    expect_check("/normalize/norm_obs: expected false: the environment's observations are bytes");
    make_parts();
    config.width[0] = 1025;
    expect_check("/policy/hidden: expected 1..1024 units in a hidden layer, got 1025");
}
END_TEST

START_TEST(the_cnn_wants_images)
{
    config.network = POLICY_CNN;
    config.dropout = 0;
    expect_check("/policy/network: expected \"mlp\": \"cnn\" reads images of height, width and "
                 "channels, and the environment's observation has rank 1");
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    config.observation.shape[1] = 35;
    expect_check("reads images of at least 36x36, and the environment's are 84x35");
    config.network = POLICY_CNN;
    config.observation = image;
    expect_check("/policy/dropout: expected 0, got 0.6: the network \"cnn\" has no dropout");
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    config.observation.shape[0] = config.observation.shape[1] = 36;
    expect_check(NULL);
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    config.has_value = config.shared_value = true;
    expect_check(NULL);
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    config.has_value = config.normalizes = true;
    expect_check("/normalize/norm_obs: expected false: the environment's observations are bytes");
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    config.observation.dtype = ENVIRONMENT_F32;
    config.action = box;
    config.has_value = config.normalizes = config.state_dependent = true;
    expect_check("/algorithm/use_sde: expected false: the network \"cnn\" does not explore");
    for (int shared = 0; shared < 2; shared++) {
        config.network = POLICY_CNN;
        config.dropout = 0;
        config.observation = image;
        config.has_value = true;
        config.memory = POLICY_LSTM;
        config.memory_units = config.memory_layers = 1;
        config.critic = POLICY_CRITIC_DETACHED;
        config.shared_value = shared == 1;
        expect_check(shared == 1 ? NULL : "/policy/shared_lstm: expected false: with a value_network of");
    }
}
END_TEST

START_TEST(only_dqn_has_a_cnn_that_learns_from_a_buffer)
{
    config.learning = POLICY_DQN;
    expect_form(POLICY_FORM_Q, POLICY_ON_CPU);
    config.learning = POLICY_DQN;
    config.network = POLICY_CNN;
    expect_form(POLICY_FORM_Q_CNN, POLICY_ON_BACKEND);
    config.learning = POLICY_DQN;
    config.network = POLICY_CNN;
    config.dropout = 0;
    expect_check("reads images of height, width and channels, and the environment's observation has rank 1");
    config.learning = POLICY_DQN;
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    expect_check(NULL);
    config.learning = POLICY_SAC;
    config.network = POLICY_CNN;
    config.dropout = 0;
    config.observation = image;
    config.action = box;
    expect_check("/policy/network: expected \"mlp\": \"sac\" and \"td3\" have no CNN");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_config");
    TCase *tests = tcase_create("policy_config");
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, the_tutorials_network_is_taken_where_it_fits);
    tcase_add_test(tests, everything_else_is_dense);
    tcase_add_test(tests, what_does_not_fit_is_refused_by_its_key);
    tcase_add_test(tests, a_shared_value_has_the_policys_layers);
    tcase_add_test(tests, the_cnn_joins_parts);
    tcase_add_test(tests, the_cnn_wants_images);
    tcase_add_test(tests, only_dqn_has_a_cnn_that_learns_from_a_buffer);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
