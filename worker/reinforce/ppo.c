/* Updates the policy by PPO: scales rewards, estimates advantages, and learns from minibatches. */
#include "worker/reinforce/ppo.h"

#include "kernels/base/rng.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/schedules.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- memory ---- */

/* Of an epoch. */
static size_t minibatches_max(const struct job *job, uint32_t rows)
{
    return rows / job->algorithm.batch_size + 1;
}

enum status ppo_open(struct ppo *ppo, const struct job *job, const struct rollout *rollout,
                     struct error *error)
{
    const uint32_t rows = rollout->columns * rollout->config.steps_max;
    *ppo = (struct ppo){.job = job, .rows_max = rows};
    ppo->advantages.rewards = region_take(&ppo->region, rows, sizeof *ppo->advantages.rewards);
    ppo->advantages.values = region_take(&ppo->region, rows, sizeof *ppo->advantages.values);
    ppo->advantages.returns = region_take(&ppo->region, rows, sizeof *ppo->advantages.returns);
    ppo->advantages.order = region_take(&ppo->region, rows, sizeof *ppo->advantages.order);
    ppo->plain = region_take(&ppo->region, rows, sizeof *ppo->plain);
    ppo->drawn = region_take(&ppo->region, rows, sizeof *ppo->drawn);
    ppo->minibatch_of = region_take(&ppo->region, rows, sizeof *ppo->minibatch_of);
    ppo->begins = region_take(&ppo->region, minibatches_max(job, rows) + 2, sizeof *ppo->begins);
    ppo->keys = region_take(&ppo->region, rows, sizeof *ppo->keys);
    ppo->sorted_keys = region_take(&ppo->region, rows, sizeof *ppo->sorted_keys);
    if (ppo->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the advantages of %u rows", rows);
    for (uint32_t i = 0; i < rows; i++)
        ppo->plain[i] = i;
    return normalizers_open(&ppo->normalizers, job, rollout, error);
}

void ppo_close(struct ppo *ppo)
{
    normalizers_close(&ppo->normalizers);
    region_free(&ppo->region);
    *ppo = (struct ppo){0};
}

/* ---- minibatches: sorted by counting, for qsort's comparisons took as long as a tenth of an update ---- */

/* One pass of a radix sort, stable, by 8 bits of the key. */
static void sort_by_digit(const uint64_t *from, uint64_t *to, uint32_t count, unsigned shift)
{
    uint32_t place[257] = {0};
    for (uint32_t i = 0; i < count; i++)
        place[(from[i] >> shift & 255) + 1]++;
    for (int digit = 0; digit < 256; digit++)
        place[digit + 1] += place[digit];
    for (uint32_t i = 0; i < count; i++)
        to[place[from[i] >> shift & 255]++] = from[i];
}

/* Sorts the keys, whose lower halves are rows, below rows_max. */
static void sort_keys(struct ppo *ppo, uint32_t count)
{
    uint32_t bytes = 1; /* of a row */
    while (bytes < 4 && (ppo->rows_max - 1) >> (8 * bytes) != 0)
        bytes++;
    for (unsigned digit = 0; digit < 8; digit++) {
        if (digit >= bytes && digit < 4)
            continue;
        sort_by_digit(ppo->keys, ppo->sorted_keys, count, 8 * digit);
        uint64_t *sorted = ppo->sorted_keys;
        ppo->sorted_keys = ppo->keys;
        ppo->keys = sorted;
    }
}

/* The first word of a draw of the epoch. */
static uint32_t draw_word(const struct ppo *ppo, uint32_t number, uint32_t update, uint32_t epoch)
{
    const struct rng_key key = {
        .seed = ppo->job->seed, .environment = number, .step = epoch, .episode = update};
    uint32_t words[4];
    rng_block(&key, RNG_SHUFFLE, 0, words);
    return words[0];
}

/* Sorts the numbers 0 … count - 1, which begin in the lower halves of the keys, by their draws. */
static void shuffle_keys(struct ppo *ppo, uint32_t count, uint32_t update, uint32_t epoch)
{
    for (uint32_t i = 0; i < count; i++)
        ppo->keys[i] |= (uint64_t)draw_word(ppo, (uint32_t)ppo->keys[i], update, epoch) << 32;
    sort_keys(ppo, count);
}

/* One minibatch needs no draws. */
static void assign_rows(struct ppo *ppo, uint32_t count, uint32_t update, uint32_t epoch)
{
    const uint32_t size = ppo->job->algorithm.batch_size;
    assert(size > 0);
    for (uint32_t i = 0; i < count; i++)
        ppo->keys[i] = ppo->advantages.order[i];
    if (count > size)
        shuffle_keys(ppo, count, update, epoch);
    for (uint32_t i = 0; i < count; i++)
        ppo->minibatch_of[(uint32_t)ppo->keys[i]] = i / size;
}

/* All rows of a column go to one minibatch. */
static void assign_columns(struct ppo *ppo, uint32_t count, uint32_t update, uint32_t epoch)
{
    const uint32_t steps = ppo->job->rollout.steps;
    assert(steps > 0);
    const uint32_t columns = ppo->rows_max / steps, size = ppo->job->algorithm.batch_size / steps;
    assert(columns > 0 && size > 0);
    for (uint32_t column = 0; column < columns; column++)
        ppo->keys[column] = column;
    if (columns > size)
        shuffle_keys(ppo, columns, update, epoch);
    for (uint32_t i = 0; i < columns; i++) // the sort needs these no more
        ppo->sorted_keys[(uint32_t)ppo->keys[i]] = i / size;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = ppo->advantages.order[i];
        ppo->minibatch_of[row] = (uint32_t)ppo->sorted_keys[row % columns];
    }
}

/* Rows by (column, step), from a drawn place on and round to it, in pieces of one minibatch. */
static void assign_pieces(struct ppo *ppo, uint32_t count, uint32_t update, uint32_t epoch)
{
    const uint32_t size = ppo->job->algorithm.batch_size;
    assert(size > 0);
    const uint32_t begin =
        count > size ? (uint32_t)((uint64_t)draw_word(ppo, 0, update, epoch) * count >> 32) : 0;
    for (uint32_t i = 0; i < count; i++)
        ppo->minibatch_of[ppo->advantages.order[i]] = (i >= begin ? i - begin : i + count - begin) / size;
}

/* Writes the rows minibatch by minibatch, ascending within each: row by row to where its minibatch goes on.
 */
static void cut_minibatches(struct ppo *ppo, uint32_t count)
{
    uint32_t *begins = ppo->begins;
    ppo->minibatches = 0;
    memset(begins, 0, (minibatches_max(ppo->job, ppo->rows_max) + 2) * sizeof *begins);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t minibatch = ppo->minibatch_of[ppo->advantages.order[i]];
        begins[minibatch + 2]++;
        ppo->minibatches = minibatch < ppo->minibatches ? ppo->minibatches : minibatch + 1;
    }
    for (uint32_t minibatch = 0; minibatch < ppo->minibatches; minibatch++)
        begins[minibatch + 2] += begins[minibatch + 1];
    for (uint32_t row = 0; row < ppo->rows_max; row++)
        if (ppo->minibatch_of[row] != UINT32_MAX)
            ppo->drawn[begins[ppo->minibatch_of[row] + 1]++] = row;
}

void ppo_draw(struct ppo *ppo, uint32_t count, uint32_t update, uint32_t epoch)
{
    const struct job *job = ppo->job;
    memset(ppo->minibatch_of, 0xff, ppo->rows_max * sizeof *ppo->minibatch_of);
    if (!job->policy.has_recurrent)
        assign_rows(ppo, count, update, epoch);
    else if (!job_pads_sequences(job))
        assign_columns(ppo, count, update, epoch);
    else
        assign_pieces(ppo, count, update, epoch);
    cut_minibatches(ppo, count);
}

/* ---- an update ---- */

struct update {
    struct ppo *ppo;
    struct policy *policy;
    struct rollout *rollout;
    struct policy_step step;
    uint32_t count; /* rows that are learned from */
    /* Sums over its minibatches: */
    uint32_t minibatches, epoch_minibatches;
    struct surrogate_losses sum, last;
    double epoch_kl;
};

/* Writes the values of `count` rows, whose observations and states lie densely. */
static enum status estimate(const struct update *u, uint32_t count, struct policy_rows rows,
                            struct error *error)
{
    rows.count = count;
    rows.row = u->ppo->plain;
    return policy_estimate(u->policy, &rows, error);
}

/* The rows of a minibatch of the epoch. */
static struct policy_rows minibatch_at(const struct update *u, uint32_t minibatch)
{
    const uint32_t *begin = u->ppo->begins + minibatch;
    return rollout_batch(u->rollout, begin[1] - begin[0], u->ppo->drawn + begin[0]);
}

/* Replaces what acting said of the rows by what learning will say of them in the minibatches of the first
 * epoch. */
static enum status review(struct update *u, struct error *error)
{
    enum status status = STATUS_OK;
    ppo_draw(u->ppo, u->count, u->rollout->episode, 0);
    for (uint32_t m = 0; m < u->ppo->minibatches && status == STATUS_OK; m++) {
        const struct policy_rows rows = minibatch_at(u, m);
        if (rows.count > 0)
            status = policy_review(u->policy, &rows, u->step.progress, u->step.context, error);
    }
    return status;
}

/* Which rows are learned from, and their order, do not depend on their values. */
static enum status judge(struct update *u, struct error *error)
{
    struct rollout *rollout = u->rollout;
    const size_t closing = (size_t)rollout->config.steps_max * rollout->columns;
    normalizers_scale(&u->ppo->normalizers, rollout, u->ppo->advantages.rewards);
    rollout_recall_last(rollout);
    enum status status = estimate(
        u, rollout->columns,
        (struct policy_rows){
            .observations = rollout->observations + closing * rollout->config.observation_bytes,
            .values = rollout->values + closing,
            .states =
                rollout->states != NULL ? rollout->states + closing * rollout->config.state_floats : NULL,
            .starts = rollout->before + closing},
        error);
    if (status == STATUS_OK)
        status = estimate(u, rollout->last_count,
                          (struct policy_rows){.observations = rollout->last_observations,
                                               .values = rollout->last_values,
                                               .states = rollout->last_states},
                          error);
    if (status != STATUS_OK)
        return status;
    u->count = advantages_estimate(&u->ppo->advantages, u->ppo->job, rollout);
    if (!policy_needs_review(u->policy) || u->ppo->job->algorithm.overlap > 0)
        return STATUS_OK;
    status = review(u, error);
    if (status == STATUS_OK)
        advantages_estimate(&u->ppo->advantages, u->ppo->job, rollout);
    return status;
}

/* 1 - Var(R - V) / Var(R), V as it was when the rollout was played; NaN where all returns are equal. */
static double explained_variance(const struct update *u)
{
    double sum[2] = {0}, squares[2] = {0}; /* of R; of R - V */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < u->count; i++) {
            const uint32_t row = u->ppo->advantages.order[i];
            const double target = (double)u->ppo->advantages.returns[row],
                         value = (double)u->rollout->values[row];
            for (int k = 0; k < 2; k++) {
                const double x = k == 0 ? target : target - value;
                if (pass == 0)
                    sum[k] += x;
                else
                    squares[k] += (x - sum[k] / u->count) * (x - sum[k] / u->count);
            }
        }
    return squares[0] > 0 ? 1 - squares[1] / squares[0] : (double)NAN;
}

static struct policy_step step_of(const struct ppo *ppo)
{
    const struct job *job = ppo->job;
    const bool stops = job->algorithm.has_target_kl && job->algorithm.target_kl_at == JOB_KL_MINIBATCH;
    return (struct policy_step){
        .objective = {.clip = schedules_clip_range(job, ppo->steps),
                      .value_clip =
                          job->algorithm.has_clip_range_vf ? job->algorithm.clip_range_vf : (double)INFINITY,
                      .value_coefficient = job->algorithm.vf_coef,
                      .entropy_coefficient = job->algorithm.ent_coef,
                      .halved = job->algorithm.value_loss == JOB_VALUE_LOSS_HALF_MSE,
                      .plain = job->algorithm.name == JOB_ALGORITHM_A2C},
        .max_norm = job->algorithm.has_max_grad_norm ? job->algorithm.max_grad_norm : (double)INFINITY,
        .lr = schedules_learning_rate(job, ppo->steps),
        .kl_max = stops ? 1.5 * job->algorithm.target_kl : (double)INFINITY};
}

/* One pass over the rows of the epoch's order. */
static enum status run_epoch(struct update *u, struct error *error)
{
    const struct policy_targets targets = {.advantages = u->ppo->advantages.values,
                                           .returns = u->ppo->advantages.returns,
                                           .normalizes = u->ppo->job->algorithm.normalize_advantage};
    u->epoch_kl = u->epoch_minibatches = 0;
    for (uint32_t m = 0; m < u->ppo->minibatches && u->last.stepped; m++) {
        const struct policy_rows rows = minibatch_at(u, m);
        struct surrogate_losses losses;
        if (rows.count == 0) // nothing is learned from its columns
            continue;
        const enum status status = policy_improve(u->policy, &rows, &targets, &u->step, &losses, error);
        if (status != STATUS_OK)
            return status;
        u->minibatches++;
        u->epoch_minibatches++;
        u->sum.policy += losses.policy;
        u->sum.value += losses.value;
        u->sum.entropy += losses.entropy;
        u->sum.clip_fraction += losses.clip_fraction;
        u->epoch_kl += losses.kl;
        u->last = losses;
        if (u->step.progress != NULL)
            u->step.progress(u->step.context);
    }
    return STATUS_OK;
}

/* The update ends where the policy has moved enough. */
static enum status run_epochs(struct update *u, struct error *error)
{
    const struct job *job = u->ppo->job;
    const bool is_watched = job->algorithm.has_target_kl && job->algorithm.target_kl_at == JOB_KL_EPOCH;
    enum status status = STATUS_OK;
    for (uint32_t epoch = 0; epoch < job->algorithm.n_epochs && status == STATUS_OK && u->last.stepped;
         epoch++) {
        ppo_draw(u->ppo, u->count, u->rollout->episode, epoch);
        status = run_epoch(u, error);
        u->ppo->updates++;
        if (is_watched && u->last.kl > job->algorithm.target_kl)
            break;
    }
    return status;
}

enum status ppo_learn(struct ppo *ppo, struct policy *policy, struct rollout *rollout,
                      policy_progress *progress, void *context, struct control_figures *figures,
                      struct error *error)
{
    struct update u = {
        .ppo = ppo, .policy = policy, .rollout = rollout, .step = step_of(ppo), .last = {.stepped = true}};
    u.step.progress = progress;
    u.step.context = context;
    enum status status = judge(&u, error);
    if (status == STATUS_OK && u.count > 0)
        status = run_epochs(&u, error);
    if (status != STATUS_OK)
        return status;
    const double n = u.minibatches; /* 0: nothing could be learned from, and the means are NaN */
    ppo->steps += rollout_rows(rollout);
    normalizers_take(&ppo->normalizers, rollout, policy);
    *figures = (struct control_figures){.algorithm = ppo->job->algorithm.name,
                                        .total_timesteps = ppo->steps,
                                        .n_updates = ppo->updates,
                                        .loss = u.last.loss,
                                        .policy_loss = u.sum.policy / n,
                                        .value_loss = u.sum.value / n,
                                        .entropy_loss = -u.sum.entropy / n,
                                        .clip_fraction = u.sum.clip_fraction / n,
                                        .approx_kl = u.epoch_kl / u.epoch_minibatches,
                                        .explained_variance = explained_variance(&u),
                                        .learning_rate = u.step.lr,
                                        .clip_range = u.step.objective.clip,
                                        .std = policy_deviation(policy)};
    return STATUS_OK;
}

bool ppo_archive(struct ppo *ppo, struct archive *archive)
{
    return archive_move(archive, &ppo->steps, sizeof ppo->steps) &&
           archive_move(archive, &ppo->updates, sizeof ppo->updates) &&
           normalizers_archive(&ppo->normalizers, archive);
}
