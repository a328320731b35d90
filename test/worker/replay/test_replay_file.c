/* The replay buffer's file: wrong and damaged ones, full disks, resuming after a kill and after a loss of
 * power.
 *
 * fallocate and msync are this program's own: they fail as told, and note what came to the disk. */
#include "worker/replay/replay.h"

#include "kernels/base/crc32c.h"
#include "test/worker/replay/replay_history.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, IMAGE_BYTES = 1 << 17 };

static char path[96];
static int fallocate_error, msync_error; /* 0: the call works */
static char image[IMAGE_BYTES];          /* what the disk has of the file, once it is flushed */

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    errno = fallocate_error;
    return fallocate_error != 0 ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

/* Where an address of the mapped file lies in it. */
static size_t offset_in_file(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long begin, end, offset, found = IMAGE_BYTES;
    char line[512];
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx %*s %lx", &begin, &end, &offset) == 3 && (unsigned long)address >= begin &&
            (unsigned long)address < end)
            found = (unsigned long)address - begin + offset;
    fclose(maps);
    ck_assert_uint_lt(found, IMAGE_BYTES);
    return found;
}

int msync(void *address, size_t bytes, int flags)
{
    errno = msync_error;
    if (msync_error != 0)
        return -1;
    const size_t offset = offset_in_file(address), pages = (bytes + PAGE - 1) / PAGE * PAGE;
    ck_assert(flags == MS_SYNC && offset % PAGE == 0);
    memcpy(image + offset, address, offset + pages < IMAGE_BYTES ? pages : IMAGE_BYTES - offset);
    return 0;
}

static void begin(void)
{
    workplace_open();
    snprintf(path, sizeof path, "%s/replay.bin", workplace.folder);
}

/* ---- helpers ---- */

static struct replay_config file_config(uint32_t columns, uint32_t frames)
{
    struct replay_config config = history_config(columns, frames, 5, 1);
    config.path = path_of(path);
    return config;
}

static struct replay *open_replay(const struct replay_config *config, bool resumes)
{
    struct replay_config copy = *config;
    struct replay *replay;
    struct error error;
    copy.resumes = resumes;
    ck_assert_msg(replay_open(&replay, &copy, &error) == STATUS_OK, "%s", error.text);
    return replay;
}

static char *save(const struct replay *replay, size_t *bytes)
{
    *bytes = replay_save(replay, NULL);
    char *saved = malloc(*bytes);
    ck_assert_ptr_nonnull(saved);
    ck_assert_uint_eq(replay_save(replay, saved), *bytes);
    return saved;
}

static void load(struct replay *replay, const char *saved, size_t bytes)
{
    struct error error;
    ck_assert_msg(replay_load(replay, saved, bytes, &error) == bytes, "%s", error.text);
}

/* Counters, columns, rows that change, and the checksum of all others. */
static void check_same_bits(const struct replay *a, const struct replay *b)
{
    size_t a_bytes, b_bytes;
    char *a_saved = save(a, &a_bytes), *b_saved = save(b, &b_bytes);
    ck_assert_uint_eq(a_bytes, b_bytes);
    ck_assert_mem_eq(a_saved, b_saved, a_bytes);
    free(a_saved);
    free(b_saved);
}

static void step_until(struct history *history, struct replay *replay, uint64_t rows)
{
    while (history->next < rows)
        history_step(history, replay);
}

static void write_at(size_t offset, const void *bytes, size_t count)
{
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    ck_assert(fd >= 0 && pwrite(fd, bytes, count, (off_t)offset) == (ssize_t)count);
    close(fd);
}

static void read_at(size_t offset, void *bytes, size_t count)
{
    const int fd = open(path, O_RDONLY);
    ck_assert(fd >= 0 && pread(fd, bytes, count, (off_t)offset) == (ssize_t)count);
    close(fd);
}

static void flip_at(size_t offset)
{
    char byte;
    read_at(offset, &byte, 1);
    byte ^= 0x20;
    write_at(offset, &byte, 1);
}

/* Opens the file to resume it; it fails, and says all of `status` and `says`. */
static void check_refused(const struct replay_config *config, enum status status, const char *says)
{
    struct replay_config copy = *config;
    struct replay *replay;
    struct error error = {0};
    copy.resumes = true;
    ck_assert_int_eq(replay_open(&replay, &copy, &error), status);
    ck_assert_msg(strstr(error.text, says) != NULL, "%s: expected \"%s\"", error.text, says);
    ck_assert_ptr_null(replay);
}

/* ---- the header ---- */

START_TEST(a_file_of_another_shape_is_refused)
{
    const struct replay_config config = file_config(3, 4);
    struct replay_config other = config;
    check_refused(&config, STATUS_NOT_FOUND, path);
    replay_close(open_replay(&config, false));
    replay_close(open_replay(&config, true));
    other.observation_bytes *= 2;
    check_refused(&other, STATUS_INVALID, "bytes of an observation: found 20, expected 40");
    other = config;
    other.frames = 2;
    check_refused(&other, STATUS_INVALID, "frames: found 4, expected 2");
    other = config;
    other.frame_bytes = 5;
    check_refused(&other, STATUS_INVALID, "frame's last axis: found 1, expected 5");
    other = config;
    other.action_bytes = 7;
    check_refused(&other, STATUS_INVALID, "bytes of an action: found 6, expected 7");
    other = config;
    other.choices = 4;
    check_refused(&other, STATUS_INVALID, "choices of an action: found 5, expected 4");
    other = config;
    other.rows = 151;
    check_refused(&other, STATUS_INVALID, "rows to draw from: found 150, expected 151");
}
END_TEST

START_TEST(a_damaged_header_is_found)
{
    const struct replay_config config = file_config(3, 4);
    replay_close(open_replay(&config, false));
    for (size_t at = 0; at < PAGE; at += at < 100 ? 1 : 97) {
        flip_at(at);
        check_refused(&config, STATUS_CORRUPT, at < 8 ? "not a replay buffer's file" : "header is damaged");
        flip_at(at);
    }
    replay_close(open_replay(&config, true));
    for (int bytes = PAGE - 1; bytes >= 0; bytes -= 455) {
        ck_assert_int_eq(truncate(path, bytes), 0);
        check_refused(&config, STATUS_CORRUPT, bytes < 8 ? "not a replay buffer's file" : "header is cut");
    }
}
END_TEST

START_TEST(what_is_no_file_of_ours_is_not_opened)
{
    const struct replay_config config = file_config(3, 1);
    struct replay_config below = config;
    struct replay *replay;
    struct error error;
    char target[128];
    snprintf(target, sizeof target, "%s/target", workplace.folder);
    ck_assert_int_eq(symlink(target, path), 0);
    for (int i = 0; i < 2; i++, below.path = path_below(path_of(workplace.folder), path))
        ck_assert_int_ne(replay_open(&replay, &below, &error), STATUS_OK);
    ck_assert_int_ne(access(target, F_OK), 0);
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    check_refused(&config, STATUS_IO, "directory");
    rmdir(path);
    replay_close(open_replay(&below, false));
    replay_close(open_replay(&below, true));
}
END_TEST

/* ---- rows ---- */

/* The file's layout, from the comments alone: a CRC of number, frame, mask, action, and the head behind it.
 */
START_TEST(every_row_has_its_checksum)
{
    const struct replay_config config = file_config(3, 4);
    struct history *history = history_new(&config, 3);
    struct replay *replay = open_replay(&config, false);
    const size_t row_bytes = replay_row_bytes(replay);
    uint8_t row[64];
    ck_assert_uint_le(row_bytes, sizeof row);
    while (history->next < 1000) {
        history_step(history, replay);
        const uint64_t capacity = replay_capacity(replay);
        const uint64_t first = history->next > capacity ? history->next - capacity : 0;
        for (uint64_t number = first; number < history->next; number++) {
            read_at(PAGE + number % capacity * row_bytes, row, row_bytes);
            uint32_t found;
            memcpy(&found, row, sizeof found);
            const uint32_t crc = crc32c_extend(crc32c(&number, sizeof number), row + 20, row_bytes - 20);
            ck_assert_uint_eq(found, crc32c_extend(crc, row + 4, 16));
        }
    }
    replay_close(replay);
    free(history);
}
END_TEST

/* What a damage test begins with: several laps, saved. */
static struct {
    struct history *history;
    char *saved;
    size_t bytes, row_bytes;
    uint64_t capacity;
    struct replay_window window;
} past;

static void make_past(const struct replay_config *config, uint64_t seed, uint64_t rows)
{
    struct replay *replay = open_replay(config, false);
    past.history = history_new(config, seed);
    step_until(past.history, replay, rows);
    past.saved = save(replay, &past.bytes);
    past.row_bytes = replay_row_bytes(replay);
    past.capacity = replay_capacity(replay);
    past.window = replay_window(replay);
    replay_close(replay);
}

static void free_past(void)
{
    free(past.history);
    free(past.saved);
}

static size_t offset_of(uint64_t row)
{
    return PAGE + row % past.capacity * past.row_bytes;
}

/* Loading fails, and says so. */
static void check_load_fails(const struct replay_config *config, enum status status, const char *says)
{
    struct replay *replay = open_replay(config, true);
    struct error error = {0};
    ck_assert_uint_eq(replay_load(replay, past.saved, past.bytes, &error), 0);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.text, says) != NULL, "%s: expected \"%s\"", error.text, says);
    replay_close(replay);
}

static void check_loads(const struct replay_config *config)
{
    struct replay *replay = open_replay(config, true);
    load(replay, past.saved, past.bytes);
    history_check(past.history, replay);
    replay_close(replay);
}

START_TEST(a_damaged_row_is_found_and_named)
{
    const struct replay_config config = file_config(3, 4);
    char says[64];
    make_past(&config, 4, 1000);
    for (int i = 0; i < 40; i++) {
        const uint64_t row =
            past.window.first + history_below(past.history, past.window.end - past.window.first);
        const size_t at = (size_t)history_below(past.history, past.row_bytes);
        snprintf(says, sizeof says, "row %llu is damaged", (unsigned long long)row);
        flip_at(offset_of(row) + at);
        check_load_fails(&config, STATUS_CORRUPT, says);
        flip_at(offset_of(row) + at);
    }
    for (size_t at = 0; at < past.row_bytes; at++) {
        flip_at(offset_of(past.window.first) + at);
        check_load_fails(&config, STATUS_CORRUPT, "is damaged");
        flip_at(offset_of(past.window.first) + at);
    }
    check_loads(&config);
    free_past();
}
END_TEST

START_TEST(a_missing_row_and_a_stale_one_are_named)
{
    const struct replay_config config = file_config(3, 4);
    const char zeros[64] = {0};
    char says[96], row[64];
    make_past(&config, 5, 1000);
    const uint64_t chosen = past.window.first + 70;
    read_at(offset_of(chosen), row, past.row_bytes);
    write_at(offset_of(chosen), zeros, past.row_bytes);
    snprintf(says, sizeof says, "row %llu is missing: its place is empty", (unsigned long long)chosen);
    check_load_fails(&config, STATUS_CORRUPT, says);
    /* As where a checkpoint is loaded whose rows were written over: the run went on for a lap. */
    write_at(offset_of(chosen), row, past.row_bytes);
    struct history *history = history_copy(past.history);
    struct replay *replay = open_replay(&config, true);
    load(replay, past.saved, past.bytes);
    step_until(history, replay, history->next + past.capacity / 2);
    replay_close(replay);
    check_load_fails(&config, STATUS_CORRUPT, "is stale: its place holds row");
    free(history);
    free_past();
    /* In the first lap the file is as long as it needs to be. */
    make_past(&config, 6, 120);
    ck_assert_int_eq(truncate(path, (off_t)offset_of(50) + 10), 0);
    check_load_fails(&config, STATUS_CORRUPT, "row 50 is missing: the file is cut");
    free_past();
}
END_TEST

/* Every row is sound, but the checkpoint is another run's. */
START_TEST(a_file_of_another_run_is_found)
{
    const struct replay_config config = file_config(1, 1);
    struct history *history = history_new(&config, 7);
    make_past(&config, 8, 40);
    struct replay *replay = open_replay(&config, false);
    while (history->next < past.history->next + 20)
        history_step(history, replay);
    replay_close(replay);
    check_load_fails(&config, STATUS_CORRUPT, "not those of this checkpoint");
    free(history);
    free_past();
}
END_TEST

/* Rows that change after a checkpoint come from its bytes: what the file has of them does not matter. */
START_TEST(rows_behind_the_window_are_the_checkpoints)
{
    const struct replay_config config = file_config(3, 4);
    make_past(&config, 9, 1000);
    for (uint64_t row = past.window.end; row < past.window.end + config.slack; row++)
        for (size_t at = 0; at < past.row_bytes; at += 5)
            flip_at(offset_of(row) + at);
    check_loads(&config);
    free_past();
}
END_TEST

START_TEST(bytes_that_are_no_checkpoint_are_refused)
{
    const struct replay_config config = file_config(3, 4);
    struct error error;
    make_past(&config, 10, 600);
    struct replay *replay = open_replay(&config, true);
    char *copy = malloc(past.bytes);
    for (size_t cut = 0; cut < past.bytes; cut += 3)
        ck_assert_uint_eq(replay_load(replay, past.saved, cut, &error), 0);
    for (size_t at = 0; at < past.bytes; at++) {
        memcpy(copy, past.saved, past.bytes);
        copy[at] ^= 0x41;
        ck_assert_uint_eq(replay_load(replay, copy, past.bytes, &error), 0);
    }
    free(copy);
    load(replay, past.saved, past.bytes);
    replay_close(replay);
    free_past();
}
END_TEST

/* ---- resuming ---- */

static const struct {
    uint32_t columns, frames;
    uint64_t saved, more; /* rows at the checkpoint, and appended until the end */
} runs[] = {{1, 1, 30, 10}, {3, 1, 500, 50}, {3, 4, 120, 40}, {3, 4, 700, 30}, {8, 2, 400, 30}};

/* A process is killed some steps after its checkpoint. Nothing was flushed, but the kernel has the file. */
START_TEST(a_killed_run_goes_on_with_the_same_bits)
{
    const struct replay_config config = file_config(runs[_i].columns, runs[_i].frames);
    struct replay_config memory = config;
    memory.path.text = NULL;
    struct history *history = history_new(&config, 20 + (uint64_t)_i);
    struct replay *undisturbed = open_replay(&memory, false);
    step_until(history, undisturbed, runs[_i].saved);
    size_t bytes;
    char *saved = save(undisturbed, &bytes);
    const pid_t child = fork();
    if (child == 0) {
        struct history *same = history_new(&config, 20 + (uint64_t)_i);
        struct replay *replay = open_replay(&config, false);
        step_until(same, replay, runs[_i].saved);
        same->random++; // what it does from here on does not matter
        step_until(same, replay, runs[_i].saved + runs[_i].more);
        _exit(0);
    }
    int how;
    ck_assert(waitpid(child, &how, 0) == child && how == 0);
    struct replay *replay = open_replay(&config, true);
    load(replay, saved, bytes);
    check_same_bits(undisturbed, replay);
    struct history *same = history_copy(history);
    for (uint64_t more = 60; more < 1000; more *= 4) {
        step_until(same, replay, runs[_i].saved + more);
        step_until(history, undisturbed, runs[_i].saved + more);
        check_same_bits(undisturbed, replay);
        history_check(history, replay);
    }
    replay_close(replay);
    replay_close(undisturbed);
    free(saved);
    free(history);
    free(same);
}
END_TEST

/* Of pages that were not flushed the disk has some. */
static void lose_power(struct history *history)
{
    char page[PAGE];
    struct stat about;
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert(about.st_size <= IMAGE_BYTES);
    read_at(0, image, PAGE);
    for (off_t at = PAGE; at < about.st_size; at += PAGE) {
        const size_t bytes = (size_t)(about.st_size - at < PAGE ? about.st_size - at : PAGE);
        read_at((size_t)at, page, bytes);
        if (history_below(history, 2) == 0)
            memcpy(image + at, page, bytes);
    }
    write_at(0, image, (size_t)about.st_size);
}

/* Checkpoints are flushed as replay.h says; each round ends with a loss of power. */
START_TEST(a_loss_of_power_leaves_what_the_checkpoint_needs)
{
    const struct replay_config config = file_config(runs[_i].columns, runs[_i].frames);
    struct history *history = history_new(&config, 30 + (uint64_t)_i);
    struct replay *replay = open_replay(&config, false);
    uint64_t from = 0;
    for (int round = 0; round < 12; round++) {
        const uint64_t end = replay_window(replay).end, mark = replay_next(replay);
        const uint64_t step = (uint64_t)config.columns * (config.frames + 1);
        size_t bytes;
        char *saved = save(replay, &bytes);
        ck_assert_int_eq(replay_flush(replay, from, end, NULL), STATUS_OK);
        from = end;
        struct history *ahead = history_copy(history);
        while (replay_next(replay) - mark + step <= replay_slack(replay))
            history_step(ahead, replay);
        replay_close(replay);
        lose_power(ahead);
        replay = open_replay(&config, true);
        load(replay, saved, bytes);
        history_check(history, replay);
        /* Another course of things than before the loss: the disk has rows of both. */
        history->random += 12345;
        while (replay_next(replay) - mark + step <= replay_slack(replay))
            history_step(history, replay);
        history_check(history, replay);
        free(saved);
        free(ahead);
    }
    replay_close(replay);
    free(history);
}
END_TEST

START_TEST(columns_come_and_go)
{
    const uint32_t counts[] = {3, 2, 4, 1, 4};
    uint32_t most = 3;
    struct replay_config config = file_config(3, 4);
    struct history *history = history_new(&config, 40);
    struct replay *replay = open_replay(&config, false);
    for (size_t i = 1; i < sizeof counts / sizeof *counts; i++) {
        step_until(history, replay, history->next + 350);
        size_t bytes;
        char *saved = save(replay, &bytes);
        replay_close(replay);
        config.columns = counts[i];
        replay = open_replay(&config, true);
        load(replay, saved, bytes);
        most = counts[i] > most ? counts[i] : most;
        ck_assert_uint_eq(replay_slack(replay),
                          replay_capacity(replay) - config.rows - counts[i] * 6 - most * 5 * 3);
        history_set_columns(history, counts[i]);
        history_check(history, replay);
        for (int step = 0; step < 30; step++) {
            history_step(history, replay);
            history_check(history, replay);
        }
        free(saved);
    }
    replay_close(replay);
    free(history);
}
END_TEST

/* A file of a few columns, in its first lap and in later ones, takes many. An older checkpoint stays good. */
START_TEST(the_ring_grows)
{
    const uint64_t laps[] = {40, 700};
    const struct replay_config config = file_config(3, 4);
    struct replay_config larger = config;
    larger.columns = 8;
    larger.slack = config.slack + 300;
    struct history *history = history_new(&config, 50 + (uint64_t)_i);
    struct replay *replay = open_replay(&config, false);
    step_until(history, replay, laps[_i]);
    struct history *before = history_copy(history);
    size_t old_bytes, bytes;
    char *old = save(replay, &old_bytes);
    step_until(history, replay, laps[_i] + 10);
    char *saved = save(replay, &bytes), new_path[sizeof path + 4];
    const uint64_t small = replay_capacity(replay);
    snprintf(new_path, sizeof new_path, "%s.new", path);
    replay_close(replay);
    struct error full = {0};
    replay = open_replay(&larger, true);
    fallocate_error = ENOSPC;
    ck_assert_int_eq(replay_grow(replay, &larger, saved, bytes, &full), STATUS_IO);
    fallocate_error = 0;
    ck_assert_int_ne(access(new_path, F_OK), 0);
    replay_close(replay);
    for (int opening = 0; opening < 3; opening++) { /* it grows in the first one */
        struct error error = {0};
        const bool is_old = opening == 2;
        replay = open_replay(&larger, true);
        ck_assert_int_eq(replay_capacity(replay) > small, opening > 0);
        ck_assert_msg(replay_grow(replay, &larger, is_old ? old : saved, is_old ? old_bytes : bytes,
                                  &error) == STATUS_OK,
                      "%s", error.text);
        load(replay, is_old ? old : saved, is_old ? old_bytes : bytes);
        ck_assert_uint_ge(replay_slack(replay), larger.slack);
        ck_assert_int_ne(access(new_path, F_OK), 0);
        struct history *same = history_copy(is_old ? before : history);
        history_set_columns(same, larger.columns);
        history_check(same, replay);
        for (int step = 0; step < 10; step++) {
            history_step(same, replay);
            history_check(same, replay);
        }
        free(same);
        replay_close(replay);
    }
    free(old);
    free(saved);
    free(history);
    free(before);
}
END_TEST

/* ---- disks ---- */

START_TEST(a_full_disk_is_an_error_with_a_number)
{
    const struct replay_config config = file_config(3, 4);
    struct history *history = history_new(&config, 50);
    struct replay *replay = open_replay(&config, false);
    struct error error;
    fallocate_error = ENOSPC;
    ck_assert_int_eq(replay_reserve(replay, &error), STATUS_IO);
    ck_assert_msg(strstr(error.text, "no room on the disk for ") != NULL &&
                      strstr(error.text, path) != NULL && strstr(error.text, strerror(ENOSPC)) != NULL,
                  "%s", error.text);
    fallocate_error = 0; // somebody has removed something
    step_until(history, replay, 1000);
    fallocate_error = ENOSPC; // past the first lap nothing is taken
    step_until(history, replay, 1500);
    history_check(history, replay);
    replay_close(replay);
    free(history);
}
END_TEST

START_TEST(zeros_take_the_room_where_nothing_can_be_reserved)
{
    const struct replay_config config = file_config(3, 4);
    struct history *history = history_new(&config, 51);
    struct replay *replay = open_replay(&config, false);
    struct stat about;
    fallocate_error = EOPNOTSUPP;
    ck_assert_int_eq(replay_reserve(replay, NULL), STATUS_OK);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_int_eq(about.st_size, PAGE + (off_t)(replay_capacity(replay) * replay_row_bytes(replay)));
    ck_assert_int_ge(about.st_blocks * 512, about.st_size); // no hole
    step_until(history, replay, 1000);
    history_check(history, replay);
    replay_close(replay);
    free(history);
}
END_TEST

/* A real full disk, of a megabyte, in a name space of mounts that ends with this process. */
START_TEST(a_small_disk_fills_up_without_a_signal)
{
    struct replay_config config = file_config(3, 4);
    struct error error;
    struct replay *replay;
    const int user = geteuid() == 0 ? 0 : CLONE_NEWUSER;
    if (unshare(CLONE_NEWNS | user) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", workplace.folder, "tmpfs", 0, "size=1m") != 0) {
        printf("no small disk: mounting needs root: %s\n", strerror(errno));
        return;
    }
    config.rows = 100000;
    ck_assert_int_eq(replay_open(&replay, &config, &error), STATUS_OK);
    ck_assert_int_eq(replay_reserve(replay, &error), STATUS_IO);
    ck_assert_msg(strstr(error.text, strerror(ENOSPC)) != NULL, "%s", error.text);
    replay_close(replay);
    config.rows = 500;
    struct history *history = history_new(&config, 52);
    replay = open_replay(&config, false);
    step_until(history, replay, 1500);
    history_check(history, replay);
    replay_close(replay);
    free(history);
    umount(workplace.folder);
}
END_TEST

START_TEST(a_failed_flush_is_an_error)
{
    const struct replay_config config = file_config(3, 4);
    struct history *history = history_new(&config, 53);
    struct replay *replay = open_replay(&config, false);
    struct error error;
    step_until(history, replay, 300);
    msync_error = EIO;
    ck_assert_int_eq(replay_flush(replay, 0, 300, &error), STATUS_IO);
    ck_assert_msg(strstr(error.text, path) != NULL, "%s", error.text);
    ck_assert_int_eq(replay_flush(replay, 300, 300, &error), STATUS_OK);
    replay_close(replay);
    free(history);
}
END_TEST

int main(void)
{
    enum { RUNS = sizeof runs / sizeof *runs };
    Suite *suite = suite_create("replay_file");
    TCase *files = tcase_create("files"), *resumed = tcase_create("resumed"), *disks = tcase_create("disks");
    tcase_add_checked_fixture(files, begin, workplace_close);
    tcase_add_checked_fixture(resumed, begin, workplace_close);
    tcase_add_checked_fixture(disks, begin, workplace_close);
    tcase_add_test(files, a_file_of_another_shape_is_refused);
    tcase_add_test(files, a_damaged_header_is_found);
    tcase_add_test(files, what_is_no_file_of_ours_is_not_opened);
    tcase_add_test(files, every_row_has_its_checksum);
    tcase_add_test(files, a_damaged_row_is_found_and_named);
    tcase_add_test(files, a_missing_row_and_a_stale_one_are_named);
    tcase_add_test(files, a_file_of_another_run_is_found);
    tcase_add_test(files, rows_behind_the_window_are_the_checkpoints);
    tcase_add_test(files, bytes_that_are_no_checkpoint_are_refused);
    tcase_add_loop_test(resumed, a_killed_run_goes_on_with_the_same_bits, 0, RUNS);
    tcase_add_loop_test(resumed, a_loss_of_power_leaves_what_the_checkpoint_needs, 0, RUNS);
    tcase_add_test(resumed, columns_come_and_go);
    tcase_add_loop_test(resumed, the_ring_grows, 0, 2);
    tcase_add_test(disks, a_full_disk_is_an_error_with_a_number);
    tcase_add_test(disks, zeros_take_the_room_where_nothing_can_be_reserved);
    tcase_add_test(disks, a_small_disk_fills_up_without_a_signal);
    tcase_add_test(disks, a_failed_flush_is_an_error);
    suite_add_tcase(suite, files);
    suite_add_tcase(suite, resumed);
    suite_add_tcase(suite, disks);
    return suite_run(suite);
}
