/* Starts a process that has a control line: a worker or a link.
 *
 * The room: daemon/process holds what the supervisor asks of the operating system: processes, descriptors,
 * sockets' folders, the service manager. It knows nothing of a run.
 *
 *     control line  a socketpair between the supervisor and a process that it started (worker/control.h)
 *     segment       shared memory that a worker writes and others read (worker/net/segment.h)
 *     call note     a page of shared memory in which a worker names the environment's call that it is in
 *
 * Supervisor process; its only thread, so that fork is safe at any time. */
#ifndef DAEMON_PROCESS_SPAWN_H
#define DAEMON_PROCESS_SPAWN_H

#include "daemon/process/python_program.h"

#include <sys/types.h>

/* The workers' segments (worker/net/segment.h): one memfd each, empty. */
struct spawn_segments {
    unsigned count; /* 0: the job has none */
    int *fds;       /* (count) by worker number; all above the numbers at which workers look for segments */
};

/* Makes the memfds, for workers that start now or later. STATUS_IO, STATUS_NO_MEMORY. */
enum status spawn_segments_open(struct spawn_segments *segments, unsigned count, struct error *error);
void spawn_segments_close(struct spawn_segments *segments);

/* What a worker gets beside its START. */
struct spawn_setting {
    const struct python_worker *python; /* the program of the workers of its role; NULL: none is in Python */
    int run_fd;                         /* the run's directory */
    const struct spawn_segments *segments;
    int call_fd;   /* memory for its struct plugin_call; -1: none */
    bool overlaps; /* the job's workers compute while others answer messages (/algorithm/overlap) */
};

/* Forks and executes the program with a role (enum wire_role; 0: a link) and a number, and with a control
 * line. *fd is our end of the line. After an error *pid and *fd are as before. STATUS_IO, STATUS_BUSY. */
enum status spawn(pid_t *pid, int *fd, uint8_t role, unsigned worker, const struct spawn_setting *setting,
                  struct error *error);

/* From this call on a supervisor takes SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGUSR1 through the descriptor
 * *fd, which does not block, and ignores SIGPIPE. STATUS_IO. */
enum status signals_open(int *fd, struct error *error);

#endif
