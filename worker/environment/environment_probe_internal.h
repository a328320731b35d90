/* What the probe's two files share: environment_probe.c calls the plug-in, environment_probe_rows.c looks at
 * what it wrote. Only these two include it. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_PROBE_INTERNAL_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_PROBE_INTERNAL_H

#include "worker/environment/environment_probe.h"

/* Outputs are filled with these before a call; the float is a NaN that nobody computes. */
enum { PROBE_PATTERN_BYTE = 0xa5 };
static const uint32_t probe_pattern_float = 0x7fa5a5a5;

extern const char *const probe_area_names[PROBE_AREAS];

/* STATUS_CORRUPT with a sentence that begins with the environment's name and the clause. */
enum status probe_broken(const struct environment_trial *trial, struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Observation and mask of a row, after any call that writes them. */
enum status probe_check_state(const struct probe *probe, uint32_t environment, uint32_t agent,
                              struct error *error);

/* All of a row after a step. */
enum status probe_check_stepped_row(const struct probe *probe, uint32_t environment, uint32_t agent,
                                    struct error *error);

/* An environment that was stepped has an agent that is present. */
enum status probe_check_present(const struct probe *probe, uint32_t environment, struct error *error);

#endif
