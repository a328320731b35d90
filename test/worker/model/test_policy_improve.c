/* A step of PPO by several threads: the same bits for any number of them, whether policy and value share
 * their hidden layers or not. What a step computes is test/worker/reinforce/test_ppo_golden.c's. */
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_world.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 3000,
    MINIBATCH = 1100,
    STEPS = 4
}; /* four chunks and a piece of one; two and a piece of one */
enum { LONG_ROWS = 40000 };

static const struct environment_space vector = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {6}};

static struct policy_world world;
static float log_probabilities[ROWS], values[ROWS], advantages[ROWS], returns[ROWS];

static float draw(void)
{
    return (float)rand() / (float)RAND_MAX - 0.5f;
}

static void setup(void)
{
    workplace_open();
    srand(7);
    for (int i = 0; i < ROWS; i++) {
        log_probabilities[i] = draw() - 1;
        values[i] = draw();
        advantages[i] = draw();
        returns[i] = draw();
    }
}

static void teardown(void)
{
    workplace_close();
}

/* A policy after STEPS steps, whose losses go to `losses`. */
static struct policy *improved(uint32_t threads, struct surrogate_losses losses[STEPS])
{
    const struct policy_targets targets = {advantages, returns, true};
    const struct policy_step step = {.objective = {.clip = 0.2,
                                                   .value_clip = (double)INFINITY,
                                                   .value_coefficient = 0.5,
                                                   .entropy_coefficient = 0.01},
                                     .max_norm = 0.5,
                                     .lr = 0.01,
                                     .kl_max = (double)INFINITY};
    world.config.threads = threads;
    struct policy *policy = policy_world_open(&world, NULL);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct policy_rows rows = world.batch;
        struct error error = {0};
        rows.count = i < 2 ? MINIBATCH : 700;
        rows.row += i * 500;
        rows.log_probabilities = log_probabilities;
        rows.values = values;
        ck_assert_msg(policy_improve(policy, &rows, &targets, &step, &losses[i], &error) == STATUS_OK, "%s",
                      error.text);
        ck_assert(losses[i].stepped && losses[i].gradient_norm > 0);
    }
    return policy;
}

/* Heads by turns with networks of their own, shared ones, and a value network of other layers. */
START_TEST(any_number_of_threads_gives_the_same_bits)
{
    static const uint32_t threads[] = {2, 3, 4, 16};
    struct surrogate_losses one[STEPS], more[STEPS];
    policy_world_init(&world, _i / 3, vector, ROWS, 3);
    world.config.layers = 2;
    world.config.width[0] = 33;
    world.config.width[1] = 16;
    world.config.activation = POLICY_TANH;
    world.config.has_value = true;
    world.config.shared_value = _i % 3 == 1;
    world.config.value_layers = _i % 3 == 2 ? 1 : 2;
    world.config.value_width[0] = 33;
    world.config.value_width[1] = 16;
    world.config.rows_max = ROWS;
    world.config.minibatch_rows = MINIBATCH;
    struct policy *alone = improved(1, one);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct policy *policy = improved(threads[t], more);
        ck_assert_mem_eq(policy_inside(policy)->values, policy_inside(alone)->values,
                         policy_inside(alone)->count * sizeof *policy_inside(alone)->values);
        for (int i = 0; i < STEPS; i++)
            ck_assert(one[i].loss == more[i].loss && one[i].kl == more[i].kl &&
                      one[i].value == more[i].value && one[i].entropy == more[i].entropy &&
                      one[i].clip_fraction == more[i].clip_fraction &&
                      one[i].gradient_norm == more[i].gradient_norm);
        policy_free(policy);
    }
    policy_free(alone);
    policy_world_fini(&world);
}
END_TEST

static void count_call(void *context)
{
    ++*(uint32_t *)context;
}

/* A minibatch of A2C is a whole rollout: the beat must not wait for its end. */
START_TEST(a_long_minibatch_reports_progress)
{
    static float zeros[LONG_ROWS];
    const struct policy_targets targets = {zeros, zeros, false};
    uint32_t calls = 0;
    const struct policy_step step = {.objective = {.clip = 0.2, .value_clip = (double)INFINITY},
                                     .max_norm = (double)INFINITY,
                                     .lr = 0.01,
                                     .kl_max = (double)INFINITY,
                                     .progress = count_call,
                                     .context = &calls};
    struct surrogate_losses losses;
    struct error error = {0};
    policy_world_init(&world, 0, vector, LONG_ROWS, 3);
    world.config.layers = 1;
    world.config.width[0] = 4;
    world.config.value_layers = 1;
    world.config.value_width[0] = 4;
    world.config.has_value = true;
    world.config.rows_max = world.config.minibatch_rows = LONG_ROWS;
    world.config.threads = (uint32_t)_i;
    struct policy *policy = policy_world_open(&world, NULL);
    struct policy_rows rows = world.batch;
    rows.log_probabilities = rows.values = zeros;
    ck_assert_msg(policy_improve(policy, &rows, &targets, &step, &losses, &error) == STATUS_OK, "%s",
                  error.text);
    ck_assert_uint_ge(calls, LONG_ROWS / 16384);
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_improve");
    TCase *tcase = tcase_create("policy_improve");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, any_number_of_threads_gives_the_same_bits, 0, 3 * WORLD_HEADS);
    tcase_add_loop_test(tcase, a_long_minibatch_reports_progress, 1, 4);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
