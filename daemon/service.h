/* The service manager's side: systemd's notification protocol (sd_notify(3)), written out because it is a
 * datagram with a few words and spares us a library. Without NOTIFY_SOCKET all of it does nothing. */
#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

#include "kernels/base/monotime.h"

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them so that no worker inherits them. */
void service_init(void);

/* Sends e.g. "READY=1" or "STATUS=episode 12"; several assignments are separated by newlines. Never blocks.
 */
void service_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Pets the watchdog when due; returns when to call again (MONOTIME_NEVER when there is none). */
struct monotime service_watchdog(struct monotime now);

#endif
