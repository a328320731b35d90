/* Regular files, read and written whole: what read(2), write(2) and fsync(2) leave to their caller.
 *
 * Everything here blocks on the file and is safe from any thread. */
#ifndef KERNELS_BASE_FILE_H
#define KERNELS_BASE_FILE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens an existing file to be read. STATUS_IO for what is no regular file (a pipe is not waited for);
 * otherwise by errno. The caller closes *fd. */
enum status file_open(int *fd, uint64_t *bytes, const char *path, struct error *error);

/* Reads `bytes` from `offset` on, and fewer only where the file ends. -1: errno says why. */
ssize_t file_read_at(int fd, void *to, size_t bytes, uint64_t offset);

/* Writes all of it at the file's place; false: errno says why, and some of it may be there. */
bool file_write(int fd, const void *from, size_t bytes);

/* fsync of a folder, so that what was created, renamed or removed in it stays so. */
enum status file_sync_folder(const char *folder, struct error *error);

#endif
