/* The header's bytes: round trips, one header byte by byte, and every rule of the decoder broken alone. */
#include "test/workplace.h"
#include "worker/net/wire.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct wire_header hello(void)
{
    return (struct wire_header){.kind = WIRE_HELLO,
                                .role = WIRE_ROLE_OBSERVER,
                                .source = 1,
                                .incarnation = 3,
                                .generation = 2,
                                .payload_bytes = WIRE_HELLO_BYTES};
}

static struct wire_header request(void)
{
    return (struct wire_header){.kind = WIRE_REQUEST,
                                .method = METHOD_STEP,
                                .source = 0x0102,
                                .destination = 0x0304,
                                .incarnation = 0x05060708,
                                .generation = 0x090a0b0c,
                                .request = 0x1112131415161718,
                                .left_us = 0x2122232425262728,
                                .args = {1, UINT64_MAX, 3, 4},
                                .tensor_count = 2,
                                .tensors = {{WIRE_F32, 2, .dims = {3, 5}}, {WIRE_U8, 1, .dims = {7}}},
                                .payload_bytes = 67};
}

static struct wire_header failed_reply(void)
{
    return (struct wire_header){.kind = WIRE_REPLY,
                                .method = METHOD_ECHO,
                                .status = STATUS_CORRUPT,
                                .request = 9,
                                .payload_bytes = 12};
}

/* Its first tensor is lent. */
static struct wire_header lending(void)
{
    struct wire_header header = request();
    header.places[0] = 0x0123456789abc0 + 1;
    header.places[1] = 1;
    header.payload_bytes = 0;
    return header;
}

/* The last byte of 2 MiB and one; and the request behind such. */
static struct wire_header piece(void)
{
    return (struct wire_header){.kind = WIRE_PIECE,
                                .request = 3,
                                .args = {2 << 20, WIRE_REQUEST},
                                .payload_bytes = 1,
                                .body_bytes = (2 << 20) + 1};
}

static struct wire_header pieced(void)
{
    struct wire_header header = request();
    header.tensors[1].dims[0] = (2 << 20) - 60;
    header.payload_bytes = 0;
    header.body_bytes = 2 << 20;
    return header;
}

static void expect_equal(const struct wire_header *a, const struct wire_header *b)
{
    uint8_t x[WIRE_HEADER_BYTES], y[WIRE_HEADER_BYTES];
    wire_encode(a, x);
    wire_encode(b, y);
    ck_assert_mem_eq(x, y, sizeof x);
    ck_assert_uint_eq(a->request, b->request);
    ck_assert_uint_eq(a->left_us, b->left_us);
    ck_assert_uint_eq(a->tensors[0].dims[1], b->tensors[0].dims[1]);
    ck_assert_uint_eq(a->context, b->context);
    ck_assert_mem_eq(a->places, b->places, sizeof a->places);
    ck_assert_uint_eq(a->body_bytes, b->body_bytes);
}

static void expect_round_trip(const struct wire_header *header)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header back;
    struct error error = {0};
    memset(&back, 0xff, sizeof back);
    wire_encode(header, bytes);
    enum status status = wire_decode(&back, bytes, sizeof bytes, header->payload_bytes, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    expect_equal(header, &back);
}

START_TEST(test_round_trips)
{
    struct wire_header headers[14] = {hello(), request(), failed_reply()};
    headers[3] =
        (struct wire_header){.kind = WIRE_WELCOME, .role = WIRE_ROLE_AGENT, .payload_bytes = 1 << 20};
    headers[4] = (struct wire_header){.kind = WIRE_BYE, .payload_bytes = WIRE_ERROR_TEXT_MAX};
    headers[5] = request();
    headers[5].kind = WIRE_REPLY;
    headers[5].left_us = 0;
    headers[6] = request();
    headers[6].tensor_count = 1;
    memset(&headers[6].tensors[1], 0, sizeof headers[6].tensors[1]);
    headers[6].tensors[0] = (struct wire_tensor){WIRE_U32, 4, .dims = {1 << 6, 1 << 6, 1 << 6, 1}};
    headers[6].payload_bytes = 1 << 20;
    headers[7] = request();
    headers[7].tensor_count = 0;
    memset(headers[7].tensors, 0, sizeof headers[7].tensors);
    headers[7].payload_bytes = 0;
    headers[7].left_us = UINT64_MAX;
    headers[8] = request();
    headers[8].tensors[1] = (struct wire_tensor){WIRE_U64, 2, .dims = {2, 4}};
    headers[8].payload_bytes = 60 + 64;
    headers[9] = hello();
    headers[9].role = WIRE_ROLE_TRAINER;
    headers[10] = request();
    headers[10].context = UINT64_C(0x8000000000000001);
    headers[11] = lending();
    headers[12] = piece();
    headers[13] = pieced();
    for (unsigned i = 0; i < 14; i++)
        expect_round_trip(&headers[i]);
}
END_TEST

/* Written by hand from PROTOCOL.md, so that encoder and decoder cannot agree on a mistake. */
START_TEST(test_golden_bytes)
{
    static const uint8_t golden[WIRE_HEADER_BYTES] = {
        0x43, 0x4f, 0x41, 0x4c, 6,    0,    3,    0,    3, 0, 0, 2, 0x02, 0x01, 0x04, 0x03, /* magic ..
                                                                                               destination */
        0x08, 0x07, 0x06, 0x05, 0x0c, 0x0b, 0x0a, 0x09, /* incarnation, generation */
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* request */
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* time left */
        1,    0,    0,    0,    0,    0,    0,    0,    /* args */
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* */
        3,    0,    0,    0,    0,    0,    0,    0,    /* */
        4,    0,    0,    0,    0,    0,    0,    0,    /* */
        0,    0,    0,    0,    0,    0,    0,    0,    /* context */
        67,   0,    0,    0,    0,    0,    0,    0,    /* payload and body bytes */
        1,    2,    0,    0,    3,    0,    0,    0,    5, 0, 0, 0, 0,    0,    0,    0,    0,
        0,    0,    0,                               /* f32[3,5] */
        3,    1,    0,    0,    7,    0,    0,    0, /* u8[7], and zero to the end */
    };
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = request(), back;
    wire_encode(&header, bytes);
    ck_assert_mem_eq(bytes, golden, sizeof bytes);
    ck_assert_int_eq(wire_decode(&back, golden, sizeof golden, 67, NULL), STATUS_OK);
    expect_equal(&header, &back);
}
END_TEST

START_TEST(test_protocol_example)
{
    static const uint8_t golden[WIRE_HEADER_BYTES] = {
        0x43, 0x4f, 0x41, 0x4c, 6, 0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, [80] = 64};
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = hello();
    wire_encode(&header, bytes);
    ck_assert_mem_eq(bytes, golden, sizeof bytes);
}
END_TEST

START_TEST(test_tensor_bytes)
{
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_F32, 1, .dims = {1}}), 4);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_U32, 1, .dims = {1}}), 4);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_U8, 1, .dims = {1}}), 1);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_U64, 1, .dims = {1}}), 8);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_BF16, 1, .dims = {1}}), 2);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_F32, 3, .dims = {2, 3, 5}}), 120);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_U8, 1, .dims = {9}}), 9);
    ck_assert_uint_eq(wire_tensor_bytes(&(struct wire_tensor){WIRE_U64, 2, .dims = {3, 2}}), 48);
}
END_TEST

/* One byte of a good header set wrong, and the word that the decoder must say of it. */
struct broken_byte {
    struct wire_header (*header)(void);
    size_t at;
    uint8_t value;
    const char *says;
};

static struct wire_header bye(void)
{
    return (struct wire_header){.kind = WIRE_BYE, .source = 2};
}

static struct wire_header welcome(void)
{
    return (struct wire_header){
        .kind = WIRE_WELCOME, .role = WIRE_ROLE_AGENT, .payload_bytes = WIRE_PROOF_BYTES};
}

static const struct broken_byte broken_bytes[] = {
    {hello, 0, 'X', "magic"},
    {hello, 3, 0, "magic"},
    {hello, 4, 1, "version"},
    {hello, 5, 1, "version"},
    {hello, 6, 0, "kind"},
    {hello, 6, 7, "kind"},
    {hello, 6, 255, "kind"},
    {hello, 8, 1, "method"},
    {request, 8, 0, "method"},
    {request, 8, METHOD_COUNT, "method"},
    {request, 9, 1, "method"},
    {failed_reply, 8, 0, "method"},
    {request, 7, 2, "status"},
    {failed_reply, 7, STATUS_AGAIN, "status"},
    {failed_reply, 7, 14, "status"},
    {bye, 7, 6, "status"},
    {hello, 10, 0, "role"},
    {hello, 10, 3, "role"},
    {request, 10, 2, "role"},
    {bye, 10, 1, "role"},
    {hello, 24, 1, "request id"},
    {bye, 31, 1, "request id"},
    {hello, 32, 1, "time left"},
    {failed_reply, 39, 1, "time left"},
    {hello, 40, 1, "args"},
    {failed_reply, 71, 1, "args"},
    {bye, 64, 1, "args"},
    {hello, 72, 1, "context"},
    {failed_reply, 79, 1, "context"},
    {piece, 72, 1, "context"},
    {request, 84, 1, "in pieces"},
    {request, 87, 0x20, "in pieces"},
    {hello, 87, 1, "a body"},
    {failed_reply, 84, 1, "a body"},
    {request, 90, 1, "reserved"},
    {request, 151, 1, "reserved"},
    {request, 168, 1, "the tensors need"},
    {request, 168, 2, "no multiple of 64"},
    {request, 168, 64, "no multiple of 64"},
    {request, 184, 1, "beyond the count"},
    {request, 199, 1, "beyond the count"},
    {hello, 168, 1, "beyond the count"},
    {lending, 168, 0, "no multiple of 64"},
    {lending, 176, 0, "the tensors need"},
    {piece, 8, 1, "method"},
    {piece, 7, 2, "status"},
    {piece, 32, 1, "time left"},
    {piece, 24, 0, "request id"},
    {piece, 11, 1, "tensors"},
    {piece, 40, 2, "a piece of"},
    {piece, 47, 0x80, "a piece of"},
    {piece, 48, WIRE_HELLO, "args of a piece"},
    {piece, 55, 1, "args of a piece"},
    {piece, 56, 1, "args of a piece"},
    {piece, 71, 1, "args of a piece"},
    {piece, 86, 0, "a piece of a body"},
    {piece, 87, 0x21, "a piece of a body"},
    {pieced, 80, 1, "in pieces"},
    {pieced, 84, 1, "in pieces"},
    {pieced, 86, 0, "the tensors need"},
    {hello, 11, 1, "tensors"},
    {failed_reply, 11, 1, "tensors"},
    {request, 11, 5, "tensors"},
    {request, 11, 255, "tensors"},
    {request, 88, 0, "dtype"},
    {request, 88, 6, "dtype"},
    {request, 88, 255, "dtype"},
    {request, 88, WIRE_U64, "the tensors need"},
    {request, 89, 0, "rank"},
    {request, 89, 5, "rank"},
    {request, 89, 1, "beyond its rank"},
    {request, 92, 0, "dim 0 is 0"},
    {request, 89, 3, "dim 2 is 0"},
    {request, 100, 1, "beyond its rank"},
    {request, 95, 0x7f, "more than"},
    {request, 95, 0x02, "more than"},
    {request, 128, 1, "beyond the count"},
    {request, 132, 1, "beyond the count"},
    {request, 164, 1, "beyond the count"},
    {request, 11, 1, "beyond the count"},
    {request, 92, 4, "the tensors need"},
    {request, 80, 66, "the tensors need"},
    {request, 83, 1, "payload"},
    {request, 82, 17, "payload"},
    {failed_reply, 81, 2, "text"},
    {bye, 81, 2, "text"},
    {hello, 80, 63, "payload of 63 bytes in a HELLO"},
    {welcome, 80, 31, "payload of 31 bytes in a WELCOME"},
    {failed_reply, 80, 13, "announced"},
};

START_TEST(test_broken_byte)
{
    const struct broken_byte *broken = &broken_bytes[_i];
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = broken->header(), back;
    struct error error = {0};
    wire_encode(&header, bytes);
    ck_assert_uint_ne(bytes[broken->at], broken->value);
    bytes[broken->at] = broken->value;
    ck_assert_int_eq(wire_decode(&back, bytes, sizeof bytes, header.payload_bytes, &error), STATUS_INVALID);
    ck_assert_int_eq(error.status, STATUS_INVALID);
    ck_assert_msg(strstr(error.text, broken->says) != NULL, "byte %zu: \"%s\" does not say \"%s\"",
                  broken->at, error.text, broken->says);
}
END_TEST

START_TEST(test_request_id_zero)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = request(), back;
    struct error error = {0};
    wire_encode(&header, bytes);
    memset(bytes + 24, 0, 8);
    ck_assert_int_eq(wire_decode(&back, bytes, sizeof bytes, 67, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "request id"));
}
END_TEST

START_TEST(test_lengths)
{
    uint8_t bytes[WIRE_HEADER_BYTES + 1] = {0};
    struct wire_header header = request(), back;
    struct error error = {0};
    wire_encode(&header, bytes);
    for (size_t length = 0; length <= sizeof bytes; length++) {
        uint8_t *exact = malloc(length + 1);
        memcpy(exact, bytes, length);
        enum status status = wire_decode(&back, exact, length, 67, &error);
        ck_assert_int_eq(status, length == WIRE_HEADER_BYTES ? STATUS_OK : STATUS_INVALID);
        free(exact);
    }
    ck_assert_int_eq(wire_decode(&back, bytes, WIRE_HEADER_BYTES, 66, &error), STATUS_INVALID);
    ck_assert_int_eq(wire_decode(&back, bytes, WIRE_HEADER_BYTES, 68, &error), STATUS_INVALID);
    ck_assert_int_eq(wire_decode(&back, bytes, WIRE_HEADER_BYTES, 67, NULL), STATUS_OK);
}
END_TEST

/* Dims whose product is small only because it wraps around 64 bits. */
START_TEST(test_product_overflow)
{
    struct wire_header header = request();
    struct error error = {0};
    header.tensor_count = 1;
    memset(&header.tensors[1], 0, sizeof header.tensors[1]);
    header.tensors[0] = (struct wire_tensor){WIRE_F32, 4, .dims = {1u << 31, 1u << 31, 1u << 2, 1}};
    header.payload_bytes = 0;
    ck_assert_int_eq(wire_check(&header, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "more than"));
    header.tensors[0] = (struct wire_tensor){WIRE_F32, 2, .dims = {UINT32_MAX, UINT32_MAX}};
    ck_assert_int_eq(wire_check(&header, &error), STATUS_INVALID);
}
END_TEST

/* Four tensors, each within the limit, that are together over it. */
START_TEST(test_sum_over_the_limit)
{
    struct wire_header header = request();
    struct error error = {0};
    header.tensor_count = 4;
    for (unsigned i = 0; i < 4; i++)
        header.tensors[i] = (struct wire_tensor){WIRE_U8, 1, .dims = {1u << 19}};
    header.payload_bytes = 1u << 21;
    ck_assert_int_eq(wire_check(&header, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "payload"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *tcase = tcase_create("wire");
    tcase_add_test(tcase, test_round_trips);
    tcase_add_test(tcase, test_golden_bytes);
    tcase_add_test(tcase, test_protocol_example);
    tcase_add_test(tcase, test_tensor_bytes);
    tcase_add_loop_test(tcase, test_broken_byte, 0, (int)(sizeof broken_bytes / sizeof *broken_bytes));
    tcase_add_test(tcase, test_request_id_zero);
    tcase_add_test(tcase, test_lengths);
    tcase_add_test(tcase, test_product_overflow);
    tcase_add_test(tcase, test_sum_over_the_limit);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
