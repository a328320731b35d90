/* Greetings of anybody: what is not a HELLO with the job's proof opens no session and touches none, and what
 * is not a WELCOME with the proof over this worker's own nonce joins nobody.
 *
 * The input is a row of greetings, 8 bytes each: who says it, on which connection, of which incarnation and
 * generation, and one byte of it that is changed, before the proof is made or behind it. */
#include "test/fuzz/fuzz_peer.h"
#include "worker/net/proof.h"

enum { STEP_BYTES = 8, WELCOME_BYTES = WIRE_PROOF_BYTES + 2, PEERS = 16 };
enum step {
    STEP_KIND,
    STEP_SOURCE,
    STEP_PEER,
    STEP_INCARNATION,
    STEP_GENERATION,
    STEP_WHEN,
    STEP_AT,
    STEP_CHANGE
};

static struct rpc *dialer;
static bool is_dialing, is_here;        /* the next message is */
static struct endpoint_message arrived; /* that message */
static const uint8_t *answered;         /* the step that a WELCOME stands for */
static bool is_whole, knows_nonce;

static void open_dialer(void)
{
    const struct rpc_config config = {.worker = 2,
                                      .role = WIRE_ROLE_TRAINER,
                                      .incarnation = 1,
                                      .generation = 1,
                                      .roster = roster,
                                      .workers = WORKERS,
                                      .pending_max = 4,
                                      .incoming_max = 4};
    require(rpc_open(&dialer, &config, NULL, NULL) == STATUS_OK);
}

static void prove(const uint8_t *header, uint8_t *payload, bool is_hello, const uint8_t *nonce)
{
    const struct proof_subject greeting = {
        .header = header, .nonce = nonce, .text = payload + WIRE_PROOF_BYTES, .text_bytes = is_hello ? 0 : 2};
    proof_make(&greeting, rpc->config.secret, is_hello ? payload + WIRE_NONCE_BYTES : payload);
}

/* Writes the greeting that a step stands for. True: the bytes are as they were when the proof was made. */
static bool write_greeting(const uint8_t step[STEP_BYTES], struct endpoint_message *frames,
                           const uint8_t *nonce)
{
    const bool is_hello = nonce == NULL;
    uint8_t bytes[WIRE_HEADER_BYTES + WIRE_HELLO_BYTES] = {0}, *payload = bytes + WIRE_HEADER_BYTES;
    const size_t payload_bytes = is_hello ? (size_t)WIRE_HELLO_BYTES : (size_t)WELCOME_BYTES;
    const size_t at = (step[STEP_AT] + (step[STEP_WHEN] & 2) * 128u) % (WIRE_HEADER_BYTES + payload_bytes);
    const struct wire_header header = {.kind = is_hello ? WIRE_HELLO : WIRE_WELCOME,
                                       .role = is_hello ? WIRE_ROLE_TRAINER : WIRE_ROLE_PSERVER,
                                       .source = is_hello ? step[STEP_SOURCE] % 4 : 0,
                                       .destination = is_hello ? 0 : 2,
                                       .incarnation = step[STEP_INCARNATION],
                                       .generation = step[STEP_GENERATION] < 0xf0 ? 1 : step[STEP_GENERATION],
                                       .payload_bytes = (uint32_t)payload_bytes};
    wire_encode(&header, bytes);
    memset(payload, step[STEP_PEER], payload_bytes);
    const bool is_before = (step[STEP_WHEN] & 1) != 0;
    if (is_before)
        bytes[at] ^= step[STEP_CHANGE];
    prove(bytes, payload, is_hello, is_hello ? payload : nonce);
    if (!is_before)
        bytes[at] ^= step[STEP_CHANGE];
    const size_t cut = step[STEP_KIND] >= 0xf8 ? 1 : 0;
    require(endpoint_prepare(frames, CONNECTION + step[STEP_PEER] % PEERS, bytes, WIRE_HEADER_BYTES - cut,
                             payload_bytes) == STATUS_OK);
    memcpy(frames->payload, payload, payload_bytes);
    return cut == 0 && (is_before || step[STEP_CHANGE] == 0);
}

/* ---- in the place of the endpoint's own (Makefile) ---- */

enum status __wrap_endpoint_connect(struct endpoint **out, struct endpoint *beside, const char *address,
                                    const struct endpoint_credentials *shown, struct error *error);
enum status __wrap_endpoint_send(struct endpoint *endpoint, struct endpoint_message *message);
enum status __wrap_endpoint_receive(struct endpoint *endpoint, struct endpoint_message *message);
enum status __wrap_endpoint_wait(struct endpoint *const *endpoints, size_t endpoint_count,
                                 struct endpoint_watch *watches, size_t count, bool sending,
                                 struct monotime until, bool *readable);

enum status __wrap_endpoint_connect(struct endpoint **out, struct endpoint *beside, const char *address,
                                    const struct endpoint_credentials *shown, struct error *error)
{
    (void)beside, (void)address, (void)shown, (void)error;
    *out = rpc->sessions->endpoints[0]; /* not used */
    return STATUS_OK;
}

/* The dialer's HELLO is answered. */
enum status __wrap_endpoint_send(struct endpoint *endpoint, struct endpoint_message *message)
{
    (void)endpoint;
    if (is_dialing && message->payload_bytes == WIRE_HELLO_BYTES) {
        uint8_t nonce[WIRE_NONCE_BYTES];
        memcpy(nonce, message->payload, sizeof nonce);
        nonce[0] ^= !knows_nonce;
        is_whole = write_greeting(answered, &arrived, nonce);
        is_here = true;
    }
    endpoint_release(message);
    return STATUS_OK;
}

enum status __wrap_endpoint_receive(struct endpoint *endpoint, struct endpoint_message *message)
{
    (void)endpoint;
    if (!is_here)
        return STATUS_AGAIN;
    is_here = false;
    endpoint_move(message, &arrived);
    return STATUS_OK;
}

/* The worker that dials has its answer. */
enum status __wrap_endpoint_wait(struct endpoint *const *endpoints, size_t endpoint_count,
                                 struct endpoint_watch *watches, size_t count, bool sending,
                                 struct monotime until, bool *readable)
{
    (void)endpoints, (void)endpoint_count, (void)watches, (void)count, (void)sending, (void)until;
    *readable = false;
    return is_dialing ? STATUS_IO : STATUS_OK;
}

/* ---- an input ---- */

static void say_hello(const uint8_t step[STEP_BYTES])
{
    uint32_t before[WORKERS];
    bool was_live[WORKERS];
    const struct session *table = rpc->sessions->table;
    for (unsigned i = 0; i < WORKERS; i++) {
        before[i] = table[i].incarnation;
        was_live[i] = table[i].is_live;
    }
    is_whole = write_greeting(step, &arrived, NULL);
    is_here = true;
    const uint32_t peer = arrived.peer; /* it costs the session of this connection, if there is one */
    rpc_turn(rpc, (struct monotime){1});
    require(!is_here);
    for (unsigned i = 0; i < WORKERS && !is_whole; i++)
        require(table[i].incarnation == before[i] &&
                (table[i].is_live == was_live[i] || (was_live[i] && table[i].peer == peer)));
}

static void answer_hello(const uint8_t step[STEP_BYTES])
{
    const struct rpc_address address = {.worker = 0, .address = "nowhere"};
    struct error error = {0};
    answered = step;
    knows_nonce = step[STEP_SOURCE] < 0xe0;
    is_dialing = true;
    const enum status status = rpc_dial(dialer, &address, 1, MONOTIME_NEVER, &error);
    is_dialing = false;
    require(!is_here && rpc_reaches(dialer, 0) == (status == STATUS_OK));
    require(status == STATUS_OK ? is_whole && knows_nonce : error.status == status);
    dialer->sessions->table[0] = (struct session){0};
    dialer->sessions->socket_count = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (rpc == NULL) {
        peer_open_rpc("hello", NULL);
        open_dialer();
    }
    for (; size >= STEP_BYTES; data += STEP_BYTES, size -= STEP_BYTES) {
        if ((data[STEP_KIND] & 1) != 0)
            answer_hello(data);
        else
            say_hello(data);
    }
    for (unsigned i = 1; i < WORKERS; i++) {
        rpc_peer_died(rpc, (uint16_t)i, UINT32_MAX, "the input is over");
        rpc->sessions->table[i].was_live = false;
    }
    rpc->sessions->stranger_count = rpc->sessions->stranger_next = 0;
    rpc_turn(rpc, (struct monotime){1});
    return 0;
}
