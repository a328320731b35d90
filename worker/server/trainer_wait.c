/* A trainer's waiting: for messages, for a call, for the math library. The trainer's one thread. */
#include "worker/server/trainer.h"

void trainer_progress(void *arg)
{
    struct trainer *t = arg;
    worker_beat(t->worker);
    worker_read_orders(t->worker);
    if (t->worker->leave || t->worker->hurry)
        tape_fail(t->net.tape, STATUS_SHUTDOWN, "the job is ending");
}

enum status trainer_turn(struct trainer *t, struct monotime until, struct error *error)
{
    const enum status status = rpc_turn(t->rpc, until);
    return status == STATUS_OK ? STATUS_OK : error_set(error, status, "a parameter server is gone");
}

enum status trainer_result(const struct future *future, struct error *error)
{
    const enum status status = future_status(future);
    return status == STATUS_OK ? STATUS_OK : error_set(error, status, "%s", future_text(future));
}
