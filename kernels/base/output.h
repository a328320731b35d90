/* A file that a command writes: it takes its name once it is whole, so that a failure leaves an earlier file
 * of that name as it was. A name that is no regular file's (/dev/stdout, a fifo) is written to at once.
 *
 * Blocks on files. Any thread; an output belongs to one. */
#ifndef KERNELS_BASE_OUTPUT_H
#define KERNELS_BASE_OUTPUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct output {
    FILE *file; /* NULL: not open */
    const char *path;
    char beside[PATH_MAX + 8]; /* where it is written; "": at `path` itself */
};

/* Opens the file to write. `path` outlives the output. False: failed, see errno. */
bool output_open(struct output *output, const char *path);

/* Closes the file. Gives it its name if it is whole and every write has succeeded, else removes it. False: it
 * has not got its name; see errno if it was whole. Does nothing if it is not open. */
bool output_close(struct output *output, bool is_whole);

#endif
