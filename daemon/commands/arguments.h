/* Reads the command line after the command's name: options, a checkpoint, a job file. The command's process;
 * one thread. Included by main.c and commands.c. */
#ifndef DAEMON_COMMANDS_ARGUMENTS_H
#define DAEMON_COMMANDS_ARGUMENTS_H

#include "daemon/hosts/place.h"
#include "worker/model_parallel/language.h"

#include <stdbool.h>
#include <stddef.h>

/* The arguments that a command takes beside --help; combined by |. */
enum accepts {
    ACCEPTS_JOB = 1,         /* a job file, --set */
    ACCEPTS_RUN = 2,         /* --run-dir, --resume, --profile, --node, --leader, --keys */
    ACCEPTS_CHECKPOINT = 4,  /* in front of the job, if there is one */
    ACCEPTS_TEXT = 8,        /* --words, --seed, --temperature */
    ACCEPTS_EPISODES = 16,   /* --episodes */
    ACCEPTS_PLUGIN = 32,     /* a plug-in or an environment, --name, --options, --steps, --limit-s, --seed */
    ACCEPTS_RENDER = 64,     /* --render, --sample */
    ACCEPTS_KEYS = 128,      /* a folder for keys, --hosts */
    ACCEPTS_LEADER = 256,    /* a leader's address, --node, --keys, --observers, --trainers */
    ACCEPTS_ONE_RUN = 512,   /* a run that goes on now: its directory or name */
    ACCEPTS_ALL_RUNS = 1024, /* nothing; with ACCEPTS_ONE_RUN: at most one run */
    ACCEPTS_WATCH = 2048,    /* --watch */
    ACCEPTS_ONNX = 4096,     /* --onnx, which must be given */
    ACCEPTS_JSON = 8192,     /* --json */
};

struct arguments {
    bool help; /* --help was among them: nothing else was read */
    const char *job_path;
    const char *checkpoint;
    struct language_generate text;
    uint32_t episodes;  /* 0: not given */
    const char *render; /* "text", or a film's path; NULL: not given */
    bool sample;
    const char *onnx;        /* the file to write; NULL: not given */
    const char *environment; /* a plug-in's path, or a built-in environment's name */
    const char *name;        /* of one of the plug-in's environments; NULL: not given */
    const char *options;     /* a JSON object */
    uint32_t steps, limit_s;
    struct place_flags place;
    const char *key_folder; /* of keygen */
    uint32_t hosts;         /* of keygen; 0: not given */
    uint32_t brings;        /* of join: --observers or --trainers; 0: not given */
    uint8_t role;           /* enum wire_role, of those */
    const char *run_dir;    /* NULL: not given */
    const char *run;        /* of status and stop: a run's directory or name; NULL: not given */
    bool json, watch;
    bool resume;
    const char **overrides; /* the values of --set, in order */
    size_t override_count;
};

/* Reads argv, of which argv[0] is the command. 0, or the exit code of a usage error, whose message is
 * printed. In either case arguments_fini follows. The strings are argv's. */
int arguments_read(struct arguments *arguments, int argc, char **argv, unsigned accepts);
void arguments_fini(struct arguments *arguments);

/* Prints "coalesced: TEXT; see coalesced --help" and returns EX_USAGE. */
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
