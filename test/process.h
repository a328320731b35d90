/* For tests that start real programs: start, wait with a limit, read what was said, and a folder of one's
 * own. Failures of these helpers abort the running check. A started program dies with the test. */
#ifndef TEST_PROCESS_H
#define TEST_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    char out_path[128], err_path[128];
};

/* What a test may want of the child between fork and exec. */
struct process_options {
    const char *const *environment; /* "NAME=value", ended by NULL; added to the test's own. "NAME" removes */
    const char *directory;          /* to start in */
    unsigned file_bytes_max;        /* RLIMIT_FSIZE; 0: no limit */
    bool unprivileged; /* as the user nobody when the test is root: a copy of argv[0] in `folder` */
    const char *fifo;  /* stdout goes to this fifo or device instead, and nobody reads it */
    bool closed;       /* 0, 1 and 2 are closed */
    bool own_group;    /* in a process group of its own */
};

/* The daemon's path, from $COALESCED, or build/release/coalesced; absolute. */
const char *daemon_path(void);

/* A fresh directory, removed with all it holds by folder_remove. */
void folder_make(char path[64]);
void folder_remove(const char *path);

/* Starts argv (ended by NULL); stdout and stderr go into files of `folder`. */
void process_start(struct process *process, const char *folder, const char *const *argv,
                   const struct process_options *options);

/* Waits at most `limit_s` for the end; the exit code, or 128 + the signal. Past the limit the process is
 * killed and the check fails. */
int process_wait(struct process *process, unsigned limit_s);

/* start and wait in one. */
int process_run(struct process *process, const char *folder, const char *const *argv,
                const struct process_options *options, unsigned limit_s);

/* A whole file, malloc'ed and zero-terminated; "" when there is none. */
char *file_read(const char *path);

/* Makes a file of this text; adds it to what is there. */
void text_write(const char *path, const char *text);
void text_append(const char *path, const char *text);

char *process_out(const struct process *process);
char *process_err(const struct process *process);

/* Waits up to `limit_s` until the file holds `text`; false when it does not by then. */
bool file_wait_for(const char *path, const char *text, unsigned limit_s);

/* The pids of the process's direct children whose command line holds `word`; how many (at most `max`). */
size_t process_children(pid_t parent, const char *word, pid_t *pids, size_t max);

/* How many times `needle` stands in `text`. */
size_t text_count(const char *text, const char *needle);

void sleep_ms(unsigned ms);

#endif
