/* Regular files, read and written whole: the loops that read(2) and write(2) leave to their caller. And paths
 * that begin in a folder that is held open.
 *
 * Every call blocks on the file and is safe from any thread. */
#ifndef KERNELS_BASE_FILE_H
#define KERNELS_BASE_FILE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Names a file or folder, perhaps from a folder that is held open: such a file is found where the folder is,
 * whatever becomes of the folder's own path. Messages show the whole text, as it was when it was made. */
struct path {
    int folder;          /* the open folder's descriptor, or AT_FDCWD: none */
    size_t folder_bytes; /* of `text`: how many name the open folder; 0: none */
    const char *text;    /* the caller's; outlives the path */
};

/* Any path, from no open folder. */
struct path path_of(const char *text);

/* The open folder that `text` names. */
struct path path_of_folder(int folder, const char *text);

/* A path below another, from the same open folder; `text` begins with the other's. */
struct path path_below(struct path path, const char *text);

/* The name for openat(path.folder, …) and its relatives; "." for the open folder itself. */
const char *path_name(struct path path);

/* Opens an existing file for reading. STATUS_IO: it is no regular file (a pipe is not waited for); other
 * errors by errno. The caller closes *fd. */
enum status file_open(int *fd, uint64_t *bytes, struct path path, struct error *error);

/* Reads `bytes` from `offset` on; fewer only at the end of the file. -1: failed, see errno. */
ssize_t file_read_at(int fd, void *to, size_t bytes, uint64_t offset);

/* Writes all bytes at the file's position. False: failed, see errno; some bytes may be written. */
bool file_write(int fd, const void *from, size_t bytes);

/* fsync of a folder, so that files created, renamed or removed in it survive a loss of power. */
enum status file_sync_folder(struct path folder, struct error *error);

#endif
