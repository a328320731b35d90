/* Moves members between an object and its bytes. */
#include "kernels/base/archive.h"

#include <string.h>

char *archive_pass(struct archive *archive, size_t bytes)
{
    char *at = archive->out;
    archive->moved += bytes;
    if (archive_loads(archive)) {
        if (bytes > archive->left)
            return NULL;
        at = (char *)(uintptr_t)archive->from;
        archive->from += bytes;
        archive->left -= bytes;
    } else if (archive->out != NULL) {
        archive->out += bytes;
    }
    return at;
}

bool archive_move(struct archive *archive, void *member, size_t bytes)
{
    char *at = archive_pass(archive, bytes);
    if (at == NULL)
        return !archive_loads(archive);
    if (archive_loads(archive))
        memcpy(member, at, bytes);
    else
        memcpy(at, member, bytes);
    return true;
}

bool archive_move_array(struct archive *archive, void *array, size_t bytes, size_t stride, uint64_t count,
                        uint64_t saved)
{
    if (archive_loads(archive) && saved > archive->left / bytes)
        return false;
    for (uint64_t i = 0; i < count && i < saved; i++)
        archive_move(archive, (char *)array + i * stride, bytes);
    if (saved > count)
        archive_pass(archive, (saved - count) * bytes);
    return true;
}
