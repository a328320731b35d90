/* The role `pserver` in a model-parallel job: it holds the objects that trainers make on it, and does nothing
 * else. One thread. */
#include "worker/model_parallel/parallel.h"

enum status parallel_server_run(struct worker *worker, struct error *error)
{
    struct parallel server = {0};
    enum status status = parallel_open(&server, worker, error);
    if (status == STATUS_OK && !worker->leave)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && !worker->leave) {
        status = parallel_turn(&server, MONOTIME_NEVER, error);
        if (status == STATUS_PEER_DIED)
            status = STATUS_OK; /* another worker's end is the supervisor's to act on */
    }
    if (status == STATUS_OK && server.dist != NULL)
        parallel_report(&server);
    parallel_close(&server, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
