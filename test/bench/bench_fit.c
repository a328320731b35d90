/* Gradient steps of DQN, SAC and TD3 on one thread: milliseconds of CPU time each, and the products' rate.
 *
 *     bench_fit [NAME]        NAME: only cases whose name holds it
 *
 * scripts/bench --peer fits matches the names with those of test/bench/peer/fit.py and rltools/fit.cpp.
 *
 * The floor. With w the weights of a network, a product takes 2 w floating-point operations a row. A step of
 * DQN has four: the target's and the network's forward, the weights' gradient, and the hidden units' (without
 * the first layer's). SAC with two critics has 2 forwards of the actor and 2 products of its backward; of
 * each critic 3 forwards, the weights' gradient, the hidden units', and once more those by the actor's
 * actions. Beside the products stand Adam, 28 bytes a parameter, the targets, 12 bytes, and the packing of
 * the new weights, 12 bytes.
 *
 * The last two cases are DQN with the CNN, on oneDNN with one thread, by images of bytes; batches of 32, as
 * DQN for Atari has them. */
#include "kernels/backend.h"
#include "kernels/base/rng.h"
#include "worker/model/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 11, ROUND_NS = 100000000 };

static const struct bench {
    const char *name;
    enum policy_learning learning;
    uint32_t inputs, components, rows, layers, width[2], side; // side: of images of bytes, for the CNN
} cases[] = {
    {"sac 17/6 256x256 rows 256", POLICY_SAC, 17, 6, 256, 2, {256, 256}, 0},
    {"sac 3/1 256x256 rows 256", POLICY_SAC, 3, 1, 256, 2, {256, 256}, 0},
    {"sac 2/1 64x64 rows 512", POLICY_SAC, 2, 1, 512, 2, {64, 64}, 0},
    {"td3 17/6 400x300 rows 256", POLICY_TD3, 17, 6, 256, 2, {400, 300}, 0},
    {"dqn 4/2 64x64 rows 32", POLICY_DQN, 4, 2, 32, 2, {64, 64}, 0},
    {"dqn 4/2 64x64 rows 64", POLICY_DQN, 4, 2, 64, 2, {64, 64}, 0},
    {"dqn 4/2 64x64 rows 512", POLICY_DQN, 4, 2, 512, 2, {64, 64}, 0},
    {"dqn 4/2 256x256 rows 64", POLICY_DQN, 4, 2, 64, 2, {256, 256}, 0},
    {"dqn 6/3 256x256 rows 128", POLICY_DQN, 6, 3, 128, 2, {256, 256}, 0},
    {"dqn cnn 84x84x4/6 rows 32", POLICY_DQN, 84 * 84 * 4, 6, 32, 0, {0}, 84},
    {"dqn cnn 36x36x2/3 rows 32", POLICY_DQN, 36 * 36 * 2, 3, 32, 0, {0}, 36},
};

static double cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

/* `count` numbers in ±1. */
static float *numbers(uint32_t count, uint32_t number)
{
    float *out = malloc(count * sizeof *out);
    for (uint32_t i = 0; i < count && out != NULL; i++)
        out[i] = rng_initial_uniform(1, number, i, 1);
    return out;
}

static struct policy_config config_of(const struct bench *bench, const uint32_t *choices, const double *low,
                                      const double *high)
{
    struct policy_config config = {
        .learning = bench->learning,
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {bench->inputs}},
        .layers = bench->layers,
        .adam = ADAM_DEFAULTS,
        .q = {.gamma = 0.99,
              .tau = 0.005,
              .batch_rows = bench->rows,
              .max_norm = 10,
              .critics = 2,
              .critic_layers = bench->layers,
              .learns_entropy = true,
              .entropy_coefficient = 1,
              .target_entropy = -(double)bench->components,
              .target_interval = 1,
              .policy_delay = 2,
              .target_noise = 0.2,
              .target_noise_clip = 0.5}};
    config.action = bench->learning == POLICY_DQN
                        ? (struct environment_space){.dtype = ENVIRONMENT_I32, .choices = choices}
                        : (struct environment_space){.dtype = ENVIRONMENT_F32,
                                                     .rank = 1,
                                                     .shape = {bench->components},
                                                     .low = low,
                                                     .high = high};
    if (bench->side > 0) {
        config.network = POLICY_CNN;
        config.environments = 1;
        config.observation = (struct environment_space){
            .dtype = ENVIRONMENT_U8,
            .rank = 3,
            .shape = {bench->side, bench->side, bench->inputs / bench->side / bench->side}};
    }
    memcpy(config.width, bench->width, sizeof bench->width);
    memcpy(config.q.critic_width, bench->width, sizeof bench->width);
    return config;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Prints the case's line. */
static enum status run(const struct bench *bench, struct error *error)
{
    const double low[] = {-1, -1, -1, -1, -1, -1}, high[] = {1, 1, 1, 1, 1, 1};
    const uint32_t choices = bench->components,
                   actions = bench->learning == POLICY_DQN ? 1 : bench->components;
    const struct policy_config config = config_of(bench, &choices, low, high);
    float *seen = numbers(bench->rows * bench->inputs, 1), *next = numbers(bench->rows * bench->inputs, 2);
    float *rewards = numbers(bench->rows, 3), *acted = numbers(bench->rows * actions, 4);
    uint8_t *terminated = calloc(bench->rows, 1);
    struct backend *backend = NULL;
    struct policy *policy = NULL;
    struct policy_q_losses losses;
    double ms[ROUNDS];
    for (uint32_t i = 0; i < bench->rows && bench->learning == POLICY_DQN; i++)
        ((int32_t *)(void *)acted)[i] = (int32_t)(i % choices);
    const struct policy_transitions batch = {.count = bench->rows,
                                             .observations = seen,
                                             .next_observations = next,
                                             .actions = acted,
                                             .rewards = rewards,
                                             .terminated = terminated};
    enum status status = STATUS_OK;
    if (bench->side > 0)
        status = backend_load(&backend, "onednn", &(struct backend_settings){.threads = 1}, error);
    if (status == STATUS_OK)
        status = policy_new(&policy, &config, backend, error);
    for (int round = 0; round < ROUNDS && status == STATUS_OK; round++) {
        const double begin = cpu_ns();
        uint32_t steps = 0;
        do
            status = policy_fit(policy, &batch, 1e-3, &losses, error);
        while (++steps > 0 && cpu_ns() - begin < ROUND_NS && status == STATUS_OK);
        ms[round] = (cpu_ns() - begin) * 1e-6 / steps;
    }
    qsort(ms, ROUNDS, sizeof *ms, compare);
    if (status == STATUS_OK)
        printf("%-28s %8.3f ms [%.3f %.3f]\n", bench->name, ms[ROUNDS / 2], ms[0], ms[ROUNDS - 1]);
    policy_free(policy);
    backend_close(backend);
    free(seen);
    free(next);
    free(rewards);
    free(acted);
    free(terminated);
    return status;
}

int main(int argc, char **argv)
{
    struct error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if ((argc < 2 || strstr(cases[i].name, argv[1]) != NULL) && run(&cases[i], &error) != STATUS_OK) {
            fprintf(stderr, "bench_fit: %s\n", error.text);
            return 1;
        }
    return 0;
}
