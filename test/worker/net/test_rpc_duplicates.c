/* The window that recognises a repeated request, against a model that forgets nothing. */
#include "test/workplace.h"
#include "worker/net/rpc_rules.h"

#include <stdlib.h>
#include <string.h>

enum { IDS = 40000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Ids around a front that moves on, now by a step, now by a leap: over the window's whole ring and beyond. */
START_TEST(test_window_against_a_model)
{
    static bool seen[IDS + 3 * REPLAY_WINDOW];
    struct replay_window window = {0};
    uint64_t state = (uint64_t)_i, top = 0, front = 1;
    unsigned fresh = 0, refused = 0;
    memset(seen, 0, sizeof seen);
    while (front < IDS) {
        uint64_t back = next_random(&state) % (next_random(&state) % 4 == 0 ? 2 * REPLAY_WINDOW : 40);
        uint64_t id = front > back ? front - back : 1;
        bool expected = !seen[id] && id + REPLAY_WINDOW > top;
        ck_assert_msg(replay_window_note(&window, id) == expected, "id %llu, highest %llu",
                      (unsigned long long)id, (unsigned long long)top);
        seen[id] = true;
        top = id > top ? id : top;
        fresh += expected;
        refused += !expected;
        uint64_t move = next_random(&state);
        front += move % 500 == 0 ? move / 500 % (3 * REPLAY_WINDOW) : move % 3;
    }
    ck_assert_uint_gt(fresh, 1000);
    ck_assert_uint_gt(refused, 100);
}
END_TEST

START_TEST(test_window_leaps)
{
    struct replay_window window = {0};
    for (uint64_t id = 1; id <= 2 * REPLAY_WINDOW; id++)
        ck_assert(replay_window_note(&window, id));
    ck_assert(replay_window_note(&window, 3 * REPLAY_WINDOW - 1));
    for (uint64_t id = 2 * REPLAY_WINDOW + 1; id < 3 * REPLAY_WINDOW - 1; id++)
        ck_assert(replay_window_note(&window, id));
    ck_assert(replay_window_note(&window, UINT64_MAX));
    ck_assert(!replay_window_note(&window, UINT64_MAX));
    ck_assert(replay_window_note(&window, UINT64_MAX - REPLAY_WINDOW + 1));
    ck_assert(!replay_window_note(&window, UINT64_MAX - REPLAY_WINDOW));
    ck_assert(!replay_window_note(&window, 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_duplicates");
    TCase *tcase = tcase_create("window");
    tcase_add_loop_test(tcase, test_window_against_a_model, 0, 8);
    tcase_add_test(tcase, test_window_leaps);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
