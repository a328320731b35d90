/* Regular files, with interrupted and partial calls continued. */
#include "kernels/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum status file_open(int *fd, uint64_t *bytes, const char *path, struct error *error)
{
    struct stat stat;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return error_set_errno(error, errno, "%s", path);
    enum status status = STATUS_OK;
    if (fstat(*fd, &stat) != 0)
        status = error_set_errno(error, errno, "%s", path);
    else if (!S_ISREG(stat.st_mode))
        status = error_set(error, STATUS_IO, "%s: no regular file", path);
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

enum status file_sync_folder(const char *folder, struct error *error)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(error, errno, "%s", folder);
    enum status status = STATUS_OK;
    if (fsync(fd) != 0)
        status = error_set_errno(error, errno, "%s: the folder cannot be synchronized", folder);
    close(fd);
    return status;
}
