/* A data file read from its beginning to its end: plain, or packed by gzip.
 *
 * Every failure names the file and the offset of the failure; for a packed file that is the offset in the
 * inflated contents. Blocks on the disk. Any thread, one at a time per file. */
#ifndef WORKER_DATA_DATA_FILE_H
#define WORKER_DATA_DATA_FILE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DATA_PATH_BYTES = 2048, /* a job's path, two folders and a file's name */
    DATA_PACKING_MAX = 1040 /* bytes that one byte of a gzip file can inflate to: deflate reaches 1,032 */
};

struct data_file {
    char path[DATA_PATH_BYTES];
    uint64_t size;           /* on the disk, in bytes */
    uint64_t at;             /* of the contents: where the next read begins */
    bool packed;             /* by its contents, whatever its name */
    struct gzFile_s *stream; /* NULL: not open */
};

/* Opens FOLDER/NAME or, where `gz` is true and that file does not exist, FOLDER/NAME.gz. STATUS_NOT_FOUND:
 * neither exists. STATUS_IO: not a regular file. */
enum status data_file_open(struct data_file *file, const char *folder, const char *name, bool gz,
                           struct error *error);
void data_file_close(struct data_file *file); /* also after a failure, and where all is zero */

/* Checks from the file's size alone that it holds `bytes` bytes of contents (plain) or could hold them
 * (packed). STATUS_CORRUPT: it does not; the text gives the offset at which the file ends and should end. */
enum status data_file_expect(const struct data_file *file, uint64_t bytes, struct error *error);

/* Reads the next `bytes` bytes. STATUS_CORRUPT: the file ends before that, or the packed data is damaged. */
enum status data_file_read(struct data_file *file, void *to, size_t bytes, struct error *error);

/* Checks that the contents end here. STATUS_CORRUPT: more follows, or a packed file's own checksum is wrong.
 * Bytes behind a packed file's contents that are not gzip are ignored, as gzip does. */
enum status data_file_end(struct data_file *file, struct error *error);

#endif
