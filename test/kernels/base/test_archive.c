/* Saved members come back, also into an array of another length. A cut archive is refused. */
#include "kernels/base/archive.h"
#include "test/workplace.h"

#include <check.h>
#include <string.h>

struct column {
    uint32_t value, other;
};

static bool move_all(struct archive *archive, uint64_t *head, struct column *columns, uint64_t count)
{
    uint64_t saved = count;
    return archive_move(archive, head, sizeof *head) && archive_move(archive, &saved, sizeof saved) &&
           archive_move_array(archive, columns, sizeof columns->value, sizeof *columns, count, saved);
}

START_TEST(members_come_back)
{
    uint64_t head = 7, again = 0;
    struct column columns[3] = {{1, 9}, {2, 9}, {3, 9}};
    char bytes[64];
    struct archive measured = {0}, saved = {.out = bytes};
    ck_assert(move_all(&measured, &head, columns, 3) && move_all(&saved, &head, columns, 3));
    ck_assert_uint_eq(measured.moved, 2 * sizeof head + 3 * sizeof columns->value);
    ck_assert_uint_eq(saved.moved, measured.moved);
    ck_assert_ptr_eq(saved.out, bytes + saved.moved);
    for (uint64_t count = 2; count <= 4; count++) {
        struct column found[4] = {{5, 8}, {5, 8}, {5, 8}, {5, 8}};
        struct archive loaded = {.from = bytes, .left = sizeof bytes};
        ck_assert(move_all(&loaded, &again, found, count));
        ck_assert_uint_eq(again, head);
        ck_assert_uint_eq(loaded.moved, saved.moved);
        ck_assert_uint_eq(loaded.left, sizeof bytes - saved.moved);
        for (uint32_t i = 0; i < 4; i++) {
            ck_assert_uint_eq(found[i].value, i < count && i < 3 ? i + 1 : 5);
            ck_assert_uint_eq(found[i].other, 8);
        }
    }
}
END_TEST

START_TEST(cut_bytes_are_refused)
{
    uint64_t head = 7;
    struct column columns[3] = {{1, 0}, {2, 0}, {3, 0}};
    char bytes[64];
    struct archive saved = {.out = bytes};
    move_all(&saved, &head, columns, 3);
    for (size_t left = 0; left < saved.moved; left++) {
        struct archive loaded = {.from = bytes, .left = left};
        ck_assert(!move_all(&loaded, &head, columns, 3));
    }
    const uint64_t many = UINT64_MAX / 2; /* elements, whose bytes are more than a number holds */
    memcpy(bytes + sizeof head, &many, sizeof many);
    struct archive loaded = {.from = bytes, .left = sizeof bytes};
    ck_assert(!move_all(&loaded, &head, columns, 3));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("archive");
    TCase *tests = tcase_create("archive");
    tcase_add_test(tests, members_come_back);
    tcase_add_test(tests, cut_bytes_are_refused);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
