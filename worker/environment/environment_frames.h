/* Frame stacking: wraps an instance of a plug-in in one whose observation is the last `frames` observations.
 * The wrapper has all functions of environment.h, so its callers need not know of it.
 *
 * The observations are joined along the last axis, the oldest first: n values become frames * n, an image of
 * (height, width, channels) becomes (height, width, frames * channels), a single value becomes a row of
 * frames. After a reset, and where an environment has restarted itself, the first observation is repeated, as
 * Gymnasium's FrameStackObservation does with padding_type="reset". An agent that was absent, whose row is
 * zeros, sees these zeros as its past when it comes back.
 *
 * The stack is kept in the caller's buffer of observations: what a row holds before a step is its past. A
 * saved state is the agents' stacks and then the plug-in's own state. One thread at a time uses an object. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_FRAMES_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_FRAMES_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

enum { ENVIRONMENT_FRAMES_MAX = 16 };

/* Puts `frames` (2..ENVIRONMENT_FRAMES_MAX) around an instance of `count` environments; its spec has passed
 * environment_spec_check. The instance, its plug-in's table and its spec become those of the wrapper, and
 * live until the table's close, which closes the plug-in's instance too. The table has no open; it has
 * render, save and load where the plug-in has them. STATUS_INVALID: the stacked observation is larger than
 * ENVIRONMENT_ROW_BYTES_MAX; STATUS_NO_MEMORY. After either the three are as they were. */
enum status environment_frames_open(const struct environment_plugin **plugin, void **instance,
                                    const struct environment_spec **spec, uint32_t count, uint32_t frames,
                                    struct error *error);

#endif
