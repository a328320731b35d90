/* Damaged checkpoints: each kind of damage is found, told by name, and passed over for the one before. */
#include "test/worker/checkpoint/checkpoint_fixture.h"
#include "worker/checkpoint/checkpoint_manifest.h"

#include <fcntl.h>
#include <unistd.h>

enum { SOUND = 1, DAMAGED = 2 };

static void set_up(void)
{
    checkpoint_open();
    checkpoint_make(SOUND, SOUND, 9);
    checkpoint_make(DAMAGED, DAMAGED, 9);
}

/* The newest is passed over, `words` are said of it, and the one before is taken and loads. */
static void expect_passed_over(enum status status, const char *words)
{
    struct checkpoint_counters counters = {0};
    struct member member;
    expect_failure(checkpoint_check(path_of(checkpoint_at("00000002")), &counters, &checkpoint_error), status,
                   words);
    ck_assert_uint_eq(counters.update, 0);
    expect_newest(SOUND, "00000001");
    ck_assert_msg(strncmp(told, "00000002: ", 10) == 0 && strstr(told, words) != NULL, "told: %s", told);
    member_open(&member, 0, 1, false, true);
    CK_OK(checkpoint_load(path_of(checkpoint_at("00000001")), &member.values, &checkpoint_error));
    member_expect(&member, SOUND, SOUND);
    member_close(&member);
}

static const char *damaged_file(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "00000002/%s", name);
    return checkpoint_at(path);
}

static off_t size_of(const char *path)
{
    struct stat stat_of;
    ck_assert_int_eq(stat(path, &stat_of), 0);
    return stat_of.st_size;
}

static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};

START_TEST(a_truncated_file)
{
    const char *path = damaged_file(names[_i]);
    const off_t size = size_of(path);
    ck_assert_int_eq(truncate(path, size - (_i == 2 ? 2 : 1)), 0);
    expect_passed_over(STATUS_CORRUPT, names[_i]);
    ck_assert_int_eq(truncate(damaged_file(names[_i]), 0), 0);
    expect_passed_over(STATUS_CORRUPT, names[_i]);
}
END_TEST

START_TEST(a_file_with_bytes_behind_its_end)
{
    const char *path = damaged_file(names[_i]);
    ck_assert_int_eq(truncate(path, size_of(path) + 1), 0);
    expect_passed_over(STATUS_CORRUPT, names[_i]);
}
END_TEST

START_TEST(a_file_that_is_missing)
{
    ck_assert_int_eq(unlink(damaged_file(names[_i])), 0);
    expect_passed_over(STATUS_NOT_FOUND, names[_i]);
}
END_TEST

/* Nor is a pipe waited for. */
START_TEST(something_that_is_no_file)
{
    ck_assert_int_eq(unlink(damaged_file(names[_i])), 0);
    ck_assert_int_eq(mkdir(damaged_file(names[_i]), 0755), 0);
    expect_passed_over(STATUS_IO, "expected a regular file");
    ck_assert_int_eq(rmdir(damaged_file(names[_i])), 0);
    ck_assert_int_eq(mkfifo(damaged_file(names[_i]), 0644), 0);
    expect_passed_over(STATUS_IO, "expected a regular file");
    ck_assert_int_eq(unlink(damaged_file(names[_i])), 0);
    ck_assert_int_eq(symlink(names[_i], damaged_file(names[_i])), 0);
    expect_passed_over(STATUS_IO, names[_i]);
}
END_TEST

static void flip(const char *path, off_t at, unsigned bit)
{
    unsigned char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= (unsigned char)(1u << bit);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* In the length, the header, the data and the last byte; the manifest's own bits are
 * test_checkpoint_manifest's. */
START_TEST(a_flipped_bit)
{
    const off_t size = size_of(damaged_file(names[_i]));
    const off_t places[] = {0, 7, 20, size / 4, size / 2, size - 2};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        flip(damaged_file(names[_i]), places[i], (unsigned)i % 8);
        expect_passed_over(STATUS_CORRUPT, names[_i]);
        flip(damaged_file(names[_i]), places[i], (unsigned)i % 8);
    }
    expect_newest(DAMAGED, "00000002");
}
END_TEST

START_TEST(files_of_another_checkpoint)
{
    ck_assert_int_eq(rename(checkpoint_at("00000001"), checkpoint_at("kept")), 0);
    checkpoint_make(SOUND, SOUND, 9);
    for (int i = 0; i < 2; i++) {
        char from[32];
        snprintf(from, sizeof from, "kept/%s", names[i]);
        ck_assert_int_eq(rename(checkpoint_at(from), damaged_file(names[i])), 0);
        expect_passed_over(STATUS_CORRUPT, "its SHA-256 differs from the manifest's");
    }
    ck_assert_int_eq(rename(checkpoint_at("kept/manifest.json"), damaged_file(names[2])), 0);
    expect_passed_over(STATUS_CORRUPT,
                       "00000002: the manifest names update 1, expected 2 from the folder's name");
}
END_TEST

/* Whatever else somebody puts there is no damage; nor is another name of the folder. */
START_TEST(an_extra_file_and_a_copy_are_no_damage)
{
    struct checkpoint_counters counters;
    char path[256];
    ck_assert_int_eq(symlink("nowhere", damaged_file("notes.txt")), 0);
    expect_newest(DAMAGED, "00000002");
    ck_assert_str_eq(told, "");
    ck_assert_int_eq(rename(checkpoint_at("00000002"), checkpoint_at("best")), 0);
    snprintf(path, sizeof path, "%s//", checkpoint_at("best"));
    CK_OK(checkpoint_check(path_of(path), &counters, &checkpoint_error));
    expect_counters(&counters, DAMAGED);
    ck_assert_int_eq(rename(checkpoint_at("best"), checkpoint_at("00000003")), 0);
    snprintf(path, sizeof path, "%s//", checkpoint_at("00000003"));
    expect_failure(checkpoint_check(path_of(path), &counters, &checkpoint_error), STATUS_CORRUPT,
                   "update 2, expected 3");
    ck_assert_int_eq(chdir(checkpoint_at("00000001")), 0);
    CK_OK(checkpoint_check(path_of("."), &counters, &checkpoint_error));
}
END_TEST

START_TEST(all_are_damaged)
{
    struct checkpoint_counters counters;
    char path[CHECKPOINT_PATH_BYTES];
    ck_assert_int_eq(unlink(checkpoint_at("00000001/manifest.json")), 0);
    ck_assert_int_eq(truncate(damaged_file(names[0]), 3), 0);
    told[0] = '\0';
    expect_failure(find_newest(path, &counters), STATUS_NOT_FOUND, "no sound checkpoint is there");
    ck_assert_ptr_nonnull(strstr(told, "00000002: "));
    ck_assert_ptr_nonnull(strstr(told, "00000001: "));
}
END_TEST

/* What cannot be opened for want of permission may be sound: a run must not silently go back behind it. */
START_TEST(a_checkpoint_that_may_not_be_read_is_not_passed_over)
{
    struct checkpoint_counters counters;
    char path[CHECKPOINT_PATH_BYTES];
    ck_assert_int_eq(chmod(workplace.folder, 0755), 0);
    ck_assert_int_eq(chmod(damaged_file(names[1]), 0), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(seteuid(65534), 0);
    told[0] = '\0';
    expect_failure(find_newest(path, &counters), STATUS_PERMISSION, names[1]);
    ck_assert_str_eq(told, "");
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

/* ---- loading what was not checked ---- */

START_TEST(a_damaged_one_that_is_loaded_changes_nothing)
{
    struct member member;
    member_open(&member, 0, 1, false, true);
    member_write(&member, 3);
    const char *path = checkpoint_at("00000002");
    char copy[192];
    snprintf(copy, sizeof copy, "%s", path);
    CK_OK(checkpoint_load_model(path_of(copy), &member.values, &checkpoint_error));
    member_expect(&member, DAMAGED, 3);
    member_write(&member, 3);
    ck_assert_int_eq(truncate(damaged_file(names[1]), 5000), 0);
    expect_failure(checkpoint_load(path_of(copy), &member.values, &checkpoint_error), STATUS_CORRUPT, "");
    flip(damaged_file(names[0]), size_of(damaged_file(names[0])) - 1, 3);
    expect_failure(checkpoint_load_model(path_of(copy), &member.values, &checkpoint_error), STATUS_CORRUPT,
                   "model.safetensors: its SHA-256 differs from the manifest's");
    ck_assert_int_eq(unlink(damaged_file(names[0])), 0);
    expect_failure(checkpoint_load(path_of(copy), &member.values, &checkpoint_error), STATUS_NOT_FOUND,
                   names[0]);
    ck_assert_int_eq(unlink(damaged_file(names[2])), 0);
    expect_failure(checkpoint_load(path_of(copy), &member.values, &checkpoint_error), STATUS_NOT_FOUND,
                   names[2]);
    expect_failure(checkpoint_facts(path_of(copy), &(struct checkpoint_counters){0}, NULL, &checkpoint_error),
                   STATUS_NOT_FOUND, names[2]);
    member_expect(&member, 3, 3);
    member_close(&member);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint damage");
    TCase *damage = tcase_create("damage");
    tcase_add_checked_fixture(damage, set_up, checkpoint_close);
    tcase_add_loop_test(damage, a_truncated_file, 0, 3);
    tcase_add_loop_test(damage, a_file_with_bytes_behind_its_end, 0, 3);
    tcase_add_loop_test(damage, a_file_that_is_missing, 0, 3);
    tcase_add_loop_test(damage, something_that_is_no_file, 0, 3);
    tcase_add_loop_test(damage, a_flipped_bit, 0, 3);
    tcase_add_test(damage, files_of_another_checkpoint);
    tcase_add_test(damage, an_extra_file_and_a_copy_are_no_damage);
    tcase_add_test(damage, all_are_damaged);
    tcase_add_test(damage, a_checkpoint_that_may_not_be_read_is_not_passed_over);
    tcase_add_test(damage, a_damaged_one_that_is_loaded_changes_nothing);
    suite_add_tcase(suite, damage);
    return suite_run(suite);
}
