/* Writes the daemon's messages. A line is put together on the stack and leaves in one call, so there is no
 * lock. */
#include "kernels/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_BYTES = 1000, RUN_BYTES = 256 };

static char process_name[32];
static char run_name[RUN_BYTES];
static bool with_priority;
static bool errors_to_journal, output_to_journal; /* standard error, and output, is the journal's */
static void (*listener)(void *arg, enum log_level level, const char *text);
static void *listener_arg;
static const char *journal_path = "/run/systemd/journal/socket";

/* A peer's text, or a file's name, may not write lines, or to a terminal, of its own. */
static void replace_controls(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

static void set_run(const char *name, size_t bytes)
{
    snprintf(run_name, sizeof run_name, "%.*s", (int)bytes, name);
    replace_controls(run_name);
}

/* JOURNAL_STREAM names a device and an inode. Where the descriptor is another file it was redirected since.
 */
static bool is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    char own[64];
    struct stat info;
    if (stream == NULL || fstat(fd, &info) != 0)
        return false;
    snprintf(own, sizeof own, "%ju:%ju", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    return strcmp(stream, own) == 0;
}

void log_name(const char *name)
{
    const char *run = getenv("COALESCED_RUN");
    snprintf(process_name, sizeof process_name, "%s", name);
    if (run != NULL)
        set_run(run, strlen(run));
    with_priority = getenv("JOURNAL_STREAM") != NULL;
    errors_to_journal = is_journal(STDERR_FILENO);
    output_to_journal = is_journal(STDOUT_FILENO);
}

void log_run(const char *path)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    set_run(path + begin, end - begin);
    setenv("COALESCED_RUN", run_name, 1);
}

void log_listen(void (*take)(void *arg, enum log_level level, const char *text), void *arg)
{
    listener = take;
    listener_arg = arg;
}

void log_journal_at(const char *path)
{
    journal_path = path;
}

static bool send_entry(const char *entry, size_t bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", journal_path);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    const ssize_t sent =
        sendto(fd, entry, bytes, MSG_NOSIGNAL, (const struct sockaddr *)&address, sizeof address);
    close(fd);
    return sent == (ssize_t)bytes;
}

/* One datagram of the journal's native protocol. No value has a newline, so all have the form KEY=value.
 * False: there is no run, the text is too long, the journal is not there, or its queue is full. */
static bool send_to_journal(enum log_level level, const char *prefix, const char *text, size_t bytes)
{
    const bool has_worker = process_name[0] != '\0';
    char entry[LINE_BYTES + RUN_BYTES + 256];
    if (run_name[0] == '\0')
        return false;
    const int length =
        snprintf(entry, sizeof entry,
                 "PRIORITY=%d\nSYSLOG_IDENTIFIER=coalesced\nCOALESCED_RUN=%s\n%s%s%sMESSAGE=%s%s%.*s\n",
                 level, run_name, has_worker ? "COALESCED_WORKER=" : "", process_name, has_worker ? "\n" : "",
                 prefix, prefix[0] != '\0' ? ": " : "", (int)bytes, text);
    return length > 0 && (size_t)length < sizeof entry && send_entry(entry, (size_t)length);
}

static void write_to_stderr(enum log_level level, const char *text)
{
    char line[LINE_BYTES + 1];
    int length = 0;
    if (with_priority)
        length = snprintf(line, LINE_BYTES, "<%d>", level);
    if (process_name[0] != '\0')
        length +=
            snprintf(line + length, LINE_BYTES - (size_t)length, "coalesced[%s]: %s", process_name, text);
    else
        length += snprintf(line + length, LINE_BYTES - (size_t)length, "coalesced: %s", text);
    if (length > LINE_BYTES - 1)
        length = LINE_BYTES - 1;
    line[length++] = '\n';
    while (write(STDERR_FILENO, line, (size_t)length) < 0 && errno == EINTR)
        continue;
}

bool log_output(const char *line, size_t bytes)
{
    const bool is_one_line = bytes > 0 && memchr(line, '\n', bytes) == line + bytes - 1;
    return output_to_journal && is_one_line && send_to_journal(LOG_LEVEL_INFO, "", line, bytes - 1);
}

void log_line(enum log_level level, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list list;
    va_start(list, format);
    if (vsnprintf(text, sizeof text, format, list) < 0)
        text[0] = '\0';
    va_end(list);
    replace_controls(text);
    if (!errors_to_journal || !send_to_journal(level, process_name, text, strlen(text)))
        write_to_stderr(level, text);
    if (listener != NULL)
        listener(listener_arg, level, text);
}
