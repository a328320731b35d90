/* Finds values that are not finite: names the entry of the model, and ends the session of the trainer that
 * sent them. The pserver's loop runs this. */
#include "worker/data_parallel/pserver.h"

#include <math.h>

size_t pserver_first_not_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return i;
    return SIZE_MAX;
}

const char *pserver_entry_at(const struct pserver *p, enum parameter_kind kind, size_t element)
{
    const char *name = "";
    for (uint32_t i = 0; i < params_count(p->params); i++) {
        const struct parameter *parameter = params_at(p->params, i);
        if (parameter->kind == kind && parameter->offset <= element)
            name = parameter->name;
    }
    return name;
}

bool pserver_expel_not_finite(struct pserver *p, uint32_t trainer, enum parameter_kind kind, size_t first,
                              size_t count)
{
    struct pserver_seat *seat = &p->seats[trainer];
    struct rpc_request *push = seat->push;
    const uint64_t step = p->round.seat[trainer].step;
    const size_t at = pserver_first_not_finite(seat->image + first, count);
    if (at == SIZE_MAX)
        return false;
    const bool statistic = kind == PARAMETER_BUFFER;
    const char *name = pserver_entry_at(p, kind, statistic ? at : first + at);
    round_withdraw(&p->round, trainer);
    seat->push = NULL;
    if (push != NULL)
        rpc_reject(push, "trainer %u, step %llu: its %s of %s is not finite", seat->worker,
                   (unsigned long long)step, statistic ? "statistic" : "gradient", name);
    return true;
}
