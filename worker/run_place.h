/* A place in a run's two logs, and the run's identity. A checkpoint names both, so that a resume needs no
 * comparison: it takes a checkpoint whose place the logs confirm, and cuts the lines behind that place.
 *
 * The supervisor writes the logs, and tells the lead the place behind each record (CONTROL_LOGGED). The lead
 * writes the place into its checkpoint's manifest. */
#ifndef WORKER_RUN_PLACE_H
#define WORKER_RUN_PLACE_H

#include <stdint.h>

enum { RUN_ID_BYTES = 16, RUN_DIGEST_BYTES = 32 };

/* The two logs. */
enum run_log { RUN_LOG_JSON, RUN_LOG_TEXT, RUN_LOGS };

/* A log's name in the run's directory. */
static inline const char *run_log_name(enum run_log log)
{
    return log == RUN_LOG_JSON ? "episodes.jsonl" : "episodes.log";
}

struct run_identity {
    uint8_t id[RUN_ID_BYTES]; /* random; the run keeps it when it is resumed */
    uint64_t seed;
    uint8_t numbers[RUN_DIGEST_BYTES]; /* SHA-256 of the job's keys and values that decide numbers */
};

/* Behind a line of a log. A rotation begins a new file, where `bytes` counts from its start. */
struct log_place {
    uint64_t lines;                   /* of the run so far, with those of files that were moved away */
    uint64_t bytes;                   /* of the file so far */
    uint8_t sha256[RUN_DIGEST_BYTES]; /* of these bytes */
};

struct run_place {
    struct run_identity run;
    struct log_place logs[RUN_LOGS];
};

#endif
