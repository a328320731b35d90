/* The one check of an environment's rows: what goes into a plug-in's step, and what comes back, held to its
 * spec. environments.h checks with it while a job runs, and environment_contract.c on behalf of `coalesced
 * try`.
 *
 * Rows, n and `which` are environment.h's. Each check returns at the first wrong row, with a sentence that
 * begins with the row's place: "environment 7, agent 1: element 2 of its reward is nan: expected a finite
 * number". The status is STATUS_CORRUPT; of actions, which are not the plug-in's, STATUS_INVALID. Nothing
 * here blocks or allocates. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_ROWS_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_ROWS_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stddef.h>
#include <stdint.h>

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

/* The last two, of one row. */
enum status environment_row_check_step(const struct environment_rows *rows, uint32_t row,
                                       struct error *error);
enum status environment_row_check_state(const struct environment_rows *rows, uint32_t row,
                                        struct error *error);

/* The observation of one row is within the spec's bounds, those rounded to float32. A running job does not
 * ask for that. */
enum status environment_row_check_bounds(const struct environment_rows *rows, uint32_t row,
                                         struct error *error);

#endif
