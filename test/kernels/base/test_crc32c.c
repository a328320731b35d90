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

int main(void)
{
    Suite *suite = suite_create("crc32c");
    TCase *tests = tcase_create("crc32c");
    tcase_add_test(tests, the_checksums_are_those_of_rfc_3720);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
