/* The ring of rows: appending, drawing, gathering, and the bytes of a checkpoint.
 *
 * A row lies in slot number % capacity as
 *
 *     struct row_head     20 bytes
 *     frame               (groups, frame_bytes) the observation's newest frame; alone, the observation
 *     mask                (choices)
 *     action              (action_bytes), and zeros up to a multiple of 4
 *
 * and all of it but the head's CRC is summed, the row's number first. The CRC of number, frame and mask is
 * kept while a row is open or waits, so that its changes sum a few bytes.
 *
 * The owner writes a row's head and action until the row is final. The other thread reads these of final rows
 * alone; of a successor, which may be open, it reads frame, mask and `back`, which change no more. */
#include "worker/replay/replay.h"

#include "kernels/base/crc32c.h"
#include "kernels/base/rng.h"
#include "worker/replay/replay_file.h"

#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRAMES_MAX = 64,
    BYTES_MAX = 1 << 30, /* of an observation, an action, a mask */
    LINE_BYTES = 64,
    ROW_AHEAD = 16, /* rows that gathering fetches ahead; and their successors, whose place the rows tell */
    SUCCESSOR_BEHIND = 8,
    NEAR_BYTES = 512, /* as much of a row is fetched ahead; of longer ones the processor fetches the rest */
    DRAWS_PATIENCE = 64, /* before the window is searched for a transition */
};

#define ROWS_MAX (UINT64_C(1) << 40)

enum row_kind {
    ROW_NONE,
    ROW_OPEN,
    ROW_GOES_ON, /* a transition; without `next` it waits for its successor */
    ROW_TERMINATED,
    ROW_LAST, /* an observation that no action followed */
    ROW_KINDS
};

struct row_head {
    uint32_t crc;
    uint32_t tag;  /* the number's lower 24 bits, and the kind in the lowest 8 */
    uint32_t next; /* distance to the successor's row; 0: none */
    uint32_t back; /* distance to the episode's row before; 0: the episode's first */
    float reward;
};
_Static_assert(sizeof(struct row_head) == 20, "the file's format");

enum column_state { COLUMN_IDLE, COLUMN_OPEN, COLUMN_WAITS };

/* Where a column's episode stands. */
struct column {
    enum column_state state;
    uint32_t crc; /* of the row's number, frame and mask */
    uint64_t row; /* the one that is open or waits */
};

struct replay {
    /* These change no more once it is opened, and loaded. */
    struct replay_config config;
    struct replay_file *file;
    char *rows;         /* (capacity, row_bytes) */
    size_t row_bytes;   /* a multiple of 4 */
    size_t seen_bytes;  /* of frame and mask */
    size_t acted_bytes; /* of the action, and the zeros behind it */
    size_t groups;      /* of a frame; 1 where an observation is one frame */
    size_t frame_bytes; /* of a group; of the observation where that is one frame */
    uint64_t capacity, reach, slack;

    /* The owner's. */
    uint64_t next;
    struct replay_window window;
    uint64_t kept;     /* the lowest row of the window's reach */
    uint64_t checksum; /* of the rows kept … window.end - 1 */
    struct column *columns;
};

size_t replay_row_bytes(const struct replay *replay)
{
    return replay->row_bytes;
}

uint64_t replay_capacity(const struct replay *replay)
{
    return replay->capacity;
}

uint64_t replay_slack(const struct replay *replay)
{
    return replay->slack;
}

uint64_t replay_next(const struct replay *replay)
{
    return replay->next;
}

struct replay_window replay_window(const struct replay *replay)
{
    return replay->window;
}

bool replay_is_open(const struct replay *replay, uint32_t column)
{
    return replay->columns[column].state == COLUMN_OPEN;
}

/* ---- opening ---- */

/* Rows that may lie between a row that is not final and the next one: those of a vector step and a half, in
 * which every episode ends and begins with a past. */
static uint64_t rows_not_final(const struct replay_config *config)
{
    return (uint64_t)config->columns * (config->frames + 2);
}

/* Each of the frames - 1 older frames lies a vector step back. */
static uint64_t rows_of_reach(const struct replay_config *config)
{
    return (uint64_t)config->columns * (config->frames + 1) * (config->frames - 1);
}

static enum status check_config(const struct replay_config *config, struct error *error)
{
    const size_t frame = config->frame_bytes, whole = config->observation_bytes;
    if (config->columns == 0 || config->rows == 0)
        return error_set(error, STATUS_INVALID, "a replay buffer of %u columns and %llu rows: expected some",
                         config->columns, (unsigned long long)config->rows);
    if (whole == 0 || whole > BYTES_MAX || config->action_bytes == 0 || config->action_bytes > BYTES_MAX ||
        config->choices > BYTES_MAX)
        return error_set(error, STATUS_INVALID,
                         "a replay buffer with %zu bytes of an observation, %zu of an action, %u choices: "
                         "expected 1..%d, 1..%d and at most that",
                         whole, config->action_bytes, config->choices, BYTES_MAX, BYTES_MAX);
    if (config->frames == 0 || config->frames > FRAMES_MAX ||
        (config->frames > 1 && (frame == 0 || frame > whole || whole % (frame * config->frames) != 0)))
        return error_set(
            error, STATUS_INVALID,
            "a replay buffer of %u frames with %zu bytes in the last axis: expected 1..%d frames "
            "that make up the %zu bytes of an observation",
            config->frames, frame, FRAMES_MAX, whole);
    if (config->rows > ROWS_MAX || config->slack > ROWS_MAX ||
        rows_of_reach(config) + rows_not_final(config) > UINT32_MAX)
        return error_set(error, STATUS_INVALID,
                         "a replay buffer of %llu rows and %llu of slack, for %u columns: expected fewer",
                         (unsigned long long)config->rows, (unsigned long long)config->slack,
                         config->columns);
    return STATUS_OK;
}

static uint64_t capacity_of(const struct replay_config *config)
{
    return config->rows + config->slack + rows_of_reach(config) + rows_not_final(config);
}

static void measure_rows(struct replay *r)
{
    const struct replay_config *config = &r->config;
    const bool joined = config->frames > 1;
    r->frame_bytes = joined ? config->frame_bytes : config->observation_bytes;
    r->groups = joined ? config->observation_bytes / config->frames / config->frame_bytes : 1;
    r->seen_bytes = r->groups * r->frame_bytes + config->choices;
    r->row_bytes = (sizeof(struct row_head) + r->seen_bytes + config->action_bytes + 3) / 4 * 4;
    r->acted_bytes = r->row_bytes - sizeof(struct row_head) - r->seen_bytes;
    r->reach = rows_of_reach(config);
    r->capacity = capacity_of(config);
}

/* What the ring has beside the rows that must stay. */
static enum status find_slack(struct replay *r, struct error *error)
{
    const uint64_t needed = r->config.rows + r->reach + rows_not_final(&r->config);
    if (needed > r->capacity)
        return error_set(
            error, STATUS_INVALID,
            "%.300s: %u columns are too many for its ring: it has %llu rows, expected %llu or more",
            replay_file_name(r->file), r->config.columns, (unsigned long long)r->capacity,
            (unsigned long long)needed);
    r->slack = r->capacity - needed;
    return STATUS_OK;
}

static struct replay_shape shape_of(const struct replay *r)
{
    return (struct replay_shape){.observation_bytes = r->config.observation_bytes,
                                 .frames = r->config.frames,
                                 .frame_bytes = r->frame_bytes,
                                 .action_bytes = r->config.action_bytes,
                                 .choices = r->config.choices,
                                 .window_rows = r->config.rows,
                                 .row_bytes = r->row_bytes,
                                 .capacity = r->capacity};
}

/* The slack of a file that is resumed is found when it has grown, and is loaded. */
static enum status open_file(struct replay *r, const struct replay_config *config, struct error *error)
{
    struct replay_shape shape = shape_of(r);
    enum status status = config->resumes && config->path.text != NULL
                             ? replay_file_resume(&r->file, config->path, &shape, error)
                             : replay_file_new(&r->file, config->path, &shape, error);
    if (status != STATUS_OK)
        return status;
    r->rows = replay_file_rows(r->file);
    r->capacity = shape.capacity;
    r->config.path = (struct path){0}; // the caller's
    return config->resumes ? STATUS_OK : find_slack(r, error);
}

enum status replay_open(struct replay **out, const struct replay_config *config, struct error *error)
{
    *out = NULL;
    enum status status = check_config(config, error);
    if (status != STATUS_OK)
        return status;
    struct replay *r = calloc(1, sizeof *r);
    if (r != NULL && (r->columns = calloc(config->columns, sizeof *r->columns)) != NULL) {
        r->config = *config;
        measure_rows(r);
        status = open_file(r, config, error);
    } else {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a replay buffer of %u columns",
                           config->columns);
    }
    if (status != STATUS_OK) {
        replay_close(r);
        return status;
    }
    *out = r;
    return STATUS_OK;
}

void replay_close(struct replay *replay)
{
    if (replay == NULL)
        return;
    replay_file_close(replay->file);
    free(replay->columns);
    free(replay);
}

/* ---- a row ---- */

static char *row_in(const struct replay *r, uint64_t slot)
{
    return r->rows + slot * r->row_bytes;
}

static char *row_at(const struct replay *r, uint64_t number)
{
    return row_in(r, number % r->capacity);
}

static struct row_head *head_of(char *row)
{
    return (struct row_head *)(void *)row;
}

static char *seen_of(char *row)
{
    return row + sizeof(struct row_head);
}

static char *acted_of(const struct replay *r, char *row)
{
    return row + sizeof(struct row_head) + r->seen_bytes;
}

static uint32_t tag_of(uint64_t number, enum row_kind kind)
{
    return (uint32_t)number << 8 | kind;
}

static enum row_kind kind_of(const struct row_head *head)
{
    return (enum row_kind)(head->tag & 0xff);
}

static bool is_final(const struct row_head *head)
{
    const enum row_kind kind = kind_of(head);
    return kind == ROW_TERMINATED || kind == ROW_LAST || (kind == ROW_GOES_ON && head->next > 0);
}

static bool is_transition(const struct row_head *head)
{
    return is_final(head) && kind_of(head) != ROW_LAST;
}

bool replay_is_transition(const struct replay *replay, uint64_t row)
{
    return is_transition(head_of(row_at(replay, row)));
}

static uint32_t crc_of_seen(const struct replay *r, uint64_t number, char *row)
{
    return crc32c_extend(crc32c(&number, sizeof number), seen_of(row), r->seen_bytes);
}

static uint32_t crc_of_row(const struct replay *r, uint32_t crc_seen, char *row)
{
    const struct row_head *head = head_of(row);
    const uint32_t crc = crc32c_extend(crc_seen, acted_of(r, row), r->acted_bytes);
    return crc32c_extend(crc, &head->tag, sizeof *head - sizeof head->crc);
}

static void row_seal(const struct replay *r, uint32_t crc_seen, char *row)
{
    head_of(row)->crc = crc_of_row(r, crc_seen, row);
}

/* ---- the window ---- */

/* A row's share of the checksum: a sum, so that rows can leave it (SplitMix64's finalizer). */
static uint64_t checksum_of(const struct replay *r, uint64_t number)
{
    uint64_t mixed = (uint64_t)head_of(row_at(r, number))->crc + number * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

/* Moves the window on, over the rows that are final by now. */
static void window_move(struct replay *r)
{
    struct replay_window *window = &r->window;
    for (; window->end < r->next && is_final(head_of(row_at(r, window->end))); window->end++)
        r->checksum += checksum_of(r, window->end);
    if (window->end - window->first > r->config.rows)
        window->first = window->end - r->config.rows;
    for (; r->kept + r->reach < window->first; r->kept++)
        r->checksum -= checksum_of(r, r->kept);
}

/* ---- appending ---- */

enum status replay_reserve(struct replay *replay, struct error *error)
{
    const uint64_t rows = replay->next + (uint64_t)replay->config.columns * (replay->config.frames + 1);
    return replay_file_reserve(
        replay->file, (rows < replay->capacity ? rows : replay->capacity) * replay->row_bytes, error);
}

/* Where frame f of an observation's group g stands. */
static const char *frame_in(const struct replay *r, const void *observation, size_t g, uint32_t f)
{
    return (const char *)observation + (g * r->config.frames + f) * r->frame_bytes;
}

/* The bytes of one group as a constant, for the compiler. */
static inline __attribute__((always_inline)) void
pick_groups(const struct replay *r, char *to, const void *observation, uint32_t f, size_t bytes)
{
    for (size_t g = 0; g < r->groups; g++)
        memcpy(to + g * bytes, frame_in(r, observation, g, f), bytes);
}

/* Four frames of one byte in each group, Atari's: as words, which becomes vector code. */
static void pick_of_four_bytes(char *to, const char *observation, size_t groups, uint32_t f)
{
    for (size_t g = 0; g < groups; g++) {
        uint32_t word;
        memcpy(&word, observation + g * sizeof word, sizeof word);
        to[g] = (char)(word >> 8 * f);
    }
}

static void pick_frame(const struct replay *r, char *to, const void *observation, uint32_t f)
{
    if (r->frame_bytes == 1 && r->config.frames == 4)
        pick_of_four_bytes(to, observation, r->groups, f);
    else if (r->frame_bytes == 1)
        pick_groups(r, to, observation, f, 1);
    else if (r->frame_bytes == 3)
        pick_groups(r, to, observation, f, 3);
    else
        pick_groups(r, to, observation, f, r->frame_bytes);
}

/* Appends a row with frame f of an observation, and returns the CRC of what it shows. */
static uint32_t row_append(struct replay *r, enum row_kind kind, const void *observation, uint32_t f,
                           const uint8_t *mask, uint32_t back)
{
    const uint64_t number = r->next, slot = number % r->capacity;
    char *row = row_in(r, slot);
    assert((slot + 1) * r->row_bytes <= replay_file_room(r->file)); // replay_reserve was called
    assert(number < r->capacity || number - r->capacity < r->kept); // no column was left behind
    *head_of(row) = (struct row_head){.tag = tag_of(number, kind), .back = back};
    pick_frame(r, seen_of(row), observation, f);
    if (r->config.choices > 0 && mask != NULL)
        memcpy(acted_of(r, row) - r->config.choices, mask, r->config.choices);
    else
        memset(acted_of(r, row) - r->config.choices, 1, r->config.choices);
    memset(acted_of(r, row), 0, r->acted_bytes);
    const uint32_t crc = crc_of_seen(r, number, row);
    row_seal(r, crc, row);
    r->next++;
    return crc;
}

/* Whether the observation's older frames are another than the newest. */
static bool has_past(const struct replay *r, const void *observation)
{
    const uint32_t newest = r->config.frames - 1;
    for (size_t g = 0; g < r->groups; g++)
        for (uint32_t f = 0; f < newest; f++)
            if (memcmp(frame_in(r, observation, g, f), frame_in(r, observation, g, newest), r->frame_bytes) !=
                0)
                return true;
    return false;
}

/* Appends the rows of the observation's older frames, if it has a past. Returns the next row's `back`. */
static uint32_t past_append(struct replay *r, const void *observation)
{
    if (!has_past(r, observation))
        return 0;
    for (uint32_t f = 0; f + 1 < r->config.frames; f++)
        row_append(r, ROW_LAST, observation, f, NULL, f > 0);
    return 1;
}

void replay_observe(struct replay *replay, uint32_t column, const void *observation, const uint8_t *mask)
{
    struct column *c = replay->columns + column;
    assert(column < replay->config.columns && c->state != COLUMN_OPEN);
    const uint32_t back =
        c->state == COLUMN_WAITS ? (uint32_t)(replay->next - c->row) : past_append(replay, observation);
    const uint64_t number = replay->next;
    const uint32_t crc = row_append(replay, ROW_OPEN, observation, replay->config.frames - 1, mask, back);
    if (c->state == COLUMN_WAITS) {
        char *before = row_at(replay, c->row);
        head_of(before)->next = back;
        row_seal(replay, c->crc, before);
    }
    *c = (struct column){.state = COLUMN_OPEN, .crc = crc, .row = number};
    window_move(replay);
}

void replay_complete(struct replay *replay, uint32_t column, const void *action, float reward,
                     enum replay_end end, const void *last)
{
    struct column *c = replay->columns + column;
    assert(column < replay->config.columns && c->state == COLUMN_OPEN);
    assert(end != REPLAY_TRUNCATED || last != NULL);
    if (end == REPLAY_VOID) {
        replay_abandon(replay, column);
        return;
    }
    char *row = row_at(replay, c->row);
    struct row_head *head = head_of(row);
    memcpy(acted_of(replay, row), action, replay->config.action_bytes);
    head->reward = reward;
    head->tag = tag_of(c->row, end == REPLAY_TERMINATED ? ROW_TERMINATED : ROW_GOES_ON);
    if (end == REPLAY_TRUNCATED) {
        head->next = (uint32_t)(replay->next - c->row);
        row_append(replay, ROW_LAST, last, replay->config.frames - 1, NULL, head->next);
    }
    row_seal(replay, c->crc, row);
    c->state = end == REPLAY_GOES_ON ? COLUMN_WAITS : COLUMN_IDLE;
    window_move(replay);
}

static void column_abandon(struct replay *r, struct column *c)
{
    char *row = row_at(r, c->row);
    struct row_head *head = head_of(row);
    if (c->state == COLUMN_IDLE)
        return;
    head->tag = tag_of(c->row, ROW_LAST);
    head->reward = 0;
    memset(acted_of(r, row), 0, r->acted_bytes);
    row_seal(r, c->crc, row);
    c->state = COLUMN_IDLE;
}

void replay_abandon(struct replay *replay, uint32_t column)
{
    assert(column < replay->config.columns);
    column_abandon(replay, replay->columns + column);
    window_move(replay);
}

/* ---- drawing ---- */

/* Draw `draw` of element i of an update. */
static uint64_t draw_below(uint64_t seed, uint32_t update, uint32_t i, uint64_t draw, uint64_t bound)
{
    const struct rng_key key = {.seed = seed, .environment = i, .episode = update};
    uint32_t words[4];
    assert(draw / 2 <= RNG_BLOCK_MAX);
    rng_block(&key, RNG_REPLAY, (uint32_t)(draw / 2), words);
    return rng_below(words[draw % 2 * 2], words[draw % 2 * 2 + 1], bound);
}

static bool has_transition(const struct replay *r, struct replay_window window)
{
    for (uint64_t row = window.first; row < window.end; row++)
        if (replay_is_transition(r, row))
            return true;
    return false;
}

/* Fetches the cache lines of some bytes of a row, into the second cache: it waits for more of them at once.
 * gcc leaves out the call of a function that only fetches; so these are no calls. */
static inline __attribute__((always_inline)) void fetch(const char *from, size_t bytes)
{
    const size_t near = bytes < NEAR_BYTES ? bytes : NEAR_BYTES;
    for (size_t at = 0; at < near; at += LINE_BYTES)
        __builtin_prefetch(from + at, 0, 2);
    __builtin_prefetch(from + near - 1, 0, 2);
}

/* The slot that lies `distance` behind this one. */
static uint64_t slot_behind(const struct replay *r, uint64_t slot, uint64_t distance)
{
    return slot + distance < r->capacity ? slot + distance : slot + distance - r->capacity;
}

static uint64_t slot_before(const struct replay *r, uint64_t slot, uint64_t distance)
{
    return slot >= distance ? slot - distance : slot + r->capacity - distance;
}

static uint64_t successor_of(const struct replay *r, uint64_t slot)
{
    return slot_behind(r, slot, head_of(row_in(r, slot))->next);
}

/* Fetches what gathering reads of a transition's successor. */
static inline __attribute__((always_inline)) void fetch_successor(const struct replay *r, uint64_t slot)
{
    char *next = row_in(r, successor_of(r, slot));
    if (r->config.frames > 1)
        fetch(next, sizeof(struct row_head));
    fetch(seen_of(next), r->seen_bytes);
}

/* What draws share. */
struct draws {
    uint64_t seed;
    uint32_t update;
    struct replay_window window;
    uint64_t first; /* the window's first slot */
};

static uint64_t slot_in(const struct replay *r, const struct draws *draws, uint64_t row)
{
    return slot_behind(r, draws->first, row - draws->window.first);
}

/* Draws again until a transition is met. False: the window has none. */
static bool draw_transition(const struct replay *r, const struct draws *draws, uint32_t i, uint64_t *row)
{
    const uint64_t bound = draws->window.end - draws->window.first;
    for (uint64_t draw = 1; !is_transition(head_of(row_in(r, slot_in(r, draws, *row)))); draw++) {
        if (draw == DRAWS_PATIENCE && !has_transition(r, draws->window))
            return false;
        *row = draws->window.first + draw_below(draws->seed, draws->update, i, draw, bound);
    }
    fetch_successor(r, slot_in(r, draws, *row));
    return true;
}

/* The rows of the first draws are fetched while the next ones are drawn, and then their successors, for the
 * one who gathers. */
bool replay_draw(const struct replay *replay, struct replay_window window, uint64_t seed, uint32_t update,
                 uint32_t count, uint64_t *rows)
{
    const uint64_t bound = window.end - window.first;
    const struct draws draws = {seed, update, window, window.first % replay->capacity};
    bool drawn = bound > 0;
    for (uint32_t i = 0; i < count && drawn; i++) {
        rows[i] = window.first + draw_below(seed, update, i, 0, bound);
        fetch(row_in(replay, slot_in(replay, &draws, rows[i])), replay->row_bytes);
        if (i >= ROW_AHEAD)
            drawn = draw_transition(replay, &draws, i - ROW_AHEAD, rows + i - ROW_AHEAD);
    }
    for (uint32_t i = count > ROW_AHEAD ? count - ROW_AHEAD : 0; i < count && drawn; i++)
        drawn = draw_transition(replay, &draws, i, rows + i);
    return drawn;
}

/* ---- gathering ---- */

/* The bytes of one group as a constant, for the compiler. */
static inline __attribute__((always_inline)) void join_groups(const struct replay *r, char *to,
                                                              const char *const *frames, size_t bytes)
{
    for (uint32_t f = 0; f < r->config.frames; f++)
        for (size_t g = 0; g < r->groups; g++)
            memcpy(to + (g * r->config.frames + f) * bytes, frames[f] + g * bytes, bytes);
}

/* As pick_of_four_bytes. */
static void join_four_bytes(char *to, const char *const *frames, size_t groups)
{
    const uint8_t *a = (const uint8_t *)frames[0], *b = (const uint8_t *)frames[1];
    const uint8_t *c = (const uint8_t *)frames[2], *d = (const uint8_t *)frames[3];
    for (size_t g = 0; g < groups; g++) {
        const uint32_t word = a[g] | (uint32_t)b[g] << 8 | (uint32_t)c[g] << 16 | (uint32_t)d[g] << 24;
        memcpy(to + g * sizeof word, &word, sizeof word);
    }
}

static void join_frames(const struct replay *r, char *to, const char *const *frames)
{
    if (r->frame_bytes == 1 && r->config.frames == 4)
        join_four_bytes(to, frames, r->groups);
    else if (r->frame_bytes == 1)
        join_groups(r, to, frames, 1);
    else if (r->frame_bytes == 3)
        join_groups(r, to, frames, 3);
    else
        join_groups(r, to, frames, r->frame_bytes);
}

/* Copies a few bytes, or many, without a call where they are few. */
static inline void copy(char *to, const char *from, size_t bytes)
{
    enum { WORD = 16, FEW = 256 };
    if (bytes < WORD || bytes > FEW) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t at = 0; at < bytes - WORD; at += WORD)
        memcpy(to + at, from + at, WORD);
    memcpy(to + bytes - WORD, from + bytes - WORD, WORD);
}

static void gather_observation(const struct replay *r, uint64_t slot, char *to)
{
    const char *frames[FRAMES_MAX];
    uint32_t f = r->config.frames - 1;
    if (f == 0) {
        copy(to, seen_of(row_in(r, slot)), r->config.observation_bytes);
        return;
    }
    frames[f] = seen_of(row_in(r, slot));
    while (f-- > 0) {
        slot = slot_before(r, slot, head_of(row_in(r, slot))->back);
        frames[f] = seen_of(row_in(r, slot));
    }
    join_frames(r, to, frames);
}

static void gather_row(const struct replay *r, uint32_t i, uint64_t slot, const struct replay_batch *batch)
{
    char *row = row_in(r, slot);
    const uint64_t next = successor_of(r, slot);
    const size_t observation_bytes = r->config.observation_bytes, action_bytes = r->config.action_bytes;
    if (batch->observations != NULL)
        gather_observation(r, slot, (char *)batch->observations + i * observation_bytes);
    if (batch->next_observations != NULL)
        gather_observation(r, next, (char *)batch->next_observations + i * observation_bytes);
    if (batch->actions != NULL)
        copy((char *)batch->actions + i * action_bytes, acted_of(r, row), action_bytes);
    if (batch->masks != NULL)
        memcpy(batch->masks + (size_t)i * r->config.choices, acted_of(r, row_in(r, next)) - r->config.choices,
               r->config.choices);
    if (batch->rewards != NULL)
        batch->rewards[i] = head_of(row)->reward;
    if (batch->terminated != NULL)
        batch->terminated[i] = kind_of(head_of(row)) == ROW_TERMINATED;
}

/* The slot of a row, by that of another one: a division takes as long as a copy. */
static uint64_t slot_from(const struct replay *r, uint64_t row, uint64_t other, uint64_t other_slot)
{
    return row >= other ? slot_behind(r, other_slot, row - other) : slot_before(r, other_slot, other - row);
}

void replay_gather(const struct replay *replay, uint32_t count, const uint64_t *rows,
                   const struct replay_batch *batch)
{
    const uint64_t base = count > 0 ? rows[0] % replay->capacity : 0;
    uint64_t slots[ROW_AHEAD]; // of rows i … i + ROW_AHEAD - 1, round and round
    for (uint32_t ahead = 0; ahead < count + ROW_AHEAD; ahead++) {
        const uint32_t i = ahead - ROW_AHEAD;
        if (ahead >= ROW_AHEAD)
            gather_row(replay, i, slots[i % ROW_AHEAD], batch);
        if (ahead < count) {
            slots[ahead % ROW_AHEAD] = slot_from(replay, rows[ahead], rows[0], base);
            fetch(row_in(replay, slots[ahead % ROW_AHEAD]), replay->row_bytes);
        }
        if (ahead >= SUCCESSOR_BEHIND && ahead - SUCCESSOR_BEHIND < count)
            fetch_successor(replay, slots[(ahead - SUCCESSOR_BEHIND) % ROW_AHEAD]);
    }
}

/* ---- checkpoints ---- */

struct saved {
    uint64_t bytes;                     /* of all that is saved */
    uint64_t crc;                       /* of what is behind it */
    uint64_t row_bytes, capacity, rows; /* the ring's shape */
    uint64_t next, first, end, kept, reach, checksum;
    uint64_t columns;
};

struct saved_column {
    uint64_t row;
    uint64_t state;
};

enum status replay_flush(const struct replay *replay, uint64_t from, uint64_t end, struct error *error)
{
    if (from >= end)
        return STATUS_OK;
    if (end - from >= replay->capacity)
        from = end - replay->capacity;
    const uint64_t begin = from % replay->capacity, behind = begin + (end - from);
    const uint64_t first_end = behind < replay->capacity ? behind : replay->capacity;
    const enum status status =
        replay_file_flush(replay->file, begin * replay->row_bytes, first_end * replay->row_bytes, error);
    if (status != STATUS_OK || behind <= replay->capacity)
        return status;
    return replay_file_flush(replay->file, 0, (behind - replay->capacity) * replay->row_bytes, error);
}

static uint32_t crc_of_saved(const char *saved, size_t bytes)
{
    return crc32c(saved + offsetof(struct saved, row_bytes), bytes - offsetof(struct saved, row_bytes));
}

size_t replay_save(const struct replay *replay, char *out)
{
    const struct replay *r = replay;
    const size_t columns_bytes = r->config.columns * sizeof(struct saved_column);
    const size_t bytes =
        sizeof(struct saved) + columns_bytes + (size_t)(r->next - r->window.end) * r->row_bytes;
    struct saved saved = {.bytes = bytes,
                          .row_bytes = r->row_bytes,
                          .capacity = r->capacity,
                          .rows = r->config.rows,
                          .next = r->next,
                          .first = r->window.first,
                          .end = r->window.end,
                          .kept = r->kept,
                          .reach = r->reach,
                          .checksum = r->checksum,
                          .columns = r->config.columns};
    if (out == NULL)
        return bytes;
    char *begin = out;
    memcpy(out, &saved, sizeof saved);
    out += sizeof saved;
    for (uint32_t c = 0; c < r->config.columns; c++, out += sizeof(struct saved_column)) {
        const struct column *column = r->columns + c;
        const struct saved_column copy = {.row = column->state == COLUMN_IDLE ? 0 : column->row,
                                          .state = column->state};
        memcpy(out, &copy, sizeof copy);
    }
    for (uint64_t row = r->window.end; row < r->next; row++, out += r->row_bytes)
        memcpy(out, row_at(r, row), r->row_bytes);
    saved.crc = crc_of_saved(begin, bytes);
    memcpy(begin + offsetof(struct saved, crc), &saved.crc, sizeof saved.crc);
    return bytes;
}

/* Whether the counters fit each other, and the bytes behind them. */
static bool saved_is_sound(const struct replay *r, const struct saved *saved)
{
    const uint64_t behind = saved->bytes - sizeof *saved;
    return saved->kept <= saved->first && saved->first <= saved->end && saved->end <= saved->next &&
           saved->end - saved->first <= saved->rows && saved->next - saved->kept <= saved->capacity &&
           saved->reach < saved->capacity && saved->columns > 0 &&
           saved->columns <= behind / sizeof(struct saved_column) &&
           behind == saved->columns * sizeof(struct saved_column) + (saved->next - saved->end) * r->row_bytes;
}

/* Decodes the counters. */
static enum status read_saved(const struct replay *r, struct saved *saved, const char *from, size_t bytes,
                              struct error *error)
{
    const char *name = replay_file_name(r->file);
    *saved = (struct saved){0};
    if (bytes >= sizeof *saved)
        memcpy(saved, from, sizeof *saved);
    if (saved->bytes < sizeof *saved || saved->bytes > bytes ||
        crc_of_saved(from, saved->bytes) != saved->crc)
        return error_set(error, STATUS_CORRUPT, "the checkpoint of %.300s is cut or damaged", name);
    if (saved->row_bytes != r->row_bytes || saved->rows != r->config.rows || saved->capacity > r->capacity)
        return error_set(error, STATUS_INVALID,
                         "%.300s has a ring of %llu rows of %zu bytes, %llu to draw from: the checkpoint "
                         "expects at least %llu rows of %llu bytes, %llu to draw from",
                         name, (unsigned long long)r->capacity, r->row_bytes,
                         (unsigned long long)r->config.rows, (unsigned long long)saved->capacity,
                         (unsigned long long)saved->row_bytes, (unsigned long long)saved->rows);
    if (!saved_is_sound(r, saved))
        return error_set(error, STATUS_CORRUPT, "the checkpoint of %.300s contradicts itself", name);
    return STATUS_OK;
}

/* Whether the row's links lie within the ring's bounds, and its older frames within the reach. */
static bool links_are_sound(const struct replay *r, const struct row_head *head, uint64_t number)
{
    return head->next < r->next - number && head->back <= number && head->back < r->capacity &&
           (uint64_t)head->back * (r->config.frames - 1) <= r->reach;
}

/* Whether the place of a row holds, in good order, the row of the lap before or behind. */
static bool row_is_of(const struct replay *r, char *row, uint64_t number)
{
    return crc_of_row(r, crc_of_seen(r, number, row), row) == head_of(row)->crc;
}

/* What is wrong with a row whose CRC does not fit. */
static enum status explain_row(const struct replay *r, char *row, uint64_t number, struct error *error)
{
    const char *name = replay_file_name(r->file);
    const uint64_t later = number + r->capacity, earlier = number - r->capacity;
    if (row_is_of(r, row, later) || row_is_of(r, row, earlier))
        return error_set(error, STATUS_CORRUPT, "%.300s: row %llu is stale: its place holds row %llu", name,
                         (unsigned long long)number,
                         (unsigned long long)(row_is_of(r, row, later) ? later : earlier));
    return error_set(error, STATUS_CORRUPT, "%.300s: row %llu is damaged: its CRC-32C is %08x, expected %08x",
                     name, (unsigned long long)number, crc_of_row(r, crc_of_seen(r, number, row), row),
                     head_of(row)->crc);
}

static bool is_zero(const char *bytes, size_t count)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

static enum status check_row(const struct replay *r, uint64_t number, struct error *error)
{
    const char *name = replay_file_name(r->file);
    const unsigned long long row_number = number;
    char *row = row_at(r, number);
    if ((number % r->capacity + 1) * r->row_bytes > replay_file_room(r->file))
        return error_set(error, STATUS_CORRUPT, "%.300s: row %llu is missing: the file is cut", name,
                         row_number);
    if (!row_is_of(r, row, number)) {
        if (is_zero(row, r->row_bytes))
            return error_set(error, STATUS_CORRUPT, "%.300s: row %llu is missing: its place is empty", name,
                             row_number);
        return explain_row(r, row, number, error);
    }
    const struct row_head *head = head_of(row);
    if (head->tag != tag_of(number, kind_of(head)) || kind_of(head) == ROW_NONE ||
        kind_of(head) >= ROW_KINDS || !links_are_sound(r, head, number))
        return error_set(error, STATUS_CORRUPT, "%.300s: row %llu is damaged: its links lead nowhere", name,
                         row_number);
    return STATUS_OK;
}

/* Checks the rows of the window and its reach. */
static enum status check_rows(struct replay *r, const struct saved *saved, struct error *error)
{
    enum status status = STATUS_OK;
    r->checksum = 0;
    for (uint64_t row = saved->kept; row < saved->end; row++) {
        if ((status = check_row(r, row, error)) != STATUS_OK)
            return status;
        if (!is_final(head_of(row_at(r, row))))
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: row %llu is stale: it waits for its action or its successor",
                             replay_file_name(r->file), (unsigned long long)row);
        r->checksum += checksum_of(r, row);
    }
    if (r->checksum != saved->checksum)
        return error_set(
            error, STATUS_CORRUPT, "%.300s: rows %llu to %llu are sound, but not those of this checkpoint",
            replay_file_name(r->file), (unsigned long long)saved->kept, (unsigned long long)saved->end - 1);
    return STATUS_OK;
}

/* Puts the rows from the window's end on into their places, over what is there. */
static enum status load_tail(struct replay *r, const char *from, struct error *error)
{
    const uint64_t slots = r->next < r->capacity ? r->next : r->capacity;
    enum status status = replay_file_reserve(r->file, slots * r->row_bytes, error);
    for (uint64_t row = r->window.end; row < r->next && status == STATUS_OK; row++) {
        memcpy(row_at(r, row), from, r->row_bytes);
        from += r->row_bytes;
        status = check_row(r, row, error);
    }
    return status;
}

/* The column's row is the one that it says; a column that is no more is abandoned. */
static enum status load_column(struct replay *r, uint64_t number, const struct saved_column *saved,
                               struct error *error)
{
    struct column column = {.state = (enum column_state)saved->state, .row = saved->row};
    if (saved->state == COLUMN_IDLE)
        return STATUS_OK;
    const bool in_tail = saved->row >= r->window.end && saved->row < r->next;
    char *row = row_at(r, in_tail ? saved->row : 0);
    const enum row_kind expected = saved->state == COLUMN_OPEN ? ROW_OPEN : ROW_GOES_ON;
    if (saved->state > COLUMN_WAITS || !in_tail || is_final(head_of(row)) ||
        kind_of(head_of(row)) != expected)
        return error_set(error, STATUS_CORRUPT, "%.300s: row %llu of column %llu is not as it was saved",
                         replay_file_name(r->file), (unsigned long long)saved->row,
                         (unsigned long long)number);
    column.crc = crc_of_seen(r, column.row, row);
    if (number < r->config.columns)
        r->columns[number] = column;
    else
        column_abandon(r, &column);
    return STATUS_OK;
}

static enum status load_columns(struct replay *r, uint64_t columns, const char *from, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint64_t c = 0; c < columns && status == STATUS_OK; c++) {
        struct saved_column saved;
        memcpy(&saved, from + c * sizeof saved, sizeof saved);
        status = load_column(r, c, &saved, error);
    }
    return status;
}

/* Copies the rows below `next` that are in the file to their places in a larger ring. */
static void copy_rows(const struct replay *r, struct replay_file *to, uint64_t capacity, uint64_t next)
{
    const uint64_t room = replay_file_room(r->file) / r->row_bytes;
    for (uint64_t row = next > r->capacity ? next - r->capacity : 0; row < next; row++)
        if (row % r->capacity < room)
            memcpy(replay_file_rows(to) + row % capacity * r->row_bytes, row_at(r, row), r->row_bytes);
}

enum status replay_grow(struct replay *replay, const struct replay_config *config, const char *from,
                        size_t bytes, struct error *error)
{
    struct replay *r = replay;
    struct replay_shape shape = shape_of(r);
    struct replay_file *grown;
    struct saved saved;
    char name[PATH_MAX];
    struct path path = config->path;
    shape.capacity = capacity_of(config);
    if (shape.capacity <= r->capacity)
        return STATUS_OK;
    enum status status = read_saved(r, &saved, from, bytes, error);
    if (status != STATUS_OK)
        return status;
    snprintf(name, sizeof name, "%s.new", path.text);
    path.text = name;
    status = replay_file_new(&grown, path, &shape, error);
    if (status != STATUS_OK)
        return status;
    const uint64_t room = (saved.next < shape.capacity ? saved.next : shape.capacity) * r->row_bytes;
    status = replay_file_reserve(grown, room, error);
    if (status == STATUS_OK) {
        copy_rows(r, grown, shape.capacity, saved.next);
        status = replay_file_flush(grown, 0, room, error);
    }
    if (status == STATUS_OK)
        status = replay_file_rename(grown, config->path, error);
    if (status != STATUS_OK) {
        replay_file_discard(grown);
        return status;
    }
    replay_file_close(r->file);
    r->file = grown;
    r->rows = replay_file_rows(grown);
    r->capacity = shape.capacity;
    return STATUS_OK;
}

size_t replay_load(struct replay *replay, const char *from, size_t bytes, struct error *error)
{
    struct replay *r = replay;
    struct saved saved;
    if (read_saved(r, &saved, from, bytes, error) != STATUS_OK)
        return 0;
    const char *columns = from + sizeof saved, *tail = columns + saved.columns * sizeof(struct saved_column);
    const uint64_t reach = r->reach > saved.reach ? r->reach : saved.reach;
    r->next = saved.next;
    r->window = (struct replay_window){saved.first, saved.end};
    r->kept = saved.kept;
    r->reach = saved.reach;
    if (check_rows(r, &saved, error) != STATUS_OK || load_tail(r, tail, error) != STATUS_OK ||
        load_columns(r, saved.columns, columns, error) != STATUS_OK)
        return 0;
    r->reach = reach;
    if (find_slack(r, error) != STATUS_OK)
        return 0;
    window_move(r);
    return saved.bytes;
}
