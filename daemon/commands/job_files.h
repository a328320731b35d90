/* Files that a job names, and the job that a checkpoint belongs to. For commands, before their work begins;
 * any process, one thread; blocks on files. */
#ifndef DAEMON_COMMANDS_JOB_FILES_H
#define DAEMON_COMMANDS_JOB_FILES_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/job/job.h"

#include <stdint.h>

/* Opens every file that the job names, reads a text, and compares an /init with the model, so that a file
 * that is missing, damaged, or of no use for the job is found before a worker starts. Errors:
 * STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO and STATUS_CORRUPT name the file; STATUS_INVALID: the file
 * holds less than the job asks for, or another model. *pointer is the key at fault. If the job
 * evaluates and no images are held out, a warning is logged. */
enum status job_files_check(const struct job *job, const char **pointer, struct error *error);

/* The updates of an epoch of the job's data, which this opens as a run does; 0: no epochs, or a class in
 * Python has the data. Errors as job_files_check. */
enum status job_files_epoch_updates(uint64_t *updates, const struct job *job, struct error *error);

/* Where a command finds what its arguments leave out. */
struct job_files_found {
    char checkpoint[CHECKPOINT_PATH_BYTES];
    char run[CHECKPOINT_PATH_BYTES],
        job[CHECKPOINT_PATH_BYTES]; /* of a checkpoint; the job lies in the run */
};

/* Finds the checkpoint that `name` means. A run's directory means its newest sound checkpoint; a line on
 * standard error names that. Returns `name`, or a string in *found. NULL: errors of checkpoint_newest. */
const char *job_files_find_checkpoint(struct job_files_found *found, const char *name, struct error *error);

/* Finds the run of the checkpoint folder RUN/checkpoints/NUMBER, and RUN/job.json, which is no link where it
 * is opened below the run. STATUS_NOT_FOUND: there is no such folder. */
enum status job_files_find_job(struct job_files_found *found, const char *checkpoint, struct error *error);

/* Reads RUN/job.json of the checkpoint folder RUN/checkpoints/NUMBER. STATUS_NOT_FOUND: there is no such
 * folder, or no job in RUN; STATUS_CORRUPT: the job cannot be read; STATUS_INVALID: it is not of `kind`, one
 * of enum job_kind, or JOB_FILES_ANY_KIND. */
enum { JOB_FILES_ANY_KIND = -1 };
enum status job_files_of_checkpoint(struct job *job, const char *checkpoint, int kind, struct error *error);

/* Checks that `checkpoint` is a checkpoint folder: a language model needs the vocabulary in it.
 * STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO. */
enum status job_files_check_folder(const char *checkpoint, struct error *error);

#endif
