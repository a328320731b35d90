/* Checks of a plug-in's table and of its specs, and the sizes that follow from a spec. Pure functions; any
 * thread. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_SPEC_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_SPEC_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ENVIRONMENT_AGENTS_MAX = 1024,
    ENVIRONMENT_METRICS_MAX = 64,
    ENVIRONMENT_METRIC_NAME_MAX = 63,    /* bytes */
    ENVIRONMENT_CHOICES_MAX = 1 << 16,   /* of one element */
    ENVIRONMENT_ROW_BYTES_MAX = 1 << 24, /* of one observation or action */
    ENVIRONMENT_STEP_FLAGS = ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED | ENVIRONMENT_RESTARTED |
                             ENVIRONMENT_FAILED | ENVIRONMENT_ABSENT
};

/* Whether the table is whole: version, size, names and the functions that no plug-in is without.
 * STATUS_INVALID; the sentence begins with a verb, for the caller to put the file in front. */
enum status environment_table_check(const struct environment_plugin *plugin, struct error *error);

bool environment_has_name(const struct environment_plugin *plugin, const char *name);

/* Whether every number of the spec is within what environment.h and the limits above allow. STATUS_INVALID;
 * the sentence names the member. */
enum status environment_spec_check(const struct environment_spec *spec, struct error *error);

/* The functions below take what has passed environment_spec_check. */

size_t environment_space_elements(const struct environment_space *space);

/* The bytes of one row. */
size_t environment_space_bytes(const struct environment_space *space);

/* The bytes of one row's mask: the sum of the action's choices; 0 of an action without. */
size_t environment_choices(const struct environment_spec *spec);

/* What a death or a resume costs, as a sentence behind the environment's name. NULL: nothing. */
const char *environment_loss(bool can_seed, bool can_save);

/* Whether the flags of a row end its episode, so that the row waits for reset. */
static inline bool environment_flags_end(uint8_t flags)
{
    return (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0 &&
           (flags & ENVIRONMENT_RESTARTED) == 0;
}

/* Whether `count` float32, which may lie at any address, are finite. */
bool environment_floats_are_finite(const void *data, size_t count);

/* Whether an environment waits for reset, by its rows' flags: one failed, or each has ended or is absent. */
bool environment_is_over(const uint8_t *flags, uint32_t agents);

#endif
