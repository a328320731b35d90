/* A random history of columns, which a replay buffer and a naive model of it both hear of. The model keeps
 * each row whole, with both observations, and forgets none. */
#ifndef TEST_WORKER_REPLAY_REPLAY_HISTORY_H
#define TEST_WORKER_REPLAY_REPLAY_HISTORY_H

#include "worker/replay/replay.h"

enum {
    HISTORY_COLUMNS_MAX = 8,
    HISTORY_OBSERVATION_MAX = 96,
    HISTORY_ACTION_MAX = 16,
    HISTORY_CHOICES_MAX = 8,
    HISTORY_ROWS_MAX = 8000
};

struct history_row {
    enum { HISTORY_OPEN, HISTORY_WAITS, HISTORY_TRANSITION, HISTORY_TERMINATED, HISTORY_LAST } kind;
    uint64_t next; /* the successor's number */
    float reward;
    char observation[HISTORY_OBSERVATION_MAX];
    uint8_t mask[HISTORY_CHOICES_MAX];
    char action[HISTORY_ACTION_MAX];
};

/* Copied as a whole, it goes on from the copy as from the original. */
struct history {
    struct replay_config config;
    uint64_t random; /* the state of the generator */
    uint64_t next;
    uint64_t rows[HISTORY_COLUMNS_MAX]; /* the columns' open or waiting rows */
    bool lives[HISTORY_COLUMNS_MAX];    /* whether there is one */
    char seen[HISTORY_COLUMNS_MAX][HISTORY_OBSERVATION_MAX];
    struct history_row row[HISTORY_ROWS_MAX];
};

/* A small shape: of `frames` frames of (groups, frame_bytes). */
struct replay_config history_config(uint32_t columns, uint32_t frames, size_t groups, size_t frame_bytes);

/* malloc'ed. */
struct history *history_new(const struct replay_config *config, uint64_t seed);
struct history *history_copy(const struct history *history);

/* A vector step of both, or of the model alone where `replay` is NULL. Reserves. */
void history_step(struct history *history, struct replay *replay);

/* Fewer or more columns from now on; those that are no more are abandoned in the model alone. */
void history_set_columns(struct history *history, uint32_t columns);

/* The window by the model. */
struct replay_window history_window(const struct history *history);

/* Compares the window and all that can be gathered from it. */
void history_check(const struct history *history, const struct replay *replay);

/* How many transitions the window has. */
uint64_t history_transitions(const struct replay *replay);

/* A uniform number below `bound`. */
uint64_t history_below(struct history *history, uint64_t bound);

#endif
