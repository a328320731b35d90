/* Run directories and socket folders. Supervisor process; its only thread. */
#include "daemon/rundir.h"

#include "daemon/resume.h"
#include "worker/roster.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char *const run_files[] = {"job.json", "episodes.log", "episodes.jsonl", "checkpoints"};
enum { RUN_FILES = sizeof run_files / sizeof run_files[0] };

enum { SOCKET_PATH_BYTES = sizeof((struct sockaddr_un *)0)->sun_path };
_Static_assert(sizeof((struct rundir *)0)->real >= PATH_MAX, "realpath writes that much");

/* ENOENT where a file is to be made is no missing input: it is I/O. */
static enum status output_error(struct error *error, int errnum, const char *what, const char *path)
{
    enum status status = error_set_errno(error, errnum, "cannot %s %s", what, path);
    if (status == STATUS_NOT_FOUND)
        status = error->status = STATUS_IO;
    return status;
}

/* mkdir -p; an existing directory is fine. */
static enum status make_directories(const char *path, struct error *error)
{
    char parent[4096];
    size_t length = strlen(path);
    if (length >= sizeof parent)
        return error_set(error, STATUS_INVALID, "%.200s…: a path of %zu bytes: expected fewer than %zu", path,
                         length, sizeof parent);
    memcpy(parent, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (parent[i] != '/' && parent[i] != '\0')
            continue;
        parent[i] = '\0';
        if (mkdir(parent, 0777) != 0 && errno != EEXIST)
            return output_error(error, errno, "make the directory", parent);
        parent[i] = path[i];
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

/* The first N for which previous-N does not exist, made. */
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
        return STATUS_OK; /* at most a job.json, of a start that failed */
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

/* Writes a file beside job.json and renames it: the run has the old job or the new one, whatever happens. */
static enum status write_job(struct rundir *dir, const struct job *job, struct error *error)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for job.json");
    int fd = openat(dir->fd, "job.json.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    enum status status = STATUS_OK;
    ssize_t written = fd < 0 ? -1 : write(fd, text, bytes);
    if (written != (ssize_t)bytes)
        status = written < 0 ? error_set_errno(error, errno, "cannot write %s/job.json", dir->path)
                             : error_set(error, STATUS_IO,
                                         "cannot write %s/job.json: there was room for %zd of %zu bytes",
                                         dir->path, written, bytes);
    if (fd >= 0 && close(fd) != 0 && status == STATUS_OK)
        status = error_set_errno(error, errno, "cannot write %s/job.json", dir->path);
    if (status == STATUS_OK && renameat(dir->fd, "job.json.tmp", dir->fd, "job.json") != 0)
        status = error_set_errno(error, errno, "cannot write %s/job.json", dir->path);
    if (status != STATUS_OK)
        unlinkat(dir->fd, "job.json.tmp", 0);
    free(text);
    return status;
}

/* Another user who could write there could take an endpoint's place. */
static enum status make_private_folder(const char *path, struct error *error)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return output_error(error, errno, "make the socket folder", path);
    if (lstat(path, &info) != 0)
        return error_set_errno(error, errno, "cannot look at the socket folder %s", path);
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0)
        return error_set(error, STATUS_PERMISSION,
                         "the socket folder %s: expected a directory of user %u with mode 0700", path,
                         geteuid());
    return STATUS_OK;
}

static enum status make_socket_folder(char *folder, size_t bytes, struct error *error)
{
    const char *runtime = getenv("RUNTIME_DIRECTORY"), *session = getenv("XDG_RUNTIME_DIR");
    struct stat info; /* after su, the session's folder may be gone */
    int length;
    if (runtime != NULL && runtime[0] == '/')
        length = snprintf(folder, bytes, "%.*s", (int)strcspn(runtime, ":"), runtime);
    else if (session != NULL && session[0] == '/' && stat(session, &info) == 0 && S_ISDIR(info.st_mode))
        length = snprintf(folder, bytes, "%s/coalesced", session);
    else
        length = snprintf(folder, bytes, "/tmp/coalesced-%u", geteuid());
    if (length < 0 || (size_t)length >= bytes)
        return error_set(error, STATUS_INVALID,
                         "the socket folder's path is too long: expected fewer than %zu bytes", bytes);
    return make_private_folder(folder, error);
}

static void socket_path(char path[CONTROL_ADDRESS_BYTES], const char *address, unsigned worker)
{
    snprintf(path, CONTROL_ADDRESS_BYTES, "%s.%u", address + strlen("ipc://"), worker);
}

/* This run holds the lock, so a socket of this name is an earlier run's. Any other file is not ours to touch.
 */
static enum status clear_leftover(const char *address, unsigned worker, struct error *error)
{
    char path[CONTROL_ADDRESS_BYTES];
    struct stat info;
    socket_path(path, address, worker);
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? STATUS_OK : error_set_errno(error, errno, "cannot look at %s", path);
    if (!S_ISSOCK(info.st_mode))
        return error_set(error, STATUS_PERMISSION, "%s is in the way: expected a socket or nothing", path);
    if (unlink(path) != 0)
        return error_set_errno(error, errno, "cannot remove the leftover %s", path);
    return STATUS_OK;
}

/* An earlier run may have had more listeners than this one. */
static enum status clear_leftovers(const char *address, struct error *error)
{
    enum status status = STATUS_OK;
    for (unsigned worker = 0; worker < ROSTER_LISTENERS_MAX && status == STATUS_OK; worker++)
        status = clear_leftover(address, worker, error);
    return status;
}

static enum status choose_address(struct rundir *dir, const struct job *job, struct error *error)
{
    char folder[SOCKET_PATH_BYTES], longest[CONTROL_ADDRESS_BYTES];
    unsigned char hash[16];
    char hex[2 * sizeof hash + 1];
    enum status status = make_socket_folder(folder, sizeof folder, error);
    if (status != STATUS_OK)
        return status;
    if (realpath(dir->path, dir->real) == NULL)
        return error_set_errno(error, errno, "cannot resolve %s", dir->path);
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    crypto_generichash(hash, sizeof hash, (const unsigned char *)dir->real, strlen(dir->real), NULL, 0);
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    char address[sizeof dir->address];
    snprintf(address, sizeof address, "ipc://%s/%s.sock", folder, hex);
    socket_path(longest, address, roster_of(job).listeners - 1);
    if (strlen(longest) >= sizeof folder)
        return error_set(error, STATUS_INVALID,
                         "a socket in %s would have a path of %zu bytes: expected at most %zu", folder,
                         strlen(longest), sizeof folder - 1);
    status = clear_leftovers(address, error);
    if (status == STATUS_OK) /* from now on rundir_close removes sockets of that name */
        memcpy(dir->address, address, sizeof address);
    return status;
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

static enum status open_directory(struct rundir *dir, struct error *error)
{
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir->fd >= 0 ? STATUS_OK : output_error(error, errno, "open the run directory", dir->path);
}

/* A directory has a run to resume if it has a job. */
static enum status find_run(struct rundir *dir, char *job_path, size_t bytes, struct error *error)
{
    struct stat info;
    int length = snprintf(job_path, bytes, "%s/job.json", dir->path);
    if (length < 0 || (size_t)length >= bytes)
        return error_set(error, STATUS_INVALID, "the run directory's path is too long: %.200s…", dir->path);
    if (stat(job_path, &info) != 0)
        return error_set_errno(error, errno, "there is no run to resume: cannot look at %s", job_path);
    return STATUS_OK;
}

static enum status open_or_resume(struct rundir *dir, const char *path, struct job *job, bool resume,
                                  struct error *error)
{
    char job_path[sizeof dir->path];
    *dir = (struct rundir){.fd = -1, .lock_fd = -1};
    enum status status = choose_path(dir, path, job, error);
    if (status == STATUS_OK)
        status =
            resume ? find_run(dir, job_path, sizeof job_path, error) : make_directories(dir->path, error);
    if (status == STATUS_OK)
        status = open_directory(dir, error);
    if (status == STATUS_OK)
        status = take_lock(dir, error);
    if (status == STATUS_OK && resume)
        status = resume_adopt(job_path, job, error);
    if (status == STATUS_OK)
        status = choose_address(dir, job, error);
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

enum status rundir_open(struct rundir *dir, const char *path, struct job *job, struct error *error)
{
    return open_or_resume(dir, path, job, false, error);
}

enum status rundir_resume(struct rundir *dir, const char *path, struct job *job, struct error *error)
{
    return open_or_resume(dir, path, job, true, error);
}

/* Where the directory was removed and made again, another run may hold the new lock and use the sockets'
 * names. */
static bool lock_is_in_place(const struct rundir *dir)
{
    struct stat held, there;
    char path[sizeof dir->path + sizeof "/lock"];
    snprintf(path, sizeof path, "%s/lock", dir->path);
    return fstat(dir->lock_fd, &held) == 0 && (lstat(path, &there) != 0 || held.st_ino == there.st_ino);
}

void rundir_close(struct rundir *dir)
{
    char path[CONTROL_ADDRESS_BYTES];
    if (dir->address[0] != '\0' && lock_is_in_place(dir))
        for (unsigned worker = 0; worker < ROSTER_LISTENERS_MAX; worker++) {
            socket_path(path, dir->address, worker);
            unlink(path);
        }
    if (dir->fd >= 0)
        close(dir->fd);
    if (dir->lock_fd >= 0)
        close(dir->lock_fd);
    dir->fd = dir->lock_fd = -1;
    dir->address[0] = '\0';
}
