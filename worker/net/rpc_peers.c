/* The connections of the bound socket: a small hash table from routing id to session, and a ring of the
 * connections that this worker ended last with BYE, which are ignored while they stand in the ring. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>

enum status peers_new(struct rpc *rpc)
{
    uint32_t slots = 4;
    while (slots < 2 * rpc->config.workers)
        slots *= 2;
    rpc->peers_mask = slots - 1;
    rpc->peers = calloc(slots, sizeof *rpc->peers);
    return rpc->peers == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

void peers_free(struct rpc *rpc)
{
    free(rpc->peers);
}

static uint32_t peers_home_of(const struct rpc *rpc, uint32_t peer)
{
    return (peer * UINT32_C(0x9e3779b1)) >> 7 & rpc->peers_mask;
}

struct rpc_session *peers_find(struct rpc *rpc, uint32_t peer)
{
    for (uint32_t at = peers_home_of(rpc, peer); rpc->peers[at].session != 0; at = (at + 1) & rpc->peers_mask)
        if (rpc->peers[at].peer == peer)
            return &rpc->sessions[rpc->peers[at].session - 1];
    return NULL;
}

void peers_add(struct rpc *rpc, struct rpc_session *session)
{
    uint32_t at = peers_home_of(rpc, session->peer);
    while (rpc->peers[at].session != 0)
        at = (at + 1) & rpc->peers_mask;
    rpc->peers[at] = (struct peer_slot){session->peer, (uint32_t)(session - rpc->sessions) + 1};
}

/* Moves entries back into the gap; a search would stop at the gap and miss them. */
void peers_remove(struct rpc *rpc, uint32_t peer)
{
    uint32_t gap = peers_home_of(rpc, peer);
    while (rpc->peers[gap].peer != peer || rpc->peers[gap].session == 0)
        gap = (gap + 1) & rpc->peers_mask;
    for (uint32_t at = (gap + 1) & rpc->peers_mask; rpc->peers[at].session != 0;
         at = (at + 1) & rpc->peers_mask) {
        uint32_t home = peers_home_of(rpc, rpc->peers[at].peer);
        if (((at - home) & rpc->peers_mask) < ((at - gap) & rpc->peers_mask))
            continue;
        rpc->peers[gap] = rpc->peers[at];
        gap = at;
    }
    rpc->peers[gap].session = 0;
}

bool peers_is_ignored(const struct rpc *rpc, uint32_t peer)
{
    for (unsigned i = 0; i < rpc->stranger_count; i++)
        if (rpc->strangers[i] == peer)
            return true;
    return false;
}

void peers_ignore(struct rpc *rpc, uint32_t peer)
{
    rpc->strangers[rpc->stranger_next] = peer;
    rpc->stranger_next = (rpc->stranger_next + 1) % STRANGERS_MAX;
    if (rpc->stranger_count < STRANGERS_MAX)
        rpc->stranger_count++;
}
