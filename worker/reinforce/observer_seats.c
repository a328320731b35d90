/* What the agent knows of each observer, and of each group of its environments: calls and their answers, the
 * order of steps, the requests that wait for actions, and how a successor plays again what its predecessor
 * has played. The agent's thread. */
#include "worker/reinforce/observer_seats.h"

#include "kernels/base/profile.h"
#include "kernels/base/region.h"
#include "worker/reinforce/coalescer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A group of a seat's environments in the running episode: its steps come one after the other. */
struct group {
    uint32_t seat, number;       /* of the seat's groups */
    uint32_t first, count;       /* its environments, in the numbering of the job */
    uint32_t next_step;          /* the step that its next request must be for */
    uint32_t recorded;           /* its steps in the rollout; above next_step while a successor plays again */
    struct rpc_request *request; /* which waits for actions; NULL: none */
    struct rpc_request *repeat;  /* a successor's, for the same step; NULL: none */
    bool waits;                  /* the request is not in line yet: its step is not below the horizon */
    struct step step;            /* the request's */
};

struct seat {
    struct seats *seats;
    bool described;     /* its session has begun, and the environment is described */
    bool played;        /* it has answered an episode to this agent */
    bool fresh;         /* its session has played no episode: its environments are nowhere yet */
    bool asked;         /* and has not answered */
    bool lost;          /* its session has ended: the next one is to be asked */
    char *states;       /* (state_bytes) its environments' after the last episode that it answered */
    size_t state_bytes; /* 0: they save none, or there was no such episode */
    struct future *called;
    enum status returned; /* the answer's status */
    enum wire_method method;
    seats_answer *answer;
    void *context; /* of `answer` */
};

struct seats {
    struct region region;
    struct worker *worker;
    const struct job *job;
    struct error *failure;
    const struct environment_description *world;
    struct policy *policy;
    struct recording *recording;
    struct rollout *rollout; /* the recording's */
    uint32_t count;          /* of seats */
    uint32_t environments_per_seat, groups_per_seat;
    uint32_t described, lost; /* seats that are */
    uint32_t playing;         /* seats that are asked */
    uint64_t episode;         /* the running one */
    struct seat *seats;       /* (count) */
    struct group *groups;     /* (count, groups_per_seat) */
    uint32_t horizon;         /* steps from here on wait until the learner has taken those before */
    uint32_t *alive_count;    /* (groups_per_seat) environments whose episode goes on, by group number */
    uint32_t *waiting_rows;   /* (groups_per_seat) rows of requests that are not in line yet, likewise */
    uint8_t *alive;           /* (environments) */
    /* One for each group number, shared by all seats. A group stands for its waiting request. */
    struct coalescer **coalescers; /* (groups_per_seat) */
    struct coalescer_stats stats;  /* of the running episode */
};

static bool has_steps(const struct seats *s)
{
    return s->job->rollout.mode == JOB_ROLLOUT_STEPS;
}

static bool continues(const struct seats *s)
{
    return s->job->rollout.begin == JOB_BEGIN_CONTINUE;
}

/* The groups of a seat. */
static struct group *groups_of(const struct seats *s, uint32_t seat)
{
    return s->groups + (size_t)seat * s->groups_per_seat;
}

/* ---- opening ---- */

static coalescer_launch launch;

static enum status open_coalescers(struct seats *s)
{
    static const enum coalescer_mode modes[] = {[JOB_COALESCE_OFF] = COALESCER_OFF,
                                                [JOB_COALESCE_BARRIER] = COALESCER_BARRIER,
                                                [JOB_COALESCE_DYNAMIC] = COALESCER_DYNAMIC};
    const struct coalescer_config config = {.mode = modes[s->job->coalesce.mode],
                                            .slots_max = s->count,
                                            .max_batch = s->job->coalesce.max_batch,
                                            .max_delay_us = s->job->coalesce.max_delay_us,
                                            .launch = launch,
                                            .context = s,
                                            .stats = &s->stats};
    s->coalescers = region_take(&s->region, s->groups_per_seat, sizeof(struct coalescer *));
    enum status status = s->coalescers != NULL ? STATUS_OK : STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < s->groups_per_seat && status == STATUS_OK; i++)
        status = coalescer_new(&s->coalescers[i], &config);
    return status;
}

enum status seats_new(struct seats **out, struct worker *worker, struct error *failure, struct error *error)
{
    const struct job *job = &worker->job;
    const uint32_t count = job_observers(job);
    const uint32_t environments = count * job->observers.environments;
    struct seats *s = *out = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u observers", count);
    *s = (struct seats){.worker = worker,
                        .job = job,
                        .failure = failure,
                        .count = count,
                        .environments_per_seat = job->observers.environments,
                        .groups_per_seat = job->observers.groups};
    s->seats = region_take(&s->region, count, sizeof *s->seats);
    s->groups = region_take(&s->region, count, s->groups_per_seat * sizeof *s->groups);
    s->alive = region_take(&s->region, environments, 1);
    s->alive_count = region_take(&s->region, s->groups_per_seat, sizeof *s->alive_count);
    s->waiting_rows = region_take(&s->region, s->groups_per_seat, sizeof *s->waiting_rows);
    if (s->region.failed || open_coalescers(s) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", environments);
    for (uint32_t i = 0; i < count; i++)
        s->seats[i].seats = s;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t number = 0; number < s->groups_per_seat; number++) {
            const uint32_t begin = job_group_begin(job, number);
            groups_of(s, i)[number] = (struct group){.seat = i,
                                                     .number = number,
                                                     .first = i * s->environments_per_seat + begin,
                                                     .count = job_group_begin(job, number + 1) - begin};
        }
    return STATUS_OK;
}

void seats_open(struct seats *s, const struct environment_description *world, struct recording *recording,
                struct policy *policy)
{
    s->world = world;
    s->policy = policy;
    s->recording = recording;
    s->rollout = recording_rollout(recording);
}

void seats_free(struct seats *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->seats != NULL && i < s->count; i++)
        free(s->seats[i].states);
    for (uint32_t i = 0; s->coalescers != NULL && i < s->groups_per_seat; i++)
        coalescer_free(s->coalescers[i]);
    region_free(&s->region);
    free(s);
}

/* ---- sessions ---- */

void seats_set_described(struct seats *s, uint32_t index, bool is_described)
{
    struct seat *seat = &s->seats[index];
    s->described += is_described - seat->described;
    seat->described = is_described;
    seat->fresh = seat->fresh || is_described;
}

bool seats_is_described(const struct seats *s, uint32_t seat)
{
    return s->seats[seat].described;
}

bool seats_are_described(const struct seats *s)
{
    return s->described == s->count;
}

/* ---- requests that wait ---- */

static struct coalescer *coalescer_of(const struct seats *s, const struct group *group)
{
    return s->coalescers[group->number];
}

/* Tells the coalescer of these groups how many rows can come: those that live and do not wait for the
 * learner.
 */
static void set_live(const struct seats *s, uint32_t number)
{
    coalescer_set_live(s->coalescers[number],
                       s->alive_count[number] * s->world->spec.agents - s->waiting_rows[number]);
}

/* Whether the group's request waits for the learner, and not in line. */
static void set_waits(const struct seats *s, struct group *group, bool waits)
{
    if (group->waits == waits)
        return;
    group->waits = waits;
    s->waiting_rows[group->number] += waits ? group->step.rows : -group->step.rows;
    set_live(s, group->number);
}

/* Answers a request with the actions of its recorded step. The closing step's answer is empty. */
static void reply(const struct seats *s, struct rpc_request *request, const struct step *step)
{
    struct rpc_message answer = {0};
    if (!rollout_is_closing(s->rollout, step))
        answer = (struct rpc_message){.tensor_count = 1,
                                      .tensors = {step_action_tensor(&s->world->spec, step->count)},
                                      .data = {rollout_actions(s->rollout, s->policy, step)}};
    rpc_reply(request, &answer);
}

/* Fails the requests of the group, if there are any. */
static void fail(struct group *group, enum status status, const char *why)
{
    if (group->repeat != NULL)
        rpc_fail(group->repeat, status, "%s", why);
    if (group->request != NULL)
        rpc_fail(group->request, status, "%s", why);
    group->request = group->repeat = NULL;
}

/* Takes the group's requests, whose observer is gone, out of the line. */
static void withdraw(struct seats *s, struct group *group)
{
    set_waits(s, group, false);
    coalescer_remove(coalescer_of(s, group), group);
    fail(group, STATUS_PEER_DIED, "the observer that sent it is gone");
}

static void drop(void *context, void *group)
{
    (void)context;
    fail(group, STATUS_SHUTDOWN, "the job is ending");
}

static const struct group *group_at(const struct coalescer_slot *slots, size_t i)
{
    return slots[i].request;
}

/* Has the policy act on the batch: in one pass, or in one for each stretch of equal steps. */
static enum status act(struct seats *s, const struct coalescer_slot *slots, size_t count)
{
    const bool mixes = !job_is_off_policy(s->job);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        const uint32_t step = group_at(slots, i)->step.number;
        rollout_gather(s->rollout, &group_at(slots, i)->step);
        if (i + 1 == count || (!mixes && group_at(slots, i + 1)->step.number != step))
            status = recording_act(s->recording, s->policy, s->failure);
    }
    return status;
}

/* The coalescer's launch: the policy acts on the batch, then every request's reply. */
static void launch(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows)
{
    struct seats *s = context;
    const enum status status = act(s, slots, count);
    s->worker->work += status == STATUS_OK ? rows : 0;
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    for (size_t i = 0; i < count; i++) {
        struct group *group = slots[i].request;
        if (status != STATUS_OK) {
            fail(group, STATUS_SHUTDOWN, "the job is ending");
            continue;
        }
        if (group->repeat != NULL) /* first: the step lies in the message of `request` */
            reply(s, group->repeat, &group->step);
        reply(s, group->request, &group->step);
        group->request = group->repeat = NULL;
    }
    profile_leave(before);
}

void seats_launch(struct seats *s)
{
    s->worker->queue = 0;
    for (uint32_t i = 0; i < s->groups_per_seat; i++) {
        coalescer_run(s->coalescers[i], monotime_now());
        s->worker->queue += (uint32_t)coalescer_waiting(s->coalescers[i]);
    }
}

uint32_t seats_recorded(const struct seats *s)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < s->count * s->groups_per_seat; i++)
        least = s->groups[i].recorded < least ? s->groups[i].recorded : least;
    return least;
}

/* Puts the group's request in line. Never STATUS_BUSY: the line has a slot for each of its groups. */
static void enter_line(const struct seats *s, struct group *group)
{
    set_waits(s, group, false);
    (void)coalescer_add(coalescer_of(s, group), group, group->step.rows, monotime_now());
}

void seats_allow(struct seats *s, uint32_t horizon)
{
    if (horizon == s->horizon)
        return;
    s->horizon = horizon;
    for (uint32_t i = 0; i < s->count * s->groups_per_seat; i++)
        if (s->groups[i].waits && s->groups[i].step.number < horizon)
            enter_line(s, &s->groups[i]);
}

struct monotime seats_due(const struct seats *s)
{
    struct monotime next = MONOTIME_NEVER;
    for (uint32_t i = 0; i < s->groups_per_seat; i++)
        next = monotime_earliest(next, coalescer_due(s->coalescers[i]));
    return next;
}

void seats_clear(struct seats *s)
{
    for (uint32_t i = 0; s->coalescers != NULL && i < s->groups_per_seat; i++)
        if (s->coalescers[i] != NULL)
            coalescer_clear(s->coalescers[i], drop);
    for (uint32_t i = 0; s->groups != NULL && i < s->count * s->groups_per_seat; i++)
        if (s->groups[i].waits)
            drop(s, &s->groups[i]);
}

void seats_report(const struct seats *s, struct control_episode *record)
{
    const struct coalescer_stats *stats = &s->stats;
    const double launches = (double)stats->launches;
    uint64_t below = 0;
    record->timing.launches = stats->launches;
    record->timing.requests = stats->requests;
    record->timing.batch_mean = launches > 0 ? (double)stats->rows / launches : 0;
    record->timing.batch_max = stats->batch_max;
    record->timing.wait_us_p50 = (double)coalescer_wait_us(stats, 0.50);
    record->timing.wait_us_p99 = (double)coalescer_wait_us(stats, 0.99);
    record->timing.wait_s = (double)stats->wait_us * 1e-6;
    _Static_assert((int)COALESCER_BATCH_BUCKETS == (int)CONTROL_BATCH_BUCKETS, "the same buckets");
    memcpy(record->timing.batches, stats->batches, sizeof record->timing.batches);
    for (unsigned i = 0; i < CONTROL_WAIT_BUCKETS; i++) { /* these add up over episodes */
        const bool is_last = i == CONTROL_WAIT_BUCKETS - 1;
        const uint64_t up_to =
            is_last ? stats->requests : coalescer_waits_up_to(stats, control_wait_limits_us[i]);
        record->timing.waits[i] = (uint32_t)(up_to - below);
        below = up_to;
    }
}

/* ---- who lives ---- */

/* The environment sends no rows any more in this episode. */
static void retire(struct seats *s, const struct group *group, uint32_t environment)
{
    s->alive_count[group->number] -= s->alive[environment];
    s->alive[environment] = 0;
}

/* Retires the group's environments without a row in the step: their episodes have ended. NULL: all. */
static void retire_absent(struct seats *s, const struct group *group, const struct step *step)
{
    const uint32_t count = step != NULL ? step->count : 0;
    uint32_t i = 0;
    if (count == group->count)
        return;
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        if (i < count && step->numbers[i] == e)
            i++;
        else
            retire(s, group, e);
    }
    set_live(s, group->number);
}

/* Forgets the group's rows from `step` on. Environments with fewer rows stay retired; the others live
 * again. */
static void forget_rows(struct seats *s, struct group *group, uint32_t step)
{
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        if (!rollout_truncate(s->rollout, e, step))
            continue;
        s->alive_count[group->number] += !s->alive[e];
        s->alive[e] = 1;
    }
    withdraw(s, group); /* the predecessor's */
    if (step < group->recorded)
        recording_diverge(s->recording, group->first, group->count);
    group->recorded = step;
    set_live(s, group->number);
}

/* ---- calls ---- */

/* The answer to a call. For rpc_call_then; arg: the seat. */
static void take_answer(struct future *future, void *arg)
{
    struct seat *seat = arg;
    struct seats *s = seat->seats;
    const uint32_t index = (uint32_t)(seat - s->seats);
    seat->returned = future_status(future);
    if (seat->returned == STATUS_OK &&
        seat->answer(seat->context, index, future_value(future)) != STATUS_OK) {
        rpc_reject_worker(s->worker->rpc, (uint16_t)(index + 1),
                          "its answer to %s is malformed, or does not fit its steps",
                          seat->method == METHOD_RUN_EPISODE ? "run_episode" : "run_evaluation");
        seat->returned = STATUS_PEER_DIED;
    }
    seat->lost = seat->returned == STATUS_PEER_DIED;
    seat->asked = seat->lost;
    if (seat->lost)
        s->lost++;
    else
        s->playing--;
}

enum status seats_call(struct seats *s, uint32_t index, enum wire_method method,
                       const struct rpc_message *message, seats_answer *answer, void *context,
                       struct error *error)
{
    struct seat *seat = &s->seats[index];
    enum status status = STATUS_OK;
    future_release(seat->called);
    seat->called = NULL;
    seat->method = method;
    seat->answer = answer;
    seat->context = context;
    s->playing += !seat->asked;
    seat->asked = true;
    seat->lost = !seat->described;
    if (!seat->lost)
        status = rpc_call_then(s->worker->rpc, (uint16_t)(index + 1), method, message, MONOTIME_NEVER,
                               take_answer, seat, &seat->called, error);
    if (status == STATUS_NOT_FOUND) { /* it is dead: the next turn ends its session */
        seat->lost = true;
        status = STATUS_OK;
    }
    s->lost += seat->lost;
    return status;
}

/* ---- a successor ---- */

/* The replayed step differs from its record. Discards the rest of the records of all groups of the seat: an
 * observer steps its groups in turn, and a barrier must not wait for one of them alone. */
static void end_record(struct seats *s, const struct group *group, uint32_t environment, const char *what)
{
    struct group *beside = groups_of(s, group->seat);
    char where[96];
    snprintf(where, sizeof where, "(another %s in step %u of episode %llu)", what, group->next_step,
             (unsigned long long)s->episode);
    recording_warn_of_course(s->recording, environment, where);
    for (uint32_t i = 0; i < s->groups_per_seat; i++, beside++)
        if (beside->next_step < beside->recorded)
            forget_rows(s, beside, beside->next_step);
}

/* Whether the step repeats a recorded one. One that comes out as another ends the record. */
static bool repeats(struct seats *s, const struct group *group, const struct step *step)
{
    uint32_t environment = group->first;
    if (group->next_step == group->recorded)
        return false;
    const char *what = rollout_compare(s->rollout, step, group->first, group->count, &environment);
    if (what != NULL)
        end_record(s, group, environment, what);
    return what == NULL;
}

/* The group's episodes are over. Records beyond their ends are forgotten, too. */
static void end_group(struct seats *s, const struct group *group)
{
    if (group->next_step < group->recorded)
        end_record(s, group, group->first, "end");
}

/* ---- the end of an episode ---- */

/* The bytes of the first `count` states of `bytes`; 0: there are not so many. */
static size_t states_of(const char *states, size_t bytes, uint32_t count)
{
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = 0;
        if (bytes - at >= sizeof length)
            memcpy(&length, states + at, sizeof length);
        if (bytes - at < sizeof length || bytes - at - sizeof length < length)
            return 0;
        at += sizeof length + length;
    }
    return at;
}

/* Keeps a copy of the seat's states, or none. */
static enum status keep_states(struct seats *s, uint32_t index, const void *states, size_t bytes,
                               struct error *error)
{
    struct seat *seat = &s->seats[index];
    free(seat->states);
    seat->states = bytes > 0 ? malloc(bytes) : NULL;
    seat->state_bytes = seat->states != NULL ? bytes : 0;
    if (seat->state_bytes < bytes)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the states of observer %u's environments",
                         index + 1);
    if (bytes > 0)
        memcpy(seat->states, states, bytes);
    return STATUS_OK;
}

/* Whether the seat's environment i has ended as its steps announced. */
static bool ends_well(const struct seats *s, uint32_t index, const struct step_end *end, uint32_t i)
{
    const uint32_t agents = end->last.agents, length = end->lengths[i];
    uint8_t all;
    const bool is_over = step_is_over(&end->last, i, &all);
    const bool ended = has_steps(s) ? length == s->rollout->config.steps_max : is_over;
    return ended && length > 0 &&
           length == s->rollout->lengths[(index * s->environments_per_seat + i) * agents] &&
           (all & ~ENVIRONMENT_STEP_FLAGS) == 0;
}

static enum status check_end(struct seats *s, uint32_t index, const struct rpc_message *m,
                             struct step_end *end)
{
    const struct group *groups = groups_of(s, index);
    for (uint32_t i = 0; i < s->groups_per_seat; i++) {
        if (!has_steps(s))
            end_group(s, &groups[i]);
        if (groups[i].request != NULL || groups[i].next_step != groups[i].recorded)
            return STATUS_INVALID;
    }
    if (step_end_decode(end, m, &s->world->spec, s->environments_per_seat) != STATUS_OK ||
        (end->has_states && (!continues(s) || states_of(end->states, end->state_bytes,
                                                        s->environments_per_seat) != end->state_bytes)))
        return STATUS_INVALID;
    for (uint32_t i = 0; i < s->environments_per_seat; i++)
        if (!ends_well(s, index, end, i))
            return STATUS_INVALID;
    return STATUS_OK;
}

/* The answer to run_episode: what the last step of each row earned, ended and reported. */
static enum status take_end(void *context, uint32_t index, const struct rpc_message *m)
{
    struct seats *s = context;
    struct step_end end;
    struct error why;
    if (check_end(s, index, m, &end) != STATUS_OK)
        return STATUS_INVALID;
    recording_end(s->recording, index * s->environments_per_seat, &end);
    for (uint32_t i = 0; i < s->groups_per_seat; i++)
        retire_absent(s, &groups_of(s, index)[i], NULL);
    s->seats[index].played = true;
    if (keep_states(s, index, end.states, end.state_bytes, &why) != STATUS_OK)
        *s->failure = why;
    return STATUS_OK;
}

/* ---- the begin of an episode ---- */

/* Writes into the request how the seat's environments begin. The seat keeps the states. False: they are
 * reset, though the job continues them, because a new observer has no saved state. */
static bool give_states(const struct seats *s, const struct seat *seat, struct rpc_message *m)
{
    const bool goes_on = continues(s) && s->episode > 1;
    m->args[RUN_BEGIN] = BEGIN_RESET;
    m->args[RUN_CLOSES] = s->rollout->config.bootstraps;
    if (goes_on && !seat->fresh)
        m->args[RUN_BEGIN] = BEGIN_CONTINUE;
    if (goes_on && seat->fresh && seat->state_bytes > 0) {
        m->args[RUN_BEGIN] = BEGIN_STATES;
        m->tensor_count = 1;
        m->tensors[0] =
            (struct wire_tensor){.dtype = WIRE_U8, .rank = 1, .dims = {(uint32_t)seat->state_bytes}};
        m->data[0] = seat->states;
    }
    return !goes_on || m->args[RUN_BEGIN] != BEGIN_RESET;
}

/* The unfinished episodes of the seat's environments are lost with its observer. */
static void lose_episodes(struct seats *s, uint32_t index)
{
    const bool was_added = index >= s->job->observers.count && !s->seats[index].played;
    if (!was_added)
        recording_warn_of_loss(s->recording, false);
    recording_abandon(s->recording, index * s->environments_per_seat, s->environments_per_seat);
}

/* Asks the seat's observer to play the running episode. */
static enum status call_to_play(struct seats *s, uint32_t index, struct error *error)
{
    struct seat *seat = &s->seats[index];
    struct group *groups = groups_of(s, index);
    struct rpc_message message = {
        .args = {[RUN_NUMBER] = s->episode, [RUN_STEPS] = has_steps(s) ? s->job->rollout.steps : 0}};
    const bool starts_over = !give_states(s, seat, &message);
    for (uint32_t i = 0; i < s->groups_per_seat; i++) {
        if (starts_over || (s->world->spec.limits & ENVIRONMENT_CANNOT_SEED) != 0)
            forget_rows(s, &groups[i], 0);
        groups[i].next_step = 0;
        if (groups[i].repeat != NULL)
            rpc_fail(groups[i].repeat, STATUS_PEER_DIED, "the observer that sent it is gone");
        groups[i].repeat = NULL;
    }
    recording_forget(s->recording, index * s->environments_per_seat,
                     s->environments_per_seat); /* the successor's steps bring them again */
    const enum status status = seats_call(s, index, METHOD_RUN_EPISODE, &message, take_end, s, error);
    if (status != STATUS_OK || seat->lost)
        return status;
    if (starts_over)
        lose_episodes(s, index);
    seat->fresh = false;
    return status;
}

/* NULL as `ask`: the running episode. */
static enum status ask_seat(struct seats *s, uint32_t index, seats_ask *ask, void *context,
                            struct error *error)
{
    return ask != NULL ? ask(context, index, error) : call_to_play(s, index, error);
}

enum status seats_ask_all(struct seats *s, seats_ask *ask, void *context, struct error *error)
{
    enum status status = STATUS_OK;
    s->playing = s->lost = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        s->seats[i].asked = s->seats[i].lost = false;
        s->seats[i].returned = STATUS_OK;
    }
    for (uint32_t i = 0; i < s->count && status == STATUS_OK; i++)
        status = ask_seat(s, i, ask, context, error);
    return status;
}

enum status seats_play(struct seats *s, uint64_t episode, struct error *error)
{
    s->episode = episode;
    s->horizon = recording_horizon(s->recording);
    s->stats = (struct coalescer_stats){0};
    memset(s->alive, 1, (size_t)s->count * s->environments_per_seat);
    memset(s->alive_count, 0, s->groups_per_seat * sizeof *s->alive_count);
    for (uint32_t i = 0; i < s->count * s->groups_per_seat; i++) {
        s->groups[i].recorded = 0;
        s->alive_count[i % s->groups_per_seat] += s->groups[i].count;
    }
    for (uint32_t number = 0; number < s->groups_per_seat; number++)
        set_live(s, number);
    return seats_ask_all(s, NULL, NULL, error);
}

/* Asks the successors of lost observers. */
static enum status ask_successors(struct seats *s, seats_ask *ask, void *context, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; s->lost > 0 && i < s->count && status == STATUS_OK; i++) {
        if (!s->seats[i].lost || !s->seats[i].described)
            continue;
        s->seats[i].lost = false;
        s->lost--;
        status = ask_seat(s, i, ask, context, error);
    }
    return status;
}

/* The first answer that was an error; STATUS_OK: none was. */
static enum status find_failure(const struct seats *s, struct error *error)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const enum status status = s->seats[i].returned;
        if (status != STATUS_OK)
            return error_set(error, status, "observer %u, episode %llu: %s: %s", i + 1,
                             (unsigned long long)s->episode, status_name(status),
                             future_text(s->seats[i].called));
    }
    return STATUS_OK;
}

enum status seats_await(struct seats *s, seats_ask *ask, void *context, struct error *error)
{
    const bool hurry = s->worker->hurry;
    enum status status = hurry ? STATUS_OK : ask_successors(s, ask, context, error);
    if (status != STATUS_OK)
        return status;
    if (s->playing > (hurry ? s->lost : 0))
        return STATUS_AGAIN;
    status = s->lost > 0 ? STATUS_SHUTDOWN : find_failure(s, error);
    if (status == STATUS_SHUTDOWN && !hurry) /* the order has reached an observer, and not yet this process */
        return STATUS_AGAIN;
    for (uint32_t i = 0; i < s->count; i++) {
        future_release(s->seats[i].called);
        s->seats[i].called = NULL;
    }
    if (status == STATUS_OK || !hurry)
        return status;
    seats_clear(s);
    return STATUS_SHUTDOWN;
}

/* ---- a step ---- */

/* Holds the step as a whole to the episode and to the group's earlier steps. */
static enum status check_order(const struct seats *s, const struct group *group, const struct step *step,
                               struct error *error)
{
    if (group->repeat != NULL || (group->request != NULL && group->next_step == group->recorded))
        return error_set(error, STATUS_INVALID, "step %u while step %u is not answered", step->number,
                         group->next_step - 1);
    const uint32_t steps = s->rollout->config.steps_max + s->rollout->config.bootstraps;
    if (step->number != group->next_step || (step->count > 0 && step->number >= steps))
        return error_set(error, STATUS_INVALID, "step %u: expected step %u, below %u", step->number,
                         group->next_step, steps);
    return STATUS_OK;
}

/* Holds the rows to the group's environments, in ascending order. */
static enum status check_rows(const struct seats *s, const struct group *group, const struct step *step,
                              struct error *error)
{
    const uint32_t end = group->first + group->count;
    uint32_t least = group->first;
    if (has_steps(s) && step->count != group->count)
        return error_set(error, STATUS_INVALID, "%u rows: expected one for each of %u environments",
                         step->count, group->count);
    for (uint32_t i = 0; i < step->count; i++) {
        const uint32_t environment = step->numbers[i];
        if (environment < least || environment >= end)
            return error_set(error, STATUS_INVALID,
                             "row %u is of environment %u: expected ascending environments, here %u to %u", i,
                             environment, least, end - 1);
        least = environment + 1;
    }
    return STATUS_OK;
}

/* The rows are of environments whose episode goes on. At step 0 no flag is allowed, except ABSENT
 * and FAILED if the rollout continues the one before. In the mode
 * episode an environment whose episode is over has no rows.
 */
static enum status check_flags(const struct seats *s, const struct step *step, struct error *error)
{
    const unsigned first = continues(s) ? ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED : 0;
    if (has_steps(s) && step->number > 0)
        return STATUS_OK;
    for (uint32_t i = 0; i < step->count; i++) {
        uint8_t all;
        const bool is_over = step_is_over(step, i, &all);
        if (!s->alive[step->numbers[i]])
            return error_set(error, STATUS_INVALID, "row %u is of environment %u, whose episode is over", i,
                             step->numbers[i]);
        if (step->number == 0 && (all & ~first) != 0)
            return error_set(error, STATUS_INVALID, "environment %u has flags %u at step 0: expected %u",
                             step->numbers[i], all, all & first);
        if (!has_steps(s) && is_over)
            return error_set(error, STATUS_INVALID,
                             "environment %u of step %u has flags %u, which end its episode: expected no row",
                             step->numbers[i], step->number, all);
    }
    return STATUS_OK;
}

/* Puts the step's rows into the rollout, and its request in line, where its group has a place. A step that
 * repeats a recorded one gets the recorded actions, as soon as these are known. */
static enum status take_step(struct seats *s, struct group *group, struct rpc_request *request,
                             const struct step *step, bool is_repeated, struct error *error)
{
    const enum status status = recording_step(s->recording, step, is_repeated, error);
    if (status != STATUS_OK)
        return status;
    group->next_step++;
    if (!is_repeated) {
        retire_absent(s, group, step);
        group->recorded = group->next_step;
    }
    if (is_repeated && group->request != NULL && group->next_step == group->recorded) {
        group->repeat = request;
    } else if (is_repeated || rollout_is_closing(s->rollout, step)) {
        reply(s, request, step);
    } else {
        group->request = request;
        group->step = *step;
        if (step->number < s->horizon)
            enter_line(s, group);
        else
            set_waits(s, group, true);
    }
    return STATUS_OK;
}

/* All environments of the group have ended, but others of its observer go on. Replies without actions. */
static enum status leave_group(struct seats *s, struct group *group, struct rpc_request *request,
                               struct error *error)
{
    if (has_steps(s))
        return error_set(error, STATUS_INVALID, "step %u has no rows: expected a row for each environment",
                         group->next_step);
    end_group(s, group);
    retire_absent(s, group, NULL);
    rpc_reply(request, &(struct rpc_message){0});
    return STATUS_OK;
}

enum status seats_step(struct seats *s, uint32_t seat, struct rpc_request *request, const struct step *step,
                       struct error *error)
{
    if (step->group >= s->groups_per_seat)
        return error_set(error, STATUS_INVALID, "a step of group %u: expected a group below %u", step->group,
                         s->groups_per_seat);
    struct group *group = &groups_of(s, seat)[step->group];
    enum status status = check_order(s, group, step, error);
    if (status == STATUS_OK && step->count == 0)
        return leave_group(s, group, request, error);
    if (status == STATUS_OK)
        status = check_rows(s, group, step, error);
    if (status == STATUS_OK && repeats(s, group, step))
        return take_step(s, group, request, step, true, error);
    if (status == STATUS_OK)
        status = check_flags(s, step, error);
    return status == STATUS_OK ? take_step(s, group, request, step, false, error) : status;
}

/* ---- states in checkpoints ---- */

size_t seats_save(const struct seats *s, char *out)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < s->count; bytes += s->seats[i++].state_bytes) {
        if (s->seats[i].state_bytes == 0)
            return 0;
        if (out != NULL)
            memcpy(out + bytes, s->seats[i].states, s->seats[i].state_bytes);
    }
    return bytes;
}

enum status seats_load(struct seats *s, const char *from, size_t bytes, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < s->count && bytes > 0 && status == STATUS_OK; i++) {
        const size_t mine = states_of(from, bytes, s->environments_per_seat);
        if (mine == 0)
            return error_set(error, STATUS_INVALID,
                             "it does not hold the states of observer %u's environments", i + 1);
        status = keep_states(s, i, from, mine, error);
        from += mine;
        bytes -= mine;
    }
    return status;
}
