/* Paths, and regular files with interrupted and partial calls continued. */
#include "kernels/base/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct path path_of(const char *text)
{
    return (struct path){.folder = AT_FDCWD, .text = text};
}

struct path path_of_folder(int folder, const char *text)
{
    return (struct path){.folder = folder, .folder_bytes = strlen(text), .text = text};
}

struct path path_below(struct path path, const char *text)
{
    assert(strncmp(text, path.text, path.folder_bytes) == 0);
    return (struct path){.folder = path.folder, .folder_bytes = path.folder_bytes, .text = text};
}

const char *path_name(struct path path)
{
    const char *name = path.text + path.folder_bytes;
    while (path.folder_bytes > 0 && *name == '/')
        name++;
    return path.folder_bytes > 0 && *name == '\0' ? "." : name;
}

enum status file_open(int *fd, uint64_t *bytes, struct path path, struct error *error)
{
    struct stat stat;
    *fd = openat(path.folder, path_name(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return error_set_errno(error, errno, "%s", path.text);
    enum status status = STATUS_OK;
    if (fstat(*fd, &stat) != 0)
        status = error_set_errno(error, errno, "%s", path.text);
    else if (!S_ISREG(stat.st_mode))
        status = error_set(error, STATUS_IO, "%s: no regular file", path.text);
    if (status != STATUS_OK) {
        close(*fd);
        *fd = -1;
        return status;
    }
    *bytes = (uint64_t)stat.st_size;
    return STATUS_OK;
}

ssize_t file_read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

bool file_write(int fd, const void *from, size_t bytes)
{
    const char *at = from;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

enum status file_sync_folder(struct path folder, struct error *error)
{
    int fd = openat(folder.folder, path_name(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(error, errno, "%s", folder.text);
    enum status status = STATUS_OK;
    if (fsync(fd) != 0)
        status = error_set_errno(error, errno, "%s: the folder cannot be synchronized", folder.text);
    close(fd);
    return status;
}
