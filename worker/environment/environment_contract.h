/* The contract: everything that environment.h demands of an environment, as `coalesced try` checks it. All
 * calls go through environment_probe.h, which checks every row. The contract's own trials let instances of
 * several sizes play the same episodes, which must give the same bits.
 *
 * Runs the plug-in's code in the caller's process: a crash ends that process, and a call that never returns
 * blocks it. So the caller forks one. One thread. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_CONTRACT_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_CONTRACT_H

#include "kernels/base/status.h"
#include "worker/environment/environment_probe.h"

#include <stdint.h>

enum { CONTRACT_STEPS_MAX = 100000 };

/* One line for people, without a line end: a check that passed, and what it saw. */
typedef void contract_report(void *context, const char *line);

/* Plays `steps` (1..CONTRACT_STEPS_MAX) random steps of several environments a number of times, seeded by
 * `seed`, and checks the whole contract. Reports a line for each check that passed, and the steps per CPU
 * second. Stops at the first clause that does not hold: STATUS_CORRUPT, and a sentence that names the
 * environment, the clause and the place. STATUS_NO_MEMORY. */
enum status environment_contract(const struct environment_trial *trial, uint64_t seed, uint32_t steps,
                                 contract_report *report, void *context, struct error *error);

#endif
