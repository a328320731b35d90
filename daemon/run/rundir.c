/* Opens, locks and fills run directories. Supervisor process; its only thread. */
#include "daemon/run/rundir.h"

#include "daemon/process/socket_folder.h"
#include "daemon/run/resume.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "worker/roster.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const run_files[] = {"job.json",
                                        "episodes.log",
                                        "episodes.jsonl",
                                        "checkpoints",
                                        "episodes.log.cut",
                                        "episodes.jsonl.cut",
                                        "tensorboard",
                                        "profile.txt",
                                        "profile.json",
                                        "episodes.log.damaged",
                                        "episodes.jsonl.damaged",
                                        "job.json.damaged"};
enum { RUN_FILES = sizeof run_files / sizeof run_files[0] };

_Static_assert(sizeof((struct rundir *)0)->real >= PATH_MAX, "realpath writes that much");

/* Makes the directory and its parents, like mkdir -p, and syncs each new entry. */
static enum status rundir_make(const char *path, struct error *error)
{
    char parent[RUNDIR_PATH_BYTES], copy[RUNDIR_PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", path);
    const size_t length = strlen(parent);
    for (size_t i = 1; i <= length; i++) {
        if (parent[i] != '/' && parent[i] != '\0')
            continue;
        parent[i] = '\0';
        const bool made = mkdir(parent, 0777) == 0;
        if (!made && errno != EEXIST) {
            error_set_errno(error, errno, "cannot make the directory %s", parent);
            return error_of_output(error);
        }
        snprintf(copy, sizeof copy, "%s", parent);
        if (made && file_sync_folder(path_of(dirname(copy)), error) != STATUS_OK)
            return error->status;
        parent[i] = path[i];
    }
    return STATUS_OK;
}

/* Opens and locks the directory's file `lock`, which holds the process id of its holder. */
static enum status rundir_lock(struct rundir *dir, struct error *error)
{
    char pid[32] = "";
    const enum status status =
        file_open_below(&dir->lock_fd, path_of_folder(dir->fd, dir->path), "lock", O_RDWR | O_CREAT, error);
    if (status != STATUS_OK)
        return status;
    if (flock(dir->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return error_set_errno(error, errno, "cannot lock %s/lock", dir->path);
        ssize_t got = pread(dir->lock_fd, pid, sizeof pid - 1, 0);
        pid[got > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return error_set(error, STATUS_BUSY, "%s is in use by process %s", dir->path,
                         pid[0] ? pid : "unknown");
    }
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(dir->lock_fd, 0) != 0 || !file_write(dir->lock_fd, pid, (size_t)length))
        return error_set_errno(error, errno, "cannot write %s/lock", dir->path);
    return STATUS_OK;
}

/* The directory before its sockets, and so its real path, are known. */
static struct path path_as_given(const struct rundir *dir)
{
    return path_of_folder(dir->fd, dir->path);
}

/* Makes previous-N with the lowest N that is free. */
static enum status make_previous(struct rundir *dir, char name[32], struct error *error)
{
    for (unsigned n = 1; n < 1000000; n++) {
        snprintf(name, 32, "previous-%u", n);
        if (mkdirat(dir->fd, name, 0777) == 0)
            return STATUS_OK;
        if (errno != EEXIST)
            return error_set_errno(error, errno, "cannot make %s/%s", dir->path, name);
    }
    return error_set(error, STATUS_IO, "%s has a million previous runs", dir->path);
}

static bool rundir_has(const struct rundir *dir, const char *name)
{
    struct stat info;
    return fstatat(dir->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Without these files there is at most the job.json of a start that failed. */
static bool has_run(const struct rundir *dir)
{
    return rundir_has(dir, "episodes.jsonl") || rundir_has(dir, "episodes.log") ||
           rundir_has(dir, "checkpoints");
}

static enum status move_earlier_run(struct rundir *dir, struct error *error)
{
    const struct path folder = path_as_given(dir);
    char previous[32], from[sizeof dir->path + 64], to[sizeof from];
    if (!has_run(dir))
        return STATUS_OK;
    enum status status = make_previous(dir, previous, error);
    for (unsigned i = 0; i < RUN_FILES && status == STATUS_OK; i++) {
        if (!rundir_has(dir, run_files[i]))
            continue;
        snprintf(from, sizeof from, "%s/%s", dir->path, run_files[i]);
        snprintf(to, sizeof to, "%s/%s/%s", dir->path, previous, run_files[i]);
        if (!file_rename(path_below(folder, from), path_below(folder, to), 0))
            status = error_set_errno(error, errno, "cannot move %s to %s", from, to);
    }
    return status;
}

/* Whenever the process or the machine stops, job.json holds a whole job, the old one or the new one: the file
 * is synced before the rename, the directory after it. */
static enum status write_job(const struct rundir *dir, const struct job *job, struct error *error)
{
    size_t bytes;
    int fd;
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for job.json");
    enum status status =
        file_open_below(&fd, path_as_given(dir), "job.json.tmp", O_WRONLY | O_CREAT | O_TRUNC, error);
    if (status == STATUS_OK &&
        (!file_write(fd, text, bytes) || fsync(fd) != 0 ||
         renameat(dir->fd, "job.json.tmp", dir->fd, "job.json") != 0 || fsync(dir->fd) != 0))
        status = error_set_errno(error, errno, "cannot write %s/job.json", dir->path);
    if (fd >= 0)
        close(fd);
    if (status != STATUS_OK)
        unlinkat(dir->fd, "job.json.tmp", 0);
    free(text);
    return status;
}

static enum status open_sockets(struct rundir *dir, const struct job *job, struct error *error)
{
    if (realpath(dir->path, dir->real) == NULL)
        return error_set_errno(error, errno, "cannot resolve %s", dir->path);
    char identity[64];
    struct stat info;
    if (fstat(dir->fd, &info) != 0)
        return error_set_errno(error, errno, "cannot look at the run directory");
    snprintf(identity, sizeof identity, "%ju:%ju", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    return socket_folder_open(dir->address, identity, roster_of(job).listeners, error);
}

enum status rundir_choose(char chosen[RUNDIR_PATH_BYTES], const char *path, const struct job *job,
                          struct error *error)
{
    const char *state = getenv("STATE_DIRECTORY");
    int length;
    if (path != NULL)
        length = snprintf(chosen, RUNDIR_PATH_BYTES, "%s", path);
    else if (state != NULL && state[0] == '/')
        length = snprintf(chosen, RUNDIR_PATH_BYTES, "%.*s/%s", (int)strcspn(state, ":"), state, job->name);
    else
        length = snprintf(chosen, RUNDIR_PATH_BYTES, "runs/%s", job->name);
    if (length <= 0 || length >= RUNDIR_PATH_BYTES)
        return error_set(error, STATUS_INVALID, "the run directory's path has %d bytes: expected 1..%d",
                         length, RUNDIR_PATH_BYTES - 1);
    return STATUS_OK;
}

/* Whether the run in the directory is resumed: `job` must then be its job. */
static enum status adopt_run(struct rundir *dir, struct job *job, struct error *error)
{
    char job_path[sizeof dir->path + sizeof "/job.json"];
    if (!has_run(dir)) {
        log_info("%s has no run to resume: a run begins there", dir->path);
        return STATUS_OK;
    }
    dir->resumed = true;
    snprintf(job_path, sizeof job_path, "%s/job.json", dir->path);
    enum status status =
        rundir_has(dir, "job.json")
            ? resume_adopt(path_below(path_as_given(dir), job_path), job, error)
            : error_set(error, STATUS_NOT_FOUND,
                        "%s has logs or checkpoints, but no job.json, and no checkpoint of this job: "
                        "expected the run's job, or a start without --resume",
                        dir->path);
    if ((status == STATUS_NOT_FOUND || status == STATUS_CORRUPT) &&
        resume_recognizes(path_as_given(dir), job)) {
        const bool is_there = renameat(dir->fd, "job.json", dir->fd, "job.json.damaged") == 0;
        log_warning("%s/job.json is %s, and is written anew: a checkpoint of the run is of this job",
                    dir->path, is_there ? "damaged and now job.json.damaged" : "missing");
        status = STATUS_OK;
    }
    return status;
}

enum status rundir_open(struct rundir *dir, const char *path, struct job *job, bool resume,
                        struct error *error)
{
    *dir = (struct rundir){.fd = -1, .lock_fd = -1};
    enum status status = rundir_choose(dir->path, path, job, error);
    if (status == STATUS_OK) {
        log_run(dir->path);
        status = rundir_make(dir->path, error);
    }
    if (status == STATUS_OK && (dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        error_set_errno(error, errno, "cannot open the run directory %s", dir->path);
        status = error_of_output(error);
    }
    if (status == STATUS_OK)
        status = rundir_lock(dir, error);
    if (status == STATUS_OK && resume)
        status = adopt_run(dir, job, error);
    if (status == STATUS_OK)
        status = open_sockets(dir, job, error);
    if (status == STATUS_OK && !dir->resumed)
        status = move_earlier_run(dir, error);
    if (status == STATUS_OK) {
        job_resolve(job);
        status = write_job(dir, job, error);
    }
    if (status != STATUS_OK)
        rundir_close(dir);
    return status;
}

struct path rundir_path(const struct rundir *dir)
{
    return path_of_folder(dir->fd, dir->real);
}

void rundir_close(struct rundir *dir)
{
    struct stat held, there;
    /* After the lock was removed and made again, another run may hold the new one, and its sockets have the
     * same names. */
    const bool is_in_place =
        fstat(dir->lock_fd, &held) == 0 &&
        (fstatat(dir->fd, "lock", &there, AT_SYMLINK_NOFOLLOW) != 0 || held.st_ino == there.st_ino);
    if (dir->address[0] != '\0' && is_in_place)
        socket_folder_clear(dir->address);
    if (dir->fd >= 0)
        close(dir->fd);
    if (dir->lock_fd >= 0)
        close(dir->lock_fd);
    dir->fd = dir->lock_fd = -1;
    dir->address[0] = '\0';
}
