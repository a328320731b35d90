/* Runs an update on the agent's thread, or on one of its own. */
#include "worker/reinforce/updates.h"

#include "kernels/base/monotime.h"
#include "kernels/base/profile.h"
#include "worker/background.h"
#include "worker/reinforce/reinforce.h"

#include <assert.h>
#include <stdlib.h>

struct updates {
    struct updates_config config;
    bool overlaps, under_way;
    struct policy_values values; /* of updates_share */
    struct background thread;
    /* The thread's while it runs: */
    struct rollout *rollout; /* the recording's; with overlap a copy of it */
    policy_progress *progress;
    void *context;
    double loss, seconds;
    struct control_figures figures; /* of ppo and a2c */
};

static enum status open_overlap(struct updates *u, struct error *error)
{
    const struct rollout *played = recording_rollout(u->config.recording);
    enum status status = policy_values_open(&u->values, u->config.of, error);
    if (status == STATUS_OK)
        status = rollout_new(&u->rollout, &played->config, error);
    return status == STATUS_OK ? background_open(&u->thread, u->config.rpc, "the thread that learns", error)
                               : status;
}

enum status updates_new(struct updates **out, const struct updates_config *config, struct error *error)
{
    struct updates *u = *out = calloc(1, sizeof *u);
    if (u == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for updates");
    u->config = *config;
    u->overlaps = config->job->algorithm.overlap > 0;
    if (u->overlaps)
        return open_overlap(u, error);
    u->rollout = recording_rollout(config->recording);
    return STATUS_OK;
}

void updates_free(struct updates *u)
{
    if (u == NULL)
        return;
    background_close(&u->thread);
    policy_values_close(&u->values);
    if (u->overlaps)
        rollout_free(u->rollout);
    free(u);
}

enum status updates_share(struct updates *u, struct error *error)
{
    assert(!u->under_way);
    if (!u->overlaps)
        return STATUS_OK;
    const enum status status = policy_save(u->config.policy, &u->values, error);
    return status == STATUS_OK ? policy_restore(u->config.acting, &u->values, error) : status;
}

/* The next parameters, from the rollout. */
static enum status learn(void *updates, struct error *error)
{
    struct updates *u = updates;
    const struct job *job = u->config.job;
    struct ppo *ppo = recording_ppo(u->config.recording);
    const struct monotime begin = monotime_now();
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    const enum status status =
        job_is_actor_critic(job)
            ? ppo_learn(ppo, u->config.policy, u->rollout, u->progress, u->context, &u->figures, error)
            : reinforce_learn(u->config.policy, u->rollout, job, u->progress, u->context, &u->loss, error);
    profile_leave(before);
    u->seconds = (double)monotime_us_between(begin, monotime_now()) * 1e-6;
    return status;
}

enum status updates_begin(struct updates *u, policy_progress *progress, void *context, struct error *error)
{
    assert(!u->under_way);
    u->under_way = true;
    if (u->overlaps) {
        const enum status status = rollout_copy(u->rollout, recording_rollout(u->config.recording), error);
        if (status == STATUS_OK)
            background_start(&u->thread, learn, u);
        return status;
    }
    u->progress = progress;
    u->context = context;
    return learn(u, error);
}

bool updates_are_under_way(const struct updates *u)
{
    return u->under_way;
}

enum status updates_end(struct updates *u, double *loss, double *seconds, struct control_figures *figures,
                        struct error *error)
{
    assert(u->under_way);
    const enum status status = u->overlaps ? background_end(&u->thread, error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    u->under_way = false;
    *figures = u->figures;
    *loss = job_is_actor_critic(u->config.job) ? u->figures.loss : u->loss;
    *seconds = u->seconds;
    return STATUS_OK;
}
