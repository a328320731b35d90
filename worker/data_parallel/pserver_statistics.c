/* Moves the running statistics of batch norms towards the statistics of the batches of an update. Server 0
 * keeps them for the whole model. The pserver's loop runs this. */
#include "worker/data_parallel/pserver.h"

static const double STATISTICS_MOMENTUM = 0.1; /* the weight of the new; PyTorch's default of batch norms */

bool pserver_statistics_move(struct pserver *p, float *next, const float *now)
{
    const size_t first = p->shard.statistics_first, count = p->shard.statistics_end - first;
    const double weight = STATISTICS_MOMENTUM;
    for (uint32_t m = 0; m < p->member_count; m++)
        if (pserver_expel_not_finite(p, p->members[m], PARAMETER_BUFFER, first, count))
            return false;
    for (size_t i = first; i < first + count; i++) {
        double sum = 0;
        for (uint32_t m = 0; m < p->member_count; m++)
            sum += (double)p->seats[p->members[m]].image[i];
        next[i] = (float)((1 - weight) * (double)now[i] + weight * (sum / p->member_count));
    }
    return true;
}

void pserver_statistics_count(struct pserver *p)
{
    for (uint32_t i = 0; i < params_count(p->params); i++)
        if (params_at(p->params, i)->kind == PARAMETER_COUNTER)
            params_at(p->params, i)->counter++;
}
