/* Daemon messages. A line is put together on the stack and leaves in one write(2), so there is no lock. */
#include "kernels/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_BYTES = 1000 };

static char process_name[32];
static bool with_priority;

void log_name(const char *name)
{
    snprintf(process_name, sizeof process_name, "%s", name);
    with_priority = getenv("JOURNAL_STREAM") != NULL;
}

void log_line(enum log_level level, const char *format, ...)
{
    char line[LINE_BYTES + 1];
    int length = 0;
    if (with_priority)
        length = snprintf(line, LINE_BYTES, "<%d>", level);
    if (process_name[0] != '\0')
        length += snprintf(line + length, LINE_BYTES - (size_t)length, "coalesced[%s]: ", process_name);
    else
        length += snprintf(line + length, LINE_BYTES - (size_t)length, "coalesced: ");
    va_list list;
    va_start(list, format);
    int text = vsnprintf(line + length, LINE_BYTES - (size_t)length, format, list);
    va_end(list);
    length += text < 0 ? 0 : text;
    if (length > LINE_BYTES - 1)
        length = LINE_BYTES - 1;
    for (int i = 0; i < length; i++) /* a peer's text may not write lines, or to a terminal, of its own */
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = '?';
    line[length++] = '\n';
    while (write(STDERR_FILENO, line, (size_t)length) < 0 && errno == EINTR)
        continue;
}
