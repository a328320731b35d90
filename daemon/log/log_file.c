/* Appends lines to a log, confirms a place in it, and cuts the lines after a place. Supervisor process; its
 * only thread. */
#include "daemon/log/log_file.h"

#include "kernels/base/log.h"
#include "kernels/base/monotime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 4096 + 128, BLOCK_BYTES = 1 << 16 };

struct log_file {
    enum run_log log;
    struct path run;
    char text[TEXT_BYTES]; /* the file's path */
    int fd;
    uint64_t lines, bytes; /* struct log_place's, behind the newest line */
    crypto_hash_sha256_state sum;
    struct error lost; /* of a file that was left and could not be synced; STATUS_OK: none */
};

/* ---- lines that are read back ---- */

#define CONTINUED_JSON "{\"event\":\"continued\",\"lines\":"
#define CONTINUED_TIMING ",\"timing\":{"
#define CONTINUED_TEXT "Continued: "
#define CONTINUED_RUN " lines stand in earlier files of run "

static bool line_continued(const char *text, uint64_t *lines)
{
    return sscanf(text, CONTINUED_JSON "%20" SCNu64 CONTINUED_TIMING, lines) == 1 ||
           sscanf(text, CONTINUED_TEXT "%20" SCNu64 CONTINUED_RUN, lines) == 1;
}

static bool line_run_id(const char *text, uint8_t id[RUN_ID_BYTES])
{
    const char *const keys[] = {LOG_RUN_KEY, CONTINUED_RUN};
    size_t bytes = 0;
    for (size_t i = 0; i < 2 && bytes == 0; i++) {
        const char *at = strstr(text, keys[i]);
        if (at != NULL)
            sodium_hex2bin(id, RUN_ID_BYTES, at + strlen(keys[i]), strcspn(at + strlen(keys[i]), "\"\n"),
                           NULL, &bytes, NULL);
    }
    return bytes == RUN_ID_BYTES;
}

static bool text_is(const char *text, const char *begin, const char *end)
{
    const size_t length = strlen(text);
    return strncmp(text, begin, strlen(begin)) == 0 && length >= strlen(end) &&
           strcmp(text + length - strlen(end), end) == 0;
}

static bool line_is_event(const char *text, enum run_log log)
{
    uint64_t lines;
    if (log == RUN_LOG_TEXT)
        return text_is(text, "Solved! ", "\n") || text_is(text, "Not solved: ", "\n");
    return text_is(text, "{\"event\":\"", "}}\n") && strstr(text, "}{") == NULL &&
           !line_continued(text, &lines);
}

/* ---- names ---- */

static struct path log_path(const struct log_file *file)
{
    return path_below(file->run, file->text);
}

/* RUN/NAME followed by `end`. */
static struct path log_path_beside(const struct log_file *file, char text[TEXT_BYTES], const char *end)
{
    snprintf(text, TEXT_BYTES, "%.4000s%s", file->text, end);
    return path_below(file->run, text);
}

/* ---- opening ---- */

static enum status log_open_fd(const struct log_file *file, int *fd, struct error *error)
{
    enum status status = file_open_as(fd, log_path(file), O_RDWR | O_CREAT | O_APPEND, error);
    if (status == STATUS_OK && (status = file_sync_folder(file->run, error)) != STATUS_OK)
        close(*fd);
    if (status != STATUS_OK)
        *fd = -1;
    return status;
}

static void log_begin(struct log_file *file, uint64_t lines)
{
    file->lines = lines;
    file->bytes = 0;
    crypto_hash_sha256_init(&file->sum);
}

enum status log_file_open(struct log_file **out, struct path run, enum run_log log, struct error *error)
{
    struct log_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the logs");
    *file = (struct log_file){.log = log, .run = run};
    snprintf(file->text, sizeof file->text, "%.4000s/%s", run.text, run_log_name(log));
    log_begin(file, 0);
    const enum status status = log_open_fd(file, &file->fd, error);
    if (status == STATUS_OK)
        *out = file;
    else
        free(file);
    return status;
}

void log_file_close(struct log_file *file)
{
    if (file != NULL && file->fd >= 0)
        close(file->fd);
    free(file);
}

/* ---- lines ---- */

static void log_count(struct log_file *file, const char *text, size_t bytes, uint64_t lines)
{
    file->lines += lines;
    file->bytes += bytes;
    crypto_hash_sha256_update(&file->sum, (const unsigned char *)text, bytes);
}

/* Appends whole lines. A part that was written is cut off again. */
static enum status log_append(struct log_file *file, const char *text, size_t bytes, uint64_t lines,
                              struct error *error)
{
    struct stat before;
    if (fstat(file->fd, &before) != 0)
        return error_set_errno(error, errno, "cannot look at %s", file->text);
    if (file_write(file->fd, text, bytes)) {
        log_count(file, text, bytes, lines);
        return STATUS_OK;
    }
    error_set_errno(error, errno, "cannot write %s", file->text);
    if (ftruncate(file->fd, before.st_size) != 0)
        log_error("%s ends in half a line: %s", file->text, strerror(errno));
    return error->status;
}

enum status log_file_append(struct log_file *file, const char *line, size_t length, struct error *error)
{
    const enum status status = log_append(file, line, length, 1, error);
    if (status == STATUS_OK && file->lost.status != STATUS_OK)
        *error = file->lost;
    return status == STATUS_OK ? file->lost.status : status;
}

struct log_place log_file_place(const struct log_file *file)
{
    struct log_place place = {.lines = file->lines, .bytes = file->bytes};
    crypto_hash_sha256_state sum = file->sum;
    crypto_hash_sha256_final(&sum, place.sha256);
    return place;
}

bool log_file_ends_with(const struct log_file *file, const char *line, size_t length)
{
    char end[BLOCK_BYTES];
    const uint64_t more = file->bytes > length; /* the end of the line before */
    const size_t bytes = length + more;
    return bytes <= file->bytes && bytes <= sizeof end &&
           file_read_at(file->fd, end, bytes, file->bytes - bytes) == (ssize_t)bytes &&
           memcmp(end + more, line, length) == 0 && (more == 0 || end[0] == '\n');
}

static enum status log_begin_behind(struct log_file *file, uint64_t lines, const uint8_t id[RUN_ID_BYTES],
                                    struct error *error)
{
    char line[TEXT_BYTES], hex[2 * RUN_ID_BYTES + 1];
    int length;
    log_begin(file, lines);
    if (lines == 0)
        return STATUS_OK;
    sodium_bin2hex(hex, sizeof hex, id, RUN_ID_BYTES);
    if (file->log == RUN_LOG_TEXT)
        length = snprintf(line, sizeof line, CONTINUED_TEXT "%" PRIu64 CONTINUED_RUN "%s\n", lines, hex);
    else
        length = snprintf(line, sizeof line,
                          CONTINUED_JSON "%" PRIu64 CONTINUED_TIMING "\"unix_s\":%.3f" LOG_RUN_KEY "%s\"}}\n",
                          lines, unix_time_s(), hex);
    return log_append(file, line, (size_t)length, 1, error);
}

/* ---- reading ---- */

/* The lines of an open file from `offset` on; the caller closes it. NULL: failed, see errno. */
static FILE *log_read_from(int fd, uint64_t offset)
{
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *in = copy < 0 ? NULL : fdopen(copy, "r");
    if (in == NULL && copy >= 0)
        close(copy);
    if (in == NULL || fseeko(in, (off_t)offset, SEEK_SET) == 0)
        return in;
    fclose(in);
    return NULL;
}

/* The first line, if it is a whole one, not longer than those that are read back; else "". False: failed, see
 * errno. */
static bool log_first_line(int fd, char line[TEXT_BYTES])
{
    const ssize_t bytes = file_read_at(fd, line, TEXT_BYTES - 1, 0);
    const char *end = bytes > 0 ? memchr(line, '\n', (size_t)bytes) : NULL;
    const size_t length = end != NULL ? (size_t)(end + 1 - line) : 0;
    line[length > 0 && memchr(line, '\0', length) == NULL ? length : 0] = '\0';
    return bytes >= 0;
}

bool log_file_run_id(const struct log_file *file, uint8_t id[RUN_ID_BYTES])
{
    char line[TEXT_BYTES];
    return log_first_line(file->fd, line) && line_run_id(line, id);
}

/* Whether the first bytes of the file `text` are those of the place. */
static enum status log_has_place(int fd, const char *text, const struct log_place *place, bool *has,
                                 struct error *error)
{
    char block[BLOCK_BYTES];
    uint8_t sha256[RUN_DIGEST_BYTES];
    crypto_hash_sha256_state sum;
    ssize_t n = 1;
    crypto_hash_sha256_init(&sum);
    for (uint64_t at = 0; at < place->bytes && n > 0; at += (uint64_t)n) {
        const uint64_t left = place->bytes - at;
        n = file_read_at(fd, block, left < sizeof block ? left : sizeof block, at);
        if (n < 0)
            return error_set_errno(error, errno, "cannot read %s", text);
        crypto_hash_sha256_update(&sum, (const unsigned char *)block, (size_t)n);
    }
    crypto_hash_sha256_final(&sum, sha256);
    *has = memcmp(sha256, place->sha256, sizeof sha256) == 0;
    if (place->bytes == 0) { /* the run's beginning: any file, but for one that was begun later */
        char line[TEXT_BYTES];
        uint64_t lines;
        *has = place->lines == 0 && !(log_first_line(fd, line) && line_continued(line, &lines));
    }
    return STATUS_OK;
}

/* The length of the first line, if it says that the file begins right behind the place; else 0. */
static uint64_t log_begins_behind(int fd, const struct log_place *place, const uint8_t id[RUN_ID_BYTES])
{
    char line[TEXT_BYTES];
    uint8_t of_line[RUN_ID_BYTES];
    uint64_t before;
    const bool begins = log_first_line(fd, line) && line_continued(line, &before) &&
                        line_run_id(line, of_line) && before == place->lines &&
                        memcmp(of_line, id, RUN_ID_BYTES) == 0;
    return begins ? strlen(line) : 0;
}

/* ---- where a place is ---- */

struct location {
    enum { IN_THE_FILE, IN_A_MOVED_FILE, ELSEWHERE, NOWHERE } where;
    uint64_t offset;       /* of the first byte behind the place */
    int fd;                /* IN_A_MOVED_FILE: that file; else -1 */
    char text[TEXT_BYTES]; /* its path */
};

static enum status log_open_folder(const struct log_file *file, DIR **folder, struct error *error)
{
    int fd;
    const enum status status = file_open_folder(&fd, file->run, error);
    if (status != STATUS_OK)
        return status;
    *folder = fdopendir(fd);
    if (*folder != NULL)
        return STATUS_OK;
    error_set_errno(error, errno, "cannot list %s", file->run.text);
    close(fd);
    return error->status;
}

/* Opens the next regular file of the run's directory to which a rotation may have renamed the log, for
 * reading and writing: all but the log's own file, and the files that this log makes. Files that cannot be
 * opened are passed over. The descriptor is the caller's; -1: there is none. `text`: the file's path. */
static int log_next_moved(const struct log_file *file, DIR *folder, char text[TEXT_BYTES])
{
    struct error unused;
    int fd;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *const name = entry->d_name, *const end = strrchr(name, '.');
        if (name[0] == '.' || strcmp(name, run_log_name(RUN_LOG_JSON)) == 0 ||
            strcmp(name, run_log_name(RUN_LOG_TEXT)) == 0 || strstr(name, ".damaged") != NULL ||
            (end != NULL && strcmp(end, ".cut") == 0))
            continue;
        snprintf(text, TEXT_BYTES, "%.3800s/%.255s", file->run.text, name);
        if (file_open_as(&fd, path_below(file->run, text), O_RDWR, &unused) == STATUS_OK)
            return fd;
    }
    return -1;
}

static enum status log_locate_moved(const struct log_file *file, const struct log_place *place,
                                    struct location *at, struct error *error)
{
    DIR *folder;
    bool has = false;
    enum status status = log_open_folder(file, &folder, error);
    if (status != STATUS_OK)
        return status;
    while (status == STATUS_OK && !has && (at->fd = log_next_moved(file, folder, at->text)) >= 0) {
        status = log_has_place(at->fd, at->text, place, &has, error);
        if (!has)
            close(at->fd);
    }
    if (has)
        at->where = IN_A_MOVED_FILE;
    else
        at->fd = -1;
    closedir(folder);
    return status;
}

/* A file that is empty, or that begins after a rotation, is not damaged: an earlier file has the place. */
static enum status log_locate_elsewhere(const struct log_file *file, const struct log_place *place,
                                        struct location *at, struct error *error)
{
    struct stat info;
    char line[TEXT_BYTES];
    uint64_t lines = 0;
    if (fstat(file->fd, &info) != 0)
        return error_set_errno(error, errno, "cannot look at %s", file->text);
    const bool is_continued = log_first_line(file->fd, line) && line_continued(line, &lines);
    if (info.st_size > 0 && !is_continued)
        return STATUS_OK;
    const enum status status = place->lines > 0 ? log_locate_moved(file, place, at, error) : STATUS_OK;
    if (status == STATUS_OK && at->where == NOWHERE && (info.st_size == 0 || place->lines == 0))
        at->where = ELSEWHERE;
    return status;
}

static enum status log_locate(const struct log_file *file, const struct log_place *place,
                              const uint8_t id[RUN_ID_BYTES], struct location *at, struct error *error)
{
    bool has = false;
    *at = (struct location){.offset = place->bytes, .fd = -1};
    const enum status status = log_has_place(file->fd, file->text, place, &has, error);
    if (status != STATUS_OK || has)
        return status;
    at->offset = log_begins_behind(file->fd, place, id);
    if (at->offset > 0)
        return STATUS_OK;
    at->offset = place->bytes;
    at->where = NOWHERE;
    return log_locate_elsewhere(file, place, at, error);
}

enum status log_file_confirm(const struct log_file *file, const struct log_place *place,
                             const uint8_t id[RUN_ID_BYTES], struct error *why)
{
    struct location at;
    const enum status status = log_locate(file, place, id, &at, why);
    if (status != STATUS_OK)
        return status;
    if (at.fd >= 0)
        close(at.fd);
    if (at.where != NOWHERE)
        return STATUS_OK;
    return error_set(why, STATUS_CORRUPT,
                     "the first %" PRIu64 " bytes of %s are not the lines that the run had written by then",
                     place->bytes, file->text);
}

/* ---- cutting ---- */

/* Copies what stands behind `offset` to the end of `to`. Half a line gets an end there. */
static bool log_copy_rest(int from, int to, uint64_t offset)
{
    char block[BLOCK_BYTES], last = '\n';
    ssize_t bytes;
    for (; (bytes = file_read_at(from, block, sizeof block, offset)) > 0; offset += (uint64_t)bytes) {
        last = block[bytes - 1];
        if (!file_write(to, block, (size_t)bytes))
            return false;
    }
    return bytes == 0 && (last == '\n' || file_write(to, "\n", 1)) && fdatasync(to) == 0;
}

/* The rest is on the disk in NAME.cut before the file `text` is cut. */
static enum status log_move_rest(const struct log_file *file, int from, const char *text, uint64_t offset,
                                 struct error *error)
{
    char cut_text[TEXT_BYTES];
    int to;
    enum status status =
        file_open_as(&to, log_path_beside(file, cut_text, ".cut"), O_WRONLY | O_CREAT | O_APPEND, error);
    if (status != STATUS_OK)
        return status;
    if (!log_copy_rest(from, to, offset))
        status = error_set_errno(error, errno, "cannot move lines of %s to %s", text, cut_text);
    close(to);
    if (status == STATUS_OK)
        status = file_sync_folder(file->run, error);
    if (status == STATUS_OK && (ftruncate(from, (off_t)offset) != 0 || fdatasync(from) != 0))
        status = error_set_errno(error, errno, "cannot cut %s", text);
    return status;
}

/* Passes over the events behind `*offset`, if `keeps_events`, and shows all lines behind them to `cut`. */
static enum status log_show_rest(const struct log_file *file, int fd, const char *text, uint64_t *offset,
                                 bool keeps_events, const struct log_cut *cut, struct error *error)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    FILE *in = log_read_from(fd, *offset);
    if (in == NULL)
        return error_set_errno(error, errno, "cannot read %s", text);
    while ((length = getline(&line, &capacity, in)) > 0) {
        keeps_events = keeps_events && strlen(line) == (size_t)length && line_is_event(line, file->log);
        if (keeps_events)
            *offset += (uint64_t)length;
        else
            cut->line(cut->context, line);
    }
    const bool failed = feof(in) == 0;
    const int errnum = errno;
    free(line);
    fclose(in);
    return failed ? error_set_errno(error, errnum, "cannot read %s", text) : STATUS_OK;
}

enum status log_file_show_cut(const struct log_file *file, const struct log_cut *cut, struct error *error)
{
    char text[TEXT_BYTES];
    uint64_t offset = 0;
    int fd;
    enum status status = file_open_as(&fd, log_path_beside(file, text, ".cut"), O_RDONLY, error);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    status = log_show_rest(file, fd, text, &offset, false, cut, error);
    close(fd);
    return status;
}

static enum status log_cut_rest(const struct log_file *file, int fd, const char *text, uint64_t offset,
                                bool keeps_events, const struct log_cut *cut, struct error *error)
{
    struct stat info;
    enum status status = log_show_rest(file, fd, text, &offset, keeps_events, cut, error);
    if (status == STATUS_OK && fstat(fd, &info) != 0)
        status = error_set_errno(error, errno, "cannot look at %s", text);
    if (status != STATUS_OK || (uint64_t)info.st_size == offset)
        return status;
    return log_move_rest(file, fd, text, offset, error);
}

/* Counts the lines of the whole file. */
static enum status log_measure(struct log_file *file, struct error *error)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    FILE *in = log_read_from(file->fd, 0);
    if (in == NULL)
        return error_set_errno(error, errno, "cannot read %s", file->text);
    log_begin(file, 0);
    while ((length = getline(&line, &capacity, in)) > 0) {
        if (file->bytes == 0 && line_continued(line, &file->lines))
            log_begin(file, file->lines);
        log_count(file, line, (size_t)length, 1);
    }
    const bool failed = feof(in) == 0;
    const int errnum = errno;
    free(line);
    fclose(in);
    return failed ? error_set_errno(error, errnum, "cannot read %s", file->text) : STATUS_OK;
}

/* Renames the file to NAME.damaged, or NAME.damaged-N, and opens a new one. A file that was renamed already
 * keeps its name. */
static enum status log_set_aside(struct log_file *file, const struct log_place *place, struct error *error)
{
    char text[TEXT_BYTES], end[32] = ".damaged";
    struct path aside = log_path_beside(file, text, end);
    const bool is_moved = log_file_is_moved(file);
    for (unsigned n = 2; !is_moved && !file_rename(log_path(file), aside, RENAME_NOREPLACE); n++) {
        if (errno != EEXIST || n == 1000)
            return error_set_errno(error, errno, "cannot rename %s to %s", file->text, text);
        snprintf(end, sizeof end, ".damaged-%u", n);
        aside = log_path_beside(file, text, end);
    }
    log_warning("%s is damaged: its first %" PRIu64 " bytes are not the %" PRIu64
                " lines that were written by then; it is now %s, and the next lines go to a new file",
                file->text, place->bytes, place->lines, is_moved ? "where it was moved" : text);
    close(file->fd);
    return log_open_fd(file, &file->fd, error);
}

/* Whether the file began after the place and was renamed since. Then all its lines are after the place. */
static bool log_is_behind(const struct log_file *file, int fd, const struct log_place *place,
                          const uint8_t id[RUN_ID_BYTES])
{
    char line[TEXT_BYTES];
    uint8_t of_line[RUN_ID_BYTES];
    uint64_t before = 0;
    const bool is_own = log_first_line(fd, line) && (line[0] == '{') == (file->log == RUN_LOG_JSON) &&
                        line_run_id(line, of_line) && memcmp(of_line, id, sizeof of_line) == 0;
    return is_own && (line_continued(line, &before) || line_is_event(line, file->log)) &&
           before >= place->lines;
}

static enum status log_cut_moved(const struct log_file *file, const struct log_place *place,
                                 const uint8_t id[RUN_ID_BYTES], const struct log_cut *cut,
                                 struct error *error)
{
    char text[TEXT_BYTES];
    DIR *folder;
    enum status status = log_open_folder(file, &folder, error);
    if (status != STATUS_OK)
        return status;
    for (int fd; status == STATUS_OK && (fd = log_next_moved(file, folder, text)) >= 0; close(fd))
        if (log_is_behind(file, fd, place, id))
            status = log_cut_rest(file, fd, text, 0, false, cut, error);
    closedir(folder);
    return status;
}

/* Goes on in a new file behind a place that is in an earlier one. */
static enum status log_cut_elsewhere(struct log_file *file, struct location *at,
                                     const struct log_place *place, const uint8_t id[RUN_ID_BYTES],
                                     const struct log_cut *cut, struct error *error)
{
    enum status status = STATUS_OK;
    if (at->where == IN_A_MOVED_FILE) {
        status = log_cut_rest(file, at->fd, at->text, at->offset, true, cut, error);
        close(at->fd);
    } else if (place->lines > 0) {
        log_warning("%s is empty or missing: a file elsewhere has the %" PRIu64
                    " lines before the checkpoint, and perhaps lines behind it, which are computed again",
                    file->text, place->lines);
    }
    if (status == STATUS_OK)
        status = log_cut_moved(file, place, id, cut, error);
    if (status == STATUS_OK)
        status = log_cut_rest(file, file->fd, file->text, 0, false, cut, error);
    return status;
}

enum status log_file_cut(struct log_file *file, const struct log_place *place, const uint8_t id[RUN_ID_BYTES],
                         const struct log_cut *cut, struct error *error)
{
    struct location at;
    enum status status = log_locate(file, place, id, &at, error);
    if (status != STATUS_OK)
        return status;
    if (at.where == IN_THE_FILE) {
        status = log_cut_rest(file, file->fd, file->text, at.offset, true, cut, error);
        return status == STATUS_OK ? log_measure(file, error) : status;
    }
    if (at.where == NOWHERE)
        status = log_set_aside(file, place, error);
    else
        status = log_cut_elsewhere(file, &at, place, id, cut, error);
    return status == STATUS_OK ? log_begin_behind(file, place->lines, id, error) : status;
}

/* ---- rotation ---- */

bool log_file_is_moved(const struct log_file *file)
{
    struct stat own, named;
    struct error unused;
    int fd;
    if (file_open_as(&fd, log_path(file), O_RDONLY, &unused) != STATUS_OK)
        return true;
    const bool is_same = fstat(file->fd, &own) == 0 && fstat(fd, &named) == 0 && own.st_ino == named.st_ino &&
                         own.st_dev == named.st_dev;
    close(fd);
    return !is_same;
}

/* Cuts the lines behind the place off the file that was moved. *rest: malloc'ed. */
static enum status log_take_rest(const struct log_file *file, const struct log_place *place, char **rest,
                                 struct error *error)
{
    const size_t bytes = (size_t)(file->bytes - place->bytes);
    *rest = malloc(bytes + 1);
    if (*rest == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the newest lines of %s", file->text);
    if (file_read_at(file->fd, *rest, bytes, place->bytes) != (ssize_t)bytes)
        return error_set_errno(error, errno, "cannot read %s", file->text);
    if (bytes > 0 && ftruncate(file->fd, (off_t)place->bytes) != 0)
        return error_set_errno(error, errno, "cannot cut %s", file->text);
    return STATUS_OK;
}

/* Begins the open new file behind the place, with the lines that stood behind the place. After an error the
 * file is as it was, and the new one is removed. */
static enum status log_adopt(struct log_file *file, int fd, const struct log_place *place,
                             const uint8_t id[RUN_ID_BYTES], struct error *error)
{
    const struct log_file old = *file;
    const size_t bytes = (size_t)(old.bytes - place->bytes);
    char *rest = NULL;
    enum status status = log_take_rest(file, place, &rest, error);
    const bool is_cut = status == STATUS_OK;
    if (is_cut) {
        file->fd = fd;
        status = log_begin_behind(file, place->lines, id, error);
    }
    if (status == STATUS_OK && bytes > 0)
        status = log_append(file, rest, bytes, old.lines - place->lines, error);
    if (status != STATUS_OK) {
        struct error unused;
        *file = old;
        file_remove(log_path(file));
        if (is_cut && !file_write(file->fd, rest, bytes))
            log_error("the moved %s has lost its last %zu bytes: %s", file->text, bytes, strerror(errno));
        log_measure(file, &unused);
    }
    free(rest);
    return status;
}

enum status log_file_continue(struct log_file *file, const struct log_place *place,
                              const uint8_t id[RUN_ID_BYTES], struct error *error)
{
    const int old = file->fd;
    struct stat info;
    int fd;
    if (!log_file_is_moved(file))
        return STATUS_OK;
    if (place->bytes > file->bytes || place->lines > file->lines)
        return error_set(error, STATUS_INTERNAL, "%s ends before the checkpoint's place", file->text);
    enum status status = log_open_fd(file, &fd, error);
    if (status != STATUS_OK)
        return status;
    if (fstat(fd, &info) != 0 || info.st_size != 0)
        status = error_set(error, STATUS_IO, "%s: found a file with content, expected none", file->text);
    else
        status = log_adopt(file, fd, place, id, error);
    if (status != STATUS_OK) {
        close(fd);
        return status;
    }
    /* A file is synced when it is left: a checkpoint syncs the files that have the logs' names by then. */
    if (fdatasync(old) != 0)
        error_set_errno(&file->lost, errno, "cannot write %s to the disk", file->text);
    close(old);
    return STATUS_OK;
}
