/* Helpers of tests that start real programs: start, wait with a limit, read the output, and a folder per
 * test. A helper that fails aborts the running check. A started program dies with the test. */
#ifndef TEST_PROCESS_H
#define TEST_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    char out_path[128], err_path[128];
};

/* Settings of the child between fork and exec. */
struct process_options {
    const char *const *environment; /* "NAME=value", ended by NULL; added to the test's own. "NAME" removes */
    const char *directory;          /* to start in */
    unsigned file_bytes_max;        /* RLIMIT_FSIZE; 0: no limit */
    bool unprivileged; /* as the user nobody when the test is root: a copy of argv[0] in `folder` */
    const char *fifo;  /* stdout goes to this fifo or device instead, and nobody reads it */
    bool closed;       /* 0, 1 and 2 are closed */
    bool own_group;    /* in a process group of its own */
};

/* The daemon's absolute path: $COALESCED, by default build/release/coalesced. */
const char *daemon_path(void);

/* Makes a fresh folder; folder_remove removes it and its contents. */
void folder_make(char path[64]);
void folder_remove(const char *path);

/* Starts argv (ended by NULL); stdout and stderr go into files of `folder`. */
void process_start(struct process *process, const char *folder, const char *const *argv,
                   const struct process_options *options);

/* Waits at most `limit_s` for the end and returns the exit code, or 128 + the signal. After the limit the
 * process is killed and the check fails. */
int process_wait(struct process *process, unsigned limit_s);

/* process_start and process_wait. */
int process_run(struct process *process, const char *folder, const char *const *argv,
                const struct process_options *options, unsigned limit_s);

/* The contents of a file, malloc'ed and zero-terminated; "" when there is no file. */
char *file_read(const char *path);

/* Writes a file; appends to a file. */
void text_write(const char *path, const char *text);
void text_append(const char *path, const char *text);

char *process_out(const struct process *process);
char *process_err(const struct process *process);

/* Waits at most `limit_s` until the file holds `text`; false when it does not by then. */
bool file_wait_for(const char *path, const char *text, unsigned limit_s);

/* Stores the pids of the direct children whose command line holds `word`, at most `max`; returns the count.
 */
size_t process_children(pid_t parent, const char *word, pid_t *pids, size_t max);

/* The number of occurrences of `needle` in `text`. */
size_t text_count(const char *text, const char *needle);

void sleep_ms(unsigned ms);

#endif
