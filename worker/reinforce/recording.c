/* Records each step of the running episode: its rows go to the rollout, its outcomes to the sums beside it.
 * Runs on the agent's thread. */
#include "worker/reinforce/recording.h"

#include "kernels/base/log.h"
#include "worker/reinforce/environment_metrics.h"
#include "worker/reinforce/episode_rewards.h"

#include <stdlib.h>
#include <string.h>

/* What recording_report says of an episode. */
struct episode_record {
    struct control_episode episode;
    bool is_new;
};

struct recording {
    const struct job *job;
    const struct environment_description *world;
    struct rollout *rollout;
    struct environment_metrics metrics;
    struct episode_rewards episodes; /* used where rollouts go on */
    struct ppo ppo;                  /* used where the algorithm is ppo or a2c */
    struct off_policy *learner;      /* NULL: the algorithm learns from whole rollouts */
    bool *forgotten;                 /* (columns) abandoned, but ppo does not know it yet */
    struct episode_record played, learned;
    bool is_pending; /* the rollout is played, and not learned from */
    bool warned_of_course, warned_of_loss;
};

enum status recording_new(struct recording **out, const struct job *job,
                          const struct environment_description *world, const struct rollout_config *config,
                          struct off_policy *learner, struct error *error)
{
    struct recording *r = *out = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout");
    r->job = job;
    r->world = world;
    r->learner = learner;
    enum status status = rollout_new(&r->rollout, config, error);
    if (status == STATUS_OK)
        status = episode_rewards_open(&r->episodes, job, r->rollout->columns, world->spec.agents, error);
    if (status == STATUS_OK)
        status = environment_metrics_open(&r->metrics, &world->spec, r->rollout->columns, error);
    if (status == STATUS_OK && job_is_actor_critic(job))
        status = ppo_open(&r->ppo, job, r->rollout, error);
    if (status == STATUS_OK && (r->forgotten = calloc(r->rollout->columns, sizeof *r->forgotten)) == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u columns", r->rollout->columns);
    return status;
}

void recording_free(struct recording *r)
{
    if (r == NULL)
        return;
    ppo_close(&r->ppo);
    episode_rewards_close(&r->episodes);
    environment_metrics_close(&r->metrics);
    rollout_free(r->rollout);
    free(r->forgotten);
    free(r);
}

struct rollout *recording_rollout(const struct recording *r)
{
    return r->rollout;
}

struct ppo *recording_ppo(struct recording *r)
{
    return &r->ppo;
}

/* ---- steps ---- */

void recording_begin(struct recording *r, uint64_t episode)
{
    rollout_begin(r->rollout, (uint32_t)episode);
    if (r->learner != NULL)
        off_policy_begin(r->learner);
    environment_metrics_clear(&r->metrics, 0, r->rollout->columns);
}

/* The environments whose saved states led to another place have been reset. */
static void abandon_failed(struct recording *r, const struct step *step)
{
    for (uint32_t i = 0; i < step->rows && step->number == 0; i++) {
        const uint32_t environment = step->numbers[i / step->agents];
        if ((step_flags(step, i) & ENVIRONMENT_FAILED) == 0)
            continue;
        r->rollout->before[environment * step->agents + i % step->agents] &= (uint8_t)~ENVIRONMENT_FAILED;
        recording_abandon(r, environment, 1);
        recording_warn_of_course(r, environment, "up to its saved state");
    }
}

enum status recording_step(struct recording *r, const struct step *step, bool is_repeated,
                           struct error *error)
{
    const enum status status =
        is_repeated ? rollout_record_last(r->rollout, step, error) : rollout_record(r->rollout, step, error);
    if (status != STATUS_OK)
        return status;
    environment_metrics_take(&r->metrics, step, 0);
    abandon_failed(r, step);
    return STATUS_OK;
}

enum status recording_take(struct recording *r, uint32_t steps, policy_progress *progress, void *context,
                           struct error *error)
{
    enum status status = STATUS_OK;
    while (r->learner != NULL && off_policy_taken(r->learner) < steps && status == STATUS_OK)
        status = off_policy_take(r->learner, r->rollout, progress, context, error);
    return status;
}

uint32_t recording_horizon(const struct recording *r)
{
    return r->learner != NULL ? off_policy_horizon(r->learner) : UINT32_MAX;
}

enum status recording_act(struct recording *r, struct policy *policy, struct error *error)
{
    if (r->learner != NULL && r->rollout->batch_rows > 0)
        off_policy_explore(r->learner, r->rollout->batch_step[0]);
    return rollout_act(r->rollout, policy, error);
}

void recording_end(struct recording *r, uint32_t first, const struct step_end *end)
{
    const struct step *last = &end->last;
    for (uint32_t i = 0; i < last->rows; i++) {
        const uint32_t column = first * last->agents + i;
        const uint32_t row = rollout_row(r->rollout, r->rollout->lengths[column] - 1, column);
        r->rollout->rewards[row] = last->rewards[i];
        r->rollout->flags[row] = step_flags(last, i);
    }
    if (!r->rollout->config.bootstraps) /* else the closing step has brought them */
        environment_metrics_take(&r->metrics, last, first);
}

/* ---- forgetting ---- */

void recording_forget(struct recording *r, uint32_t first, uint32_t count)
{
    const uint32_t agents = r->rollout->config.agents;
    rollout_forget_last(r->rollout, first * agents, count * agents);
    environment_metrics_clear(&r->metrics, first * agents, count * agents);
}

void recording_diverge(struct recording *r, uint32_t first, uint32_t count)
{
    const uint32_t agents = r->rollout->config.agents;
    if (r->learner != NULL)
        off_policy_abandon(r->learner, first * agents, count * agents);
}

void recording_abandon(struct recording *r, uint32_t first, uint32_t count)
{
    const uint32_t agents = r->rollout->config.agents;
    rollout_forget_states(r->rollout, first * agents, count * agents);
    episode_rewards_forget(&r->episodes, first * agents, count * agents);
    recording_diverge(r, first, count);
    memset(r->forgotten + first * agents, true, count * agents);
}

void recording_warn_of_course(struct recording *r, uint32_t environment, const char *where)
{
    if (!r->warned_of_course)
        log_warning(
            "%s: environment %u, played again from the same seed with the same actions, takes another "
            "course %s, and begins anew there: declare it CANNOT_SEED (in Python, nondeterministic, or "
            "true for /environment/renew)",
            r->world->name, environment, where);
    r->warned_of_course = true;
}

void recording_warn_of_loss(struct recording *r, bool can_save)
{
    const bool can_seed = (r->world->spec.limits & ENVIRONMENT_CANNOT_SEED) == 0;
    const char *loss = environment_loss(can_seed, can_save || r->job->rollout.begin != JOB_BEGIN_CONTINUE);
    if (loss == NULL || r->warned_of_loss)
        return;
    log_warning("%s %s", r->world->name, loss);
    r->warned_of_loss = true;
}

/* ---- from playing to learning ---- */

/* Adds each of several agents' mean reward to the metrics, if there is room. */
static void add_agents(const struct recording *r, struct control_metrics *means)
{
    const uint32_t agents = r->rollout->config.agents;
    if (agents == 1 || means->count + agents > CONTROL_METRICS_MAX)
        return;
    for (uint32_t agent = 0; agent < agents; agent++) {
        const uint32_t at = means->count++;
        snprintf(means->of[at].name, sizeof means->of[at].name, "reward/agent_%u", agent);
        means->of[at].mean = r->job->rollout.begin == JOB_BEGIN_CONTINUE
                                 ? episode_rewards_of_agent(&r->episodes, agent)
                                 : rollout_reward_of_agent(r->rollout, agent);
    }
}

void recording_close(struct recording *r, const struct control_episode *played)
{
    const bool least = r->job->running_reward.of == JOB_OF_MIN;
    struct control_episode *record = &r->played.episode;
    r->played = (struct episode_record){*played, true};
    if (r->job->rollout.begin == JOB_BEGIN_CONTINUE)
        r->played.is_new = episode_rewards_take(&r->episodes, r->rollout, least, &record->reward);
    else
        record->reward = rollout_reward(r->rollout, least);
    record->env_steps = rollout_rows(r->rollout);
    episode_rewards_means(&r->episodes, &record->figures.ep_rew_mean, &record->figures.ep_len_mean);
    environment_metrics_mean(&r->metrics, 0, r->rollout->columns, &record->metrics);
    add_agents(r, &record->metrics);
    r->is_pending = true;
}

bool recording_is_pending(const struct recording *r)
{
    return r->is_pending;
}

/* Before anything reads what ppo keeps of columns: some were abandoned while an update was under way. */
static void settle(struct recording *r)
{
    for (uint32_t column = 0; column < r->rollout->columns; column++)
        if (r->forgotten[column] && job_is_actor_critic(r->job))
            normalizers_forget(&r->ppo.normalizers, column, 1);
    memset(r->forgotten, false, r->rollout->columns);
}

void recording_learn(struct recording *r)
{
    settle(r);
    r->learned = r->played;
    r->is_pending = false;
}

bool recording_report(const struct recording *r, struct control_episode *record)
{
    *record = r->learned.episode;
    return r->learned.is_new;
}

/* ---- bytes: the rewards of unfinished episodes; of PPO, its state, the window, and what the policy
 * remembers of the environments ---- */

struct states_head {
    uint64_t columns, floats; // of a column
};

/* False: the bytes are not of this policy. */
static bool archive_states(struct rollout *rollout, struct archive *archive)
{
    const size_t bytes = rollout->config.state_floats * sizeof(float);
    struct states_head head = {rollout->columns, rollout->config.state_floats};
    if (bytes == 0)
        return true;
    if (!archive_move(archive, &head, sizeof head) || head.floats != rollout->config.state_floats ||
        head.columns == 0)
        return false;
    for (uint32_t column = 0; column < rollout->columns; column++)
        rollout_zero_ended_state(rollout, column);
    return archive_move_array(archive, rollout_zero_ended_state(rollout, 0), bytes, bytes, rollout->columns,
                              head.columns);
}

/* What stands before a pending rollout. No bytes of environments begin so: they begin with their length. */
struct pending_head {
    char word[8];
    struct episode_record played;
};
static const char pending_word[] = "pending";
_Static_assert(sizeof pending_word == sizeof(((struct pending_head *)0)->word), "with its zero");

/* The rollout that an update will learn from behind the checkpoint. Its times are left out: equal runs have
 * equal checkpoints. False: there is half of a rollout, or no memory for it. */
static bool archive_pending(struct recording *r, struct archive *archive, struct error *error)
{
    struct pending_head head = {.played = r->played};
    memset(&head.played.episode.timing, 0, sizeof head.played.episode.timing);
    memcpy(head.word, pending_word, sizeof head.word);
    const bool is_there =
        !archive_loads(archive)
            ? r->is_pending
            : archive->left >= sizeof head && memcmp(archive->from, head.word, sizeof head.word) == 0;
    if (!is_there)
        return true;
    if (!archive_move(archive, &head, sizeof head) ||
        !rollout_archive(r->rollout, archive, &r->is_pending, error))
        return false;
    if (!archive_loads(archive))
        return true;
    r->played = head.played;
    if (!r->is_pending)
        log_warning(
            "the rollout of episode %llu, which was to be learned from, is of other environments than "
            "this job's: it is played again",
            (unsigned long long)r->played.episode.episode);
    return true;
}

bool recording_archive(struct recording *r, struct archive *archive, struct error *error)
{
    settle(r);
    if (archive_loads(archive))
        error_set(error, STATUS_INVALID, "its environments%s are not those of this job",
                  job_is_stepwise(r->job) ? ", its /algorithm/stats_window_size, or what its policy remembers"
                                          : "");
    if (!episode_rewards_archive(&r->episodes, archive))
        return false;
    if (!job_is_stepwise(r->job))
        return true;
    return (r->learner != NULL ? off_policy_archive(r->learner, archive, error)
                               : ppo_archive(&r->ppo, archive)) &&
           episode_rewards_archive_window(&r->episodes, archive) && archive_states(r->rollout, archive) &&
           archive_pending(r, archive, error);
}
