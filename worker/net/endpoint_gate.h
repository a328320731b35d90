/* How many may wait at the door: a bound on the connections that have not shown the pass.
 *
 * libzmq accepts every connection, keeps each for the 30 s of a handshake, and ends the process when accept4
 * fails with an errno that it does not expect, such as EMFILE (4.3.4, ipc_listener.cpp). So this program
 * defines accept4 itself; the dynamic linker gives libzmq this definition. It accepts every connection too,
 * because the newest may be a worker's, and when too many wait it shuts down the one that has waited longest.
 * A worker waits for a millisecond, so it is not cut off unless strangers connect faster than that; then it
 * dials again.
 *
 * What a connection has shown counts for all connections that wait from the same place: over a unix socket
 * the process at its other end, which the kernel names (a process of another namespace has no name: all those
 * are one place), over tcp:// the network address.
 *
 * One gate per process. Any thread may call these functions; they do not block. */
#ifndef WORKER_NET_ENDPOINT_GATE_H
#define WORKER_NET_ENDPOINT_GATE_H

#include <stdint.h>

/* Makes room for `count` connections that wait at a time, when there is less. At most GATE_WAITING_MAX.
 * Before the first call no connection is counted or cut off. */
void endpoint_gate_widen(unsigned count);

/* A connection from `from` has shown its pass or key: those from there that wait are not cut off any more.
 * `from` is libzmq's text: a network address, or HOST:UID:GID:PID of a unix socket's peer. */
void endpoint_gate_admit(const char *from);

struct endpoint_gate_counts {
    uint64_t accepted; /* connections; since the start, of all listeners of this process */
    uint64_t admitted; /* of these: from places that have shown a pass or key */
    uint64_t crowded;  /* cut off to make room */
    uint64_t waiting;  /* now */
};
struct endpoint_gate_counts endpoint_gate_counts(void);

#endif
