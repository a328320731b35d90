/* The room worker/replay: the replay buffer of off-policy learning (DQN, SAC, TD3). It includes kernels/base
 * alone; worker/reinforce includes it.
 *
 *     column       one agent of one environment: its rows follow one another in time
 *     row          a transition, or an observation that no action followed; numbered 0, 1, 2, … in all
 *     open row     has its observation, and waits for its action's reward
 *     waiting row  has gone on, and waits for its successor
 *     final row    neither open nor waiting: it changes no more
 *     successor    the row with the observation behind a transition
 *     window       the rows to draw from: the newest config.rows ones below the lowest row that is not final
 *     reach        rows below the window that its rows' older frames may lie in
 *     slot         a row's place in the file: its number % capacity
 *     slack        rows that may be appended behind a checkpoint before rows that it needs are overwritten
 *     vector step  one step of all columns
 *
 * Rows lie in a ring, in a file that is mapped, or in memory. Every observation is kept once: a transition's
 * next observation is its successor's. Of an observation that is several frames joined, a row keeps the
 * newest frame; gathering takes the older ones from the episode's rows before. Where an episode's first
 * observation has a past, older frames that are not the newest one again, that past gets rows of its own.
 *
 * A vector step is: replay_reserve; for each column, ascending, replay_complete of the row that it opened in
 * the step before; then for each column, ascending, replay_observe. The ring's contents then do not depend on
 * the order of messages. A column that is not stepped on is abandoned: its open row would hold the window
 * back.
 *
 * A row has a CRC-32C of its number and of all its bytes, at any moment between two calls.
 *
 * One thread, the owner, calls these functions. While it appends, one other thread may draw, gather and ask
 * replay_is_transition, and a third one may flush. The owner hands them windows and numbers under a lock or
 * in a message. A window stays good until replay_slack rows are appended to those that were there.
 *
 * Only replay_open, replay_reserve, replay_flush, replay_grow and replay_load do I/O. But a row that the
 * kernel has not in memory is read from the disk when it is touched. Only replay_open and replay_grow
 * allocate.
 *
 * Limits. A file system that copies on each write (btrfs, ZFS) reserves nothing for the later laps: a full
 * disk may still end the process by SIGBUS there. Rows in memory end with the process: what replay_save wrote
 * of them cannot be loaded by another one. */
#ifndef WORKER_REPLAY_REPLAY_H
#define WORKER_REPLAY_REPLAY_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct replay_config {
    struct path path; /* of the file; its text NULL: memory alone */
    bool resumes;     /* the file must be there, of the same shape, and replay_grow and replay_load
                         come next; otherwise it is made anew */
    uint32_t columns;
    size_t observation_bytes; /* of a whole one: (groups, frames, frame_bytes), the oldest frame first */
    uint32_t frames;          /* joined in one observation, at least 1 */
    size_t frame_bytes;       /* of the last axis of one frame; frames 1: not read */
    size_t action_bytes;
    uint32_t choices; /* bytes of an action mask; 0: there is none */
    uint64_t rows;    /* the window that is drawn from: buffer_size */
    uint64_t slack;
};

enum replay_end {
    REPLAY_GOES_ON,
    REPLAY_TERMINATED, /* the next state has no future: its value is 0 */
    REPLAY_TRUNCATED,  /* the episode was cut; its last observation has a future */
    REPLAY_VOID        /* failed, or the last observation is lost: the row never becomes a transition */
};

struct replay;

/* Makes the file, or opens it, and maps it. A new file of that name replaces an old one. STATUS_INVALID: the
 * shape makes no sense, or is not the file's. STATUS_CORRUPT: not a replay file, or a damaged header.
 * STATUS_IO, STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_NO_MEMORY. A link is not followed. */
enum status replay_open(struct replay **out, const struct replay_config *config, struct error *error);
void replay_close(struct replay *replay);

/* Bytes of a row: at most 23 more than one frame, the action and the mask. */
size_t replay_row_bytes(const struct replay *replay);

/* Rows in the ring: rows + slack + what the columns need, (frames + 2) * columns for the rows that are not
 * final, and (frames - 1) * (frames + 1) * columns of reach. */
uint64_t replay_capacity(const struct replay *replay);

/* The slack that there is: config.slack, or more in a file that was made for more columns or slack. It must
 * be more than the rows that are appended between two checkpoints. */
uint64_t replay_slack(const struct replay *replay);

/* ---- appending ---- */

/* Takes the disk's room for the next vector step; nothing fails in it then. STATUS_IO: the disk is full; the
 * sentence says how many bytes had no room. Past the first lap, and in memory, nothing is to be done. */
enum status replay_reserve(struct replay *replay, struct error *error);

/* Opens the column's next row; it has no open one. `mask`: (choices), 1 is allowed; NULL: all are. */
void replay_observe(struct replay *replay, uint32_t column, const void *observation, const uint8_t *mask);

/* The column's open row becomes a transition, but with REPLAY_VOID: then `action` and `reward` are not read,
 * and it stays as replay_abandon leaves it. `last`: with REPLAY_TRUNCATED the last observation, which becomes
 * a row of its own, with a mask that allows everything; else not read. */
void replay_complete(struct replay *replay, uint32_t column, const void *action, float reward,
                     enum replay_end end, const void *last);

/* The column is stepped no more, or begins anew. Its open or waiting row stays as the successor of the one
 * before, as a last observation; what a waiting row earned is forgotten. The next observation begins an
 * episode. Nothing happens where an episode has ended, or none has begun. */
void replay_abandon(struct replay *replay, uint32_t column);

bool replay_is_open(const struct replay *replay, uint32_t column);

/* The number of the next row. */
uint64_t replay_next(const struct replay *replay);

/* ---- drawing ---- */

/* Rows first … end - 1. */
struct replay_window {
    uint64_t first, end;
};

/* The window now. */
struct replay_window replay_window(const struct replay *replay);

/* Whether a row of a window is a transition. */
bool replay_is_transition(const struct replay *replay, uint64_t row);

/* Draws `count` transitions of the window, uniformly and with replacement. Row i of update u is the first
 * transition among the rows first + rng_below(…, end - first). Block b of RNG_REPLAY at the key {seed,
 * environment i, step 0, episode u} has draws 2 b, of words 0 and 1, and 2 b + 1, of words 2 and 3. False:
 * the window has no transition. */
bool replay_draw(const struct replay *replay, struct replay_window window, uint64_t seed, uint32_t update,
                 uint32_t count, uint64_t *rows);

/* A member that is NULL is left out. A terminated row's next observation and mask are its own: what comes of
 * them is multiplied by 0. */
struct replay_batch {
    void *observations;      /* (count, observation_bytes) */
    void *next_observations; /* (count, observation_bytes) */
    void *actions;           /* (count, action_bytes) */
    uint8_t *masks;          /* (count, choices) of the next observation */
    float *rewards;          /* (count) */
    uint8_t *terminated;     /* (count) 0 or 1 */
};

/* Copies transitions of a window. */
void replay_gather(const struct replay *replay, uint32_t count, const uint64_t *rows,
                   const struct replay_batch *batch);

/* ---- checkpoints ----
 *
 * A checkpoint's bytes, of replay_save, hold the rows from the window's end on, because these still change.
 * The rows below are in the file. The owner, at a checkpoint:
 *
 *     end = replay_window(replay).end, mark = replay_next(replay), replay_save
 *     on the checkpoint's thread: replay_flush(replay, from, end), then write and publish the bytes
 *     from = end, for the next one; at first 0, or the window's end after replay_load
 *
 * and the next checkpoint is published before replay_next(replay) - mark exceeds replay_slack(replay). Rows
 * in the file behind a checkpoint, as a loss of power may leave them, do not matter. */

/* The rows `from` … end - 1 are on the disk when it returns. In memory: nothing. STATUS_IO; what failed is
 * never tried again. */
enum status replay_flush(const struct replay *replay, uint64_t from, uint64_t end, struct error *error);

/* Writes counters, columns, the window's checksum, and the rows from its end on. Returns the bytes; `out`
 * NULL: only that. */
size_t replay_save(const struct replay *replay, char *out);

/* Gives the ring as many rows as a new one of this configuration has, if it has fewer: observers were added,
 * or more checkpoints are kept. The rows before the one that comes next to what replay_save wrote get their
 * places in a file of its own, "PATH.new", which then takes the name. So older checkpoints stay good, too.
 * The configuration is that of replay_open. Errors as replay_open and replay_load. */
enum status replay_grow(struct replay *replay, const struct replay_config *config, const char *from,
                        size_t bytes, struct error *error);

/* Continues with the same bits from what replay_save wrote. Reads every row of the window, and of its reach:
 * checks numbers and CRCs, and the checksum of them all, which finds a file of another run. Columns that were
 * saved and are no more are abandoned; new ones begin. Returns the bytes read. 0: with a sentence, which
 * names the row that is damaged, missing or stale; only replay_close may follow. */
size_t replay_load(struct replay *replay, const char *from, size_t bytes, struct error *error);

#endif
