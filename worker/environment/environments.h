/* Environments: the worlds that observers step. Pure: no I/O, no clock, no messages. The room includes
 * kernels/base alone; worker/job includes it for the name, worker/reinforce to step.
 *
 * A `struct environments` is K environments of CartPole that one observer owns. Its environment i has the
 * job-wide number `first + i`, which keys its draws (kernels/base/rng.h): a trajectory depends on the job's
 * seed, the environment's number, the episode and the actions, and on nothing else. One thread at a time may
 * use one object. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENTS_H
#define WORKER_ENVIRONMENT_ENVIRONMENTS_H

#include "kernels/base/status.h"
#include "worker/environment/cartpole.h"
#include "worker/environment/environment.h"

enum { ENVIRONMENT_FLAGS = ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED };

struct environments;

/* Makes `count` environments (at least 1) numbered from `first`, none of them reset yet. Allocates all the
 * memory that they will ever need. Errors: STATUS_NO_MEMORY. Release with environments_free. */
enum status environments_new(struct environments **out, uint64_t seed, uint32_t first, uint32_t count,
                             struct error *error);
void environments_free(struct environments *environments);

/* Puts environment `index` (0 .. count - 1) into a fresh first state, drawn for (episode, step). */
void environments_reset(struct environments *environments, uint32_t index, uint32_t episode, uint32_t step);

/* Steps the `n` environments `indices` (local, each at most once) with `actions`, which are below
 * CARTPOLE_ACTIONS. rewards: (n), flags: (n) of enum environment_flag. An environment that has ended must be
 * reset before it is stepped again. */
void environments_step(struct environments *environments, uint32_t n, const uint32_t *indices,
                       const uint8_t *actions, float *rewards, uint8_t *flags);

/* Writes the present observations of the `n` environments `indices`. observations: (n, CARTPOLE_STATE_SIZE)
 * float32. */
void environments_observe(const struct environments *environments, uint32_t n, const uint32_t *indices,
                          float *observations);

#endif
