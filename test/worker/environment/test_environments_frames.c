/* Frame stacking, held to a plain loop: the same environments without stacks run beside those with, and the
 * loop keeps what they have shown. */
#include "worker/environment/environments.h"

#include "kernels/base/rng.h"
#include "test/worker/environment/preloads.h"
#include "test/workplace.h"
#include "worker/environment/classic.h"
#include "worker/environment/environment_spec.h"

#include <stdlib.h>

enum { COUNT = 5, AGENTS_MAX = 2, FRAMES_MAX = 16, BYTES_MAX = 64, STEPS = 300 };

static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- a plug-in of spaces that no other one has: images of two channels, single values, a large image ----
 */

enum { SCENE_BYTES = 2 * 3 * 2 };
struct scene {
    bool is_image;
    uint32_t count;
    uint32_t age[]; /* steps since the reset, and something of the seed */
};

static const char *const scene_names[] = {"image", "number", "large", NULL};
static const uint32_t two[] = {2};
static const double far[] = {1e6},
                    bright[SCENE_BYTES] = {255, 254, 253, 252, 251, 250, 249, 248, 247, 246, 245, 244};
#define SCENE .size = sizeof(struct environment_spec), .agents = 1, .steps_max = 11
#define CHOICE .action = {.dtype = ENVIRONMENT_I32, .choices = two}
static const struct environment_spec
    image_spec = {SCENE, CHOICE, .observation = {ENVIRONMENT_U8, 3, {2, 3, 2}, .low = NULL, .high = bright}},
    number_spec = {SCENE, CHOICE, .observation = {.dtype = ENVIRONMENT_F32, .high = far}},
    large_spec = {SCENE, CHOICE, .observation = {ENVIRONMENT_U8, 3, {1 << 11, 1 << 11, 1}}};

static int scene_open(void **out, const struct environment_spec **spec, const char *name, const char *options,
                      uint32_t count, char *text)
{
    struct scene *scene = calloc(1, sizeof *scene + count * sizeof scene->age[0]);
    (void)options;
    (void)text;
    scene->is_image = strcmp(name, "image") == 0;
    scene->count = count;
    *out = scene;
    *spec = scene->is_image ? &image_spec : strcmp(name, "large") == 0 ? &large_spec : &number_spec;
    return 0;
}

static void scene_show(const struct scene *scene, const struct environment_buffers *buffers, uint32_t which)
{
    if (!scene->is_image)
        ((float *)buffers->observation)[which] = (float)scene->age[which];
    for (uint32_t i = 0; i < SCENE_BYTES && scene->is_image; i++)
        ((uint8_t *)buffers->observation)[which * SCENE_BYTES + i] =
            (uint8_t)((scene->age[which] * 13 + i) % 244);
}

static int scene_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                       const uint32_t *which, const struct environment_seed *seeds, char *text)
{
    struct scene *scene = self;
    (void)text;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = which != NULL ? which[i] : i;
        scene->age[at] = (uint32_t)environment_seed_mix(seeds[i]) % 1000;
        scene_show(scene, buffers, at);
    }
    return 0;
}

static int scene_step(void *self, const struct environment_buffers *buffers, uint32_t n,
                      const uint32_t *which, char *text)
{
    struct scene *scene = self;
    (void)text;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = which != NULL ? which[i] : i;
        scene->age[at] += 1 + (uint32_t)((const int32_t *)buffers->action)[at];
        scene_show(scene, buffers, at);
        buffers->flags[at] = 0;
    }
    return 0;
}

static const struct environment_plugin scenes = {.version = ENVIRONMENT_VERSION,
                                                 .size = sizeof scenes,
                                                 .names = scene_names,
                                                 .open = scene_open,
                                                 .close = free,
                                                 .reset = scene_reset,
                                                 .step = scene_step};

/* ---- the plain loop ---- */

struct loop {
    uint32_t frames, agents;
    size_t bytes, pixel_bytes; /* of one observation; of its last axis */
    struct environments *plain, *stacked;
    char past[COUNT * AGENTS_MAX][FRAMES_MAX][BYTES_MAX]; /* oldest first */
};

static enum status open_of(struct environments **out, const struct environment_plugin *plugin,
                           const char *name, uint32_t frames)
{
    const struct environments_config config = {
        .plugin = plugin, .name = name, .options = "{}", .seed = 5, .count = COUNT, .frames = frames};
    return environments_open(out, &config, &error);
}

static struct environments *open_one(const struct environment_plugin *plugin, const char *name,
                                     uint32_t frames)
{
    struct environments *environments = NULL;
    must(open_of(&environments, plugin, name, frames));
    return environments;
}

static void loop_open(struct loop *loop, const struct environment_plugin *plugin, const char *name,
                      uint32_t frames)
{
    *loop = (struct loop){
        .frames = frames, .plain = open_one(plugin, name, 0), .stacked = open_one(plugin, name, frames)};
    const struct environment_spec *spec = environments_spec(loop->plain);
    const struct environment_space *space = &spec->observation;
    loop->agents = spec->agents;
    loop->bytes = environment_space_bytes(space);
    loop->pixel_bytes =
        (space->rank > 0 ? space->shape[space->rank - 1] : 1) * (space->dtype == ENVIRONMENT_U8 ? 1 : 4);
    ck_assert_uint_le(loop->bytes, BYTES_MAX);
}

static void loop_close(struct loop *loop)
{
    environments_close(loop->plain);
    environments_close(loop->stacked);
}

static const char *plain_row(const struct loop *loop, uint32_t row)
{
    return (const char *)environments_buffers(loop->plain)->observation + row * loop->bytes;
}

static void begin_past(struct loop *loop, uint32_t row)
{
    for (uint32_t i = 0; i < loop->frames; i++)
        memcpy(loop->past[row][i], plain_row(loop, row), loop->bytes);
}

/* A row that is blanked has a past of zeros; one that has restarted, or begins a life, has none. */
static void extend_past(struct loop *loop, uint32_t row)
{
    const unsigned flags = environments_buffers(loop->plain)->flags[row];
    const bool ended = (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0;
    const bool blank = (flags & ENVIRONMENT_FAILED) != 0 || ((flags & ENVIRONMENT_ABSENT) != 0 && !ended);
    if (blank || (flags & (ENVIRONMENT_RESTARTED | ENVIRONMENT_LIFE_LOST)) != 0) {
        begin_past(loop, row);
        return;
    }
    for (uint32_t i = 0; i + 1 < loop->frames; i++)
        memcpy(loop->past[row][i], loop->past[row][i + 1], loop->bytes);
    memcpy(loop->past[row][loop->frames - 1], plain_row(loop, row), loop->bytes);
}

static void check_row(const struct loop *loop, uint32_t row)
{
    const size_t stack = loop->bytes * loop->frames;
    const char *got = (const char *)environments_buffers(loop->stacked)->observation + row * stack;
    for (size_t at = 0; at < loop->bytes; at += loop->pixel_bytes)
        for (uint32_t i = 0; i < loop->frames; i++, got += loop->pixel_bytes)
            ck_assert_mem_eq(got, loop->past[row][i] + at, loop->pixel_bytes);
}

static void reset_both(struct loop *loop, uint32_t n, const uint32_t *which, uint32_t step)
{
    must(environments_reset(loop->plain, n, which, 1, step, &error));
    must(environments_reset(loop->stacked, n, which, 1, step, &error));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t a = 0; a < loop->agents; a++)
            begin_past(loop, (which != NULL ? which[i] : i) * loop->agents + a);
}

static void draw_actions(struct loop *loop, uint32_t step)
{
    const struct environment_space *space = &environments_spec(loop->plain)->action;
    const size_t elements = environment_space_elements(space);
    for (uint32_t i = 0; i < COUNT * loop->agents * elements; i++) {
        uint32_t words[4];
        rng_block(&(struct rng_key){.environment = i, .step = step}, RNG_ACTION, 0, words);
        const int32_t choice =
            space->choices != NULL ? (int32_t)(words[0] % space->choices[i % elements]) : 0;
        const float force = (float)(words[0] % 3) - 1;
        const void *from = space->choices != NULL ? (const void *)&choice : &force;
        memcpy((char *)environments_actions(loop->plain) + 4 * i, from, 4);
        memcpy((char *)environments_actions(loop->stacked) + 4 * i, from, 4);
    }
}

/* All of them, or in every third step only two. */
static void step_both(struct loop *loop, uint32_t step)
{
    static const uint32_t some[] = {1, 3};
    const uint32_t *which = step % 3 == 0 ? some : NULL, n = which != NULL ? 2 : COUNT;
    draw_actions(loop, step);
    must(environments_step(loop->plain, n, which, &error));
    must(environments_step(loop->stacked, n, which, &error));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t a = 0; a < loop->agents; a++)
            extend_past(loop, (which != NULL ? which[i] : i) * loop->agents + a);
}

static void check_both(const struct loop *loop)
{
    const struct environment_buffers *plain = environments_buffers(loop->plain),
                                     *stacked = environments_buffers(loop->stacked);
    const uint32_t rows = COUNT * loop->agents;
    ck_assert_mem_eq(plain->reward, stacked->reward, rows * sizeof *plain->reward);
    ck_assert_mem_eq(plain->flags, stacked->flags, rows);
    for (uint32_t row = 0; row < rows; row++)
        check_row(loop, row);
}

static void run_loop(struct loop *loop)
{
    uint32_t over[COUNT], ends = 0;
    reset_both(loop, COUNT, NULL, 0);
    check_both(loop);
    for (uint32_t step = 1; step <= STEPS; step++) {
        uint32_t n = 0;
        step_both(loop, step);
        check_both(loop);
        for (uint32_t i = 0; i < COUNT; i++)
            if (environments_is_over(loop->plain, i))
                over[n++] = i;
        ends += n;
        if (n > 0)
            reset_both(loop, n, over, step);
        check_both(loop);
    }
    ck_assert(ends > 2 || strcmp(environments_name(loop->plain), "Again-v0") == 0);
}

static const struct {
    const char *name;
    uint32_t frames;
} worlds[] = {{"Walk-v0", 16}, {"Push-v0", 3},     {"Pair-v0", 2}, {"Picture-v0", 4},
              {"Again-v0", 4}, {"Frail-v0", 3},    {"image", 2},   {"image", 5},
              {"number", 4},   {"CartPole-v1", 4}, {"Lives-v0", 3}};

START_TEST(stacks_are_those_of_a_plain_loop)
{
    static struct loop loop;
    const char *name = worlds[_i].name;
    const struct environment_plugin *plugin = environment_has_name(&scenes, name) ? &scenes
                                              : environment_has_name(&classic_environments, name)
                                                  ? &classic_environments
                                                  : preload("environment_toy");
    loop_open(&loop, plugin, name, worlds[_i].frames);
    run_loop(&loop);
    loop_close(&loop);
}
END_TEST

START_TEST(one_frame_is_the_environment_itself)
{
    struct environments *plain = open_one(&classic_environments, "CartPole-v1", 0),
                        *one = open_one(&classic_environments, "CartPole-v1", 1);
    ck_assert_mem_eq(environments_spec(one), environments_spec(plain), sizeof(struct environment_spec));
    environments_close(plain);
    environments_close(one);
}
END_TEST

/* ---- spaces ---- */

START_TEST(an_image_has_more_channels)
{
    struct environments *environments = open_one(&scenes, "image", 3);
    const struct environment_space *space = &environments_spec(environments)->observation;
    ck_assert_uint_eq(space->rank, 3);
    ck_assert_uint_eq(space->shape[0], 2);
    ck_assert_uint_eq(space->shape[1], 3);
    ck_assert_uint_eq(space->shape[2], 6);
    ck_assert_ptr_null(space->low);
    for (uint32_t pixel = 0; pixel < 6; pixel++)
        for (uint32_t i = 0; i < 6; i++)
            ck_assert_double_eq(space->high[pixel * 6 + i], bright[pixel * 2 + i % 2]);
    environments_close(environments);
}
END_TEST

START_TEST(a_row_and_a_number_become_longer_rows)
{
    struct environments *number = open_one(&scenes, "number", 4),
                        *row = open_one(&classic_environments, "Pendulum-v1", 2);
    const struct environment_space *space = &environments_spec(number)->observation;
    ck_assert_uint_eq(space->rank, 1);
    ck_assert_uint_eq(space->shape[0], 4);
    ck_assert_double_eq(space->high[3], 1e6);
    space = &environments_spec(row)->observation;
    ck_assert_uint_eq(space->rank, 1);
    ck_assert_uint_eq(space->shape[0], 6);
    ck_assert_double_eq(space->low[5], -8);
    ck_assert_double_eq(space->low[3], -1);
    environments_close(number);
    environments_close(row);
}
END_TEST

START_TEST(stacks_that_are_too_large_are_refused)
{
    struct environments *environments = NULL;
    ck_assert_int_eq(open_of(&environments, &scenes, "large", 5), STATUS_INVALID);
    ck_assert_str_eq(error.text, "large: 5 frames of 4194304 bytes: expected at most 16777216 bytes");
    ck_assert_ptr_null(environments);
}
END_TEST

/* ---- saved states: environment 1 of one object goes on as environment 0 of another ---- */

/* Pair-v0: two agents, two values for each. */
enum { SAVED_FRAMES = 3, SAVED_STACKS = 2 * SAVED_FRAMES * 2 * sizeof(float) };

static struct environments *open_pairs(uint32_t step)
{
    struct environments *pairs = open_one(preload("environment_toy"), "Pair-v0", SAVED_FRAMES);
    must(environments_reset(pairs, COUNT, NULL, 0, step, &error));
    return pairs;
}

START_TEST(a_saved_environment_goes_on_with_its_past)
{
    struct environments *from = open_pairs(1), *to = open_pairs(2);
    const char *left = environments_buffers(from)->observation,
               *right = environments_buffers(to)->observation;
    char state[512];
    for (int i = 0; i < 4; i++)
        must(environments_step(from, COUNT, NULL, &error));
    const size_t bytes = environments_save(from, 1, NULL, 0);
    ck_assert_uint_gt(bytes, SAVED_STACKS);
    ck_assert_uint_le(bytes, sizeof state);
    ck_assert_uint_eq(environments_save(from, 1, state, sizeof state), bytes);
    must(environments_load(to, 0, state, bytes, &error));
    for (int i = 0; i < 4; i++) {
        ck_assert_mem_eq(right, left + SAVED_STACKS, SAVED_STACKS);
        must(environments_step(from, COUNT, NULL, &error));
        must(environments_step(to, COUNT, NULL, &error));
    }
    environments_close(from);
    environments_close(to);
}
END_TEST

/* The steps since the reset and two flags stand in front of the stacks. */
START_TEST(a_state_that_is_none_is_refused)
{
    enum { HEAD = 4 + 2 + SAVED_STACKS };
    static const char state[512];
    struct environments *pairs = open_pairs(1);
    ck_assert_int_eq(environments_load(pairs, 0, state, HEAD, &error), STATUS_INVALID);
    ck_assert_str_eq(error.text, "Pair-v0: a saved state of 54 bytes: expected more than 54");
    ck_assert_int_eq(environments_load(pairs, 0, state, HEAD + 1, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "a state of 1 bytes: expected"));
    environments_close(pairs);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environments_frames");
    TCase *all = tcase_create("frames");
    tcase_add_loop_test(all, stacks_are_those_of_a_plain_loop, 0, sizeof worlds / sizeof worlds[0]);
    tcase_add_test(all, one_frame_is_the_environment_itself);
    tcase_add_test(all, an_image_has_more_channels);
    tcase_add_test(all, a_row_and_a_number_become_longer_rows);
    tcase_add_test(all, stacks_that_are_too_large_are_refused);
    tcase_add_test(all, a_saved_environment_goes_on_with_its_past);
    tcase_add_test(all, a_state_that_is_none_is_refused);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
