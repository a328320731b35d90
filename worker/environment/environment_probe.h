/* A probe: one instance of a plug-in under test. Each call is checked against environment.h. The buffers lie
 * between guard bytes, and each output is filled with a pattern before the call. Afterwards only the rows
 * that the call was for may have changed, and environment_rows.h checks them. environment_contract.c decides
 * what to call, and compares the results.
 *
 * A broken clause is STATUS_CORRUPT with a sentence. One thread uses a probe. Calls block for as long as the
 * plug-in's function takes; another process can watch them through struct plugin_call. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_PROBE_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_PROBE_H

#include "kernels/base/plugin_call.h"
#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct environment_trial {
    const struct environment_plugin *plugin;
    const char *name, *options;
    struct plugin_call *progress;
};

enum probe_area {
    PROBE_OBSERVATION,
    PROBE_ACTION,
    PROBE_REWARD,
    PROBE_FLAGS,
    PROBE_MASK,
    PROBE_METRICS,
    PROBE_AREAS
};

struct probe {
    const struct environment_trial *trial;
    const struct environment_spec *spec;
    void *self;
    uint32_t count;
    struct environment_buffers buffers;
    struct probe_buffer {
        uint8_t *memory, *before; /* guard, rows, guard; a copy of them from before the call */
        size_t bytes, row_bytes;  /* of the rows alone; of one row. 0: the spec has no such thing */
        size_t guard_bytes;
    } areas[PROBE_AREAS];
    bool *asked;                    /* (count) the call was for this environment */
    uint32_t *which;                /* (count) the list as it was passed, and a copy of it */
    struct environment_seed *seeds; /* (count) the same of seeds */
};

/* Opens an instance of `count` environments; its spec is good. Errors: a broken clause; STATUS_NO_MEMORY.
 * After either result probe_close follows; of a probe of zeros, too. */
enum status probe_open(struct probe *probe, const struct environment_trial *trial, uint32_t count,
                       struct error *error);
void probe_close(struct probe *probe);

/* Calls open where it must refuse: STATUS_CORRUPT if it opens, or refuses without a sentence. `what` names
 * what is wrong with the arguments. */
enum status probe_refuses(const struct environment_trial *trial, const char *name, const char *options,
                          const char *what, struct error *error);

/* One row of an area, of environment and agent. */
void *probe_row(const struct probe *probe, enum probe_area area, uint32_t environment, uint32_t agent);

/* reset and step of the n environments `which` (NULL: all). Afterwards the rows hold what the plug-in wrote,
 * and have passed. */
enum status probe_reset(struct probe *probe, uint32_t n, const uint32_t *which,
                        const struct environment_seed *seeds, struct error *error);
enum status probe_step(struct probe *probe, uint32_t n, const uint32_t *which, struct error *error);

/* save and load of one environment. *state is malloc'ed, of *size bytes; the caller frees it. */
enum status probe_save(struct probe *probe, uint32_t which, void **state, size_t *size, struct error *error);
enum status probe_load(struct probe *probe, uint32_t which, const void *state, size_t size,
                       struct error *error);

/* load of what is no state: STATUS_CORRUPT if the plug-in takes it, or refuses it without a sentence. */
enum status probe_refuses_state(struct probe *probe, uint32_t which, const void *state, size_t size,
                                struct error *error);

/* render of one environment, as its kind. *bytes: 0 if it cannot. */
enum status probe_render(struct probe *probe, uint32_t which, int kind, size_t *bytes, struct error *error);

/* step and reset as the plug-in has them, without any check, for a measurement. */
enum status probe_bare_reset(struct probe *probe, uint32_t n, const uint32_t *which,
                             const struct environment_seed *seeds, struct error *error);
enum status probe_bare_step(struct probe *probe, struct error *error);

#endif
