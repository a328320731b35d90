/* What endpoint.c and endpoint_pair.c know of each other. For these two files only: nothing else of the
 * project calls zmq_*. */
#ifndef WORKER_NET_ENDPOINT_INTERNAL_H
#define WORKER_NET_ENDPOINT_INTERNAL_H

#include <stdbool.h>

struct endpoint;
struct endpoint_pair;

/* The ZeroMQ context of an endpoint. */
void *endpoint_context(struct endpoint *endpoint);

/* The descriptor that becomes readable when the pair's end has news after endpoint_pair_idle said so. */
int endpoint_pair_fd(const struct endpoint_pair *pair);

/* False: a take would get a word or STATUS_SHUTDOWN. True: not yet, and the descriptor will become readable
 * when it would. `fd_readable`: the descriptor was just seen to be. */
bool endpoint_pair_idle(struct endpoint_pair *pair, bool fd_readable);

/* Sentence-ready reason for ZeroMQ's errno. */
const char *endpoint_reason(int errnum);

#endif
