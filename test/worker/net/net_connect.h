/* Opening an rpc and dialing in one call, for test programs and benchmarks whose worker accepts no dials. */
#ifndef TEST_WORKER_NET_NET_CONNECT_H
#define TEST_WORKER_NET_NET_CONNECT_H

#include "worker/net/rpc.h"

/* *out is NULL after a failure; those that did answer have been told BYE. */
static inline enum status net_connect(struct rpc **out, const struct rpc_config *config,
                                      const struct rpc_address *addresses, size_t count,
                                      struct monotime deadline, struct error *error)
{
    enum { PARTING_MS = 100 };
    enum status status = rpc_open(out, config, NULL, error);
    if (status != STATUS_OK) {
        *out = NULL;
        return status;
    }
    status = rpc_dial(*out, addresses, count, deadline, error);
    if (status != STATUS_OK) {
        rpc_free(*out, "this worker could not join all of its peers", PARTING_MS);
        *out = NULL;
    }
    return status;
}

#endif
