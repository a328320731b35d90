/* The agent's loop and the phases of an episode.
 *
 * The loop reads as a list: turn (wait, take messages in), launch what is due, go on to the next phase. Only
 * agent_advance moves from one phase to the next. */
#include "worker/reinforce/agent.h"

#include "kernels/base/profile.h"

#include <math.h>
#include <string.h>

/* Serves sockets, orders and the beat between two pieces of learning. A socket that fails here fails the
 * loop's next turn too. */
static void serve_while_learning(void *context)
{
    enum { SERVE_EVERY_US = 10000 };
    struct agent *agent = context;
    const struct monotime now = monotime_now();
    if (monotime_before(now, agent->serve_next))
        return;
    rpc_turn(agent->rpc, now);
    agent->serve_next = monotime_add_us(now, SERVE_EVERY_US);
}

/* ---- one episode ---- */

static enum status play_episode(struct agent *agent, struct error *error)
{
    uint32_t observers = job_observers(&agent->worker->job);
    agent->episode++;
    agent->episode_begin = monotime_now();
    rollout_begin(agent->rollout, (uint32_t)agent->episode);
    memset(&agent->stats, 0, sizeof agent->stats);
    episode_metrics_clear(&agent->metrics, 0, agent->rollout->columns);
    memset(agent->alive, 1, agent->environments);
    memset(agent->live, 0, agent->groups * sizeof *agent->live);
    for (uint32_t i = 0; i < observers * agent->groups; i++) {
        agent->all[i].recorded = 0;
        agent->live[i % agent->groups] += agent->all[i].count;
    }
    agent_set_live(agent);
    agent->lost = 0;
    for (uint32_t i = 0; i < observers; i++) {
        enum status status = agent_call_observer(&agent->seats[i], error);
        if (status != STATUS_OK)
            return status;
    }
    agent->playing = observers;
    agent->phase = AGENT_PLAYING;
    return agent->own != NULL ? agent_own_begin(agent, error) : STATUS_OK;
}

static void release_futures(struct agent *agent)
{
    for (uint32_t i = 0; i < job_observers(&agent->worker->job); i++) {
        future_release(agent->seats[i].called);
        agent->seats[i].called = NULL;
    }
}

/* The first observer whose answer ended the episode badly, in *error; STATUS_OK: none did. */
static enum status find_failure(struct agent *agent, struct error *error)
{
    for (uint32_t i = 0; i < job_observers(&agent->worker->job); i++) {
        enum status status = agent->seats[i].returned;
        if (status == STATUS_OK)
            continue;
        const char *text = future_text(agent->seats[i].called);
        return error_set(error, status, "observer %u, episode %llu: %s: %s", i + 1,
                         (unsigned long long)agent->episode, status_name(status), text);
    }
    return STATUS_OK;
}

/* The episode's reward. False: it is none of its own, because no environment's episode has ended. */
static bool find_reward(struct agent *agent, double *reward)
{
    const struct job *job = &agent->worker->job;
    const bool least = job->running_reward.of == JOB_OF_MIN;
    if (job->rollout.begin == JOB_BEGIN_CONTINUE)
        return episode_returns_take(&agent->episode_returns, agent->rollout, least, reward) > 0;
    *reward = least ? rollout_reward_min(agent->rollout) : rollout_reward_mean(agent->rollout);
    return true;
}

/* The episode's launches and waits, by bucket: they add up over episodes. */
static void report_buckets(const struct coalescer_stats *stats, struct control_episode *record)
{
    uint64_t below = 0;
    _Static_assert((int)COALESCER_BATCH_BUCKETS == (int)CONTROL_BATCH_BUCKETS, "the same buckets");
    memcpy(record->timing.batches, stats->batches, sizeof record->timing.batches);
    for (unsigned i = 0; i < CONTROL_WAIT_BUCKETS; i++) {
        const bool is_last = i == CONTROL_WAIT_BUCKETS - 1;
        const uint64_t up_to =
            is_last ? stats->wait_us.count : histogram_up_to(&stats->wait_us, control_wait_limits_us[i]);
        record->timing.waits[i] = (uint32_t)(up_to - below);
        below = up_to;
    }
    record->timing.wait_s = (double)stats->wait_us.sum * 1e-6;
}

static void report_episode(struct agent *agent)
{
    const struct job *job = &agent->worker->job;
    const struct coalescer_stats *stats = &agent->stats;
    const bool is_actor_critic = agent_is_actor_critic(agent);
    double reward, weight = job->running_reward.weight;
    const bool is_new = find_reward(agent, &reward);
    if (is_actor_critic)
        agent->running_reward = agent->ppo.recent.ended > 0 ? agent->figures.ep_rew_mean : reward;
    else if (is_new)
        agent->running_reward = weight * reward + (1 - weight) * agent->running_reward;
    struct control_episode record = {
        .episode = agent->episode,
        .reward = reward,
        .running_reward = agent->running_reward,
        .loss = agent->learned.loss,
        .env_steps = rollout_rows(agent->rollout),
        .timing = {.episode_s = (double)monotime_us_between(agent->episode_begin, monotime_now()) * 1e-6,
                   .learn_s = agent->learned.seconds,
                   .launches = stats->launches,
                   .requests = stats->requests,
                   .batch_mean = stats->launches > 0 ? (double)stats->rows / (double)stats->launches : 0,
                   .batch_max = stats->batch_max,
                   .wait_us_p50 = (double)histogram_percentile(&stats->wait_us, 0.50),
                   .wait_us_p99 = (double)histogram_percentile(&stats->wait_us, 0.99)},
        .has_ppo = is_actor_critic,
        .ppo = agent->figures,
    };
    report_buckets(stats, &record);
    episode_metrics_mean(&agent->metrics, 0, agent->rollout->columns, &record.metrics);
    worker_record(agent->worker, CONTROL_EPISODE, &record, control_episode_bytes(&record));
}

static bool is_solved(const struct agent *agent)
{
    const struct job *job = &agent->worker->job;
    if (job->stop.has_evaluation_reward) /* NaN: there was none */
        return agent->evaluated >= job->stop.evaluation_reward;
    return job->stop.has_running_reward && agent->running_reward > job->stop.running_reward;
}

static bool is_over(struct agent *agent)
{
    const struct job *job = &agent->worker->job;
    if (is_solved(agent))
        agent->end = CONTROL_END_SOLVED;
    else if (agent_is_actor_critic(agent) ? agent->ppo.steps >= job->stop.steps
                                          : job->stop.has_episodes && agent->episode >= job->stop.episodes)
        agent->end = CONTROL_END_FINISHED;
    else if (agent->worker->drain || agent->worker->hurry)
        agent->end = CONTROL_END_STOPPED;
    else
        return false;
    return true;
}

static void report_finished(struct agent *agent)
{
    agent_report_ready(agent);
    const bool by_evaluation = agent->worker->job.stop.has_evaluation_reward;
    struct control_finished finished = {.end = agent->end,
                                        .reward = by_evaluation ? agent->evaluated : agent->running_reward};
    worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    agent->phase = AGENT_OVER;
}

/* ---- the phases ---- */

static enum status after_gathering(struct agent *agent, struct error *error)
{
    if (agent->worker->drain || agent->worker->hurry) {
        agent->end = CONTROL_END_STOPPED;
        report_finished(agent);
        return STATUS_OK;
    }
    if (agent->described < job_observers(&agent->worker->job))
        return STATUS_AGAIN;
    if (agent->episode == 0 || !is_over(agent))
        return play_episode(agent, error);
    agent->phase = AGENT_CLOSING; /* resumed, with nothing left to do */
    return STATUS_OK;
}

/* In a hurry: the running episode has no record. */
static enum status abandon(struct agent *agent)
{
    agent->episode--;
    agent->end = CONTROL_END_STOPPED;
    agent->phase = AGENT_CLOSING;
    return STATUS_OK;
}

/* STATUS_AGAIN: an observer, or the agent itself, plays still. STATUS_SHUTDOWN: an order to hurry has cut it
 * short. One that has reached an observer, and not yet this process, is waited for. */
static enum status await_players(struct agent *agent, struct error *error)
{
    enum status status = agent->worker->hurry ? STATUS_OK : agent_call_successors(agent, error);
    if (status != STATUS_OK)
        return status;
    if (agent->playing > (agent->worker->hurry ? agent->lost : 0) ||
        (agent->own != NULL && !agent_own_is_over(agent)))
        return STATUS_AGAIN;
    const bool is_cut = agent->lost > 0 || agent_own_is_cut(agent); /* only in a hurry */
    status = is_cut ? STATUS_SHUTDOWN : find_failure(agent, error);
    if (status == STATUS_SHUTDOWN && !agent->worker->hurry)
        return STATUS_AGAIN;
    release_futures(agent);
    if (status == STATUS_OK || !agent->worker->hurry)
        return status;
    agent_drop_waiting(agent);
    agent_drop_parked(agent);
    return STATUS_SHUTDOWN;
}

static enum status after_playing(struct agent *agent, struct error *error)
{
    const enum status status = await_players(agent, error);
    if (status == STATUS_SHUTDOWN)
        return abandon(agent);
    if (status == STATUS_OK)
        agent->phase = AGENT_LEARNING;
    return status;
}

static enum status after_learning(struct agent *agent, struct error *error)
{
    const struct monotime begin = agent->serve_next = monotime_now();
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    enum status status;
    if (agent_is_actor_critic(agent)) {
        status = ppo_learn(&agent->ppo, agent->policy, agent->rollout, serve_while_learning, agent,
                           &agent->figures, error);
        agent->learned =
            (struct learner_result){.loss = agent->figures.loss,
                                    .seconds = (double)monotime_us_between(begin, monotime_now()) * 1e-6};
    } else {
        status = learner_run(agent->policy, agent->rollout, &agent->returns, serve_while_learning, agent,
                             &agent->learned, error);
    }
    profile_leave(before);
    agent->phase = AGENT_REPORTING;
    if (status == STATUS_OK && agent_evaluates(agent)) {
        agent->phase = AGENT_EVALUATING;
        status = agent_evaluate_begin(agent, serve_while_learning, error);
    }
    return status == STATUS_SHUTDOWN ? abandon(agent) : status;
}

static enum status after_evaluating(struct agent *agent, struct error *error)
{
    const enum status status = await_players(agent, error);
    if (status == STATUS_SHUTDOWN)
        return abandon(agent);
    if (status != STATUS_OK)
        return status;
    agent_evaluate_end(agent);
    agent->phase = AGENT_REPORTING;
    return STATUS_OK;
}

static enum status after_reporting(struct agent *agent, struct error *error)
{
    (void)error;
    if (worker_logs_lag(agent->worker, 0))
        return STATUS_AGAIN;
    report_episode(agent);
    worker_read_orders(agent->worker); /* an order to stop may wait behind busy turns */
    agent->phase = AGENT_SAVING;
    return STATUS_OK;
}

static enum status after_saving(struct agent *agent, struct error *error)
{
    const bool over = is_over(agent);
    const enum status status = agent_checkpoint_begin(agent, over, error);
    if (status != STATUS_OK)
        return status;
    if (checkpoint_saver_holds(&agent->saver))
        return STATUS_AGAIN;
    if (!over)
        return play_episode(agent, error);
    agent->phase = AGENT_CLOSING;
    return STATUS_OK;
}

static enum status after_closing(struct agent *agent, struct error *error)
{
    (void)error;
    const bool saved = agent->saver.state == CHECKPOINT_IDLE;
    if (worker_logs_lag(agent->worker, 0) || (!saved && !agent->worker->hurry))
        return STATUS_AGAIN;
    report_finished(agent);
    return STATUS_OK;
}

static enum status after_over(struct agent *agent, struct error *error)
{
    (void)agent;
    (void)error;
    return STATUS_AGAIN;
}

/* Goes through the phases until one has to wait. */
static enum status agent_advance(struct agent *agent, struct error *error)
{
    static enum status (*const after[])(struct agent *, struct error *) = {
        [AGENT_GATHERING] = after_gathering, [AGENT_PLAYING] = after_playing,
        [AGENT_LEARNING] = after_learning,   [AGENT_EVALUATING] = after_evaluating,
        [AGENT_REPORTING] = after_reporting, [AGENT_SAVING] = after_saving,
        [AGENT_CLOSING] = after_closing,     [AGENT_OVER] = after_over,
    };
    enum status status;
    do
        status = after[agent->phase](agent, error);
    while (status == STATUS_OK);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

static uint32_t waiting(const struct agent *agent)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < agent->groups; i++)
        sum += coalescer_waiting(agent->coalescers[i]);
    return (uint32_t)sum;
}

static struct monotime next_launch(const struct agent *agent)
{
    struct monotime next = MONOTIME_NEVER;
    if (agent->own != NULL && agent->phase == AGENT_PLAYING)
        return (struct monotime){0};
    for (uint32_t i = 0; i < agent->groups; i++)
        next = monotime_earliest(next, coalescer_due(agent->coalescers[i]));
    return next;
}

enum status agent_run(struct worker *worker, struct error *error)
{
    struct agent agent = {0};
    enum status status = agent_open(&agent, worker, error);
    if (status == STATUS_OK)
        status = worker_connect(worker, agent.rpc, error);
    if (status == STATUS_OK && !worker->leave)
        status = agent_own_open(&agent, error);
    while (status == STATUS_OK && !worker->leave) {
        status = rpc_turn(agent.rpc, next_launch(&agent));
        if (status != STATUS_OK) {
            error_set(error, status, "the agent's socket at %s.%u failed", worker->self.address,
                      worker->self.worker);
            break;
        }
        for (uint32_t i = 0; i < agent.groups; i++)
            coalescer_run(agent.coalescers[i], monotime_now());
        worker->queue = waiting(&agent);
        if (agent.own != NULL && agent.phase == AGENT_PLAYING)
            status = agent_own_play(&agent, error);
        if (status != STATUS_OK)
            break;
        if (agent.failure.status != STATUS_OK) {
            *error = agent.failure;
            status = error->status;
            break;
        }
        if (agent.text != NULL)
            status = agent_checkpoint_advance(&agent, error);
        if (status == STATUS_OK)
            status = agent_advance(&agent, error);
    }
    agent_close(&agent);
    return status;
}
