/* Pictures of an environment in a file: a GIF of all of them, or a PNG of the last one. By giflib and libpng.
 * One thread; blocks on the file. */
#ifndef DAEMON_COMMANDS_FILM_H
#define DAEMON_COMMANDS_FILM_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct film;

/* Whether the path's ending is one of a film's: ".gif", ".png". */
bool film_is_path(const char *path);

/* Makes a file, which gets the name `path` when the film is closed. `path` outlives the film. STATUS_IO and
 * others of a file; STATUS_NO_MEMORY. */
enum status film_open(struct film **out, const char *path, struct error *error);

/* Adds a picture: (height, width, 3) bytes; all of one size. STATUS_INVALID: it has another size than the
 * first one, or is larger than 65535 * 65535; STATUS_IO; STATUS_NO_MEMORY. */
enum status film_add(struct film *film, uint32_t width, uint32_t height, const uint8_t *rgb,
                     struct error *error);

/* Writes what is left if the film is whole and has a picture; else removes the file, and what has had its
 * name stays. Frees the film; NULL is allowed. STATUS_IO: the file could not be written. */
enum status film_close(struct film *film, bool is_whole, struct error *error);

#endif
