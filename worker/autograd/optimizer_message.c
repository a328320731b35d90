/* The messages of the distributed optimizer: tensors of rank 1, doubles as words, and calls that wait. */
#include "worker/autograd/optimizer_message.h"

#include <string.h>

uint64_t word_of_double(double value)
{
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

double double_of_word(uint64_t word)
{
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* ---- calls that wait ---- */

enum status object_call(struct dist *dist, struct rref *rref, uint32_t function,
                        const struct rpc_message *message, struct future **out, struct error *error)
{
    struct future *future;
    enum status status = rref_call(rref, function, message, MONOTIME_NEVER, &future, error);
    if (status != STATUS_OK)
        return status;
    status = rpc_wait(dist_rpc(dist), future, error);
    if (status != STATUS_OK)
        future_release(future);
    else
        *out = future;
    return status;
}

enum status object_malformed(struct dist *dist, uint16_t owner, struct error *error)
{
    rpc_reject_worker(dist_rpc(dist), owner, "an answer about parameters of another form than agreed");
    return error_set(error, STATUS_INVALID, "worker %u answers about parameters in another form than agreed",
                     owner);
}
