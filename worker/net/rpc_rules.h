/* Checks of messages that need no connection. Pure, so that they are tested and fuzzed alone. */
#ifndef WORKER_NET_RPC_RULES_H
#define WORKER_NET_RPC_RULES_H

#include "worker/net/rpc.h"
#include "worker/net/segment.h"

/* Checks a request's tensors against the method's rules. STATUS_INVALID names the tensor. */
enum status rules_check_tensors(const struct rpc_method *method, uint32_t rows_max,
                                const struct wire_header *header, struct error *error);

/* Fills a message from a header, its payload, and the addresses of the lent tensors. */
void rules_open_message(struct rpc_message *message, const struct wire_header *header, const uint8_t *payload,
                        const void *const lent[WIRE_TENSORS_MAX]);

/* rules_lends: whether any tensor is lent. rules_find_lent: the addresses of the lent tensors, NULL for the
 * others. STATUS_INVALID names a tensor that is not within the segment. */
bool rules_lends(const struct wire_header *header);
enum status rules_find_lent(const struct wire_header *header, const struct segment *segment,
                            const void *lent[WIRE_TENSORS_MAX], struct error *error);

/* Copies text from a peer, bounded, with unprintable characters replaced. */
void rules_copy_text(char *out, size_t out_bytes, const void *text, size_t text_bytes);

/* The request ids that a session has seen lately. All zero: none. */
struct replay_window {
    uint64_t top; /* the highest */
    uint64_t bits[REPLAY_WINDOW / 64];
};

/* Notes a request id. False: the id was seen before, or is too old to tell. */
bool replay_window_note(struct replay_window *window, uint64_t id);

#endif
