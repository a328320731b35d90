/* Files read and written whole. */
#include "kernels/base/file.h"
#include "test/process.h"
#include "test/workplace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[128];

static void set_up(void)
{
    workplace_open();
    snprintf(path, sizeof path, "%.63s/file", workplace.folder);
}

static void make_file(const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert(file_write(fd, text, strlen(text)));
    ck_assert_int_eq(close(fd), 0);
}

START_TEST(what_is_written_is_read_to_the_files_end)
{
    struct error error = {0};
    char bytes[16];
    uint64_t size = 0;
    int fd = -1;
    make_file("0123456789");
    ck_assert_int_eq(file_open(&fd, &size, path_of(path), &error), STATUS_OK);
    ck_assert_uint_eq(size, 10);
    ck_assert_int_eq(file_read_at(fd, bytes, 4, 3), 4);
    ck_assert_mem_eq(bytes, "3456", 4);
    ck_assert_int_eq(file_read_at(fd, bytes, sizeof bytes, 8), 2);
    ck_assert_mem_eq(bytes, "89", 2);
    ck_assert_int_eq(file_read_at(fd, bytes, sizeof bytes, 100), 0);
    ck_assert_int_eq(file_read_at(fd, bytes, 0, 0), 0);
    errno = 0;
    ck_assert(!file_write(fd, "x", 1)); // it is open to be read
    ck_assert_int_eq(errno, EBADF);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(file_read_at(fd, bytes, 1, 0), -1);
}
END_TEST

/* A pipe takes what it has room for, and a reader that is slow has all in the end. */
START_TEST(what_is_taken_in_pieces_is_written_whole)
{
    enum { BYTES = 1 << 20 };
    int ends[2];
    char *sent = malloc(BYTES), *got = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        sent[i] = (char)(i * 7 + i / 256);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t writer = fork();
    if (writer == 0)
        _exit(file_write(ends[1], sent, BYTES) ? 0 : 1);
    ck_assert_int_eq(close(ends[1]), 0);
    size_t count = 0;
    for (ssize_t n; (n = read(ends[0], got + count, BYTES - count)) > 0;)
        count += (size_t)n;
    ck_assert_uint_eq(count, BYTES);
    ck_assert_int_eq(memcmp(got, sent, BYTES), 0);
    free(sent);
    free(got);
}
END_TEST

START_TEST(what_is_no_file_is_not_opened)
{
    struct error error = {0};
    uint64_t size;
    int fd = 0;
    ck_assert_int_eq(file_open(&fd, &size, path_of(path), &error), STATUS_NOT_FOUND);
    ck_assert_int_eq(fd, -1);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_int_eq(file_open(&fd, &size, path_of(workplace.folder), &error), STATUS_IO);
    ck_assert_int_eq(fd, -1);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(file_open(&fd, &size, path_of(path), &error), STATUS_IO); /* and nobody is waited for */
    ck_assert_ptr_nonnull(strstr(error.text, "found a fifo, expected a regular file"));
}
END_TEST

START_TEST(a_folder_is_synchronized)
{
    struct error error = {0};
    ck_assert_int_eq(file_sync_folder(path_of(workplace.folder), &error), STATUS_OK);
    ck_assert_int_eq(file_sync_folder(path_of(path), &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    make_file("");
    ck_assert_int_eq(file_sync_folder(path_of(path), &error), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "found a regular file, expected a directory"));
}
END_TEST

/* A file below an open folder is found where the folder is now; a folder in its old place is another. */
START_TEST(a_path_from_an_open_folder_follows_the_folder)
{
    struct error error = {0};
    char old[160], new[160], text[192];
    uint64_t size = 0;
    int fd = -1;
    snprintf(old, sizeof old, "%s/old", workplace.folder);
    snprintf(new, sizeof new, "%s/new", workplace.folder);
    ck_assert_int_eq(mkdir(old, 0700), 0);
    const int folder = open(old, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(folder, 0);
    const struct path held = path_of_folder(folder, old);
    snprintf(text, sizeof text, "%s/file", old);
    ck_assert_int_eq(rename(old, new), 0);
    ck_assert_int_eq(mkdir(old, 0700), 0);
    text_write(text, "another's");
    ck_assert_int_eq(file_open(&fd, &size, path_below(held, text), &error), STATUS_NOT_FOUND);
    ck_assert_msg(strstr(error.text, text) != NULL, "%s", error.text);
    char moved[192];
    snprintf(moved, sizeof moved, "%s/file", new);
    text_write(moved, "held");
    ck_assert_int_eq(file_open(&fd, &size, path_below(held, text), &error), STATUS_OK);
    ck_assert_uint_eq(size, 4);
    close(fd);
    ck_assert_int_eq(file_sync_folder(held, &error), STATUS_OK);
    close(folder);
}
END_TEST

/* A path below the folder of the test. */
static struct path below(const char *name)
{
    static char text[2][192];
    static unsigned turn;
    char *to = text[turn++ % 2];
    snprintf(to, sizeof text[0], "%s/%s", workplace.folder, name);
    return path_below(path_of(workplace.folder), to);
}

static void expect_text(const char *of, const char *text)
{
    char *found = file_read(of);
    ck_assert_str_eq(found, text);
    free(found);
}

static void expect_refused(const char *name, int flags, const char *about, const char *words)
{
    struct error error = {0};
    int fd = 0;
    ck_assert_msg(file_open_as(&fd, below(name), flags, &error) == STATUS_IO, "%s: %s", name, error.text);
    ck_assert_int_eq(fd, -1);
    ck_assert_msg(strstr(error.text, below(about).text) != NULL, "%s", error.text);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
}

static void make_link(const char *target, const char *name)
{
    ck_assert_int_eq(symlink(target, below(name).text), 0);
}

/* The flags with which the run's files are opened. */
static const int all_flags[] = {O_RDONLY, O_RDWR, O_WRONLY | O_CREAT | O_APPEND,
                                O_WRONLY | O_CREAT | O_TRUNC};
enum { ALL_FLAGS = sizeof all_flags / sizeof all_flags[0] };

START_TEST(below_a_folder_only_a_regular_file_is_opened)
{
    const int flags = all_flags[_i];
    struct error error = {0};
    int fd;
    make_file("target");
    make_link(path, "link");
    make_link("nowhere", "astray");
    ck_assert_int_eq(mkdir(below("folder").text, 0700), 0);
    ck_assert_int_eq(mkfifo(below("fifo").text, 0600), 0);
    expect_refused("link", flags, "link", "found a symbolic link, expected a regular file");
    expect_refused("astray", flags, "astray", "found a symbolic link, expected a regular file");
    expect_refused("folder", flags, "folder", "found a directory, expected a regular file");
    expect_refused("fifo", flags, "fifo", "found a fifo, expected a regular file");
    expect_text(path, "target");
    ck_assert_int_eq(access(below("nowhere").text, F_OK), -1);
    ck_assert_int_eq(file_open_as(&fd, path_of(below("link").text), O_RDONLY, &error), STATUS_OK);
    close(fd); /* a caller's own path may be a link */
}
END_TEST

START_TEST(a_file_with_two_names_is_read_and_not_written)
{
    const int flags = all_flags[_i];
    struct error error = {0};
    int fd;
    make_file("target");
    ck_assert_int_eq(link(path, below("second").text), 0);
    if (flags != O_RDONLY) {
        expect_refused("second", flags, "second", "found a regular file with 2 names");
    } else {
        ck_assert_int_eq(file_open_as(&fd, below("second"), flags, &error), STATUS_OK);
        close(fd);
    }
    expect_text(path, "target");
    ck_assert_int_eq(unlink(below("second").text), 0);
    ck_assert_int_eq(file_open_as(&fd, below("file"), flags, &error), STATUS_OK);
    close(fd);
    expect_text(path, (flags & O_TRUNC) != 0 ? "" : "target");
}
END_TEST

START_TEST(no_folder_on_the_way_is_a_link)
{
    struct error error = {0};
    int fd;
    ck_assert_int_eq(mkdir(below("folder").text, 0700), 0);
    ck_assert_int_eq(mkdir(below("folder/inner").text, 0700), 0);
    text_write(below("folder/inner/file").text, "target");
    make_link("folder", "link");
    make_link("inner", "folder/to-inner");
    expect_refused("link/inner/file", O_RDWR, "link", "link: found a symbolic link, expected a directory");
    expect_refused("folder/to-inner/file", O_RDWR, "folder/to-inner", "found a symbolic link");
    ck_assert_int_eq(file_open_folder(&fd, below("link"), &error), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "found a symbolic link, expected a directory"));
    ck_assert_int_eq(file_open_folder(&fd, below("link/inner"), &error), STATUS_IO);
    ck_assert(!file_make_folder(below("link/made")));
    ck_assert(!file_rename(below("link/inner"), below("moved"), 0));
    ck_assert(!file_rename(below("folder/inner"), below("link/moved"), 0));
    ck_assert(!file_link(below("link/inner/file"), below("second")));
    ck_assert(!file_remove(below("link/inner")));
    expect_text(below("folder/inner/file").text, "target");
    ck_assert_int_eq(file_open_as(&fd, below("folder//inner/file"), O_RDWR, &error), STATUS_OK);
    close(fd);
    ck_assert(file_remove(below("link"))); /* itself, and not the folder behind it */
    expect_text(below("folder/inner/file").text, "target");
    const char *behind = below("link").text; /* the folder's own path may be a link */
    make_link("folder", "link");
    char text[192];
    snprintf(text, sizeof text, "%s/inner/file", behind);
    ck_assert_int_eq(file_open_as(&fd, path_below(path_of(behind), text), O_RDWR, &error), STATUS_OK);
    close(fd);
}
END_TEST

START_TEST(folders_and_files_are_made_renamed_linked_and_removed)
{
    struct error error = {0};
    int fd;
    ck_assert(file_make_folder(below("a")));
    ck_assert(!file_make_folder(below("a")));
    ck_assert_int_eq(errno, EEXIST);
    ck_assert_int_eq(file_open_as(&fd, below("a/file"), O_WRONLY | O_CREAT | O_EXCL, &error), STATUS_OK);
    close(fd);
    ck_assert(file_make_folder(below("b")));
    ck_assert(file_link(below("a/file"), below("b/file")));
    ck_assert(file_rename(below("a/file"), below("a/other"), 0));
    ck_assert(file_rename(below("b"), below("a/b"), 0));
    ck_assert(file_remove(below("a")));
    ck_assert(file_remove(below("a")));
    ck_assert_int_eq(file_open_folder(&fd, below("a"), &error), STATUS_NOT_FOUND);
}
END_TEST

START_TEST(a_file_that_cannot_be_removed_is_named)
{
    const struct path folder = below("folder"); /* unlink(2) removes no folder */
    ck_assert(file_make_folder(folder));
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), old = dup(STDERR_FILENO);
    ck_assert(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    close(fd);
    file_remove_or_warn(folder.text);
    file_remove_or_warn(below("absent").text);
    dup2(old, STDERR_FILENO);
    close(old);
    char *said = file_read(path), expected[256];
    snprintf(expected, sizeof expected, "cannot remove %s: ", folder.text);
    ck_assert_msg(strstr(said, expected) != NULL, "%s", said);
    ck_assert_msg(strstr(said, "absent") == NULL, "%s", said);
    free(said);
    file_remove_or_warn(path);
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

/* Files of the folder's owner, of this user and of root open; files of another user do not. */
START_TEST(a_strangers_files_are_not_opened)
{
    enum { OWNER = 12001, STRANGER = 12002 };
    struct error error = {0};
    int fd;
    if (geteuid() != 0)
        return; /* only root gives files away */
    ck_assert(file_make_folder(below("run")));
    char run[192], text[224], inner[224];
    snprintf(run, sizeof run, "%s", below("run").text);
    snprintf(text, sizeof text, "%s/file", run);
    snprintf(inner, sizeof inner, "%s/folder/file", run);
    ck_assert(file_make_folder(below("run/folder")));
    text_write(text, "");
    text_write(inner, "");
    const struct path file = path_below(path_of(run), text), deep = path_below(path_of(run), inner);
    ck_assert_int_eq(chown(run, OWNER, 0), 0);
    ck_assert_int_eq(file_open_as(&fd, file, O_RDONLY, &error), STATUS_OK); /* root's */
    close(fd);
    ck_assert_int_eq(chown(text, OWNER, 0), 0);
    ck_assert_int_eq(file_open_as(&fd, file, O_RDWR, &error), STATUS_OK);
    close(fd);
    ck_assert_int_eq(chown(text, STRANGER, 0), 0);
    ck_assert_int_eq(file_open_as(&fd, file, O_RDONLY, &error), STATUS_IO);
    ck_assert_msg(strstr(error.text, "found a regular file of user 12002, expected one of user 12001") !=
                      NULL,
                  "%s", error.text);
    ck_assert_int_eq(file_open_as(&fd, deep, O_RDONLY, &error), STATUS_OK);
    close(fd);
    snprintf(text, sizeof text, "%s/folder", run);
    ck_assert_int_eq(chown(text, STRANGER, 0), 0);
    ck_assert_int_eq(file_open_as(&fd, deep, O_RDONLY, &error), STATUS_IO);
    ck_assert_msg(strstr(error.text, "/folder: found a directory of user 12002") != NULL, "%s", error.text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, set_up, workplace_close);
    tcase_add_test(files, what_is_written_is_read_to_the_files_end);
    tcase_add_test(files, what_is_taken_in_pieces_is_written_whole);
    tcase_add_test(files, what_is_no_file_is_not_opened);
    tcase_add_test(files, a_folder_is_synchronized);
    tcase_add_test(files, a_path_from_an_open_folder_follows_the_folder);
    tcase_add_loop_test(files, below_a_folder_only_a_regular_file_is_opened, 0, ALL_FLAGS);
    tcase_add_loop_test(files, a_file_with_two_names_is_read_and_not_written, 0, ALL_FLAGS);
    tcase_add_test(files, no_folder_on_the_way_is_a_link);
    tcase_add_test(files, folders_and_files_are_made_renamed_linked_and_removed);
    tcase_add_test(files, a_strangers_files_are_not_opened);
    tcase_add_test(files, a_file_that_cannot_be_removed_is_named);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
