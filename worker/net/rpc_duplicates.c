/* Recognising a request that comes twice: a window over the ids that a session has seen. Pure, so that it is
 * tested and fuzzed alone. */
#include "worker/net/rpc_internal.h"

#include <string.h>

/* The window slides over a ring of bits: id i has bit i modulo its size. Bits between the old top and the
 * new belong to ids not seen yet, and are cleared as the window passes over them. */
bool duplicates_note(struct rpc_session *session, uint64_t id)
{
    uint64_t top = session->window_top;
    if (id > top) {
        if (id - top >= REPLAY_WINDOW)
            memset(session->window, 0, sizeof session->window);
        else
            for (uint64_t i = top + 1; i < id; i++)
                session->window[i % REPLAY_WINDOW / 64] &= ~(UINT64_C(1) << i % 64);
        session->window_top = id;
        session->window[id % REPLAY_WINDOW / 64] |= UINT64_C(1) << id % 64;
        return true;
    }
    if (top - id >= REPLAY_WINDOW)
        return false;
    uint64_t *word = &session->window[id % REPLAY_WINDOW / 64], bit = UINT64_C(1) << id % 64;
    bool is_new = (*word & bit) == 0;
    *word |= bit;
    return is_new;
}
