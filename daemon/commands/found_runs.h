/* The runs of this host: those that go on, which answer at their sockets (daemon/watch/status_socket.h), and
 * those that lie in the usual folders. And words for numbers, for the tables of `status` and `list`. The
 * command's process; its only thread; blocks, at each socket 2 s at most. */
#ifndef DAEMON_COMMANDS_FOUND_RUNS_H
#define DAEMON_COMMANDS_FOUND_RUNS_H

#include "daemon/log/json_members.h"
#include "daemon/log/run_summary.h"
#include "kernels/base/status.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A run that has answered. */
struct found_run {
    pid_t pid;        /* of the process at the socket's other end: the kernel says so */
    bool is_stranger; /* the process is another user's, and not root's: its folder is not to be read */
    cJSON *status; /* the document of daemon/watch/run_status.h, from a process that may be another user's */
};

struct found_runs {
    struct found_run *of; /* (count), by path */
    size_t count;
};

/* Asks all runs that this user may ask. A warning names the process of each that does not answer in time. A
 * stranger must own the folder that the answer names, or hold its lock. Otherwise a warning names the
 * process, and the answer is left out. An answer about a folder that this user may not see is believed.
 * STATUS_NO_MEMORY. found_runs_forget follows, also after an error. */
enum status found_runs_ask(struct found_runs *runs, struct error *error);
void found_runs_forget(struct found_runs *runs);

/* Says in a line how many runs of other users this user may not ask, if any. */
void found_runs_say_hidden(void);

/* Finds the folders of runs below `folders`. Without folders (count 0): below ./runs, $STATE_DIRECTORY,
 * /var/lib/coalesced, /var/lib/private/coalesced, and the folders around the runs of `running`, except
 * strangers' runs. Folders that may not be read are left out. `running` may be NULL. Errors of
 * run_folders_find, as whose result run_folders_free follows. */
enum status found_runs_folders(struct run_folders *out, const char *const *folders, size_t count,
                               const struct found_runs *running, struct error *error);

/* Warns of the folders that could not be read, if any. */
void found_runs_say_unread(const struct run_folders *folders);

enum { CELL_BYTES = 64 };

/* "12.3 s", "45 min", "3.2 h"; "12.3 MiB"; "2026-03-01 12:30" here, "" where it is not known. */
void write_time(char cell[CELL_BYTES], double seconds);
void write_bytes(char cell[CELL_BYTES], double bytes);
void write_date(char cell[CELL_BYTES], double unix_s);

/* Writes a path from the current folder on if it lies below, fit to show. */
void write_path(char *out, size_t bytes, const char *path);

/* Prints a document in a line. NULL: there was no memory for it. */
void print_document(const cJSON *document);

/* The columns of the terminal; 0: standard output is none. */
int terminal_width(void);

#endif
