/* The contract: everything that environment.h demands of an environment, as `coalesced try` checks it. Every
 * call of the plug-in is checked by itself: guard bytes, patterns, and environment_spec.h. Beyond that,
 * instances of several sizes play the same episodes, which must give the same bits.
 *
 * Runs the plug-in's code in the caller's process: a crash ends that process, and a call that never returns
 * blocks it. So the caller forks a process, which is watched through `progress`. One thread. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_CONTRACT_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_CONTRACT_H

#include "kernels/base/plugin_call.h"
#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stdint.h>
#include <stdio.h>

enum { CONTRACT_STEPS_MAX = 100000 };

struct environment_trial {
    const struct environment_plugin *plugin;
    const char *name, *options;
    uint64_t seed;
    uint32_t steps;               /* 1..CONTRACT_STEPS_MAX */
    struct plugin_call *progress; /* the clause and the call that run */
    FILE *report;                 /* gets a line for each check that passed; NULL: nothing does */
};

/* Plays `steps` random steps of several environments a number of times, and checks the whole contract.
 * Reports what it saw, and the steps per CPU second. Stops at the first clause that does not hold:
 * STATUS_CORRUPT, and a sentence that names the environment, the clause and the place. STATUS_NO_MEMORY. */
enum status environment_contract(const struct environment_trial *trial, struct error *error);

#endif
