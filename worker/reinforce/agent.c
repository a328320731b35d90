/* The agent: its loop, and the phases of an episode.
 *
 * The loop reads as a list: turn (wait, take messages in), launch what is due, go on to the next phase. Only
 * agent_advance moves from one phase to the next.
 *
 * The observers load a plug-in's code, so that the code's crash costs an observer. The agent loads the code
 * only where the agent steps environments itself: where the job has no observers, and for evaluations. What
 * the agent knows of the observers' environment is what the description says, and the agent trusts none of
 * it. The agent's thread. */
#include "worker/reinforce/agent.h"

#include "kernels/base/log.h"
#include "kernels/base/profile.h"
#include "kernels/base/thread.h"
#include "kernels/kernels.h"
#include "worker/net/segment.h"
#include "worker/reinforce/evaluator.h"
#include "worker/reinforce/job_open.h"
#include "worker/reinforce/saving.h"
#include "worker/reinforce/updates.h"
#include "worker/roster.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The phases of an episode, in order. Where updates overlap (updates.h), the phases from AGENT_LEARNING on
 * are of the episode before the one that was played. */
enum agent_phase {
    AGENT_GATHERING,  /* not every observer has described its environment */
    AGENT_PLAYING,    /* run_episode is out at every observer; steps come in */
    AGENT_LEARNING,   /* every row is in; the policy learns from rows */
    AGENT_EVALUATING, /* run_evaluation is out at observers, or has been answered by all */
    AGENT_REPORTING,  /* waits until the predecessor's record is in the logs, then reports this one's */
    AGENT_SAVING,     /* waits until a checkpoint that is due can be begun */
    AGENT_CLOSING,    /* waits for the last record's line and, if there is no hurry, the last checkpoint */
    AGENT_OVER,       /* FINISHED is reported; waits for the order to leave */
};

struct agent {
    struct worker *worker;
    const struct job *job; /* the worker's */
    struct segment outbox; /* never mapped: the agent lends nothing, and reads what observers lend */
    struct rpc *rpc;
    struct seats *seats;
    struct own_environments *own; /* NULL: the job has observers */

    /* After the first description: */
    char *text; /* the description; NULL: there is none yet, and nothing of what follows is open */
    struct environment_description world;
    struct backend *backend, *acting_backend; /* the policies'; NULL: they need none, or the same one */
    struct policy *policy;
    struct policy *acting;         /* the policy; or one that acts while that one learns */
    struct off_policy *off_policy; /* NULL: the algorithm learns from whole rollouts */
    struct updates *updates;       /* from whole rollouts; NULL: `off_policy` learns */
    struct recording *recording;
    struct evaluator *evaluator; /* NULL: the job has no evaluations */
    struct saving *saving;

    enum agent_phase phase;
    bool ready;       /* READY is reported */
    uint64_t episode; /* the newest one that was begun; progress.episode: that was learned from */
    struct progress progress;
    struct monotime episode_begin, learned_begin; /* of the newest one; of the one that is learned from */
    struct monotime serve_next;                   /* while learning: when the loop is served again */
    double loss, learn_s;                         /* of the last update; and how long it took */
    struct control_figures figures;               /* of the last update, where the algorithm is ppo or a2c */
    enum control_end end;
    struct error failure; /* the first one within a callback, which ends the job; STATUS_OK: none */
};

/* The environments of the whole job. */
static uint32_t environments_of(const struct job *job)
{
    const uint32_t observers = job_observers(job);
    return (observers > 0 ? observers : 1) * job->observers.environments;
}

/* ---- what depends on the environment ---- */

/* The most steps that a rollout can have. */
static enum status find_steps(const struct agent *agent, uint32_t *steps, struct error *error)
{
    const struct job *job = agent->job;
    *steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : agent->world.spec.steps_max;
    if (*steps > 0)
        return STATUS_OK;
    return error_set(
        error, STATUS_INVALID,
        "an episode of %s has no greatest length, and /rollout/mode \"episode\" keeps whole ones: "
        "expected \"steps\"",
        agent->world.name);
}

static struct policy_config policy_of(const struct agent *agent, uint32_t steps)
{
    const struct job *job = agent->job;
    struct policy_config policy = policy_config_of(job, &agent->world.spec);
    policy.environments = environments_of(job) * agent->world.spec.agents;
    policy.rows_max = policy.environments * steps;
    policy.threads = job->policy.has_threads ? job->policy.threads : processors_count();
    policy.one_size = job->coalesce.mode == JOB_COALESCE_BARRIER;
    return policy;
}

/* A policy of its own for acting; it has no rows to learn from. */
static enum status open_acting(struct agent *agent, struct policy_config config, struct error *error)
{
    config.threads = 1;
    const enum status status = policy_open_backend(&agent->acting_backend, &config, agent->job, error);
    return status == STATUS_OK ? policy_new(&agent->acting, &config, agent->acting_backend, error) : status;
}

static enum status open_policy(struct agent *agent, uint32_t steps, struct error *error)
{
    const struct policy_config config = policy_of(agent, steps);
    enum status status = policy_open_backend(&agent->backend, &config, agent->job, error);
    if (status == STATUS_OK)
        status = policy_new(&agent->policy, &config, agent->backend, error);
    agent->acting = agent->policy;
    return status == STATUS_OK && agent->job->algorithm.overlap > 0 ? open_acting(agent, config, error)
                                                                    : status;
}

static enum status open_updates(struct agent *agent, uint32_t steps, struct error *error)
{
    const struct policy_config config = policy_of(agent, steps);
    const struct updates_config updates = {.job = agent->job,
                                           .rpc = agent->rpc,
                                           .of = &config,
                                           .policy = agent->policy,
                                           .acting = agent->acting,
                                           .recording = agent->recording};
    return agent->off_policy == NULL ? updates_new(&agent->updates, &updates, error) : STATUS_OK;
}

static enum status open_recording(struct agent *agent, uint32_t steps, struct error *error)
{
    const struct environment_spec *spec = &agent->world.spec;
    const bool has_images = spec->observation.dtype == ENVIRONMENT_U8;
    const struct rollout_config config = {
        .environments = environments_of(agent->job),
        .agents = spec->agents,
        .steps_max = steps,
        .observation_bytes = environment_space_bytes(&spec->observation),
        .part_count = has_images ? spec->part_count : 0,
        .parts = spec->parts,
        .action_bytes = environment_space_bytes(&spec->action),
        .choices = spec->has_mask == 1 ? (uint32_t)environment_choices(spec) : 0,
        .dropout_words = policy_dropout_words(agent->policy),
        .clips_rewards = agent->job->environment.clip_reward,
        .bootstraps = job_is_stepwise(agent->job),
        .state_floats = policy_state_floats(agent->policy),
    };
    enum status status = STATUS_OK;
    if (job_is_off_policy(agent->job))
        status = off_policy_new(&agent->off_policy, agent->worker, spec, agent->policy, agent->acting, error);
    if (status == STATUS_OK)
        status =
            recording_new(&agent->recording, agent->job, &agent->world, &config, agent->off_policy, error);
    if (status != STATUS_OK)
        return status;
    seats_open(agent->seats, &agent->world, agent->recording, agent->acting);
    return STATUS_OK;
}

static enum status open_saving(struct agent *agent, struct error *error)
{
    const struct saving_config config = {.worker = agent->worker,
                                         .description = agent->text,
                                         .spec = &agent->world.spec,
                                         .policy = agent->policy,
                                         .recording = agent->recording,
                                         .learner = agent->off_policy,
                                         .seats = agent->seats,
                                         .own = agent->own};
    return saving_new(&agent->saving, &config, &agent->progress, error);
}

/* Opens all that depends on the environment. */
static enum status open_world(struct agent *agent, struct error *error)
{
    const struct job *job = agent->job;
    uint32_t steps;
    enum status status = find_steps(agent, &steps, error);
    if (status == STATUS_OK)
        status = open_policy(agent, steps, error);
    if (status == STATUS_OK)
        status = open_recording(agent, steps, error);
    if (status == STATUS_OK)
        status = open_updates(agent, steps, error);
    if (status == STATUS_OK)
        status = evaluator_new(&agent->evaluator, agent->worker, &agent->world.spec, error);
    if (status == STATUS_OK)
        status = open_saving(agent, error);
    if (status != STATUS_OK)
        return status;
    agent->episode = agent->progress.episode + recording_is_pending(agent->recording);
    agent->episode_begin = monotime_now();
    if (agent->progress.episode > 0 || job->checkpoint.has_every || job->checkpoint.has_every_s)
        recording_warn_of_loss(agent->recording, agent->world.can_save);
    return STATUS_OK;
}

/* Takes the first description. STATUS_INVALID: it is none; other errors are the job's. */
static enum status take_first(struct agent *agent, const char *text, size_t bytes, struct error *error)
{
    const enum status status = environment_description_read(&agent->world, text, bytes, error);
    if (status == STATUS_OK)
        agent->text = strndup(text, bytes);
    if (status == STATUS_OK && agent->text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
    if (status != STATUS_OK)
        environment_description_fini(&agent->world);
    return status;
}

/* Reports READY, once: a failure before it is the job's own, and no reason to start again. */
static void report_ready(struct agent *agent)
{
    if (!agent->ready)
        worker_report(CONTROL_READY, NULL, 0);
    agent->ready = true;
}

/* Opens the agent's own environments, and with them the world; nothing where the job has observers. */
static enum status open_own(struct agent *agent, struct error *error)
{
    char *text = NULL;
    if (job_observers(agent->job) > 0)
        return STATUS_OK;
    enum status status = own_environments_new(&agent->own, agent->worker, &text, error);
    if (status == STATUS_OK)
        status = take_first(agent, text, strlen(text), error);
    if (status == STATUS_OK)
        status = open_world(agent, error);
    if (status == STATUS_OK)
        report_ready(agent);
    cJSON_free(text);
    return status;
}

/* ---- messages ---- */

/* METHOD_DESCRIBE's handler. The first description opens policy, rollout and checkpoint; every further one
 * must be the same text. An environment that cannot be opened, or a second one, ends the job. */
static void agent_describe(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct agent *agent = context;
    const uint16_t worker = rpc_request_source(request);
    const struct wire_tensor *tensor = &message->tensors[0];
    const char *text = message->data[0];
    struct error why;
    if (message->tensor_count != 1 || message->lent != 0 || tensor->dtype != WIRE_U8 || tensor->rank != 1 ||
        seats_is_described(agent->seats, worker - 1u)) {
        rpc_reject(request, "a description: expected one, as a tensor of bytes");
        return;
    }
    const uint32_t bytes = tensor->dims[0];
    if (agent->text == NULL) {
        if (take_first(agent, text, bytes, &why) != STATUS_OK) {
            rpc_reject(request, "the description of the environment: %s", why.text);
            return;
        }
        if (open_world(agent, &why) != STATUS_OK)
            agent->failure = why;
    } else if (strlen(agent->text) != bytes || memcmp(agent->text, text, bytes) != 0) {
        error_set(
            &agent->failure, STATUS_INVALID,
            "observer %u has another environment than an observer before: it describes %.*s, expected %.*s",
            worker, (int)bytes > 150 ? 150 : (int)bytes, text, 150, agent->text);
    }
    if (agent->failure.status != STATUS_OK) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    report_ready(agent);
    seats_set_described(agent->seats, worker - 1u, true);
    rpc_reply(request, &(struct rpc_message){0});
}

/* Decodes a step. During an evaluation it may have as many rows as there are episodes. */
static enum status decode_step(const struct agent *agent, uint32_t seat, const struct rpc_message *message,
                               struct step *step, struct error *error)
{
    const uint32_t most = agent->phase == AGENT_EVALUATING ? agent->job->evaluation.episodes
                                                           : agent->job->observers.environments;
    if (!seats_is_described(agent->seats, seat))
        return error_set(error, STATUS_INVALID, "a step before the environment's description");
    return step_decode(step, message, &agent->world.spec, most, error);
}

/* Answers a step of an evaluation. Errors as evaluator_step. */
static enum status evaluate_step(struct agent *agent, uint32_t seat, struct rpc_request *request,
                                 const struct step *step, struct error *error)
{
    struct rpc_message answer;
    const enum status status = evaluator_step(agent->evaluator, seat, step, &answer, error);
    if (status == STATUS_OK)
        rpc_reply(request, &answer);
    return status;
}

/* METHOD_STEP's handler. A step is decoded here, and nothing behind this reads the message. A bad one costs
 * its sender the session and changes nothing. */
static void agent_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct agent *agent = context;
    const uint32_t seat = rpc_request_source(request) - 1u;
    struct step step;
    struct error why;
    if (agent->worker->hurry || agent->failure.status != STATUS_OK) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    enum status status = decode_step(agent, seat, message, &step, &why);
    if (status == STATUS_OK && agent->phase == AGENT_EVALUATING)
        status = evaluate_step(agent, seat, request, &step, &why);
    else if (status == STATUS_OK && (agent->phase != AGENT_PLAYING || step.episode != agent->episode))
        status = error_set(&why, STATUS_INVALID, "step of episode %llu: expected the running episode, %llu",
                           (unsigned long long)step.episode, (unsigned long long)agent->episode);
    else if (status == STATUS_OK)
        status = seats_step(agent->seats, seat, request, &step, &why);
    if (status == STATUS_INVALID) {
        rpc_reject(request, "%s", why.text);
    } else if (status != STATUS_OK) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        agent->failure = why;
    }
}

static const struct rpc_method methods[] = {
    {.method = METHOD_DESCRIBE,
     .callers = WIRE_ROLE_OBSERVER,
     .any_tensors = true,
     .handler = agent_describe},
    {.method = METHOD_STEP, .callers = WIRE_ROLE_OBSERVER, .any_tensors = true, .handler = agent_step},
};

static void observer_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct agent *agent = context;
    seats_set_described(agent->seats, worker - 1u, false);
    if (why == STATUS_INVALID)
        log_warning("observer %u left: %s", worker, text);
}

/* ---- opening ---- */

static enum status open_rpc(struct agent *agent, struct error *error)
{
    const struct job *job = agent->job;
    const uint32_t observers = job_observers(job);
    const struct rpc_config config = {.pending_max = observers + 1,
                                      .incoming_max = 2 * observers * job->observers.groups + 16,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = agent,
                                      .left = observer_left,
                                      .outbox = roster_of(job).segments ? &agent->outbox : NULL};
    return worker_open_rpc(agent->worker, &config, &agent->rpc, error);
}

/* Opens all that does not depend on the environment, up to the bound socket. agent_close also follows a
 * failure. */
static enum status agent_open(struct agent *agent, struct worker *worker, struct error *error)
{
    *agent = (struct agent){.worker = worker, .job = &worker->job, .progress.evaluated = (double)NAN};
    enum status status = seats_new(&agent->seats, worker, &agent->failure, error);
    if (status == STATUS_OK)
        status = open_rpc(agent, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, agent->rpc);
    return status;
}

static void agent_close(struct agent *agent)
{
    enum { LINGER_MS = 200 };
    if (agent->seats != NULL)
        seats_clear(agent->seats);
    saving_free(agent->saving);
    off_policy_free(agent->off_policy); /* its thread watches the rpc, and so does that of updates */
    updates_free(agent->updates);
    rpc_free(agent->rpc, "the job is over", LINGER_MS);
    agent->worker->rpc = NULL;
    evaluator_free(agent->evaluator);
    recording_free(agent->recording);
    if (agent->acting != agent->policy)
        policy_free(agent->acting);
    policy_free(agent->policy);
    backend_close(agent->acting_backend);
    backend_close(agent->backend);
    environment_description_fini(&agent->world);
    free(agent->text);
    own_environments_free(agent->own);
    seats_free(agent->seats);
}

/* Serves sockets, orders and the beat within a long computation. A socket that fails here fails the
 * loop's next turn too. */
static void serve_during_work(void *context)
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
    const uint64_t episode = ++agent->episode;
    agent->episode_begin = monotime_now();
    recording_begin(agent->recording, episode);
    const enum status status = seats_play(agent->seats, episode, error);
    if (status != STATUS_OK)
        return status;
    agent->phase = AGENT_PLAYING;
    return agent->own != NULL ? own_environments_begin(agent->own, agent->recording, episode, error)
                              : STATUS_OK;
}

/* The episode is played. */
static void close_episode(struct agent *agent)
{
    struct control_episode played = {.episode = agent->episode};
    seats_report(agent->seats, &played);
    recording_close(agent->recording, &played);
}

/* The figures of what was learned, beside the means over episodes. */
static void add_figures(struct control_figures *figures, const struct control_figures *learned)
{
    const struct control_figures means = *figures;
    *figures = *learned;
    figures->ep_rew_mean = means.ep_rew_mean;
    figures->ep_len_mean = means.ep_len_mean;
}

static bool is_solved(const struct agent *agent)
{
    const struct job *job = agent->job;
    if (job->stop.has_evaluation_reward) /* NaN: there was none */
        return agent->progress.evaluated >= job->stop.evaluation_reward;
    return job->stop.has_running_reward && agent->progress.running_reward > job->stop.running_reward;
}

/* Environment steps learned from so far, of all environments. REINFORCE does not count them. */
static uint64_t steps_of(const struct agent *agent)
{
    return agent->off_policy != NULL ? off_policy_steps(agent->off_policy)
                                     : recording_ppo(agent->recording)->steps;
}

/* Whether the limit of steps or episodes in /stop is reached. */
static bool is_at_limit(const struct agent *agent)
{
    const struct job *job = agent->job;
    return job_is_stepwise(job) ? steps_of(agent) >= job->stop.steps
                                : job->stop.has_episodes && agent->progress.episode >= job->stop.episodes;
}

static void report_episode(struct agent *agent)
{
    struct progress *progress = &agent->progress;
    const bool is_stepwise = job_is_stepwise(agent->job);
    const double weight = agent->job->running_reward.weight;
    struct control_episode record;
    const bool is_new = recording_report(agent->recording, &record);
    record.loss = agent->loss;
    record.timing.episode_s = (double)monotime_us_between(agent->learned_begin, monotime_now()) * 1e-6;
    record.timing.learn_s = agent->learn_s;
    record.has_figures = is_stepwise;
    add_figures(&record.figures, &agent->figures);
    if (is_stepwise)
        progress->running_reward =
            isnan(record.figures.ep_rew_mean) ? record.reward : record.figures.ep_rew_mean;
    else if (is_new)
        progress->running_reward = weight * record.reward + (1 - weight) * progress->running_reward;
    record.running_reward = progress->running_reward;
    record.is_last = is_solved(agent) || is_at_limit(agent);
    worker_record(agent->worker, CONTROL_EPISODE, &record, control_episode_bytes(&record));
}

static bool is_over(struct agent *agent)
{
    if (is_solved(agent))
        agent->end = CONTROL_END_SOLVED;
    else if (is_at_limit(agent))
        agent->end = CONTROL_END_FINISHED;
    else if (agent->worker->drain || agent->worker->hurry)
        agent->end = CONTROL_END_STOPPED;
    else
        return false;
    return true;
}

static void report_finished(struct agent *agent)
{
    report_ready(agent);
    const bool by_evaluation = agent->job->stop.has_evaluation_reward;
    struct control_finished finished = {.end = agent->end,
                                        .reward = by_evaluation ? agent->progress.evaluated
                                                                : agent->progress.running_reward};
    worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    agent->phase = AGENT_OVER;
}

/* ---- the phases ---- */

/* The played episode is learned from. */
static void begin_learning(struct agent *agent)
{
    recording_learn(agent->recording);
    agent->learned_begin = agent->episode_begin;
}

static enum status begin_update(struct agent *agent, struct error *error)
{
    begin_learning(agent);
    agent->serve_next = monotime_now();
    return updates_begin(agent->updates, serve_during_work, agent, error);
}

/* Whether a rollout is learned from while the next one is played. */
static bool overlaps(const struct agent *agent)
{
    return agent->updates != NULL && agent->job->algorithm.overlap > 0;
}

/* Begins the next episode. With /algorithm/overlap, also begins the update from the rollout that was just
 * played. A job's last update runs beside no episode. */
static enum status go_on(struct agent *agent, struct error *error)
{
    const struct recording *recording = agent->recording;
    const bool is_pending = recording_is_pending(recording);
    const uint64_t pending = is_pending ? rollout_rows(recording_rollout(recording)) : 0;
    const bool plays = !overlaps(agent) || steps_of(agent) + pending < agent->job->stop.steps;
    enum status status = STATUS_OK;
    if (overlaps(agent))
        status = updates_share(agent->updates, error);
    if (status == STATUS_OK && overlaps(agent) && is_pending)
        status = begin_update(agent, error);
    if (status == STATUS_OK && plays)
        return play_episode(agent, error);
    agent->phase = AGENT_LEARNING;
    return status;
}

static enum status after_gathering(struct agent *agent, struct error *error)
{
    if (agent->worker->drain || agent->worker->hurry) {
        agent->end = CONTROL_END_STOPPED;
        report_finished(agent);
        return STATUS_OK;
    }
    if (!seats_are_described(agent->seats))
        return STATUS_AGAIN;
    if (agent->progress.episode == 0 || !is_over(agent))
        return go_on(agent, error);
    agent->phase = AGENT_CLOSING; /* resumed, with nothing left to do */
    return STATUS_OK;
}

/* In a hurry: the running episode has no record. */
static enum status abandon(struct agent *agent)
{
    agent->end = CONTROL_END_STOPPED;
    agent->phase = AGENT_CLOSING;
    return STATUS_OK;
}

/* Asks the seat's observer for its share of the evaluation, if it has one. */
static enum status call_for_share(void *context, uint32_t seat, struct error *error)
{
    struct agent *agent = context;
    struct rpc_message message;
    return evaluator_begin_share(agent->evaluator, seat, &message)
               ? seats_call(agent->seats, seat, METHOD_RUN_EVALUATION, &message, evaluator_end_share,
                            agent->evaluator, error)
               : STATUS_OK;
}

/* STATUS_AGAIN: an observer, or the agent itself, plays still. STATUS_SHUTDOWN: an order to hurry has cut it
 * short. */
static enum status await_players(struct agent *agent, struct error *error)
{
    if (agent->own != NULL)
        return own_environments_await(agent->own);
    return seats_await(agent->seats, agent->phase == AGENT_EVALUATING ? call_for_share : NULL, agent, error);
}

static enum status after_playing(struct agent *agent, struct error *error)
{
    const enum status status = await_players(agent, error);
    if (status == STATUS_SHUTDOWN)
        return abandon(agent);
    if (status != STATUS_OK)
        return status;
    close_episode(agent);
    agent->phase = AGENT_LEARNING;
    return STATUS_OK;
}

/* Whether an evaluation is due: every /evaluation/every episodes, and at the limit of /stop. */
static bool needs_evaluation(const struct agent *agent)
{
    const struct job *job = agent->job;
    return job->evaluation.has_every &&
           (agent->progress.episode % job->evaluation.every == 0 || is_at_limit(agent));
}

static enum status begin_evaluation(struct agent *agent, struct error *error)
{
    agent->phase = AGENT_EVALUATING;
    if (agent->off_policy != NULL)
        off_policy_exploit(agent->off_policy);
    const enum status status =
        evaluator_begin(agent->evaluator, agent->policy, serve_during_work, agent, error);
    return status == STATUS_OK ? seats_ask_all(agent->seats, call_for_share, agent, error) : status;
}

/* The figures of what was learned. STATUS_AGAIN: learning goes on. */
static enum status end_learning(struct agent *agent, struct error *error)
{
    if (agent->off_policy == NULL)
        return updates_end(agent->updates, &agent->loss, &agent->learn_s, &agent->figures, error);
    if (off_policy_is_learning(agent->off_policy))
        return STATUS_AGAIN;
    begin_learning(agent);
    agent->learn_s = off_policy_report(agent->off_policy, &agent->figures);
    agent->loss = agent->figures.loss;
    return STATUS_OK;
}

static enum status after_learning(struct agent *agent, struct error *error)
{
    enum status status = STATUS_OK;
    if (agent->updates != NULL && !updates_are_under_way(agent->updates)) {
        if (overlaps(agent)) /* the first rollout was just played */
            return go_on(agent, error);
        status = begin_update(agent, error);
    }
    if (status == STATUS_OK)
        status = end_learning(agent, error);
    if (status == STATUS_AGAIN && agent->worker->hurry)
        return abandon(agent);
    if (status != STATUS_OK)
        return status;
    agent->progress.episode++;
    agent->phase = AGENT_REPORTING;
    if (needs_evaluation(agent))
        status = begin_evaluation(agent, error);
    return status == STATUS_SHUTDOWN ? abandon(agent) : status;
}

static enum status after_evaluating(struct agent *agent, struct error *error)
{
    const enum status status = await_players(agent, error);
    if (status == STATUS_SHUTDOWN)
        return abandon(agent);
    if (status != STATUS_OK)
        return status;
    agent->figures.evaluation = evaluator_end(agent->evaluator);
    agent->figures.has_evaluation = true;
    agent->progress.evaluated = agent->figures.evaluation.mean_reward;
    agent->progress.evaluated_at = agent->progress.episode;
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
    const bool over = is_over(agent), stopped = agent->end == CONTROL_END_STOPPED;
    const enum status status = saving_begin(agent->saving, &agent->progress, over, stopped, error);
    if (status != STATUS_OK)
        return status;
    if (!over)
        return go_on(agent, error);
    agent->phase = AGENT_CLOSING;
    return STATUS_OK;
}

static enum status after_closing(struct agent *agent, struct error *error)
{
    (void)error;
    const bool saved = saving_is_idle(agent->saving);
    if (worker_logs_lag(agent->worker, 0) || (!saved && !agent->worker->hurry))
        return STATUS_AGAIN;
    report_finished(agent);
    return STATUS_OK;
}

/* Goes through the phases until one has to wait. */
static enum status agent_advance(struct agent *agent, struct error *error)
{
    static enum status (*const after[])(struct agent *, struct error *) = {
        [AGENT_GATHERING] = after_gathering, [AGENT_PLAYING] = after_playing,
        [AGENT_LEARNING] = after_learning,   [AGENT_EVALUATING] = after_evaluating,
        [AGENT_REPORTING] = after_reporting, [AGENT_SAVING] = after_saving,
        [AGENT_CLOSING] = after_closing,
    };
    enum status status = STATUS_OK;
    while (status == STATUS_OK && agent->phase != AGENT_OVER)
        status = after[agent->phase](agent, error);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

/* When the loop has something to do beside messages. */
static struct monotime next_turn(const struct agent *agent)
{
    if (agent->own != NULL && agent->phase == AGENT_PLAYING && !own_environments_wait(agent->own))
        return (struct monotime){0};
    return seats_due(agent->seats);
}

/* Launches what is due, behind what the learner has to take in before. */
static enum status launch(struct agent *agent, struct error *error)
{
    enum status status = agent->off_policy != NULL ? off_policy_advance(agent->off_policy, error) : STATUS_OK;
    if (status == STATUS_OK && agent->off_policy != NULL && agent->own == NULL &&
        agent->phase == AGENT_PLAYING) {
        status =
            recording_take(agent->recording, seats_recorded(agent->seats), serve_during_work, agent, error);
        seats_allow(agent->seats, recording_horizon(agent->recording));
    }
    if (status == STATUS_OK)
        seats_launch(agent->seats);
    return status;
}

/* One turn of the loop. */
static enum status agent_turn(struct agent *agent, struct error *error)
{
    const struct control_start *self = &agent->worker->self;
    enum status status = rpc_turn(agent->rpc, next_turn(agent));
    if (status != STATUS_OK)
        return error_set(error, status, "the agent's socket at %s.%u failed", self->address, self->worker);
    if (agent->failure.status == STATUS_OK)
        status = launch(agent, error);
    if (status != STATUS_OK)
        return status;
    if (agent->own != NULL && agent->phase == AGENT_PLAYING && agent->failure.status == STATUS_OK)
        status = own_environments_play(agent->own, agent->recording, agent->acting, serve_during_work, agent,
                                       error);
    if (status == STATUS_OK && agent->failure.status != STATUS_OK) {
        *error = agent->failure;
        return error->status;
    }
    if (status == STATUS_OK && agent->text != NULL)
        status = saving_advance(agent->saving, error);
    return status == STATUS_OK ? agent_advance(agent, error) : status;
}

enum status agent_run(struct worker *worker, struct error *error)
{
    struct agent agent;
    enum status status = agent_open(&agent, worker, error);
    if (status == STATUS_OK)
        status = worker_connect(worker, agent.rpc, error);
    if (status == STATUS_OK && !worker->leave)
        status = open_own(&agent, error);
    while (status == STATUS_OK && !worker->leave)
        status = agent_turn(&agent, error);
    agent_close(&agent);
    return status;
}
