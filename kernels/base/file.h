/* Regular files, read and written whole: the loops that read(2) and write(2) leave to their caller.
 *
 * Every call blocks on the file and is safe from any thread. */
#ifndef KERNELS_BASE_FILE_H
#define KERNELS_BASE_FILE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens an existing file for reading. STATUS_IO: it is no regular file (a pipe is not waited for); other
 * errors by errno. The caller closes *fd. */
enum status file_open(int *fd, uint64_t *bytes, const char *path, struct error *error);

/* Reads `bytes` from `offset` on; fewer only at the end of the file. -1: failed, see errno. */
ssize_t file_read_at(int fd, void *to, size_t bytes, uint64_t offset);

/* Writes all bytes at the file's position. False: failed, see errno; some bytes may be written. */
bool file_write(int fd, const void *from, size_t bytes);

/* fsync of a folder, so that files created, renamed or removed in it survive a loss of power. */
enum status file_sync_folder(const char *folder, struct error *error);

#endif
