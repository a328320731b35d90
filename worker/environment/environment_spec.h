/* The one check of a plug-in's specs, the sizes that follow from a spec, and the one check of its rows: what
 * goes into a plug-in's step, and what comes back. environments.h checks with it while a job runs, and
 * environment_contract.c on behalf of `coalesced try`. Pure functions; any thread. */
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
    ENVIRONMENT_NAME_MAX = 63, /* bytes of a metric's or a part's name */
    ENVIRONMENT_PARTS_MAX = 256,
    ENVIRONMENT_CHOICES_MAX = 1 << 16,   /* of one element */
    ENVIRONMENT_ROW_BYTES_MAX = 1 << 24, /* of one observation or action */
    ENVIRONMENT_STEP_FLAGS = ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED | ENVIRONMENT_RESTARTED |
                             ENVIRONMENT_FAILED | ENVIRONMENT_ABSENT | ENVIRONMENT_LIFE_LOST
};

/* Copies what a plug-in of any version gives as its spec; what its version does not have is zero. Its arrays
 * stay the plug-in's. Errors as environment_spec_check. */
enum status environment_spec_take(struct environment_spec *out, const struct environment_spec *given,
                                  struct error *error);

/* Whether every number of the spec is within what environment.h and the limits above allow. STATUS_INVALID;
 * the sentence names the member. */
enum status environment_spec_check(const struct environment_spec *spec, struct error *error);

/* The functions below take what has passed environment_spec_check. */

/* Whether a policy that has learned with `was` fits `is`: agents, masks, types, shapes, choices and the
 * actions' bounds are the same. STATUS_INVALID: the sentence names the first of these that differs, "its
 * observation is float32 (4): it was float32 (3)". */
enum status environment_spec_compare(const struct environment_spec *was, const struct environment_spec *is,
                                     struct error *error);

size_t environment_space_elements(const struct environment_space *space);

/* By the type of a space's elements. */
extern const char *const environment_dtype_names[];

/* Writes "float32 (84, 84, 1)", which takes at most 48 bytes with its zero. Returns its length. */
size_t environment_space_show(char *out, size_t size, const struct environment_space *space);

/* Where a part begins in its row, in bytes; of a number behind the last one: the row's end. */
size_t environment_part_offset(const struct environment_part *parts, uint32_t part);

/* Whether the part is an image: bytes of height, width and channels. */
static inline bool environment_part_is_image(const struct environment_part *part)
{
    return part->space.dtype == ENVIRONMENT_U8;
}

/* The floats among the `count` parts of a row, one after another. Returns how many; `out` may be NULL. */
size_t environment_part_floats(const struct environment_part *parts, uint32_t count, const void *row,
                               float *out);

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

/* Whether these flags end an episode of the log. The row is not an absent agent's. */
static inline bool environment_flags_count(uint8_t flags)
{
    return (flags & ~ENVIRONMENT_LIFE_LOST) != 0;
}

/* Whether what is learned from ends in a state whose value is 0. */
static inline bool environment_flags_have_no_future(uint8_t flags)
{
    return (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_LIFE_LOST)) != 0;
}

/* Whether `count` float32, which may lie at any address, are finite. */
bool environment_floats_are_finite(const void *data, size_t count);

/* The same of all floats in `count` rows of observations, and whether a row has any. */
bool environment_observations_are_finite(const struct environment_spec *spec, const void *rows, size_t count);
bool environment_observes_floats(const struct environment_spec *spec);

/* Whether an environment waits for reset, by its rows' flags: one failed, or each has ended or is absent. */
bool environment_is_over(const uint8_t *flags, uint32_t agents);

/* ---- rows ----
 *
 * Rows, n and `which` are environment.h's. Each check returns at the first wrong row, with a sentence that
 * begins with the row's place: "environment 7, agent 1: element 2 of its reward is nan: expected a finite
 * number". The status is STATUS_CORRUPT; of actions, which are not the plug-in's, STATUS_INVALID. */

struct environment_rows {
    const struct environment_spec *spec;
    const struct environment_buffers *buffers;
    uint32_t first;         /* the number of the buffers' first environment, for the sentences */
    size_t elements;        /* of one row's observation */
    size_t action_elements; /* of its action */
    size_t choices;         /* bytes of one row's mask; 0: has none */
};

/* `spec`, which is good, and `buffers` outlive the result. */
struct environment_rows environment_rows_of(const struct environment_spec *spec,
                                            const struct environment_buffers *buffers, uint32_t first);

/* Element i of the list: the environment's index in the buffers. */
static inline uint32_t environment_rows_at(const uint32_t *which, uint32_t i)
{
    return which != NULL ? which[i] : i;
}

/* Actions are within their choices or bounds, those bounds rounded to float32. */
enum status environment_rows_check_actions(const struct environment_rows *rows, uint32_t n,
                                           const uint32_t *which, struct error *error);

/* After a step: each flag has a meaning, and so have they together; an agent is present. */
enum status environment_rows_check_flags(const struct environment_rows *rows, uint32_t n,
                                         const uint32_t *which, struct error *error);

/* After a step: rewards are finite, and so are the metrics of rows that have ended. */
enum status environment_rows_check_step(const struct environment_rows *rows, uint32_t n,
                                        const uint32_t *which, struct error *error);

/* After a reset, step or load: observations are finite, and masks leave a choice. */
enum status environment_rows_check_state(const struct environment_rows *rows, uint32_t n,
                                         const uint32_t *which, struct error *error);

/* The last two of one row, after a step (`stepped`) or a reset or load; and its observation is within the
 * spec's bounds, those rounded to float32. A running job does not ask for the bounds. */
enum status environment_row_check(const struct environment_rows *rows, uint32_t row, bool stepped,
                                  struct error *error);

#endif
