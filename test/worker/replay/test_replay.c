/* The ring of rows against a naive model; windows, draws, the checksums of rows, and threads. */
#include "worker/replay/replay.h"

#include "kernels/base/rng.h"
#include "test/worker/replay/replay_history.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct replay *open_replay(const struct replay_config *config)
{
    struct replay *replay;
    struct error error;
    ck_assert_msg(replay_open(&replay, config, &error) == STATUS_OK, "%s", error.text);
    return replay;
}

/* ---- contents ---- */

static const struct {
    uint32_t columns, frames;
    size_t groups, frame_bytes;
} shapes[] = {{1, 1, 1, 17}, {3, 1, 4, 4}, {3, 4, 6, 1}, {2, 4, 1, 20},
              {5, 3, 5, 3},  {8, 2, 7, 1}, {1, 4, 2, 3}};

/* Laps of the ring. A sanitizer takes long, and two show it the same code. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { LAPS = 2 };
#else
enum { LAPS = 4 };
#endif

/* Compared after each vector step. */
START_TEST(the_contents_are_those_of_the_model)
{
    const struct replay_config config =
        history_config(shapes[_i].columns, shapes[_i].frames, shapes[_i].groups, shapes[_i].frame_bytes);
    struct history *history = history_new(&config, 17 + (uint64_t)_i);
    struct replay *replay = open_replay(&config);
    history_check(history, replay);
    while (history->next < LAPS * replay_capacity(replay)) {
        history_step(history, replay);
        history_check(history, replay);
    }
    replay_close(replay);
    free(history);
}
END_TEST

START_TEST(a_row_takes_few_bytes_beside_its_own)
{
    for (size_t action = 1; action <= 9; action++) {
        const struct replay_config config = {.columns = 3,
                                             .observation_bytes = 84 * 84 * 4,
                                             .frames = 4,
                                             .frame_bytes = 1,
                                             .action_bytes = action,
                                             .choices = 6,
                                             .rows = 10,
                                             .slack = 2};
        struct replay *replay = open_replay(&config);
        ck_assert_uint_le(replay_row_bytes(replay), 84 * 84 + action + 6 + 23);
        ck_assert_uint_eq(replay_capacity(replay), 10 + 2 + 6 * 3 + 3 * 5 * 3);
        ck_assert_uint_eq(replay_slack(replay), 2);
        replay_close(replay);
    }
}
END_TEST

START_TEST(a_shape_that_makes_no_sense_is_refused)
{
    const struct replay_config good = history_config(2, 4, 3, 2);
    struct replay_config bad[10];
    struct replay *replay;
    struct error error;
    for (int i = 0; i < 10; i++)
        bad[i] = good;
    bad[0].columns = 0;
    bad[1].rows = 0;
    bad[2].observation_bytes = 0;
    bad[3].action_bytes = 0;
    bad[4].frames = 0;
    bad[5].frames = 5;
    bad[6].frame_bytes = 0;
    bad[7].frame_bytes = 25;
    bad[8].rows = UINT64_MAX;
    bad[9].rows = UINT64_C(1) << 40;
    for (int i = 0; i < 10; i++) {
        error = (struct error){0};
        ck_assert_int_eq(replay_open(&replay, bad + i, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, "replay buffer") != NULL, "%s", error.text);
        ck_assert_ptr_null(replay);
    }
}
END_TEST

/* ---- windows ---- */

/* All that a window holds, as bytes. */
static char *gather_all(const struct history *h, const struct replay *replay, struct replay_window window)
{
    const size_t bytes = h->config.observation_bytes;
    char *all = calloc(window.end - window.first, 2 * bytes + sizeof(float)), *at = all;
    ck_assert_ptr_nonnull(all);
    for (uint64_t row = window.first; row < window.end; row++, at += 2 * bytes + sizeof(float))
        if (replay_is_transition(replay, row))
            replay_gather(replay, 1, &row,
                          &(struct replay_batch){.observations = at,
                                                 .next_observations = at + bytes,
                                                 .rewards = (float *)(void *)(at + 2 * bytes)});
    return all;
}

/* Nothing in a window changes until the slack is appended. */
START_TEST(a_window_is_frozen)
{
    const struct replay_config config = history_config(3, 4, 4, 1);
    struct history *history = history_new(&config, 5);
    struct replay *replay = open_replay(&config);
    while (history->next < 1000)
        history_step(history, replay);
    for (int round = 0; round < 20; round++) {
        const struct replay_window window = replay_window(replay);
        const uint64_t mark = replay_next(replay);
        char *before = gather_all(history, replay, window);
        ck_assert_uint_eq(window.end - window.first, config.rows);
        while (replay_next(replay) - mark + config.columns * (config.frames + 1) <= config.slack)
            history_step(history, replay);
        char *after = gather_all(history, replay, window);
        ck_assert_mem_eq(before, after, config.rows * (2 * config.observation_bytes + sizeof(float)));
        free(before);
        free(after);
    }
    replay_close(replay);
    free(history);
}
END_TEST

/* ---- draws ---- */

/* The definition in replay.h, draw by draw. */
START_TEST(draws_are_the_keyed_ones)
{
    enum { COUNT = 200 };
    const struct replay_config config = history_config(3, 1, 1, 8);
    struct history *history = history_new(&config, 6);
    struct replay *replay = open_replay(&config);
    uint64_t rows[COUNT], later = 0;
    ck_assert(!replay_draw(replay, replay_window(replay), 1, 1, COUNT, rows));
    while (history->next < 700)
        history_step(history, replay);
    const struct replay_window window = replay_window(replay);
    ck_assert(replay_draw(replay, window, 0x123456789abcu, 42, COUNT, rows));
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct rng_key key = {.seed = 0x123456789abcu, .environment = i, .episode = 42};
        uint64_t row = 0;
        bool found = false;
        for (uint32_t draw = 0; !found; draw++) {
            uint32_t words[4];
            rng_block(&key, RNG_REPLAY, draw / 2, words);
            const uint32_t *pair = draw % 2 == 0 ? words : words + 2;
            row = window.first + rng_below(pair[0], pair[1], window.end - window.first);
            found = history->row[row].kind != HISTORY_LAST;
            later += !found;
        }
        ck_assert_uint_eq(rows[i], row);
    }
    ck_assert_uint_gt(later, 10); // some first draws met no transition
    replay_close(replay);
    free(history);
}
END_TEST

/* A window of last observations and one transition; and one without. */
START_TEST(a_rare_transition_is_found_and_none_is_told)
{
    const struct replay_config config = {
        .columns = 1, .observation_bytes = 4, .frames = 1, .action_bytes = 4, .rows = 3000, .slack = 10};
    struct replay *replay = open_replay(&config);
    uint64_t rows[8];
    for (uint32_t n = 0; n < 3000; n++) {
        replay_observe(replay, 0, &n, NULL);
        ck_assert(!replay_draw(replay, replay_window(replay), 3, n, 1, rows));
        if (n == 1234)
            replay_complete(replay, 0, &n, 1, REPLAY_TERMINATED, NULL);
        else
            replay_abandon(replay, 0);
        if (n == 1234)
            break;
    }
    for (uint32_t n = 1235; n < 3000; n++) {
        replay_observe(replay, 0, &n, NULL);
        replay_abandon(replay, 0);
    }
    ck_assert_uint_eq(history_transitions(replay), 1);
    ck_assert(replay_draw(replay, replay_window(replay), 3, 1, 8, rows));
    for (int i = 0; i < 8; i++)
        ck_assert_uint_eq(rows[i], 1234);
    replay_close(replay);
}
END_TEST

/* Chi-square over the transitions of a window: with n - 1 degrees of freedom, whose deviation is sqrt(2 n).
 */
START_TEST(draws_are_uniform)
{
    enum { COUNT = 256, UPDATES = 400 };
    const struct replay_config config = history_config(4, 1, 1, 8);
    struct history *history = history_new(&config, 7);
    struct replay *replay = open_replay(&config);
    uint64_t rows[COUNT];
    uint32_t drawn[HISTORY_ROWS_MAX] = {0};
    double chi = 0;
    while (history->next < 900)
        history_step(history, replay);
    const struct replay_window window = replay_window(replay);
    const double transitions = (double)history_transitions(replay), expected = COUNT * UPDATES / transitions;
    for (uint32_t update = 0; update < UPDATES; update++) {
        ck_assert(replay_draw(replay, window, 1, update, COUNT, rows));
        for (uint32_t i = 0; i < COUNT; i++)
            drawn[rows[i]]++;
    }
    for (uint64_t row = 0; row < HISTORY_ROWS_MAX; row++)
        if (row >= window.first && row < window.end && history->row[row].kind != HISTORY_LAST)
            chi += (drawn[row] - expected) * (drawn[row] - expected) / expected;
        else
            ck_assert_uint_eq(drawn[row], 0);
    ck_assert_double_lt(fabs(chi - (transitions - 1)), 4 * sqrt(2 * transitions));
    replay_close(replay);
    free(history);
}
END_TEST

/* Rows are gathered by their places in the batch, and what is not wanted is left out. */
START_TEST(a_batch_holds_the_rows_in_order)
{
    enum { COUNT = 100 };
    const struct replay_config config = history_config(3, 4, 2, 1);
    struct history *history = history_new(&config, 8);
    struct replay *replay = open_replay(&config);
    const size_t bytes = config.observation_bytes;
    char *next_observations = malloc(COUNT * bytes);
    float rewards[COUNT];
    uint64_t rows[COUNT];
    while (history->next < 900)
        history_step(history, replay);
    ck_assert(replay_draw(replay, replay_window(replay), 1, 1, COUNT, rows));
    replay_gather(replay, COUNT, rows,
                  &(struct replay_batch){.next_observations = next_observations, .rewards = rewards});
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct history_row *row = history->row + rows[i];
        ck_assert(rewards[i] == row->reward);
        ck_assert_mem_eq(next_observations + i * bytes, history->row[row->next].observation, bytes);
    }
    free(next_observations);
    replay_close(replay);
    free(history);
}
END_TEST

/* ---- threads ---- */

enum { ROUNDS = 200, BATCH = 32 };

/* What the owner hands to the one that draws; round is written last. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct replay *replay;
    struct replay_window window;
    uint64_t flushed;
    uint32_t handed, drawn, written;
} stage = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Waits for round `round`, and returns its window. */
static struct replay_window stage_wait(uint32_t round)
{
    pthread_mutex_lock(&stage.lock);
    while (stage.handed < round)
        pthread_cond_wait(&stage.changed, &stage.lock);
    const struct replay_window window = stage.window;
    pthread_mutex_unlock(&stage.lock);
    return window;
}

static void stage_done(uint32_t *counter, uint32_t round)
{
    pthread_mutex_lock(&stage.lock);
    *counter = round;
    pthread_cond_broadcast(&stage.changed);
    pthread_mutex_unlock(&stage.lock);
}

/* An observation is (column, step) twice: the older frame and the newer one. */
static void *draw_rounds(void *none)
{
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        const struct replay_window window = stage_wait(round);
        uint32_t seen[BATCH][2][2], next[BATCH][2][2];
        uint64_t rows[BATCH];
        const struct replay_batch batch = {.observations = seen, .next_observations = next};
        if (replay_draw(stage.replay, window, 1, round, BATCH, rows)) {
            replay_gather(stage.replay, BATCH, rows, &batch);
            for (int i = 0; i < BATCH; i++)
                ck_assert(seen[i][1][0] == next[i][1][0] && seen[i][1][1] + 1 == next[i][1][1] &&
                          memcmp(seen[i][1], next[i][0], sizeof seen[i][1]) == 0);
        }
        stage_done(&stage.drawn, round);
    }
    return none;
}

static void *write_rounds(void *none)
{
    uint64_t from = 0;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        const struct replay_window window = stage_wait(round);
        ck_assert_int_eq(replay_flush(stage.replay, from, window.end, NULL), STATUS_OK);
        from = window.end;
        stage_done(&stage.written, round);
    }
    return none;
}

static void append_step(uint32_t step, uint32_t columns)
{
    ck_assert_int_eq(replay_reserve(stage.replay, NULL), STATUS_OK);
    for (uint32_t c = 0; c < columns && step > 0; c++) {
        const uint32_t last[2][2] = {{c, step - 1}, {c, step}};
        replay_complete(stage.replay, c, &step, 1, step % 7 == c ? REPLAY_TRUNCATED : REPLAY_GOES_ON, last);
    }
    for (uint32_t c = 0; c < columns; c++) {
        const uint32_t seen[2][2] = {{c, step - 1}, {c, step}};
        replay_observe(stage.replay, c, seen, NULL);
    }
}

/* The owner appends while the others draw from the window, and write it to the disk. */
START_TEST(others_draw_and_flush_while_the_owner_appends)
{
    enum { COLUMNS = 3, STEPS = 8 };
    char path[96];
    snprintf(path, sizeof path, "%s/replay.bin", workplace.folder);
    const struct replay_config config = {.path = path_of(path),
                                         .columns = COLUMNS,
                                         .observation_bytes = 16,
                                         .frames = 2,
                                         .frame_bytes = 8,
                                         .action_bytes = 4,
                                         .rows = 300,
                                         .slack = (COLUMNS * 3) * STEPS};
    pthread_t drawing, writing;
    uint32_t step = 0;
    stage.replay = open_replay(&config);
    pthread_create(&drawing, NULL, draw_rounds, NULL);
    pthread_create(&writing, NULL, write_rounds, NULL);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        pthread_mutex_lock(&stage.lock);
        while (stage.drawn + 1 < round || stage.written + 1 < round)
            pthread_cond_wait(&stage.changed, &stage.lock);
        stage.window = replay_window(stage.replay);
        stage.handed = round;
        pthread_cond_broadcast(&stage.changed);
        pthread_mutex_unlock(&stage.lock);
        for (int i = 0; i < STEPS; i++)
            append_step(step++, COLUMNS);
    }
    pthread_join(drawing, NULL);
    pthread_join(writing, NULL);
    ck_assert_uint_gt(replay_next(stage.replay), 3 * replay_capacity(stage.replay));
    replay_close(stage.replay);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replay");
    TCase *rows = tcase_create("rows"), *draws = tcase_create("draws"), *threads = tcase_create("threads");
    tcase_add_loop_test(rows, the_contents_are_those_of_the_model, 0, sizeof shapes / sizeof *shapes);
    tcase_add_test(rows, a_row_takes_few_bytes_beside_its_own);
    tcase_add_test(rows, a_shape_that_makes_no_sense_is_refused);
    tcase_add_test(rows, a_window_is_frozen);
    tcase_add_test(draws, draws_are_the_keyed_ones);
    tcase_add_test(draws, a_rare_transition_is_found_and_none_is_told);
    tcase_add_test(draws, draws_are_uniform);
    tcase_add_test(draws, a_batch_holds_the_rows_in_order);
    tcase_add_checked_fixture(threads, workplace_open, workplace_close);
    tcase_add_test(threads, others_draw_and_flush_while_the_owner_appends);
    suite_add_tcase(suite, rows);
    suite_add_tcase(suite, draws);
    suite_add_tcase(suite, threads);
    return suite_run(suite);
}
