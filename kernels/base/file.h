/* Regular files, read and written whole: the loops that read(2) and write(2) leave to their caller. And paths
 * below a folder, without following links there.
 *
 * A path is a caller's own, or it lies below a folder: the run's files lie below the run's directory. The
 * caller's own path, and the path of the folder, may go through links. Nothing below the folder may:
 *
 *     a folder on the way    is a directory, and no link
 *     a file                 is a regular file, and no link
 *     both                   belong to the owner of the first folder, to the process's effective user, or to
 *                            root, who may have resumed another user's run
 *     a file to be written   has one name: a second name (a hard link) may be that of another file of the
 *                            same owner, which must not be cut
 *
 * So a stranger who may write in the folder, or who has put another folder in its place, cannot lead a
 * process to files elsewhere. The checks are made on the open file: a rename between check and use has no
 * effect.
 *
 * Every call blocks on the file and is safe from any thread. */
#ifndef KERNELS_BASE_FILE_H
#define KERNELS_BASE_FILE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Names a file or folder, perhaps below a folder. Where that folder is held open, the file is found where the
 * folder is, whatever becomes of the folder's own path. Messages show the whole text, as it was when it was
 * made. */
struct path {
    int folder;          /* the open folder's descriptor, or AT_FDCWD: none */
    size_t folder_bytes; /* of `text`: how many name the folder; 0: none, the path is the caller's own */
    const char *text;    /* the caller's; outlives the path */
};

/* A caller's own path. */
struct path path_of(const char *text);

/* The open folder that `text` names. */
struct path path_of_folder(int folder, const char *text);

/* A path below another, and below the same folder; below a caller's own path, that is the folder. `text`
 * begins with the other's. */
struct path path_below(struct path path, const char *text);

/* Opens a regular file with the `flags` of open(2); a pipe is not waited for. A file is made with mode 0666,
 * and emptied only after the checks above. STATUS_IO: there is something else, or a file that fails a check;
 * other errors by errno. The caller closes *fd. */
enum status file_open_as(int *fd, struct path path, int flags, struct error *error);

/* Opens `name` below `folder`, like file_open_as. */
enum status file_open_below(int *fd, struct path folder, const char *name, int flags, struct error *error);

/* Opens an existing file for reading, like file_open_as. */
enum status file_open(int *fd, uint64_t *bytes, struct path path, struct error *error);

/* Opens a folder for reading; errors as of file_open_as. The caller closes *fd. */
enum status file_open_folder(int *fd, struct path path, struct error *error);

/* mkdir(2) with mode 0777, renameat2(2) and link(2). False: failed, see errno. */
bool file_make_folder(struct path path);
bool file_rename(struct path from, struct path to, unsigned flags);
bool file_link(struct path old, struct path new);

/* Removes a file, or a folder with everything in it; one that is not there is no failure. False: see errno.
 */
bool file_remove(struct path path);

/* Removes a file that the process has made and that the next start replaces. A warning names one that stays.
 */
void file_remove_or_warn(const char *path);

/* Reads `bytes` from `offset` on; fewer only at the end of the file. -1: failed, see errno. */
ssize_t file_read_at(int fd, void *to, size_t bytes, uint64_t offset);

/* Writes all bytes at the file's position. False: failed, see errno; some bytes may be written. */
bool file_write(int fd, const void *from, size_t bytes);

/* fsync of a folder, so that files created, renamed or removed in it survive a loss of power. */
enum status file_sync_folder(struct path folder, struct error *error);

#endif
