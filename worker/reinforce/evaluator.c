/* Plays episodes with a policy, in environments of its own or by the observers' shares, and sums what they
 * earn. Runs on the agent's thread, or on a command's. */
#include "worker/reinforce/evaluator.h"

#include "kernels/backend.h"
#include "kernels/base/profile.h"
#include "kernels/base/region.h"
#include "worker/environment/environment_spec.h"
#include "worker/reinforce/environment_metrics.h"
#include "worker/reinforce/job_open.h"
#include "worker/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A policy, its episodes, and the sums of these. */
struct player {
    struct region region;
    struct policy *policy;
    struct backend *backend; /* the policy's; NULL: it needs none */
    const struct environment_spec *spec;
    struct environments *environments; /* NULL: the observers have them */
    const struct environment_buffers *buffers;
    const char *model; /* for errors: a path, or words */
    bool sampled;
    uint32_t episodes, agents;
    uint32_t steps_max; /* an episode is over after so many steps at the latest; 0: nothing cuts it */
    uint32_t step;      /* of the episodes that go on */
    uint32_t alive;     /* how many go on */
    uint32_t *live;     /* (alive) ascending */
    uint32_t *rows;     /* (episodes * agents) of a batch: each row's number, by which its action is drawn */
    uint32_t *steps;    /* (episodes * agents) likewise: each row's step */
    uint16_t *dropout;  /* (episodes * agents, policy_dropout_words) */
    float *states;      /* (episodes * agents, policy_state_floats) */
    double *rewards;    /* (episodes) so far; of several agents the mean */
    uint32_t *lengths;  /* (episodes) steps so far */
    struct environment_metrics metrics; /* of the rows that have ended */
};

/* ---- opening ---- */

/* The policy has no values yet. Where it can be on the CPU without a backend, it is, unless the job demands a
 * GPU: an evaluation's batches are small. */
static enum status open_policy(struct player *p, const struct job *job, struct error *error)
{
    struct policy_config config = policy_config_of(job, p->spec);
    enum status status = STATUS_OK;
    config.environments = p->episodes * p->agents;
    if (policy_device(&config) == POLICY_ON_BACKEND || job->device == JOB_DEVICE_GPU)
        status = policy_open_backend(&p->backend, &config, job, error);
    return status == STATUS_OK ? policy_new(&p->policy, &config, p->backend, error) : status;
}

static enum status open_sums(struct player *p, struct error *error)
{
    const size_t rows = (size_t)p->episodes * p->agents, floats = policy_state_floats(p->policy);
    p->live = region_take(&p->region, p->episodes, sizeof *p->live);
    p->rows = region_take(&p->region, rows, sizeof *p->rows);
    p->steps = region_take(&p->region, rows, sizeof *p->steps);
    p->dropout = region_take(&p->region, rows, policy_dropout_words(p->policy) * sizeof *p->dropout);
    p->states = region_take(&p->region, rows, floats * sizeof *p->states);
    p->rewards = region_take(&p->region, p->episodes, sizeof *p->rewards);
    p->lengths = region_take(&p->region, p->episodes, sizeof *p->lengths);
    if (p->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u episodes", p->episodes);
    return environment_metrics_open(&p->metrics, p->spec, (uint32_t)rows, error);
}

/* `environments`: one for each episode, of `spec`, which are the player's from now on; NULL: the observers
 * have them. `job` and `spec` outlive the player. player_close also follows a failure. */
static enum status player_open(struct player *p, const struct job *job, struct environments *environments,
                               const struct environment_spec *spec, uint32_t episodes, bool sampled,
                               struct error *error)
{
    *p = (struct player){.environments = environments,
                         .spec = spec,
                         .buffers = environments != NULL ? environments_buffers(environments) : NULL,
                         .model = "the policy",
                         .episodes = episodes,
                         .sampled = sampled};
    p->agents = p->spec->agents;
    const enum status status = open_policy(p, job, error);
    return status == STATUS_OK ? open_sums(p, error) : status;
}

/* Opens a player for a command, with the model of `checkpoint`, which outlives it. player_close also follows
 * a failure. */
static enum status player_open_checkpoint(struct player *p, const char *checkpoint, const struct job *job,
                                          const struct play_settings *settings, struct error *error)
{
    struct environments *environments;
    struct policy_values values;
    *p = (struct player){0};
    enum status status =
        job_command_environments_open(&environments, job, settings->episodes, settings->picture, error);
    if (status == STATUS_OK)
        status = player_open(p, job, environments, environments_spec(environments), settings->episodes,
                             settings->sampled, error);
    if (status != STATUS_OK)
        return status;
    p->model = checkpoint;
    const struct policy_config config = policy_config_of(job, p->spec);
    status = job_check_environment(path_of(checkpoint), p->spec, error);
    if (status != STATUS_OK)
        return status;
    status = policy_values_load(&values, &config, checkpoint, error);
    if (status == STATUS_OK)
        status = policy_restore(p->policy, &values, error);
    policy_values_close(&values);
    return status;
}

static void player_close(struct player *p)
{
    policy_free(p->policy);
    backend_close(p->backend);
    environment_metrics_close(&p->metrics);
    environments_close(p->environments);
    region_free(&p->region);
}

/* ---- playing ---- */

/* Forgets what `count` episodes from `first` on have come to. */
static void player_forget(struct player *p, uint32_t first, uint32_t count)
{
    const size_t floats = policy_state_floats(p->policy) * p->agents;
    memset(p->states + first * floats, 0, count * floats * sizeof *p->states);
    memset(p->rewards + first, 0, count * sizeof *p->rewards);
    memset(p->lengths + first, 0, count * sizeof *p->lengths);
    environment_metrics_clear(&p->metrics, first * p->agents, count * p->agents);
}

/* Begins `count` episodes from `first` on; they go on until each is over. */
static enum status player_begin(struct player *p, uint32_t first, uint32_t count, struct error *error)
{
    p->alive = count;
    p->step = 0;
    for (uint32_t i = 0; i < count; i++)
        p->live[i] = first + i;
    player_forget(p, first, count);
    return environments_reset(p->environments, count, p->live, 0, 0, error);
}

/* Writes the actions of a batch, within their bounds in its first `count` rows. */
static enum status player_act(struct player *p, const struct policy_rows *rows, uint32_t count,
                              struct error *error)
{
    struct error why;
    const enum status status = p->sampled ? policy_act(p->policy, rows, 0, p->rows, p->steps, &why)
                                          : policy_choose(p->policy, rows, &why);
    if (status != STATUS_OK)
        return error_set(error, status, "%.300s: %.200s", p->model, why.text);
    policy_bound(p->policy, rows->actions, count);
    return STATUS_OK;
}

/* Writes the action of each row of the episodes that go on. */
static enum status act_on_live(struct player *p, struct error *error)
{
    const uint32_t count = p->alive * p->agents;
    for (uint32_t i = 0; i < count; i++) {
        p->rows[i] = p->live[i / p->agents] * p->agents + i % p->agents;
        p->steps[i] = p->step;
    }
    const struct policy_rows rows = {.count = count,
                                     .row = p->rows,
                                     .observations = p->buffers->observation,
                                     .actions = environments_actions(p->environments),
                                     .allowed = p->buffers->mask,
                                     .dropout = p->dropout,
                                     .states = p->states};
    return player_act(p, &rows, p->episodes * p->agents, error);
}

/* A memory begins anew with a life, as it does where it learns. */
static void player_note_life(struct player *p, uint32_t row, uint8_t flags)
{
    const size_t floats = policy_state_floats(p->policy);
    if ((flags & ENVIRONMENT_LIFE_LOST) != 0)
        memset(p->states + row * floats, 0, floats * sizeof *p->states);
}

/* Adds what the step of the i-th environment, which is this episode, has earned. */
static void add_reward(struct player *p, uint32_t episode, const struct step *step, uint32_t i)
{
    double sum = 0;
    for (uint32_t a = 0; a < p->agents; a++) {
        sum += (double)step->rewards[i * p->agents + a];
        player_note_life(p, episode * p->agents + a, step_flags(step, i * p->agents + a));
    }
    p->rewards[episode] += sum / p->agents;
    p->lengths[episode]++;
}

/* Adds what the episode's newest step here has earned and ended. Returns whether the episode is over. */
static bool add_newest_step(struct player *p, uint32_t episode)
{
    const struct step newest = {
        .agents = p->agents, .flags_bytes = 1, .rewards = p->buffers->reward, .flags = p->buffers->flags};
    const size_t metrics = p->metrics.count;
    uint8_t all;
    add_reward(p, episode, &newest, episode);
    for (uint32_t row = episode * p->agents; row < (episode + 1) * p->agents; row++)
        if (metrics > 0 && step_ended(p->buffers->flags[row]))
            environment_metrics_add(&p->metrics, row, p->buffers->metrics + row * metrics);
    return step_is_over(&newest, episode, &all);
}

/* One step of every episode that goes on. */
static enum status player_step(struct player *p, struct error *error)
{
    const uint32_t alive = p->alive;
    enum status status = act_on_live(p, error);
    if (status == STATUS_OK)
        status = environments_step(p->environments, alive, p->live, error);
    if (status != STATUS_OK)
        return status;
    p->alive = 0;
    p->step++;
    for (uint32_t i = 0; i < alive; i++) {
        const uint32_t episode = p->live[i];
        if (!add_newest_step(p, episode) && p->lengths[episode] != p->steps_max)
            p->live[p->alive++] = episode;
    }
    return STATUS_OK;
}

/* What the episodes have come to, after all of them are over. */
static struct evaluation_summary player_summarize(const struct player *p)
{
    const double n = p->episodes, *sums = p->rewards;
    struct evaluation_summary found = {.least = sums[0], .most = sums[0]};
    double squares = 0;
    for (uint32_t i = 0; i < p->episodes; i++) {
        found.mean += sums[i] / n;
        found.length += p->lengths[i] / n;
        found.least = fmin(found.least, sums[i]);
        found.most = fmax(found.most, sums[i]);
    }
    for (uint32_t i = 0; i < p->episodes; i++)
        squares += (sums[i] - found.mean) * (sums[i] - found.mean);
    environment_metrics_mean(&p->metrics, 0, p->metrics.columns, &found.metrics);
    found.deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return found;
}

/* ---- the command evaluate ---- */

enum status policy_evaluate(struct evaluation_summary *summary, const char *checkpoint, const struct job *job,
                            uint32_t episodes, struct error *error)
{
    struct player player;
    const struct play_settings settings = {.episodes = episodes};
    enum status status = player_open_checkpoint(&player, checkpoint, job, &settings, error);
    if (job_is_stepwise(job))
        player.steps_max = job->evaluation.steps;
    if (status == STATUS_OK)
        status = player_begin(&player, 0, episodes, error);
    while (status == STATUS_OK && player.alive > 0)
        status = player_step(&player, error);
    if (status == STATUS_OK)
        *summary = player_summarize(&player);
    player_close(&player);
    return status;
}

/* ---- the command play ---- */

struct picture {
    void *bytes;
    size_t capacity;
};

/* Draws an episode's environment. The picture's memory grows as the environment asks for more. */
static enum status draw(struct picture *picture, const struct player *p, int kind, uint32_t episode,
                        struct play_frame *frame, struct error *error)
{
    for (;;) {
        const size_t size = environments_render(p->environments, episode, kind, &frame->width, &frame->height,
                                                picture->bytes, picture->capacity);
        frame->size = size;
        frame->bytes = picture->bytes;
        const struct error *failure = environments_failure(p->environments);
        if (size == 0 && failure != NULL)
            return error_set(error, failure->status, "%s", failure->text);
        if (size == 0)
            return error_set(error, STATUS_UNAVAILABLE, "%s draws no %s", environments_name(p->environments),
                             kind == ENVIRONMENT_TEXT ? "text" : "pictures");
        if (kind == ENVIRONMENT_RGB && size <= picture->capacity &&
            size != (size_t)3 * frame->width * frame->height)
            return error_set(error, STATUS_CORRUPT, "%s draws a picture of %u x %u pixels with %zu bytes",
                             environments_name(p->environments), frame->width, frame->height, size);
        if (size <= picture->capacity)
            return STATUS_OK;
        void *more = realloc(picture->bytes, size);
        if (more == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a picture of %zu bytes", size);
        *picture = (struct picture){more, size};
    }
}

static enum status show_state(struct picture *picture, const struct player *p, uint32_t episode,
                              const struct play_settings *settings, struct error *error)
{
    struct play_frame frame = {.episode = episode + 1, .step = p->step, .reward = p->rewards[episode]};
    if (settings->picture == 0)
        return STATUS_OK;
    const enum status status = draw(picture, p, settings->picture, episode, &frame, error);
    return status == STATUS_OK ? settings->show(settings->context, &frame, error) : status;
}

static enum status play_episode(struct picture *picture, struct player *p, uint32_t episode,
                                const struct play_settings *settings, struct error *error)
{
    enum status status = player_begin(p, episode, 1, error);
    if (status == STATUS_OK)
        status = show_state(picture, p, episode, settings, error);
    while (status == STATUS_OK && p->alive > 0) {
        status = player_step(p, error);
        if (status == STATUS_OK)
            status = show_state(picture, p, episode, settings, error);
    }
    if (status != STATUS_OK)
        return status;
    struct control_metrics metrics;
    environment_metrics_mean(&p->metrics, episode * p->agents, p->agents, &metrics);
    settings->over(settings->context, episode + 1, p->rewards[episode], p->step, &metrics);
    return STATUS_OK;
}

enum status policy_play(const char *checkpoint, const struct job *job, const struct play_settings *settings,
                        struct error *error)
{
    struct player player;
    struct picture picture = {0};
    enum status status = player_open_checkpoint(&player, checkpoint, job, settings, error);
    for (uint32_t i = 0; i < settings->episodes && status == STATUS_OK; i++)
        status = play_episode(&picture, &player, i, settings, error);
    free(picture.bytes);
    player_close(&player);
    return status;
}

/* ---- the evaluator ---- */

struct share {
    uint32_t first, count; /* its episodes */
    uint32_t step;         /* the step that its next request must be for */
    uint32_t live;         /* its episodes that have not ended, by its newest request */
    bool is_playing;       /* it has begun, and not ended */
};

struct evaluator {
    struct region region;
    struct worker *worker;
    struct player player;
    struct policy_values values; /* on their way from the agent's policy to the player's */
    /* Where the observers have the environments: */
    uint32_t count;       /* shares; 0: the player has environments */
    struct share *shares; /* (count) */
    uint8_t *alive;       /* (episodes) the episode has rows */
    uint32_t *order;      /* (episodes * agents) 0, 1, 2 … */
    char *observations;   /* (episodes * agents, bytes of an observation) of one request */
    uint8_t *allowed;     /* (episodes * agents, choices) likewise; NULL: there are no masks */
    void *actions;        /* (episodes * agents, bytes of an action) of one answer */
    float *states;        /* (episodes * agents, policy_state_floats) of one request */
};

static enum status open_shares(struct evaluator *e, struct error *error)
{
    const struct environment_spec *spec = e->player.spec;
    const uint64_t episodes = e->player.episodes, rows = episodes * e->player.agents;
    const size_t choices = step_flags_bytes(spec) - 1;
    e->count = job_observers(&e->worker->job);
    e->shares = region_take(&e->region, e->count, sizeof *e->shares);
    e->alive = region_take(&e->region, episodes, 1);
    e->order = region_take(&e->region, rows, sizeof *e->order);
    e->observations = region_take(&e->region, rows, environment_space_bytes(&spec->observation));
    e->allowed = choices > 0 ? region_take(&e->region, rows, choices) : NULL;
    e->actions = region_take(&e->region, rows, environment_space_bytes(&spec->action));
    e->states = region_take(&e->region, rows, policy_state_floats(e->player.policy) * sizeof *e->states);
    if (e->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u episodes of an evaluation",
                         e->player.episodes);
    for (uint32_t i = 0; i < rows; i++)
        e->order[i] = i;
    for (uint32_t i = 0; i < e->count; i++) {
        const uint32_t first = (uint32_t)(episodes * i / e->count);
        const uint32_t end = (uint32_t)(episodes * (i + 1) / e->count);
        e->shares[i] = (struct share){.first = first, .count = end - first};
    }
    return STATUS_OK;
}

enum status evaluator_new(struct evaluator **out, struct worker *worker, const struct environment_spec *spec,
                          struct error *error)
{
    const struct job *job = &worker->job;
    const bool is_python = job_has_python_environments(job);
    struct environments *environments = NULL;
    *out = NULL;
    if (!job->evaluation.has_every)
        return STATUS_OK;
    struct evaluator *e = *out = calloc(1, sizeof *e);
    if (e == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for evaluations");
    e->worker = worker;
    const struct policy_config config = policy_config_of(job, spec);
    enum status status = policy_values_open(&e->values, &config, error);
    if (status == STATUS_OK && !is_python)
        status = job_environments_open(&environments, job, 0, job->evaluation.episodes, error);
    if (status == STATUS_OK)
        status = player_open(&e->player, job, environments,
                             environments != NULL ? environments_spec(environments) : spec,
                             job->evaluation.episodes, !job->evaluation.deterministic, error);
    e->player.steps_max = job->evaluation.steps;
    return status == STATUS_OK && is_python ? open_shares(e, error) : status;
}

void evaluator_free(struct evaluator *e)
{
    if (e == NULL)
        return;
    region_free(&e->region);
    player_close(&e->player);
    policy_values_close(&e->values);
    free(e);
}

/* Plays all episodes in the player's own environments. */
static enum status play_all(struct evaluator *e, policy_progress *progress, void *context,
                            struct error *error)
{
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    enum status status = player_begin(&e->player, 0, e->player.episodes, error);
    while (status == STATUS_OK && e->player.alive > 0) {
        status = player_step(&e->player, error);
        e->worker->evaluation.done = e->player.episodes - e->player.alive;
        progress(context);
        if (e->worker->hurry)
            status = STATUS_SHUTDOWN;
    }
    profile_leave(before);
    return status;
}

enum status evaluator_begin(struct evaluator *e, struct policy *policy, policy_progress *progress,
                            void *context, struct error *error)
{
    enum status status = policy_save(policy, &e->values, error);
    e->worker->evaluation = (struct control_share){.total = e->player.episodes};
    for (uint32_t i = 0; i < e->count; i++)
        e->shares[i].live = e->shares[i].count;
    if (status == STATUS_OK)
        status = policy_restore(e->player.policy, &e->values, error);
    return status == STATUS_OK && e->count == 0 ? play_all(e, progress, context, error) : status;
}

struct control_evaluation evaluator_end(const struct evaluator *e)
{
    const struct evaluation_summary found = player_summarize(&e->player);
    double success_rate = (double)NAN;
    for (uint32_t i = 0; i < found.metrics.count; i++)
        if (strcmp(found.metrics.of[i].name, "is_success") == 0)
            success_rate = found.metrics.of[i].mean;
    return (struct control_evaluation){.mean_reward = found.mean,
                                       .std_reward = found.deviation,
                                       .mean_ep_length = found.length,
                                       .success_rate = success_rate};
}

/* ---- an observer's share ---- */

static void share_note_live(struct evaluator *e, struct share *share, uint32_t live)
{
    e->worker->evaluation.done += share->live - live;
    share->live = live;
}

bool evaluator_begin_share(struct evaluator *e, uint32_t seat, struct rpc_message *request)
{
    if (seat >= e->count || e->shares[seat].count == 0)
        return false;
    struct share *share = &e->shares[seat];
    player_forget(&e->player, share->first, share->count);
    memset(e->alive + share->first, 1, share->count);
    share->step = 0;
    share_note_live(e, share, share->count);
    share->is_playing = true;
    *request = (struct rpc_message){.args = {[EVALUATION_FIRST] = share->first,
                                             [EVALUATION_EPISODES] = share->count,
                                             [EVALUATION_STEPS] = e->player.steps_max}};
    return true;
}

/* The rows are of episodes of the share that go on, ascending. */
static enum status check_rows(const struct evaluator *e, const struct share *share, const struct step *step,
                              struct error *error)
{
    const uint32_t end = share->first + share->count;
    uint32_t least = share->first;
    if (share->step == 0 && step->count != share->count)
        return error_set(error, STATUS_INVALID, "%u rows at step 0: expected one for each of %u episodes",
                         step->count, share->count);
    for (uint32_t i = 0; i < step->count; i++) {
        const uint32_t episode = step->numbers[i];
        if (episode < least || episode >= end || !e->alive[episode])
            return error_set(
                error, STATUS_INVALID,
                "row %u is of episode %u: expected episodes that go on, ascending, here %u to %u", i, episode,
                least, end - 1);
        least = episode + 1;
        uint8_t all;
        const bool over = step_is_over(step, i, &all);
        if (share->step == 0 ? all != 0 : over)
            return error_set(error, STATUS_INVALID,
                             "episode %u has flags %u at step %u: expected an episode that goes on", episode,
                             all, share->step);
    }
    return STATUS_OK;
}

static enum status check_step(const struct evaluator *e, uint32_t seat, const struct step *step,
                              struct error *error)
{
    const bool is_playing = seat < e->count && e->shares[seat].is_playing;
    if (!is_playing || step->episode != 0 || step->group != 0)
        return error_set(error, STATUS_INVALID,
                         "a step of episode %llu, group %u, during an evaluation: expected episode 0 and "
                         "group 0, from an observer with episodes to evaluate",
                         (unsigned long long)step->episode, step->group);
    const struct share *share = &e->shares[seat];
    if (step->number != share->step || step->number >= e->player.steps_max)
        return error_set(error, STATUS_INVALID, "step %u of an evaluation: expected step %u, below %u",
                         step->number, share->step, e->player.steps_max);
    if (step->count == 0)
        return error_set(error, STATUS_INVALID, "step %u of an evaluation has no rows", step->number);
    return check_rows(e, share, step, error);
}

/* Adds the step before of each episode that has rows. One that has none any more is over: the share's answer
 * has its last step. */
static void add_step(struct evaluator *e, struct share *share, const struct step *step)
{
    memset(e->alive + share->first, 0, share->count);
    for (uint32_t i = 0; i < step->count; i++) {
        e->alive[step->numbers[i]] = 1;
        if (share->step > 0)
            add_reward(&e->player, step->numbers[i], step, i);
    }
    environment_metrics_take(&e->player.metrics, step, 0);
    share_note_live(e, share, step->count);
    share->step++;
}

/* Copies the observations and masks out of the message, where they may be unaligned, for the policy. */
static enum status gather_rows(struct evaluator *e, const struct step *step, struct error *error)
{
    struct player *p = &e->player;
    const size_t choices = step_flags_bytes(p->spec) - 1;
    memcpy(e->observations, step->observations, step->rows * step->observation_bytes);
    for (uint32_t i = 0; i < step->rows; i++) {
        p->rows[i] = step->numbers[i / step->agents] * step->agents + i % step->agents;
        p->steps[i] = step->number;
        if (choices > 0)
            memcpy(e->allowed + i * choices, step_mask(step, i), choices);
    }
    return step_check_copy(step, e->observations, step->rows, error);
}

/* Copies what the policy remembers of the step's episodes into the request's order, or back. */
static void move_states(const struct evaluator *e, const struct step *step, bool back)
{
    const struct player *p = &e->player;
    const size_t floats = policy_state_floats(p->policy);
    for (uint32_t i = 0; i < step->rows && floats > 0; i++) {
        float *own = p->states + p->rows[i] * floats, *in_order = e->states + i * floats;
        memcpy(back ? own : in_order, back ? in_order : own, floats * sizeof *own);
    }
}

enum status evaluator_step(struct evaluator *e, uint32_t seat, const struct step *step,
                           struct rpc_message *answer, struct error *error)
{
    const struct policy_rows rows = {.count = step->rows,
                                     .row = e->order,
                                     .observations = e->observations,
                                     .actions = e->actions,
                                     .allowed = e->allowed,
                                     .dropout = e->player.dropout,
                                     .states = e->states};
    enum status status = check_step(e, seat, step, error);
    if (status == STATUS_OK)
        status = gather_rows(e, step, error);
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    add_step(e, &e->shares[seat], step);
    move_states(e, step, false);
    status = player_act(&e->player, &rows, rows.count, error);
    move_states(e, step, true);
    profile_leave(before);
    *answer = (struct rpc_message){.tensor_count = 1,
                                   .tensors = {step_action_tensor(e->player.spec, step->count)},
                                   .data = {e->actions}};
    return status;
}

/* Whether each episode ended exactly one step after the last step that it reported. Episodes with rows in the
 * last request ended with that step. */
static bool ends_well(const struct evaluator *e, const struct share *share, const struct step_end *end)
{
    const struct player *p = &e->player;
    for (uint32_t i = 0; i < share->count; i++) {
        const uint32_t length = end->lengths[i], episode = share->first + i;
        uint8_t all;
        const bool over = step_is_over(&end->last, i, &all);
        if (length != p->lengths[episode] + 1 || (all & ~ENVIRONMENT_STEP_FLAGS) != 0 ||
            (e->alive[episode] && length != share->step) || (length < p->steps_max && !over))
            return false;
    }
    return share->step > 0;
}

enum status evaluator_end_share(void *evaluator, uint32_t seat, const struct rpc_message *answer)
{
    struct evaluator *e = evaluator;
    struct share *share = &e->shares[seat];
    struct step_end end;
    if (step_end_decode(&end, answer, e->player.spec, share->count) != STATUS_OK || end.has_states ||
        !ends_well(e, share, &end))
        return STATUS_INVALID;
    for (uint32_t i = 0; i < share->count; i++)
        add_reward(&e->player, share->first + i, &end.last, i);
    environment_metrics_take(&e->player.metrics, &end.last, share->first);
    share_note_live(e, share, 0);
    share->is_playing = false;
    return STATUS_OK;
}
