/* Updates the running statistics after each rollout, and writes them to checkpoints. */
#include "worker/reinforce/normalizers.h"

#include "worker/environment/environment_spec.h"

#include <math.h>
#include <string.h>

static const double epsilon = 1e-8; /* VecNormalize's */

/* ---- moments ---- */

static void moments_open(struct moments *m, struct region *region, uint32_t elements)
{
    *m = (struct moments){.elements = elements, .count = 1e-4};
    m->mean = region_take(region, elements, 4 * sizeof *m->mean);
    if (m->mean == NULL)
        return;
    m->variance = m->mean + elements;
    m->sum = m->variance + elements;
    m->squares = m->sum + elements;
    for (uint32_t i = 0; i < elements; i++)
        m->variance[i] = 1;
}

/* Takes in a batch of `count`, whose sum and squares of the distance from its mean are in m->sum and
 * m->squares. */
static void moments_merge(struct moments *m, double count)
{
    const double total = m->count + count;
    for (uint32_t i = 0; i < m->elements && count > 0; i++) {
        const double apart = m->sum[i] / count - m->mean[i];
        m->mean[i] += apart * count / total;
        m->variance[i] =
            (m->variance[i] * m->count + m->squares[i] + apart * apart * m->count * count / total) / total;
    }
    m->count = count > 0 ? total : m->count;
}

/* ---- memory ---- */

static uint32_t elements_of(const struct rollout_config *config)
{
    return (uint32_t)(config->part_count > 0
                          ? environment_part_floats(config->parts, config->part_count, NULL, NULL)
                          : config->observation_bytes / sizeof(float));
}

enum status normalizers_open(struct normalizers *n, const struct job *job, const struct rollout *rollout,
                             struct error *error)
{
    const uint32_t rows = job->normalize.rewards ? rollout->columns * rollout->config.steps_max : 0;
    const uint32_t elements = job->normalize.observations ? elements_of(&rollout->config) : 0;
    *n = (struct normalizers){.job = job, .columns = rollout->columns};
    n->so_far = region_take(&n->region, n->columns, sizeof *n->so_far);
    n->path = region_take(&n->region, rows, sizeof *n->path);
    n->statistics = region_take(&n->region, elements, 2 * sizeof *n->statistics);
    n->floats = region_take(&n->region, elements, sizeof *n->floats);
    moments_open(&n->observations, &n->region, elements);
    moments_open(&n->returns, &n->region, job->normalize.rewards);
    if (n->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the statistics of %u columns", n->columns);
    return STATUS_OK;
}

void normalizers_close(struct normalizers *n)
{
    region_free(&n->region);
    *n = (struct normalizers){0};
}

/* ---- a rollout ---- */

/* Rows in a rollout, those that its columns do not have included. */
static uint32_t rows_of(const struct rollout *rollout)
{
    return rollout->columns * rollout->config.steps_max;
}

static bool counts(const struct rollout *rollout, uint32_t row)
{
    const uint32_t step = row / rollout->columns, column = row % rollout->columns;
    return step < rollout->lengths[column] && (rollout->flags[row] & ENVIRONMENT_FAILED) == 0 &&
           !rollout_is_absent(rollout, step, column);
}

/* The floats of a row that are normalized. */
static const float *floats_at(struct normalizers *n, const struct rollout *rollout, uint32_t row)
{
    const struct rollout_config *config = &rollout->config;
    const void *at = rollout->observations + row * config->observation_bytes;
    if (config->part_count == 0)
        return at;
    environment_part_floats(config->parts, config->part_count, at, n->floats);
    return n->floats;
}

static void take_observations(struct normalizers *n, const struct rollout *rollout)
{
    struct moments *m = &n->observations;
    double count = 0;
    memset(m->sum, 0, m->elements * sizeof *m->sum);
    memset(m->squares, 0, m->elements * sizeof *m->squares);
    for (uint32_t row = 0; row < rows_of(rollout); row++) {
        if (!counts(rollout, row))
            continue;
        count++;
        const float *x = floats_at(n, rollout, row);
        for (uint32_t i = 0; i < m->elements; i++)
            m->sum[i] += (double)x[i];
    }
    for (uint32_t row = 0; row < rows_of(rollout); row++) {
        if (!counts(rollout, row))
            continue;
        const float *x = floats_at(n, rollout, row);
        for (uint32_t i = 0; i < m->elements; i++) {
            const double apart = (double)x[i] - m->sum[i] / count;
            m->squares[i] += apart * apart;
        }
    }
    moments_merge(m, count);
}

static void take_returns(struct normalizers *n, const struct rollout *rollout)
{
    struct moments *m = &n->returns;
    uint32_t count = 0;
    m->sum[0] = m->squares[0] = 0;
    for (uint32_t row = 0; row < rows_of(rollout); row++) {
        double *so_far = &n->so_far[row % rollout->columns];
        if (!counts(rollout, row)) {
            *so_far = 0;
            continue;
        }
        n->path[count] = n->job->returns.gamma * *so_far + (double)rollout_learned_reward(rollout, row);
        *so_far = rollout->flags[row] == 0 ? n->path[count] : 0;
        m->sum[0] += n->path[count++];
    }
    for (uint32_t i = 0; i < count; i++) {
        const double apart = n->path[i] - m->sum[0] / count;
        m->squares[0] += apart * apart;
    }
    moments_merge(m, count);
}

void normalizers_scale(struct normalizers *n, const struct rollout *rollout, float *rewards)
{
    if (n->returns.elements > 0)
        take_returns(n, rollout);
    const size_t rows = (size_t)rollout->columns * rollout->config.steps_max;
    const double limit = n->job->normalize.clip_rewards;
    const double scale = n->returns.elements > 0 ? 1 / sqrt(n->returns.variance[0] + epsilon) : 1;
    for (size_t i = 0; i < rows; i++) {
        const float reward = rollout_learned_reward(rollout, i);
        rewards[i] =
            n->returns.elements > 0 ? (float)fmin(fmax((double)reward * scale, -limit), limit) : reward;
    }
}

void normalizers_take(struct normalizers *n, const struct rollout *rollout, struct policy *policy)
{
    const uint32_t elements = n->observations.elements;
    if (elements == 0)
        return;
    take_observations(n, rollout);
    for (uint32_t i = 0; i < elements; i++) {
        n->statistics[i] = (float)n->observations.mean[i];
        n->statistics[elements + i] = (float)n->observations.variance[i];
    }
    policy_normalize(policy, n->statistics, n->statistics + elements);
}

void normalizers_forget(struct normalizers *n, uint32_t first, uint32_t count)
{
    memset(n->so_far + first, 0, count * sizeof *n->so_far);
}

/* ---- bytes: elements, rewards, columns; then each moments' count, mean and variance; then so_far ---- */

static bool moments_archive(struct moments *m, struct archive *archive)
{
    return archive_move(archive, &m->count, sizeof m->count) &&
           archive_move(archive, m->mean,
                        2 * m->elements * sizeof *m->mean); /* the variance lies behind it */
}

bool normalizers_archive(struct normalizers *n, struct archive *archive)
{
    const uint64_t mine[] = {n->observations.elements, n->returns.elements};
    uint64_t shape[] = {mine[0], mine[1], n->columns};
    return archive_move(archive, shape, sizeof shape) && memcmp(shape, mine, sizeof mine) == 0 &&
           shape[2] > 0 && moments_archive(&n->observations, archive) &&
           moments_archive(&n->returns, archive) &&
           archive_move_array(archive, n->so_far, sizeof *n->so_far, sizeof *n->so_far, n->columns, shape[2]);
}
