/* Checkpoints that cannot be written: every failure names the file and the reason, the older checkpoint
 * stays as it is, and the next checkpoint is written as usual.
 *
 * The program's own write and fsync stand in front of the C library's, so that a disk can be full at any byte
 * and fail at any synchronization. */
#include "test/worker/checkpoint/checkpoint_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the disk ---- */

enum { FILES = 5 };

static struct {
    bool failing;
    size_t room;        /* bytes until it is full */
    size_t written;     /* bytes so far */
    size_t ends[FILES]; /* bytes so far when a file was complete */
    unsigned completed;
    unsigned syncs;    /* so far */
    unsigned bad_sync; /* the one that fails, from 1; 0: none */
    ino_t last[2];     /* what was synchronized last, and before it */
    ino_t unsynced;    /* the file whose fsync failed */
    bool tried_again;
} disk;

/* As a full disk does it, what there is room for is written first. */
ssize_t write(int fd, const void *bytes, size_t count)
{
    if (!disk.failing)
        return syscall(SYS_write, fd, bytes, count);
    if (disk.written == disk.room && count > 0) {
        errno = ENOSPC;
        return -1;
    }
    if (count > disk.room - disk.written)
        count = disk.room - disk.written;
    ssize_t n = syscall(SYS_write, fd, bytes, count);
    disk.written += n > 0 ? (size_t)n : 0;
    return n;
}

/* Nothing here has to outlive a loss of power. */
int fsync(int fd)
{
    struct stat stat_of;
    if (fstat(fd, &stat_of) != 0)
        return -1;
    if (S_ISREG(stat_of.st_mode) && disk.completed < FILES)
        disk.ends[disk.completed++] = disk.written;
    disk.tried_again |= disk.unsynced != 0 && stat_of.st_ino == disk.unsynced;
    disk.last[1] = disk.last[0];
    disk.last[0] = stat_of.st_ino;
    if (++disk.syncs != disk.bad_sync)
        return 0;
    disk.unsynced = stat_of.st_ino;
    errno = EIO;
    return -1;
}

static void disk_begin(size_t room, unsigned bad_sync)
{
    memset(&disk, 0, sizeof disk);
    disk.failing = true;
    disk.room = room;
    disk.bad_sync = bad_sync;
}

/* ---- what is held after each failure ---- */

enum { OLDER = 1, FAILING = 2 };

static void set_up(void)
{
    checkpoint_open();
    checkpoint_make(OLDER, OLDER, 9);
}

/* A checkpoint of two servers, from begin to publish. */
static enum status whole_checkpoint(uint64_t update)
{
    enum status status = checkpoint_prepare(update, update, 2, false, true);
    return status == STATUS_OK ? checkpoint_publish(path_of(workplace.run_dir), update, 9, &checkpoint_error)
                               : status;
}

/* Of a failed checkpoint nothing is to be seen (unless it was published, and only may not last); abandoned or
 * not, it is in nobody's way. */
static void expect_harmless(bool published, bool abandon)
{
    memset(&disk, 0, sizeof disk);
    if (published)
        expect_newest(FAILING, "00000002");
    else
        expect_newest(OLDER, "00000001");
    ck_assert_str_eq(told, "");
    if (abandon)
        checkpoint_abandon(path_of(workplace.run_dir), FAILING);
    if (abandon && !published)
        expect_names("", "00000001");
    ck_assert_int_eq(whole_checkpoint(FAILING), STATUS_OK);
    expect_newest(FAILING, "00000002");
    expect_names("", "00000001 00000002");
    ck_assert_int_eq(rename(checkpoint_at("00000002"), checkpoint_at("00000002.tmp")), 0);
    checkpoint_abandon(path_of(workplace.run_dir), FAILING);
}

static const char *const files[] = {"shard-1.model.safetensors", "shard-1.optimizer.safetensors",
                                    "model.safetensors", "optimizer.safetensors", "manifest.json"};

static void expect_named(int file)
{
    char path[64];
    snprintf(path, sizeof path, "/checkpoints/00000002.tmp/%s", files[file]);
    ck_assert_msg(strstr(checkpoint_error.text, path) != NULL, "\"%s\" does not name %s",
                  checkpoint_error.text, files[file]);
}

/* At the first byte of every file, in its middle, and at its last. */
START_TEST(a_full_disk)
{
    size_t ends[FILES], begin = 0;
    disk_begin(SIZE_MAX, 0);
    ck_assert_int_eq(whole_checkpoint(FAILING), STATUS_OK);
    ck_assert_uint_eq(disk.completed, FILES);
    memcpy(ends, disk.ends, sizeof ends);
    expect_harmless(true, true);
    for (int file = 0; file < FILES; file++) {
        const size_t rooms[] = {begin, (begin + ends[file]) / 2, ends[file] - 1};
        for (int i = 0; i < 3; i++) {
            disk_begin(rooms[i], 0);
            expect_failure(whole_checkpoint(FAILING), STATUS_IO, "No space left on device");
            expect_named(file);
            expect_harmless(false, i == 0);
        }
        begin = ends[file];
    }
}
END_TEST

static ino_t inode_of(const char *name)
{
    struct stat stat_of;
    ck_assert_int_eq(stat(checkpoint_at(name), &stat_of), 0);
    return stat_of.st_ino;
}

START_TEST(a_synchronization_that_fails_fails_the_checkpoint)
{
    unsigned file = 0;
    disk_begin(SIZE_MAX, 0);
    ck_assert_int_eq(whole_checkpoint(FAILING), STATUS_OK);
    const unsigned total = disk.syncs;
    ck_assert_uint_ge(total, FILES + 2);
    ck_assert_uint_eq(disk.last[1], inode_of("00000002")); /* under its name of then */
    ck_assert_uint_eq(disk.last[0], inode_of(""));
    expect_harmless(true, true);
    for (unsigned sync = 1; sync <= total; sync++) {
        disk_begin(SIZE_MAX, sync);
        expect_failure(whole_checkpoint(FAILING), STATUS_IO, "Input/output error");
        ck_assert_msg(!disk.tried_again, "synchronization %u was tried again", sync);
        if (disk.completed > file)
            expect_named((int)file++);
        expect_harmless(sync == total, sync % 2 == 0);
    }
    ck_assert_uint_eq(file, FILES);
}
END_TEST

START_TEST(a_file_that_grows_beyond_its_limit)
{
    static const rlim_t limits[] = {0, 300, 20000, 37000};
    struct rlimit limit = {.rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        limit.rlim_cur = limits[i];
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        enum status status = checkpoint_prepare(FAILING, FAILING, 1, false, true);
        limit.rlim_cur = RLIM_INFINITY;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        expect_failure(status, STATUS_IO, "/00000002.tmp/model.safetensors");
        ck_assert_ptr_nonnull(strstr(checkpoint_error.text, "File too large"));
        expect_harmless(false, true);
    }
}
END_TEST

/* ---- folders ---- */

static void as_nobody(bool begin)
{
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(begin ? 65534 : 0), 0);
}

START_TEST(a_folder_that_cannot_be_written)
{
    struct member member;
    const struct checkpoint_counters counters = counters_of(FAILING);
    ck_assert_int_eq(chmod(workplace.folder, 0755), 0);
    ck_assert_int_eq(chmod(checkpoint_at(""), 0555), 0);
    as_nobody(true);
    expect_failure(checkpoint_begin(path_of(workplace.run_dir), FAILING, &checkpoint_error),
                   STATUS_PERMISSION, "/checkpoints/00000002.tmp: cannot be made: Permission denied");
    as_nobody(false);
    ck_assert_int_eq(chmod(checkpoint_at(""), 0755), 0);
    CK_OK(checkpoint_begin(path_of(workplace.run_dir), FAILING, &checkpoint_error));
    ck_assert_int_eq(chmod(checkpoint_at("00000002.tmp"), 0555), 0);
    member_open(&member, 0, 1, false, true);
    as_nobody(true);
    expect_failure(checkpoint_write(path_of(workplace.run_dir), &counters, &checkpoint_place, &member.values,
                                    NULL, &checkpoint_error),
                   STATUS_PERMISSION, "/00000002.tmp/model.safetensors");
    as_nobody(false);
    member_close(&member);
    ck_assert_int_eq(chmod(checkpoint_at("00000002.tmp"), 0755), 0);
    expect_harmless(false, true);
}
END_TEST

START_TEST(no_run_directory_or_no_room_for_its_name)
{
    char path[CHECKPOINT_PATH_BYTES + 1];
    struct checkpoint_counters counters;
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    expect_failure(checkpoint_begin(path_of(path), 1, &checkpoint_error), STATUS_IO, "xxx");
    expect_failure(checkpoint_publish(path_of(path), 1, 1, &checkpoint_error), STATUS_IO, "xxx");
    expect_failure(checkpoint_check(path_of(path), &counters, &checkpoint_error), STATUS_IO, "xxx");
    snprintf(path, sizeof path, "%s/nowhere", workplace.folder);
    expect_failure(checkpoint_begin(path_of(path), 1, &checkpoint_error), STATUS_NOT_FOUND,
                   "nowhere/checkpoints");
    expect_failure(checkpoint_publish(path_of(workplace.run_dir), 5, 1, &checkpoint_error), STATUS_NOT_FOUND,
                   "00000005.tmp: cannot be renamed");
    expect_newest(OLDER, "00000001");
}
END_TEST

/* ---- shards ---- */

static enum status write_with_shard(uint32_t server, uint32_t servers)
{
    const struct checkpoint_counters counters = counters_of(FAILING);
    struct member first, other;
    member_open(&first, 0, 2, false, true);
    CK_OK(checkpoint_begin(path_of(workplace.run_dir), FAILING, &checkpoint_error));
    if (server > 0) {
        member_open(&other, server, servers, false, true);
        CK_OK(checkpoint_write_shard(path_of(workplace.run_dir), FAILING, &other.values, &checkpoint_error));
        member_close(&other);
    }
    enum status status = checkpoint_write(path_of(workplace.run_dir), &counters, &checkpoint_place,
                                          &first.values, NULL, &checkpoint_error);
    member_close(&first);
    return status;
}

START_TEST(shards_that_are_missing_or_of_another_cut)
{
    expect_failure(write_with_shard(0, 0), STATUS_NOT_FOUND, "/00000002.tmp/shard-1.model.safetensors");
    expect_harmless(false, true);
    expect_failure(write_with_shard(1, 3), STATUS_INVALID,
                   "shard-1.model.safetensors does not fit the model: bn.bias is missing, expected 32");
    expect_harmless(false, true);
    ck_assert_int_eq(write_with_shard(1, 2), STATUS_OK);
    expect_harmless(false, true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint failures");
    TCase *failures = tcase_create("failures");
    tcase_add_checked_fixture(failures, set_up, checkpoint_close);
    tcase_add_test(failures, a_full_disk);
    tcase_add_test(failures, a_synchronization_that_fails_fails_the_checkpoint);
    tcase_add_test(failures, a_file_that_grows_beyond_its_limit);
    tcase_add_test(failures, a_folder_that_cannot_be_written);
    tcase_add_test(failures, no_run_directory_or_no_room_for_its_name);
    tcase_add_test(failures, shards_that_are_missing_or_of_another_cut);
    suite_add_tcase(suite, failures);
    return suite_run(suite);
}
