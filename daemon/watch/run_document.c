/* Writes a run's history, its checkpoints and its job as JSON. */
#include "daemon/watch/run_document.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHECKPOINTS_MAX = 256 };

struct checkpoint {
    uint64_t number;
    double unix_s;
};

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t first = ((const struct checkpoint *)a)->number;
    const uint64_t second = ((const struct checkpoint *)b)->number;
    return first < second ? -1 : first > second;
}

/* Of more than CHECKPOINTS_MAX some are missing. */
static size_t find_checkpoints(struct path run, struct checkpoint found[CHECKPOINTS_MAX])
{
    struct error error;
    int fd;
    size_t count = 0;
    char text[4096];
    if (snprintf(text, sizeof text, "%s/checkpoints", run.text) >= (int)sizeof text ||
        file_open_folder(&fd, path_below(run, text), &error) != STATUS_OK)
        return 0;
    DIR *folder = fdopendir(fd);
    if (folder == NULL) {
        close(fd);
        return 0;
    }
    for (const struct dirent *entry; count < CHECKPOINTS_MAX && (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        struct stat info;
        if (name[strspn(name, "0123456789")] != '\0' || fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISDIR(info.st_mode))
            continue;
        found[count++] = (struct checkpoint){
            strtoull(name, NULL, 10), (double)info.st_mtim.tv_sec + (double)info.st_mtim.tv_nsec * 1e-9};
    }
    closedir(folder);
    qsort(found, count, sizeof *found, compare_numbers);
    return count;
}

/* A job's text may have several lines. */
static void write_job(const char *text, size_t bytes, FILE *out)
{
    cJSON *job = text != NULL ? cJSON_ParseWithLength(text, bytes) : NULL;
    char *line = job != NULL ? cJSON_PrintUnformatted(job) : NULL;
    fputs(line != NULL ? line : "null", out);
    cJSON_free(line);
    cJSON_Delete(job);
}

void run_document_write(struct run_history *history, struct path run, const char *job, size_t job_bytes,
                        bool whole, FILE *out)
{
    struct checkpoint checkpoints[CHECKPOINTS_MAX];
    const size_t count = find_checkpoints(run, checkpoints);
    run_history_write(history, whole, out);
    fputs(",\"checkpoints\":[", out);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s[%" PRIu64 ",%.3f]", i > 0 ? "," : "", checkpoints[i].number, checkpoints[i].unix_s);
    fputc(']', out);
    if (!whole)
        return;
    fputs(",\"job\":", out);
    write_job(job, job_bytes, out);
}
