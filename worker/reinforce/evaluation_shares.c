/* Requests and answers of an evaluation's shares. The agent's thread. */
#include "worker/reinforce/evaluation_shares.h"

#include "worker/environment/environment_spec.h"
#include "worker/reinforce/step_message.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static size_t choices_of(const struct environment_spec *spec)
{
    return spec->has_mask == 1 ? environment_choices(spec) : 0;
}

static void spread_episodes(struct evaluation_shares *shares)
{
    const uint64_t episodes = shares->player->episodes;
    for (uint32_t i = 0; i < shares->count; i++) {
        const uint32_t first = (uint32_t)(episodes * i / shares->count);
        const uint32_t end = (uint32_t)(episodes * (i + 1) / shares->count);
        shares->of[i] = (struct evaluation_share){.first = first, .count = end - first};
    }
}

enum status evaluation_shares_open(struct evaluation_shares *shares, struct player *player, uint32_t count,
                                   bool sampled, struct error *error)
{
    const struct environment_spec *spec = player->spec;
    const uint32_t rows = player->episodes * player->agents;
    *shares = (struct evaluation_shares){.player = player, .sampled = sampled, .count = count};
    shares->of = calloc(count, sizeof *shares->of);
    shares->alive = calloc(player->episodes, 1);
    shares->order = calloc(rows, sizeof *shares->order);
    shares->observations = calloc(rows, environment_space_bytes(&spec->observation));
    shares->allowed = choices_of(spec) > 0 ? calloc(rows, choices_of(spec)) : NULL;
    shares->actions = calloc(rows, environment_space_bytes(&spec->action));
    if (shares->of == NULL || shares->alive == NULL || shares->order == NULL ||
        shares->observations == NULL || (choices_of(spec) > 0 && shares->allowed == NULL) ||
        shares->actions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u episodes of an evaluation",
                         player->episodes);
    for (uint32_t i = 0; i < rows; i++)
        shares->order[i] = i;
    spread_episodes(shares);
    return STATUS_OK;
}

void evaluation_shares_close(struct evaluation_shares *shares)
{
    free(shares->of);
    free(shares->alive);
    free(shares->order);
    free(shares->observations);
    free(shares->allowed);
    free(shares->actions);
}

void evaluation_shares_begin(struct evaluation_shares *shares, uint32_t index, struct rpc_message *request)
{
    struct evaluation_share *share = &shares->of[index];
    player_forget(shares->player, share->first, share->count);
    memset(shares->alive + share->first, 1, share->count);
    share->step = 0;
    share->is_playing = true;
    *request = (struct rpc_message){.args = {[EVALUATION_FIRST] = share->first,
                                             [EVALUATION_EPISODES] = share->count,
                                             [EVALUATION_STEPS] = shares->player->steps_max}};
}

/* ---- checks ---- */

/* The flags of all agents of environment i of a tensor of rows of `bytes`. */
static uint8_t all_flags(const struct evaluation_shares *shares, const uint8_t *rows, uint32_t bytes,
                         uint32_t i, uint8_t flags[ENVIRONMENT_AGENTS_MAX])
{
    const uint32_t agents = shares->player->agents;
    uint8_t all = 0;
    for (uint32_t a = 0; a < agents; a++)
        all |= flags[a] = rows[((size_t)i * agents + a) * bytes];
    return all;
}

/* Whether an episode is over behind a step with these flags. */
static bool is_over(const struct evaluation_shares *shares, const uint8_t *rows, uint32_t bytes, uint32_t i)
{
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    const uint8_t all = all_flags(shares, rows, bytes, i, flags);
    return environment_is_over(flags, shares->player->agents) || (all & ENVIRONMENT_RESTARTED) != 0;
}

/* The rows are of episodes of the share that go on, ascending. */
static enum status check_rows(const struct evaluation_shares *shares, const struct evaluation_share *share,
                              const struct rpc_message *m, struct error *error)
{
    const uint32_t bytes = step_flags_bytes(shares->player->spec), end = share->first + share->count;
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0];
    uint32_t least = share->first;
    if (share->step == 0 && n != share->count)
        return error_set(error, STATUS_INVALID, "%u rows at step 0: expected one of each of %u episodes", n,
                         share->count);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t episode = u32_at(m->data[STEP_ENVIRONMENT], i);
        if (episode < least || episode >= end || !shares->alive[episode])
            return error_set(error, STATUS_INVALID,
                             "row %u is of episode %u: expected an ascending one of %u..%u that goes on", i,
                             episode, least, end - 1);
        least = episode + 1;
        const uint8_t all = all_flags(shares, m->data[STEP_FLAGS], bytes, i, flags);
        if (share->step == 0 ? all != 0 : is_over(shares, m->data[STEP_FLAGS], bytes, i))
            return error_set(error, STATUS_INVALID,
                             "episode %u has flags %u at step %u: expected one that goes on", episode, all,
                             share->step);
    }
    return STATUS_OK;
}

enum status evaluation_shares_check(const struct evaluation_shares *shares, uint32_t index,
                                    const struct rpc_message *m, struct error *error)
{
    const bool is_playing = index < shares->count && shares->of[index].is_playing;
    const unsigned long long episode = m->args[0], step = m->args[1], group = m->args[2];
    if (!is_playing || episode != 0 || group != 0)
        return error_set(error, STATUS_INVALID,
                         "a step of episode %llu, group %llu, during an evaluation: expected episode 0, "
                         "group 0, of the share that is called for",
                         episode, group);
    const struct evaluation_share *share = &shares->of[index];
    if (step != share->step || step >= shares->player->steps_max)
        return error_set(error, STATUS_INVALID, "step %llu of an evaluation: expected %u, below %u", step,
                         share->step, shares->player->steps_max);
    const enum status status = step_check(m, shares->player->spec, share->count, error);
    return status == STATUS_OK ? check_rows(shares, share, m, error) : status;
}

/* ---- sums ---- */

/* Adds what an episode's step has earned: rewards and flags of its agents begin at `rewards` and `flags`;
 * `*metrics` are the next row's that has ended. */
static void add_outcome(struct evaluation_shares *shares, uint32_t episode, const char *rewards,
                        const uint8_t *flags, uint32_t bytes, const char **metrics)
{
    struct player *player = shares->player;
    double sum = 0;
    for (uint32_t a = 0; a < player->agents; a++) {
        sum += (double)f32_at(rewards, a);
        if (player->metrics.count == 0 || !step_ended(flags[a * bytes]))
            continue;
        episode_metrics_add(&player->metrics, episode * player->agents + a, *metrics);
        *metrics += player->metrics.count * sizeof(float);
    }
    player->rewards[episode] += sum / player->agents;
    player->lengths[episode]++;
}

/* Adds the step before of each episode that has rows. One that has none any more is over: the share's answer
 * has its last step. */
static void add_step(struct evaluation_shares *shares, struct evaluation_share *share,
                     const struct rpc_message *m)
{
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], agents = shares->player->agents;
    const uint32_t bytes = step_flags_bytes(shares->player->spec);
    const char *rewards = m->data[STEP_REWARD], *metrics = rewards + (size_t)n * agents * sizeof(float);
    const uint8_t *flags = m->data[STEP_FLAGS];
    memset(shares->alive + share->first, 0, share->count);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t episode = u32_at(m->data[STEP_ENVIRONMENT], i);
        shares->alive[episode] = 1;
        if (share->step > 0)
            add_outcome(shares, episode, rewards + (size_t)i * agents * sizeof(float),
                        flags + (size_t)i * agents * bytes, bytes, &metrics);
    }
}

/* ---- acting ---- */

/* Copies the rows to where the policy can read them, at addresses of any alignment's. */
static void gather_rows(struct evaluation_shares *shares, const struct rpc_message *m)
{
    struct player *player = shares->player;
    const uint32_t agents = player->agents, rows = m->tensors[STEP_ENVIRONMENT].dims[0] * agents;
    const size_t choices = choices_of(player->spec);
    const uint8_t *flags = m->data[STEP_FLAGS];
    memcpy(shares->observations, m->data[STEP_OBSERVATION],
           rows * environment_space_bytes(&player->spec->observation));
    for (uint32_t i = 0; i < rows; i++) {
        player->rows[i] = u32_at(m->data[STEP_ENVIRONMENT], i / agents) * agents + i % agents;
        player->steps[i] = (uint32_t)m->args[1];
        if (choices > 0)
            memcpy(shares->allowed + i * choices, flags + i * (1 + choices) + 1, choices);
    }
}

enum status evaluation_shares_step(struct evaluation_shares *shares, uint32_t index,
                                   const struct rpc_message *m, struct rpc_message *answer,
                                   struct error *error)
{
    struct evaluation_share *share = &shares->of[index];
    struct player *player = shares->player;
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0];
    const struct policy_rows rows = {.count = n * player->agents,
                                     .row = shares->order,
                                     .observations = shares->observations,
                                     .actions = shares->actions,
                                     .allowed = shares->allowed,
                                     .dropout = player->dropout};
    add_step(shares, share, m);
    gather_rows(shares, m);
    const enum status status = player_act(player, &rows, shares->sampled, error);
    if (status != STATUS_OK)
        return status;
    policy_bound(player->policy, shares->actions, rows.count);
    share->step++;
    *answer = (struct rpc_message){
        .tensor_count = 1, .tensors = {step_action_tensor(player->spec, n)}, .data = {shares->actions}};
    return STATUS_OK;
}

/* ---- ending ---- */

/* Whether the answer has the form of run_episode's, without states. */
static bool has_form(const struct evaluation_shares *shares, const struct evaluation_share *share,
                     const struct rpc_message *m)
{
    const uint32_t rows = share->count * shares->player->agents;
    const struct wire_tensor flags = {.dtype = WIRE_U8, .rank = 1, .dims = {rows}};
    const struct wire_tensor lengths = {.dtype = WIRE_U32, .rank = 1, .dims = {share->count}};
    if (m->tensor_count != RETURN_STATES || memcmp(&m->tensors[RETURN_FLAGS], &flags, sizeof flags) != 0 ||
        memcmp(&m->tensors[RETURN_LENGTH], &lengths, sizeof lengths) != 0)
        return false;
    struct wire_tensor rewards = {.dtype = WIRE_F32, .rank = 1, .dims = {rows}};
    for (uint32_t i = 0; i < rows; i++)
        rewards.dims[0] +=
            step_ended(((const uint8_t *)m->data[RETURN_FLAGS])[i]) ? shares->player->metrics.count : 0;
    return memcmp(&m->tensors[RETURN_REWARD], &rewards, sizeof rewards) == 0 &&
           environment_floats_are_finite(m->data[RETURN_REWARD], rewards.dims[0]);
}

/* Whether each episode has one step more than it has reported, and that one ended it: those with rows in the
 * last request took that step last. */
static bool ends_well(const struct evaluation_shares *shares, const struct evaluation_share *share,
                      const struct rpc_message *m)
{
    const struct player *player = shares->player;
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    for (uint32_t i = 0; i < share->count; i++) {
        const uint32_t length = u32_at(m->data[RETURN_LENGTH], i), episode = share->first + i;
        const uint8_t all = all_flags(shares, m->data[RETURN_FLAGS], 1, i, flags);
        if (length != player->lengths[episode] + 1 || (all & ~ENVIRONMENT_STEP_FLAGS) != 0 ||
            (shares->alive[episode] && length != share->step) ||
            (length < player->steps_max && !is_over(shares, m->data[RETURN_FLAGS], 1, i)))
            return false;
    }
    return share->step > 0;
}

enum status evaluation_shares_end(struct evaluation_shares *shares, uint32_t index,
                                  const struct rpc_message *m)
{
    struct evaluation_share *share = &shares->of[index];
    const uint32_t agents = shares->player->agents;
    if (!has_form(shares, share, m) || !ends_well(shares, share, m))
        return STATUS_INVALID;
    const char *rewards = m->data[RETURN_REWARD];
    const uint8_t *flags = m->data[RETURN_FLAGS];
    const char *metrics = rewards + (size_t)share->count * agents * sizeof(float);
    for (uint32_t i = 0; i < share->count; i++)
        add_outcome(shares, share->first + i, rewards + (size_t)i * agents * sizeof(float),
                    flags + (size_t)i * agents, 1, &metrics);
    share->is_playing = false;
    return STATUS_OK;
}
