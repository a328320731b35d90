/* Two peers that answer, in a worker's place of sockets: what it sends goes into a list, and what it receives
 * is made of that list and of the input. A peer is honest, and answers the oldest request that is open, but
 * where the input has a *message*: 8 bytes (enum saying), the first of which has its highest bit set, which
 * says what comes instead. When the worker waits and nothing would come any more, both peers say BYE.
 *
 * fuzz_endpoint.h hands it on. */
#ifndef TEST_FUZZ_FUZZ_ANSWER_H
#define TEST_FUZZ_FUZZ_ANSWER_H

#include "test/fuzz/fuzz_request.h"
#include "worker/net/proof.h"

enum {
    PEERS = 2, /* workers 1 and 2 */
    ASKED_MAX = 64,
    ASKED_BYTES = 192,
    MADE_MAX = 16,
    OBJECT_OWN = 0x10, /* in a request's byte */
    PARAMETERS_MANY = REFERENCES_MAX + 8,
    LENT_BYTES = 4 << 20,
    ROWS_LARGE = 8192,     /* of WIDTH floats: more than RPC_LEND_BYTES */
    ROWS_IN_PIECES = 87500 /* and more than a payload */
};

/* What a byte of a message says. */
enum saying { SAY_WHAT, SAY_WHICH, SAY_TENSOR, SAY_DIMS, SAY_CHANGE, SAY_WHERE, SAY_LENT, SAY_OVER, SAYINGS };

enum what {
    SAY_ANSWER, /* with what the other bytes change */
    SAY_FAILURE,
    SAY_AGAIN, /* of any request, whether it has been answered or not */
    SAY_OTHER, /* to another request, or another method's */
    SAY_DAMAGED,
    SAY_REQUEST, /* of its own: the next bytes, as for fuzz_dist */
    SAY_BYE,
    SAY_LATER, /* nothing comes in this look */
    SAY_NEVER, /* the answer gets lost */
    SAY_SKIP,  /* a body's piece does */
    SAY_FULL,  /* its queue is, or is not any more */
    SAY_CUT,   /* it can be sent nothing any more */
    SAY_MALFORMED,
    SAY_HELLO, /* a later incarnation of it is here */
    SAY_MANY,  /* grants more than the worker can hold */
    SAY_WHATS
};

/* What the lower bits of a number that a peer gives to an object say it is. */
enum made_kind { MADE_KNOT, MADE_PARAMETER, MADE_OPTIMIZER, MADE_KINDS = 4 };

struct asked {
    struct wire_header header;
    uint8_t beginning[ASKED_BYTES]; /* of the payload */
    bool is_open;
};

struct made { /* an optimizer's parts */
    uint64_t number;
    uint32_t indices[4];
    uint32_t count;
};

static const uint8_t *input;
static size_t input_left;
static struct asked asked[ASKED_MAX];
static unsigned asked_count;
static struct made made[MADE_MAX];
static unsigned made_count;
static uint64_t numbers_given;
static uint32_t connections;
static uint16_t greeter = 1; /* the next peer that says HELLO at the beginning of an input */
static bool is_full[1 + PEERS], is_cut[1 + PEERS], all_leave;
static unsigned idle_looks;

/* An answer whose body is on its way in pieces. */
static struct {
    struct wire_header header;
    uint32_t offset;
    uint8_t bytes[PAYLOAD_MAX];
} leaving;

static void drop_record(void)
{
    input += SAYINGS;
    input_left -= SAYINGS;
}

/* The next 8 bytes, when they are a message, or when they are none. NULL otherwise. */
static const uint8_t *next_record(bool is_message)
{
    const uint8_t *record = input;
    if (input_left < SAYINGS || (record[0] >= 0x80) != is_message)
        return NULL;
    drop_record();
    return record;
}

/* ---- what was asked ---- */

static void note_asked(const struct endpoint_message *message)
{
    struct asked *next = &asked[asked_count % ASKED_MAX];
    struct wire_header header;
    require(wire_decode(&header, message->header, message->header_bytes, message->payload_bytes, NULL) ==
            STATUS_OK);
    if (header.kind != WIRE_REQUEST)
        return;
    *next = (struct asked){.header = header, .is_open = true};
    const size_t kept = message->payload_bytes < ASKED_BYTES ? message->payload_bytes : ASKED_BYTES;
    if (kept > 0)
        memcpy(next->beginning, message->payload, kept);
    asked_count++;
}

/* A session's requests end with it. */
static bool is_open(const struct asked *request)
{
    const uint16_t worker = request->header.destination;
    return request->is_open && rpc_reaches(rpc, worker) &&
           request->header.request <= rpc->peers[worker].last_request;
}

/* The `index`th of those, from the oldest on; NULL: there are not so many. */
static struct asked *find_open(unsigned index)
{
    for (unsigned i = asked_count < ASKED_MAX ? 0 : asked_count - ASKED_MAX; i < asked_count; i++)
        if (is_open(&asked[i % ASKED_MAX]) && index-- == 0)
            return &asked[i % ASKED_MAX];
    return NULL;
}

/* The call of which a backward is asked. */
static const struct asked *find_forward(const struct wire_header *backward)
{
    for (unsigned i = 0; i < ASKED_MAX; i++) {
        const struct wire_header *header = &asked[i].header;
        if (header->method == METHOD_FORWARD && header->context == backward->context &&
            header->destination == backward->destination &&
            header->args[FORWARD_CALL] == backward->args[BACKWARD_CALL])
            return &asked[i];
    }
    return NULL;
}

/* ---- what an honest peer answers ---- */

static uint64_t new_number(uint16_t worker, enum made_kind kind)
{
    (void)worker;
    return ++numbers_given * MADE_KINDS + kind;
}

static void add_as(struct request *answer, const struct wire_tensor *like, uint8_t dtype)
{
    const uint32_t rows = like->dims[0];
    const struct wire_tensor element = {.dtype = like->dtype};
    request_add(answer, dtype, (uint32_t)(wire_tensor_bytes(like) / wire_tensor_bytes(&element)), NULL);
    struct wire_tensor *tensor = &answer->header.tensors[answer->header.tensor_count - 1];
    memcpy(tensor->dims, like->dims, sizeof tensor->dims);
    tensor->rank = like->rank;
    require(rows > 0);
}

/* 2: two outputs; 3: a scalar; 4: indices; 5: none; 6: one that comes in pieces; else one like the input. */
static void answer_forward(struct request *answer, const struct asked *request)
{
    static const struct wire_tensor rows = {WIRE_F32, 2, .dims = {2, WIDTH}},
                                    many = {WIRE_F32, 2, .dims = {ROWS_IN_PIECES, WIDTH}},
                                    one = {WIRE_F32, 1, .dims = {1}};
    const struct wire_header *header = &request->header;
    const uint64_t flags = header->args[FORWARD_FLAGS], function = header->args[FORWARD_FUNCTION];
    const unsigned first = flags >> 32 != 0;
    const bool has_input = first < header->tensor_count;
    const struct wire_tensor *like = has_input ? &header->tensors[first] : &rows;
    answer->header.args[ANSWER_KEPT] = flags >> 8 & 1;
    answer->header.args[ANSWER_SCALARS] = function == 3;
    if (function == 2)
        add_as(answer, &rows, WIRE_F32);
    if (function == 3)
        add_as(answer, &one, WIRE_F32);
    else if (function == 6)
        add_as(answer, &many, WIRE_F32);
    else if (function != 5)
        add_as(answer, like, function == 4 ? WIRE_U32 : WIRE_F32);
}

static void answer_backward(struct request *answer, const struct asked *request)
{
    const struct asked *forward = find_forward(&request->header);
    if (forward == NULL)
        return;
    const uint64_t flags = forward->header.args[FORWARD_FLAGS];
    unsigned at = flags >> 32 != 0;
    for (unsigned i = 0; i < DIST_INPUTS_MAX; i++) {
        if (flags >> (20 + i) & 1) {
            add_as(answer, &forward->header.tensors[at], WIRE_F32);
            answer->header.args[GRADIENT_INPUTS] |= (uint64_t)1 << i;
        }
        at += flags >> (16 + i) & 1;
    }
}

/* Makes an optimizer of a request's indices. */
static uint64_t make_part(const struct asked *request)
{
    struct made *part = &made[made_count++ % MADE_MAX];
    const struct wire_header *header = &request->header;
    const uint32_t count = header->tensor_count > 1 ? header->tensors[1].dims[0] : 0;
    *part = (struct made){.number = new_number(header->destination, MADE_OPTIMIZER)};
    part->count = count < 4 ? count : 4;
    if (sizeof(struct optimizer_words) + count * 12 <= ASKED_BYTES)
        memcpy(part->indices, request->beginning + sizeof(struct optimizer_words) + count * sizeof(uint64_t),
               part->count * sizeof part->indices[0]);
    return part->number;
}

static void answer_parameter(struct request *answer, const struct asked *request)
{
    const uint64_t function = request->header.args[1];
    if (function == PARAMETER_GET)
        request_add(answer, WIRE_F32, WIDTH * WIDTH, NULL);
    else if (function == PARAMETER_OPTIMIZER)
        answer->header.args[0] = make_part(request);
}

static void answer_optimizer(struct request *answer, const struct asked *request)
{
    const struct made *part = &made[0];
    for (unsigned i = 0; i < MADE_MAX; i++)
        if (made[i].number == request->header.args[0])
            part = &made[i];
    const uint32_t count = part->count > 0 ? part->count : 1;
    if (request->header.args[1] == LOCAL_NORM) {
        request_add(answer, WIRE_U64, count, NULL);
        request_add(answer, WIRE_U32, count, part->indices);
    }
}

static void answer_parameters(struct request *answer, uint16_t worker, uint32_t count)
{
    uint64_t numbers[PARAMETERS_MANY];
    for (uint32_t i = 0; i < count; i++)
        numbers[i] = new_number(worker, MADE_PARAMETER);
    request_add(answer, WIRE_U64, count, numbers);
}

static void answer_claim(struct request *answer, enum made_kind kind)
{
    const char *name = kind == MADE_PARAMETER   ? dist_parameter_class.name
                       : kind == MADE_OPTIMIZER ? dist_optimizer_class.name
                                                : knot_class.name;
    request_add(answer, WIRE_U8, (uint32_t)strlen(name), name);
}

static void answer_honestly(struct request *answer, const struct asked *request)
{
    const struct wire_header *header = &request->header;
    const enum made_kind kind = header->args[0] % MADE_KINDS;
    *answer = (struct request){.header = {.kind = WIRE_REPLY,
                                          .method = header->method,
                                          .request = header->request,
                                          .destination = SELF,
                                          .context = header->context}};
    if (header->method == METHOD_REMOTE)
        answer->header.args[0] = new_number(header->destination, MADE_KNOT);
    else if (header->method == METHOD_CLAIM)
        answer_claim(answer, kind);
    else if (header->method == METHOD_FORWARD)
        answer_forward(answer, request);
    else if (header->method == METHOD_BACKWARD)
        answer_backward(answer, request);
    else if (header->method == METHOD_PARAMETERS)
        answer_parameters(answer, header->destination, 2);
    else if (header->method == METHOD_OBJECT && kind == MADE_PARAMETER)
        answer_parameter(answer, request);
    else if (header->method == METHOD_OBJECT && kind == MADE_OPTIMIZER)
        answer_optimizer(answer, request);
}

/* ---- what the input makes of it ---- */

static void change_count(struct request *answer, uint8_t byte)
{
    struct wire_header *header = &answer->header;
    if ((byte & 3) == 1 && header->tensor_count > 0)
        header->tensors[--header->tensor_count] = (struct wire_tensor){0};
    else if ((byte & 3) == 2 && header->tensor_count < WIRE_TENSORS_MAX)
        request_add(answer, WIRE_F32, 1, NULL);
    for (; (byte & 3) == 3 && header->tensor_count > 0; header->tensor_count--)
        header->tensors[header->tensor_count - 1] = (struct wire_tensor){0};
}

/* What has become longer is zeros. */
static void change_tensor(struct request *answer, const uint8_t *bytes)
{
    static const uint32_t sizes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 255, 256, 257, 4096, UINT32_MAX};
    const unsigned which = bytes[SAY_TENSOR] >> 2 & 3;
    struct wire_tensor *tensor = &answer->header.tensors[which];
    if (which >= answer->header.tensor_count)
        return;
    if ((bytes[SAY_TENSOR] & 0x10) != 0)
        tensor->dtype = 1 + (bytes[SAY_TENSOR] >> 5 & 3);
    if ((bytes[SAY_DIMS] & 3) == 1 && tensor->rank < WIRE_RANK_MAX)
        tensor->dims[tensor->rank++] = 1;
    else if ((bytes[SAY_DIMS] & 3) == 2 && tensor->rank > 1)
        tensor->dims[--tensor->rank] = 0;
    if (bytes[SAY_DIMS] >> 4 != 0)
        tensor->dims[bytes[SAY_DIMS] >> 2 & 3] = sizes[bytes[SAY_DIMS] >> 4];
}

static void lend(struct request *answer, uint8_t byte)
{
    const uint64_t offset = byte >= 0x80 ? LENT_BYTES - 64 : (byte >> 3) * 64u;
    for (unsigned i = 0; i < answer->header.tensor_count && i < 3; i++)
        if ((byte >> i & 1) != 0)
            answer->header.places[i] = offset + 1;
}

/* False: nobody could send that. */
static bool measure(struct request *answer)
{
    uint64_t sum = 0;
    answer->header.payload_bytes = 0;
    if (wire_check_tensors(&answer->header, &sum, NULL) != STATUS_OK)
        return false;
    for (unsigned i = 0; i < answer->header.tensor_count; i++)
        sum -= answer->header.places[i] != 0 ? wire_tensor_bytes(&answer->header.tensors[i]) : 0;
    if (sum > PAYLOAD_MAX)
        return false;
    if (sum > answer->payload_bytes)
        memset(request_payload + answer->payload_bytes, 0, sum - answer->payload_bytes);
    answer->payload_bytes = sum;
    return true;
}

static bool send_as(struct endpoint_message *out, uint16_t worker, struct wire_header *header,
                    const void *payload)
{
    return peer_write(out, worker, &rpc->sessions->table[worker], header, payload);
}

/* Sends it, or the first piece of it. */
static bool send_answer_of(uint16_t worker, struct request *answer, struct endpoint_message *out)
{
    if (answer->payload_bytes <= WIRE_PAYLOAD_BYTES_MAX)
        return send_as(out, worker, &answer->header, request_payload);
    leaving.header = answer->header;
    leaving.header.source = worker;
    leaving.header.body_bytes = (uint32_t)answer->payload_bytes;
    leaving.offset = 0;
    memcpy(leaving.bytes, request_payload, answer->payload_bytes);
    return false;
}

/* The next piece of a body, or, behind the last, the message that it belongs to. */
static bool send_leaving(struct endpoint_message *out)
{
    const uint16_t worker = leaving.header.source;
    const uint32_t left_bytes = leaving.header.body_bytes - leaving.offset;
    struct wire_header piece = {.kind = WIRE_PIECE,
                                .request = leaving.header.request,
                                .args = {[PIECE_OFFSET] = leaving.offset, [PIECE_KIND] = WIRE_REPLY},
                                .body_bytes = leaving.header.body_bytes};
    if (left_bytes == 0) {
        leaving.header.payload_bytes = 0;
        const bool is_sent = send_as(out, worker, &leaving.header, leaving.bytes);
        leaving.header.body_bytes = 0;
        return is_sent;
    }
    piece.payload_bytes = left_bytes < WIRE_PAYLOAD_BYTES_MAX ? left_bytes : WIRE_PAYLOAD_BYTES_MAX;
    require(send_as(out, worker, &piece, leaving.bytes + leaving.offset));
    leaving.offset += piece.payload_bytes;
    return true;
}

static bool say_answer(const uint8_t *bytes, struct asked *request, struct endpoint_message *out)
{
    struct request answer;
    if (request == NULL)
        return false;
    answer_honestly(&answer, request);
    struct wire_header *header = &answer.header;
    change_count(&answer, bytes[SAY_TENSOR]);
    change_tensor(&answer, bytes);
    lend(&answer, bytes[SAY_LENT]);
    if (bytes[SAY_WHAT] % 0x20 % SAY_WHATS == SAY_OTHER) {
        header->request ^= bytes[SAY_CHANGE];
        header->method = 1 + (header->method + bytes[SAY_WHERE]) % (METHOD_COUNT - 1);
    } else {
        header->args[bytes[SAY_WHERE] >> 6] ^= (uint64_t)bytes[SAY_CHANGE] << (bytes[SAY_WHERE] & 63);
    }
    if (!measure(&answer))
        return false;
    request_change(&answer, bytes[SAY_OVER], &input, &input_left);
    return send_answer_of(request->header.destination, &answer, out);
}

/* Whatever was asked: only to PARAMETERS it is an answer. */
static bool say_many(const struct asked *request, struct endpoint_message *out)
{
    struct request answer = {0};
    if (request == NULL)
        return false;
    answer.header = (struct wire_header){
        .kind = WIRE_REPLY, .method = request->header.method, .request = request->header.request};
    answer_parameters(&answer, request->header.destination, PARAMETERS_MANY);
    return send_as(out, request->header.destination, &answer.header, request_payload);
}

static bool say_failure(const uint8_t *bytes, const struct asked *request, struct endpoint_message *out)
{
    struct wire_header header = {.kind = WIRE_REPLY, .status = (uint8_t)(STATUS_INVALID + bytes[SAY_TENSOR])};
    if (request == NULL)
        return false;
    header.method = request->header.method;
    header.request = request->header.request;
    header.payload_bytes = bytes[SAY_DIMS];
    memset(request_payload, bytes[SAY_CHANGE], bytes[SAY_DIMS]);
    return send_as(out, request->header.destination, &header, request_payload);
}

static bool say_damaged(const uint8_t *bytes, struct asked *request, struct endpoint_message *out)
{
    static const uint8_t as_it_is[SAYINGS] = {0};
    uint8_t header[WIRE_HEADER_BYTES];
    struct endpoint_message whole;
    if (!say_answer(as_it_is, request, &whole))
        return false;
    memcpy(header, whole.header, sizeof header);
    header[bytes[SAY_WHERE] % WIRE_HEADER_BYTES] ^= bytes[SAY_CHANGE];
    require(endpoint_prepare(out, whole.peer, header, sizeof header, whole.payload_bytes) == STATUS_OK);
    if (whole.payload_bytes > 0)
        memcpy(out->payload, whole.payload, whole.payload_bytes);
    endpoint_release(&whole);
    return true;
}

/* In one of the worker's own contexts as often as in another's. */
static bool say_request(uint16_t worker, struct endpoint_message *out)
{
    const uint8_t *bytes = input;
    struct request request = {0};
    if (input_left < PARTS)
        return false;
    input += PARTS;
    input_left -= PARTS;
    request_fill(&request, bytes, peer_newest_object(rrefs));
    if ((bytes[CONTEXT] & 8) != 0)
        request.header.context = dist->next_context - 1 - (bytes[CONTEXT] & 3);
    if (bytes[KIND] >= 0xe0) {
        request = (struct request){.header = {.method = METHOD_SHARE}};
        request.header.args[0] = new_number(2, bytes[NUMBER] % MADE_KINDS);
        request.header.args[1] = bytes[SHAPE] % WORKERS;
    } else if (bytes[KIND] >= 0xc0) {
        request = (struct request){.header = {.method = METHOD_CLAIM}};
        request.header.args[0] = object_number(bytes[OBJECT], peer_newest_object(rrefs));
        request.header.args[1] = bytes[SHAPE] % WORKERS;
    }
    if (bytes[OBJECT] == OBJECT_OWN)
        request.header.args[0] = rref_object(own);
    request_change(&request, bytes[OVER], &input, &input_left);
    peer_ask(&request.header);
    return send_as(out, worker, &request.header, request_payload);
}

static bool say_hello(uint16_t worker, struct endpoint_message *out)
{
    incarnation++;
    connections++;
    struct session later = {.incarnation = incarnation, .peer = CONNECTION + connections};
    static const uint8_t room[WIRE_HELLO_BYTES];
    struct wire_header hello = {
        .kind = WIRE_HELLO, .role = roster[worker], .destination = SELF, .payload_bytes = sizeof room};
    is_cut[worker] = false;
    if (!peer_write(out, worker, &later, &hello, room))
        return false;
    const struct proof_subject greeting = {.header = out->header, .nonce = out->payload};
    proof_make(&greeting, rpc->config.secret, out->payload + WIRE_NONCE_BYTES);
    return true;
}

static bool say_bye(uint16_t worker, struct endpoint_message *out)
{
    struct wire_header bye = {.kind = WIRE_BYE, .payload_bytes = 3};
    return rpc_reaches(rpc, worker) && send_as(out, worker, &bye, "bye");
}

/* What a message of the input brings: something to receive, or a change in how things are. */
static enum status say(const uint8_t *bytes, struct endpoint_message *out)
{
    const uint16_t worker = 1 + (bytes[SAY_WHAT] >> 5 & 1);
    struct asked *request = find_open(bytes[SAY_WHICH] % 8);
    const enum what what = bytes[SAY_WHAT] % 0x20 % SAY_WHATS;
    bool is_sent = false;
    if (what == SAY_ANSWER || what == SAY_OTHER)
        is_sent = say_answer(bytes, request, out);
    else if (what == SAY_AGAIN)
        is_sent = say_answer(bytes, asked_count > 0 ? &asked[bytes[SAY_WHICH] % ASKED_MAX] : NULL, out);
    else if (what == SAY_FAILURE)
        is_sent = say_failure(bytes, request, out);
    else if (what == SAY_MANY)
        is_sent = say_many(request, out);
    else if (what == SAY_DAMAGED)
        is_sent = say_damaged(bytes, request, out);
    else if (what == SAY_REQUEST)
        is_sent = say_request(worker, out);
    else if (what == SAY_BYE)
        is_sent = say_bye(worker, out);
    else if (what == SAY_HELLO)
        is_sent = say_hello(worker, out);
    else if (what == SAY_SKIP && leaving.offset < leaving.header.body_bytes)
        leaving.offset = leaving.header.body_bytes;
    else if (what == SAY_FULL)
        is_full[worker] = !is_full[worker];
    else if (what == SAY_CUT)
        is_cut[worker] = true;
    if (request != NULL &&
        (what == SAY_ANSWER || what == SAY_FAILURE || what == SAY_MANY || what == SAY_NEVER))
        request->is_open = false;
    if (what == SAY_MALFORMED)
        out->peer = rpc->sessions->table[worker].peer;
    return what == SAY_MALFORMED ? STATUS_INVALID : is_sent ? STATUS_OK : STATUS_AGAIN;
}

static bool say_honestly(struct endpoint_message *out)
{
    static const uint8_t as_it_is[SAYINGS] = {0};
    if (leaving.header.body_bytes > 0)
        return send_leaving(out);
    struct asked *request = find_open(0);
    if (request == NULL)
        return false;
    request->is_open = false;
    return say_answer(as_it_is, request, out) || (leaving.header.body_bytes > 0 && send_leaving(out));
}

#endif
