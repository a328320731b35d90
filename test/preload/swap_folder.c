/* A library to preload that puts a link in the place of a folder, between two steps of a program:
 *
 *     SWAP_AT=NAME SWAP_FOLDER=FOLDER SWAP_LINK=TARGET LD_PRELOAD=swap_folder.so coalesced clean
 *
 * The first realpath(3) of a path that ends in NAME renames FOLDER to FOLDER.away, and makes FOLDER a link to
 * TARGET. The caller gets the path as it was before. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void swap(const char *folder, const char *target)
{
    char away[PATH_MAX];
    snprintf(away, sizeof away, "%s.away", folder);
    if (rename(folder, away) != 0 || symlink(target, folder) != 0)
        abort();
    unsetenv("SWAP_AT");
}

char *realpath(const char *restrict path, char *restrict resolved)
{
    char *(*real)(const char *, char *) = (char *(*)(const char *, char *))dlsym(RTLD_NEXT, "realpath");
    char *found = real(path, resolved);
    const char *name = getenv("SWAP_AT"), *end = found != NULL ? strrchr(found, '/') : NULL;
    if (name != NULL && end != NULL && strcmp(end + 1, name) == 0)
        swap(getenv("SWAP_FOLDER"), getenv("SWAP_LINK"));
    return found;
}

/* What a program with _FORTIFY_SOURCE calls. */
char *realpath_checked(const char *path, char *resolved, size_t bytes) __asm__("__realpath_chk");
char *realpath_checked(const char *path, char *resolved, size_t bytes)
{
    return bytes >= PATH_MAX ? realpath(path, resolved) : NULL;
}
