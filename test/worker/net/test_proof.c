/* The proofs in HELLO and WELCOME: the bytes of PROTOCOL.md's examples, and everything that a proof covers
 * changed alone. The proofs come from Python:
 *
 *     hmac.new(bytes(range(32)), header + bytes(range(32, 64)) + text, hashlib.sha256).hexdigest()
 */
#include "test/workplace.h"
#include "worker/net/proof.h"

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
        0xcf, 0x8f, 0x3f, 0x07, 0x09, 0xd6, 0x54, 0x4b, 0x28, 0xae, 0xdb, 0xea, 0x13, 0xa4, 0x92, 0xca,
        0x6d, 0x70, 0x3e, 0x4b, 0x48, 0x35, 0xf1, 0xd5, 0x99, 0x4f, 0x1e, 0xfc, 0x42, 0x3c, 0x87, 0x0c};
    const struct proof_subject greeting = {.header = header, .nonce = nonce};
    uint8_t proof[WIRE_PROOF_BYTES];
    setup();
    proof_make(&greeting, secret, proof);
    ck_assert_mem_eq(proof, golden, sizeof proof);
}
END_TEST

START_TEST(test_welcome)
{
    static const uint8_t golden[WIRE_PROOF_BYTES] = {
        0xb4, 0xd6, 0xb5, 0xb0, 0x78, 0x15, 0x2a, 0x92, 0xa6, 0x94, 0x85, 0xe7, 0x3e, 0xeb, 0x85, 0x40,
        0x63, 0xd5, 0xbe, 0x09, 0x46, 0xa3, 0x1f, 0x3c, 0x6e, 0xbd, 0x78, 0x9b, 0x2e, 0x76, 0x94, 0x70};
    const struct proof_subject greeting = {header, nonce, text, sizeof text - 1};
    uint8_t proof[WIRE_PROOF_BYTES];
    setup_welcome();
    proof_make(&greeting, secret, proof);
    ck_assert_mem_eq(proof, golden, sizeof proof);
}
END_TEST

static void expect_refused_when_changed(uint8_t *bytes, size_t count, const struct proof_subject *greeting,
                                        const uint8_t *proof)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] ^= 0x10;
        ck_assert_msg(!proof_is_good(greeting, secret, proof), "byte %zu is not covered", i);
        bytes[i] ^= 0x10;
    }
    ck_assert(proof_is_good(greeting, secret, proof));
}

START_TEST(test_everything_is_covered)
{
    char job[] = "{\"kind\":\"reinforce\"}";
    struct proof_subject greeting = {header, nonce, job, sizeof job - 1};
    uint8_t proof[WIRE_PROOF_BYTES];
    setup_welcome();
    proof_make(&greeting, secret, proof);
    expect_refused_when_changed(header, sizeof header, &greeting, proof);
    expect_refused_when_changed(nonce, sizeof nonce, &greeting, proof);
    expect_refused_when_changed(secret, sizeof secret, &greeting, proof);
    expect_refused_when_changed((uint8_t *)job, sizeof job - 1, &greeting, proof);
    expect_refused_when_changed(proof, sizeof proof, &greeting, proof);
    greeting.text_bytes--;
    ck_assert(!proof_is_good(&greeting, secret, proof));
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
