/* The commands of the program, a file each.
 *
 * The room: daemon/commands holds what a person types behind `coalesced`, with what that command alone uses.
 * commands.c reads the arguments and the job, and then calls the command's function. These functions block
 * until the command's end, print what it shows on standard output, and leave an error to the caller to print.
 * main.c includes this header, and each command does. */
#ifndef DAEMON_COMMANDS_COMMANDS_H
#define DAEMON_COMMANDS_COMMANDS_H

#include "daemon/commands/job_files.h"
#include "daemon/hosts/follow.h"
#include "daemon/hosts/rendezvous.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stddef.h>

enum { COMMAND_HELP = -1 };

/* How `generate` writes. The same settings and checkpoint give the same text. */
struct text_settings {
    uint64_t words; /* "<eos>" counts, and is written as a line end */
    uint64_t seed;
    double temperature; /* > 0; each logit is divided by it */
};

/* What the command line says behind the command's name. The strings are argv's, but for `found`. */
struct arguments {
    bool help; /* --help was among them: nothing else was read */
    const char *job_path;
    const char *checkpoint;
    struct job_files_found found; /* where a run stands in place of its checkpoint or its job */
    struct text_settings text;    /* of generate */
    uint32_t episodes;            /* 0: not given */
    const char *render;           /* "text", or a film's path; NULL: not given */
    bool sample;
    const char *onnx;        /* the file to write; NULL: not given */
    const char *environment; /* a plug-in's path, or a built-in environment's name */
    const char *name;        /* of one of the plug-in's environments; NULL: not given */
    const char *options;     /* a JSON object */
    uint32_t steps, limit_s;
    struct rendezvous_flags rendezvous;
    const char *key_folder;     /* of keygen */
    uint32_t hosts;             /* of keygen; 0: not given */
    uint32_t brings;            /* of join: --observers or --trainers; 0: not given */
    uint8_t role;               /* enum wire_role, of those */
    const char *run_dir;        /* NULL: not given */
    const char *run;            /* of status and stop: a run's directory or name; NULL: not given */
    const char *const *folders; /* (folder_count), of list, clean and page */
    size_t folder_count;
    double age_s;               /* of clean */
    const char *listen, *token; /* of page: an address or a socket's path, a file; token NULL: not given */
    bool json, watch, running, dry_run, all;
    bool resume;
    const char **overrides; /* the values of --set, in order */
    size_t override_count;
};

/* Prints "coalesced: TEXT; see coalesced --help" and returns EX_USAGE. */
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Runs the command argv[0] with the arguments behind it. Returns the exit code, or COMMAND_HELP: --help was
 * among the arguments, and nothing was done. Output may still be in stdout's buffer. */
int command_run(int argc, char **argv);

/* A command. `job`: the job file among the arguments, checked; a command that takes none may use the memory.
 */
typedef enum status command_work(const struct arguments *arguments, struct job *job, struct error *error);

/* run, run_command.c: leads the job to its end, or follows its leader. Errors of supervise, of
 * follow, and of what opens the run directory. */
command_work run_job;

/* join, run_command.c: adds this host to a running job. Errors of follow and of the key files. */
command_work join_job;

/* evaluate, evaluate_command.c: prints accuracy, perplexity or rewards of arguments->checkpoint. Errors of
 * evaluation_run, language_evaluate and policy_evaluate. */
command_work evaluate;

/* generate, generate_command.c: prints text of arguments->checkpoint: words with single spaces between them,
 * <unk> as it is, punctuation spaced as in prose (worker/data/tokenize.h). STATUS_CORRUPT: a logit is not
 * finite. Other errors of job_files_of_checkpoint and language_open. */
command_work generate;

/* play, play.c: plays arguments->checkpoint with the job of its run, prints a line for each episode, and
 * renders as arguments->render says: NULL for nothing, "text" to standard output, else a film's path. Errors
 * of job_files_of_checkpoint, policy_play and the film. */
command_work play;

/* export, export.c: writes the model of arguments->checkpoint to arguments->onnx, with the job of its run.
 * STATUS_INVALID: the model is a language model's. Other errors of job_files_of_checkpoint,
 * job_command_environments_open, policy_export and classifier_export. */
command_work export_model;

/* try, try.c: checks the plug-in or the built-in environment that the arguments name against environment.h;
 * of a plug-in without --name, all of its environments. A child process runs the plug-in. Prints a line for
 * each check. STATUS_INVALID: it is no plug-in, or has no such environment. STATUS_CORRUPT: a clause is
 * broken. STATUS_INTERNAL: it crashed. STATUS_TIMEOUT: a call took longer than --limit-s. */
command_work try_environments;

/* status and stop, status_command.c: ask the runs on this host (daemon/watch/status_socket.h). RUN is a run's
 * directory, or its job's name, if one run alone has that name.
 *
 * status prints the tables of the run, or of all runs that go on where none is named; with --json the run's
 * document, or {"runs": [...]}; with --watch again every second, until the run has ended or the command is
 * interrupted. Of a run that has ended it prints the end. stop sends the run SIGTERM, and waits for its end.
 * STATUS_NOT_FOUND: there is no such run, or it does not answer. STATUS_INVALID: several have this name. */
command_work status_show, status_stop;

/* list, list_command.c: prints a line for each run that goes on, and for each that lies below the folders,
 * newest last; with --json {"runs": [...]}. With --running only for each that goes on; where the arguments
 * name folders, only for each that goes on below them. Errors of run_folders_find. */
command_work list_runs;

/* clean, clean_command.c: removes the checkpoints, but the best, of previous runs below the folders that
 * ended arguments->age_s seconds ago or earlier; with --all these runs' folders; with --dry-run nothing.
 * Prints each, and the bytes. A failure is a warning, and the rest goes on; then STATUS_IO. Errors of
 * run_folders_find. */
command_work clean_runs;

/* page, page_command.c: serves a page of the runs below the folders that the arguments name, until a signal
 * comes. Errors of listener_open and of found_runs_folders. */
command_work page_serve;

#endif
