/* Tells the service manager how the run is doing, by datagrams and without libsystemd. Supervisor process;
 * its only thread. */
#include "daemon/process/service.h"

#include "kernels/base/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct {
    int fd;
    struct sockaddr_un address;
    socklen_t address_bytes;
    uint64_t watchdog_us; /* half of the time after which the manager would kill this process; 0: none */
    struct monotime watchdog_due;
} service = {.fd = -1};

/* 0: the variable is absent or holds something else. */
static uint64_t variable_number(const char *name)
{
    uint64_t value = 0;
    text_integer(getenv(name), UINT64_MAX, &value);
    return value;
}

void service_init(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length = path != NULL ? strlen(path) : 0;
    if (length >= 2 && length < sizeof service.address.sun_path && (path[0] == '/' || path[0] == '@')) {
        service.address.sun_family = AF_UNIX;
        memcpy(service.address.sun_path, path, length);
        if (path[0] == '@') /* an abstract name */
            service.address.sun_path[0] = '\0';
        service.address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
        service.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (getenv("WATCHDOG_PID") == NULL || variable_number("WATCHDOG_PID") == (uint64_t)getpid())
            service.watchdog_us = variable_number("WATCHDOG_USEC") / 2;
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void service_notify(const char *format, ...)
{
    char text[512];
    if (service.fd < 0)
        return;
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length > 0 && (size_t)length < sizeof text)
        sendto(service.fd, text, (size_t)length, MSG_NOSIGNAL, (const struct sockaddr *)&service.address,
               service.address_bytes);
}

struct monotime service_watchdog(struct monotime now)
{
    if (service.fd < 0 || service.watchdog_us == 0)
        return MONOTIME_NEVER;
    if (!monotime_before(now, service.watchdog_due)) {
        service_notify("WATCHDOG=1");
        service.watchdog_due = monotime_add_us(now, service.watchdog_us);
    }
    return service.watchdog_due;
}
