/* Writes an output beside its name, and renames it once it is whole. */
#include "kernels/base/output.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

bool output_open(struct output *output, const char *path)
{
    struct stat found;
    *output = (struct output){.path = path};
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
        output->file = fopen(path, "we");
        return output->file != NULL;
    }
    const int length = snprintf(output->beside, sizeof output->beside, "%s.tmp", path);
    if (length >= (int)sizeof output->beside) {
        errno = ENAMETOOLONG;
        return false;
    }
    unlink(output->beside); /* a killed command's */
    output->file = fopen(output->beside, "wxe");
    return output->file != NULL;
}

bool output_close(struct output *output, bool is_whole)
{
    if (output->file == NULL)
        return false;
    is_whole = is_whole && fflush(output->file) == 0 && !ferror(output->file);
    const int errnum = errno;
    fclose(output->file);
    output->file = NULL;
    errno = errnum;
    if (output->beside[0] == '\0' || (is_whole && rename(output->beside, output->path) == 0))
        return is_whole;
    const int why = errno;
    unlink(output->beside);
    errno = why;
    return false;
}
