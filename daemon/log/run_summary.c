/* Reads the folders of runs. The command's process; its only thread. */
#include "daemon/log/run_summary.h"

#include "daemon/log/json_members.h"
#include "daemon/log/run_history.h"
#include "daemon/log/runlog.h"
#include "kernels/base/file.h"
#include "kernels/base/text.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/job/job_table.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Dozens of lines of most jobs. */
enum { BLOCK_BYTES = 32768 };

static bool is_previous_name(const char *name)
{
    const size_t length = strlen("previous-");
    uint64_t number;
    return strncmp(name, "previous-", length) == 0 && text_integer(name + length, UINT64_MAX, &number);
}

/* `folder`: a path from the open folder `from` on, or an absolute path. */
static bool has_entry(int from, const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           fstatat(from, path, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A job.json alone may belong to anything. */
static bool has_run(int from, const char *folder)
{
    return has_entry(from, folder, "episodes.jsonl") ||
           (has_entry(from, folder, "job.json") && has_entry(from, folder, "lock"));
}

/* ---- lines ---- */

/* The members that progress_note reads. */
static void read_episode(struct control_episode *r, const cJSON *line)
{
    const cJSON *eval = cJSON_GetObjectItemCaseSensitive(line, "eval");
    *r = (struct control_episode){.episode = json_count(line, "episode"),
                                  .running_reward = json_number(line, "running_reward"),
                                  .env_steps = json_count(line, "env_steps"),
                                  .has_figures = !isnan(json_number(line, "total_timesteps"))};
    r->timing.episode_s = json_number(cJSON_GetObjectItemCaseSensitive(line, "timing"), "episode_s");
    r->figures.total_timesteps = json_count(line, "total_timesteps");
    r->figures.ep_rew_mean = json_number(line, "ep_rew_mean");
    r->figures.has_evaluation = cJSON_IsObject(eval);
    r->figures.evaluation.mean_reward = json_number(eval, "mean_reward");
    r->figures.evaluation.std_reward = json_number(eval, "std_reward");
}

/* False: the line is no record. */
static bool read_record(struct control_message *record, const cJSON *line)
{
    if (cJSON_HasObjectItem(line, "epoch")) {
        record->kind = CONTROL_EPOCH;
        record->body.epoch =
            (struct control_epoch){.epoch = json_count(line, "epoch"), .update = json_count(line, "update")};
    } else if (cJSON_HasObjectItem(line, "episode")) {
        record->kind = CONTROL_EPISODE;
        read_episode(&record->body.episode, line);
    } else {
        record->kind = CONTROL_UPDATE;
        struct control_update *r = &record->body.update;
        *r = (struct control_update){.update = json_count(line, "update"),
                                     .loss = json_number(line, "loss"),
                                     .samples = json_count(line, "samples")};
        r->timing.round_s = (double)r->samples /
                            json_number(cJSON_GetObjectItemCaseSensitive(line, "timing"), "samples_per_s");
    }
    return cJSON_HasObjectItem(line, "episode") || cJSON_HasObjectItem(line, "update");
}

/* ---- the log ---- */

struct log_reading {
    struct run_summary *out;
    struct job *job; /* of a run without a sound job.json, the kind alone, as its lines say */
    bool is_over;    /* by the job's /stop, as the newest line says */
};

static void note_event(struct log_reading *r, const cJSON *line, const char *text)
{
    struct run_summary *out = r->out;
    const char *event = json_text(line, "event");
    out->state = runlog_end(event) != NULL ? runlog_end(event) : "died";
    r->is_over = runlog_ends_job(text, r->job);
    snprintf(out->reason, sizeof out->reason, "%s",
             strcmp(out->state, "failed") == 0 ? json_text(line, "reason") : "");
    if (strcmp(event, "resumed") == 0) /* the run did no work during the pause */
        out->progress.begun_at = UINT64_MAX;
}

static void note_record(struct log_reading *r, const cJSON *line, double unix_s)
{
    struct control_message record;
    const struct monotime at = {unix_s > 0 && unix_s < 1e10 ? (uint64_t)(unix_s * 1e9) : 0};
    struct run_summary *out = r->out;
    out->state = "died";
    r->is_over = false;
    if (!read_record(&record, line))
        return;
    if (out->kind[0] == '\0') {
        r->job->kind = record.kind == CONTROL_EPISODE ? JOB_REINFORCE
                       : cJSON_HasObjectItem(line, "held_out") ||
                               (record.kind == CONTROL_UPDATE && !cJSON_HasObjectItem(line, "losses"))
                           ? JOB_MODEL_PARALLEL
                           : JOB_PARAMETER_SERVER;
        out->kind = job_kind_name(r->job->kind);
    }
    progress_note(&out->progress, r->job, &record, at);
}

/* A line that is damaged says nothing. */
static void note_line(struct log_reading *r, const char *text)
{
    cJSON *line = cJSON_Parse(text);
    const double unix_s = json_number(cJSON_GetObjectItemCaseSensitive(line, "timing"), "unix_s");
    if (cJSON_IsObject(line) && !isnan(unix_s)) {
        r->out->ended_unix_s = unix_s;
        if (cJSON_HasObjectItem(line, "event"))
            note_event(r, line, text);
        else
            note_record(r, line, unix_s);
    }
    cJSON_Delete(line);
}

/* Notes the whole lines that begin like `prefix` among the bytes from `at` on; the first one only where the
 * log begins there. Returns how many whole lines there were. */
static size_t note_block(struct log_reading *r, int fd, uint64_t at, size_t bytes, const char *prefix)
{
    size_t count = 0;
    char *text = malloc(bytes + 1);
    const ssize_t got = text != NULL ? file_read_at(fd, text, bytes, at) : -1;
    char *line = text, *end;
    if (got >= 0)
        text[got] = '\0';
    if (got > 0 && at > 0)
        line = (end = memchr(text, '\n', (size_t)got)) != NULL ? end + 1 : text + got;
    while (got > 0 && (end = memchr(line, '\n', (size_t)(text + got - line))) != NULL) {
        *end = '\0';
        if (strncmp(line, prefix, strlen(prefix)) == 0)
            note_line(r, line);
        line = end + 1;
        count++;
    }
    free(text);
    return count;
}

/* The first block tells the beginning, and perhaps the length of an epoch. The last block tells the rest. A
 * last block without a whole line is doubled: the newest line is longer. */
static void note_log(struct log_reading *r, int fd, uint64_t size)
{
    struct run_summary *out = r->out;
    struct log_reading first = *r;
    struct run_summary beginning = *out;
    first.out = &beginning;
    note_block(&first, fd, 0, BLOCK_BYTES, "{\"epoch\":");
    out->progress.epoch_updates = beginning.progress.epoch_updates;
    for (size_t bytes = BLOCK_BYTES; bytes <= 2 * (size_t)HISTORY_BLOCK_BYTES; bytes *= 2)
        if (note_block(r, fd, size > bytes ? size - bytes : 0, bytes, "") > 0 || bytes >= size)
            return;
}

/* The time of the first line, unless a rotation has moved the lines before it away. */
static double begin_of(int fd)
{
    char text[BLOCK_BYTES + 1] = "";
    const ssize_t got = file_read_at(fd, text, BLOCK_BYTES, 0);
    text[got > 0 ? strcspn(text, "\n") : 0] = '\0';
    cJSON *line = cJSON_Parse(text);
    const bool is_first = strcmp(json_text(line, "event"), "continued") != 0;
    const double unix_s = json_number(cJSON_GetObjectItemCaseSensitive(line, "timing"), "unix_s");
    cJSON_Delete(line);
    return is_first ? unix_s : (double)NAN;
}

static enum status read_log(struct log_reading *r, struct path run, struct error *error)
{
    static const char no_end[] = "no line says how it ended: the process was killed, or the machine failed";
    struct run_summary *out = r->out;
    struct stat info;
    int fd;
    const enum status status = file_open_below(&fd, run, run_log_name(RUN_LOG_JSON), O_RDONLY, error);
    out->state = "died";
    if (status == STATUS_OK && fstat(fd, &info) == 0) {
        out->began_unix_s = begin_of(fd);
        note_log(r, fd, (uint64_t)info.st_size);
    }
    if (status == STATUS_OK)
        close(fd);
    if (strcmp(out->state, "died") == 0)
        snprintf(out->reason, sizeof out->reason, "%s",
                 status == STATUS_NOT_FOUND
                     ? "it has no episodes.jsonl: the start failed, or the log was moved away"
                     : no_end);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

/* ---- the folder ---- */

/* On some file systems /proc/locks and stat(2) name different devices. The process in the file then tells
 * which lock is this one. */
static pid_t lock_holder(struct path run)
{
    char line[256], text[32] = "";
    struct stat info;
    struct error unused;
    unsigned long inode;
    unsigned major_number, minor_number;
    int fd, holder, pid = 0;
    if (file_open_below(&fd, run, "lock", O_RDONLY, &unused) != STATUS_OK)
        return 0;
    const bool is_read = fstat(fd, &info) == 0 && file_read_at(fd, text, sizeof text - 1, 0) >= 0;
    close(fd);
    FILE *locks = is_read ? fopen("/proc/locks", "re") : NULL;
    while (locks != NULL && pid == 0 && fgets(line, sizeof line, locks) != NULL)
        if (sscanf(line, "%*d: FLOCK ADVISORY WRITE %d %x:%x:%lu", &holder, &major_number, &minor_number,
                   &inode) == 4 &&
            inode == info.st_ino &&
            (makedev(major_number, minor_number) == info.st_dev || strtol(text, NULL, 10) == holder))
            pid = holder;
    if (locks != NULL)
        fclose(locks);
    return pid;
}

pid_t run_lock_holder(const char *folder)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const pid_t pid = fd >= 0 ? lock_holder(path_of_folder(fd, folder)) : 0;
    if (fd >= 0)
        close(fd);
    return pid;
}

/* False: the job is all zero. */
static bool read_job(struct job *job, struct path run)
{
    char path[PATH_MAX + sizeof "/job.json"];
    char *problems = NULL;
    snprintf(path, sizeof path, "%s/job.json", run.text);
    const bool is_sound = job_read_file(job, path_below(run, path), NULL, 0, NULL, &problems) == STATUS_OK;
    free(problems);
    if (!is_sound)
        *job = (struct job){0};
    return is_sound;
}

/* The lock comes first: a run that ends meanwhile has its end in the log. */
static enum status read_run(struct run_summary *out, struct path run, struct error *error)
{
    struct job job;
    struct checkpoint_found *found;
    struct log_reading reading = {.out = out, .job = &job};
    const bool is_sound = read_job(&job, run);
    const char *base = strrchr(run.text, '/') + 1;
    snprintf(out->name, sizeof out->name, "%s", is_sound ? job.name : base);
    out->kind = is_sound ? job_kind_name(job.kind) : "";
    out->pid = lock_holder(run);
    const enum status status = read_log(&reading, run, error);
    if (out->pid > 0) {
        out->state = "running";
        out->reason[0] = '\0';
    } else {
        out->progress.eta_s = NAN;
    }
    const size_t checkpoints = checkpoint_find(&found, run);
    out->checkpoint = checkpoints > 0 ? found[checkpoints - 1].number : 0;
    free(found);
    out->is_resumable = out->checkpoint > 0 && out->pid == 0 && !reading.is_over;
    out->has_best = has_entry(run.folder, ".", "checkpoints/best/manifest.json");
    out->is_previous =
        is_previous_name(base) && !has_entry(run.folder, ".", "lock") && has_run(run.folder, "..");
    out->bytes = run_summary_bytes(run.text, false);
    return status;
}

enum status run_summary_read(struct run_summary *out, const char *folder, struct error *error)
{
    *out = (struct run_summary){.kind = "", .state = "died", .began_unix_s = NAN, .ended_unix_s = NAN};
    out->progress.eta_s = out->progress.value = out->progress.goal = out->progress.evaluation = NAN;
    const int fd =
        realpath(folder, out->path) != NULL ? open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    struct stat info;
    if (fd < 0)
        return error_set_errno(error, errno, "cannot read %.300s", folder);
    if (fstat(fd, &info) == 0) {
        out->device = info.st_dev;
        out->inode = info.st_ino;
    }
    const enum status status =
        has_run(fd, ".")
            ? read_run(out, path_of_folder(fd, out->path), error)
            : error_set(error, STATUS_NOT_FOUND,
                        "%.300s has no episodes.jsonl, nor job.json with lock: expected a run's folder",
                        folder);
    close(fd);
    return status;
}

uint64_t run_summary_bytes(const char *folder, bool only_own)
{
    char copy[PATH_MAX];
    char *const roots[] = {copy, NULL};
    uint64_t bytes = 0;
    snprintf(copy, sizeof copy, "%s", folder);
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *entry; tree != NULL && (entry = fts_read(tree)) != NULL;) {
        if (entry->fts_info == FTS_D && entry->fts_level == 1 && is_previous_name(entry->fts_name))
            fts_set(tree, entry, FTS_SKIP);
        else if (entry->fts_info == FTS_F && !(only_own && entry->fts_statp->st_nlink > 1))
            bytes += (uint64_t)entry->fts_statp->st_blocks * 512 / entry->fts_statp->st_nlink;
    }
    if (tree != NULL)
        fts_close(tree);
    return bytes;
}

/* ---- JSON ---- */

static bool is_utf8(const char *text)
{
    size_t bytes = 1;
    for (const char *at = text; *at != '\0' && bytes > 0; at += bytes)
        bytes = text_character(at, strlen(at));
    return bytes > 0;
}

/* A program opens the path that it reads here, so only a text that JSON cannot have is changed. */
static void put_text(cJSON *object, const char *name, const char *text)
{
    char shown[PATH_MAX];
    text_show(shown, sizeof shown, text, strlen(text), sizeof shown - 1);
    if (text[0] != '\0')
        cJSON_AddStringToObject(object, name, is_utf8(text) ? text : shown);
    else
        cJSON_AddNullToObject(object, name);
}

cJSON *run_summary_json(const struct run_summary *s)
{
    cJSON *object = cJSON_CreateObject();
    put_text(object, "run", s->path);
    put_text(object, "name", s->name);
    put_text(object, "kind", s->kind);
    put_text(object, "state", s->state);
    put_text(object, "reason", s->reason);
    json_put(object, "pid", s->pid > 0 ? (double)s->pid : (double)NAN);
    json_put(object, "began_unix_s", s->began_unix_s);
    json_put(object, "ended_unix_s", s->ended_unix_s);
    json_put(object, "bytes", (double)s->bytes);
    json_put(object, "checkpoint", s->checkpoint > 0 ? (double)s->checkpoint : (double)NAN);
    cJSON_AddBoolToObject(object, "resumable", s->is_resumable);
    cJSON_AddBoolToObject(object, "best", s->has_best);
    cJSON_AddBoolToObject(object, "previous", s->is_previous);
    const struct progress *p = &s->progress;
    cJSON *progress = cJSON_AddObjectToObject(object, "progress");
    if (p->unit == NULL)
        return object;
    cJSON_AddStringToObject(progress, "unit", p->unit);
    json_put(progress, "done", (double)p->done);
    json_put(progress, "total", p->total > 0 ? (double)p->total : (double)NAN);
    json_put(progress, "eta_s", p->eta_s);
    put_text(progress, "figure", p->figure != NULL ? p->figure : "");
    json_put(progress, "value", p->value);
    json_put(progress, "goal", p->goal);
    json_put(progress, "evaluation", p->evaluation);
    json_put(progress, "evaluation_std", isnan(p->evaluation) ? (double)NAN : p->evaluation_std);
    return object;
}

/* ---- finding ---- */

static enum status add_folder(struct run_folders *out, const char *path, struct error *error)
{
    if ((out->count & (out->count - 1)) == 0) { /* full at each power of two */
        char **more = realloc(out->of, (2 * out->count + 1) * sizeof *more);
        if (more == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for the runs");
        out->of = more;
    }
    out->of[out->count] = strdup(path);
    if (out->of[out->count] == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the runs");
    out->count++;
    return STATUS_OK;
}

struct finding {
    struct run_folders *out;
    unsigned unread;    /* folders */
    struct error first; /* of these */
};

/* NULL: at the end with errno 0, or after an error. */
static FTSENT *next_entry(FTS *tree)
{
    errno = 0;
    return fts_read(tree);
}

/* Below a run lie its own folders. Only a folder that someone named, of level 0, may be a run and hold
 * others.
 */
static enum status visit(struct finding *f, char path[PATH_MAX], struct error *error)
{
    enum { LEVEL_MAX = 2 };
    char *const roots[] = {path, NULL};
    enum status status = STATUS_OK;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL)
        return error_set_errno(error, errno, "cannot read %.300s", path);
    for (FTSENT *entry; status == STATUS_OK && (entry = next_entry(tree)) != NULL;) {
        const bool is_previous = is_previous_name(entry->fts_name);
        const bool is_unread =
            entry->fts_info == FTS_DNR || entry->fts_info == FTS_NS || entry->fts_info == FTS_ERR;
        if (entry->fts_level == 0 && entry->fts_info != FTS_D && entry->fts_info != FTS_DP)
            status =
                error_set_errno(error, is_unread ? entry->fts_errno : ENOTDIR, "cannot read %.300s", path);
        else if (is_unread && entry->fts_errno != ENOENT && f->unread++ == 0)
            error_set_errno(&f->first, entry->fts_errno, "cannot read %.300s", entry->fts_path);
        if (entry->fts_info != FTS_D)
            continue;
        const bool is_own = entry->fts_level > 1 && entry->fts_parent->fts_number != 0 && !is_previous;
        entry->fts_number = !is_own && has_run(AT_FDCWD, entry->fts_path); /* whether it is a run */
        if (entry->fts_number != 0)
            status = add_folder(f->out, entry->fts_path, error);
        if (is_own || (entry->fts_number != 0 ? is_previous : entry->fts_level >= LEVEL_MAX))
            fts_set(tree, entry, FTS_SKIP);
    }
    if (status == STATUS_OK && errno != 0)
        status = error_set_errno(error, errno, "cannot read all of %.300s", path);
    fts_close(tree);
    return status;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status run_folders_find(struct run_folders *out, const char *const *folders, size_t count,
                             struct error *error)
{
    char path[PATH_MAX];
    struct finding finding = {.out = out};
    enum status status = STATUS_OK;
    size_t kept = 0;
    *out = (struct run_folders){0};
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = realpath(folders[i], path) != NULL
                     ? visit(&finding, path, error)
                     : error_set_errno(error, errno, "cannot read %.300s", folders[i]);
    if (finding.unread == 1)
        snprintf(out->unread, sizeof out->unread, "%s", finding.first.text);
    else if (finding.unread > 1)
        snprintf(out->unread, sizeof out->unread, "%s; in all %u folders cannot be read", finding.first.text,
                 finding.unread);
    if (out->count > 0)
        qsort(out->of, out->count, sizeof *out->of, compare_paths);
    for (size_t i = 0; i < out->count; i++) {
        if (kept > 0 && strcmp(out->of[kept - 1], out->of[i]) == 0)
            free(out->of[i]);
        else
            out->of[kept++] = out->of[i];
    }
    out->count = kept;
    return status;
}

void run_folders_free(struct run_folders *folders)
{
    for (size_t i = 0; i < folders->count; i++)
        free(folders->of[i]);
    free(folders->of);
    *folders = (struct run_folders){0};
}
