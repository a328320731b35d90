/* What `coalesced try` checks: that an environment of a plug-in keeps what environment.h says. Calls of the
 * plug-in go through environment_probe.h, which looks at every row of every call; here instances of several
 * sizes play the same episodes, and must give the same bits.
 *
 * Runs the plug-in's code: a plug-in that crashes takes the process with it, and one that does not come back
 * blocks. The caller has another process for that. One thread. */
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
