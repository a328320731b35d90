/* Keys of hosts. Any process; no state. */
#include "worker/net/host_keys.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

_Static_assert(crypto_box_SECRETKEYBYTES == HOST_KEY_BYTES && crypto_box_PUBLICKEYBYTES == HOST_KEY_BYTES &&
                   crypto_scalarmult_BYTES == HOST_KEY_BYTES && crypto_generichash_BYTES == HOST_KEY_BYTES,
               "CURVE's keys are curve25519's");

void host_keys_draw(uint8_t secret[HOST_KEY_BYTES])
{
    randombytes_buf(secret, HOST_KEY_BYTES);
}

void host_keys_public(uint8_t public_key[HOST_KEY_BYTES], const uint8_t secret[HOST_KEY_BYTES])
{
    crypto_scalarmult_base(public_key, secret);
}

/* A host's secret key is a keyed hash of the host's number. */
static void derive_secret(uint8_t secret[HOST_KEY_BYTES], const uint8_t shared[HOST_KEY_BYTES], unsigned host)
{
    char text[32];
    const int length = snprintf(text, sizeof text, "coalesced host %u", host);
    crypto_generichash(secret, HOST_KEY_BYTES, (const uint8_t *)text, (size_t)length, shared, HOST_KEY_BYTES);
}

void host_keys_derive(struct host_keys *keys, const uint8_t shared[HOST_KEY_BYTES], uint16_t host,
                      uint16_t count)
{
    *keys = (struct host_keys){.host = host, .count = count};
    for (unsigned i = 0; i < count; i++) {
        uint8_t secret[HOST_KEY_BYTES];
        derive_secret(secret, shared, i);
        host_keys_public(keys->public_of_host[i], secret);
        if (i == host)
            memcpy(keys->secret, secret, sizeof secret);
        sodium_memzero(secret, sizeof secret);
    }
}

int host_keys_find(const struct host_keys *keys, const uint8_t public_key[HOST_KEY_BYTES])
{
    int found = -1;
    if (sodium_is_zero(public_key, HOST_KEY_BYTES))
        return -1;
    for (int i = 0; i < keys->count; i++)
        if (sodium_memcmp(keys->public_of_host[i], public_key, HOST_KEY_BYTES) == 0)
            found = i;
    return found;
}
