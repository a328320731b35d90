/* The agent's own environments, of a job without observers (/observers/count 0): each step of a few small
 * environments costs less than the message that would carry its rows. The rows go the way of an observer's,
 * from the same groups through the same functions (observer.c), so that the numbers are the same. A crash of
 * an environment's code costs the agent: all goes on from the newest checkpoint.
 *
 * An observer is a process of its own, whose loop is observer_run (worker/worker.h). The agent's thread calls
 * the functions below. */
#ifndef WORKER_REINFORCE_OBSERVER_H
#define WORKER_REINFORCE_OBSERVER_H

#include "worker/reinforce/recording.h"
#include "worker/worker.h"

struct own_environments;

/* Opens the environments of the worker's job, which outlives *out. *text: their description, which the caller
 * frees. Errors as job_environments_open. own_environments_free also follows a failure; NULL is allowed. */
enum status own_environments_new(struct own_environments **out, struct worker *worker, char **text,
                                 struct error *error);
void own_environments_free(struct own_environments *own);

/* Begins the rollout of an episode. Errors as environments_reset. */
enum status own_environments_begin(struct own_environments *own, struct recording *recording,
                                   uint64_t episode, struct error *error);

/* Plays for 10 ms, or to the rollout's end. With an order to hurry the rollout is cut short. `progress` is
 * for what learns meanwhile. Errors as recording_step, recording_take, policy_act, environments_step and
 * environments_reset. */
enum status own_environments_play(struct own_environments *own, struct recording *recording,
                                  struct policy *policy, policy_progress *progress, void *context,
                                  struct error *error);

/* Whether it waits for what learns meanwhile. */
bool own_environments_wait(const struct own_environments *own);

/* Whether the rollout is over. STATUS_AGAIN: it is not. STATUS_SHUTDOWN: it was cut short. */
enum status own_environments_await(const struct own_environments *own);

/* The environments' states, as observer_seats.h lays them out. Save returns their bytes; more than
 * `capacity`: nothing of use is written; 0: they cannot be saved. Load: STATUS_INVALID with
 * a sentence; errors as environments_load. */
size_t own_environments_save(struct own_environments *own, char *out, size_t capacity);
enum status own_environments_load(struct own_environments *own, const char *states, size_t length,
                                  struct error *error);

#endif
