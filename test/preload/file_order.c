/* A library to preload that writes down in which order a program writes, syncs and renames files.
 *
 *   FILE_ORDER=order LD_PRELOAD=build/release/test/preload/file_order.so coalesced run …
 *
 * Each call appends one line to the file FILE_ORDER, whatever process makes it:
 *
 *   write PATH BYTES             a write has ended; BYTES: the first bytes, up to a comma or tab behind a
 * digit sync-begin PATH              fsync or fdatasync begins sync-end PATH                the same has
 * ended without an error rename FROM TO               a rename begins; names below open folders with the
 * folders' paths
 *
 * A line is one write(2) to an O_APPEND descriptor, so the lines have the order in which the system made
 * them. What stands before a sync-begin was written before that sync began; what stands behind a sync-end
 * began after it. */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST_BYTES = 32, LINE_BYTES = 4 * PATH_MAX + 64 };

static void note(const char *what, const char *first, const char *second)
{
    const int saved = errno;
    const char *order = getenv("FILE_ORDER");
    char line[LINE_BYTES];
    if (order == NULL)
        return;
    const int length = snprintf(line, sizeof line, "%s %s %s\n", what, first, second);
    const int fd = open(order, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || syscall(SYS_write, fd, line, (size_t)length) != length)
        abort();
    close(fd);
    errno = saved;
}

/* Whether the descriptor is a file or folder with a name. */
static bool path_of_descriptor(int fd, char path[PATH_MAX])
{
    const int saved = errno;
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    errno = saved;
    return path[0] == '/';
}

static void copy_first_bytes(char first[FIRST_BYTES + 1], const char *bytes, size_t count)
{
    size_t length = 0;
    while (length < count && length < FIRST_BYTES && bytes[length] != '\n') {
        const bool ends = (bytes[length] == ',' || bytes[length] == '\t') && length > 0 &&
                          isdigit((unsigned char)bytes[length - 1]);
        if (ends)
            break;
        first[length] = isprint((unsigned char)bytes[length]) ? bytes[length] : '?';
        length++;
    }
    first[length] = '\0';
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    static ssize_t (*next)(int, const void *, size_t);
    char path[PATH_MAX], first[FIRST_BYTES + 1];
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "write");
    const ssize_t written = next(fd, bytes, count);
    if (written > 0 && path_of_descriptor(fd, path)) {
        copy_first_bytes(first, bytes, (size_t)written);
        note("write", path, first);
    }
    return written;
}

static int note_sync(int (*sync_file)(int), int fd)
{
    char path[PATH_MAX];
    path_of_descriptor(fd, path);
    note("sync-begin", path, "");
    const int result = sync_file(fd);
    if (result == 0)
        note("sync-end", path, "");
    return result;
}

int fsync(int fd)
{
    static int (*next)(int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    return note_sync(next, fd);
}

int fdatasync(int fd)
{
    static int (*next)(int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
    return note_sync(next, fd);
}

/* The name below an open folder as a path. */
static void find_path(char path[2 * PATH_MAX], int folder, const char *name)
{
    char beginning[PATH_MAX];
    const bool below = name[0] != '/' && path_of_descriptor(folder, beginning);
    snprintf(path, 2 * PATH_MAX, "%s%s%s", below ? beginning : "", below ? "/" : "", name);
}

static void note_rename(int from_dir, const char *from, int to_dir, const char *to)
{
    char from_path[2 * PATH_MAX], to_path[2 * PATH_MAX];
    find_path(from_path, from_dir, from);
    find_path(to_path, to_dir, to);
    note("rename", from_path, to_path);
}

int rename(const char *from, const char *to)
{
    static int (*next)(const char *, const char *);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "rename");
    note("rename", from, to);
    return next(from, to);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    static int (*next)(int, const char *, int, const char *);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "renameat");
    note_rename(from_dir, from, to_dir, to);
    return next(from_dir, from, to_dir, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    static int (*next)(int, const char *, int, const char *, unsigned);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "renameat2");
    note_rename(from_dir, from, to_dir, to);
    return next(from_dir, from, to_dir, to, flags);
}
