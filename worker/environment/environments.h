/* The room worker/environment: the plug-ins' interface, the built-in environments, and their checks. It
 * includes kernels/base and kernels/lanes. worker/job checks the names of environments with it; worker/model,
 * worker/reinforce and daemon/ read specs and step. This header is the caller's side of environment.h: the
 * environments that one process steps, of any plug-in.
 *
 *     environment  what is stepped and reset: one CartPole, with one row for each of its agents
 *     instance     what a plug-in opens: `count` environments of one name
 *     plug-in      a shared object, or the built-in environments, with a table of functions
 *     spec         an instance's spaces, agents, limits and metrics
 *     row          one agent's observation, action, reward, flags, mask and metrics
 *     mask         a byte for each choice of an action: whether it is allowed
 *     seed         what a reset draws the first state from
 *     trial        what `coalesced try` is given: a plug-in's table, a name, options
 *
 * environments_open makes an instance of `count` environments and the dense buffers that it works in. Rows,
 * `which` and the buffers are environment.h's: row = environment * agents + agent; `which` names n
 * environments, ascending, each once; NULL: all, with n = count. Environment i has the job-wide number first
 * + i, which keys its draws, so that its course depends neither on its place nor on its neighbours.
 *
 * This module makes the rows uniform, so that their readers need no rule of the plug-in's:
 *   - an episode of spec.steps_max steps ends with ENVIRONMENT_TRUNCATED;
 *   - a row that has ended in an environment that goes on is ENVIRONMENT_ABSENT, too;
 *   - ENVIRONMENT_FAILED in one row is in all present rows of its environment;
 *   - an absent or failed row has an observation and a reward of 0 and a mask that allows everything.
 *
 * Frames are joined along the observation's last axis, the oldest first: n values become frames * n, an image
 * of (height, width, channels) becomes (height, width, frames * channels), a single value becomes a row of
 * frames. After a reset, and where an environment has restarted itself, the first observation is repeated, as
 * Gymnasium's FrameStackObservation does with padding_type="reset". An agent that was absent, whose row is
 * zeros, sees these zeros as its past when it comes back.
 *
 * Where a plug-in breaks environment.h, the call returns STATUS_CORRUPT. The sentence begins with the
 * environment's name and names its number. STATUS_INVALID: the plug-in itself refused, in its own words.
 * After either, only environments_close may follow.
 *
 * One thread at a time uses an object. A call blocks for as long as the plug-in's function does. Only
 * environments_open allocates, and python_environments.c. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENTS_H
#define WORKER_ENVIRONMENT_ENVIRONMENTS_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stdbool.h>

struct environments_config {
    const struct environment_plugin *plugin;
    const char *name;      /* the environment's; in every error; outlives the object */
    const char *options;   /* a JSON object; not read with `opened` */
    uint64_t seed;         /* the job's */
    uint32_t first, count; /* the number of the first one; how many, at least 1 */
    uint32_t frames;       /* an observation is the last `frames` ones; 0: as 1 */

    /* An open instance of `count` environments of `spec`. environments_open takes it over, also when it
     * fails. NULL: plugin->open makes one. `failure`: what a call of the instance has failed by, which is
     * passed on as it is; it has STATUS_OK where no call has failed. */
    void *opened;
    const struct environment_spec *spec;
    const struct error *(*failure)(const void *self);
};

struct environments;

/* STATUS_INVALID: the plug-in refuses name, options or count; the frames are too large. STATUS_CORRUPT: its
 * spec breaks environment.h. STATUS_NO_MEMORY. */
enum status environments_open(struct environments **out, const struct environments_config *config,
                              struct error *error);
void environments_close(struct environments *environments);

/* These live as long as the object. The buffers are for reading; they begin at multiples of 64 bytes. Behind
 * the observations there is room for as many again, which is the caller's. Actions are written before a step:
 * (rows, elements) int32 or float32. */
const char *environments_name(const struct environments *environments);
const struct environment_spec *environments_spec(const struct environments *environments);
const struct environment_buffers *environments_buffers(const struct environments *environments);
void *environments_actions(struct environments *environments);

/* Before the first reset: has the observations, and the room behind them, lie in the caller's `memory` of
 * environments_observation_bytes, which begins at a multiple of 64, holds zeros, and outlives the object. */
size_t environments_observation_bytes(const struct environments *environments);
void environments_place_observations(struct environments *environments, void *memory);

/* Puts environments into the first states of (episode, step), and writes observations and masks. */
enum status environments_reset(struct environments *environments, uint32_t n, const uint32_t *which,
                               uint32_t episode, uint32_t step, struct error *error);

/* Steps environments, none of which waits for a reset; writes all of their rows but the actions.
 * STATUS_INVALID: an action is out of bounds. */
enum status environments_step(struct environments *environments, uint32_t n, const uint32_t *which,
                              struct error *error);

/* Whether the plug-in saves and loads states. */
bool environments_can_save(const struct environments *environments);

/* All that environment `index` depends on: environments_load continues with the same bits at any index, in
 * any process. Returns its bytes; more than `capacity`: nothing of use is written, come back with so many. 0:
 * the plug-in has no state to give. Only where environments_can_save. */
size_t environments_save(struct environments *environments, uint32_t index, void *out, size_t capacity);

/* Puts the environment into a saved state; writes its observation, mask and flags. STATUS_INVALID: it is
 * none. */
enum status environments_load(struct environments *environments, uint32_t index, const void *state,
                              size_t bytes, struct error *error);

/* environment.h's render of one environment; 0: it draws none, or has failed (environments_failure). */
size_t environments_render(struct environments *environments, uint32_t index, int kind, uint32_t *width,
                           uint32_t *height, void *out, size_t capacity);

/* Why the newest call failed: config.failure's error. NULL: no call has failed, or the instance cannot tell.
 */
const struct error *environments_failure(const struct environments *environments);

/* Whether the environment waits for a reset after its last step. */
bool environments_is_over(const struct environments *environments, uint32_t index);

#endif
