/* Paths in the tests of run directories and sockets: whether a file is there, its text, a socket. */
#ifndef TEST_DAEMON_PATHS_H
#define TEST_DAEMON_PATHS_H

#include "test/process.h"

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Whether a file of any type, a link to nowhere included, has this path. */
static inline bool path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static inline void path_expect_text(const char *path, const char *wanted)
{
    char *text = file_read(path);
    ck_assert_msg(path_exists(path), "%s is not there", path);
    ck_assert_str_eq(text, wanted);
    free(text);
}

/* Leaves a socket at the path, as a killed process does. */
static inline void path_bind_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

#endif
