/* One run of a sweep: a process `coalesced run` of this binary in a process group of its own, so that ctrl-C
 * reaches it through the sweep alone. It dies with the sweep's process (PR_SET_PDEATHSIG), and its workers
 * with it. Its standard output is a pipe on which nothing counts but that something came: its numbers are
 * read from its episodes.jsonl. Its standard error is the file messages.log in its run directory.
 *
 * The sweep's process, its only thread; nothing here blocks but on files. */
#ifndef DAEMON_COMMANDS_SWEEP_RUN_H
#define DAEMON_COMMANDS_SWEEP_RUN_H

#include "daemon/commands/arguments.h"
#include "daemon/commands/curve.h"
#include "daemon/commands/sweep_grid.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum sweep_state {
    SWEEP_WAITING,
    SWEEP_RUNNING,
    SWEEP_FINISHED, /* at a limit of /stop */
    SWEEP_SOLVED,
    SWEEP_STOPPED,  /* by a signal */
    SWEEP_HOPELESS, /* by the median rule */
    SWEEP_FAILED,
    SWEEP_STATES
};

/* "finished", "stopped by the median rule". */
const char *sweep_state_name(enum sweep_state state);

struct sweep_run {
    char name[SWEEP_NAME_BYTES];
    char *path; /* its run directory */
    enum sweep_state state;
    uint64_t grace; /* daemon/commands/sweep_rule.h */
    struct curve curve;
    bool is_new;      /* the curve has grown since the rule was asked */
    bool is_hopeless; /* the rule has stopped it */
    unsigned stops;   /* SIGTERMs sent */
    pid_t pid;
    int out;          /* the pipe; -1: closed */
    int code;         /* of a run that failed: its exit code, 70 after a signal */
    char reason[240]; /* likewise: its last words */
};

/* The values of --set for run number `number`: those of the command line, then one of each axis. */
struct sweep_overrides {
    const char **values;    /* (count) */
    size_t count, borrowed; /* the first `borrowed` are the command line's */
};

/* False: no memory. sweep_overrides_fini follows in either case. */
bool sweep_overrides_make(struct sweep_overrides *overrides, const struct arguments *arguments,
                          const struct sweep_grid *grid, size_t number);
void sweep_overrides_fini(struct sweep_overrides *overrides);

/* Starts the run, which resumes where arguments->resume is set. STATUS_IO, STATUS_BUSY, STATUS_NO_MEMORY: the
 * run has failed, and the reason is noted. */
enum status sweep_run_start(struct sweep_run *run, const struct arguments *arguments,
                            const struct sweep_grid *grid, size_t number);

/* Sends SIGTERM: the first one ends the run in order, a second one hurries, a third one kills. */
void sweep_run_stop(struct sweep_run *run);

/* Empties the pipe and reads the new lines of the log. */
void sweep_run_read(struct sweep_run *run);

/* True: the process has ended, the log is read to its end, and the state says how. */
bool sweep_run_reap(struct sweep_run *run);

#endif
