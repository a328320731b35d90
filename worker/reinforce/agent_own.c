/* The agent's own environments, of a job without observers (/observers/count 0). Each step of a few small
 * environments costs less than the message that would carry its rows. The rows go the way of an observer's,
 * from the same groups through the same functions, so that the numbers are the same. A crash of an
 * environment's code costs the agent: all goes on from the newest checkpoint. The agent's thread. */
#include "worker/reinforce/agent.h"
#include "worker/reinforce/observer_group.h"
#include "worker/reinforce/step_message.h"

#include "kernels/base/monotime.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

struct agent_own {
    uint32_t count;
    bool loaded;  /* the saved states of a run that resumes are in place */
    bool is_over; /* the rollout has been played, or cut short by an order to hurry */
    bool is_cut;
    struct observer_group groups[]; /* (count) */
};

/* ---- opening ---- */

static enum status open_groups(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < agent->groups && status == STATUS_OK; i++) {
        const uint32_t begin = job_group_begin(job, i), end = job_group_begin(job, i + 1);
        status = observer_group_open(&agent->own->groups[i], job, i, begin, end - begin, error);
        agent->own->count++;
    }
    return status;
}

enum status agent_own_open(struct agent *agent, struct error *error)
{
    if (job_observers(&agent->worker->job) > 0)
        return STATUS_OK;
    agent->own = calloc(1, sizeof *agent->own + agent->groups * sizeof *agent->own->groups);
    if (agent->own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u groups", agent->groups);
    const enum status status = open_groups(agent, error);
    if (status != STATUS_OK)
        return status;
    const struct observer_group *group = &agent->own->groups[0];
    char *text = environment_describe(environments_name(group->environments), group->spec,
                                      environments_can_save(group->environments));
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
    const enum status opened = agent_open_world(agent, text, strlen(text), error);
    cJSON_free(text);
    return opened;
}

void agent_own_close(struct agent *agent)
{
    for (uint32_t i = 0; agent->own != NULL && i < agent->own->count; i++)
        observer_group_close(&agent->own->groups[i]);
    free(agent->own);
}

/* ---- a rollout ---- */

enum status agent_own_begin(struct agent *agent, struct error *error)
{
    struct agent_own *own = agent->own;
    const bool continues = agent->episode > 1 && own->loaded;
    const uint64_t args[WIRE_ARGS] = {[RUN_NUMBER] = agent->episode,
                                      [RUN_STEPS] = agent->rollout->config.steps_max,
                                      [RUN_BEGIN] = continues ? BEGIN_CONTINUE : BEGIN_RESET,
                                      [RUN_CLOSES] = agent->rollout->config.bootstraps};
    enum status status = STATUS_OK;
    if (agent->episode > 1 && !continues) {
        agent_states_warn(agent, false);
        agent_states_forget(agent, 0, agent->environments);
    }
    for (uint32_t i = 0; i < own->count && status == STATUS_OK; i++)
        status = observer_group_begin(&own->groups[i], args, error);
    own->loaded = true;
    own->is_over = own->is_cut = false;
    return status;
}

/* One step of the group: its rows into the rollout, the policy's actions out of it, and the environments. */
static enum status play_step(struct agent *agent, struct observer_group *group, struct error *error)
{
    struct rpc_message rows;
    struct step step;
    observer_group_rows(group, &rows);
    step_view(&step, &rows, group->spec);
    agent_record(agent, &step);
    if (agent->failure.status != STATUS_OK)
        return STATUS_OK; /* agent_run sees it */
    if (rollout_is_closing(agent->rollout, &step)) {
        group->closes = false;
        return STATUS_OK;
    }
    const enum status status = agent_act(agent, &step, error);
    return status == STATUS_OK ? observer_group_advance(group, agent->batch.actions, error) : status;
}

enum status agent_own_play(struct agent *agent, struct error *error)
{
    enum { SLICE_US = 10000 };
    struct agent_own *own = agent->own;
    const struct monotime end = monotime_add_us(monotime_now(), SLICE_US);
    enum status status = STATUS_OK;
    while (!own->is_over && status == STATUS_OK && agent->failure.status == STATUS_OK &&
           monotime_before(monotime_now(), end)) {
        own->is_over = own->is_cut = agent->worker->hurry;
        for (uint32_t i = 0; i < own->count && status == STATUS_OK && !own->is_over; i++)
            status = play_step(agent, &own->groups[i], error);
        own->is_over = own->is_over || observer_group_is_done(&own->groups[own->count - 1]);
    }
    return status;
}

bool agent_own_is_over(const struct agent *agent)
{
    return agent->own->is_over;
}

bool agent_own_is_cut(const struct agent *agent)
{
    return agent->own != NULL && agent->own->is_cut;
}

/* ---- states ---- */

size_t agent_own_save(struct agent *agent, char *out, size_t capacity)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < agent->own->count; i++)
        if (!observer_group_save(&agent->own->groups[i], out, capacity, &bytes))
            return 0;
    return bytes;
}

enum status agent_own_load(struct agent *agent, const char *states, size_t length, struct error *error)
{
    enum status status = STATUS_OK;
    size_t at = 0;
    for (uint32_t i = 0; i < agent->own->count && status == STATUS_OK; i++) {
        size_t bytes;
        status = observer_group_load(&agent->own->groups[i], states + at, length - at, &bytes, error);
        at += bytes;
    }
    if (status == STATUS_OK && at < length)
        return error_set(error, STATUS_INVALID, "it holds the states of more than %u environments",
                         agent->environments);
    agent->own->loaded = status == STATUS_OK;
    return status;
}
