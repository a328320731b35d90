/* Distributed autograd, parameters and optimizers against a hostile worker: it creates objects, calls them
 * within contexts, walks and ends, asks for parameters, makes optimizers and steps, in any order and
 * with wrong numbers. Each message is well-formed except for the bytes that the input changes; whether
 * messages fit each other is left to chance. The worker's session may end in the middle. After its end no
 * context, call or object may be left.
 *
 * A message is 8 bytes of the input (enum part), and the bytes behind them that replace its payload. */
#include "test/fuzz/fuzz_request.h"

/* Takes one message off the input; false: it is used up. */
static bool say_one(const uint8_t **data, size_t *size, uint64_t newest)
{
    if (*size < PARTS)
        return false;
    const uint8_t *bytes = *data;
    struct request request = {0};
    request_fill(&request, bytes, newest);
    *data += PARTS;
    *size -= PARTS;
    request_change(&request, bytes[OVER], data, size);
    peer_say(&request.header, request_payload);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dist_counts counts;
    if (rpc == NULL) {
        peer_open_rpc("dist", NULL);
        open_worker(NULL, NULL);
    }
    peer_open_session();
    dist->lost = (struct error){0}; // by the end of the input before
    while (rpc_reaches(rpc, PEER) && say_one(&data, &size, peer_newest_object(rrefs))) {
        if (size % 4 != 0)
            peer_turn();
        dist_counts(dist, &counts);
        require(counts.contexts <= CONTEXTS_MAX && counts.pieces <= PIECES_MAX);
    }
    rpc_peer_died(rpc, PEER, UINT32_MAX, "the input is over");
    for (unsigned i = 0; i < 8; i++)
        rpc_turn(rpc, (struct monotime){1});
    require_nothing_left();
    return 0;
}
