/* The proofs that a worker knows the job's secret: in HELLO and WELCOME, and the pass ahead of both.
 *
 * The supervisor draws the secret and hands it to each worker; it never travels between workers. Each of the
 * two messages carries a proof: HMAC-SHA-256, with the secret as key, of the message's own header, the nonce
 * and the job's text. The dialing worker draws the nonce anew for each worker that it dials. So a WELCOME
 * answers one HELLO and no other, and neither message tells a stranger the secret.
 *
 *     HELLO's payload:    nonce, proof
 *     WELCOME's payload:  proof, the job's text
 *
 * A pass is HMAC-SHA-256 of the listener's worker number. It lets a connection in, so that its messages are
 * read at all (worker/net/endpoint_zap.h), and says nothing about who is at its end. A program that has
 * taken a listener's address gets to see the pass of that listener, and of no other.
 *
 * Pure functions: no I/O, no allocation, no blocking. */
#ifndef WORKER_NET_PROOF_H
#define WORKER_NET_PROOF_H

#include "worker/net/wire.h"

#include <stdbool.h>

void proof_make_pass(struct wire_pass *pass, const uint8_t secret[WIRE_SECRET_BYTES], uint16_t worker);

/* What a proof covers. A HELLO has no text. */
struct proof_subject {
    const uint8_t *header; /* (WIRE_HEADER_BYTES) encoded, with its payload_bytes */
    const uint8_t *nonce;  /* (WIRE_NONCE_BYTES) HELLO's own; of a WELCOME, that of the HELLO it answers */
    const void *text;
    size_t text_bytes;
};

void proof_make(const struct proof_subject *subject, const uint8_t secret[WIRE_SECRET_BYTES],
                uint8_t proof[WIRE_PROOF_BYTES]);

/* Compares in a time that does not depend on the bytes. */
bool proof_is_good(const struct proof_subject *subject, const uint8_t secret[WIRE_SECRET_BYTES],
                   const uint8_t proof[WIRE_PROOF_BYTES]);

#endif
