/* A link: the process that carries messages between the supervisors of a job's hosts. The same binary,
 * executed by each supervisor with the role `link`.
 *
 * A supervisor must be able to fork at any time, so it has no sockets with threads behind them. It speaks to
 * its link over a control line (worker/control.h), and the links speak to each other over tcp with CURVE. The
 * leader's link binds; those of the other hosts connect to it. A link knows nothing of workers: it passes
 * CONTROL_RELAY on, one for one, and adds what only it knows: which host's key a message has come under, and
 * from which network address.
 *
 * A host begins with JOIN, which its link sends to all of the leader's addresses. The address that answers
 * first is kept. The leader's link takes a host's later messages only from the connection whose JOIN the
 * leader's supervisor has answered with ADMIT last. A queue that stays full costs its host the connection.
 * Losses show in the supervisors: each hears the others' beats, or misses them. */
#ifndef WORKER_LINK_H
#define WORKER_LINK_H

/* Runs the link whose control line is at CONTROL_FD, until the line ends. The exit code. */
int link_main(void);

#endif
