/* What a run's folder says of the run, also long after the run has ended. For `coalesced list`, `status` and
 * `clean`, and for the page of all runs.
 *
 *     run's folder   has episodes.jsonl, or job.json and lock
 *     previous run   a folder previous-N in a run's folder: a new start has moved an earlier run there
 *
 * These functions only read. They follow no link below a run's folder, and take no lock. Of episodes.jsonl
 * they read the first block and the last, so a long log costs no more than a short one. One thread; blocks on
 * the disk. */
#ifndef DAEMON_LOG_RUN_SUMMARY_H
#define DAEMON_LOG_RUN_SUMMARY_H

#include "daemon/log/progress.h"
#include "kernels/base/status.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Of job.json, of the first and the last lines of episodes.jsonl, and of checkpoints/. Texts are as the files
 * have them: kernels/base/text.h makes them fit to show. */
struct run_summary {
    char path[PATH_MAX]; /* of the folder, absolute, without links */
    dev_t device;        /* of the folder that was read, with `inode` */
    ino_t inode;
    char name[NAME_MAX + 1]; /* the job's; the folder's, where job.json is missing or damaged */
    const char *kind;        /* "reinforce", "parameter-server", "model-parallel"; "": nothing says it */
    const char *state;       /* "running", "finished", "solved", "stopped", "failed", "died" */
    char
        reason[2 * ERROR_TEXT_BYTES]; /* of "failed" and "died": a sentence, or "" in an older log; else "" */
    double began_unix_s;              /* of the first line; NaN: not known, as after a rotation */
    double ended_unix_s;              /* of the newest line, also of a run that goes on; NaN: not known */
    uint64_t bytes;                   /* on the disk; without those of its previous runs */
    uint64_t checkpoint;              /* the newest; 0: none */
    bool is_resumable;                /* a checkpoint is there, and the run is neither running nor over */
    bool has_best;                    /* checkpoints/best is there */
    bool is_previous;                 /* it is a previous run, and nobody has resumed it */
    pid_t pid;                        /* of the supervisor, while the run goes on; else 0 */
    struct progress progress;         /* by the newest lines; `unit` NULL: none is a record */
};

/* Reads a folder, which is the caller's own path. Damaged and missing files leave their members empty. The
 * state "running" means that a process of this host holds the run's lock: /proc/locks says so. A run that
 * another host leads through a shared folder looks dead until its log has an end.
 * STATUS_NOT_FOUND: there is no such folder, or no run in it. STATUS_PERMISSION, STATUS_IO name the file. */
enum status run_summary_read(struct run_summary *out, const char *folder, struct error *error);

/* The process of this host that holds the lock of a run's folder. 0: none, or the lock cannot be read. */
pid_t run_lock_holder(const char *folder);

/* The object that `list --json` prints. Unknown members are null. Texts in UTF-8 stay as the files have them;
 * other texts are escaped. The caller deletes the object. NULL: no memory. */
cJSON *run_summary_json(const struct run_summary *summary);

/* The bytes on the disk of all files below the folder; of a file with several names, a name's share.
 * `only_own`: without files that have another name elsewhere, so what removing the folder sets free. Leaves
 * out a run's previous runs, and what cannot be read. */
uint64_t run_summary_bytes(const char *folder, bool only_own);

/* The absolute paths of runs' folders, sorted, each once. */
struct run_folders {
    char **of;
    size_t count;
    char unread[2 * ERROR_TEXT_BYTES]; /* a sentence about folders that cannot be read; "": there are none */
};

/* Finds the runs among each folder, its children and its grandchildren, and the previous runs of each.
 * Folders that lie deeper are a run's own. A folder may itself be a link; below it none is followed. `unread`
 * names the first of the folders that cannot be read, and says how many there are. STATUS_NOT_FOUND,
 * STATUS_PERMISSION, STATUS_IO: one of `folders` cannot be opened. STATUS_NO_MEMORY. run_folders_free
 * follows, also after an error. */
enum status run_folders_find(struct run_folders *out, const char *const *folders, size_t count,
                             struct error *error);
void run_folders_free(struct run_folders *folders);

#endif
