/* The agent's own environments, of a job without observers (/observers/count 0). Each step of a few small
 * environments costs less than the message that would carry its rows. The rows go the way of an observer's,
 * from the same groups through the same functions, so that the numbers are the same. A crash of an
 * environment's code costs the agent: all goes on from the newest checkpoint. The agent's thread. */
#ifndef WORKER_REINFORCE_OWN_ENVIRONMENTS_H
#define WORKER_REINFORCE_OWN_ENVIRONMENTS_H

#include "worker/reinforce/inference.h"
#include "worker/reinforce/recording.h"

struct own_environments;

/* Opens the environments of the worker's job, which outlives *out. *text: their description, which the caller
 * frees. Errors as observer_group_open. own_environments_free also follows a failure; NULL is allowed. */
enum status own_environments_new(struct own_environments **out, const struct worker *worker, char **text,
                                 struct error *error);
void own_environments_free(struct own_environments *own);

/* Begins the rollout of an episode. Errors as observer_group_begin. */
enum status own_environments_begin(struct own_environments *own, struct recording *recording,
                                   uint64_t episode, struct error *error);

/* Plays for 10 ms, or to the rollout's end. With an order to hurry the rollout is cut short. Errors as
 * recording_step, policy_act and observer_group_advance. */
enum status own_environments_play(struct own_environments *own, struct recording *recording,
                                  struct inference *inference, struct error *error);

/* Whether the rollout is over; and whether it was cut short. */
bool own_environments_are_over(const struct own_environments *own);
bool own_environments_are_cut(const struct own_environments *own);

/* The environments' states, as seats.h lays them out. Save returns their bytes, and writes nothing where
 * `capacity` is less; 0: they cannot be saved. Load's errors as observer_group_load. */
size_t own_environments_save(struct own_environments *own, char *out, size_t capacity);
enum status own_environments_load(struct own_environments *own, const char *states, size_t length,
                                  struct error *error);

#endif
