/* Opens, reads and writes regular files; continues interrupted and partial calls. */
#include "kernels/base/file.h"

#include "kernels/base/log.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct path path_of(const char *text)
{
    return (struct path){.folder = AT_FDCWD, .text = text};
}

struct path path_of_folder(int folder, const char *text)
{
    return (struct path){.folder = folder, .folder_bytes = strlen(text), .text = text};
}

struct path path_below(struct path path, const char *text)
{
    /* A text that was cut is longer than the system takes, as its beginning is. */
    const size_t folder_bytes = path.folder_bytes > 0 ? path.folder_bytes : strnlen(path.text, strlen(text));
    assert(strncmp(text, path.text, folder_bytes) == 0);
    return (struct path){.folder = path.folder, .folder_bytes = folder_bytes, .text = text};
}

/* ---- the way to a name ---- */

/* One name of a path, and the open folder that it lies in. At first that is the path's folder; in the end the
 * name is the path's last. A caller's own path is one name. */
struct place {
    struct path path;
    int folder;
    const char *name; /* `copy`, or the caller's own path */
    const char *end;  /* of the name in the path's text */
    uid_t owner;      /* of the path's folder */
    char copy[NAME_MAX + 1];
};

/* Keeps errno. */
static void place_leave(const struct place *place)
{
    const int errnum = errno;
    if (place->folder >= 0 && place->folder != place->path.folder)
        close(place->folder);
    errno = errnum;
}

/* What a file is, for messages. */
static const char *kind_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "a regular file";
    case S_IFDIR:
        return "a directory";
    case S_IFLNK:
        return "a symbolic link";
    case S_IFIFO:
        return "a fifo";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

/* The checks of the header, on what lies at the place. */
static enum status place_judge(const struct place *place, const struct stat *found, mode_t kind, bool written,
                               struct error *error)
{
    const int length = (int)(place->end - place->path.text);
    const char *text = place->path.text, *is = kind_of(found->st_mode);
    if ((found->st_mode & S_IFMT) != kind)
        return error_set(error, STATUS_IO, "%.*s: found %s, expected %s", length, text, is, kind_of(kind));
    if (place->path.folder_bytes == 0)
        return STATUS_OK;
    if (found->st_uid != place->owner && found->st_uid != geteuid() && found->st_uid != 0)
        return error_set(error, STATUS_IO, "%.*s: found %s of user %ju, expected one of user %ju", length,
                         text, is, (uintmax_t)found->st_uid, (uintmax_t)place->owner);
    if (written && found->st_nlink > 1)
        return error_set(error, STATUS_IO, "%.*s: found %s with %ju names, expected one with a single name",
                         length, text, is, (uintmax_t)found->st_nlink);
    return STATUS_OK;
}

/* Says why the name could not be opened: what lies there is the better reason than errno. */
static enum status place_explain(const struct place *place, mode_t kind, bool written, struct error *error)
{
    const int errnum = errno, flags = place->path.folder_bytes > 0 ? AT_SYMLINK_NOFOLLOW : 0;
    struct stat found;
    if (fstatat(place->folder, place->name, &found, flags) == 0 &&
        place_judge(place, &found, kind, written, error) != STATUS_OK)
        return STATUS_IO;
    return error_set_errno(error, errnum, "%s", place->path.text);
}

/* Opens the path's folder. False: failed, see errno. */
static bool place_begin(struct place *place)
{
    const struct path path = place->path;
    struct stat about;
    if (path.folder == AT_FDCWD) {
        char *text = strndup(path.text, path.folder_bytes);
        place->folder = text != NULL ? open(text, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        free(text);
    }
    if (place->folder < 0 || fstat(place->folder, &about) != 0)
        return false;
    place->owner = about.st_uid;
    return true;
}

/* Takes the next name of the path; "." where none is left. False: failed, see errno. */
static bool place_take_name(struct place *place)
{
    const char *name = place->end + strspn(place->end, "/");
    const size_t bytes = strcspn(name, "/");
    place->end = name + bytes;
    place->name = place->copy;
    snprintf(place->copy, sizeof place->copy, "%.*s", bytes > 0 ? (int)bytes : 1, bytes > 0 ? name : ".");
    errno = ENAMETOOLONG;
    return bytes < sizeof place->copy;
}

/* Opens the folder of that name. False: failed, see errno. */
static bool place_descend(struct place *place)
{
    struct stat found;
    const int next = openat(place->folder, place->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0)
        return false;
    if (fstat(next, &found) != 0 || place_judge(place, &found, S_IFDIR, false, NULL) != STATUS_OK) {
        close(next);
        errno = EPERM;
        return false;
    }
    place_leave(place);
    place->folder = next;
    return true;
}

/* Goes to the last name. False: failed at place->name, see errno. place_leave closes in any case. */
static bool place_enter(struct place *place, struct path path)
{
    *place = (struct place){.path = path, .folder = path.folder, .name = path.text};
    place->end = path.text + (path.folder_bytes > 0 ? path.folder_bytes : strlen(path.text));
    if (path.folder_bytes == 0)
        return true;
    bool entered = place_begin(place) && place_take_name(place);
    while (entered && place->end[strspn(place->end, "/")] != '\0')
        entered = place_descend(place) && place_take_name(place);
    return entered;
}

/* ---- opening ---- */

static enum status open_kind(int *fd, struct stat *found, struct path path, int flags, mode_t kind,
                             struct error *error)
{
    const bool written = (flags & O_ACCMODE) != O_RDONLY;
    const int safe = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (path.folder_bytes > 0 ? O_NOFOLLOW : 0);
    struct place place;
    enum status status;
    const bool entered = place_enter(&place, path);
    *fd = entered ? openat(place.folder, place.name, (flags & ~O_TRUNC) | safe, 0666) : -1;
    if (*fd < 0)
        status = place_explain(&place, entered ? kind : S_IFDIR, entered && written, error);
    else if (fstat(*fd, found) != 0)
        status = error_set_errno(error, errno, "%s", path.text);
    else
        status = place_judge(&place, found, kind, written, error);
    if (status == STATUS_OK && (flags & O_TRUNC) != 0 && ftruncate(*fd, 0) != 0)
        status = error_set_errno(error, errno, "%s: cannot be emptied", path.text);
    if (status != STATUS_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    place_leave(&place);
    return status;
}

enum status file_open_as(int *fd, struct path path, int flags, struct error *error)
{
    struct stat found;
    return open_kind(fd, &found, path, flags, S_IFREG, error);
}

enum status file_open_below(int *fd, struct path folder, const char *name, int flags, struct error *error)
{
    char text[PATH_MAX + NAME_MAX + 2];
    *fd = -1;
    if (snprintf(text, sizeof text, "%s/%s", folder.text, name) >= (int)sizeof text)
        return error_set_errno(error, ENAMETOOLONG, "%s/%s", folder.text, name);
    return file_open_as(fd, path_below(folder, text), flags, error);
}

enum status file_open(int *fd, uint64_t *bytes, struct path path, struct error *error)
{
    struct stat found = {0};
    const enum status status = open_kind(fd, &found, path, O_RDONLY, S_IFREG, error);
    *bytes = (uint64_t)found.st_size;
    return status;
}

enum status file_open_folder(int *fd, struct path path, struct error *error)
{
    struct stat found;
    return open_kind(fd, &found, path, O_RDONLY | O_DIRECTORY, S_IFDIR, error);
}

/* ---- reading and writing ---- */

ssize_t file_read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

bool file_write(int fd, const void *from, size_t bytes)
{
    const char *at = from;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* ---- folders ---- */

enum status file_sync_folder(struct path folder, struct error *error)
{
    int fd;
    enum status status = file_open_folder(&fd, folder, error);
    if (status != STATUS_OK)
        return status;
    if (fsync(fd) != 0)
        status = error_set_errno(error, errno, "%s: the folder cannot be synchronized", folder.text);
    close(fd);
    return status;
}

bool file_make_folder(struct path path)
{
    struct place place;
    const bool made = place_enter(&place, path) && mkdirat(place.folder, place.name, 0777) == 0;
    place_leave(&place);
    return made;
}

bool file_rename(struct path from, struct path to, unsigned flags)
{
    struct place old, new = {.folder = -1};
    const bool renamed = place_enter(&old, from) && place_enter(&new, to) &&
                         renameat2(old.folder, old.name, new.folder, new.name, flags) == 0;
    place_leave(&old);
    place_leave(&new);
    return renamed;
}

bool file_link(struct path from, struct path to)
{
    struct place old, new = {.folder = -1};
    const bool linked = place_enter(&old, from) && place_enter(&new, to) &&
                        linkat(old.folder, old.name, new.folder, new.name, 0) == 0;
    place_leave(&old);
    place_leave(&new);
    return linked;
}

static bool remove_entry(int folder, const char *name);

/* Removes everything in an open folder. */
static bool empty_folder(DIR *folder)
{
    bool emptied = true;
    while (emptied) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL)
            return errno == 0;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            emptied = remove_entry(dirfd(folder), entry->d_name);
    }
    return emptied;
}

static bool remove_entry(int folder, const char *name)
{
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT)
        return true;
    if (errno != EISDIR)
        return false;
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    const bool emptied = entries != NULL && empty_folder(entries);
    const int errnum = errno;
    if (entries != NULL)
        closedir(entries);
    else if (fd >= 0)
        close(fd);
    errno = errnum;
    return emptied && unlinkat(folder, name, AT_REMOVEDIR) == 0;
}

bool file_remove(struct path path)
{
    struct place place;
    const bool removed = place_enter(&place, path) && remove_entry(place.folder, place.name);
    place_leave(&place);
    return removed;
}

void file_remove_or_warn(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        log_warning("cannot remove %.400s: %s; it stays there", path, strerror(errno));
}
