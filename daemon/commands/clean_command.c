/* The command `clean`: removes the checkpoints of old previous runs, or these runs as a whole. The command's
 * process; its only thread; blocks on the disk. */
#include "daemon/commands/commands.h"

#include "daemon/commands/found_runs.h"
#include "daemon/log/run_summary.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct cleaning {
    const struct arguments *arguments;
    uint64_t bytes;
    unsigned runs, failures;
};

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

static void clean_run(struct cleaning *c, const struct run_summary *s)
{
    char shown[PATH_MAX], size[CELL_BYTES];
    const uint64_t before = c->bytes;
    const char *verb = c->arguments->dry_run ? "would be removed" : "removed";
    const int fd = open(s->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const struct path run = path_of_folder(fd, s->path);
    unsigned checkpoints = 0;
    bool is_gone = false;
    if (fd < 0) {
        log_warning("cannot open %.400s: %s", s->path, strerror(errno));
        c->failures++;
        return;
    }
    if (c->arguments->all)
        is_gone = remove_folder(c, path_of(s->path));
    else
        checkpoints = remove_checkpoints(c, run);
    close(fd);
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

/* A run's age counts from its newest line; without a line, from the last change of its folder. */
static bool is_old(const struct run_summary *s, double age_s)
{
    struct stat info;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    const double now = (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
    if (s->ended_unix_s > 0)
        return now - s->ended_unix_s >= age_s;
    return stat(s->path, &info) == 0 && now - (double)info.st_mtime >= age_s;
}

enum status clean_runs(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    struct cleaning cleaning = {.arguments = arguments};
    struct run_folders folders;
    struct run_summary summary;
    struct error unread;
    char size[CELL_BYTES];
    const enum status status =
        found_runs_folders(&folders, arguments->folders, arguments->folder_count, NULL, error);
    for (size_t i = 0; status == STATUS_OK && i < folders.count; i++)
        if (run_summary_read(&summary, folders.of[i], &unread) == STATUS_OK && summary.is_previous &&
            summary.pid == 0 && is_old(&summary, arguments->age_s))
            clean_run(&cleaning, &summary);
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
