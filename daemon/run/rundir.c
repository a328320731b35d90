/* Compares a job with the run's, finds the checkpoint from which a run goes on, and opens, locks and fills
 * run directories. Supervisor process; its only thread. */
#include "daemon/run/rundir.h"

#include "daemon/log/runlog.h"
#include "daemon/process/socket_folder.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "worker/job/job_table.h"
#include "worker/roster.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the same job ---- */

enum { DIFFERENCES_BYTES = ERROR_TEXT_BYTES / 2 }; /* that the message lists */

/* Adds the value at `pointer` as JSON; equal values have equal words. */
static void add_value(char words[JOB_WORDS_BYTES], const struct job *job, const char *pointer)
{
    const struct job_key *key = job_key_at(JOB_KINDS_OF(job_variant(job)), pointer);
    if (key == NULL)
        words_add(words, "absent");
    else
        words_add_value(words, job, key, true);
}

/* Whether a run's numbers depend on the key. */
static bool key_decides(const struct job_key *key, const struct job *job)
{
    static const char *const free_groups[] = {"/stop/",    "/checkpoint/", "/supervise/", "/hosts/",
                                              "/metrics/", "/listen",      "/log/"};
    const size_t groups = sizeof free_groups / sizeof free_groups[0];
    const bool log_decides = job->kind == JOB_MODEL_PARALLEL && strcmp(key->pointer, "/log/profile") != 0;
    if ((key->kinds & JOB_KINDS_OF(job_variant(job))) == 0 || key->type == JOB_OBJECT)
        return false;
    for (size_t i = 0; i < groups - (log_decides ? 1 : 0); i++)
        if (strncmp(key->pointer, free_groups[i], strlen(free_groups[i])) == 0)
            return false;
    return true;
}

/* Adds the key to the list of those that differ. The first always fits; a later one that does not is left
 * out. */
static void compare_key(char list[DIFFERENCES_BYTES], const char *pointer, const struct job *was,
                        const struct job *is)
{
    char old[JOB_WORDS_BYTES] = "", new[JOB_WORDS_BYTES] = "", text[DIFFERENCES_BYTES];
    const size_t length = strlen(list);
    add_value(old, was, pointer);
    add_value(new, is, pointer);
    const int more = snprintf(text, sizeof text, "%s%.60s (was %.60s, now %.60s)", length > 0 ? ", " : "",
                              pointer, old, new);
    if (strcmp(old, new) != 0 && length + (size_t)more < DIFFERENCES_BYTES)
        memcpy(list + length, text, (size_t)more + 1);
}

static enum status compare_jobs(const char *path, const struct job *was, const struct job *is,
                                struct error *error)
{
    char list[DIFFERENCES_BYTES] = "";
    for (size_t i = 0; i < job_key_count; i++)
        if (key_decides(&job_keys[i], is))
            compare_key(list, job_keys[i].pointer, was, is);
    if (list[0] == '\0')
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.120s is another job: %s; a resumed run may change /stop, %s/checkpoint, "
                     "/supervise, /hosts, /listen and /metrics alone",
                     path, list, is->kind == JOB_MODEL_PARALLEL ? "" : "/log, ");
}

void resume_keep(struct job *job, const struct job *began)
{
    if (!job->trainers.has_threads) {
        job->trainers.has_threads = began->trainers.has_threads;
        job->trainers.threads = began->trainers.threads;
    }
    if (!job->policy.has_threads) {
        job->policy.has_threads = began->policy.has_threads;
        job->policy.threads = began->policy.threads;
    }
    for (int layer = 0; layer < JOB_LAYERS; layer++)
        if (!job->threads[layer].has)
            job->threads[layer] = began->threads[layer];
}

enum status resume_read_job(struct job *job, struct path path, struct error *error)
{
    char *problems = NULL;
    enum status status = job_read_file(job, path, NULL, 0, NULL, &problems);
    if (status != STATUS_OK) {
        const char *why = problems != NULL ? problems : status_name(status);
        status = error_set(error, status == STATUS_INVALID ? STATUS_CORRUPT : status,
                           "the job of the run cannot be read: %.*s", (int)strcspn(why, "\n"), why);
    }
    free(problems);
    return status;
}

/* Compares `job`, after resume_keep, with the run's job file `path`: the keys that numbers depend on must be
 * equal. STATUS_NOT_FOUND: there is no such file. STATUS_CORRUPT: it is no job file. STATUS_INVALID names the
 * keys that differ. */
static enum status resume_adopt(struct path path, struct job *job, struct error *error)
{
    struct job was;
    const enum status status = resume_read_job(&was, path, error);
    if (status != STATUS_OK)
        return status;
    resume_keep(job, &was);
    return compare_jobs(path.text, &was, job, error);
}

/* A key with its default value is left out: a later version may have more keys. */
struct run_identity resume_identity(const struct job *job)
{
    struct run_identity identity = {.seed = job->seed};
    struct job defaults;
    crypto_hash_sha256_state sum;
    crypto_hash_sha256_init(&sum);
    job_defaults(&defaults, JOB_KINDS_OF(job_variant(job)));
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        char words[JOB_WORDS_BYTES] = "", by_default[JOB_WORDS_BYTES] = "";
        if (!key_decides(key, job))
            continue;
        words_add(words, "%s ", key->pointer);
        words_add(by_default, "%s ", key->pointer);
        words_add_value(words, job, key, true);
        words_add_value(by_default, &defaults, key, true);
        if (strcmp(words, by_default) != 0)
            crypto_hash_sha256_update(&sum, (const unsigned char *)words, strlen(words) + 1);
    }
    crypto_hash_sha256_final(&sum, identity.numbers);
    randombytes_buf(identity.id, sizeof identity.id);
    return identity;
}

static enum status judge_by_numbers(void *context, const struct run_place *place, struct error *why)
{
    const struct run_identity *identity = context;
    if (memcmp(place->run.numbers, identity->numbers, sizeof identity->numbers) == 0)
        return STATUS_OK;
    return error_set(why, STATUS_CORRUPT, "it is of another job");
}

/* Whether a sound checkpoint of the run in the directory has the numbers of `job`: for a run without its
 * job.json. */
static bool resume_recognizes(struct path run, const struct job *job)
{
    char checkpoint[CHECKPOINT_PATH_BYTES];
    struct checkpoint_counters counters;
    struct run_place place;
    struct error unused;
    struct job resolved = *job;
    job_resolve(&resolved);
    struct run_identity identity = resume_identity(&resolved);
    const struct checkpoint_judge judge = {.fits = judge_by_numbers, .context = &identity};
    return checkpoint_newest(run, &judge, checkpoint, &counters, &place, &unused) == STATUS_OK;
}

/* ---- the checkpoint ---- */

/* What the search judges checkpoints by. */
struct search {
    struct runlog *log;
    unsigned least;       /* so many logs must confirm the place */
    struct error foreign; /* why the newest one that is another run's is; STATUS_OK: there is none */
};

static void search_warn(void *context, const char *path, const char *why)
{
    const struct search *search = context;
    if (search->least == RUN_LOGS)
        log_warning("the checkpoint %s is skipped: %s", path, why);
}

static enum status search_judge(void *context, const struct run_place *place, struct error *why)
{
    struct search *search = context;
    const enum status status = runlog_owns(search->log, place, why);
    if (status != STATUS_OK && search->foreign.status == STATUS_OK)
        search->foreign = *why;
    return status == STATUS_OK ? runlog_confirm(search->log, place, search->least, why) : status;
}

/* With each round fewer logs need confirm a checkpoint. */
static enum status resume_find(struct resume_point *point, struct path run, struct runlog *log,
                               struct error *error)
{
    struct checkpoint_counters counters = {0};
    struct search search = {.log = log, .least = RUN_LOGS};
    const struct checkpoint_judge judge = {search_judge, search_warn, &search};
    *point = (struct resume_point){0};
    enum status status = checkpoint_newest(run, &judge, point->checkpoint, &counters, &point->place, error);
    while (status == STATUS_NOT_FOUND && search.least-- > 0)
        status = checkpoint_newest(run, &judge, point->checkpoint, &counters, &point->place, error);
    if (status != STATUS_OK)
        point->checkpoint[0] = '\0';
    if (status == STATUS_NOT_FOUND && search.foreign.status != STATUS_OK)
        return error_set(error, STATUS_INVALID,
                         "%.300s/checkpoints has no checkpoint of this run, but another run's: %.150s",
                         run.text, search.foreign.text);
    point->update = counters.update;
    point->running_reward = counters.running_reward;
    return status;
}

enum status resume_go_back(struct resume_point *point, struct path run, struct runlog *log,
                           const struct line_restart *cause, struct error *error)
{
    enum status status = resume_find(point, run, log, error);
    const bool found = status == STATUS_OK;
    if (found)
        log_info("going on from %s", point->checkpoint);
    else if (status == STATUS_NOT_FOUND)
        log_info("%s has no sound checkpoint: the run starts again from its beginning", run.text);
    else
        return status;
    status = checkpoint_set_aside(run, point->update, error);
    return status == STATUS_OK ? runlog_resume(log, found ? &point->place : NULL, point->update,
                                               point->running_reward, cause, error)
                               : status;
}

/* ---- the end ---- */

char *resume_last_line(struct path run)
{
    struct error unused;
    int fd;
    if (file_open_below(&fd, run, run_log_name(RUN_LOG_JSON), O_RDONLY, &unused) != STATUS_OK)
        return NULL;
    const off_t size = lseek(fd, 0, SEEK_END);
    char *tail = calloc(1, RUNLOG_LINE_BYTES + 1);
    if (tail != NULL) {
        const uint64_t at = size > RUNLOG_LINE_BYTES ? (uint64_t)size - RUNLOG_LINE_BYTES : 0;
        const ssize_t bytes = file_read_at(fd, tail, RUNLOG_LINE_BYTES, at);
        const size_t end = bytes > 0 && tail[bytes - 1] == '\n' ? (size_t)bytes - 1 : 0;
        const char *before = memrchr(tail, '\n', end);
        tail[end] = '\0';
        if (before != NULL)
            memmove(tail, before + 1, end - (size_t)(before - tail));
    }
    close(fd);
    return tail;
}

bool resume_is_over(const char *run_dir, const struct job *job)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct error error;
    struct job wanted = *job;
    const int dir_fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *line = dir_fd >= 0 ? resume_last_line(path_of_folder(dir_fd, run_dir)) : NULL;
    snprintf(path, sizeof path, "%s/job.json", run_dir);
    const bool is_over =
        line != NULL && runlog_ends_job(line, job) &&
        resume_adopt(path_below(path_of_folder(dir_fd, run_dir), path), &wanted, &error) == STATUS_OK;
    free(line);
    if (dir_fd >= 0)
        close(dir_fd);
    return is_over;
}

/* ---- the directory ---- */

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

/* Syncs the folder that `path` lies in, which has just got this entry. */
static enum status sync_parent(const char *path, struct error *error)
{
    char copy[sizeof((struct rundir *)0)->path];
    snprintf(copy, sizeof copy, "%s", path);
    return file_sync_folder(path_of(dirname(copy)), error);
}

/* Makes the directory and its parents, like mkdir -p, and syncs each new entry. */
static enum status rundir_make(const char *path, struct error *error)
{
    char parent[RUNDIR_PATH_BYTES];
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
        if (made && sync_parent(parent, error) != STATUS_OK)
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

static enum status open_and_lock(struct rundir *dir, struct error *error)
{
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd >= 0)
        return rundir_lock(dir, error);
    error_set_errno(error, errno, "cannot open the run directory %s", dir->path);
    return error_of_output(error);
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
    if (status == STATUS_OK)
        status = open_and_lock(dir, error);
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

/* False after the lock was removed and made again: another run may hold the new one, and its sockets have the
 * same names. */
static bool lock_is_in_place(const struct rundir *dir)
{
    struct stat held, there;
    return fstat(dir->lock_fd, &held) == 0 &&
           (fstatat(dir->fd, "lock", &there, AT_SYMLINK_NOFOLLOW) != 0 || held.st_ino == there.st_ino);
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
