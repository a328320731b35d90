/* A trainer in bytes, written from worker/net/PROTOCOL.md: it shares no code with worker/net, with the layout
 * of models, nor with trainers, so that both sides cannot agree on a mistake. Bare blocking ZeroMQ sockets.
 * For test programs, which each use what they need. */
#ifndef TEST_WORKER_DATA_PARALLEL_PAGE_TRAINER_H
#define TEST_WORKER_DATA_PARALLEL_PAGE_TRAINER_H

#include <check.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    PAGE_HEADER = 200,
    PAGE_NONCE = 32,
    PAGE_PROOF = 32,
    PAGE_TEXT = 401,
    PAGE_CHUNK = 131072,
    PAGE_ENTRIES_MAX = 160,
    PAGE_WAIT_MS = 30000
};
enum { PAGE_HELLO = 1, PAGE_WELCOME = 2, PAGE_REQUEST = 3, PAGE_REPLY = 4, PAGE_BYE = 5 };
enum { PAGE_ECHO = 1, PAGE_GET_MODEL = 4, PAGE_PUSH_CHUNK = 5, PAGE_PUSH_PULL = 6, PAGE_EVALUATE = 7 };
#define PAGE_NEWEST UINT64_MAX
#define PAGE_SECRET "handed down by this page's tests"

/* ---- the model as one row of numbers ---- */

struct page_entry {
    char name[64];
    uint32_t kind, rank, size[4]; /* kind 0: trained, 1: buffer, 2: counter */
    size_t at, count;             /* in the image */
};

struct page_model {
    struct page_entry entries[PAGE_ENTRIES_MAX];
    uint32_t count;
    size_t p, b;
    uint64_t fingerprint;
};

static inline void page_add(struct page_model *model, const char *prefix, const char *name, uint32_t kind,
                            uint32_t rank, uint32_t a, uint32_t b, uint32_t k)
{
    ck_assert_uint_lt(model->count, PAGE_ENTRIES_MAX);
    struct page_entry *entry = &model->entries[model->count++];
    *entry = (struct page_entry){.kind = kind, .rank = rank, .size = {a, b, k, k}, .count = 1};
    snprintf(entry->name, sizeof entry->name, "%s%s", prefix, name);
    for (uint32_t i = 0; i < rank; i++)
        entry->count *= entry->size[i];
}

static inline void page_add_layer(struct page_model *model, const char *convolution, const char *norm,
                                  uint32_t outputs, uint32_t inputs, uint32_t kernel)
{
    page_add(model, convolution, ".weight", 0, 4, outputs, inputs, kernel);
    page_add(model, norm, ".weight", 0, 1, outputs, 0, 0);
    page_add(model, norm, ".bias", 0, 1, outputs, 0, 0);
    page_add(model, norm, ".running_mean", 1, 1, outputs, 0, 0);
    page_add(model, norm, ".running_var", 1, 1, outputs, 0, 0);
    page_add(model, norm, ".num_batches_tracked", 2, 0, 0, 0, 0);
}

static inline void page_add_block(struct page_model *model, uint32_t stage, uint32_t block, uint32_t inputs,
                                  uint32_t outputs)
{
    char convolution[32], norm[32];
    for (uint32_t i = 1; i <= 2; i++) {
        snprintf(convolution, sizeof convolution, "layer%u.%u.conv%u", stage, block, i);
        snprintf(norm, sizeof norm, "layer%u.%u.bn%u", stage, block, i);
        page_add_layer(model, convolution, norm, outputs, i == 1 ? inputs : outputs, 3);
    }
    snprintf(convolution, sizeof convolution, "layer%u.%u.downsample.0", stage, block);
    snprintf(norm, sizeof norm, "layer%u.%u.downsample.1", stage, block);
    if (inputs != outputs)
        page_add_layer(model, convolution, norm, outputs, inputs, 1);
}

/* Places the entries of one kind from `at` on, each at a multiple of 16; where they end. */
static inline size_t page_place(struct page_model *model, uint32_t kind, size_t at)
{
    for (uint32_t i = 0; i < model->count; i++) {
        struct page_entry *entry = &model->entries[i];
        if (entry->kind != kind)
            continue;
        entry->at = at;
        at = (at + entry->count + 15) / 16 * 16;
    }
    return at;
}

static inline void page_hash(uint64_t *hash, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *hash = (*hash ^ (number >> 8 * i & 0xff)) * 0x100000001b3;
}

static inline void page_resnet18(struct page_model *model, uint32_t width, uint32_t channels,
                                 uint32_t classes)
{
    *model = (struct page_model){.fingerprint = 0xcbf29ce484222325};
    page_add_layer(model, "conv1", "bn1", width, channels, 7);
    for (uint32_t stage = 1, inputs = width; stage <= 4; stage++)
        for (uint32_t block = 0; block < 2; block++) {
            page_add_block(model, stage, block, inputs, width << (stage - 1));
            inputs = width << (stage - 1);
        }
    page_add(model, "fc", ".weight", 0, 2, classes, 8 * width, 0);
    page_add(model, "fc", ".bias", 0, 1, classes, 0, 0);
    model->p = page_place(model, 0, 0);
    model->b = page_place(model, 1, model->p) - model->p;
    for (uint32_t i = 0; i < model->count; i++) {
        const struct page_entry *entry = &model->entries[i];
        for (size_t c = 0; c <= strlen(entry->name); c++)
            page_hash(&model->fingerprint, (uint8_t)entry->name[c], 1);
        page_hash(&model->fingerprint, entry->kind, 4);
        page_hash(&model->fingerprint, entry->rank, 4);
        for (uint32_t d = 0; d < entry->rank; d++)
            page_hash(&model->fingerprint, entry->size[d], 4);
        page_hash(&model->fingerprint, 0, 8);
    }
}

/* Where server j's range begins among `servers`: cut j. */
static inline size_t page_cut(const struct page_model *model, uint32_t j, uint32_t servers)
{
    const struct page_entry *trained[PAGE_ENTRIES_MAX];
    uint32_t count = 0, at = 0;
    for (uint32_t i = 0; i < model->count; i++)
        if (model->entries[i].kind == 0)
            trained[count++] = &model->entries[i];
    if (j == 0 || j == servers)
        return j == 0 ? 0 : model->p;
    ck_assert_uint_ge(count, servers);
    for (uint32_t cut = 1; cut <= j; cut++) {
        uint64_t least = UINT64_MAX;
        const uint32_t previous = at;
        for (uint32_t i = previous + 1; i + servers - cut <= count; i++) {
            int64_t apart = (int64_t)(trained[i]->at * servers) - (int64_t)(cut * model->p);
            uint64_t distance = (uint64_t)(apart < 0 ? -apart : apart);
            if (distance >= least)
                continue;
            least = distance;
            at = i;
        }
    }
    return trained[at]->at;
}

/* ---- messages ---- */

struct page_message {
    uint8_t kind, status, role;
    uint16_t method, source, destination;
    uint64_t request, args[4];
    uint32_t count;       /* floats of the one tensor; 0: none */
    char text[PAGE_TEXT]; /* of a BYE or a failed reply */
    float floats[PAGE_CHUNK];
};

/* One worker's connection to one server. */
struct page_peer {
    void *context, *socket;
    uint16_t worker, server;
    uint32_t incarnation;
    uint64_t requests;
    const char *secret; /* 32 bytes */
};

static inline void page_put(uint8_t *at, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(number >> 8 * i);
}

static inline uint64_t page_get(const uint8_t *at, unsigned bytes)
{
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes; i++)
        number |= (uint64_t)at[i] << 8 * i;
    return number;
}

/* ZMTP's PLAIN: the listener's number, and 64 hexadecimal digits that HMAC-SHA-256 makes of that text. */
static inline void page_show_pass(const struct page_peer *peer)
{
    char user[8], password[2 * PAGE_PROOF + 1];
    uint8_t code[PAGE_PROOF];
    const int length = snprintf(user, sizeof user, "%u", peer->server);
    crypto_auth_hmacsha256(code, (const uint8_t *)user, (unsigned long long)length,
                           (const uint8_t *)peer->secret);
    sodium_bin2hex(password, sizeof password, code, sizeof code);
    zmq_setsockopt(peer->socket, ZMQ_PLAIN_USERNAME, user, strlen(user));
    zmq_setsockopt(peer->socket, ZMQ_PLAIN_PASSWORD, password, strlen(password));
}

static inline void page_open(struct page_peer *peer, const char *address, uint16_t worker, uint16_t server,
                             uint32_t incarnation)
{
    int linger = 0, wait = PAGE_WAIT_MS;
    *peer = (struct page_peer){
        .worker = worker, .server = server, .incarnation = incarnation, .secret = PAGE_SECRET};
    peer->context = zmq_ctx_new();
    peer->socket = zmq_socket(peer->context, ZMQ_DEALER);
    page_show_pass(peer);
    zmq_setsockopt(peer->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(peer->socket, ZMQ_RCVTIMEO, &wait, sizeof wait);
    zmq_setsockopt(peer->socket, ZMQ_SNDTIMEO, &wait, sizeof wait);
    ck_assert_int_eq(zmq_connect(peer->socket, address), 0);
}

static inline void page_close(struct page_peer *peer)
{
    if (peer->context == NULL)
        return;
    zmq_close(peer->socket);
    zmq_ctx_term(peer->context);
    *peer = (struct page_peer){0};
}

/* A header of this peer's, to be completed and sent. */
static inline void page_header(const struct page_peer *peer, uint8_t header[PAGE_HEADER], uint8_t kind)
{
    memset(header, 0, PAGE_HEADER);
    memcpy(header, "COAL", 4);
    header[4] = 6;
    header[6] = kind;
    page_put(header + 12, peer->worker, 2);
    page_put(header + 14, peer->server, 2);
    page_put(header + 16, peer->incarnation, 4);
    page_put(header + 20, 1, 4);
}

static inline void page_send(struct page_peer *peer, const uint8_t header[PAGE_HEADER], const void *payload,
                             size_t bytes)
{
    ck_assert_int_ge(zmq_send(peer->socket, header, PAGE_HEADER, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(peer->socket, payload, bytes, 0), 0);
}

/* HMAC-SHA-256 of header, nonce and text. */
static inline void page_prove(const struct page_peer *peer, const uint8_t *header, const uint8_t *nonce,
                              const void *text, size_t bytes, uint8_t proof[PAGE_PROOF])
{
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, (const uint8_t *)peer->secret, 32);
    crypto_auth_hmacsha256_update(&state, header, PAGE_HEADER);
    crypto_auth_hmacsha256_update(&state, nonce, PAGE_NONCE);
    crypto_auth_hmacsha256_update(&state, text, bytes);
    crypto_auth_hmacsha256_final(&state, proof);
}

static inline void page_nonce(const struct page_peer *peer, uint8_t nonce[PAGE_NONCE])
{
    memset(nonce, 0, PAGE_NONCE);
    page_put(nonce, peer->worker, 2);
    page_put(nonce + 2, peer->incarnation, 4);
}

static inline void page_check_welcome(const struct page_peer *peer, const uint8_t *header,
                                      const uint8_t *payload, size_t bytes)
{
    uint8_t proof[PAGE_PROOF], nonce[PAGE_NONCE];
    ck_assert_uint_ge(bytes, PAGE_PROOF);
    page_nonce(peer, nonce);
    page_prove(peer, header, nonce, payload + PAGE_PROOF, bytes - PAGE_PROOF, proof);
    ck_assert_mem_eq(payload, proof, PAGE_PROOF);
}

static inline void page_receive(struct page_peer *peer, struct page_message *message)
{
    uint8_t header[PAGE_HEADER];
    int length = zmq_recv(peer->socket, header, sizeof header, 0);
    ck_assert_msg(length == PAGE_HEADER, "a header of %d bytes: %s", length, zmq_strerror(zmq_errno()));
    length = zmq_recv(peer->socket, message->floats, sizeof message->floats, 0);
    ck_assert_int_ge(length, 0);
    ck_assert_int_eq(length, (int)page_get(header + 80, 4));
    ck_assert_mem_eq(header, "COAL\6\0", 6);
    message->kind = header[6];
    message->status = header[7];
    message->method = (uint16_t)page_get(header + 8, 2);
    message->role = header[10];
    message->source = (uint16_t)page_get(header + 12, 2);
    message->destination = (uint16_t)page_get(header + 14, 2);
    message->request = page_get(header + 24, 8);
    for (unsigned i = 0; i < 4; i++)
        message->args[i] = page_get(header + 40 + 8 * i, 8);
    ck_assert_uint_eq(message->source, peer->server);
    if (message->kind == PAGE_WELCOME)
        page_check_welcome(peer, header, (const uint8_t *)message->floats, (size_t)length);
    message->count = header[11] == 1 ? (uint32_t)page_get(header + 92, 4) : 0;
    message->text[0] = '\0';
    if (message->kind == PAGE_BYE || message->status != 0)
        snprintf(message->text, sizeof message->text, "%.*s", length, (const char *)message->floats);
}

static inline void page_hello(struct page_peer *peer)
{
    uint8_t header[PAGE_HEADER], payload[PAGE_NONCE + PAGE_PROOF];
    page_header(peer, header, PAGE_HELLO);
    header[10] = 8;
    page_put(header + 80, sizeof payload, 4);
    page_nonce(peer, payload);
    page_prove(peer, header, payload, NULL, 0, payload + PAGE_NONCE);
    page_send(peer, header, payload, sizeof payload);
}

/* A request with no deadline; with one float tensor when `count` is not 0. Its id. */
static inline uint64_t page_ask(struct page_peer *peer, uint16_t method, uint64_t a, uint64_t b, uint64_t c,
                                uint64_t d, const float *floats, uint32_t count)
{
    const uint64_t args[4] = {a, b, c, d};
    uint8_t header[PAGE_HEADER];
    page_header(peer, header, PAGE_REQUEST);
    page_put(header + 8, method, 2);
    page_put(header + 24, ++peer->requests, 8);
    memset(header + 32, 0xff, 8);
    for (unsigned i = 0; i < 4; i++)
        page_put(header + 40 + 8 * i, args[i], 8);
    if (count > 0) {
        header[11] = 1;
        header[88] = 1;
        header[89] = 1;
        page_put(header + 92, count, 4);
        page_put(header + 80, 4ull * count, 4);
    }
    page_send(peer, header, floats, 4ull * count);
    return peer->requests;
}

/* An answer to a request that came, with args only. */
static inline void page_answer(struct page_peer *peer, const struct page_message *request, uint64_t a,
                               uint64_t b, uint64_t c)
{
    uint8_t header[PAGE_HEADER];
    page_header(peer, header, PAGE_REPLY);
    page_put(header + 8, request->method, 2);
    page_put(header + 24, request->request, 8);
    page_put(header + 40, a, 8);
    page_put(header + 48, b, 8);
    page_put(header + 56, c, 8);
    page_send(peer, header, NULL, 0);
}

static inline void page_expect(struct page_peer *peer, struct page_message *message, uint8_t kind,
                               uint8_t status, const char *text)
{
    page_receive(peer, message);
    ck_assert_msg(message->kind == kind && message->status == status, "kind %u, status %u: %s", message->kind,
                  message->status, message->text);
    ck_assert_msg(strstr(message->text, text) != NULL, "\"%s\" does not say \"%s\"", message->text, text);
}

/* The reply to the last request, which must be a value. */
static inline void page_value(struct page_peer *peer, struct page_message *message)
{
    page_expect(peer, message, PAGE_REPLY, 0, "");
    ck_assert_uint_eq(message->request, peer->requests);
}

static inline void page_join(struct page_peer *peer, struct page_message *message)
{
    page_hello(peer);
    page_expect(peer, message, PAGE_WELCOME, 0, "");
    ck_assert_uint_eq(message->role, 4);
    ck_assert_uint_eq(message->destination, peer->worker);
}

/* ---- a range of an image, in pieces ---- */

static inline void page_pull(struct page_peer *peer, const struct page_model *model, uint64_t version,
                             size_t first, size_t end, float *image, struct page_message *message)
{
    while (first < end) {
        uint32_t count = end - first < PAGE_CHUNK ? (uint32_t)(end - first) : PAGE_CHUNK;
        page_ask(peer, PAGE_GET_MODEL, version, first, count, model->fingerprint, NULL, 0);
        page_value(peer, message);
        ck_assert_uint_eq(message->args[0], version);
        ck_assert_uint_eq(message->count, count);
        memcpy(image + first, message->floats, 4ull * count);
        first += count;
    }
}

static inline void page_push(struct page_peer *peer, uint64_t step, size_t first, size_t end,
                             const float *image, struct page_message *message)
{
    while (first < end) {
        uint32_t count = end - first < PAGE_CHUNK ? (uint32_t)(end - first) : PAGE_CHUNK;
        page_ask(peer, PAGE_PUSH_CHUNK, step, first, 0, 0, image + first, count);
        page_value(peer, message);
        first += count;
    }
}

/* Asks for PUSH_PULL; the answer is to be received. */
static inline void page_push_pull(struct page_peer *peer, const struct page_model *model, uint64_t step,
                                  uint64_t base, double loss)
{
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    page_ask(peer, PAGE_PUSH_PULL, step, base, bits, 4 * (model->p + model->b), NULL, 0);
}

#endif
