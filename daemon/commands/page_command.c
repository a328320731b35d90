/* The command `page`: serves a page of all runs, those that go on and those that have ended
 * (daemon/watch/http/http.h). It reads the runs' files alone. The command's process; its only thread; blocks
 * on these files. */
#include "daemon/commands/commands.h"

#include "daemon/commands/found_runs.h"
#include "daemon/log/run_history.h"
#include "daemon/log/run_summary.h"
#include "daemon/process/spawn.h"
#include "daemon/watch/listener.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ID_BYTES = 8, AGE_US = 2000000, HISTORIES_MAX = 64, CONNECTIONS_MAX = 200 };

/* What changes when a run does. */
struct run_stamp {
    struct timespec folder, log, checkpoints;
    off_t log_bytes;
};

/* A run as it was read last. */
struct seen_run {
    char id[2 * ID_BYTES + 1]; /* of its path: a reader names no file */
    char *path, *json;         /* json: of run_summary.h, with the id */
    bool goes_on;
    struct run_stamp stamp;
    struct run_history *history; /* NULL: no reader has asked for it */
    uint64_t asked;              /* counts requests: the history with the lowest goes first */
};

struct run_page {
    const struct arguments *arguments;
    struct seen_run *runs; /* (count), by path */
    size_t count;
    uint64_t requests;
    struct monotime read_at;           /* all zero: never */
    char warned[2 * ERROR_TEXT_BYTES]; /* the last warning */
};

/* ---- one run ---- */

static void seen_free(struct seen_run *run)
{
    free(run->path);
    cJSON_free(run->json);
    run_history_free(run->history);
}

static struct stat look_at(const char *path, const char *name)
{
    char whole[PATH_MAX + 32];
    struct stat info;
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    return lstat(whole, &info) == 0 ? info : (struct stat){0};
}

static struct run_stamp stamp_of(const char *path)
{
    const struct stat log = look_at(path, "episodes.jsonl");
    return (struct run_stamp){.folder = look_at(path, ".").st_mtim,
                              .log = log.st_mtim,
                              .checkpoints = look_at(path, "checkpoints").st_mtim,
                              .log_bytes = log.st_size};
}

/* Reads the run again if it may have changed. False: it is no run any more, or there is no memory. */
static bool seen_refresh(struct seen_run *run)
{
    static struct run_summary summary;
    const struct run_stamp stamp = stamp_of(run->path);
    struct error error;
    if (run->json != NULL && !run->goes_on && memcmp(&stamp, &run->stamp, sizeof stamp) == 0)
        return true;
    if (run_summary_read(&summary, run->path, &error) != STATUS_OK)
        return false;
    cJSON *object = run_summary_json(&summary);
    cJSON_AddStringToObject(object, "id", run->id);
    cJSON_free(run->json);
    run->json = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    run->goes_on = strcmp(summary.state, "running") == 0;
    run->stamp = stamp;
    return run->json != NULL;
}

/* ---- all runs ---- */

static int compare_paths(const void *path, const void *run)
{
    return strcmp(path, ((const struct seen_run *)run)->path);
}

/* Takes over what is known of a path, or begins with nothing. */
static struct seen_run take_over(struct run_page *page, const char *path)
{
    struct seen_run *old =
        page->count > 0 ? bsearch(path, page->runs, page->count, sizeof *page->runs, compare_paths) : NULL;
    struct seen_run run = {0};
    if (old != NULL) {
        run = *old;
        old->json = NULL;
        old->history = NULL;
    }
    run.path = strdup(path);
    return run;
}

static void forget_runs(struct run_page *page)
{
    for (size_t i = 0; i < page->count; i++)
        seen_free(&page->runs[i]);
    free(page->runs);
    page->runs = NULL;
    page->count = 0;
}

/* Warns if the sentence is another one than the last. */
static void page_warn(struct run_page *page, const char *text)
{
    if (strcmp(text, page->warned) != 0)
        log_warning("%s", text);
    snprintf(page->warned, sizeof page->warned, "%s", text);
}

static enum status find_runs(struct run_page *page, struct error *error)
{
    struct run_folders folders;
    unsigned char hash[crypto_generichash_BYTES_MIN];
    enum status status =
        found_runs_folders(&folders, page->arguments->folders, page->arguments->folder_count, NULL, error);
    struct seen_run *runs = status == STATUS_OK ? calloc(folders.count + 1, sizeof *runs) : NULL;
    if (status == STATUS_OK && runs == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for the runs");
    size_t count = 0;
    for (size_t i = 0; runs != NULL && i < folders.count; i++) {
        runs[count] = take_over(page, folders.of[i]);
        crypto_generichash(hash, sizeof hash, (const unsigned char *)folders.of[i], strlen(folders.of[i]),
                           NULL, 0);
        sodium_bin2hex(runs[count].id, sizeof runs[count].id, hash, ID_BYTES);
        if (runs[count].path != NULL && seen_refresh(&runs[count]))
            count++;
        else
            seen_free(&runs[count]);
    }
    if (status == STATUS_OK && folders.unread[0] != '\0')
        page_warn(page, folders.unread);
    run_folders_free(&folders);
    if (runs == NULL)
        return status;
    forget_runs(page);
    page->runs = runs;
    page->count = count;
    return STATUS_OK;
}

/* ---- documents ---- */

/* Refreshes the list at most every 2 s, for all readers together. If the refresh fails, keeps the old list.
 */
static void refresh(struct run_page *page)
{
    struct error error = {0};
    if (monotime_us_between(page->read_at, monotime_now()) <= AGE_US)
        return;
    if (find_runs(page, &error) != STATUS_OK)
        page_warn(page, error.text);
    page->read_at = monotime_now();
}

static char *write_runs(struct run_page *page, size_t *length)
{
    refresh(page);
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (out == NULL)
        return NULL;
    fputs("{\"runs\":[", out);
    for (size_t i = 0; i < page->count; i++)
        fprintf(out, "%s%s", i > 0 ? ",\n" : "", page->runs[i].json);
    fputs("]}\n", out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* A history may take several MiB. Only the most recently requested histories stay in memory. */
static void drop_oldest(struct run_page *page)
{
    struct seen_run *oldest = NULL;
    size_t histories = 0;
    for (size_t i = 0; i < page->count; i++) {
        struct seen_run *run = &page->runs[i];
        if (run->history == NULL)
            continue;
        histories++;
        if (oldest == NULL || run->asked < oldest->asked)
            oldest = run;
    }
    if (histories < HISTORIES_MAX)
        return;
    run_history_free(oldest->history);
    oldest->history = NULL;
}

/* A log that is missing has no lines. */
static bool read_history(struct run_page *page, struct seen_run *run)
{
    struct error error;
    if (run->history == NULL)
        drop_oldest(page);
    if (run->history == NULL && run_history_new(&run->history, &error) != STATUS_OK)
        return false;
    run->asked = ++page->requests;
    const enum status status = run_history_read(run->history, path_of(run->path), &error);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        log_warning("%s: %s", run->path, error.text);
    return true;
}

static char *write_run(struct run_page *page, const char *id, size_t *length)
{
    struct seen_run *run = NULL;
    for (size_t i = 0; i < page->count && run == NULL; i++)
        run = strcmp(page->runs[i].id, id) == 0 ? &page->runs[i] : NULL;
    if (run == NULL || !read_history(page, run))
        return NULL;
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (out == NULL)
        return NULL;
    fputc('{', out);
    run_history_write(run->history, path_of(run->path), true, out);
    fputs("}\n", out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

static char *document(void *arg, enum http_document which, const char *id, size_t *length)
{
    return which == HTTP_RUNS ? write_runs(arg, length) : write_run(arg, id, length);
}

/* ---- serving ---- */

/* Whether one of the signals that have come ends the server: a child's end and SIGUSR1 do not. */
static bool is_over(int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP)
            return true;
    return false;
}

/* Serves to the first signal that ends a program. */
enum status page_serve(const struct arguments *arguments, struct job *job, struct error *error)
{
    struct run_page page = {.arguments = arguments};
    struct listener listener;
    int signals;
    const struct listener_place place = {.listen = arguments->listen,
                                         .token = arguments->token,
                                         .listen_name = "--listen",
                                         .token_name = "--token"};
    const struct http_config config = {
        .serves_runs = true, .document = document, .arg = &page, .connections_max = CONNECTIONS_MAX};
    (void)job;
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    enum status status = find_runs(&page, error);
    if (status == STATUS_OK)
        status = listener_open(&listener, &place, config, error);
    if (status == STATUS_OK && geteuid() == 0 && place.token == NULL && strchr(place.listen, '/') == NULL)
        log_warning("every user of this host can read the page: expected --token, or a socket's path");
    if (status == STATUS_OK && (status = signals_open(&signals, error)) != STATUS_OK)
        listener_close(&listener);
    if (status == STATUS_OK) {
        log_info("the page of %zu runs is at %s%s", page.count,
                 strchr(place.listen, '/') == NULL ? "http://" : "", place.listen);
        struct pollfd waits[] = {{.fd = listener_fd(&listener), .events = POLLIN},
                                 {.fd = signals, .events = POLLIN}};
        struct monotime now = monotime_now();
        while (!is_over(signals) &&
               (poll(waits, 2, monotime_poll_ms(now, listener_due(&listener, now))) >= 0 || errno == EINTR)) {
            listener_serve(&listener);
            now = monotime_now();
        }
        listener_close(&listener);
        close(signals);
    }
    forget_runs(&page);
    return status;
}
