/* The bytes of a replay buffer's rows: a file that is mapped, or memory.
 *
 *     byte 0       the header: magic, version, CRC-32C of the page, and the shape; a page of 4096 bytes
 *     byte 4096    the rows, slot after slot
 *
 * The file grows ahead of its first lap: its room on the disk is taken before a row is written there. Without
 * that a full disk would end the process by SIGBUS.
 *
 * The owner's thread; but replay_file_flush on any, beside the others. */
#ifndef WORKER_REPLAY_REPLAY_FILE_H
#define WORKER_REPLAY_REPLAY_FILE_H

#include "kernels/base/file.h"

/* What the header says of the rows. Padding-free. */
struct replay_shape {
    uint64_t observation_bytes, frames, frame_bytes, action_bytes, choices;
    uint64_t window_rows;
    uint64_t row_bytes, capacity; /* of the ring */
};

struct replay_file;

/* Makes a file and maps it; path.text NULL: takes memory. STATUS_INVALID: more memory than this machine has,
 * or than can be addressed; STATUS_NO_MEMORY, and the file's errors. The folder of `path` outlives *out. */
enum status replay_file_new(struct replay_file **out, struct path path, const struct replay_shape *shape,
                            struct error *error);

/* Opens a file and maps it. shape: what is expected; its capacity becomes the file's. STATUS_CORRUPT: no
 * replay buffer, or a damaged header; STATUS_INVALID: another shape; the file's errors. */
enum status replay_file_resume(struct replay_file **out, struct path path, struct replay_shape *shape,
                               struct error *error);
void replay_file_close(struct replay_file *file);

/* Removes the file, and closes it: a copy that did not come about. */
void replay_file_discard(struct replay_file *file);

/* Gives the file another name, in the place of a file that has it, so that a loss of power leaves one of
 * both. STATUS_IO, STATUS_NO_MEMORY. */
enum status replay_file_rename(struct replay_file *file, struct path path, struct error *error);

/* The first slot. And how many bytes from there on may be touched. */
char *replay_file_rows(const struct replay_file *file);
uint64_t replay_file_room(const struct replay_file *file);

/* For messages. */
const char *replay_file_name(const struct replay_file *file);

/* Takes room for this many bytes of rows, which the ring has. STATUS_IO: no room on the disk. */
enum status replay_file_reserve(struct replay_file *file, uint64_t bytes, struct error *error);

/* Bytes from … end - 1 of the rows are on the disk when it returns; none for memory. STATUS_IO. */
enum status replay_file_flush(const struct replay_file *file, uint64_t from, uint64_t end,
                              struct error *error);

#endif
