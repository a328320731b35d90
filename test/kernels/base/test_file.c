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
    ck_assert_ptr_nonnull(strstr(error.text, "no regular file"));
}
END_TEST

START_TEST(a_folder_is_synchronized)
{
    struct error error = {0};
    ck_assert_int_eq(file_sync_folder(path_of(workplace.folder), &error), STATUS_OK);
    ck_assert_int_eq(file_sync_folder(path_of(path), &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    make_file("");
    ck_assert_int_eq(file_sync_folder(path_of(path), &error), STATUS_NOT_FOUND); /* not a folder */
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
    snprintf(text, sizeof text, "%s/below/file", old);
    ck_assert_str_eq(path_name(held), ".");
    ck_assert_str_eq(path_name(path_below(held, text)), "below/file");
    ck_assert_str_eq(path_name(path_of(text)), text);
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
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
