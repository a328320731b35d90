/* Opens, locks and fills run directories. Supervisor process; its only thread. */
#include "daemon/rundir.h"

#include "daemon/resume.h"
#include "daemon/socket_folder.h"
#include "worker/roster.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const run_files[] = {"job.json", "episodes.log", "episodes.jsonl", "checkpoints"};
enum { RUN_FILES = sizeof run_files / sizeof run_files[0] };

_Static_assert(sizeof((struct rundir *)0)->real >= PATH_MAX, "realpath writes that much");

/* Makes the directory and its parents, like mkdir -p. */
static enum status make_directories(const struct rundir *dir, struct error *error)
{
    char parent[sizeof dir->path];
    memcpy(parent, dir->path, sizeof parent);
    const size_t length = strlen(parent);
    for (size_t i = 1; i <= length; i++) {
        if (parent[i] != '/' && parent[i] != '\0')
            continue;
        parent[i] = '\0';
        if (mkdir(parent, 0777) != 0 && errno != EEXIST) {
            error_set_errno(error, errno, "cannot make the directory %s", parent);
            return error_of_output(error);
        }
        parent[i] = dir->path[i];
    }
    return STATUS_OK;
}

static enum status take_lock(struct rundir *dir, struct error *error)
{
    char pid[32] = "";
    struct stat info;
    dir->lock_fd = openat(dir->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (dir->lock_fd < 0)
        return error_set_errno(error, errno, "cannot open %s/lock as a regular file", dir->path);
    if (fstat(dir->lock_fd, &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(error, STATUS_IO, "cannot lock %s/lock: expected a regular file", dir->path);
    if (flock(dir->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return error_set_errno(error, errno, "cannot lock %s/lock", dir->path);
        ssize_t got = pread(dir->lock_fd, pid, sizeof pid - 1, 0);
        pid[got > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return error_set(error, STATUS_BUSY, "%s is in use by process %s", dir->path,
                         pid[0] ? pid : "unknown");
    }
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(dir->lock_fd, 0) != 0 || pwrite(dir->lock_fd, pid, (size_t)length, 0) != length)
        return error_set_errno(error, errno, "cannot write %s/lock", dir->path);
    return STATUS_OK;
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

static enum status move_earlier_run(struct rundir *dir, struct error *error)
{
    char previous[32], target[64];
    if (!rundir_has(dir, "episodes.jsonl") && !rundir_has(dir, "episodes.log") &&
        !rundir_has(dir, "checkpoints"))
        return STATUS_OK; /* at most the job.json of a start that failed */
    enum status status = make_previous(dir, previous, error);
    for (unsigned i = 0; i < RUN_FILES && status == STATUS_OK; i++) {
        if (!rundir_has(dir, run_files[i]))
            continue;
        snprintf(target, sizeof target, "%s/%s", previous, run_files[i]);
        if (renameat(dir->fd, run_files[i], dir->fd, target) != 0)
            status =
                error_set_errno(error, errno, "cannot move %s/%s to %s", dir->path, run_files[i], target);
    }
    return status;
}

/* Replaces job.json by a rename, so that it always holds a whole job, the old one or the new one. */
static enum status write_job(struct rundir *dir, const struct job *job, struct error *error)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for job.json");
    const int fd =
        openat(dir->fd, "job.json.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    const ssize_t written = fd < 0 ? -1 : write(fd, text, bytes);
    bool is_whole = written == (ssize_t)bytes;
    if (fd >= 0 && close(fd) != 0)
        is_whole = false;
    free(text);
    if (is_whole && renameat(dir->fd, "job.json.tmp", dir->fd, "job.json") == 0)
        return STATUS_OK;
    enum status status = error_set_errno(error, errno, "cannot write %s/job.json", dir->path);
    if (written >= 0 && written < (ssize_t)bytes)
        status = error_set(error, STATUS_IO, "cannot write %s/job.json: there was room for %zd of %zu bytes",
                           dir->path, written, bytes);
    unlinkat(dir->fd, "job.json.tmp", 0);
    return status;
}

static enum status open_sockets(struct rundir *dir, const struct job *job, struct error *error)
{
    if (realpath(dir->path, dir->real) == NULL)
        return error_set_errno(error, errno, "cannot resolve %s", dir->path);
    return socket_folder_open(dir->address, dir->real, roster_of(job).listeners, error);
}

static enum status choose_path(struct rundir *dir, const char *path, const struct job *job,
                               struct error *error)
{
    const char *state = getenv("STATE_DIRECTORY");
    int length;
    if (path != NULL)
        length = snprintf(dir->path, sizeof dir->path, "%s", path);
    else if (state != NULL && state[0] == '/')
        length = snprintf(dir->path, sizeof dir->path, "%.*s/%s", (int)strcspn(state, ":"), state, job->name);
    else
        length = snprintf(dir->path, sizeof dir->path, "runs/%s", job->name);
    if (length <= 0 || (size_t)length >= sizeof dir->path)
        return error_set(error, STATUS_INVALID, "the run directory's path has %d bytes: expected 1..%zu",
                         length, sizeof dir->path - 1);
    return STATUS_OK;
}

/* A directory without job.json has no run to resume. */
static enum status find_run(const char *job_path, struct error *error)
{
    struct stat info;
    if (stat(job_path, &info) != 0)
        return error_set_errno(error, errno, "there is no run to resume: cannot look at %s", job_path);
    return STATUS_OK;
}

static enum status open_and_lock(struct rundir *dir, struct error *error)
{
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd >= 0)
        return take_lock(dir, error);
    error_set_errno(error, errno, "cannot open the run directory %s", dir->path);
    return error_of_output(error);
}

enum status rundir_open(struct rundir *dir, const char *path, struct job *job, bool resume,
                        struct error *error)
{
    char job_path[sizeof dir->path + sizeof "/job.json"];
    *dir = (struct rundir){.fd = -1, .lock_fd = -1};
    enum status status = choose_path(dir, path, job, error);
    if (status != STATUS_OK)
        return status;
    snprintf(job_path, sizeof job_path, "%s/job.json", dir->path);
    status = resume ? find_run(job_path, error) : make_directories(dir, error);
    if (status == STATUS_OK)
        status = open_and_lock(dir, error);
    if (status == STATUS_OK && resume)
        status = resume_adopt(job_path, job, error);
    if (status == STATUS_OK)
        status = open_sockets(dir, job, error);
    if (status == STATUS_OK && !resume)
        status = move_earlier_run(dir, error);
    if (status == STATUS_OK) {
        job_resolve(job);
        status = write_job(dir, job, error);
    }
    if (status != STATUS_OK)
        rundir_close(dir);
    return status;
}

/* False after the directory was removed and made again: another run may hold the new lock, and its sockets
 * have the same names. */
static bool lock_is_in_place(const struct rundir *dir)
{
    struct stat held, there;
    char path[sizeof dir->path + sizeof "/lock"];
    snprintf(path, sizeof path, "%s/lock", dir->path);
    return fstat(dir->lock_fd, &held) == 0 && (lstat(path, &there) != 0 || held.st_ino == there.st_ino);
}

void rundir_close(struct rundir *dir)
{
    if (dir->address[0] != '\0' && lock_is_in_place(dir))
        socket_folder_clear(dir->address);
    if (dir->fd >= 0)
        close(dir->fd);
    if (dir->lock_fd >= 0)
        close(dir->lock_fd);
    dir->fd = dir->lock_fd = -1;
    dir->address[0] = '\0';
}
