/* Priorities: leaves, sums and draws against plain arithmetic, proportions, weights, and a checkpoint's
 * bytes. */
#include "worker/replay/priorities.h"

#include "kernels/base/rng.h"
#include "test/worker/replay/replay_history.h"
#include "test/workplace.h"
#include "worker/replay/power.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY = 163 }; // more than the window's rows

static struct history *history;
static struct replay *replay;
static struct priorities *priorities;

static void begin(void)
{
    const struct replay_config config = history_config(3, 1, 1, 4);
    history = history_new(&config, 11);
    ck_assert_int_eq(replay_open(&replay, &config, NULL), STATUS_OK);
    ck_assert_int_eq(priorities_new(&priorities, CAPACITY, 0.7, NULL), STATUS_OK);
}

static void end(void)
{
    priorities_free(priorities);
    replay_close(replay);
    free(history);
}

static void append_until(uint64_t rows)
{
    while (history->next < rows)
        history_step(history, replay);
    priorities_follow(priorities, replay, replay_window(replay));
}

START_TEST(powers_are_those_of_libm)
{
    for (int i = 0; i <= 2000; i++) {
        const double x = exp((i - 1000) * 0.04), a = (i % 21) * 0.05;
        ck_assert_double_eq_tol(power(x, a) / pow(x, a), 1, 0x1p-44);
    }
    ck_assert(power(1, 0.37) == 1 && power(5, 0) == 1 && power(1024, 1) == 1024);
}
END_TEST

/* Tree and leaves after a window moved, by a model that keeps an array. */
START_TEST(leaves_are_of_the_window_alone)
{
    static float leaf[HISTORY_ROWS_MAX];
    float greatest = 1;
    uint64_t entered = 0;
    for (uint64_t until = 20; until < 1500; until += 37) {
        append_until(until);
        const struct replay_window window = replay_window(replay);
        double total = 0;
        for (; entered < window.end; entered++)
            leaf[entered] = replay_is_transition(replay, entered) ? greatest : 0;
        for (int i = 0; i < 40 && window.end > 0; i++) {
            const uint64_t row = history_below(history, window.end);
            const float td = (float)history_below(history, 4000) / 1000 - 2;
            priorities_set(priorities, 1, &row, &td);
            if (row < window.first || leaf[row] == 0)
                continue;
            leaf[row] = (float)power((double)fabsf(td) + (double)1e-6f, 0.7);
            greatest = leaf[row] > greatest ? leaf[row] : greatest;
        }
        for (uint64_t row = window.first; row < window.end; row++) {
            ck_assert(priorities_leaf(priorities, row) == leaf[row]);
            total += (double)leaf[row];
        }
        ck_assert_double_eq_tol(priorities_total(priorities), total, 1e-9 * (total + 1));
    }
}
END_TEST

/* Equal leaves make equal trees, whatever came before: the same draws to the bit. */
START_TEST(the_tree_is_a_function_of_its_leaves)
{
    enum { COUNT = 300 };
    struct priorities *other;
    uint64_t rows[COUNT], other_rows[COUNT];
    float td[COUNT], weights[COUNT], other_weights[COUNT];
    append_until(400);
    ck_assert_int_eq(priorities_new(&other, CAPACITY, 0.7, NULL), STATUS_OK);
    for (uint32_t round = 0; round < 50; round++) {
        ck_assert(priorities_draw(priorities, 1, round, 0.5, COUNT, rows, weights));
        for (int i = 0; i < COUNT; i++)
            td[i] = (float)history_below(history, 1000) * 1e-3f;
        priorities_set(priorities, COUNT, rows, td);
        append_until(history->next + 10);
    }
    const size_t bytes = priorities_save(priorities, NULL);
    char *saved = malloc(bytes);
    ck_assert_uint_eq(priorities_save(priorities, saved), bytes);
    ck_assert_uint_eq(priorities_load(other, saved, bytes, NULL), bytes);
    ck_assert(priorities_total(other) == priorities_total(priorities));
    for (uint32_t round = 0; round < 50; round++) {
        ck_assert(priorities_draw(priorities, 2, round, 0.5, COUNT, rows, weights));
        ck_assert(priorities_draw(other, 2, round, 0.5, COUNT, other_rows, other_weights));
        ck_assert_mem_eq(rows, other_rows, sizeof rows);
        ck_assert_mem_eq(weights, other_weights, sizeof weights);
    }
    free(saved);
    priorities_free(other);
}
END_TEST

/* Each draw by its definition: a walk over the leaves in the order of slots. */
START_TEST(draws_are_stratified_and_keyed)
{
    enum { COUNT = 400 };
    uint64_t rows[COUNT];
    float weights[COUNT], td[COUNT];
    append_until(500);
    ck_assert(priorities_draw(priorities, 9, 1, 1, COUNT, rows, weights));
    for (int i = 0; i < COUNT; i++)
        td[i] = (float)(rows[i] % 13);
    priorities_set(priorities, COUNT, rows, td);
    ck_assert(priorities_draw(priorities, 9, 2, 1, COUNT, rows, weights));
    const struct replay_window window = replay_window(replay);
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct rng_key key = {.seed = 9, .environment = i, .episode = 2};
        uint32_t words[4];
        rng_block(&key, RNG_REPLAY, 0, words);
        const double rest =
            (i + rng_uniform_double(words[0], words[1])) / COUNT * priorities_total(priorities);
        double before = 0;
        for (uint64_t slot = 0; slot < rows[i] % CAPACITY; slot++) {
            const uint64_t row = window.first + (slot + CAPACITY - window.first % CAPACITY) % CAPACITY;
            before += (double)priorities_leaf(priorities, row);
        }
        ck_assert(rows[i] >= window.first && rows[i] < window.end);
        ck_assert_double_ge(rest, before - 1e-9);
        ck_assert_double_le(rest, before + (double)priorities_leaf(priorities, rows[i]) + 1e-9);
    }
}
END_TEST

/* Draws of a row are in proportion to its leaf, and weights undo that. */
START_TEST(draws_are_proportional_and_weights_undo_it)
{
    enum { COUNT = 256, UPDATES = 200 };
    uint64_t rows[COUNT];
    float weights[COUNT], td[1];
    uint32_t drawn[HISTORY_ROWS_MAX] = {0};
    double chi = 0, least = INFINITY;
    append_until(500);
    const struct replay_window window = replay_window(replay);
    for (uint64_t row = window.first; row < window.end; row++) {
        td[0] = (float)(1 + row % 5);
        priorities_set(priorities, 1, &row, td);
    }
    for (uint32_t update = 0; update < UPDATES; update++) {
        ck_assert(priorities_draw(priorities, 1, update, 0.4, COUNT, rows, weights));
        for (uint32_t i = 0; i < COUNT; i++)
            drawn[rows[i]]++;
    }
    for (uint64_t row = window.first; row < window.end; row++) {
        const double share = (double)priorities_leaf(priorities, row) / priorities_total(priorities);
        const double expected = share * COUNT * UPDATES;
        ck_assert(expected > 0 || drawn[row] == 0);
        chi += expected > 0 ? (drawn[row] - expected) * (drawn[row] - expected) / expected : 0;
    }
    /* Strata vary less than free draws do: chi-square is below its mean, the number of transitions. */
    ck_assert_double_lt(chi, 1.2 * (double)history_transitions(replay));
    for (int i = 0; i < COUNT; i++)
        least = fmin(least, (double)priorities_leaf(priorities, rows[i]));
    for (int i = 0; i < COUNT; i++)
        ck_assert_double_eq_tol((double)weights[i],
                                pow(least / (double)priorities_leaf(priorities, rows[i]), 0.4), 1e-6);
}
END_TEST

START_TEST(odd_errors_and_empty_windows_are_borne)
{
    uint64_t rows[4];
    float weights[4];
    const float odd[] = {NAN, INFINITY, -INFINITY, 0};
    ck_assert(!priorities_draw(priorities, 1, 1, 0.4, 4, rows, weights));
    append_until(100);
    ck_assert(priorities_draw(priorities, 1, 1, 0.4, 4, rows, weights));
    priorities_set(priorities, 4, rows, odd);
    for (int i = 0; i < 3; i++)
        ck_assert_float_eq_tol(priorities_leaf(priorities, rows[i]) / powf(1e18f, 0.7f), 1, 1e-4);
    ck_assert_float_eq_tol(priorities_leaf(priorities, rows[3]) / powf(1e-6f, 0.7f), 1, 1e-4);
    ck_assert(priorities_draw(priorities, 1, 2, 0.4, 4, rows, weights));
}
END_TEST

START_TEST(bytes_of_other_priorities_are_refused)
{
    struct priorities *other;
    struct error error;
    append_until(300);
    const size_t bytes = priorities_save(priorities, NULL);
    char *saved = malloc(bytes);
    priorities_save(priorities, saved);
    ck_assert_int_eq(priorities_new(&other, CAPACITY, 0.6, NULL), STATUS_OK);
    ck_assert_uint_eq(priorities_load(other, saved, bytes, &error), 0);
    ck_assert_ptr_nonnull(strstr(error.text, "alpha"));
    priorities_free(other);
    ck_assert_int_eq(priorities_new(&other, CAPACITY, 0.7, NULL), STATUS_OK);
    for (size_t cut = 0; cut < bytes; cut += 7)
        ck_assert_uint_eq(priorities_load(other, saved, cut, &error), 0);
    memset(saved + bytes - 4, 0xff, 4); // a NaN
    ck_assert_uint_eq(priorities_load(other, saved, bytes, &error), 0);
    ck_assert_msg(strstr(error.text, "priority of row") != NULL, "%s", error.text);
    priorities_free(other);
    free(saved);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("priorities");
    TCase *tests = tcase_create("priorities");
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_test(tests, powers_are_those_of_libm);
    tcase_add_test(tests, leaves_are_of_the_window_alone);
    tcase_add_test(tests, the_tree_is_a_function_of_its_leaves);
    tcase_add_test(tests, draws_are_stratified_and_keyed);
    tcase_add_test(tests, draws_are_proportional_and_weights_undo_it);
    tcase_add_test(tests, odd_errors_and_empty_windows_are_borne);
    tcase_add_test(tests, bytes_of_other_priorities_are_refused);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
