/* Requests about objects, contexts, parameters and optimizers, each of 8 bytes of a target's input. */
#ifndef TEST_FUZZ_FUZZ_REQUEST_H
#define TEST_FUZZ_FUZZ_REQUEST_H

#include "test/fuzz/fuzz_knot.h"

/* What a byte of a message says. */
enum part { KIND, OBJECT, NUMBER, CONTEXT, SHAPE, CHANGE, PLACE, OVER, PARTS };

enum { PAYLOAD_MAX = 4 << 20 }; /* the gradients of three inputs that come in pieces */

static uint8_t request_payload[PAYLOAD_MAX];

/* One message at a time. */
struct request {
    struct wire_header header;
    size_t payload_bytes; /* in request_payload */
};

/* `data` NULL: zeros. */
static void request_add(struct request *request, uint8_t dtype, uint32_t count, const void *data)
{
    struct wire_tensor *tensor = &request->header.tensors[request->header.tensor_count++];
    *tensor = (struct wire_tensor){.dtype = dtype, .rank = 1, .dims = {count}};
    const size_t bytes = wire_tensor_bytes(tensor);
    require(request->payload_bytes + bytes <= PAYLOAD_MAX);
    if (data != NULL)
        memcpy(request_payload + request->payload_bytes, data, bytes);
    else
        memset(request_payload + request->payload_bytes, 0, bytes);
    request->payload_bytes += bytes;
}

/* (rows, WIDTH) floats, or what the shape's other bits make of that. */
static void request_rows(struct request *request, uint8_t shape)
{
    static const float values[4 * WIDTH * 2] = {1, 2, 3};
    request_add(request, (uint8_t)(WIRE_F32 + (shape >> 4 & 3) * (shape >> 7)), 4 * WIDTH, values);
    struct wire_tensor *tensor = &request->header.tensors[request->header.tensor_count - 1];
    request->payload_bytes -= wire_tensor_bytes(tensor);
    tensor->rank = 2;
    tensor->dims[0] = 1 + (shape & 3);
    tensor->dims[1] = (shape & 4) != 0 ? WIDTH - 1 : WIDTH;
    if ((shape & 8) != 0)
        tensor->rank = 1, tensor->dims[0] = 1, tensor->dims[1] = 0;
    request->payload_bytes += wire_tensor_bytes(tensor);
}

/* Higher than any number of the peer's earlier session: contexts that its end has ended are not begun anew.
 */
static uint64_t context_number(uint8_t byte)
{
    const uint64_t root = byte < 0xf0 ? PEER : byte & 7;
    const uint64_t begun = root < WORKERS ? rpc->sessions->table[root].incarnation & 0xffff : 1;
    return byte == 0xff ? 0 : root << NUMBER_BITS | begun << 32 | (1u + (byte & 7));
}

static void ask_forward(struct request *request, const uint8_t *bytes)
{
    struct forward_flags flags = {
        .depth = 1, .trains = (bytes[SHAPE] & 0x40) == 0, .inputs = 1, .present = 1};
    const uint64_t numbers[2] = {bytes[NUMBER], bytes[OVER]};
    if ((bytes[NUMBER] & 0x40) != 0) {
        request_add(request, WIRE_U64, 2, numbers);
        flags.numbers = 2;
    }
    request_rows(request, bytes[SHAPE]);
    flags.wanted = flags.trains && (bytes[NUMBER] & 0x20) != 0;
    flags.scalars = (bytes[SHAPE] & 8) != 0;
    request->header.args[FORWARD_FUNCTION] = bytes[NUMBER] >> 2 & 7;
    request->header.args[FORWARD_CALL] = bytes[NUMBER] & 3;
    request->header.args[FORWARD_FLAGS] = flags_pack(&flags) ^ (uint64_t)bytes[CHANGE] << (bytes[PLACE] & 63);
}

static void ask_optimizer(struct request *request, const uint8_t *bytes, uint64_t parameter)
{
    const double lr = 0.1;
    const uint32_t count = 1 + (bytes[SHAPE] & 1), indices[2] = {0, 1}, participants[2] = {PEER, 2};
    const struct optimizer_words words = {
        .kind = bytes[SHAPE] >> 1 & 1, .lr = lr, .epsilon = lr, .async = bytes[SHAPE] >> 2 & 1};
    const uint64_t numbers[2] = {parameter, parameter + 1};
    request_add(request, WIRE_U64, OPTIMIZER_WORDS, &words);
    request_add(request, WIRE_U64, count, numbers);
    request_add(request, WIRE_U32, count, indices);
    request_add(request, WIRE_U32, 1 + (bytes[SHAPE] >> 3 & 1), participants);
}

static void ask_step(struct request *request, const uint8_t *bytes)
{
    const bool clips = (bytes[SHAPE] & 1) != 0;
    const struct step_words words = {.lr = 0.1, .max_norm = clips ? 1 : 0, .norm = clips ? 2 : 0};
    request_add(request, WIRE_U64, STEP_WORDS, &words);
}

/* A function of a parameter or an optimizer (both have three), or none that there is; with what it takes, or
 * with nothing. */
static void ask_object(struct request *request, const uint8_t *bytes)
{
    static const float values[WIDTH * WIDTH] = {1};
    const unsigned number = bytes[NUMBER] % 8, what = number < 6 ? number % 3 : number;
    request->header.args[1] = what;
    request->header.args[VALUES_WHICH] = bytes[CHANGE] % 5;
    if (bytes[SHAPE] >= 0xf0)
        return;
    if ((bytes[SHAPE] & 0x80) != 0)
        request_add(request, WIRE_F32, (bytes[SHAPE] & 1) != 0 ? WIDTH : WIDTH * WIDTH, values);
    else if (what == PARAMETER_OPTIMIZER && (bytes[SHAPE] & 0x40) != 0)
        ask_optimizer(request, bytes, request->header.args[0]);
    else if (what == LOCAL_STEP && (bytes[SHAPE] & 0x40) != 0)
        ask_step(request, bytes);
}

/* HOLDINGS is served by neither layer: it costs the session. */
static void request_fill(struct request *request, const uint8_t *bytes, uint64_t newest)
{
    static const uint16_t methods[] = {METHOD_REMOTE,   METHOD_FORWARD,     METHOD_FORWARD,
                                       METHOD_BACKWARD, METHOD_END_CONTEXT, METHOD_END_CONTEXT,
                                       METHOD_RELEASE,  METHOD_OBJECT,      METHOD_OBJECT,
                                       METHOD_OBJECT,   METHOD_OBJECT,      METHOD_PARAMETERS};
    struct wire_header *header = &request->header;
    header->method = methods[bytes[KIND] % (sizeof methods / sizeof methods[0])];
    header->context = context_number(bytes[CONTEXT]);
    header->args[0] = object_number(bytes[OBJECT], newest);
    if (header->method == METHOD_REMOTE) {
        header->args[0] = 0;
        header->args[1] = bytes[NUMBER];
        request_add(request, WIRE_U8, 1, "k");
    } else if (header->method == METHOD_FORWARD) {
        ask_forward(request, bytes);
    } else if (header->method == METHOD_BACKWARD) {
        header->args[BACKWARD_CALL] = bytes[NUMBER] & 3;
        header->args[BACKWARD_OUTPUTS] = 1 ^ (uint64_t)bytes[CHANGE] << (bytes[PLACE] & 63);
        request_rows(request, bytes[SHAPE]);
    } else if (header->method == METHOD_RELEASE) {
        header->args[1] = 1 + (bytes[NUMBER] & 1);
    } else if (header->method == METHOD_OBJECT) {
        ask_object(request, bytes);
    }
}

/* The input's next bytes change the beginning of the payload: at most `count` of them. */
static void request_change(struct request *request, size_t count, const uint8_t **data, size_t *size)
{
    size_t over = *size < count ? *size : count;
    over = over < request->payload_bytes ? over : request->payload_bytes;
    for (size_t i = 0; i < over; i++)
        request_payload[i] ^= (*data)[i];
    *data += over;
    *size -= over;
}

#endif
