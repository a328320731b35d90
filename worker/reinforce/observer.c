/* The observer: steps its environments and asks the agent for every action. One thread.
 *
 * Before anything else it tells the agent what its environment is. A handler never waits, so run_episode's
 * handler only remembers the request. The loop then plays the episode, group by group (observer_group.h), and
 * answers the request at the end. */
#include "worker/environment/environment_description.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/reinforce/observer_group.h"
#include "worker/reinforce/step_message.h"
#include "worker/roster.h"
#include "worker/worker.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* The most that an answer carries of the environments' states. */
enum { STATES_BYTES_MAX = WIRE_BODY_BYTES_MAX / 2 };

struct observer {
    struct worker *worker;
    struct rpc *rpc;
    uint32_t count, rows; /* environments; their rows */
    uint32_t group_count;
    struct observer_group *groups; /* (group_count) */
    struct observer_last last;
    struct segment outbox;       /* large observations; not mapped: they are copied into the messages */
    struct rpc_request *episode; /* run_episode, until it is answered */
    char *states;                /* (states_capacity) of all environments, for the answer */
    size_t states_capacity;
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
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .any_tensors = true, .handler = run_episode},
};

/* ---- opening ---- */

static enum status open_last(struct observer *o, struct error *error)
{
    const uint32_t agents = o->groups[0].agents;
    const size_t metrics = o->groups[0].spec->metric_count;
    o->rows = o->count * agents;
    o->last.rewards = calloc(o->rows * (1 + metrics), sizeof *o->last.rewards);
    o->last.metrics = calloc(o->rows * metrics + 1, sizeof *o->last.metrics);
    o->last.flags = calloc(o->rows, 1);
    o->last.steps = calloc(o->count, sizeof *o->last.steps);
    if (o->last.rewards == NULL || o->last.metrics == NULL || o->last.flags == NULL || o->last.steps == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", o->count);
    for (uint32_t i = 0, begin = 0; i < o->group_count; begin += o->groups[i++].count)
        o->groups[i].last = (struct observer_last){.rewards = o->last.rewards + begin * agents,
                                                   .metrics = o->last.metrics + begin * agents * metrics,
                                                   .flags = o->last.flags + begin * agents,
                                                   .steps = o->last.steps + begin};
    return STATUS_OK;
}

/* Group i has the environments from i * count / groups on. */
static enum status open_groups(struct observer *o, struct error *error)
{
    const struct job *job = &o->worker->job;
    o->count = job->observers.environments;
    o->group_count = job->observers.groups;
    o->groups = calloc(o->group_count, sizeof *o->groups);
    if (o->groups == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u groups", o->group_count);
    const uint32_t first = (o->worker->self.worker - 1u) * o->count;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < o->group_count && status == STATUS_OK; i++) {
        const uint32_t begin = job_group_begin(job, i), end = job_group_begin(job, i + 1);
        status = observer_group_open(&o->groups[i], job, i, first + begin, end - begin, error);
    }
    return status == STATUS_OK ? open_last(o, error) : status;
}

/* Large observations lie where the agent can read them. */
static enum status lend_observations(struct observer *o, struct error *error)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < o->group_count; i++)
        bytes += observer_group_lent_bytes(&o->groups[i]);
    if (bytes == 0 || !roster_of(&o->worker->job).segments)
        return STATUS_OK;
    const enum status status = segment_create(&o->outbox, o->worker->self.worker, bytes, error);
    if (status != STATUS_OK)
        return status;
    unsigned char *at = o->outbox.data;
    segment_discard(&o->outbox, at, o->outbox.bytes); /* a predecessor may have written there */
    for (uint32_t i = 0; i < o->group_count; i++) {
        const size_t lent = observer_group_lent_bytes(&o->groups[i]);
        if (lent > 0)
            observer_group_lend(&o->groups[i], at);
        at += lent;
    }
    return STATUS_OK;
}

/* STATUS_SHUTDOWN: the agent cannot use the environment, and ends the job with its own words. */
static enum status describe(struct observer *o, struct error *error)
{
    const struct observer_group *group = &o->groups[0];
    char *text = environment_describe(environments_name(group->environments), group->spec,
                                      environments_can_save(group->environments));
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
    const struct rpc_message message = {
        .tensor_count = 1,
        .tensors = {{.dtype = WIRE_U8, .rank = 1, .dims = {(uint32_t)strlen(text)}}},
        .data = {text}};
    struct future *answer = NULL;
    const enum status status = rpc_call(o->rpc, 0, METHOD_DESCRIBE, &message, MONOTIME_NEVER, &answer, error);
    future_release(answer);
    cJSON_free(text);
    return status;
}

static enum status join_agent(struct observer *o, struct error *error)
{
    const struct rpc_config config = {.pending_max = 2 * o->worker->job.observers.groups + 2,
                                      .incoming_max = 4,
                                      .rows_max = o->worker->job.observers.environments,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = o,
                                      .outbox = &o->outbox};
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
        status = open_groups(o, error);
    if (status == STATUS_OK)
        status = lend_observations(o, error);
    return status == STATUS_OK ? describe(o, error) : status;
}

/* An observer that fails leaves its episode unanswered: BYE tells the agent to wait for the successor. */
static void observer_close(struct observer *o, bool failed, const char *why)
{
    enum { LINGER_MS = 200 };
    if (o->episode != NULL && !failed)
        rpc_fail(o->episode, STATUS_SHUTDOWN, "%s", why);
    rpc_free(o->rpc, why, LINGER_MS);
    o->worker->rpc = NULL;
    for (uint32_t i = 0; i < o->group_count && o->groups != NULL; i++)
        observer_group_close(&o->groups[i]);
    free(o->groups);
    free(o->last.rewards);
    free(o->last.metrics);
    free(o->last.flags);
    free(o->last.steps);
    free(o->states);
    segment_detach(&o->outbox);
}

/* ---- one episode ---- */

/* Puts the metrics of the rows that the last step ended behind the rewards. How many floats there are now. */
static uint32_t append_metrics(struct observer *o)
{
    const uint32_t metrics = o->groups[0].spec->metric_count;
    uint32_t floats = o->rows;
    for (uint32_t row = 0; row < o->rows && metrics > 0; row++)
        if (step_ended(o->last.flags[row])) {
            memcpy(o->last.rewards + floats, o->last.metrics + (size_t)row * metrics,
                   metrics * sizeof *o->last.rewards);
            floats += metrics;
        }
    return floats;
}

/* Writes the states of all environments into o->states. *bytes: how many there are; 0: they cannot be saved,
 * or are larger than a message may be. */
static enum status save_states(struct observer *o, size_t *bytes, struct error *error)
{
    bool can_save = o->worker->job.rollout.begin == JOB_BEGIN_CONTINUE;
    for (;;) {
        *bytes = 0;
        for (uint32_t i = 0; i < o->group_count && can_save; i++)
            can_save = observer_group_save(&o->groups[i], o->states, o->states_capacity, bytes);
        if (!can_save || *bytes > STATES_BYTES_MAX)
            *bytes = 0;
        if (*bytes <= o->states_capacity)
            return STATUS_OK;
        free(o->states);
        o->states = malloc(*bytes);
        o->states_capacity = o->states != NULL ? *bytes : 0;
        if (o->states == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for the states of %u environments",
                             o->count);
    }
}

static enum status answer_episode(struct observer *o, struct error *error)
{
    size_t bytes;
    const enum status status = save_states(o, &bytes, error);
    if (status != STATUS_OK)
        return status;
    struct rpc_message message = {
        .tensor_count = RETURN_STATES,
        .tensors = {[RETURN_REWARD] = {.dtype = WIRE_F32, .rank = 1, .dims = {append_metrics(o)}},
                    [RETURN_FLAGS] = {.dtype = WIRE_U8, .rank = 1, .dims = {o->rows}},
                    [RETURN_LENGTH] = {.dtype = WIRE_U32, .rank = 1, .dims = {o->count}}},
        .data = {o->last.rewards, o->last.flags, o->last.steps},
    };
    if (bytes > 0) {
        message.tensors[message.tensor_count] =
            (struct wire_tensor){.dtype = WIRE_U8, .rank = 1, .dims = {(uint32_t)bytes}};
        message.data[message.tensor_count++] = o->states;
    }
    struct rpc_request *request = o->episode;
    o->episode = NULL;
    rpc_reply(request, &message);
    return STATUS_OK;
}

/* Puts all environments into the saved states that came with the call. */
static enum status load_states(struct observer *o, const struct rpc_message *call, struct error *error)
{
    const bool good =
        call->tensor_count == 1 && call->tensors[0].dtype == WIRE_U8 && call->tensors[0].rank == 1;
    const size_t all = good ? call->tensors[0].dims[0] : 0;
    size_t at = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < o->group_count && status == STATUS_OK; i++) {
        size_t bytes;
        status =
            observer_group_load(&o->groups[i], (const char *)call->data[0] + at, all - at, &bytes, error);
        at += bytes;
    }
    return status;
}

/* Sends the first rows of every group. */
static enum status begin_groups(struct observer *o, struct error *error)
{
    const struct rpc_message *call = rpc_request_message(o->episode);
    enum status status = call->args[RUN_BEGIN] == BEGIN_STATES ? load_states(o, call, error) : STATUS_OK;
    for (uint32_t i = 0; i < o->group_count && status == STATUS_OK; i++) {
        status = observer_group_begin(&o->groups[i], call->args, error);
        if (status == STATUS_OK)
            status = observer_group_ask(&o->groups[i], o->rpc, error);
    }
    return status;
}

/* A group that is done has no further request, unless others of the observer's go on. */
static enum status ask_again(struct observer *o, struct observer_group *group, uint32_t *playing,
                             struct error *error)
{
    if (!observer_group_is_done(group))
        return observer_group_ask(group, o->rpc, error);
    --*playing;
    return *playing > 0 && group->steps == 0 ? observer_group_tell_done(group, o->rpc, error) : STATUS_OK;
}

/* While a group is stepped here, the agent acts on the rows of the others. */
static enum status play_episode(struct observer *o, struct error *error)
{
    enum status status = begin_groups(o, error);
    for (uint32_t playing = o->group_count, i = 0; status == STATUS_OK && playing > 0;
         i = (i + 1) % o->group_count) {
        struct observer_group *group = &o->groups[i];
        if (group->answer == NULL)
            continue;
        o->worker->work += group->live;
        status = observer_group_step(group, o->rpc, error);
        if (status == STATUS_OK)
            status = ask_again(o, group, &playing, error);
    }
    if (status == STATUS_OK)
        status = answer_episode(o, error);
    return status;
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
    if (status == STATUS_SHUTDOWN)
        status = STATUS_OK; /* the order to leave is on its way */
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
