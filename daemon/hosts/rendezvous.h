/* The rendezvous of the hosts of a job: this host's number, how many there are, the keys, and the way to the
 * leader. It comes from one of three sources; with none of them the job has one host:
 *
 *     flags      --node, --leader and --keys say everything. The keys are the files below.
 *     PMI        PMI_FD is there (srun --mpi=pmi2, mpiexec). Each host puts its public key, and the leader
 *                its addresses (pmi.h). No secret leaves a host.
 *     directory  SLURM_STEP_NUM_TASKS is there (srun alone), and the hosts share the run directory. The
 *                leader writes RUN/hosts, mode 0600, with its addresses and 32 random bytes. All keys are
 *                computed from these bytes.
 *
 * Key files: the folder that `coalesced keygen` makes. Every host needs `hosts` and its own secret key.
 *
 *     hosts          the public keys of all hosts: a line "NUMBER KEY" for each, KEY in 64 hexadecimal digits
 *     host-N.secret  the secret key of host N: a line; mode 0600
 *
 * Supervisor process, before it forks workers, or a command's; its only thread. */
#ifndef DAEMON_HOSTS_RENDEZVOUS_H
#define DAEMON_HOSTS_RENDEZVOUS_H

#include "daemon/hosts/pmi.h"
#include "kernels/base/monotime.h"
#include "kernels/base/status.h"
#include "worker/control.h"

#include <stdbool.h>

enum rendezvous_source { RENDEZVOUS_ALONE, RENDEZVOUS_FLAGS, RENDEZVOUS_PMI, RENDEZVOUS_FOLDER };

/* What the command line says. */
struct rendezvous_flags {
    bool given;           /* --node is there */
    uint16_t host, count; /* --node I/N */
    const char *leader;   /* --leader HOST:PORT */
    const char *keys;     /* --keys DIR */
};

struct rendezvous {
    enum rendezvous_source source;
    uint16_t hosts; /* with which the job begins: 0 to hosts - 1; keys of higher numbers may join later */
    uint8_t key_seed[HOST_KEY_BYTES]; /* RENDEZVOUS_FOLDER, on the leader: all keys are computed from it */
    struct control_link link; /* the keys; the addresses: what the leader's link binds, or where others find
                                 the leader */
    char listen[CONTROL_FAR_BYTES]; /* "tcp://ADDRESS": where this host's listeners bind */
    char hosts_file[4200];          /* RUN/hosts, which the leader has written; "": it has not */
    struct pmi pmi;
};

static inline bool rendezvous_is_leader(const struct rendezvous *rendezvous)
{
    return rendezvous->link.keys.host == HOST_LEADER;
}

/* Finds this host's number, the number of hosts, the keys and the addresses, as far as the source tells them
 * now. `listen`: /listen of the job; NULL: every address. Waits for a PMI server until
 * `deadline`. STATUS_INVALID: flags that contradict each other, or an unknown interface; a key file with a
 * wrong line, a secret key that other users can read, or one that does not belong to the public key. Errors
 * of files and of PMI. */
enum status rendezvous_find(struct rendezvous *rendezvous, const struct rendezvous_flags *flags,
                            const char *listen, struct monotime deadline, struct error *error);

/* The leader's, once its link is bound to `port`: tells the other hosts, and learns their keys. `run`: the
 * run directory's path. With PMI it waits until all hosts have come as far. */
enum status rendezvous_publish(struct rendezvous *rendezvous, uint16_t port, const char *run,
                               struct monotime deadline, struct error *error);

/* Another host's: learns the leader's addresses and all keys. Waits for them until `deadline`. */
enum status rendezvous_seek(struct rendezvous *rendezvous, const char *run, struct monotime deadline,
                            struct error *error);

/* Ends the talk with the PMI server, if there is one, and removes RUN/hosts. */
void rendezvous_close(struct rendezvous *rendezvous);

/* ---- key files ---- */

/* Makes the folder (mode 0700) with keys for `count` hosts. STATUS_BUSY: it has keys already, which stay.
 * STATUS_IO, STATUS_PERMISSION. */
enum status key_files_make(const char *folder, uint16_t count, struct error *error);

/* The host whose secret key is the only one in the folder. STATUS_INVALID: there are several, or none. */
enum status key_files_own(uint16_t *host, const char *folder, struct error *error);

#endif
