/* The replay buffer at the size of DQN, SAC and TD3: room, and times of appending, drawing, gathering, saving
 * and loading; and its priorities.
 *
 *     bench_replay [FOLDER]      FOLDER: on the disk to measure; it is left with replay.bin in it. Without it
 *                                the rows lie in memory, and nothing is loaded
 *
 * 1e6 rows of HalfCheetah (17 floats observed, 6 acted) of 8 environments, with 3 % of slack. Each update
 * draws 256 rows of the whole window, which no update before has touched lately. And 20,000 rows of Atari's
 * images: four frames of 84 x 84 bytes. Figures are the median and, in brackets, the fastest and the slowest
 * round. No time fails. */
#include "worker/replay/priorities.h"

#include "test/bench/times.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    COLUMNS = 8,
    OBSERVED = 17,
    ACTED = 6,
    ROWS = 1000000,
    SLACK = 30000,
    BATCH = 256,
    UPDATES = 50,
    ROUNDS = 21
};

static struct error error;
static struct bench {
    struct replay *replay;
    struct priorities *priorities;
    uint32_t update, step;
    float observations[BATCH * OBSERVED], next_observations[BATCH * OBSERVED], actions[BATCH * ACTED];
    float rewards[BATCH], weights[BATCH], td[BATCH];
    uint8_t terminated[BATCH];
    uint64_t rows[BATCH];
} bench;

static void must(enum status status)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_replay: %s: %s\n", status_name(status), error.text);
    exit(EXIT_FAILURE);
}

/* A vector step; an episode has 1000 of them. */
static void append(void *context)
{
    struct bench *b = context;
    float observation[OBSERVED], action[ACTED];
    for (int i = 0; i < OBSERVED; i++)
        observation[i] = (float)(b->step * (i + 1));
    memset(action, 0, sizeof action);
    must(replay_reserve(b->replay, &error));
    for (uint32_t c = 0; c < COLUMNS && b->step > 0; c++)
        replay_complete(b->replay, c, action, 1, b->step % 1000 == 0 ? REPLAY_TRUNCATED : REPLAY_GOES_ON,
                        observation);
    for (uint32_t c = 0; c < COLUMNS; c++)
        replay_observe(b->replay, c, observation, NULL);
    b->step++;
}

static void draw(void *context)
{
    struct bench *b = context;
    replay_draw(b->replay, replay_window(b->replay), 1, b->update++, BATCH, b->rows);
}

static void gather(void *context)
{
    struct bench *b = context;
    const struct replay_batch batch = {.observations = b->observations,
                                       .next_observations = b->next_observations,
                                       .actions = b->actions,
                                       .rewards = b->rewards,
                                       .terminated = b->terminated};
    replay_gather(b->replay, BATCH, b->rows, &batch);
}

static void draw_and_gather(void *context)
{
    draw(context);
    gather(context);
}

static void draw_by_priority(void *context)
{
    struct bench *b = context;
    priorities_draw(b->priorities, 1, b->update++, 0.4, BATCH, b->rows, b->weights);
}

static void set_priorities(void *context)
{
    struct bench *b = context;
    for (int i = 0; i < BATCH; i++)
        b->td[i] = (float)((b->update * 31 + (uint32_t)i * 17) % 1000) * 1e-3f;
    priorities_set(b->priorities, BATCH, b->rows, b->td);
}

static void draw_and_set(void *context)
{
    draw_by_priority(context);
    set_priorities(context);
}

static void show(const char *name, work *run, uint32_t repeat, uint32_t rounds)
{
    struct times times = {0};
    for (uint32_t i = 0; i < rounds; i++)
        times_add(&times, run, &bench, repeat);
    const double median = times_median(&times);
    printf("  %-36s %9.2f us [%.2f %.2f]\n", name, median * 1e3, times.ms[0] * 1e3,
           times.ms[rounds - 1] * 1e3);
}

static uint64_t resident_bytes(void)
{
    unsigned long long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL && fscanf(file, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    if (file != NULL)
        fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void show_loading(struct replay_config *config, const char *path)
{
    struct stat about;
    const size_t bytes = replay_save(bench.replay, NULL);
    char *saved = malloc(bytes);
    if (saved == NULL || stat(path, &about) != 0)
        exit(EXIT_FAILURE);
    printf("  file                                 %9.1f MB, %.3f of the rows\n",
           (double)about.st_size * 1e-6,
           (double)about.st_size / ROWS / (double)replay_row_bytes(bench.replay));
    struct monotime begin = monotime_now();
    replay_save(bench.replay, saved);
    must(replay_flush(bench.replay, 0, replay_window(bench.replay).end, &error));
    printf("  save, flush all                      %9.3f ms, %zu bytes\n",
           (double)(monotime_now().ns - begin.ns) * 1e-6, bytes);
    replay_close(bench.replay);
    config->resumes = true;
    must(replay_open(&bench.replay, config, &error));
    begin = monotime_now();
    if (replay_load(bench.replay, saved, bytes, &error) == 0)
        must(error.status);
    printf("  load, every row checked              %9.3f ms\n",
           (double)(monotime_now().ns - begin.ns) * 1e-6);
    free(saved);
}

/* ---- images ---- */

enum { IMAGE_BYTES = 84 * 84 * 4, IMAGES = 20000, IMAGE_BATCH = 32 };

static char images[IMAGE_BATCH * IMAGE_BYTES], next_images[IMAGE_BATCH * IMAGE_BYTES];

static void append_images(void *context)
{
    struct bench *b = context;
    const int32_t action = 0;
    must(replay_reserve(b->replay, &error));
    for (uint32_t c = 0; c < COLUMNS && replay_is_open(b->replay, c); c++)
        replay_complete(b->replay, c, &action, 1, REPLAY_GOES_ON, NULL);
    for (uint32_t c = 0; c < COLUMNS; c++)
        replay_observe(b->replay, c, images + (size_t)c * IMAGE_BYTES, NULL);
}

static void draw_images(void *context)
{
    struct bench *b = context;
    const struct replay_batch batch = {.observations = images, .next_observations = next_images};
    replay_draw(b->replay, replay_window(b->replay), 1, b->update++, IMAGE_BATCH, b->rows);
    replay_gather(b->replay, IMAGE_BATCH, b->rows, &batch);
}

static void measure_images(void)
{
    const struct replay_config config = {.columns = COLUMNS,
                                         .observation_bytes = IMAGE_BYTES,
                                         .frames = 4,
                                         .frame_bytes = 1,
                                         .action_bytes = sizeof(int32_t),
                                         .rows = IMAGES,
                                         .slack = IMAGES / 33};
    must(replay_open(&bench.replay, &config, &error));
    printf("replay, %d rows of %zu bytes, in memory\n", IMAGES, replay_row_bytes(bench.replay));
    while (replay_next(bench.replay) < 2 * replay_capacity(bench.replay))
        append_images(&bench);
    show("append 8 rows, later laps", append_images, 100, ROUNDS);
    show("draw and gather 32", draw_images, 20, ROUNDS);
    replay_close(bench.replay);
}

/* ---- transitions ---- */

static void measure_transitions(const char *folder)
{
    char path[4096];
    struct replay_config config = {.columns = COLUMNS,
                                   .observation_bytes = OBSERVED * sizeof(float),
                                   .frames = 1,
                                   .action_bytes = ACTED * sizeof(float),
                                   .rows = ROWS,
                                   .slack = SLACK};
    if (folder != NULL) {
        snprintf(path, sizeof path, "%s/replay.bin", folder);
        config.path = path_of(path);
    }
    const uint64_t before = resident_bytes();
    must(replay_open(&bench.replay, &config, &error));
    printf("replay, %d rows of %zu bytes, %d of slack\n", ROWS, replay_row_bytes(bench.replay), SLACK);
    show("append 8 rows, the first lap", append, 1000, 101);
    while (replay_next(bench.replay) < 2 * replay_capacity(bench.replay))
        append(&bench);
    show("append 8 rows, later laps", append, 1000, ROUNDS);
    printf("  resident                             %9.1f MB, %.3f of the rows\n",
           (double)(resident_bytes() - before) * 1e-6,
           (double)(resident_bytes() - before) / ROWS / (double)replay_row_bytes(bench.replay));
    show("draw 256", draw, UPDATES, ROUNDS);
    show("draw and gather 256", draw_and_gather, UPDATES, ROUNDS);
    if (folder != NULL)
        show_loading(&config, path);
    must(priorities_new(&bench.priorities, ROWS, 0.6, &error));
    priorities_follow(bench.priorities, bench.replay, replay_window(bench.replay));
    show("draw 256 by priority", draw_by_priority, UPDATES, ROUNDS);
    show("draw and set 256 priorities", draw_and_set, UPDATES, ROUNDS);
    priorities_free(bench.priorities);
    replay_close(bench.replay);
}

int main(int argc, char **argv)
{
    measure_transitions(argc > 1 ? argv[1] : NULL);
    measure_images();
    return EXIT_SUCCESS;
}
