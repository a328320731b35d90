/* Checks the steps of each share, answers them, and sums what the episodes earn. Runs on the agent's thread.
 */
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

/* Whether an episode is over behind a step with these flags; *all: those of all of its agents. */
static bool is_over(const struct step *step, uint32_t i, uint8_t *all)
{
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    *all = step_all_flags(step, i, flags);
    return environment_is_over(flags, step->agents) || (*all & ENVIRONMENT_RESTARTED) != 0;
}

/* The rows are of episodes of the share that go on, ascending. */
static enum status check_rows(const struct evaluation_shares *shares, const struct evaluation_share *share,
                              const struct step *step, struct error *error)
{
    const uint32_t end = share->first + share->count;
    uint32_t least = share->first;
    if (share->step == 0 && step->count != share->count)
        return error_set(error, STATUS_INVALID, "%u rows at step 0: expected one of each of %u episodes",
                         step->count, share->count);
    for (uint32_t i = 0; i < step->count; i++) {
        const uint32_t episode = step->numbers[i];
        if (episode < least || episode >= end || !shares->alive[episode])
            return error_set(error, STATUS_INVALID,
                             "row %u is of episode %u: expected an ascending one of %u..%u that goes on", i,
                             episode, least, end - 1);
        least = episode + 1;
        uint8_t all;
        const bool over = is_over(step, i, &all);
        if (share->step == 0 ? all != 0 : over)
            return error_set(error, STATUS_INVALID,
                             "episode %u has flags %u at step %u: expected one that goes on", episode, all,
                             share->step);
    }
    return STATUS_OK;
}

enum status evaluation_shares_check(const struct evaluation_shares *shares, uint32_t index,
                                    const struct step *step, struct error *error)
{
    const bool is_playing = index < shares->count && shares->of[index].is_playing;
    if (!is_playing || step->episode != 0 || step->group != 0)
        return error_set(error, STATUS_INVALID,
                         "a step of episode %llu, group %u, during an evaluation: expected episode 0, "
                         "group 0, of the share that is called for",
                         (unsigned long long)step->episode, step->group);
    const struct evaluation_share *share = &shares->of[index];
    if (step->number != share->step || step->number >= shares->player->steps_max)
        return error_set(error, STATUS_INVALID, "step %u of an evaluation: expected %u, below %u",
                         step->number, share->step, shares->player->steps_max);
    if (step->count == 0)
        return error_set(error, STATUS_INVALID, "step %u of an evaluation has no rows", step->number);
    return check_rows(shares, share, step, error);
}

/* ---- sums ---- */

/* Adds what the step of the i-th environment, which is this episode, has earned. *metrics are those of the
 * next row that has ended. */
static void add_outcome(struct evaluation_shares *shares, uint32_t episode, const struct step *step,
                        uint32_t i, const message_f32 **metrics)
{
    struct player *player = shares->player;
    double sum = 0;
    for (uint32_t a = 0; a < player->agents; a++) {
        const uint32_t row = i * player->agents + a;
        sum += (double)step->rewards[row];
        if (player->metrics.count == 0 || !step_ended(step_flags(step, row)))
            continue;
        episode_metrics_add(&player->metrics, episode * player->agents + a, *metrics);
        *metrics += player->metrics.count;
    }
    player->rewards[episode] += sum / player->agents;
    player->lengths[episode]++;
}

/* Adds the step before of each episode that has rows. One that has none any more is over: the share's answer
 * has its last step. */
static void add_step(struct evaluation_shares *shares, struct evaluation_share *share,
                     const struct step *step)
{
    const message_f32 *metrics = step->metrics;
    memset(shares->alive + share->first, 0, share->count);
    for (uint32_t i = 0; i < step->count; i++) {
        shares->alive[step->numbers[i]] = 1;
        if (share->step > 0)
            add_outcome(shares, step->numbers[i], step, i, &metrics);
    }
}

/* ---- acting ---- */

/* Copies the rows to where the policy can read them, at addresses of any alignment's. */
static void gather_rows(struct evaluation_shares *shares, const struct step *step)
{
    struct player *player = shares->player;
    const size_t choices = choices_of(player->spec);
    memcpy(shares->observations, step->observations, step->rows * step->observation_bytes);
    for (uint32_t i = 0; i < step->rows; i++) {
        player->rows[i] = step->numbers[i / step->agents] * step->agents + i % step->agents;
        player->steps[i] = step->number;
        if (choices > 0)
            memcpy(shares->allowed + i * choices, step_mask(step, i), choices);
    }
}

enum status evaluation_shares_step(struct evaluation_shares *shares, uint32_t index, const struct step *step,
                                   struct rpc_message *answer, struct error *error)
{
    struct evaluation_share *share = &shares->of[index];
    struct player *player = shares->player;
    const struct policy_rows rows = {.count = step->rows,
                                     .row = shares->order,
                                     .observations = shares->observations,
                                     .actions = shares->actions,
                                     .allowed = shares->allowed,
                                     .dropout = player->dropout};
    add_step(shares, share, step);
    gather_rows(shares, step);
    const enum status status = player_act(player, &rows, shares->sampled, error);
    if (status != STATUS_OK)
        return status;
    policy_bound(player->policy, shares->actions, rows.count);
    share->step++;
    *answer = (struct rpc_message){.tensor_count = 1,
                                   .tensors = {step_action_tensor(player->spec, step->count)},
                                   .data = {shares->actions}};
    return STATUS_OK;
}

/* ---- ending ---- */

/* Whether each episode has one step more than it has reported, and that one ended it: those with rows in the
 * last request took that step last. */
static bool ends_well(const struct evaluation_shares *shares, const struct evaluation_share *share,
                      const struct step_end *end)
{
    const struct player *player = shares->player;
    for (uint32_t i = 0; i < share->count; i++) {
        const uint32_t length = end->lengths[i], episode = share->first + i;
        uint8_t all;
        const bool over = is_over(&end->last, i, &all);
        if (length != player->lengths[episode] + 1 || (all & ~ENVIRONMENT_STEP_FLAGS) != 0 ||
            (shares->alive[episode] && length != share->step) || (length < player->steps_max && !over))
            return false;
    }
    return share->step > 0;
}

enum status evaluation_shares_end(struct evaluation_shares *shares, uint32_t index,
                                  const struct rpc_message *m)
{
    struct evaluation_share *share = &shares->of[index];
    struct step_end end;
    if (step_end_decode(&end, m, shares->player->spec, share->count) != STATUS_OK || end.has_states ||
        !ends_well(shares, share, &end))
        return STATUS_INVALID;
    const message_f32 *metrics = end.last.metrics;
    for (uint32_t i = 0; i < share->count; i++)
        add_outcome(shares, share->first + i, &end.last, i, &metrics);
    share->is_playing = false;
    return STATUS_OK;
}
