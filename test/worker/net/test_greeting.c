/* The proofs in HELLO and WELCOME: the bytes of PROTOCOL.md's examples, and everything that a proof covers
 * changed alone. The proofs come from Python:
 *
 *     hmac.new(bytes(range(32)), header + bytes(range(32, 64)) + text, hashlib.sha256).hexdigest()
 */
#include "test/workplace.h"
#include "worker/net/greeting.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "{\"kind\":\"reinforce\"}";
static uint8_t secret[WIRE_SECRET_BYTES], nonce[WIRE_NONCE_BYTES], header[WIRE_HEADER_BYTES];

static void setup(void)
{
    for (unsigned i = 0; i < 32; i++) {
        secret[i] = (uint8_t)i;
        nonce[i] = (uint8_t)(32 + i);
    }
    const struct wire_header hello = {.kind = WIRE_HELLO,
                                      .role = WIRE_ROLE_OBSERVER,
                                      .source = 1,
                                      .incarnation = 3,
                                      .generation = 2,
                                      .payload_bytes = WIRE_HELLO_BYTES};
    wire_encode(&hello, header);
}

static void setup_welcome(void)
{
    setup();
    const struct wire_header welcome = {.kind = WIRE_WELCOME,
                                        .role = WIRE_ROLE_AGENT,
                                        .destination = 1,
                                        .incarnation = 1,
                                        .generation = 2,
                                        .payload_bytes = WIRE_PROOF_BYTES + sizeof text - 1};
    wire_encode(&welcome, header);
}

START_TEST(test_hello)
{
    static const uint8_t golden[WIRE_PROOF_BYTES] = {
        0xd3, 0x40, 0xc5, 0x2a, 0x3e, 0x4b, 0xf3, 0xaf, 0x3f, 0x15, 0x66, 0xc0, 0x42, 0xa1, 0x91, 0x7d,
        0xb9, 0x69, 0x75, 0xb9, 0x3b, 0xe1, 0xd7, 0xce, 0xbc, 0x4d, 0xfe, 0x46, 0x3b, 0xc6, 0x0d, 0x03};
    const struct greeting greeting = {.header = header, .nonce = nonce};
    uint8_t proof[WIRE_PROOF_BYTES];
    setup();
    greeting_prove(&greeting, secret, proof);
    ck_assert_mem_eq(proof, golden, sizeof proof);
}
END_TEST

START_TEST(test_welcome)
{
    static const uint8_t golden[WIRE_PROOF_BYTES] = {
        0xb6, 0x24, 0x78, 0x1d, 0x9b, 0x50, 0xcf, 0xfc, 0x8d, 0x7a, 0x31, 0x1c, 0xec, 0xb0, 0x82, 0xf6,
        0xc1, 0xe8, 0x19, 0x72, 0x59, 0x40, 0x15, 0x64, 0x11, 0x2e, 0x8d, 0x19, 0x44, 0x62, 0x38, 0x33};
    const struct greeting greeting = {header, nonce, text, sizeof text - 1};
    uint8_t proof[WIRE_PROOF_BYTES];
    setup_welcome();
    greeting_prove(&greeting, secret, proof);
    ck_assert_mem_eq(proof, golden, sizeof proof);
}
END_TEST

static void expect_refused_when_changed(uint8_t *bytes, size_t count, const struct greeting *greeting,
                                        const uint8_t *proof)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] ^= 0x10;
        ck_assert_msg(!greeting_is_proven(greeting, secret, proof), "byte %zu is not covered", i);
        bytes[i] ^= 0x10;
    }
    ck_assert(greeting_is_proven(greeting, secret, proof));
}

START_TEST(test_everything_is_covered)
{
    char job[] = "{\"kind\":\"reinforce\"}";
    struct greeting greeting = {header, nonce, job, sizeof job - 1};
    uint8_t proof[WIRE_PROOF_BYTES];
    setup_welcome();
    greeting_prove(&greeting, secret, proof);
    expect_refused_when_changed(header, sizeof header, &greeting, proof);
    expect_refused_when_changed(nonce, sizeof nonce, &greeting, proof);
    expect_refused_when_changed(secret, sizeof secret, &greeting, proof);
    expect_refused_when_changed((uint8_t *)job, sizeof job - 1, &greeting, proof);
    expect_refused_when_changed(proof, sizeof proof, &greeting, proof);
    greeting.text_bytes--;
    ck_assert(!greeting_is_proven(&greeting, secret, proof));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("greeting");
    TCase *tcase = tcase_create("proofs");
    tcase_add_test(tcase, test_hello);
    tcase_add_test(tcase, test_welcome);
    tcase_add_test(tcase, test_everything_is_covered);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
