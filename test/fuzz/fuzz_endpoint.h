/* The endpoint of a worker whose peers are fuzz_answer.h's. The linker puts these functions in the place of
 * the endpoint's own (Makefile). */
#ifndef TEST_FUZZ_FUZZ_ENDPOINT_H
#define TEST_FUZZ_FUZZ_ENDPOINT_H

#include "test/fuzz/fuzz_answer.h"

enum status __wrap_endpoint_send(struct endpoint *endpoint, struct endpoint_message *message);
enum status __wrap_endpoint_receive(struct endpoint *endpoint, struct endpoint_message *message);
enum status __wrap_endpoint_wait(struct endpoint *const *endpoints, size_t endpoint_count,
                                 struct endpoint_watch *watches, size_t count, bool sending,
                                 struct monotime until, bool *readable);

enum status __wrap_endpoint_prepare(struct endpoint_message *message, uint32_t peer, const uint8_t *header,
                                    size_t header_bytes, size_t payload_bytes);
void __wrap_endpoint_move(struct endpoint_message *to, struct endpoint_message *from);
void __wrap_endpoint_release(struct endpoint_message *message);
int __wrap_endpoint_message_host(const struct endpoint_message *message);

/* Frames of their own blocks, however small: the address sanitizer then sees who reads beyond one. */
enum status __wrap_endpoint_prepare(struct endpoint_message *message, uint32_t peer, const uint8_t *header,
                                    size_t header_bytes, size_t payload_bytes)
{
    uint8_t *block = malloc(header_bytes);
    memcpy(block, header, header_bytes);
    message->peer = peer;
    message->header = block;
    message->header_bytes = header_bytes;
    message->payload = malloc(payload_bytes);
    message->payload_bytes = payload_bytes;
    memcpy(&message->frames[0][0], &block, sizeof block);
    return STATUS_OK;
}

void __wrap_endpoint_release(struct endpoint_message *message)
{
    uint8_t *block;
    memcpy(&block, &message->frames[0][0], sizeof block);
    free(block);
    free(message->payload);
}

/* All peers are on this host. */
int __wrap_endpoint_message_host(const struct endpoint_message *message)
{
    (void)message;
    return -1;
}

void __wrap_endpoint_move(struct endpoint_message *to, struct endpoint_message *from)
{
    *to = *from;
    from->payload = NULL;
    memset(&from->frames[0][0], 0, sizeof from->frames[0][0]);
}

enum status __wrap_endpoint_send(struct endpoint *endpoint, struct endpoint_message *message)
{
    (void)endpoint;
    for (unsigned worker = 1; worker <= PEERS; worker++) {
        if (rpc->sessions->table[worker].peer != message->peer)
            continue;
        if (is_cut[worker])
            return STATUS_NOT_FOUND;
        if (is_full[worker])
            return STATUS_AGAIN;
    }
    note_asked(message);
    endpoint_release(message);
    return STATUS_OK;
}

enum status __wrap_endpoint_receive(struct endpoint *endpoint, struct endpoint_message *message)
{
    (void)endpoint;
    if (greeter <= PEERS)
        return say_hello(greeter++, message) ? STATUS_OK : STATUS_AGAIN;
    if (all_leave)
        return say_bye(1, message) || say_bye(2, message) ? STATUS_OK : STATUS_AGAIN;
    const uint8_t *record = next_record(true);
    enum status status = STATUS_AGAIN;
    if (record != NULL)
        status = say(record, message);
    else if (say_honestly(message))
        status = STATUS_OK;
    idle_looks = status == STATUS_AGAIN ? idle_looks : 0;
    return status;
}

/* Nothing came. Who only looks goes on; who waits does so until it is clear that nothing will come; then the
 * peers leave, and after that nobody may wait for anything. */
enum status __wrap_endpoint_wait(struct endpoint *const *endpoints, size_t endpoint_count,
                                 struct endpoint_watch *watches, size_t count, bool sending,
                                 struct monotime until, bool *readable)
{
    (void)endpoints, (void)endpoint_count, (void)watches, (void)count, (void)sending;
    *readable = false;
    if (until.ns <= 1 || (input_left >= SAYINGS && input[0] >= 0x80))
        return STATUS_OK;
    require(!all_leave || idle_looks < 64);
    all_leave = ++idle_looks > 8 || all_leave;
    return STATUS_OK;
}

#endif
