/* Keeps the rows of one episode: records steps, has the policy act on them, compares repeated steps, and sums
 * rewards. */
#include "worker/reinforce/rollout.h"

#include "kernels/base/profile.h"
#include "worker/environment/environment_spec.h"
#include "worker/job/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- memory ---- */

static size_t row_bytes(const struct rollout_config *config)
{
    return config->observation_bytes + config->action_bytes + config->choices + sizeof(float) + 1 +
           config->dropout_words * sizeof(uint16_t) + sizeof(uint32_t) + sizeof(float) +
           (config->bootstraps ? (2 + config->state_floats) * sizeof(float) : 0);
}

/* The kernel grants more memory than there is, and kills whoever uses all of it: so this asks first. */
static enum status check_size(const struct rollout_config *config, uint64_t rows, struct error *error)
{
    const double bytes = (double)rows * (double)row_bytes(config);
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (rows == 0 || rows > JOB_ROLLOUT_ROWS_MAX)
        return error_set(
            error, STATUS_INVALID,
            "a rollout of %u environments with %u agents each and %u steps: expected 1..%d rows, got %llu",
            config->environments, config->agents, config->steps_max, JOB_ROLLOUT_ROWS_MAX,
            (unsigned long long)rows);
    if (bytes > machine)
        return error_set(
            error, STATUS_INVALID,
            "a rollout of %llu rows with %zu bytes each takes %.1f GiB: this machine has %.1f GiB",
            (unsigned long long)rows, row_bytes(config), bytes / 0x1p30, machine / 0x1p30);
    return STATUS_OK;
}

static void open_rows(struct rollout *r, uint64_t rows)
{
    const struct rollout_config *config = &r->config;
    const uint64_t closed = rows + (config->bootstraps ? r->columns : 0);
    struct region *region = &r->region;
    r->lengths = region_take(region, r->columns, sizeof *r->lengths);
    r->observations = region_take(region, closed, config->observation_bytes);
    r->actions = region_take(region, rows, config->action_bytes);
    r->allowed = config->choices > 0 ? region_take(region, closed, config->choices) : NULL;
    r->rewards = region_take(region, rows, sizeof *r->rewards);
    r->before = region_take(region, rows + r->columns, sizeof *r->before);
    r->flags = r->before != NULL ? r->before + r->columns : NULL;
    r->masks = region_take(region, rows, config->dropout_words * sizeof *r->masks);
    r->order = region_take(region, rows, sizeof *r->order);
    r->coefficients = region_take(region, rows, sizeof *r->coefficients);
    r->batch_row = region_take(region, r->columns, sizeof *r->batch_row);
    r->batch_column = region_take(region, r->columns, sizeof *r->batch_column);
    r->batch_step = region_take(region, r->columns, sizeof *r->batch_step);
    r->answer = region_take(region, r->columns, config->action_bytes);
    if (config->bootstraps) {
        r->log_probabilities = region_take(region, rows, sizeof *r->log_probabilities);
        r->values = region_take(region, closed, sizeof *r->values);
    }
    if (config->state_floats > 0)
        r->states = region_take(region, closed, config->state_floats * sizeof *r->states);
}

enum status rollout_new(struct rollout **out, const struct rollout_config *config, struct error *error)
{
    const uint64_t columns = (uint64_t)config->environments * config->agents;
    const uint64_t rows = columns > JOB_ROLLOUT_ROWS_MAX ? columns : columns * config->steps_max;
    enum status status = check_size(config, rows, error);
    if (status != STATUS_OK)
        return status;
    struct rollout *r = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout");
    r->config = *config;
    r->columns = (uint32_t)columns;
    open_rows(r, rows);
    if (r->region.failed) {
        rollout_free(r);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout of %llu rows",
                         (unsigned long long)rows);
    }
    *out = r;
    return STATUS_OK;
}

void rollout_free(struct rollout *r)
{
    if (r == NULL)
        return;
    region_free(&r->region);
    free(r->last_rows);
    free(r->last_observations);
    free(r->last_values);
    free(r->last_states);
    free(r);
}

/* ---- states ---- */

/* Before the row. */
static float *rollout_state_at(const struct rollout *r, uint32_t row)
{
    return r->states + row * r->config.state_floats;
}

float *rollout_zero_ended_state(struct rollout *r, uint32_t column)
{
    const uint32_t row = rollout_row(r, r->config.steps_max, column);
    if (r->states == NULL)
        return NULL;
    if (r->before[row] != 0)
        memset(rollout_state_at(r, row), 0, r->config.state_floats * sizeof *r->states);
    return rollout_state_at(r, row);
}

void rollout_forget_states(struct rollout *r, uint32_t first, uint32_t count)
{
    if (r->states != NULL)
        memset(rollout_state_at(r, first), 0, count * r->config.state_floats * sizeof *r->states);
}

void rollout_recall_last(struct rollout *r)
{
    const size_t floats = r->config.state_floats;
    for (uint32_t i = 0; i < r->last_count && floats > 0; i++)
        memcpy(r->last_states + i * floats, rollout_state_at(r, r->last_rows[i] + r->columns),
               floats * sizeof *r->states);
}

/* ---- rows ---- */

void rollout_begin(struct rollout *r, uint32_t episode)
{
    for (uint32_t column = 0; column < r->columns && r->states != NULL; column++)
        memcpy(rollout_state_at(r, column), rollout_zero_ended_state(r, column),
               r->config.state_floats * sizeof *r->states);
    r->episode = episode;
    r->last_count = 0;
    memset(r->lengths, 0, r->columns * sizeof *r->lengths);
}

/* Writes the flags, and the masks behind them, of `rows` rows of the step, from row `from` on. */
static void record_flags(struct rollout *r, const struct step *step, uint32_t from, uint32_t row,
                         uint32_t rows)
{
    const uint32_t choices = r->config.choices;
    uint8_t *earlier = r->before + row;
    if (choices == 0)
        memcpy(earlier, step->flags + from, rows);
    for (uint32_t i = 0; i < rows && choices > 0; i++) {
        memcpy(r->allowed + (size_t)(row + i) * choices, step_mask(step, from + i), choices);
        earlier[i] = step_flags(step, from + i);
    }
}

enum status rollout_record(struct rollout *r, const struct step *step, struct error *error)
{
    const size_t bytes = r->config.observation_bytes;
    const uint32_t agents = step->agents;
    enum status status = STATUS_OK;
    for (uint32_t i = 0, run; i < step->count && status == STATUS_OK; i += run) {
        run = step_run(step, i);
        const uint32_t from = i * agents, column = step->numbers[i] * agents, rows = run * agents;
        const uint32_t row = rollout_row(r, step->number, column);
        memcpy(r->observations + row * bytes, step->observations + from * bytes, rows * bytes);
        status = step_check_copy(step, r->observations + row * bytes, rows, error);
        record_flags(r, step, from, row, rows);
        if (step->number > 0)
            memcpy(r->rewards + row - r->columns, step->rewards + from, rows * sizeof *r->rewards);
    }
    if (status == STATUS_OK)
        status = rollout_record_last(r, step, error);
    for (uint32_t i = 0; i < step->rows && status == STATUS_OK && !rollout_is_closing(r, step); i++)
        r->lengths[step->numbers[i / agents] * agents + i % agents] = step->number + 1;
    return status;
}

/* Which part of the step's row `from` differs from the recorded row of this column: the observation, the
 * mask, or the reward or end of the step before. NULL: none. */
static const char *compare_row(const struct rollout *r, const struct step *step, uint32_t from,
                               uint32_t column)
{
    const size_t bytes = r->config.observation_bytes, choices = r->config.choices;
    const uint32_t row = rollout_row(r, step->number, column);
    const bool is_first = step->number == 0;
    const uint8_t flags = step_flags(step, from);
    if (!is_first && step->rewards[from] != r->rewards[row - r->columns])
        return "reward";
    if ((is_first ? flags & ENVIRONMENT_ABSENT : flags) != r->before[row])
        return "end";
    if (memcmp(step->observations + from * bytes, r->observations + row * bytes, bytes) != 0)
        return "observation";
    return choices > 0 && memcmp(step_mask(step, from), r->allowed + row * choices, choices) != 0 ? "mask"
                                                                                                  : NULL;
}

const char *rollout_compare(const struct rollout *r, const struct step *step, uint32_t first, uint32_t count,
                            uint32_t *environment)
{
    const uint32_t agents = r->config.agents;
    const char *what = NULL;
    uint32_t i = 0;
    for (uint32_t e = first; e < first + count && what == NULL; e++) {
        const bool lived = r->lengths[e * agents] > step->number || rollout_is_closing(r, step);
        const bool lives = i < step->count && step->numbers[i] == e;
        if (lives != lived)
            what = "end";
        for (uint32_t a = 0; a < agents && lives && what == NULL; a++)
            what = compare_row(r, step, i * agents + a, e * agents + a);
        *environment = e;
        i += lives;
    }
    return what == NULL && i < step->count ? "end" : what;
}

bool rollout_truncate(struct rollout *r, uint32_t environment, uint32_t step)
{
    uint32_t *lengths = r->lengths + (size_t)environment * r->config.agents;
    if (lengths[0] < step)
        return false;
    for (uint32_t a = 0; a < r->config.agents; a++)
        lengths[a] = step;
    return true;
}

bool rollout_is_absent(const struct rollout *r, uint32_t step, uint32_t column)
{
    if ((r->before[rollout_row(r, step, column)] & ENVIRONMENT_ABSENT) == 0)
        return false;
    if (step == 0)
        return true;
    const uint32_t agents = r->config.agents, first = column / agents * agents;
    return !environment_is_over(r->flags + rollout_row(r, step - 1, first), agents);
}

/* ---- acting ---- */

void rollout_gather(struct rollout *r, const struct step *step)
{
    for (uint32_t i = 0; i < step->rows; i++) {
        const uint32_t column = step->numbers[i / step->agents] * step->agents + i % step->agents;
        r->batch_column[r->batch_rows] = column;
        r->batch_step[r->batch_rows] = step->number;
        r->batch_row[r->batch_rows++] = rollout_row(r, step->number, column);
    }
}

struct policy_rows rollout_batch(const struct rollout *r, uint32_t count, const uint32_t *row)
{
    return (struct policy_rows){.count = count,
                                .row = row,
                                .observations = r->observations,
                                .actions = r->actions,
                                .allowed = r->allowed,
                                .dropout = r->masks,
                                .log_probabilities = r->log_probabilities,
                                .values = r->values,
                                .states = r->states,
                                .next = r->columns,
                                .starts = r->before};
}

enum status rollout_act(struct rollout *r, struct policy *policy, struct error *error)
{
    const struct policy_rows batch = rollout_batch(r, r->batch_rows, r->batch_row);
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    const enum status status = policy_act(policy, &batch, r->episode, r->batch_column, r->batch_step, error);
    profile_leave(before);
    r->batch_rows = 0;
    return status;
}

const void *rollout_actions(struct rollout *r, const struct policy *policy, const struct step *step)
{
    const size_t bytes = r->config.action_bytes;
    for (uint32_t i = 0, run; i < step->count; i += run) {
        run = step_run(step, i);
        memcpy((char *)r->answer + i * step->agents * bytes,
               r->actions + rollout_row(r, step->number, step->numbers[i] * step->agents) * bytes,
               run * step->agents * bytes);
    }
    policy_bound(policy, r->answer, step->rows);
    return r->answer;
}

/* ---- last observations ---- */

static char *last_at(const struct rollout *r, uint32_t i)
{
    return r->last_observations + i * r->config.observation_bytes;
}

/* Makes room for more; false: no memory. */
static bool grow_last(struct rollout *r, uint32_t capacity)
{
    uint32_t *rows = realloc(r->last_rows, capacity * sizeof *rows);
    if (rows != NULL)
        r->last_rows = rows;
    char *observations = realloc(r->last_observations, capacity * r->config.observation_bytes);
    if (observations != NULL)
        r->last_observations = observations;
    float *values = realloc(r->last_values, capacity * sizeof *values);
    if (values != NULL)
        r->last_values = values;
    float *states = realloc(r->last_states, (capacity * r->config.state_floats + 1) * sizeof *states);
    if (states != NULL)
        r->last_states = states;
    if (rows == NULL || observations == NULL || values == NULL || states == NULL)
        return false;
    r->last_capacity = capacity;
    return true;
}

/* Keeps the last observation of an episode that ended with the row, in the order of rows. */
static enum status add_last(struct rollout *r, uint32_t row, const struct step *step, const void *observation,
                            struct error *error)
{
    const size_t bytes = r->config.observation_bytes;
    uint32_t at = r->last_count;
    if (r->last_count == r->last_capacity && !grow_last(r, r->last_capacity * 2 + 16))
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u last observations", r->last_count + 1);
    while (at > 0 && r->last_rows[at - 1] > row)
        at--;
    memmove(r->last_rows + at + 1, r->last_rows + at, (r->last_count - at) * sizeof *r->last_rows);
    memmove(last_at(r, at + 1), last_at(r, at), (r->last_count - at) * bytes);
    memcpy(last_at(r, at), observation, bytes);
    r->last_rows[at] = row;
    r->last_count++;
    return step_check_copy(step, last_at(r, at), 1, error);
}

enum status rollout_record_last(struct rollout *r, const struct step *step, struct error *error)
{
    const char *last = step->last;
    enum status status = STATUS_OK;
    if (!r->config.bootstraps || step->number == 0)
        return STATUS_OK;
    for (uint32_t i = 0; i < step->rows && status == STATUS_OK; i++) {
        const uint8_t flags = step_flags(step, i);
        const uint32_t column = step->numbers[i / step->agents] * step->agents + i % step->agents;
        if (!step_ended(flags))
            continue;
        if (!environment_flags_have_no_future(flags))
            status = add_last(r, rollout_row(r, step->number - 1, column), step, last, error);
        last += step->observation_bytes;
    }
    return status;
}

uint32_t rollout_find_last(const struct rollout *r, uint32_t row)
{
    uint32_t low = 0, high = r->last_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (r->last_rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->last_count && r->last_rows[low] == row ? low : r->last_count;
}

void rollout_forget_last(struct rollout *r, uint32_t first, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->last_count; i++) {
        if (r->last_rows[i] % r->columns - first < count)
            continue;
        r->last_rows[kept] = r->last_rows[i];
        memmove(last_at(r, kept++), last_at(r, i), r->config.observation_bytes);
    }
    r->last_count = kept;
}

/* ---- copies ---- */

struct part {
    void *at;
    size_t bytes;
};

enum { PARTS = 11, FIXED_PARTS = 9 }; /* those behind the fixed ones have last_count elements */

/* All that a rollout that bootstraps has recorded. */
static void list_parts(const struct rollout *r, struct part parts[PARTS])
{
    const struct rollout_config *config = &r->config;
    const size_t rows = (size_t)r->columns * config->steps_max, closed = rows + r->columns;
    const struct part all[PARTS] = {{r->lengths, r->columns * sizeof *r->lengths},
                                    {r->observations, closed * config->observation_bytes},
                                    {r->actions, rows * config->action_bytes},
                                    {r->allowed, closed * config->choices},
                                    {r->rewards, rows * sizeof *r->rewards},
                                    {r->before, closed * sizeof *r->before},
                                    {r->log_probabilities, rows * sizeof *r->log_probabilities},
                                    {r->values, closed * sizeof *r->values},
                                    {r->states, closed * config->state_floats * sizeof *r->states},
                                    {r->last_rows, r->last_count * sizeof *r->last_rows},
                                    {r->last_observations, r->last_count * config->observation_bytes}};
    memcpy(parts, all, sizeof all);
}

static size_t parts_bytes(const struct part parts[], unsigned count)
{
    size_t sum = 0;
    for (unsigned i = 0; i < count; i++)
        sum += parts[i].bytes;
    return sum;
}

/* Makes room for so many last observations, and has so many. */
static enum status set_last_count(struct rollout *r, uint32_t count, struct error *error)
{
    if (count > r->last_capacity && !grow_last(r, count))
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u last observations", count);
    r->last_count = count;
    return STATUS_OK;
}

enum status rollout_copy(struct rollout *to, const struct rollout *from, struct error *error)
{
    struct part source[PARTS], target[PARTS];
    const enum status status = set_last_count(to, from->last_count, error);
    if (status != STATUS_OK)
        return status;
    to->episode = from->episode;
    list_parts(from, source);
    list_parts(to, target);
    for (unsigned i = 0; i < PARTS; i++)
        if (source[i].bytes > 0)
            memcpy(target[i].at, source[i].at, source[i].bytes);
    return STATUS_OK;
}

/* What stands before the parts. */
struct rollout_head {
    uint64_t bytes, fixed_bytes; /* of all parts; of the fixed ones */
    uint32_t columns, episode, last_count, unused;
};

bool rollout_archive(struct rollout *r, struct archive *archive, bool *fits, struct error *error)
{
    struct part parts[PARTS];
    list_parts(r, parts);
    const struct rollout_head mine = {.bytes = parts_bytes(parts, PARTS),
                                      .fixed_bytes = parts_bytes(parts, FIXED_PARTS),
                                      .columns = r->columns,
                                      .episode = r->episode,
                                      .last_count = r->last_count};
    struct rollout_head head = mine;
    if (!archive_move(archive, &head, sizeof head) || (archive_loads(archive) && head.bytes > archive->left))
        return false;
    *fits = head.columns == mine.columns && head.fixed_bytes == mine.fixed_bytes;
    if (!*fits)
        return archive_pass(archive, head.bytes) != NULL;
    if (head.last_count > r->columns * r->config.steps_max ||
        set_last_count(r, head.last_count, error) != STATUS_OK)
        return false;
    list_parts(r, parts);
    if (head.bytes != parts_bytes(parts, PARTS))
        return false;
    r->episode = head.episode;
    for (unsigned i = 0; i < PARTS; i++)
        if (parts[i].bytes > 0)
            archive_move(archive, parts[i].at, parts[i].bytes);
    return true;
}

/* ---- sums ---- */

uint64_t rollout_rows(const struct rollout *r)
{
    uint64_t rows = 0;
    for (uint32_t column = 0; column < r->columns; column++)
        rows += r->lengths[column];
    return rows;
}

static double first_segment_reward(const struct rollout *r, uint32_t column)
{
    double sum = 0;
    for (uint32_t step = 0; step < r->lengths[column]; step++) {
        uint32_t row = rollout_row(r, step, column);
        sum += (double)r->rewards[row];
        if (environment_flags_count(r->flags[row]))
            break;
    }
    return sum;
}

double rollout_reward(const struct rollout *r, bool least)
{
    double sum = 0, lowest = (double)INFINITY;
    for (uint32_t column = 0; column < r->columns; column++) {
        const double reward = first_segment_reward(r, column);
        sum += reward;
        lowest = fmin(lowest, reward);
    }
    return least ? lowest : sum / r->columns;
}

double rollout_reward_of_agent(const struct rollout *r, uint32_t agent)
{
    double sum = 0;
    for (uint32_t column = agent; column < r->columns; column += r->config.agents)
        sum += first_segment_reward(r, column);
    return sum / r->config.environments;
}
