/* Tells systemd that the daemon is ready, lives, and stops: sd_notify(3), datagrams of a few words. Without
 * NOTIFY_SOCKET every function does nothing. Supervisor process; its only thread; never blocks. */
#ifndef DAEMON_PROCESS_SERVICE_H
#define DAEMON_PROCESS_SERVICE_H

#include "kernels/base/monotime.h"

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them from the environment of the workers.
 */
void service_init(void);

/* Sends assignments, separated by newlines: "READY=1", "STATUS=episode 12". */
void service_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sends WATCHDOG=1 when it is due; returns when the next one is (MONOTIME_NEVER: there is no watchdog). */
struct monotime service_watchdog(struct monotime now);

#endif
