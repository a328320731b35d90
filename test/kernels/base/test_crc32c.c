/* CRC-32C: the examples of RFC 3720, B.4, whose bytes of a CRC stand in the order of the wire, and the check
 * value of the catalogues. */
#include "kernels/base/crc32c.h"

#include "test/workplace.h"

#include <check.h>
#include <stdint.h>
#include <string.h>

START_TEST(the_checksums_are_those_of_rfc_3720)
{
    static const uint8_t read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0,    0, 0, 0, 0,
                                             0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                             0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    uint8_t bytes[32];
    memset(bytes, 0, sizeof bytes);
    ck_assert_uint_eq(crc32c(bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(crc32c(bytes, sizeof bytes), 0x62a8ab43);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    ck_assert_uint_eq(crc32c(bytes, sizeof bytes), 0x46dd794e);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(sizeof bytes - 1 - i);
    ck_assert_uint_eq(crc32c(bytes, sizeof bytes), 0x113fdb5c);
    ck_assert_uint_eq(crc32c(read_command, sizeof read_command), 0xd9963a56);
    ck_assert_uint_eq(crc32c("123456789", 9), 0xe3069283);
    ck_assert_uint_eq(crc32c("", 0), 0);
}
END_TEST

/* Against the definition, bit by bit: every length of a few words, at every place, cut in two everywhere. */
START_TEST(pieces_have_the_checksum_of_the_whole)
{
    uint8_t bytes[40];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(131 * i + 7);
    for (size_t at = 0; at < 8; at++) {
        uint32_t expected = UINT32_MAX;
        for (size_t count = 0; at + count < sizeof bytes; count++) {
            for (size_t cut = 0; cut <= count; cut++)
                ck_assert_uint_eq(crc32c_extend(crc32c(bytes + at, cut), bytes + at + cut, count - cut),
                                  ~expected);
            expected ^= bytes[at + count];
            for (int bit = 0; bit < 8; bit++)
                expected = expected >> 1 ^ (expected & 1 ? 0x82f63b78 : 0);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crc32c");
    TCase *tests = tcase_create("crc32c");
    tcase_add_test(tests, the_checksums_are_those_of_rfc_3720);
    tcase_add_test(tests, pieces_have_the_checksum_of_the_whole);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
