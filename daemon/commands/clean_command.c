/* The command `clean`: removes the checkpoints of old previous runs, or these runs as a whole. A run's folder
 * and the folder around it are opened before the run is judged, without following a link. Files are removed
 * through these two descriptors alone. The command's process; its only thread; blocks on the disk. */
#include "daemon/commands/commands.h"

#include "daemon/commands/found_runs.h"
#include "daemon/log/run_summary.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/monotime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct cleaning {
    const struct arguments *arguments;
    uint64_t bytes;
    unsigned runs, failures;
};

/* ---- the place of a run ---- */

struct place {
    char text[PATH_MAX]; /* of the folder in which the run's folder lies */
    int parent, run;     /* the two folders, open; -1: cannot be opened, or a link is on the way */
    int errnum;          /* why the parent cannot be opened; 0: it is open */
};

/* `path`: absolute. */
static void place_open(struct place *place, const char *path)
{
    const struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    const char *name = strrchr(path, '/') + 1;
    snprintf(place->text, sizeof place->text, "%.*s", (int)(name - path), path);
    place->parent = (int)syscall(SYS_openat2, AT_FDCWD, place->text, &how, sizeof how);
    place->errnum = place->parent < 0 ? errno : 0;
    place->run = openat(place->parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void place_close(const struct place *place)
{
    if (place->parent >= 0)
        close(place->parent);
    if (place->run >= 0)
        close(place->run);
}

static bool is_same(const struct stat *info, dev_t device, ino_t inode)
{
    return info->st_dev == device && info->st_ino == inode;
}

/* Whether `run` is the folder that was judged, and `parent` the folder around that one. */
static bool place_holds(const struct place *place, const struct run_summary *s)
{
    struct stat run, around, parent;
    return fstat(place->run, &run) == 0 && is_same(&run, s->device, s->inode) &&
           fstatat(place->run, "..", &around, 0) == 0 && fstat(place->parent, &parent) == 0 &&
           is_same(&around, parent.st_dev, parent.st_ino);
}

/* ---- removing ---- */

/* In a dry run, only counts. */
static bool remove_folder(struct cleaning *c, struct path path)
{
    const uint64_t bytes = run_summary_bytes(path.text, true);
    if (!c->arguments->dry_run && !file_remove(path)) {
        log_warning("cannot remove %.400s: %s", path.text, strerror(errno));
        c->failures++;
        return false;
    }
    c->bytes += bytes;
    return true;
}

/* Removes all checkpoints but the best one. Returns how many. */
static unsigned remove_checkpoints(struct cleaning *c, struct path run)
{
    char folder[PATH_MAX + 16], path[sizeof folder + 1 + NAME_MAX];
    struct error error;
    unsigned count = 0;
    int fd = -1;
    snprintf(folder, sizeof folder, "%s/checkpoints", run.text);
    if (file_open_folder(&fd, path_below(run, folder), &error) != STATUS_OK &&
        error.status != STATUS_NOT_FOUND) {
        log_warning("%s", error.text);
        c->failures++;
    }
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            strcmp(entry->d_name, "best") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count += remove_folder(c, path_below(run, path));
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

static void clean_run(struct cleaning *c, const struct run_summary *s, const struct place *place)
{
    char shown[PATH_MAX], size[CELL_BYTES];
    const uint64_t before = c->bytes;
    const char *verb = c->arguments->dry_run ? "would be removed" : "removed";
    unsigned checkpoints = 0;
    bool is_gone = false;
    if (c->arguments->all)
        is_gone = remove_folder(c, path_below(path_of_folder(place->parent, place->text), s->path));
    else
        checkpoints = remove_checkpoints(c, path_of_folder(place->run, s->path));
    if (!is_gone && checkpoints == 0)
        return;
    c->runs++;
    write_path(shown, sizeof shown, s->path);
    write_bytes(size, (double)(c->bytes - before));
    if (is_gone)
        printf("%s: %s, %s\n", shown, verb, size);
    else
        printf("%s: %u checkpoint%s %s, %s%s\n", shown, checkpoints, checkpoints == 1 ? "" : "s", verb, size,
               s->has_best ? "; the best one stays" : "");
}

/* A run's age counts from its newest line. A clock that was wrong may have written a time in the future; the
 * log's last change is then earlier. Without a line, the age counts from the folder's last change. */
static bool is_old(const struct run_summary *s, int run, double age_s)
{
    struct stat info;
    const double now = unix_time_s();
    const bool has_line =
        s->ended_unix_s > 0 && fstatat(run, run_log_name(RUN_LOG_JSON), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!has_line && fstat(run, &info) != 0)
        return false;
    const double changed = (double)info.st_mtime;
    return now - (has_line ? fmin(s->ended_unix_s, changed) : changed) >= age_s;
}

static void consider(struct cleaning *c, const char *path)
{
    struct run_summary summary;
    struct error unread;
    struct place place;
    place_open(&place, path);
    if (run_summary_read(&summary, path, &unread) == STATUS_OK && summary.is_previous && summary.pid == 0) {
        if (!place_holds(&place, &summary)) {
            if (place.errnum == ENOSYS || place.errnum == EPERM)
                log_warning("%.400s is not cleaned: openat2(2), of Linux 5.6, is not permitted here", path);
            else
                log_warning("%.400s is not cleaned: expected a folder that stays in its place", path);
            c->failures++;
        } else if (is_old(&summary, place.run, c->arguments->age_s)) {
            clean_run(c, &summary, &place);
        }
    }
    place_close(&place);
}

enum status clean_runs(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    struct cleaning cleaning = {.arguments = arguments};
    struct run_folders folders;
    char size[CELL_BYTES];
    const enum status status =
        found_runs_folders(&folders, arguments->folders, arguments->folder_count, NULL, error);
    found_runs_say_unread(&folders);
    for (size_t i = 0; status == STATUS_OK && i < folders.count; i++)
        consider(&cleaning, folders.of[i]);
    run_folders_free(&folders);
    if (status != STATUS_OK)
        return status;
    write_bytes(size, (double)cleaning.bytes);
    printf("%u previous run%s cleaned%s, %s\n", cleaning.runs, cleaning.runs == 1 ? "" : "s",
           arguments->dry_run ? " in a dry run, without a change" : "", size);
    return cleaning.failures == 0
               ? STATUS_OK
               : error_set(error, STATUS_IO, "%u folder%s could not be removed: the warnings name %s",
                           cleaning.failures, cleaning.failures == 1 ? "" : "s",
                           cleaning.failures == 1 ? "it" : "them");
}
