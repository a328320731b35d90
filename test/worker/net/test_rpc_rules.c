/* The rpc's rules that need no connection: a method's tensors, and texts from peers. */
#include "test/workplace.h"
#include "worker/net/rpc_rules.h"

#include <string.h>

static const struct rpc_method step = {.method = METHOD_STEP,
                                       .tensor_count = 2,
                                       .tensors = {{WIRE_F32, 2, .dims = {0, 4}}, {WIRE_U8, 1, .dims = {0}}}};

static enum status check(const struct wire_tensor *tensors, uint8_t count)
{
    struct wire_header header = {.kind = WIRE_REQUEST, .method = METHOD_STEP, .tensor_count = count};
    struct error error = {0};
    memcpy(header.tensors, tensors, count * sizeof *tensors);
    enum status status = rules_check_tensors(&step, 8, &header, &error);
    ck_assert_int_eq(error.status, status);
    ck_assert_int_eq(error.text[0] == '\0', status == STATUS_OK);
    return status;
}

START_TEST(test_tensors_of_a_method)
{
    const struct wire_tensor good[2] = {{WIRE_F32, 2, .dims = {8, 4}}, {WIRE_U8, 1, .dims = {8}}};
    ck_assert_int_eq(check(good, 2), STATUS_OK);
    ck_assert_int_eq(
        check((struct wire_tensor[]){{WIRE_F32, 2, .dims = {1, 4}}, {WIRE_U8, 1, .dims = {1}}}, 2),
        STATUS_OK);
    ck_assert_int_eq(check(good, 1), STATUS_INVALID);
    ck_assert_int_eq(check((struct wire_tensor[]){good[0], good[1], good[1]}, 3), STATUS_INVALID);
    ck_assert_int_eq(check((struct wire_tensor[]){good[1], good[0]}, 2), STATUS_INVALID);
    ck_assert_int_eq(check((struct wire_tensor[]){{WIRE_U32, 2, .dims = {8, 4}}, good[1]}, 2),
                     STATUS_INVALID);
    ck_assert_int_eq(check((struct wire_tensor[]){{WIRE_F32, 1, .dims = {8}}, good[1]}, 2), STATUS_INVALID);
    ck_assert_int_eq(check((struct wire_tensor[]){{WIRE_F32, 2, .dims = {8, 5}}, good[1]}, 2),
                     STATUS_INVALID);
    ck_assert_int_eq(check((struct wire_tensor[]){{WIRE_F32, 2, .dims = {7, 4}}, good[1]}, 2),
                     STATUS_INVALID);
    ck_assert_int_eq(
        check((struct wire_tensor[]){{WIRE_F32, 2, .dims = {9, 4}}, {WIRE_U8, 1, .dims = {9}}}, 2),
        STATUS_INVALID);
}
END_TEST

START_TEST(test_texts)
{
    char out[8];
    rules_copy_text(out, sizeof out, (const uint8_t *)"ab\ncd", 5);
    ck_assert_str_eq(out, "ab?cd");
    rules_copy_text(out, sizeof out, (const uint8_t *)"abcdefghijk", 11);
    ck_assert_str_eq(out, "abcdefg");
    rules_copy_text(out, sizeof out, (const uint8_t *)"\x1b\x7f\0x", 4);
    ck_assert_str_eq(out, "???x");
    rules_copy_text(out, sizeof out, (const uint8_t *)"", 0);
    ck_assert_str_eq(out, "");
    rules_copy_text(out, sizeof out, (const uint8_t *)"\xc3\xa4", 2);
    ck_assert_str_eq(out, "\xc3\xa4");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_rules");
    TCase *tcase = tcase_create("rules");
    tcase_add_test(tcase, test_tensors_of_a_method);
    tcase_add_test(tcase, test_texts);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
