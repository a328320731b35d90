/* Steps the agent's own environments, group by group. The agent's thread. */
#include "worker/reinforce/own_environments.h"

#include "worker/reinforce/observer_group.h"

#include "kernels/base/monotime.h"

#include <stdlib.h>

struct own_environments {
    const struct worker *worker;
    uint32_t count;
    bool loaded;  /* the saved states of a run that resumes are in place */
    bool is_over; /* the rollout has been played, or cut short by an order to hurry */
    bool is_cut;
    struct observer_group groups[]; /* (count) */
};

enum status own_environments_new(struct own_environments **out, const struct worker *worker, char **text,
                                 struct error *error)
{
    const struct job *job = &worker->job;
    const uint32_t groups = job->observers.groups;
    enum status status = STATUS_OK;
    struct own_environments *own = *out = calloc(1, sizeof *own + groups * sizeof own->groups[0]);
    if (own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u groups", groups);
    own->worker = worker;
    for (uint32_t i = 0; i < groups && status == STATUS_OK; i++) {
        const uint32_t begin = job_group_begin(job, i), end = job_group_begin(job, i + 1);
        status = observer_group_open(&own->groups[i], job, i, begin, end - begin, error);
        own->count++;
    }
    if (status != STATUS_OK)
        return status;
    const struct observer_group *group = &own->groups[0];
    *text = environment_describe(environments_name(group->environments), group->spec,
                                 environments_can_save(group->environments));
    return *text != NULL ? STATUS_OK
                         : error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
}

void own_environments_free(struct own_environments *own)
{
    for (uint32_t i = 0; own != NULL && i < own->count; i++)
        observer_group_close(&own->groups[i]);
    free(own);
}

/* ---- a rollout ---- */

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
    for (uint32_t i = 0; i < own->count && status == STATUS_OK; i++)
        status = observer_group_begin(&own->groups[i], args, error);
    own->loaded = true;
    own->is_over = own->is_cut = false;
    return status;
}

/* One step of the group: its rows into the record, the policy's actions, and the environments. */
static enum status play_step(struct observer_group *group, struct recording *recording,
                             struct inference *inference, struct error *error)
{
    struct rpc_message rows;
    struct step step;
    const void *actions;
    observer_group_rows(group, &rows);
    step_view(&step, &rows, group->spec);
    enum status status = recording_step(recording, &step, error);
    if (status == STATUS_OK && rollout_is_closing(recording_rollout(recording), &step)) {
        group->closes = false;
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = inference_act(inference, &step, &actions, error);
    return status == STATUS_OK ? observer_group_advance(group, actions, error) : status;
}

enum status own_environments_play(struct own_environments *own, struct recording *recording,
                                  struct inference *inference, struct error *error)
{
    enum { SLICE_US = 10000 };
    const struct monotime end = monotime_add_us(monotime_now(), SLICE_US);
    enum status status = STATUS_OK;
    while (!own->is_over && status == STATUS_OK && monotime_before(monotime_now(), end)) {
        own->is_over = own->is_cut = own->worker->hurry;
        for (uint32_t i = 0; i < own->count && status == STATUS_OK && !own->is_over; i++)
            status = play_step(&own->groups[i], recording, inference, error);
        own->is_over = own->is_over || observer_group_is_done(&own->groups[own->count - 1]);
    }
    return status;
}

bool own_environments_are_over(const struct own_environments *own)
{
    return own->is_over;
}

bool own_environments_are_cut(const struct own_environments *own)
{
    return own->is_cut;
}

/* ---- states ---- */

size_t own_environments_save(struct own_environments *own, char *out, size_t capacity)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < own->count; i++)
        if (!observer_group_save(&own->groups[i], out, capacity, &bytes))
            return 0;
    return bytes;
}

enum status own_environments_load(struct own_environments *own, const char *states, size_t length,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    size_t at = 0;
    for (uint32_t i = 0; i < own->count && status == STATUS_OK; i++) {
        size_t bytes;
        status = observer_group_load(&own->groups[i], states + at, length - at, &bytes, error);
        at += bytes;
    }
    if (status == STATUS_OK && at < length)
        return error_set(error, STATUS_INVALID, "it holds the states of more than %u environments",
                         own->worker->job.observers.environments);
    own->loaded = status == STATUS_OK;
    return status;
}
