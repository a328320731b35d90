/* The observer: steps its environments and asks the agent for every action. One thread.
 *
 * A handler never waits, so run_episode's handler only remembers the request. The loop then plays the episode
 * with blocking calls, as the tutorial's observer does, and answers the request at the end. */
#include "worker/environment/environments.h"
#include "worker/net/rpc.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

struct observer {
    struct worker *worker;
    struct rpc *rpc;
    struct environments *environments;
    uint32_t count, first;       /* environments, and the first one's number in the job */
    struct rpc_request *episode; /* run_episode, until it is answered */
    uint32_t live;               /* environments whose episode goes on */
    uint32_t *indices, *numbers; /* (live) local; job-wide */
    float *observations;         /* (live, observation_size) */
    float *rewards;              /* (live) of the previous step */
    uint8_t *flags, *actions;    /* (live) */
    struct {
        float *rewards; /* (count) by environment: run_episode's answer */
        uint8_t *flags;
        uint32_t *steps;
    } last;
};

static void run_episode(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct observer *observer = context;
    (void)message;
    if (observer->episode != NULL)
        rpc_fail(request, STATUS_BUSY, "an episode is being played already");
    else
        observer->episode = request;
}

static const struct rpc_method methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .handler = run_episode},
};

/* ---- opening ---- */

static enum status open_memory(struct observer *o, struct error *error)
{
    uint32_t n = o->count;
    o->indices = calloc(n, sizeof *o->indices);
    o->numbers = calloc(n, sizeof *o->numbers);
    o->observations = calloc((size_t)n * CARTPOLE_STATE_SIZE, sizeof *o->observations);
    o->rewards = calloc(n, sizeof *o->rewards);
    o->flags = calloc(n, 1);
    o->actions = calloc(n, 1);
    o->last.rewards = calloc(n, sizeof *o->last.rewards);
    o->last.flags = calloc(n, 1);
    o->last.steps = calloc(n, sizeof *o->last.steps);
    if (o->indices == NULL || o->numbers == NULL || o->observations == NULL || o->rewards == NULL ||
        o->flags == NULL || o->actions == NULL || o->last.rewards == NULL || o->last.flags == NULL ||
        o->last.steps == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", n);
    return STATUS_OK;
}

static enum status open_environments(struct observer *o, struct error *error)
{
    const struct job *job = &o->worker->job;
    o->count = job->observers.environments;
    o->first = (o->worker->self.worker - 1u) * o->count;
    enum status status = environments_new(&o->environments, job->seed, o->first, o->count, error);
    return status == STATUS_OK ? open_memory(o, error) : status;
}

static enum status join_agent(struct observer *o, struct error *error)
{
    const struct rpc_config config = {.pending_max = 4,
                                      .incoming_max = 4,
                                      .rows_max = o->worker->job.observers.environments,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = o};
    enum status status = worker_open_rpc(o->worker, &config, &o->rpc, error);
    return status == STATUS_OK ? worker_connect(o->worker, o->rpc, error) : status;
}

static enum status observer_open(struct observer *o, struct worker *worker, struct error *error)
{
    o->worker = worker;
    enum status status = join_agent(o, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, o->rpc);
    if (status == STATUS_OK)
        status = worker_read_welcome(worker, o->rpc, error);
    if (status == STATUS_OK)
        status = open_environments(o, error);
    return status;
}

/* An observer that fails leaves its episode unanswered: BYE tells the agent to wait for the successor. */
static void observer_close(struct observer *o, bool failed, const char *why)
{
    enum { LINGER_MS = 200 };
    if (o->episode != NULL && !failed)
        rpc_fail(o->episode, STATUS_SHUTDOWN, "%s", why);
    rpc_free(o->rpc, why, LINGER_MS);
    o->worker->rpc = NULL;
    environments_free(o->environments);
    free(o->indices);
    free(o->numbers);
    free(o->observations);
    free(o->rewards);
    free(o->flags);
    free(o->actions);
    free(o->last.rewards);
    free(o->last.flags);
    free(o->last.steps);
}

/* ---- one episode ---- */

static void reset_all(struct observer *o, uint32_t episode)
{
    o->live = o->count;
    for (uint32_t i = 0; i < o->count; i++) {
        o->indices[i] = i;
        o->numbers[i] = o->first + i;
        o->rewards[i] = 0;
        o->flags[i] = 0;
        environments_reset(o->environments, i, episode, 0);
    }
}

/* Sends the live environments' observations and rewards; receives the agent's actions. */
static enum status ask_actions(struct observer *o, uint32_t episode, uint32_t step, struct error *error)
{
    struct rpc_message rows = {
        .args = {episode, step},
        .tensor_count = 4,
        .tensors = {{.dtype = WIRE_U32, .rank = 1, .dims = {o->live}},
                    {.dtype = WIRE_F32, .rank = 2, .dims = {o->live, CARTPOLE_STATE_SIZE}},
                    {.dtype = WIRE_F32, .rank = 1, .dims = {o->live}},
                    {.dtype = WIRE_U8, .rank = 1, .dims = {o->live}}},
        .data = {o->numbers, o->observations, o->rewards, o->flags},
    };
    environments_observe(o->environments, o->live, o->indices, o->observations);
    struct future *answer;
    enum status status = rpc_call(o->rpc, 0, METHOD_STEP, &rows, MONOTIME_NEVER, &answer, error);
    if (status != STATUS_OK)
        return status;
    const struct rpc_message *m = future_value(answer);
    if (m->tensor_count != 1 || m->tensors[0].dtype != WIRE_U8 || m->tensors[0].dims[0] != o->live)
        status = error_set(error, STATUS_INVALID, "the agent's answer to step %u: expected %u actions", step,
                           o->live);
    else
        memcpy(o->actions, m->data[0], o->live);
    for (uint32_t i = 0; status == STATUS_OK && i < o->live; i++)
        if (o->actions[i] >= CARTPOLE_ACTIONS)
            status = error_set(error, STATUS_INVALID, "action %u for environment %u: expected 0..%u",
                               o->actions[i], o->numbers[i], CARTPOLE_ACTIONS - 1);
    future_release(answer);
    return status;
}

/* Environments that the step ended leave in `episode` mode, and are reset in `steps` mode. */
static void handle_ended(struct observer *o, bool until_done, uint32_t episode, uint32_t step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < o->live; i++) {
        uint32_t index = o->indices[i];
        o->last.rewards[index] = o->rewards[i];
        o->last.flags[index] = o->flags[i];
        o->last.steps[index] = step + 1;
        if (o->flags[i] != 0 && until_done)
            continue;
        if (o->flags[i] != 0)
            environments_reset(o->environments, index, episode, step + 1);
        o->indices[kept] = index;
        o->numbers[kept] = o->numbers[i];
        o->rewards[kept] = o->rewards[i];
        o->flags[kept] = o->flags[i];
        kept++;
    }
    o->live = kept;
}

static void answer_episode(struct observer *o)
{
    struct rpc_message message = {
        .tensor_count = 3,
        .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {o->count}},
                    {.dtype = WIRE_U8, .rank = 1, .dims = {o->count}},
                    {.dtype = WIRE_U32, .rank = 1, .dims = {o->count}}},
        .data = {o->last.rewards, o->last.flags, o->last.steps},
    };
    struct rpc_request *request = o->episode;
    o->episode = NULL;
    rpc_reply(request, &message);
}

static enum status play_episode(struct observer *o, struct error *error)
{
    const struct rpc_message *call = rpc_request_message(o->episode);
    uint32_t episode = (uint32_t)call->args[0], steps = (uint32_t)call->args[1];
    bool until_done = steps == 0;
    reset_all(o, episode);
    for (uint32_t step = 0; o->live > 0 && (until_done || step < steps); step++) {
        enum status status = ask_actions(o, episode, step, error);
        if (status != STATUS_OK)
            return status;
        environments_step(o->environments, o->live, o->indices, o->actions, o->rewards, o->flags);
        handle_ended(o, until_done, episode, step);
    }
    answer_episode(o);
    return STATUS_OK;
}

enum status observer_run(struct worker *worker, struct error *error)
{
    struct observer observer = {0};
    while (!worker->connect && !worker->leave)
        worker_wait_order(worker);
    if (worker->leave)
        return STATUS_OK;
    enum status status = observer_open(&observer, worker, error);
    if (status == STATUS_OK)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && !worker->leave) {
        if (observer.episode != NULL)
            status = play_episode(&observer, error);
        else if ((status = rpc_turn(observer.rpc, MONOTIME_NEVER)) != STATUS_OK)
            error_set(error, status, "the agent is gone");
        if (status == STATUS_SHUTDOWN) { /* the order to leave is on its way, or here */
            rpc_fail(observer.episode, STATUS_SHUTDOWN, "the job is ending");
            observer.episode = NULL;
            status = STATUS_OK;
        }
    }
    const bool failed = status != STATUS_OK;
    observer_close(&observer, failed, failed ? error->text : WORKER_FINISHED);
    return status;
}
