/* The checks of messages that need no connection: a method's tensors, texts from peers, and repeated ids. */
#include "test/workplace.h"
#include "worker/net/rpc_message.h"

#include <stdlib.h>
#include <string.h>

static enum status check(const struct rpc_method *method, const struct wire_tensor *tensors, uint8_t count)
{
    struct wire_header header = {.kind = WIRE_REQUEST, .method = METHOD_STEP, .tensor_count = count};
    struct error error = {0};
    memcpy(header.tensors, tensors, count * sizeof *tensors);
    enum status status = message_check_tensors(method, &header, &error);
    ck_assert_int_eq(error.status, status);
    ck_assert_int_eq(error.text[0] == '\0', status == STATUS_OK);
    return status;
}

START_TEST(test_tensors_of_a_method)
{
    static const struct rpc_method none = {.method = METHOD_STEP},
                                   one = {.method = METHOD_STEP, .dtype = WIRE_F32, .elements_max = 8};
    const struct wire_tensor good[2] = {{WIRE_F32, 1, .dims = {8}}, {WIRE_F32, 1, .dims = {1}}};
    ck_assert_int_eq(check(&none, good, 0), STATUS_OK);
    ck_assert_int_eq(check(&none, good, 1), STATUS_INVALID);
    ck_assert_int_eq(check(&one, good, 1), STATUS_OK);
    ck_assert_int_eq(check(&one, good + 1, 1), STATUS_OK);
    ck_assert_int_eq(check(&one, good, 0), STATUS_INVALID);
    ck_assert_int_eq(check(&one, good, 2), STATUS_INVALID);
    ck_assert_int_eq(check(&one, &(struct wire_tensor){WIRE_U32, 1, .dims = {8}}, 1), STATUS_INVALID);
    ck_assert_int_eq(check(&one, &(struct wire_tensor){WIRE_F32, 2, .dims = {8, 1}}, 1), STATUS_INVALID);
    ck_assert_int_eq(check(&one, &(struct wire_tensor){WIRE_F32, 1, .dims = {9}}, 1), STATUS_INVALID);
}
END_TEST

START_TEST(test_texts)
{
    char out[8];
    message_copy_text(out, sizeof out, (const uint8_t *)"ab\ncd", 5);
    ck_assert_str_eq(out, "ab?cd");
    message_copy_text(out, sizeof out, (const uint8_t *)"abcdefghijk", 11);
    ck_assert_str_eq(out, "abcdefg");
    message_copy_text(out, sizeof out, (const uint8_t *)"\x1b\x7f\0x", 4);
    ck_assert_str_eq(out, "???x");
    message_copy_text(out, sizeof out, (const uint8_t *)"", 0);
    ck_assert_str_eq(out, "");
    message_copy_text(out, sizeof out, (const uint8_t *)"\xc3\xa4", 2);
    ck_assert_str_eq(out, "\xc3\xa4");
}
END_TEST

/* ---- the window that recognises a repeated request ---- */

enum { IDS = 40000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Against a model that forgets nothing: ids around a front that moves on, now by a step, now by a leap: over
 * the window's whole ring and beyond. */
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
    Suite *suite = suite_create("rpc_message");
    TCase *tcase = tcase_create("rules"), *window = tcase_create("window");
    tcase_add_test(tcase, test_tensors_of_a_method);
    tcase_add_test(tcase, test_texts);
    tcase_add_loop_test(window, test_window_against_a_model, 0, 8);
    tcase_add_test(window, test_window_leaps);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, window);
    return suite_run(suite);
}
