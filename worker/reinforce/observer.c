/* Steps environments through an episode, group by group: an observer's, which asks the agent for every action
 * by a message, and in a job without observers the agent's own. One thread, the observer's or the agent's.
 *
 * Before anything else the observer tells the agent what its environment is. A handler never waits, so
 * run_episode's handler only remembers the request. The loop then plays the episode and answers the request
 * at the end. An observer with several groups steps one while the agent acts on another:
 *
 *     group_begin -> group_ask, group_step, group_ask, group_step, … until group_is_done */
#include "worker/reinforce/observer.h"

#include "kernels/base/monotime.h"
#include "kernels/base/profile.h"
#include "kernels/base/region.h"
#include "worker/environment/environment_description.h"
#include "worker/environment/environment_spec.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/reinforce/job_open.h"
#include "worker/reinforce/step_message.h"
#include "worker/roster.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* The most that an answer carries of the environments' states. */
enum { STATES_BYTES_MAX = WIRE_BODY_BYTES_MAX / 2 };

/* Environments that are stepped together: one METHOD_STEP asks for their actions. */
struct group {
    struct region region;
    struct environments *environments;
    const struct environment_spec *spec;
    const struct environment_buffers *buffers;
    size_t observation_bytes, action_bytes; /* of a row */
    uint32_t agents, flags_bytes;           /* of an environment; of a row of STEP_FLAGS */
    uint32_t number;                        /* of the group */
    uint32_t count, rows, first; /* environments; their rows; the first environment's number in the job */
    struct future *answer;       /* of the METHOD_STEP under way; NULL: there is none */
    struct step view;            /* the agent's own: what the step shows */

    uint32_t episode, step;      /* the step that is asked next */
    uint32_t steps;              /* how many there are; 0: until each environment's episode is over */
    bool continues;              /* from the rollout before */
    bool closes;                 /* the closing step is not answered yet (step_message.h) */
    uint32_t live;               /* environments whose episode goes on */
    uint32_t *indices, *numbers; /* (live) local; job-wide */
    uint32_t *over;              /* (count) environments that wait for a reset */
    uint32_t *lengths;           /* (count) steps of those whose episode is over */
    uint32_t ended;              /* rows that ended an episode in the last step, of live environments */
    uint32_t *ended_rows;        /* (ended) */
    /* What a step sends: */
    char *observations;     /* (rows + ended, observation_bytes), unless all are live */
    char *own_observations; /* the same; NULL: it is the outbox's memory */
    float *rewards;         /* (rows + ended * metrics) */
    uint8_t *flags;         /* (rows, flags_bytes) */
};

/* All groups of this process. */
struct groups {
    uint32_t count, environments, rows;
    struct group *of; /* (count) */
};

/* ---- opening ---- */

static enum status group_open_memory(struct group *g, struct error *error)
{
    const size_t n = g->count, rows = g->rows;
    g->indices = region_take(&g->region, n, sizeof *g->indices);
    g->numbers = region_take(&g->region, n, sizeof *g->numbers);
    g->over = region_take(&g->region, n, sizeof *g->over);
    g->lengths = region_take(&g->region, n, sizeof *g->lengths);
    g->ended_rows = region_take(&g->region, rows, sizeof *g->ended_rows);
    g->observations = g->own_observations = calloc(2 * rows, g->observation_bytes);
    g->rewards = region_take(&g->region, rows + rows * g->spec->metric_count, sizeof *g->rewards);
    g->flags = region_take(&g->region, rows, g->flags_bytes);
    if (g->region.failed || g->observations == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu environments", n);
    return STATUS_OK;
}

/* Opens `count` environments of the job, the first one with the job-wide number `first`. group_close also
 * follows a failure. */
static enum status group_open(struct group *g, const struct job *job, uint32_t number, uint32_t first,
                              uint32_t count, struct error *error)
{
    *g = (struct group){.number = number, .first = first, .count = count};
    const enum status status = job_environments_open(&g->environments, job, first, count, error);
    if (status != STATUS_OK)
        return status;
    g->buffers = environments_buffers(g->environments);
    g->spec = environments_spec(g->environments);
    g->agents = g->spec->agents;
    g->rows = g->count * g->agents;
    g->observation_bytes = environment_space_bytes(&g->spec->observation);
    g->action_bytes = environment_space_bytes(&g->spec->action);
    g->flags_bytes = step_flags_bytes(g->spec);
    return group_open_memory(g, error);
}

static void group_close(struct group *g)
{
    environments_close(g->environments);
    region_free(&g->region);
    free(g->own_observations);
}

/* Opens the groups of a seat, whose first environment has the job-wide number `first`. groups_close also
 * follows a failure. */
static enum status groups_open(struct groups *all, const struct job *job, uint32_t first, struct error *error)
{
    enum status status = STATUS_OK;
    all->of = calloc(job->observers.groups, sizeof *all->of);
    if (all->of == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u groups", job->observers.groups);
    for (uint32_t i = 0; i < job->observers.groups && status == STATUS_OK; i++) {
        const uint32_t begin = job_group_begin(job, i), end = job_group_begin(job, i + 1);
        status = group_open(&all->of[i], job, i, first + begin, end - begin, error);
        all->count++;
        all->environments += all->of[i].count;
        all->rows += all->of[i].rows;
    }
    return status;
}

static void groups_close(struct groups *all)
{
    for (uint32_t i = 0; i < all->count; i++)
        group_close(&all->of[i]);
    free(all->of);
}

/* The description of the environment, which the caller frees. */
static enum status groups_describe(const struct groups *all, char **text, struct error *error)
{
    const struct group *group = &all->of[0];
    *text = environment_describe(environments_name(group->environments), group->spec,
                                 environments_can_save(group->environments));
    return *text != NULL ? STATUS_OK
                         : error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
}

/* ---- asking ---- */

static char *observation_at(const struct group *g, uint32_t row)
{
    return (char *)g->buffers->observation + row * g->observation_bytes;
}

/* The flags of a row at step 0: whether the rollout before has left its agent absent. */
static uint8_t flags_before(const struct group *g, uint32_t row)
{
    return g->continues && !environments_is_over(g->environments, row / g->agents)
               ? g->buffers->flags[row] & ENVIRONMENT_ABSENT
               : 0;
}

/* Rewards, flags and masks of the live rows, then the metrics of those that ended. */
static void gather_outcomes(struct group *g)
{
    const uint32_t metrics = g->spec->metric_count;
    uint8_t *flags = g->flags;
    uint32_t rows = 0;
    if (g->live == g->count && g->step > 0 && g->flags_bytes == 1) {
        rows = g->rows;
        memcpy(g->rewards, g->buffers->reward, rows * sizeof *g->rewards);
        memcpy(flags, g->buffers->flags, rows);
    }
    for (uint32_t i = 0; i < g->live && rows < g->live * g->agents; i++) {
        for (uint32_t a = 0; a < g->agents; a++, rows++, flags += g->flags_bytes) {
            const uint32_t row = g->indices[i] * g->agents + a;
            g->rewards[rows] = g->step > 0 ? g->buffers->reward[row] : 0;
            flags[0] = g->step > 0 ? g->buffers->flags[row] : flags_before(g, row);
            if (g->flags_bytes > 1)
                memcpy(flags + 1, g->buffers->mask + (size_t)row * (g->flags_bytes - 1), g->flags_bytes - 1);
        }
    }
    for (uint32_t i = 0; i < g->ended && metrics > 0; i++)
        memcpy(g->rewards + rows + i * metrics, g->buffers->metrics + (size_t)g->ended_rows[i] * metrics,
               metrics * sizeof *g->rewards);
}

/* The live rows' observations, with the last ones behind them. While all are live they lie so already. */
static const char *gather_observations(struct group *g)
{
    const size_t bytes = g->agents * g->observation_bytes;
    if (g->live == g->count)
        return g->buffers->observation;
    for (uint32_t i = 0; i < g->live; i++)
        memcpy(g->observations + i * bytes, observation_at(g, g->indices[i] * g->agents), bytes);
    memcpy(g->observations + g->live * bytes, observation_at(g, g->rows), g->ended * g->observation_bytes);
    return g->observations;
}

static void scatter_actions(struct group *g, const char *actions)
{
    const size_t bytes = g->agents * g->action_bytes;
    char *action = environments_actions(g->environments);
    if (g->live == g->count) {
        memcpy(action, actions, g->count * bytes);
        return;
    }
    for (uint32_t i = 0; i < g->live; i++)
        memcpy(action + g->indices[i] * bytes, actions + i * bytes, bytes);
}

/* Fills METHOD_STEP's request with the live environments' rows; its data stay the group's, until it is
 * advanced. */
static void group_rows(struct group *g, struct rpc_message *rows)
{
    gather_outcomes(g);
    *rows = (struct rpc_message){
        .args = {g->episode, g->step, g->number},
        .tensor_count = STEP_TENSORS,
        .data = {g->numbers, gather_observations(g), g->rewards, g->flags},
    };
    step_tensors(rows->tensors, g->spec, g->live, g->ended);
}

/* Sends the live environments' rows. Does not wait. */
static enum status group_ask(struct group *g, struct rpc *rpc, struct error *error)
{
    struct rpc_message rows;
    group_rows(g, &rows);
    return rpc_call_async(rpc, 0, METHOD_STEP, &rows, MONOTIME_NEVER, &g->answer, error);
}

/* Tells the agent that the group, which is done, asks nothing more in this episode: other observers' groups
 * of its number wait for it otherwise. Does not wait. */
static enum status group_tell_done(const struct group *g, struct rpc *rpc, struct error *error)
{
    const struct rpc_message done = {.args = {g->episode, g->step, g->number}};
    struct future *answer;
    const enum status status = rpc_call_async(rpc, 0, METHOD_STEP, &done, MONOTIME_NEVER, &answer, error);
    if (status == STATUS_OK)
        future_release(answer);
    return status;
}

/* ---- stepping ---- */

/* Keeps the last observations of the environment's rows that have ended, which a reset overwrites. */
static void note_ended(struct group *g, uint32_t index)
{
    for (uint32_t row = index * g->agents; row < (index + 1) * g->agents; row++) {
        if (!step_ended(g->buffers->flags[row]))
            continue;
        memcpy(observation_at(g, g->rows + g->ended), observation_at(g, row), g->observation_bytes);
        g->ended_rows[g->ended++] = row;
    }
}

/* The flags of all of the environment's rows. */
static uint8_t all_flags(const struct group *g, uint32_t index)
{
    const uint8_t *flags = g->buffers->flags + (size_t)index * g->agents;
    uint8_t all = flags[0];
    for (uint32_t a = 1; a < g->agents; a++)
        all |= flags[a];
    return all;
}

/* Environments that the step ended leave in `episode` mode, and are reset in `steps` mode. */
static enum status handle_ended(struct group *g, struct error *error)
{
    const bool until_over = g->steps == 0, is_last = g->step + 1 == g->steps;
    uint32_t kept = 0, over = 0;
    g->ended = 0;
    for (uint32_t i = 0; i < g->live; i++) {
        const uint32_t index = g->indices[i];
        const uint8_t flags = all_flags(g, index);
        const bool is_over = flags != 0 && environments_is_over(g->environments, index);
        const bool leaves = until_over && (is_over || (flags & ENVIRONMENT_RESTARTED) != 0);
        if (leaves || is_last)
            g->lengths[index] = g->step + 1;
        if (is_over)
            g->over[over++] = index;
        if (leaves)
            continue;
        if (flags != 0)
            note_ended(g, index);
        g->indices[kept] = index;
        g->numbers[kept++] = g->first + index;
    }
    g->live = kept;
    if (until_over || over == 0)
        return STATUS_OK;
    return environments_reset(g->environments, over, g->over, g->episode, g->step + 1, error);
}

/* Steps the live environments with their actions, in the order of the rows, and resets those that this has
 * ended. */
static enum status group_advance(struct group *g, const void *actions, struct error *error)
{
    scatter_actions(g, actions);
    const enum profile_kind before = profile_enter(PROFILE_ENVIRONMENT);
    enum status status =
        environments_step(g->environments, g->live, g->live < g->count ? g->indices : NULL, error);
    if (status == STATUS_OK)
        status = handle_ended(g, error);
    profile_leave(before);
    g->step++;
    return status;
}

/* Steps with the actions of the agent's answer. */
static enum status take_actions(struct group *g, const struct rpc_message *m, struct error *error)
{
    const struct wire_tensor expected = step_action_tensor(g->spec, g->live);
    if (m->tensor_count != 1 || memcmp(&m->tensors[0], &expected, sizeof expected) != 0)
        return error_set(error, STATUS_INVALID, "the agent's answer to step %u: expected %u actions", g->step,
                         g->live * g->agents);
    return group_advance(g, m->data[0], error);
}

/* Waits for the actions, and steps the live environments with them. The answer to the closing step has none.
 */
static enum status group_step(struct group *g, struct rpc *rpc, struct error *error)
{
    const bool is_closing = g->steps > 0 && g->step == g->steps;
    enum status status = rpc_wait(rpc, g->answer, error);
    if (status == STATUS_OK && !is_closing)
        status = take_actions(g, future_value(g->answer), error);
    future_release(g->answer);
    g->answer = NULL;
    g->closes = g->closes && !is_closing;
    return status;
}

/* ---- an episode ---- */

/* Begins an episode with all environments, by run_episode's args. Saved states have been loaded before. */
static enum status group_begin(struct group *g, const uint64_t args[WIRE_ARGS], struct error *error)
{
    g->episode = (uint32_t)args[RUN_NUMBER];
    g->steps = (uint32_t)args[RUN_STEPS];
    g->continues = args[RUN_BEGIN] != BEGIN_RESET;
    g->closes = args[RUN_CLOSES] != 0;
    g->step = 0;
    g->live = g->count;
    g->ended = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        g->indices[i] = i;
        g->numbers[i] = g->first + i;
    }
    if (g->continues)
        return STATUS_OK;
    const enum profile_kind before = profile_enter(PROFILE_ENVIRONMENT);
    const enum status status = environments_reset(g->environments, g->count, NULL, g->episode, 0, error);
    profile_leave(before);
    return status;
}

/* Whether the group has made all of its steps. */
static bool group_is_done(const struct group *g)
{
    return g->live == 0 || (g->steps > 0 && g->step == g->steps && !g->closes);
}

/* ---- states: those of all environments, each behind its length in a uint32 ---- */

/* Writes them to `out`, of `capacity`. Returns their bytes; more than `capacity`: nothing of use is written.
 * 0: an environment cannot be saved. */
static size_t groups_save(struct groups *all, char *out, size_t capacity)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        struct environments *environments = all->of[i].environments;
        if (!environments_can_save(environments))
            return 0;
        for (uint32_t e = 0; e < all->of[i].count; e++) {
            const size_t before = bytes + sizeof(uint32_t), left = capacity > before ? capacity - before : 0;
            const size_t size = environments_save(environments, e, left > 0 ? out + before : NULL, left);
            const uint32_t length = (uint32_t)size;
            if (size == 0 || size > UINT32_MAX)
                return 0;
            if (size <= left)
                memcpy(out + bytes, &length, sizeof length);
            bytes = before + size;
        }
    }
    return bytes;
}

/* STATUS_INVALID: these are no such states. */
static enum status groups_load(struct groups *all, const char *states, size_t bytes, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < all->count; i++)
        for (uint32_t e = 0; e < all->of[i].count && status == STATUS_OK; e++) {
            uint32_t size = 0;
            if (bytes >= sizeof size)
                memcpy(&size, states, sizeof size);
            if (bytes < sizeof size || bytes - sizeof size < size)
                return error_set(error, STATUS_INVALID, "the saved states end within environment %u",
                                 all->of[i].first + e);
            status = environments_load(all->of[i].environments, e, states + sizeof size, size, error);
            states += sizeof size + size;
            bytes -= sizeof size + size;
        }
    if (status == STATUS_OK && bytes > 0)
        return error_set(error, STATUS_INVALID, "it holds the states of more than %u environments",
                         all->environments);
    return status;
}

/* ---- the observer ---- */

struct observer {
    struct region region;
    struct worker *worker;
    struct rpc *rpc;
    struct groups groups;
    float *rewards;        /* (rows, then those with metrics) for the answer: what the last steps earned */
    uint8_t *flags;        /* (rows) likewise */
    uint32_t *lengths;     /* (environments) likewise */
    struct segment outbox; /* large observations; not mapped: they are copied into the messages */
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

static enum status open_answer(struct observer *o, struct error *error)
{
    const size_t rows = o->groups.rows, environments = o->groups.environments;
    o->rewards = region_take(&o->region, rows * (1 + o->groups.of[0].spec->metric_count), sizeof *o->rewards);
    o->flags = region_take(&o->region, rows, 1);
    o->lengths = region_take(&o->region, environments, sizeof *o->lengths);
    if (o->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu environments", environments);
    return STATUS_OK;
}

static size_t round_up(size_t bytes)
{
    return (bytes + WIRE_PLACE_ALIGNMENT - 1) / WIRE_PLACE_ALIGNMENT * WIRE_PLACE_ALIGNMENT;
}

/* Half of the memory from which the group's observations can be lent (worker/net/segment.h). 0: they are too
 * small to be lent. */
static size_t lent_bytes(const struct group *g)
{
    const size_t bytes = environments_observation_bytes(g->environments);
    return bytes < RPC_LEND_BYTES ? 0 : round_up(bytes);
}

/* Large observations lie where the agent can read them: the environments write them there. */
static enum status lend_observations(struct observer *o, struct error *error)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < o->groups.count; i++)
        bytes += 2 * lent_bytes(&o->groups.of[i]);
    if (bytes == 0 || !roster_of(&o->worker->job).segments)
        return STATUS_OK;
    const enum status status = segment_create(&o->outbox, o->worker->self.worker, bytes, error);
    if (status != STATUS_OK)
        return status;
    char *at = (char *)o->outbox.data;
    segment_discard(&o->outbox, o->outbox.data, o->outbox.bytes); /* a predecessor may have written there */
    for (uint32_t i = 0; i < o->groups.count; i++) {
        struct group *g = &o->groups.of[i];
        const size_t half = lent_bytes(g);
        if (half == 0)
            continue;
        environments_place_observations(g->environments, at);
        free(g->own_observations);
        g->own_observations = NULL;
        g->observations = at + half;
        at += 2 * half;
    }
    return STATUS_OK;
}

/* STATUS_SHUTDOWN: the agent cannot use the environment, and ends the job with its own words. */
static enum status describe(struct observer *o, struct error *error)
{
    char *text;
    struct future *answer = NULL;
    enum status status = groups_describe(&o->groups, &text, error);
    if (status != STATUS_OK)
        return status;
    const struct rpc_message message = {
        .tensor_count = 1,
        .tensors = {{.dtype = WIRE_U8, .rank = 1, .dims = {(uint32_t)strlen(text)}}},
        .data = {text}};
    status = rpc_call(o->rpc, 0, METHOD_DESCRIBE, &message, MONOTIME_NEVER, &answer, error);
    future_release(answer);
    cJSON_free(text);
    return status;
}

static enum status join_agent(struct observer *o, struct error *error)
{
    const struct rpc_config config = {.pending_max = 2 * o->worker->job.observers.groups + 2,
                                      .incoming_max = 4,
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
        status = groups_open(&o->groups, &worker->job,
                             (worker->self.worker - 1u) * worker->job.observers.environments, error);
    if (status == STATUS_OK)
        status = open_answer(o, error);
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
    groups_close(&o->groups);
    region_free(&o->region);
    free(o->states);
    segment_detach(&o->outbox);
}

/* Gathers what the last step of each environment earned and ended: the groups' buffers still hold it. Then
 * the metrics of the rows that have ended. How many floats there are. */
static uint32_t gather_last_steps(struct observer *o)
{
    uint32_t floats = o->groups.rows, rows = 0, environments = 0;
    for (uint32_t i = 0; i < o->groups.count; i++) {
        const struct group *g = &o->groups.of[i];
        const size_t metrics = g->spec->metric_count;
        memcpy(o->rewards + rows, g->buffers->reward, g->rows * sizeof *o->rewards);
        memcpy(o->flags + rows, g->buffers->flags, g->rows);
        memcpy(o->lengths + environments, g->lengths, g->count * sizeof *o->lengths);
        for (uint32_t row = 0; row < g->rows && metrics > 0; row++)
            if (step_ended(g->buffers->flags[row])) {
                memcpy(o->rewards + floats, g->buffers->metrics + row * metrics,
                       metrics * sizeof *o->rewards);
                floats += (uint32_t)metrics;
            }
        rows += g->rows;
        environments += g->count;
    }
    return floats;
}

/* Writes the states of all environments into o->states. *bytes: how many there are; 0: they cannot be saved,
 * or are larger than a message may be. */
static enum status save_states(struct observer *o, size_t *bytes, struct error *error)
{
    const bool is_asked = o->worker->job.rollout.begin == JOB_BEGIN_CONTINUE;
    for (;;) {
        *bytes = is_asked ? groups_save(&o->groups, o->states, o->states_capacity) : 0;
        if (*bytes > STATES_BYTES_MAX)
            *bytes = 0;
        if (*bytes <= o->states_capacity)
            return STATUS_OK;
        free(o->states);
        o->states = malloc(*bytes);
        o->states_capacity = o->states != NULL ? *bytes : 0;
        if (o->states == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for the states of %u environments",
                             o->groups.environments);
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
        .tensors = {[RETURN_REWARD] = {.dtype = WIRE_F32, .rank = 1, .dims = {gather_last_steps(o)}},
                    [RETURN_FLAGS] = {.dtype = WIRE_U8, .rank = 1, .dims = {o->groups.rows}},
                    [RETURN_LENGTH] = {.dtype = WIRE_U32, .rank = 1, .dims = {o->groups.environments}}},
        .data = {o->rewards, o->flags, o->lengths},
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
    return groups_load(&o->groups, call->data[0], good ? call->tensors[0].dims[0] : 0, error);
}

/* Sends the first rows of every group. */
static enum status begin_groups(struct observer *o, struct error *error)
{
    const struct rpc_message *call = rpc_request_message(o->episode);
    enum status status = call->args[RUN_BEGIN] == BEGIN_STATES ? load_states(o, call, error) : STATUS_OK;
    for (uint32_t i = 0; i < o->groups.count && status == STATUS_OK; i++) {
        status = group_begin(&o->groups.of[i], call->args, error);
        if (status == STATUS_OK)
            status = group_ask(&o->groups.of[i], o->rpc, error);
    }
    return status;
}

/* A group that is done has no further request, unless others of the observer's go on. */
static enum status ask_again(struct observer *o, struct group *group, uint32_t *playing, struct error *error)
{
    if (!group_is_done(group))
        return group_ask(group, o->rpc, error);
    --*playing;
    return *playing > 0 && group->steps == 0 ? group_tell_done(group, o->rpc, error) : STATUS_OK;
}

/* While a group is stepped here, the agent acts on the rows of the others. */
static enum status play_episode(struct observer *o, struct error *error)
{
    enum status status = begin_groups(o, error);
    for (uint32_t playing = o->groups.count, i = 0; status == STATUS_OK && playing > 0;
         i = (i + 1) % o->groups.count) {
        struct group *group = &o->groups.of[i];
        if (group->answer == NULL)
            continue;
        o->worker->work += group->live;
        status = group_step(group, o->rpc, error);
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

/* ---- the agent's own environments ---- */

struct own_environments {
    struct worker *worker;
    struct groups groups;
    bool is_recorded; /* the step's rows are; its actions may have to wait for the learner */
    bool waits;       /* they do */
    bool loaded;      /* the saved states of a run that resumes are in place */
    bool is_over;     /* the rollout has been played, or cut short by an order to hurry */
    bool is_cut;
};

enum status own_environments_new(struct own_environments **out, struct worker *worker, char **text,
                                 struct error *error)
{
    struct own_environments *own = *out = calloc(1, sizeof *own);
    if (own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environments");
    own->worker = worker;
    const enum status status = groups_open(&own->groups, &worker->job, 0, error);
    return status == STATUS_OK ? groups_describe(&own->groups, text, error) : status;
}

void own_environments_free(struct own_environments *own)
{
    if (own != NULL)
        groups_close(&own->groups);
    free(own);
}

enum status own_environments_begin(struct own_environments *own, struct recording *recording,
                                   uint64_t episode, struct error *error)
{
    const struct rollout_config *config = &recording_rollout(recording)->config;
    const bool continues = episode > 1 && own->loaded;
    const uint64_t args[WIRE_ARGS] = {[RUN_NUMBER] = episode,
                                      [RUN_STEPS] = config->steps_max,
                                      [RUN_BEGIN] = continues ? BEGIN_CONTINUE : BEGIN_RESET,
                                      [RUN_CLOSES] = config->bootstraps};
    enum status status = STATUS_OK;
    if (episode > 1 && !continues) {
        recording_warn_of_loss(recording, false);
        recording_abandon(recording, 0, config->environments);
    }
    for (uint32_t i = 0; i < own->groups.count && status == STATUS_OK; i++)
        status = group_begin(&own->groups.of[i], args, error);
    own->loaded = true;
    own->is_over = own->is_cut = own->is_recorded = own->waits = false;
    return status;
}

/* The group's rows into the record. */
static enum status record_step(struct group *group, struct recording *recording, struct error *error)
{
    struct rpc_message rows;
    group_rows(group, &rows);
    step_view(&group->view, &rows, group->spec);
    return recording_step(recording, &group->view, false, error);
}

/* The policy's actions, and a step of the environments. The closing step asks for none. */
static enum status act_and_step(const struct own_environments *own, struct group *group,
                                struct recording *recording, struct policy *policy, struct error *error)
{
    struct rollout *rollout = recording_rollout(recording);
    const struct step *step = &group->view;
    if (rollout_is_closing(rollout, step)) {
        group->closes = false;
        return STATUS_OK;
    }
    own->worker->work += group->live;
    rollout_gather(rollout, step);
    const enum status status = recording_act(recording, policy, error);
    return status == STATUS_OK ? group_advance(group, rollout_actions(rollout, policy, step), error) : status;
}

/* One step of every group. */
static enum status play_step(struct own_environments *own, struct recording *recording, struct policy *policy,
                             policy_progress *progress, void *context, struct error *error)
{
    const uint32_t step = own->groups.of[0].step;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < own->groups.count && status == STATUS_OK && !own->is_recorded; i++)
        status = record_step(&own->groups.of[i], recording, error);
    own->is_recorded = true;
    if (status == STATUS_OK)
        status = recording_take(recording, step + 1, progress, context, error);
    own->waits = status == STATUS_OK && recording_horizon(recording) <= step;
    if (own->waits)
        return STATUS_OK;
    own->is_recorded = false;
    for (uint32_t i = 0; i < own->groups.count && status == STATUS_OK; i++)
        status = act_and_step(own, &own->groups.of[i], recording, policy, error);
    return status;
}

enum status own_environments_play(struct own_environments *own, struct recording *recording,
                                  struct policy *policy, policy_progress *progress, void *context,
                                  struct error *error)
{
    enum { SLICE_US = 10000 };
    const struct monotime end = monotime_add_us(monotime_now(), SLICE_US);
    enum status status = STATUS_OK;
    do {
        own->is_over = own->is_cut = own->worker->hurry;
        if (!own->is_over)
            status = play_step(own, recording, policy, progress, context, error);
        own->is_over = own->is_over || group_is_done(&own->groups.of[own->groups.count - 1]);
    } while (!own->is_over && !own->waits && status == STATUS_OK && monotime_before(monotime_now(), end));
    return status;
}

bool own_environments_wait(const struct own_environments *own)
{
    return own->waits;
}

enum status own_environments_await(const struct own_environments *own)
{
    return own->is_cut ? STATUS_SHUTDOWN : own->is_over ? STATUS_OK : STATUS_AGAIN;
}

size_t own_environments_save(struct own_environments *own, char *out, size_t capacity)
{
    return groups_save(&own->groups, out, capacity);
}

enum status own_environments_load(struct own_environments *own, const char *states, size_t length,
                                  struct error *error)
{
    const enum status status = groups_load(&own->groups, states, length, error);
    own->loaded = status == STATUS_OK;
    return status;
}
