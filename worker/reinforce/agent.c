/* The agent: gathers its observers, plays episodes, learns from them, reports. One thread.
 *
 * The loop reads as a list: turn (wait, take messages in), launch what is due, go on to what follows. An
 * episode passes through the phases of enum agent_phase; only agent_advance moves from one to the next. */
#include "worker/reinforce/agent.h"

#include "kernels/base/log.h"
#include "kernels/kernels.h"
#include "kernels/policy/mlp.h"
#include "worker/device.h"
#include "worker/model/policy.h"

#include <stdlib.h>
#include <string.h>

static const struct rpc_method methods[] = {
    {.method = METHOD_STEP,
     .callers = WIRE_ROLE_OBSERVER,
     .tensor_count = 4,
     .tensors = {{.dtype = WIRE_U32, .rank = 1},
                 {.dtype = WIRE_F32, .rank = 2, .dims = {0, 4}},
                 {.dtype = WIRE_F32, .rank = 1},
                 {.dtype = WIRE_U8, .rank = 1}},
     .handler = agent_step},
};

static void observer_joined(void *context, uint16_t worker)
{
    struct agent *agent = context;
    (void)worker;
    agent->joined++;
}

static void observer_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct agent *agent = context;
    agent->joined--;
    if (agent->phase != AGENT_OVER && !agent->worker->hurry)
        log_warning("observer %u left: %s: %s", worker, status_name(why), text);
}

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

/* ---- opening ---- */

static enum status open_memory(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    uint32_t observers = job->observers.count, environments = agent->environments;
    agent->seats = calloc(observers, sizeof *agent->seats);
    agent->returned = calloc(observers, sizeof(struct future *));
    agent->alive = calloc(environments, 1);
    agent->batch.row = calloc(environments, sizeof *agent->batch.row);
    agent->batch.environment = calloc(environments, sizeof *agent->batch.environment);
    agent->batch.step = calloc(environments, sizeof *agent->batch.step);
    agent->batch.actions = calloc(environments, 1);
    if (agent->seats == NULL || agent->returned == NULL || agent->alive == NULL || agent->batch.row == NULL ||
        agent->batch.environment == NULL || agent->batch.step == NULL || agent->batch.actions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", environments);
    for (uint32_t i = 0; i < observers; i++)
        agent->seats[i] = (struct agent_seat){
            .agent = agent, .worker = (uint16_t)(i + 1), .first = i * agent->per_observer};
    return STATUS_OK;
}

static enum status open_policy(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    uint32_t steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : agent->spec->steps_max;
    struct policy_config policy = {
        .shape = {.inputs = agent->spec->observation_size,
                  .hidden = job->policy.hidden,
                  .actions = agent->spec->action_count},
        .dropout = job->policy.dropout,
        .seed = job->seed,
        .adam = {.lr = job->optimizer.lr,
                 .beta1 = job->optimizer.beta1,
                 .beta2 = job->optimizer.beta2,
                 .epsilon = job->optimizer.epsilon},
        .environments = agent->environments,
        .rows_max = agent->environments * steps,
        .one_size = job->coalesce.mode == JOB_COALESCE_BARRIER,
    };
    enum status status = policy_new(&agent->policy, &policy, agent->backend, error);
    if (status != STATUS_OK)
        return status;
    return rollout_new(&agent->rollout, agent->environments, steps, agent->spec->observation_size,
                       mlp_mask_words(&policy.shape), error);
}

static enum status open_coalescer(struct agent *agent, struct error *error)
{
    static const enum coalescer_mode modes[] = {[JOB_COALESCE_OFF] = COALESCER_OFF,
                                                [JOB_COALESCE_BARRIER] = COALESCER_BARRIER,
                                                [JOB_COALESCE_DYNAMIC] = COALESCER_DYNAMIC};
    const struct job *job = &agent->worker->job;
    struct coalescer_config config = {.mode = modes[job->coalesce.mode],
                                      .slots_max = job->observers.count,
                                      .max_batch = job->coalesce.max_batch,
                                      .max_delay_us = job->coalesce.max_delay_us,
                                      .launch = agent_launch,
                                      .context = agent};
    if (coalescer_new(&agent->coalescer, &config) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the coalescer");
    return STATUS_OK;
}

static enum status open_rpc(struct agent *agent, struct error *error)
{
    struct worker *worker = agent->worker;
    const struct rpc_config config = {.pending_max = worker->job.observers.count,
                                      .incoming_max = 2 * worker->job.observers.count + 16,
                                      .rows_max = agent->per_observer,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = agent,
                                      .joined = observer_joined,
                                      .left = observer_left};
    return worker_open_rpc(worker, &config, &agent->rpc, error);
}

static enum status agent_open(struct agent *agent, struct worker *worker, struct error *error)
{
    const struct job *job = &worker->job;
    agent->worker = worker;
    agent->spec = environment_find(job->environment.name);
    if (agent->spec == NULL)
        return error_set(error, STATUS_NOT_FOUND, "no environment \"%s\"", job->environment.name);
    agent->per_observer = job->observers.environments;
    agent->environments = job->observers.count * agent->per_observer;
    agent->returns = (struct rollout_returns){
        .gamma = job->returns.gamma,
        .normalize = job->returns.normalize,
        .scale = job->loss.reduction == JOB_REDUCTION_SUM ? 1.0 : 1.0 / agent->environments};
    enum status status = open_memory(agent, error);
    if (status == STATUS_OK)
        status = device_open_gpu(&agent->backend, &worker->job, error);
    if (status == STATUS_OK)
        status = open_policy(agent, error);
    if (status == STATUS_OK)
        status = open_coalescer(agent, error);
    if (status == STATUS_OK)
        status = open_rpc(agent, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, agent->rpc);
    return status;
}

static void drop_request(void *context, void *request)
{
    (void)context;
    rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
}

static void agent_close(struct agent *agent)
{
    enum { LINGER_MS = 200 };
    if (agent->coalescer != NULL)
        coalescer_clear(agent->coalescer, drop_request);
    rpc_free(agent->rpc, "the job is over", LINGER_MS);
    agent->worker->rpc = NULL;
    coalescer_free(agent->coalescer);
    rollout_free(agent->rollout);
    policy_free(agent->policy);
    backend_close(agent->backend);
    free(agent->seats);
    free(agent->returned);
    free(agent->alive);
    free(agent->batch.row);
    free(agent->batch.environment);
    free(agent->batch.step);
    free(agent->batch.actions);
}

/* ---- one episode ---- */

static enum status call_observer(struct agent *agent, struct agent_seat *seat, struct error *error)
{
    const struct job *job = &agent->worker->job;
    uint64_t steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : 0;
    struct rpc_message message = {.args = {agent->episode, steps}};
    seat->next_step = 0;
    seat->waiting = false;
    enum status status = rpc_call_async(agent->rpc, seat->worker, METHOD_RUN_EPISODE, &message,
                                        MONOTIME_NEVER, &seat->called, error);
    if (status != STATUS_OK)
        return status;
    return future_then(seat->called, agent_returned, seat, &seat->returned);
}

static enum status play(struct agent *agent, struct error *error)
{
    uint32_t observers = agent->worker->job.observers.count;
    agent->episode++;
    agent->episode_begin = monotime_now();
    rollout_begin(agent->rollout, (uint32_t)agent->episode);
    coalescer_stats_clear(agent->coalescer);
    memset(agent->alive, 1, agent->environments);
    agent->live = agent->environments;
    coalescer_set_live(agent->coalescer, agent->live);
    for (uint32_t i = 0; i < observers; i++) {
        enum status status = call_observer(agent, &agent->seats[i], error);
        if (status != STATUS_OK)
            return status;
        agent->returned[i] = agent->seats[i].returned;
    }
    agent->phase = AGENT_PLAYING;
    return future_all(agent->rpc, agent->returned, observers, &agent->all);
}

static void release_futures(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->worker->job.observers.count; i++) {
        future_release(agent->seats[i].returned);
        future_release(agent->seats[i].called);
        agent->seats[i].returned = agent->seats[i].called = NULL;
    }
    future_release(agent->all);
    agent->all = NULL;
}

/* Says whose answer ended the episode badly, and how. */
static enum status blame(struct agent *agent, struct error *error)
{
    for (uint32_t i = 0; i < agent->worker->job.observers.count; i++) {
        enum status status = future_status(agent->seats[i].returned);
        if (status == STATUS_OK)
            continue;
        const char *text = future_text(agent->seats[i].called);
        return error_set(error, status, "observer %u, episode %llu: %s: %s", i + 1,
                         (unsigned long long)agent->episode, status_name(status),
                         text[0] != '\0' ? text : "its answer does not match its steps");
    }
    return STATUS_OK;
}

static void report(struct agent *agent)
{
    const struct job *job = &agent->worker->job;
    const struct coalescer_stats *stats = coalescer_stats(agent->coalescer);
    double reward = job->running_reward.of == JOB_OF_MIN ? rollout_reward_min(agent->rollout)
                                                         : rollout_reward_mean(agent->rollout);
    double weight = job->running_reward.weight;
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
    };
    worker_report(CONTROL_EPISODE, &record, sizeof record);
}

static bool enough(struct agent *agent)
{
    const struct job *job = &agent->worker->job;
    if (job->stop.has_running_reward && agent->running_reward > job->stop.running_reward)
        agent->end = CONTROL_END_SOLVED;
    else if (job->stop.has_episodes && agent->episode >= job->stop.episodes)
        agent->end = CONTROL_END_FINISHED;
    else if (agent->worker->drain || agent->worker->hurry)
        agent->end = CONTROL_END_STOPPED;
    else
        return false;
    return true;
}

static void finish(struct agent *agent)
{
    struct control_finished finished = {.end = agent->end, .running_reward = agent->running_reward};
    worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    agent->phase = AGENT_OVER;
}

/* ---- the phases ---- */

static enum status after_gathering(struct agent *agent, struct error *error)
{
    if (agent->worker->drain || agent->worker->hurry) {
        agent->end = CONTROL_END_STOPPED;
        finish(agent);
        return STATUS_OK;
    }
    return agent->joined == agent->worker->job.observers.count ? play(agent, error) : STATUS_AGAIN;
}

/* SHUTDOWN from an observer says that orders are on their way which have not come here yet: wait for them. */
static enum status after_playing(struct agent *agent, struct error *error)
{
    if (!future_done(agent->all))
        return STATUS_AGAIN;
    enum status status = blame(agent, error);
    if (status == STATUS_SHUTDOWN && !agent->worker->hurry)
        return STATUS_AGAIN;
    release_futures(agent);
    if (status != STATUS_OK && agent->worker->hurry) {
        coalescer_clear(agent->coalescer, drop_request);
        agent->episode--; /* abandoned: it is nobody's */
        agent->end = CONTROL_END_STOPPED;
        agent->phase = AGENT_CLOSING;
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    agent->phase = AGENT_LEARNING;
    return STATUS_OK;
}

static enum status after_learning(struct agent *agent, struct error *error)
{
    agent->serve_next = monotime_now();
    enum status status = learner_run(agent->policy, agent->rollout, &agent->returns, serve_while_learning,
                                     agent, &agent->learned, error);
    if (status == STATUS_OK)
        agent->phase = AGENT_REPORTING;
    return status;
}

static enum status after_reporting(struct agent *agent, struct error *error)
{
    if (agent->worker->logged + 1 < agent->episode)
        return STATUS_AGAIN;
    report(agent);
    worker_read_orders(agent->worker); /* an order to stop may wait behind busy turns */
    if (!enough(agent))
        return play(agent, error);
    agent->phase = AGENT_CLOSING;
    return STATUS_OK;
}

static enum status after_closing(struct agent *agent, struct error *error)
{
    (void)error;
    if (agent->worker->logged < agent->episode)
        return STATUS_AGAIN;
    finish(agent);
    return STATUS_OK;
}

static enum status after_over(struct agent *agent, struct error *error)
{
    (void)agent;
    (void)error;
    return STATUS_AGAIN;
}

/* Goes through as many phases as can be gone through now. */
static enum status agent_advance(struct agent *agent, struct error *error)
{
    static enum status (*const after[])(struct agent *, struct error *) = {
        [AGENT_GATHERING] = after_gathering, [AGENT_PLAYING] = after_playing,
        [AGENT_LEARNING] = after_learning,   [AGENT_REPORTING] = after_reporting,
        [AGENT_CLOSING] = after_closing,     [AGENT_OVER] = after_over,
    };
    enum status status;
    do
        status = after[agent->phase](agent, error);
    while (status == STATUS_OK);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

enum status agent_run(struct worker *worker, struct error *error)
{
    struct agent agent = {0};
    enum status status = agent_open(&agent, worker, error);
    if (status == STATUS_OK)
        status = worker_connect(worker, agent.rpc, error);
    if (status == STATUS_OK)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && !worker->leave) {
        status = rpc_turn(agent.rpc, coalescer_due(agent.coalescer));
        if (status != STATUS_OK) {
            error_set(error, status, "the agent's socket at %s.%u failed", worker->self.address,
                      worker->self.worker);
            break;
        }
        coalescer_run(agent.coalescer, monotime_now());
        if (agent.launch_error.status != STATUS_OK) {
            *error = agent.launch_error;
            status = error->status;
            break;
        }
        status = agent_advance(&agent, error);
    }
    agent_close(&agent);
    return status;
}
