/* A client of PMI-1: the tasks of one launch exchange short texts through their launcher before they have any
 * connection of their own. Servers are Slurm (`srun --mpi=pmi2`) and MPICH's mpiexec.
 *
 * All tasks share one space of keys and values. A value that a task has put can be read by every task after
 * the next barrier. The launcher starts each task with a connected socket and three variables: PMI_FD, the
 * socket's number; PMI_RANK, the task's number; PMI_SIZE, the number of tasks. A request is one line of text
 * ("cmd=get kvsname=4.0 key=address"), and so is its answer ("cmd=get_result rc=0 value=tcp://…"). Source:
 * MPICH's "simple" wire protocol, version 1.1; Balaji et al., "PMI: A Scalable Parallel Process-Management
 * Interface for Extreme-Scale Systems" (EuroMPI 2010).
 *
 * Supervisor process, before it forks; its only thread. Every call with a deadline blocks until the server
 * has answered or the deadline has passed; a signal that is handled does not end the wait. The errors of all
 * such calls:
 *
 *   STATUS_TIMEOUT      the server has not answered by the deadline
 *   STATUS_IO           the connection is lost, or the answer is not PMI-1's; the message quotes the answer
 *   STATUS_UNAVAILABLE  the server refuses the request
 *
 * STATUS_TIMEOUT and STATUS_IO close the connection. After them only pmi_close may be called.
 *
 * No server tells the tasks at a barrier that another task has exited: they wait until the deadline. Tasks
 * close PMI as soon as they have found each other. mpiexec kills all other tasks when a task exits between
 * pmi_open and pmi_close, and mostly also when a signal kills a task later. srun does so with -K only. */
#ifndef DAEMON_HOSTS_PMI_H
#define DAEMON_HOSTS_PMI_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    PMI_TASKS_MAX = 65536,
    PMI_SPACE_BYTES = 256, /* a space's name, with its zero */
    /* One read of Slurm's server. Slurm acknowledges a longer request but loses it, and the next barrier
     * never ends. */
    PMI_REQUEST_BYTES_MAX = 1024,
    PMI_ANSWER_BYTES_MAX = 2048
};

/* Embedded by the caller, who reads `rank` and `size` and leaves the rest alone. */
struct pmi {
    int fd;                          /* -1: closed */
    unsigned rank, size;             /* this task's number, from 0, and the number of tasks */
    size_t key_bytes;                /* the server's limit for a key, with its zero */
    size_t value_bytes;              /* the server's limit for a value, with its zero */
    char space[PMI_SPACE_BYTES];     /* the name of the tasks' space of keys */
    char line[PMI_ANSWER_BYTES_MAX]; /* the request, then its answer */
};

/* Whether the environment holds PMI_FD with a number: a launcher offers PMI. Never blocks. False after
 * pmi_open. */
bool pmi_is_there(void);

/* Greets the server of the environment. pmi_close follows, also after an error. STATUS_UNAVAILABLE, too: a
 * variable is absent or wrong, or PMI_FD is no connected socket.
 *
 * The socket is closed on exec, and the PMI variables are removed from the environment in every case: no
 * worker inherits either. */
enum status pmi_open(struct pmi *pmi, struct monotime deadline, struct error *error);

/* Says goodbye to the server and closes the socket, also after an error. Does nothing when it is closed. */
enum status pmi_close(struct pmi *pmi, struct monotime deadline, struct error *error);

/* Stores a value for all tasks. Keys are common to all tasks, so the caller adds the rank to the key. Neither
 * text is empty; both are of printable ASCII without spaces, and a key has no '='. STATUS_INVALID: a text is
 * longer than the server takes, or the request is longer than PMI_REQUEST_BYTES_MAX. Both launchers take a
 * key of 63 bytes, and with any key and any space's name a value of 677 bytes. */
enum status pmi_put(struct pmi *pmi, const char *key, const char *value, struct monotime deadline,
                    struct error *error);

/* Waits until every task is here. STATUS_TIMEOUT: some task has not come by the deadline. */
enum status pmi_barrier(struct pmi *pmi, struct monotime deadline, struct error *error);

/* Reads a value that some task has put before the last barrier: `value` becomes zero-terminated printable
 * ASCII without spaces. STATUS_NOT_FOUND: no task has put it; the connection stays open. STATUS_IO, too: the
 * value does not fit in `value_bytes` with its zero. */
enum status pmi_get(struct pmi *pmi, const char *key, char *value, size_t value_bytes,
                    struct monotime deadline, struct error *error);

#endif
