/* A data file read from its beginning to its end: plain, or packed by gzip.
 *
 * Every failure names the file and where in its contents it happened; of a packed file that is the place in
 * the inflated contents. Blocks on the disk. Any thread, one at a time per file. */
#ifndef WORKER_DATA_DATA_FILE_H
#define WORKER_DATA_DATA_FILE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DATA_PATH_BYTES = 2048, /* a job's path, two folders and a file's name behind it */
    DATA_PACKING_MAX = 1040 /* bytes that one byte of a gzip file can become: deflate reaches 1,032 */
};

struct data_file;

/* Opens FOLDER/NAME or, where `packed` allows it and the plain one is not there, FOLDER/NAME.gz.
 * STATUS_NOT_FOUND: neither is there. STATUS_INVALID: not a regular file. */
enum status data_file_open(struct data_file **out, const char *folder, const char *name, bool packed,
                           struct error *error);
void data_file_close(struct data_file *file);

/* As it was opened; for messages. */
const char *data_file_path(const struct data_file *file);

/* Whether `bytes` of contents are what the file holds (plain) or could hold (packed), from its size alone.
 * STATUS_CORRUPT: they are not; the text says so, and at which byte it ends or should end. */
enum status data_file_expect(const struct data_file *file, uint64_t bytes, struct error *error);

/* Bytes on the disk. */
uint64_t data_file_size(const struct data_file *file);

/* The next `bytes` bytes. STATUS_CORRUPT: the file ends before, or what is packed is damaged. */
enum status data_file_read(struct data_file *file, void *to, size_t bytes, struct error *error);

/* Nothing more may come. STATUS_CORRUPT: something does, or a packed file's own check sum is wrong. */
enum status data_file_end(struct data_file *file, struct error *error);

#endif
