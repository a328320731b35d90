/* The hosts of a job, and the keys by which they know each other: one CURVE key pair (curve25519) per host.
 *
 * Hosts are numbered from 0, the leader's number. A host keeps its secret key to itself; all hosts know all
 * public keys. Connections between hosts make ZMTP's CURVE handshake, which encrypts them and proves the key
 * at either end. So the key that a connection has shown says which host is there.
 *
 * Pure functions, by libsodium, which the caller has started. */
#ifndef WORKER_NET_HOST_KEYS_H
#define WORKER_NET_HOST_KEYS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    HOST_KEY_BYTES = 32,
    HOSTS_MAX = 64,
    HOST_LEADER = 0,
};

struct host_keys {
    uint16_t host;                  /* this host's number */
    uint16_t count;                 /* hosts of the job; 0: the job has one host, and no keys */
    uint8_t secret[HOST_KEY_BYTES]; /* this host's */
    uint8_t public_of_host[HOSTS_MAX][HOST_KEY_BYTES]; /* by number; all zero: there is no such host */
};

/* Draws a secret key; computes the public key of one. */
void host_keys_draw(uint8_t secret[HOST_KEY_BYTES]);
void host_keys_public(uint8_t public_key[HOST_KEY_BYTES], const uint8_t secret[HOST_KEY_BYTES]);

/* Computes the keys of all `count` hosts from 32 random bytes that all hosts share. `host`: this host. */
void host_keys_derive(struct host_keys *keys, const uint8_t shared[HOST_KEY_BYTES], uint16_t host,
                      uint16_t count);

/* The host with this public key, compared in a time that does not depend on the bytes. -1: none. */
int host_keys_find(const struct host_keys *keys, const uint8_t public_key[HOST_KEY_BYTES]);

#endif
