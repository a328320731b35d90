/* Records each step of the running episode: its rows go to the rollout, its outcomes to the sums beside it.
 * Runs on the agent's thread. */
#include "worker/reinforce/recording.h"

#include "kernels/base/log.h"
#include "worker/reinforce/environment_metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One agent's episode: from the environment's reset to a row that has flags. */
struct episode {
    double reward; /* undiscounted */
    uint64_t length;
};

/* Returns of episodes that span rollouts. One that failed counts for nothing. */
struct returns {
    uint32_t columns;
    uint64_t ended;         /* so far, of all columns */
    double latest;          /* of the last rollout in which one ended: their mean reward, or the least */
    struct episode *so_far; /* (columns) the unfinished ones */
    struct episode *before; /* (columns) a copy of so_far, for the second pass of take_returns */
    uint32_t window;        /* 0 of REINFORCE */
    struct episode
        *recent; /* (window) episode number e, from 0 in order of (step, column), at e mod window */
};

struct recording {
    const struct job *job;
    const struct environment_description *world;
    struct rollout *rollout;
    struct environment_metrics metrics;
    struct returns returns; /* used where rollouts go on */
    struct ppo ppo;         /* used where the algorithm is ppo or a2c */
    bool warned_of_course, warned_of_loss;
};

static enum status open_returns(struct returns *returns, const struct job *job, uint32_t columns,
                                struct error *error)
{
    returns->columns = columns;
    returns->window = job_is_actor_critic(job) ? job->algorithm.stats_window_size : 0;
    returns->so_far = calloc(columns, sizeof *returns->so_far);
    returns->before = calloc(columns, sizeof *returns->before);
    returns->recent = calloc((size_t)returns->window + 1, sizeof *returns->recent);
    return returns->so_far != NULL && returns->before != NULL && returns->recent != NULL
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for the episodes of %u columns", columns);
}

enum status recording_new(struct recording **out, const struct job *job,
                          const struct environment_description *world, const struct rollout_config *config,
                          struct error *error)
{
    struct recording *r = *out = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout");
    r->job = job;
    r->world = world;
    enum status status = rollout_new(&r->rollout, config, error);
    if (status == STATUS_OK)
        status = open_returns(&r->returns, job, r->rollout->columns, error);
    if (status == STATUS_OK)
        status = environment_metrics_open(&r->metrics, &world->spec, r->rollout->columns, error);
    if (status == STATUS_OK && job_is_actor_critic(job))
        status = ppo_open(&r->ppo, job, r->rollout, error);
    return status;
}

void recording_free(struct recording *r)
{
    if (r == NULL)
        return;
    ppo_close(&r->ppo);
    free(r->returns.so_far);
    free(r->returns.before);
    free(r->returns.recent);
    environment_metrics_close(&r->metrics);
    rollout_free(r->rollout);
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

void recording_abandon(struct recording *r, uint32_t first, uint32_t count)
{
    const uint32_t agents = r->rollout->config.agents;
    memset(r->returns.so_far + first * agents, 0, count * agents * sizeof *r->returns.so_far);
    if (job_is_actor_critic(r->job))
        ppo_forget(&r->ppo, first * agents, count * agents);
}

void recording_warn_of_course(struct recording *r, uint32_t environment, const char *where)
{
    if (!r->warned_of_course)
        log_warning(
            "%s: environment %u, played again from the same seed with the same actions, takes another "
            "course %s, and begins anew there: declare it CANNOT_SEED (in Python, nondeterministic)",
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

/* ---- returns ---- */

/* The mean and the least of some returns. */
struct summary {
    uint64_t count;
    double sum, least;
};

static void summary_add(struct summary *summary, double value)
{
    summary->least = summary->count == 0 ? value : fmin(summary->least, value);
    summary->sum += value;
    summary->count++;
}

/* Adds a row to the column's unfinished episode. True: the row ends one that counts, *ended. */
static bool add_row(struct episode *so_far, const struct rollout *rollout, uint32_t step, uint32_t column,
                    struct episode *ended)
{
    const uint32_t row = rollout_row(rollout, step, column);
    if (step >= rollout->lengths[column] || rollout_is_absent(rollout, step, column))
        return false;
    so_far[column].reward += (double)rollout->rewards[row];
    so_far[column].length++;
    if (rollout->flags[row] == 0)
        return false;
    *ended = so_far[column];
    so_far[column] = (struct episode){0};
    return (rollout->flags[row] & ENVIRONMENT_FAILED) == 0;
}

/* Takes a rollout's rewards in: sums column by column, the window step by step. *reward: the mean of the
 * episodes that have ended or, with `least`, the least. If none has (false): that of the latest which have;
 * before the first, of the unfinished ones. */
static bool take_returns(struct returns *e, const struct rollout *rollout, bool least, double *reward)
{
    struct summary ended = {0}, unfinished = {0};
    struct episode episode;
    memcpy(e->before, e->so_far, e->columns * sizeof *e->before);
    for (uint32_t column = 0; column < e->columns; column++) {
        for (uint32_t step = 0; step < rollout->lengths[column]; step++)
            if (add_row(e->so_far, rollout, step, column, &episode))
                summary_add(&ended, episode.reward);
        summary_add(&unfinished, e->so_far[column].reward);
    }
    for (uint32_t step = 0, number = 0; e->window > 0 && step < rollout->config.steps_max; step++)
        for (uint32_t column = 0; column < e->columns; column++)
            if (add_row(e->before, rollout, step, column, &episode))
                e->recent[(e->ended + number++) % e->window] = episode;
    const struct summary *of = ended.count > 0 ? &ended : &unfinished;
    const double value = least ? of->least : of->sum / (double)of->count;
    e->ended += ended.count;
    if (ended.count > 0)
        e->latest = value;
    *reward = e->ended > 0 ? e->latest : value;
    return ended.count > 0;
}

/* Means over the window, or as many episodes as have ended; NaN: none. */
static void find_means(const struct returns *e, double *reward, double *length)
{
    const uint64_t count = e->ended < e->window ? e->ended : e->window;
    *reward = *length = count > 0 ? 0 : (double)NAN;
    for (uint64_t i = 0; i < count; i++) {
        *reward += e->recent[i].reward / (double)count;
        *length += (double)e->recent[i].length / (double)count;
    }
}

bool recording_report(struct recording *r, struct control_episode *record)
{
    const bool least = r->job->running_reward.of == JOB_OF_MIN;
    bool is_new = true;
    if (r->job->rollout.begin == JOB_BEGIN_CONTINUE)
        is_new = take_returns(&r->returns, r->rollout, least, &record->reward);
    else
        record->reward = rollout_reward(r->rollout, least);
    record->env_steps = rollout_rows(r->rollout);
    find_means(&r->returns, &record->ppo.ep_rew_mean, &record->ppo.ep_len_mean);
    environment_metrics_mean(&r->metrics, 0, r->rollout->columns, &record->metrics);
    return is_new;
}

/* ---- bytes: the rewards of the unfinished episodes; of PPO, its state, the window and these episodes ----
 */

struct returns_head {
    uint64_t columns, ended;
    double latest;
};

struct window_head {
    uint64_t columns, window, ended;
};

/* Writes to out + at, unless `out` is NULL. Returns where the next bytes lie. */
static size_t put(char *out, size_t at, const void *from, size_t bytes)
{
    if (out != NULL)
        memcpy(out + at, from, bytes);
    return at + bytes;
}

size_t recording_save(const struct recording *r, char *out)
{
    const struct returns *e = &r->returns;
    const struct returns_head head = {e->columns, e->ended, e->latest};
    const struct window_head window = {e->columns, e->window, e->ended};
    size_t at = put(out, 0, &head, sizeof head);
    for (uint32_t i = 0; i < e->columns; i++)
        at = put(out, at, &e->so_far[i].reward, sizeof(double));
    if (!job_is_actor_critic(r->job))
        return at;
    at += ppo_save(&r->ppo, out != NULL ? out + at : NULL);
    at = put(out, at, &window, sizeof window);
    at = put(out, at, e->recent, e->window * sizeof *e->recent);
    return put(out, at, e->so_far, e->columns * sizeof *e->so_far);
}

static size_t load_rewards(struct returns *e, const char *from, size_t bytes)
{
    struct returns_head head = {0};
    if (bytes >= sizeof head)
        memcpy(&head, from, sizeof head);
    if (head.columns == 0 || head.columns > (bytes - sizeof head) / sizeof(double))
        return 0;
    e->ended = head.ended;
    e->latest = head.latest;
    for (uint32_t i = 0; i < head.columns && i < e->columns; i++)
        memcpy(&e->so_far[i].reward, from + sizeof head + i * sizeof(double), sizeof(double));
    return sizeof head + head.columns * sizeof(double);
}

static size_t load_window(struct returns *e, const char *from, size_t bytes)
{
    const size_t prefix = sizeof(struct window_head) + e->window * sizeof *e->recent;
    struct window_head head = {0};
    if (bytes >= prefix)
        memcpy(&head, from, sizeof head);
    if (head.columns == 0 || head.window != e->window || head.columns > (bytes - prefix) / sizeof *e->so_far)
        return 0;
    memcpy(e->recent, from + sizeof head, prefix - sizeof head);
    memcpy(e->so_far, from + prefix,
           (head.columns < e->columns ? head.columns : e->columns) * sizeof *e->so_far);
    return prefix + head.columns * sizeof *e->so_far;
}

size_t recording_load(struct recording *r, const char *from, size_t bytes)
{
    const size_t rewards = load_rewards(&r->returns, from, bytes);
    if (rewards == 0 || !job_is_actor_critic(r->job))
        return rewards;
    const size_t ppo = ppo_load(&r->ppo, from + rewards, bytes - rewards), prefix = rewards + ppo;
    const size_t window = ppo > 0 ? load_window(&r->returns, from + prefix, bytes - prefix) : 0;
    return window > 0 ? prefix + window : 0;
}
