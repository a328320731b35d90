/* The naive model of a replay buffer. */
#include "test/worker/replay/replay_history.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct replay_config history_config(uint32_t columns, uint32_t frames, size_t groups, size_t frame_bytes)
{
    return (struct replay_config){.columns = columns,
                                  .observation_bytes = frames * groups * frame_bytes,
                                  .frames = frames,
                                  .frame_bytes = frame_bytes,
                                  .action_bytes = 6,
                                  .choices = 5,
                                  .rows = 150,
                                  .slack = 60};
}

struct history *history_new(const struct replay_config *config, uint64_t seed)
{
    struct history *h = calloc(1, sizeof *h);
    ck_assert_ptr_nonnull(h);
    ck_assert(config->observation_bytes <= HISTORY_OBSERVATION_MAX &&
              config->action_bytes <= HISTORY_ACTION_MAX && config->choices <= HISTORY_CHOICES_MAX &&
              config->columns <= HISTORY_COLUMNS_MAX);
    h->config = *config;
    h->random = seed;
    return h;
}

struct history *history_copy(const struct history *history)
{
    struct history *copy = malloc(sizeof *copy);
    ck_assert_ptr_nonnull(copy);
    *copy = *history;
    return copy;
}

/* SplitMix64. */
static uint64_t draw(struct history *h)
{
    uint64_t z = h->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t history_below(struct history *history, uint64_t bound)
{
    return draw(history) % bound;
}

static void draw_bytes(struct history *h, void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)draw(h);
}

/* Shifts the column's frames by one, and draws the newest; or fills all of them: with the newest again, or
 * with a past. */
static void look(struct history *h, uint32_t column, bool begins)
{
    const size_t bytes = h->config.frames > 1 ? h->config.frame_bytes : h->config.observation_bytes;
    const size_t joined = h->config.frames * bytes, groups = h->config.observation_bytes / joined;
    const bool has_past = begins && history_below(h, 3) == 0;
    for (size_t g = 0; g < groups; g++) {
        char *group = h->seen[column] + g * joined, *newest = group + joined - bytes;
        memmove(group, group + bytes, joined - bytes);
        draw_bytes(h, newest, bytes);
        for (uint32_t f = 0; begins && f + 1 < h->config.frames; f++) {
            memcpy(group + f * bytes, newest, bytes);
            if (has_past)
                draw_bytes(h, group + f * bytes, bytes);
        }
    }
}

static bool has_past(const struct history *h, uint32_t column)
{
    const size_t bytes = h->config.frame_bytes, joined = h->config.frames * bytes;
    for (size_t at = 0; h->config.frames > 1 && at < h->config.observation_bytes; at += bytes)
        if (memcmp(h->seen[column] + at, h->seen[column] + (at / joined + 1) * joined - bytes, bytes) != 0)
            return true;
    return false;
}

static struct history_row *append(struct history *h, uint32_t column, const uint8_t *mask)
{
    ck_assert_uint_lt(h->next, HISTORY_ROWS_MAX);
    struct history_row *row = h->row + h->next++;
    *row = (struct history_row){.kind = HISTORY_LAST};
    memcpy(row->observation, h->seen[column], h->config.observation_bytes);
    memset(row->mask, 1, sizeof row->mask);
    if (mask != NULL)
        memcpy(row->mask, mask, h->config.choices);
    return row;
}

static void abandon(struct history *h, struct replay *replay, uint32_t column)
{
    if (h->lives[column])
        h->row[h->rows[column]].kind = HISTORY_LAST;
    h->lives[column] = false;
    if (replay != NULL)
        replay_abandon(replay, column);
}

static void complete(struct history *h, struct replay *replay, uint32_t column)
{
    struct history_row *row = h->row + h->rows[column];
    const uint64_t dice = history_below(h, 100);
    const enum replay_end end = dice < 76   ? REPLAY_GOES_ON
                                : dice < 86 ? REPLAY_TERMINATED
                                : dice < 94 ? REPLAY_TRUNCATED
                                            : REPLAY_VOID;
    char action[HISTORY_ACTION_MAX];
    const float reward = (float)history_below(h, 1000);
    draw_bytes(h, action, sizeof action);
    h->lives[column] = end == REPLAY_GOES_ON;
    row->kind = end == REPLAY_GOES_ON      ? HISTORY_WAITS
                : end == REPLAY_TERMINATED ? HISTORY_TERMINATED
                : end == REPLAY_TRUNCATED  ? HISTORY_TRANSITION
                                           : HISTORY_LAST;
    row->reward = reward;
    row->next = end == REPLAY_TRUNCATED ? h->next : h->rows[column];
    memcpy(row->action, action, sizeof action);
    if (end == REPLAY_TRUNCATED) {
        look(h, column, false);
        append(h, column, NULL);
    }
    if (replay != NULL)
        replay_complete(replay, column, action, reward, end, h->seen[column]);
}

static void observe(struct history *h, struct replay *replay, uint32_t column)
{
    const bool begins = !h->lives[column], masked = history_below(h, 2) == 0;
    uint8_t mask[HISTORY_CHOICES_MAX];
    look(h, column, begins);
    for (size_t i = 0; i < sizeof mask; i++)
        mask[i] = (uint8_t)history_below(h, 2);
    if (begins && has_past(h, column))
        for (uint32_t f = 0; f + 1 < h->config.frames; f++)
            append(h, column, NULL);
    struct history_row *row = append(h, column, masked ? mask : NULL);
    row->kind = HISTORY_OPEN;
    if (!begins) {
        h->row[h->rows[column]].kind = HISTORY_TRANSITION;
        h->row[h->rows[column]].next = h->next - 1;
    }
    h->rows[column] = h->next - 1;
    h->lives[column] = true;
    if (replay != NULL)
        replay_observe(replay, column, h->seen[column], masked ? mask : NULL);
}

void history_step(struct history *history, struct replay *replay)
{
    struct history *h = history;
    struct error error;
    if (replay != NULL)
        ck_assert_msg(replay_reserve(replay, &error) == STATUS_OK, "%s", error.text);
    for (uint32_t c = 0; c < h->config.columns; c++)
        if (h->lives[c] && history_below(h, 20) == 0)
            abandon(h, replay, c);
        else if (h->lives[c])
            complete(h, replay, c);
    for (uint32_t c = 0; c < h->config.columns; c++)
        if (history_below(h, 20) == 0)
            abandon(h, replay, c);
        else
            observe(h, replay, c);
    for (uint32_t c = 0; replay != NULL && c < h->config.columns; c++)
        ck_assert(replay_is_open(replay, c) == h->lives[c]);
}

void history_set_columns(struct history *history, uint32_t columns)
{
    for (uint32_t c = columns; c < history->config.columns; c++)
        abandon(history, NULL, c);
    history->config.columns = columns;
}

/* ---- comparing ---- */

struct replay_window history_window(const struct history *history)
{
    uint64_t end = 0;
    while (end < history->next && history->row[end].kind != HISTORY_OPEN &&
           history->row[end].kind != HISTORY_WAITS)
        end++;
    return (struct replay_window){end > history->config.rows ? end - history->config.rows : 0, end};
}

static void check_row(const struct history *h, const struct replay *replay, uint64_t number)
{
    const struct history_row *row = h->row + number, *next = h->row + row->next;
    char observation[HISTORY_OBSERVATION_MAX], next_observation[HISTORY_OBSERVATION_MAX];
    char action[HISTORY_ACTION_MAX];
    uint8_t mask[HISTORY_CHOICES_MAX], terminated;
    float reward;
    const struct replay_batch batch = {observation, next_observation, action, mask, &reward, &terminated};
    replay_gather(replay, 1, &number, &batch);
    ck_assert_mem_eq(observation, row->observation, h->config.observation_bytes);
    ck_assert_mem_eq(next_observation, next->observation, h->config.observation_bytes);
    ck_assert_mem_eq(action, row->action, h->config.action_bytes);
    ck_assert_mem_eq(mask, next->mask, h->config.choices);
    ck_assert(reward == row->reward && terminated == (row->kind == HISTORY_TERMINATED));
}

uint64_t history_transitions(const struct replay *replay)
{
    const struct replay_window window = replay_window(replay);
    uint64_t count = 0;
    for (uint64_t row = window.first; row < window.end; row++)
        count += replay_is_transition(replay, row);
    return count;
}

void history_check(const struct history *history, const struct replay *replay)
{
    const struct replay_window expected = history_window(history), window = replay_window(replay);
    ck_assert_uint_eq(replay_next(replay), history->next);
    ck_assert_uint_eq(window.first, expected.first);
    ck_assert_uint_eq(window.end, expected.end);
    for (uint64_t row = window.first; row < window.end; row++) {
        const bool is_transition = history->row[row].kind != HISTORY_LAST;
        ck_assert(replay_is_transition(replay, row) == is_transition);
        if (is_transition)
            check_row(history, replay, row);
    }
}
