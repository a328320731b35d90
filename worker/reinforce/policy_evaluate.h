/* The command `coalesced evaluate` of a policy: it plays greedily. One process, one thread, on the CPU; no
 * messages. */
#ifndef WORKER_REINFORCE_POLICY_EVALUATE_H
#define WORKER_REINFORCE_POLICY_EVALUATE_H

#include "worker/reinforce/player.h"

enum { POLICY_EPISODES_MAX = 1000000 };

/* Plays `episodes` (1..POLICY_EPISODES_MAX) whole episodes with the model of `checkpoint`, a checkpoint's
 * folder or a safetensors file with the names of the policy's parameters. In each step the policy takes the
 * action of the greatest probability, the first of equal ones; nothing is dropped. Episode i is that of
 * environment i in the job's episode 0, and training begins with episode 1: the first states follow from the
 * job's seed, are none of training's, and the same for every checkpoint. Errors as checkpoint_load_model;
 * STATUS_NO_MEMORY. */
enum status policy_evaluate(struct player_summary *summary, const char *checkpoint, const struct job *job,
                            uint32_t episodes, struct error *error);

#endif
