/* The plug-in of MuJoCo's environments against Gymnasium's record (test/golden/mujoco_tasks.bin, by
 * mujoco_tasks.py beside it), and against environment.h. Skipped where the plug-in is not built. */
#include "test/workplace.h"
#include "worker/environment/environment_contract.h"
#include "worker/environment/environment_load.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SKIPPED = 77, HEADER_BYTES = 128, NAME_BYTES = 32, NUMBERS_MAX = 256 };

static const struct environment_plugin *plugin;

/* ---- the record ---- */

static struct {
    FILE *file;
    char name[NAME_BYTES];
    uint32_t positions, velocities, controls, inputs, steps;
    double first[NUMBERS_MAX];
} episode;

static void read_numbers(double *to, size_t count)
{
    ck_assert_uint_le(count, NUMBERS_MAX);
    ck_assert_uint_eq(fread(to, sizeof *to, count, episode.file), count);
}

/* False at the end of the record. */
static bool read_episode(void)
{
    if (fread(episode.name, NAME_BYTES, 1, episode.file) != 1)
        return false;
    ck_assert_uint_eq(fread(&episode.positions, sizeof(uint32_t), 5, episode.file), 5);
    read_numbers(episode.first, episode.positions + episode.velocities);
    return true;
}

/* ---- one environment of the plug-in ---- */

static struct {
    void *self;
    const struct environment_spec *spec;
    float observation[NUMBERS_MAX], action[NUMBERS_MAX], reward;
    uint8_t flags;
    struct environment_buffers buffers;
} ours;

static void open_ours(const char *name)
{
    char error[ENVIRONMENT_ERROR_BYTES] = "";
    const struct environment_seed seed = {.job = 1};
    ck_assert_msg(plugin->open(&ours.self, &ours.spec, name, "{}", 1, error) == 0, "%s", error);
    ours.buffers = (struct environment_buffers){
        .observation = ours.observation, .action = ours.action, .reward = &ours.reward, .flags = &ours.flags};
    ck_assert_int_eq(plugin->reset(ours.self, &ours.buffers, 1, NULL, &seed, error), 0);
}

/* Puts the environment into the episode's first state: a saved state begins with the place along the track
 * and the time, then come positions and velocities. */
static void begin_as_recorded(void)
{
    char error[ENVIRONMENT_ERROR_BYTES] = "";
    const size_t bytes = plugin->save(ours.self, 0, NULL, 0);
    double *state = malloc(bytes);
    ck_assert_ptr_nonnull(state);
    ck_assert_uint_eq(plugin->save(ours.self, 0, state, bytes), bytes);
    state[0] = episode.first[0];
    memcpy(state + 2, episode.first, (episode.positions + episode.velocities) * sizeof *state);
    ck_assert_msg(plugin->load(ours.self, &ours.buffers, 0, state, bytes, error) == 0, "%s", error);
    free(state);
}

static void expect_near(double found, double recorded, unsigned step, const char *what, unsigned element)
{
    ck_assert_msg(fabs(found - recorded) <= 1e-6 * fmax(1, fabs(recorded)),
                  "%s, step %u: %s %u is %.9g, Gymnasium's %.9g", episode.name, step, what, element, found,
                  recorded);
}

static void expect_step(unsigned step)
{
    double action[NUMBERS_MAX], observation[NUMBERS_MAX], end[2];
    char error[ENVIRONMENT_ERROR_BYTES] = "";
    read_numbers(action, episode.controls);
    read_numbers(observation, episode.inputs);
    read_numbers(end, 2);
    for (uint32_t i = 0; i < episode.controls; i++)
        ours.action[i] = (float)action[i];
    ck_assert_int_eq(plugin->step(ours.self, &ours.buffers, 1, NULL, error), 0);
    for (uint32_t i = 0; i < episode.inputs; i++)
        expect_near((double)ours.observation[i], observation[i], step, "observation", i);
    expect_near((double)ours.reward, end[0], step, "reward", 0);
    ck_assert_uint_eq(ours.flags, end[1] != 0 ? ENVIRONMENT_TERMINATED : 0);
}

/* Fifty random steps, or up to the end of the episode. */
START_TEST(equal_to_gymnasiums)
{
    unsigned episodes = 0;
    episode.file = fopen("test/golden/mujoco_tasks.bin", "rb");
    ck_assert_ptr_nonnull(episode.file);
    ck_assert_int_eq(fseek(episode.file, HEADER_BYTES, SEEK_SET), 0);
    for (; read_episode(); episodes++) {
        open_ours(episode.name);
        ck_assert_uint_eq(ours.spec->observation.shape[0], episode.inputs);
        ck_assert_uint_eq(ours.spec->action.shape[0], episode.controls);
        begin_as_recorded();
        for (unsigned step = 0; step < episode.steps; step++)
            expect_step(step);
        plugin->close(ours.self);
    }
    fclose(episode.file);
    ck_assert_uint_ge(episodes, 12);
}
END_TEST

/* ---- the contract ---- */

START_TEST(keeps_the_contract)
{
    struct plugin_call progress = {0};
    const struct environment_trial trial = {plugin, plugin->names[_i], "{}", 7, 60, &progress, NULL};
    struct error error;
    ck_assert_msg(environment_contract(&trial, &error) == STATUS_OK, "%s", error.text);
}
END_TEST

static const struct {
    const char *options, *said;
} bad_options[] = {
    {"{\"frame_skips\":1}", "unknown option \"frame_skips\""},
    {"{\"frame_skip\":1.5}", "frame_skip: expected a whole number in 1..1000, got 1.5"},
    {"{\"healthy_reward\":\"1\"}", "healthy_reward: expected a number"},
    {"{\"terminate_when_unhealthy\":1}", "terminate_when_unhealthy: expected true or false"},
    {"{\"reset_noise_scale\":-1}", "reset_noise_scale: expected at least 0, got -1"},
    {"{\"model\":\"/nowhere/ant.xml\"}", "/nowhere/ant.xml: "},
    {"[]", "the options are no JSON object"},
};

START_TEST(bad_options_are_named)
{
    char error[ENVIRONMENT_ERROR_BYTES] = "";
    ck_assert_int_ne(plugin->open(&ours.self, &ours.spec, "Ant-v5", bad_options[_i].options, 1, error), 0);
    ck_assert_msg(strstr(error, bad_options[_i].said) != NULL, "%s", error);
}
END_TEST

/* Without an end an ant that has fallen over goes on, and is not rewarded for being alive. */
START_TEST(options_change_the_task)
{
    char error[ENVIRONMENT_ERROR_BYTES] = "";
    const struct environment_seed seed = {.job = 1};
    open_ours("Hopper-v5");
    plugin->close(ours.self);
    ck_assert_int_eq(plugin->open(&ours.self, &ours.spec, "Hopper-v5",
                                  "{\"terminate_when_unhealthy\":false,\"healthy_reward\":7,"
                                  "\"forward_reward_weight\":0,\"ctrl_cost_weight\":0}",
                                  1, error),
                     0);
    ck_assert_int_eq(plugin->reset(ours.self, &ours.buffers, 1, NULL, &seed, error), 0);
    memset(ours.action, 0, sizeof ours.action);
    bool fallen = false;
    for (unsigned step = 0; step < 300; step++) {
        ck_assert_int_eq(plugin->step(ours.self, &ours.buffers, 1, NULL, error), 0);
        ck_assert_uint_eq(ours.flags, 0);
        ck_assert(ours.reward == 7 || ours.reward == 0);
        fallen |= ours.reward == 0;
    }
    ck_assert(fallen);
    plugin->close(ours.self);
}
END_TEST

int main(void)
{
    char path[256];
    const char *build = getenv("BUILD");
    struct error error = {0};
    snprintf(path, sizeof path, "%s/libcoalesced-mujoco.so", build != NULL ? build : "build/release");
    if (access(path, F_OK) != 0) {
        printf("test_mujoco: skipped: %s is not built (scripts/deps mujoco)\n", path);
        return SKIPPED;
    }
    if (environment_load(&plugin, path, &error) != STATUS_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    Suite *suite = suite_create("mujoco");
    TCase *tests = tcase_create("mujoco");
    unsigned names = 0;
    while (plugin->names[names] != NULL)
        names++;
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, equal_to_gymnasiums);
    tcase_add_loop_test(tests, keeps_the_contract, 0, (int)names);
    tcase_add_loop_test(tests, bad_options_are_named, 0, sizeof bad_options / sizeof bad_options[0]);
    tcase_add_test(tests, options_change_the_task);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
