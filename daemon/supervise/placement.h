/* Placement: on which host a worker of the job starts, by /hosts and by what each host carries now. The agent
 * and the servers run on the leader's host; servers may be spread, too (/hosts/servers). Clients are spread
 * evenly over the hosts with which the job began; those that a host has brought run there.
 *
 * It changes nothing. Supervisor process; its only thread; no lock. */
#ifndef DAEMON_SUPERVISE_PLACEMENT_H
#define DAEMON_SUPERVISE_PLACEMENT_H

#include "daemon/hosts/hosts.h"
#include "worker/roster.h"

/* The workers that are to be placed. */
struct placement {
    const struct job *job;
    const struct hosts *hosts;
    const struct roster *roster;
    struct child *children; /* (count) by worker number */
    unsigned count;
    uint32_t generation; /* its number */
};

/* The host on which `child` starts as worker number `worker`: where it was, if that host is up and the worker
 * has not died there again and again; otherwise where /hosts says. */
uint16_t placement_choose_host(const struct placement *p, const struct child *child, uint16_t worker);

/* Clients that no host has brought. They have the lowest numbers; those that hosts bring follow, in order of
 * the hosts. */
uint32_t placement_own_clients(const struct placement *p);

/* How many workers live on a host. */
unsigned placement_load(const struct placement *p, uint16_t host);

/* Picks the next client to move to host `to`, from the host that has the most workers. NULL if no client can
 * move. */
struct child *placement_choose_mover(const struct placement *p, uint16_t to);

/* The number of clients for this host if all hosts with which the job began had equally many; 0 for any other
 * host. */
uint32_t placement_fair_share(const struct placement *p, uint16_t host);

#endif
