/* Squashed Gaussians against Stable-Baselines3's: test/golden/squashed.py's record. */
#include "kernels/policy/squashed.h"
#include "test/worker/reinforce/ppo_record.h"
#include "test/workplace.h"

#include <check.h>
#include <string.h>

enum { ROWS = 9, COMPONENTS = 3, FEATURES = 5, BLOCK = 16, NUMBERS_MAX = 64 };

static const struct {
    const char *name;
    struct squashed_shape shape;
} cases[] = {{"diagonal", {.components = COMPONENTS}},
             {"sde_exp", {.components = COMPONENTS, .features = FEATURES, .clip_mean = 2}},
             {"sde_expln", {.components = COMPONENTS, .features = FEATURES, .expln = true, .clip_mean = 2}}};
enum { CASES = sizeof cases / sizeof *cases };

static struct dense_matrix take(const struct ppo_record *record, const char *name, float *to,
                                uint32_t columns)
{
    ppo_record_take(record, name, to, ppo_record_count(record, name));
    return (struct dense_matrix){to, columns};
}

/* Copies rows of FEATURES to rows of whole blocks, or back. */
static void copy_features(float *to, size_t to_stride, const float *from, size_t from_stride)
{
    for (uint32_t r = 0; r < ROWS; r++)
        memcpy(to + r * to_stride, from + r * from_stride, FEATURES * sizeof *to);
}

START_TEST(distributions_are_stable_baselines3s)
{
    const struct squashed_shape *shape = &cases[_i].shape;
    const uint32_t outputs = shape->features > 0 ? shape->components : 2 * shape->components;
    float z[NUMBERS_MAX], noise[NUMBERS_MAX], h[NUMBERS_MAX], log_std[NUMBERS_MAX], d_actions[NUMBERS_MAX];
    float by, a[ROWS * COMPONENTS], log_probability[ROWS];
    float dz[NUMBERS_MAX], dh[NUMBERS_MAX], d_log_std[NUMBERS_MAX];
    float h_blocks[ROWS * BLOCK] = {0}, dh_blocks[ROWS * BLOCK] = {0};
    const struct dense_matrix actions = {a, COMPONENTS};
    const struct squashed_pulls pulls = {
        .z = {dz, outputs}, .features = {dh_blocks, BLOCK}, .log_std = d_log_std};
    struct squashed *squashed;
    struct error error;
    struct ppo_record *record = ppo_record_open("test/golden/squashed.txt", cases[_i].name);
    struct squashed_rows rows = {.count = ROWS, .z = take(record, "z", z, outputs)};
    const struct dense_matrix n = take(record, "noise", noise, COMPONENTS);
    ck_assert_int_eq(squashed_new(&squashed, shape, &error), STATUS_OK);
    if (shape->features > 0) {
        copy_features(h_blocks, BLOCK, take(record, "features", h, FEATURES).at, FEATURES);
        rows.features = (struct dense_matrix){h_blocks, BLOCK};
        take(record, "log_std", log_std, COMPONENTS);
        squashed_load(squashed, log_std, noise);
    } else {
        rows.noise = n;
    }
    take(record, "d_log_probability", &by, 1);
    squashed_act(squashed, &rows, actions, log_probability);
    squashed_pull(squashed, &rows, actions, take(record, "d_actions", d_actions, COMPONENTS), by, &pulls);
    ppo_record_expect(record, "=actions", a, ROWS * COMPONENTS);
    ppo_record_expect(record, "=log_probability", log_probability, ROWS);
    ppo_record_expect(record, "=d_z", dz, ROWS * outputs);
    if (shape->features > 0) {
        copy_features(dh, FEATURES, dh_blocks, BLOCK);
        ppo_record_expect(record, "=d_features", dh, ROWS * FEATURES);
        ppo_record_expect(record, "=d_log_std", d_log_std, FEATURES * COMPONENTS);
    }
    squashed_free(squashed);
    ppo_record_close(record);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("squashed_golden");
    TCase *tcase = tcase_create("squashed_golden");
    tcase_add_loop_test(tcase, distributions_are_stable_baselines3s, 0, CASES);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
