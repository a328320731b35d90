/* Steps per CPU second of an environment alone, through the calls of worker/environment/environments.h that
 * an observer makes: no agent, no messages.
 *
 *     bench_environment ENVIRONMENT[:NAME] COUNT...
 *
 * ENVIRONMENT is a built-in environment or the path of a plug-in, NAME one of the plug-in's environments.
 * Each COUNT makes one line, for so many environments in one instance:
 *
 *     ours environment=CartPole-v1 environments=1024 steps_per_s=…
 *
 * The actions are random, and drawn before the clock starts. Checks, copies of the actions, and resets of the
 * environments that have ended are within the time; a reset counts as no step. The clock is the thread's CPU
 * time. No time fails. */
#include "worker/environment/environment_load.h"
#include "worker/environment/environment_spec.h"
#include "worker/environment/environments.h"

#include "kernels/base/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TABLES = 16 };                                /* of actions, used in turn */
static const double warm_up_s = 0.05, round_s = 0.4; /* of CPU time */

struct run {
    struct environments *environments;
    uint32_t count, step;
    size_t rows, action_bytes; /* of all rows */
    char *actions;             /* (TABLES, rows, the action) */
    uint32_t *over;            /* (count) */
};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "bench_environment: %s\n", what);
    exit(EXIT_FAILURE);
}

static double cpu_s(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* Element `element` of the row's action, for any table. */
static void draw_element(const struct environment_space *space, uint32_t row, uint32_t element, void *to)
{
    uint32_t words[4];
    const struct rng_key key = {.seed = 1, .environment = row, .step = element};
    rng_block(&key, RNG_ACTION, 0, words);
    const double uniform = rng_uniform_double(words[0], words[1]);
    if (space->choices != NULL) {
        *(int32_t *)to = (int32_t)(uniform * space->choices[element]);
    } else {
        *(float *)to = (float)(space->low[element] + (space->high[element] - space->low[element]) * uniform);
    }
}

static void draw_actions(struct run *run)
{
    const struct environment_space *space = &environments_spec(run->environments)->action;
    const size_t elements = environment_space_elements(space);
    for (size_t row = 0; row < TABLES * run->rows; row++)
        for (size_t e = 0; e < elements; e++)
            draw_element(space, (uint32_t)row, (uint32_t)e, run->actions + (row * elements + e) * 4);
}

static void run_open(struct run *run, const struct environment_plugin *plugin, const char *name,
                     uint32_t count)
{
    const struct environments_config config = {
        .plugin = plugin, .name = name, .options = "{}", .seed = 1, .count = count};
    struct error error;
    *run = (struct run){.count = count};
    if (environments_open(&run->environments, &config, &error) != STATUS_OK)
        fail(error.text);
    const struct environment_spec *spec = environments_spec(run->environments);
    run->rows = (size_t)count * spec->agents;
    run->action_bytes = run->rows * environment_space_bytes(&spec->action);
    run->actions = malloc(TABLES * run->action_bytes);
    run->over = calloc(count, sizeof *run->over);
    if (run->actions == NULL || run->over == NULL)
        fail("no memory");
    draw_actions(run);
    if (environments_reset(run->environments, count, NULL, 0, 0, &error) != STATUS_OK)
        fail(error.text);
}

static void run_close(struct run *run)
{
    environments_close(run->environments);
    free(run->actions);
    free(run->over);
}

/* How many environments have ended; their numbers in run->over. */
static uint32_t find_over(struct run *run)
{
    const struct environment_buffers *buffers = environments_buffers(run->environments);
    const uint32_t agents = environments_spec(run->environments)->agents;
    uint32_t over = 0;
    for (uint32_t i = 0; i < run->count; i++)
        if (buffers->flags[i * agents] != 0 && environments_is_over(run->environments, i))
            run->over[over++] = i;
    return over;
}

static void run_step(struct run *run)
{
    struct error error;
    memcpy(environments_actions(run->environments), run->actions + run->step % TABLES * run->action_bytes,
           run->action_bytes);
    enum status status = environments_step(run->environments, run->count, NULL, &error);
    const uint32_t over = status == STATUS_OK ? find_over(run) : 0;
    run->step++;
    if (over > 0)
        status = environments_reset(run->environments, over, run->over, 0, run->step, &error);
    if (status != STATUS_OK)
        fail(error.text);
}

/* Environment steps per CPU second over at least `least_s`. */
static double measure(struct run *run, double least_s)
{
    const double begin_s = cpu_s();
    double used_s = 0, steps = 0;
    while (used_s < least_s) {
        for (int i = 0; i < TABLES; i++)
            run_step(run);
        steps += (double)TABLES * run->count;
        used_s = cpu_s() - begin_s;
    }
    return steps / used_s;
}

static void measure_count(const struct environment_plugin *plugin, const char *name, const char *count)
{
    struct run run;
    char *end;
    const unsigned long environments = strtoul(count, &end, 10);
    if (*end != '\0' || environments == 0 || environments > 1 << 20)
        fail("a COUNT is 1..1048576");
    run_open(&run, plugin, name, (uint32_t)environments);
    measure(&run, warm_up_s);
    printf("ours environment=%s environments=%s steps_per_s=%.0f\n", name, count, measure(&run, round_s));
    fflush(stdout);
    run_close(&run);
}

int main(int argc, char **argv)
{
    const struct environment_plugin *plugin;
    struct error error;
    if (argc < 3)
        fail("usage: bench_environment ENVIRONMENT[:NAME] COUNT...");
    const char *from = strtok(argv[1], ":"), *name = strtok(NULL, ":");
    if (environment_load(&plugin, from, &error) != STATUS_OK)
        fail(error.text);
    if (name == NULL)
        name = environment_is_built_in(from) ? from : plugin->names[0];
    for (int i = 2; i < argc; i++)
        measure_count(plugin, name, argv[i]);
    return EXIT_SUCCESS;
}
