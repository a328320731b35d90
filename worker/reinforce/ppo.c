/* Updates the policy by PPO: scales rewards, estimates advantages, and learns from minibatches. */
#include "worker/reinforce/ppo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

enum status ppo_open(struct ppo *ppo, const struct job *job, const struct rollout *rollout,
                     struct error *error)
{
    const uint32_t rows = rollout->columns * rollout->config.steps_max;
    *ppo = (struct ppo){.job = job};
    ppo->order = calloc(rows, sizeof *ppo->order);
    ppo->plain = calloc(rows, sizeof *ppo->plain);
    ppo->rewards = calloc(rows, sizeof *ppo->rewards);
    ppo->advantages = calloc(rows, sizeof *ppo->advantages);
    ppo->returns = calloc(rows, sizeof *ppo->returns);
    if (ppo->order == NULL || ppo->plain == NULL || ppo->rewards == NULL || ppo->advantages == NULL ||
        ppo->returns == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the advantages of %u rows", rows);
    for (uint32_t i = 0; i < rows; i++)
        ppo->plain[i] = i;
    enum status status = minibatches_open(&ppo->minibatches, rows, error);
    if (status == STATUS_OK)
        status = normalizers_open(&ppo->normalizers, job, rollout, error);
    return status == STATUS_OK
               ? recent_episodes_open(&ppo->recent, rollout->columns, job->algorithm.stats_window_size, error)
               : status;
}

void ppo_close(struct ppo *ppo)
{
    recent_episodes_close(&ppo->recent);
    minibatches_close(&ppo->minibatches);
    normalizers_close(&ppo->normalizers);
    free(ppo->order);
    free(ppo->plain);
    free(ppo->rewards);
    free(ppo->advantages);
    free(ppo->returns);
    *ppo = (struct ppo){0};
}

/* ---- values and advantages ---- */

/* Writes the values of `count` observations that lie densely. */
static enum status estimate(const struct ppo *ppo, struct policy *policy, const char *observations,
                            uint32_t count, float *values, struct error *error)
{
    const struct policy_rows rows = {
        .count = count, .row = ppo->plain, .observations = observations, .values = values};
    return policy_estimate(policy, &rows, error);
}

/* The minibatch of the epoch's order that begins with row number `first` of `count`. */
static struct policy_rows minibatch_at(const struct ppo *ppo, const struct rollout *rollout, uint32_t first,
                                       uint32_t count)
{
    const uint32_t size = ppo->job->algorithm.batch_size, left = count - first;
    return (struct policy_rows){.count = left < size ? left : size,
                                .row = ppo->minibatches.row + first,
                                .observations = rollout->observations,
                                .actions = rollout->actions,
                                .allowed = rollout->allowed,
                                .log_probabilities = rollout->log_probabilities,
                                .values = rollout->values};
}

/* Replaces what acting said of the `count` rows by what learning will say of them in the minibatches of the
 * first epoch. */
static enum status review(struct ppo *ppo, struct policy *policy, const struct rollout *rollout,
                          uint32_t count, policy_progress *progress, void *context, struct error *error)
{
    enum status status = STATUS_OK;
    minibatches_draw(&ppo->minibatches, ppo->order, count, ppo->job->algorithm.batch_size, ppo->job->seed,
                     rollout->episode, 0);
    for (uint32_t first = 0; first < count && status == STATUS_OK;) {
        const struct policy_rows rows = minibatch_at(ppo, rollout, first, count);
        status = policy_review(policy, &rows, progress, context, error);
        first += rows.count;
    }
    return status;
}

/* Fills order, advantages and returns; *count rows are learned from. Which rows they are, and their order, do
 * not depend on their values. */
static enum status judge(struct ppo *ppo, struct policy *policy, struct rollout *rollout, uint32_t *count,
                         policy_progress *progress, void *context, struct error *error)
{
    const struct job *job = ppo->job;
    const size_t closing = (size_t)rollout->config.steps_max * rollout->columns;
    const struct advantages_config config = {.gamma = job->returns.gamma,
                                             .lambda = job->algorithm.gae_lambda,
                                             .bootstrap_truncated = job->algorithm.bootstrap_truncated};
    const struct advantages advantages = {.reward = ppo->rewards,
                                          .value = rollout->values,
                                          .closing = rollout->values + closing,
                                          .truncated = rollout->last_values,
                                          .advantage = ppo->advantages,
                                          .returns = ppo->returns,
                                          .order = ppo->order};
    normalizers_scale(&ppo->normalizers, rollout, ppo->rewards);
    enum status status = rollout_sort_last(rollout, error);
    if (status == STATUS_OK)
        status = estimate(ppo, policy, rollout->observations + closing * rollout->config.observation_bytes,
                          rollout->columns, rollout->values + closing, error);
    if (status == STATUS_OK)
        status = estimate(ppo, policy, rollout->last_observations, rollout->last_count, rollout->last_values,
                          error);
    if (status == STATUS_OK)
        *count = advantages_estimate(rollout, &config, &advantages);
    if (status != STATUS_OK || !policy_needs_review(policy))
        return status;
    status = review(ppo, policy, rollout, *count, progress, context, error);
    if (status == STATUS_OK)
        *count = advantages_estimate(rollout, &config, &advantages);
    return status;
}

/* 1 - Var(R - V) / Var(R), V as it was when the rollout was played; NaN where all returns are equal. */
static double explained_variance(const struct ppo *ppo, const struct rollout *rollout, uint32_t count)
{
    double sum[2] = {0}, squares[2] = {0}, mean[2];
    for (uint32_t i = 0; i < count; i++) {
        const double target = (double)ppo->returns[ppo->order[i]];
        sum[0] += target;
        sum[1] += target - (double)rollout->values[ppo->order[i]];
    }
    for (int k = 0; k < 2; k++)
        mean[k] = sum[k] / count;
    for (uint32_t i = 0; i < count; i++) {
        const double target = (double)ppo->returns[ppo->order[i]];
        const double apart[2] = {target - mean[0], target - (double)rollout->values[ppo->order[i]] - mean[1]};
        for (int k = 0; k < 2; k++)
            squares[k] += apart[k] * apart[k];
    }
    return squares[0] > 0 ? 1 - squares[1] / squares[0] : (double)NAN;
}

/* ---- epochs ---- */

/* Sums over the minibatches of an update. */
struct tally {
    uint32_t minibatches;
    struct surrogate_losses sum, last;
    double epoch_kl; /* the sum over the epoch's minibatches */
    uint32_t epoch_minibatches;
};

static void tally_add(struct tally *tally, const struct surrogate_losses *losses)
{
    tally->minibatches++;
    tally->sum.policy += losses->policy;
    tally->sum.value += losses->value;
    tally->sum.entropy += losses->entropy;
    tally->sum.clip_fraction += losses->clip_fraction;
    tally->epoch_kl += losses->kl;
    tally->epoch_minibatches++;
    tally->last = *losses;
}

/* The share of a linear schedule that is left before this update. */
static double share_left(const struct ppo *ppo, int schedule)
{
    const double done = (double)ppo->steps / (double)ppo->job->stop.steps;
    return schedule == JOB_SCHEDULE_CONSTANT ? 1 : done < 1 ? 1 - done : 0;
}

static struct policy_step step_of(const struct ppo *ppo)
{
    const struct job *job = ppo->job;
    const bool stops = job->algorithm.has_target_kl && job->algorithm.target_kl_at == JOB_KL_MINIBATCH;
    return (struct policy_step){
        .objective = {.clip = job->algorithm.clip_range * share_left(ppo, job->algorithm.clip_range_schedule),
                      .value_clip =
                          job->algorithm.has_clip_range_vf ? job->algorithm.clip_range_vf : (double)INFINITY,
                      .value_coefficient = job->algorithm.vf_coef,
                      .entropy_coefficient = job->algorithm.ent_coef,
                      .halved = job->algorithm.value_loss == JOB_VALUE_LOSS_HALF_MSE,
                      .plain = job->algorithm.name == JOB_ALGORITHM_A2C},
        .max_norm = job->algorithm.has_max_grad_norm ? job->algorithm.max_grad_norm : (double)INFINITY,
        .lr = job->optimizer.lr * share_left(ppo, job->algorithm.learning_rate_schedule),
        .kl_max = stops ? 1.5 * job->algorithm.target_kl : (double)INFINITY};
}

/* Whether the update ends with this epoch. */
static bool has_moved_enough(const struct ppo *ppo, const struct tally *tally)
{
    const struct job *job = ppo->job;
    return !tally->last.stepped ||
           (job->algorithm.has_target_kl && job->algorithm.target_kl_at == JOB_KL_EPOCH &&
            tally->last.kl > job->algorithm.target_kl);
}

/* One pass over the `count` rows of the epoch's order. */
static enum status run_epoch(struct ppo *ppo, struct policy *policy, const struct rollout *rollout,
                             uint32_t count, const struct policy_step *step, struct tally *tally,
                             policy_progress *progress, void *context, struct error *error)
{
    const struct policy_targets targets = {.advantages = ppo->advantages,
                                           .returns = ppo->returns,
                                           .normalizes = ppo->job->algorithm.normalize_advantage};
    tally->epoch_kl = tally->epoch_minibatches = 0;
    for (uint32_t first = 0; first < count;) {
        const struct policy_rows rows = minibatch_at(ppo, rollout, first, count);
        struct surrogate_losses losses;
        const enum status status = policy_improve(policy, &rows, &targets, step, &losses, error);
        if (status != STATUS_OK)
            return status;
        tally_add(tally, &losses);
        progress(context);
        first += rows.count;
        if (!losses.stepped)
            break;
    }
    return STATUS_OK;
}

static enum status run_epochs(struct ppo *ppo, struct policy *policy, const struct rollout *rollout,
                              uint32_t count, const struct policy_step *step, struct tally *tally,
                              policy_progress *progress, void *context, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t epoch = 0; epoch < ppo->job->algorithm.n_epochs && status == STATUS_OK; epoch++) {
        minibatches_draw(&ppo->minibatches, ppo->order, count, ppo->job->algorithm.batch_size, ppo->job->seed,
                         rollout->episode, epoch);
        status = run_epoch(ppo, policy, rollout, count, step, tally, progress, context, error);
        ppo->updates++;
        if (status == STATUS_OK && has_moved_enough(ppo, tally))
            break;
    }
    return status;
}

enum status ppo_learn(struct ppo *ppo, struct policy *policy, struct rollout *rollout,
                      policy_progress *progress, void *context, struct control_ppo *figures,
                      struct error *error)
{
    struct policy_step step = step_of(ppo);
    struct tally tally = {.last = {.stepped = true}};
    uint32_t count = 0;
    step.progress = progress;
    step.context = context;
    enum status status = judge(ppo, policy, rollout, &count, progress, context, error);
    if (status == STATUS_OK && count > 0)
        status = run_epochs(ppo, policy, rollout, count, &step, &tally, progress, context, error);
    if (status != STATUS_OK)
        return status;
    const double n = tally.minibatches; /* 0: nothing could be learned from, and the means are NaN */
    ppo->steps += rollout_rows(rollout);
    recent_episodes_take(&ppo->recent, rollout);
    normalizers_take(&ppo->normalizers, rollout, policy);
    *figures = (struct control_ppo){.is_a2c = step.objective.plain,
                                    .total_timesteps = ppo->steps,
                                    .n_updates = ppo->updates,
                                    .loss = tally.last.loss,
                                    .policy_gradient_loss = tally.sum.policy / n,
                                    .value_loss = tally.sum.value / n,
                                    .entropy_loss = -tally.sum.entropy / n,
                                    .clip_fraction = tally.sum.clip_fraction / n,
                                    .approx_kl = tally.epoch_kl / tally.epoch_minibatches,
                                    .explained_variance = explained_variance(ppo, rollout, count),
                                    .learning_rate = step.lr,
                                    .clip_range = step.objective.clip,
                                    .std = policy_deviation(policy)};
    recent_episodes_mean(&ppo->recent, &figures->ep_rew_mean, &figures->ep_len_mean);
    return STATUS_OK;
}

void ppo_forget(struct ppo *ppo, uint32_t first, uint32_t count)
{
    recent_episodes_forget(&ppo->recent, first, count);
    normalizers_forget(&ppo->normalizers, first, count);
}

/* ---- bytes ---- */

/* What stands before the normalizers and the recent episodes. */
struct head {
    uint64_t steps, updates;
};

size_t ppo_bytes(const struct ppo *ppo)
{
    return sizeof(struct head) + normalizers_bytes(&ppo->normalizers) + recent_episodes_bytes(&ppo->recent);
}

void ppo_write(const struct ppo *ppo, char *out)
{
    const struct head head = {ppo->steps, ppo->updates};
    memcpy(out, &head, sizeof head);
    normalizers_write(&ppo->normalizers, out + sizeof head);
    recent_episodes_write(&ppo->recent, out + sizeof head + normalizers_bytes(&ppo->normalizers));
}

size_t ppo_read(struct ppo *ppo, const char *from, size_t bytes)
{
    struct head head;
    if (bytes < sizeof head)
        return 0;
    const size_t normalizers = normalizers_read(&ppo->normalizers, from + sizeof head, bytes - sizeof head);
    const size_t before = sizeof head + normalizers;
    const size_t recent =
        normalizers > 0 ? recent_episodes_read(&ppo->recent, from + before, bytes - before) : 0;
    memcpy(&head, from, sizeof head);
    ppo->steps = head.steps;
    ppo->updates = head.updates;
    return recent > 0 ? before + recent : 0;
}
