/* An observer's description of its environment, as JSON text. The agent sizes policy and rollout by it, and
 * never loads a plug-in's code. Pure functions, which allocate; any thread.
 *
 *     {"name": "Pendulum-v1", "agents": 1, "steps_max": 200,
 *      "mask": false, "can_seed": true, "can_save": true, "singleton": false, "metrics": [],
 *      "observation": {"dtype": "float32", "shape": [3], "low": [-1, -1, -8], "high": [1, 1, 8]},
 *      "action": {"dtype": "float32", "shape": [1], "low": -2, "high": 2}}
 *
 * All members but bounds and choices must be there, and no others. A bound is a list with a number for each
 * element, or one number for all; null, in a list or in the list's place, is no bound. An action of "int32"
 * has "choices" in place of bounds: a list, or one number for all elements.
 *
 * An observation of several things (environment.h) has no bounds, and its parts in order:
 *
 *     "observation": {"dtype": "uint8", "shape": [7068], "parts": [
 *         {"name": "camera", "dtype": "uint8", "shape": [84, 84, 1], "low": 0, "high": 255},
 *         {"name": "speed", "dtype": "float32", "shape": [3], "low": -1, "high": 1}]} */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_DESCRIPTION_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_DESCRIPTION_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stdbool.h>

enum { ENVIRONMENT_NAME_BYTES = 128 };

struct environment_description {
    char name[ENVIRONMENT_NAME_BYTES];
    bool can_save;                /* it saves and loads states */
    struct environment_spec spec; /* its arrays lie in `memory` */
    struct arena *memory;
};

/* The text of a spec that has passed environment_spec_check, without white space: equal for equal specs. The
 * caller frees it. NULL: no memory, or the name is longer than ENVIRONMENT_NAME_BYTES. */
char *environment_describe(const char *name, const struct environment_spec *spec, bool can_save);

/* Reads a text, of which nothing is trusted; on STATUS_OK the spec passes environment_spec_check.
 * STATUS_INVALID: a sentence that names the member; STATUS_NO_MEMORY. environment_description_fini follows
 * after either result. */
enum status environment_description_read(struct environment_description *description, const char *text,
                                         size_t bytes, struct error *error);
void environment_description_fini(struct environment_description *description);

#endif
