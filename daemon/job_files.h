/* What a job's file cannot say by itself: whether the files that it names are there and good, and which job a
 * checkpoint is of. For commands, in front of the work; blocks on files. Any process, one thread. */
#ifndef DAEMON_JOB_FILES_H
#define DAEMON_JOB_FILES_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Opens every file that the job names, and reads a text, so that one that is missing or no good, or too
 * little for the job, is told before anybody starts. STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO,
 * STATUS_CORRUPT name the file; STATUS_INVALID: the job asks for what they do not hold; but that it asks for
 * evaluations of images of which none are held out is a warning. */
enum status job_files_check(const struct job *job, struct error *error);

/* Reads the job of a run, RUN/job.json. STATUS_CORRUPT: it is no job file; others as job_read_file. */
enum status job_files_of_run(struct job *job, const char *path, struct error *error);

/* Reads the job of the run that a checkpoint's folder lies in, RUN/checkpoints/N: RUN/job.json. It must be a
 * model-parallel one. STATUS_NOT_FOUND: there is no such folder, or no job by it; STATUS_CORRUPT: the job
 * cannot be read; STATUS_INVALID: it is of another kind. */
enum status job_files_of_checkpoint(struct job *job, const char *checkpoint, struct error *error);

/* Whether `checkpoint` is a checkpoint's folder: a language model needs the vocabulary that lies there.
 * STATUS_NOT_FOUND, and what else is wrong with the path. */
enum status job_files_check_folder(const char *checkpoint, struct error *error);

#endif
