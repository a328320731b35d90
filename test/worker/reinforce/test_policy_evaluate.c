/* Greedy play against the same play by hand: policies whose choices are known, and the command as a whole. */
#include "kernels/params/params_file.h"
#include "test/worker/reinforce/reinforce_fixture.h"
#include "worker/environment/cartpole.h"
#include "worker/environment/classic.h"
#include "worker/environment/environments.h"
#include "worker/model/policy.h"
#include "worker/reinforce/evaluator.h"
#include "worker/reinforce/job_open.h"

#include <math.h>

enum { EPISODES = 30, HIDDEN = 128 };

static struct error error;
static struct job job;
static char model[128];

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void setup(void)
{
    char *problems = NULL;
    reinforce_open();
    ck_assert_int_eq(job_parse(&job, REINFORCE_JOB, strlen(REINFORCE_JOB), "job.json", NULL, 0, &problems),
                     STATUS_OK);
    snprintf(model, sizeof model, "%s/model.safetensors", workplace.folder);
}

/* ---- policies and the same rules by hand ---- */

typedef uint8_t rule(const float observation[4]);

static uint8_t always_left(const float observation[4])
{
    (void)observation;
    return 0;
}

static uint8_t always_right(const float observation[4])
{
    (void)observation;
    return 1;
}

/* Pushes to where the pole falls: it stands for a while. */
static uint8_t follow(const float observation[4])
{
    return observation[2] + 0.25f * observation[3] > 0;
}

/* Both logits are infinite. */
static uint8_t overflow(const float observation[4])
{
    (void)observation;
    return 0;
}

/* All zero but for these: both actions are equally probable; the right one is more probable; hidden units 0
 * and 1 hold what `follow` looks at, and its opposite. */
static void write_model(rule *of)
{
    static const uint32_t choices[] = {2};
    const struct environment_spec spec = {.agents = 1,
                                          .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {4}},
                                          .action = {.dtype = ENVIRONMENT_I32, .choices = choices}};
    const struct policy_config config = policy_config_of(&job, &spec);
    struct policy_values values = {0};
    must(policy_values_open(&values, &config, &error));
    float *first = policy_values_at(&values, 0, POLICY_VALUES);
    float *second = policy_values_at(&values, 2, POLICY_VALUES);
    float *second_bias = policy_values_at(&values, 3, POLICY_VALUES);
    if (of == always_right)
        second_bias[1] = 1e-3f;
    if (of == follow) {
        first[2] = 1;
        first[3] = 0.25f;
        first[4 + 2] = -1;
        first[4 + 3] = -0.25f;
        second[HIDDEN + 0] = second[1] = 1;
    }
    for (unsigned i = 0; of == overflow && i < 2; i++) {
        first[4 * i + 2] = i == 0 ? 3e38f : -3e38f;
        second[i] = second[HIDDEN + i] = 3e38f;
    }
    const struct params_saving saving = {.params = values.params, .contents = PARAMS_RANGE_ALL};
    must(params_file_save(path_of(model), &saving, &error));
    policy_values_close(&values);
}

static double play_by_hand(rule *of, uint32_t environment)
{
    const struct environments_config config = {.plugin = &classic_environments,
                                               .name = CARTPOLE_NAME,
                                               .options = "{}",
                                               .seed = job.seed,
                                               .first = environment,
                                               .count = 1};
    struct environments *environments;
    double sum = 0;
    must(environments_open(&environments, &config, &error));
    must(environments_reset(environments, 1, NULL, 0, 0, &error));
    const struct environment_buffers *buffers = environments_buffers(environments);
    do {
        *(int32_t *)environments_actions(environments) = of(buffers->observation);
        must(environments_step(environments, 1, NULL, &error));
        sum += (double)buffers->reward[0];
    } while (!environments_is_over(environments, 0));
    environments_close(environments);
    return sum;
}

START_TEST(it_plays_what_is_most_probable)
{
    static rule *const rules[] = {always_left, always_right, follow};
    struct evaluation_summary got;
    double sums[EPISODES], mean = 0, squares = 0, least = INFINITY, most = 0;
    for (uint32_t i = 0; i < EPISODES; i++) {
        sums[i] = play_by_hand(rules[_i], i);
        mean += sums[i] / EPISODES;
        least = fmin(least, sums[i]);
        most = fmax(most, sums[i]);
    }
    for (uint32_t i = 0; i < EPISODES; i++)
        squares += pow(sums[i] - mean, 2);
    write_model(rules[_i]);
    must(policy_evaluate(&got, model, &job, EPISODES, &error));
    ck_assert_double_eq_tol(got.mean, mean, 1e-9);
    ck_assert_double_eq_tol(got.deviation, sqrt(squares / (EPISODES - 1)), 1e-9);
    ck_assert_double_eq(got.least, least);
    ck_assert_double_eq(got.most, most);
    ck_assert_msg(_i == 2 ? most > 40 : most < 12 && least < most, "%g to %g", least, most);
}
END_TEST

/* Another seed has other first states. */
START_TEST(one_episode_is_the_first_of_many)
{
    struct evaluation_summary got, other;
    write_model(follow);
    must(policy_evaluate(&got, model, &job, 1, &error));
    ck_assert_double_eq(got.mean, play_by_hand(follow, 0));
    ck_assert(got.deviation == 0 && got.least == got.mean && got.most == got.mean);
    write_model(always_left);
    must(policy_evaluate(&got, model, &job, EPISODES, &error));
    job.seed++;
    must(policy_evaluate(&other, model, &job, EPISODES, &error));
    ck_assert(got.mean != other.mean);
}
END_TEST

START_TEST(a_model_of_another_shape_is_refused)
{
    struct evaluation_summary got;
    write_model(follow);
    job.policy.hidden[0].value[0] = 64;
    ck_assert_int_eq(policy_evaluate(&got, model, &job, 1, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "affine1.weight is 128x4, expected 64x4"));
}
END_TEST

START_TEST(a_model_whose_probabilities_are_not_finite_is_refused)
{
    struct evaluation_summary got;
    write_model(overflow);
    ck_assert_int_eq(policy_evaluate(&got, model, &job, EPISODES, &error), STATUS_CORRUPT);
    ck_assert_msg(strstr(error.text, "the probability of an action is not finite") != NULL, "%s", error.text);
}
END_TEST

/* ---- the command ---- */

START_TEST(a_checkpoint_is_evaluated_in_one_line)
{
    const char *sets[] = {"/observers/count=1", NULL};
    double mean, deviation, least, most;
    unsigned episodes;
    int end = 0;
    char path[192];
    server_run(workplace.run_dir, NULL, false);
    place(path, "run", "checkpoints/00000007");
    char *text = evaluate(path, NULL, 0), *again = evaluate(path, sets, 0);
    ck_assert_str_eq(text, again); /* the number of observers has no say */
    ck_assert_int_eq(sscanf(text,
                            "Mean reward: %lf\tStandard deviation: %lf\tMinimum: %lf\tMaximum: %lf\t(%u "
                            "episodes)\n%n",
                            &mean, &deviation, &least, &most, &episodes, &end),
                     5);
    ck_assert_msg(text[end] == '\0' && end > 0, "%s", text);
    ck_assert(episodes == 100 && least >= 1 && least < mean && mean < most && most <= 500 && deviation > 0);
    free(text);
    free(again);
    const char *few[] = {"evaluate", path, workplace.job_path, "--episodes", "3", NULL};
    text = command(few, NULL, 0);
    ck_assert_ptr_nonnull(strstr(text, "\t(3 episodes)\n"));
    free(text);
}
END_TEST

static void refuse(const char *const *arguments, int code, const char *words)
{
    free(command(arguments, NULL, code));
    char *err = process_err(&daemon_process);
    expect_said(err, words);
}

START_TEST(bad_numbers_of_episodes_are_refused)
{
    static const char *const bad[] = {"0", "-1", "1000001", "ten", "", "3.5"};
    char words[96];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *arguments[] = {"evaluate", model, workplace.job_path, "--episodes", bad[i], NULL};
        snprintf(words, sizeof words, "--episodes: expected an integer in 1..1000000, got %s;", bad[i]);
        refuse(arguments, 64, words);
    }
    const char *run[] = {"run", workplace.job_path, "--episodes", "3", NULL};
    refuse(run, 64, "--episodes belongs to evaluate");
    workplace_write_job(TINY_JOB);
    const char *images[] = {"evaluate", model, workplace.job_path, "--episodes", "3", NULL};
    refuse(images, 64, "--episodes belongs to jobs of kind reinforce");
}
END_TEST

START_TEST(foreign_and_damaged_folders_are_refused)
{
    char path[192], line[256];
    const char *arguments[] = {"evaluate", path, workplace.job_path, NULL};
    server_run(workplace.run_dir, NULL, false);
    place(path, "run", "checkpoints");
    refuse(arguments, 66, "run/checkpoints/manifest.json: No such file or directory");
    place(path, "run", "checkpoints/00000007");
    snprintf(line, sizeof line, "truncate -s 3000 '%s/model.safetensors'", path);
    ck_assert_int_eq(system(line), 0);
    refuse(arguments, 65, "model.safetensors: 3000 bytes, expected ");
    workplace_write_job(TINY_JOB);
    server_run(place(path, "other", ""), NULL, false);
    workplace_write_job(REINFORCE_JOB);
    place(path, "other", "checkpoints/00000004");
    refuse(arguments, 78, "does not fit the model: affine1.weight is missing, expected 128x4; ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_evaluate");
    TCase *tests = tcase_create("policy_evaluate");
    tcase_add_checked_fixture(tests, setup, server_close);
    tcase_set_timeout(tests, 170);
    tcase_add_loop_test(tests, it_plays_what_is_most_probable, 0, 3);
    tcase_add_test(tests, one_episode_is_the_first_of_many);
    tcase_add_test(tests, a_model_of_another_shape_is_refused);
    tcase_add_test(tests, a_model_whose_probabilities_are_not_finite_is_refused);
    tcase_add_test(tests, a_checkpoint_is_evaluated_in_one_line);
    tcase_add_test(tests, bad_numbers_of_episodes_are_refused);
    tcase_add_test(tests, foreign_and_damaged_folders_are_refused);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
