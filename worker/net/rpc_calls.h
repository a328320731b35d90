/* The calls that this worker makes, from the request to the reply, the deadline, or the peer's death; and
 * their results, the futures.
 *
 * A call completes exactly once. A future is referenced by its caller until future_release, and by the rpc
 * while the call is pending and until its function has run. Completing a call queues its function; calls_tell
 * runs the queue, where no object of the rpc is half done. So a function may call, cancel or release whatever
 * it likes.
 *
 * The members of the structs are for rpc_calls.c alone. */
#ifndef WORKER_NET_RPC_CALLS_H
#define WORKER_NET_RPC_CALLS_H

#include "worker/net/rpc_arrival.h"
#include "worker/net/rpc_outgoing.h"

struct future {
    struct calls *calls;
    struct future *next; /* in the list of free futures, of a session's pending calls, or of calls that are
                            done and whose functions have not run yet */
    uint32_t references;
    bool is_done, has_value;
    enum status status;
    char text[WIRE_ERROR_TEXT_MAX + 1];
    uint16_t worker, method;
    uint64_t request;
    struct monotime deadline;
    future_then_function *then; /* NULL: none */
    void *arg;
    struct kept value;
};

struct pending_calls {
    struct future *first, *last; /* in the order of their ids, which is mostly that of the replies */
    uint64_t last_request;       /* the id of the newest request of this session */
};

struct calls {
    struct rpc_common *common;
    struct outgoing *outgoing;
    struct pending_calls *sessions; /* (workers) */
    struct future *futures, *free;
    size_t future_count;
    struct future *done_first, **done_end; /* calls that are done and whose functions have not run yet */
    bool is_telling;
    uint32_t pending;
    struct monotime next_deadline; /* no pending call has an earlier one */
};

enum status calls_init(struct calls *calls, struct rpc_common *common,
                       struct outgoing *outgoing); /* STATUS_NO_MEMORY */
void calls_fini(struct calls *calls);

/* rpc_call_then to a worker that has a session. */
enum status calls_begin(struct calls *calls, uint16_t worker, enum wire_method method,
                        const struct rpc_message *message, struct monotime deadline,
                        future_then_function *then, void *arg, struct future **out, struct error *error);

/* A reply has come: completes its call, and takes the arrival over. Returns the fault that costs the sender
 * the session, or NULL. */
const char *calls_receive_reply(struct calls *calls, uint16_t worker, struct arrival *arrival);

/* Fails the call to `worker` with that id, if it is pending still. */
void calls_fail(struct calls *calls, uint16_t worker, uint64_t request, enum status why, const char *text);

/* Fails all pending calls; those to `worker`, whose session has ended. */
void calls_cancel(struct calls *calls, enum status why, const char *text);
void calls_close(struct calls *calls, uint16_t worker, enum status why, const char *text);

/* Fails the calls whose deadline has passed. No deadline comes before calls_next_deadline. */
void calls_expire(struct calls *calls);
struct monotime calls_next_deadline(const struct calls *calls);

/* Runs the functions of the calls that are done. */
void calls_tell(struct calls *calls);

#endif
