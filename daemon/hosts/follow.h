/* The supervisor of a host that follows: it joins the leader, starts the workers that the leader orders, and
 * reports what they say and how they end. It decides nothing.
 *
 * When the leader falls silent, either the host is cut off or the leader is gone. In both cases the workers
 * here are killed at once, and the leader starts others in their place. Then the host asks to join again, for
 * /hosts/patience_s and 10 s for each host between it and the leader. After that it ends with EX_UNAVAILABLE.
 *
 * Under Slurm, if /hosts/requeue says so, it first asks for the job to be put back into the queue. So host 1
 * asks first, and the first request ends all hosts.
 *
 * Signals: the first SIGTERM or SIGINT asks the leader to move the workers elsewhere, unless the job is
 * ending anyway; the second ends this host at once.
 *
 * Supervisor process; its only thread; no ZeroMQ. */
#ifndef DAEMON_HOSTS_FOLLOW_H
#define DAEMON_HOSTS_FOLLOW_H

#include "daemon/hosts/rendezvous.h"
#include "kernels/base/status.h"

struct follow_config {
    struct rendezvous *rendezvous;
    const char *run;   /* the run directory's path, as the leader has it; NULL: not known */
    double patience_s; /* for the first answer of the leader */
    uint32_t brings;   /* how many observers or trainers the running job gets for this host; 0: none */
    uint8_t role;      /* enum wire_role, of those */
};

/* Follows the leader until the job is over, and blocks until then. *code: the exit code that the leader's
 * supervisor has. STATUS_TIMEOUT: no leader has answered; STATUS_UNAVAILABLE: it was lost; STATUS_INVALID: it
 * refuses this host. No worker is left behind. */
enum status follow(const struct follow_config *config, int *code, struct error *error);

#endif
