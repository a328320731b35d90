/* An archive: the bytes of an object in a file. One function lists an object's members, as in XDR (RFC 4506).
 * The archive knows which way they go:
 *
 *     measures   counts the bytes; `out` and `from` are NULL
 *     saves      writes the members to `out`, which has room for them
 *     loads      reads them from `from`
 *
 * So what is saved and what is loaded cannot differ. A member's bytes are the machine's own. Its owner
 * fills the struct: `out` and `from` say the way. Pure functions. */
#ifndef KERNELS_BASE_ARCHIVE_H
#define KERNELS_BASE_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct archive {
    char *out;        /* saves: where the next byte is written */
    const char *from; /* loads: the next byte */
    size_t left;      /* loads: bytes from there on */
    size_t moved;     /* bytes so far */
};

static inline bool archive_loads(const struct archive *archive)
{
    return archive->from != NULL;
}

/* Moves a member of so many bytes. False: it loads, and there are fewer. */
bool archive_move(struct archive *archive, void *member, size_t bytes);

/* Moves the first `bytes` of each element of an array, whose elements lie `stride` bytes apart. The archive
 * has `saved` elements, the array has `count`, and saves as many: of an archive that has more the others are
 * passed over. False: as archive_move. */
bool archive_move_array(struct archive *archive, void *array, size_t bytes, size_t stride, uint64_t count,
                        uint64_t saved);

/* Passes over bytes, and returns where they begin. NULL: it measures; or it loads, and there are fewer. */
char *archive_pass(struct archive *archive, size_t bytes);

#endif
