/* Where the workers' time went (/log/profile): keeps what each reports when it leaves, and writes
 * profile.txt and profile.json at the end. Supervisor process; its only thread; no lock. */
#ifndef DAEMON_SUPERVISE_WORKER_PROFILES_H
#define DAEMON_SUPERVISE_WORKER_PROFILES_H

#include "daemon/supervise/generation.h"

struct worker_profiles {
    bool is_on; /* the workers measure; without, nothing is kept or written */
    struct worker_profile *of[ROSTER_WORKERS_MAX]; /* the newest report of each worker; NULL: none */
};

/* Keeps a part of a worker's report. */
void worker_profiles_keep(struct worker_profiles *profiles, const struct child *child,
                          const struct control_profile *part);

/* Writes the files below the run directory, prints the table, and frees the reports. `begin`: the run's. A
 * file that cannot be written is a warning. Blocks on files. */
void worker_profiles_end(struct worker_profiles *profiles, const struct generation *g, struct monotime begin);

#endif
