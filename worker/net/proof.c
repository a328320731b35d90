/* HMAC-SHA-256 over a greeting and over a worker's number, by libsodium. Run by whichever thread owns the
 * connection. */
#include "worker/net/proof.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

_Static_assert(crypto_auth_hmacsha256_KEYBYTES == WIRE_SECRET_BYTES, "the secret is the key");
_Static_assert(crypto_auth_hmacsha256_BYTES == WIRE_PROOF_BYTES, "the proof is the whole code");

void proof_make_pass(struct wire_pass *pass, const uint8_t secret[WIRE_SECRET_BYTES], uint16_t worker)
{
    uint8_t code[WIRE_PROOF_BYTES];
    *pass = (struct wire_pass){.user = ""};
    snprintf(pass->user, sizeof pass->user, "%u", worker);
    crypto_auth_hmacsha256(code, (const uint8_t *)pass->user, strlen(pass->user), secret);
    sodium_bin2hex(pass->password, sizeof pass->password, code, sizeof code);
}

void proof_make(const struct proof_subject *subject, const uint8_t secret[WIRE_SECRET_BYTES],
                uint8_t proof[WIRE_PROOF_BYTES])
{
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, secret, WIRE_SECRET_BYTES);
    crypto_auth_hmacsha256_update(&state, subject->header, WIRE_HEADER_BYTES);
    crypto_auth_hmacsha256_update(&state, subject->nonce, WIRE_NONCE_BYTES);
    crypto_auth_hmacsha256_update(&state, subject->text, subject->text_bytes);
    crypto_auth_hmacsha256_final(&state, proof);
}

bool proof_is_good(const struct proof_subject *subject, const uint8_t secret[WIRE_SECRET_BYTES],
                   const uint8_t proof[WIRE_PROOF_BYTES])
{
    uint8_t right[WIRE_PROOF_BYTES];
    proof_make(subject, secret, right);
    return sodium_memcmp(right, proof, sizeof right) == 0;
}
