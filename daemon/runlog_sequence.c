/* The order of a log's lines. Pure arithmetic. */
#include "daemon/runlog_sequence.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t sequence_step(const struct sequence *sequence)
{
    return sequence->step > 0 ? sequence->step : 1;
}

/* The next epoch's line is that of the epoch that ends at `update` or behind it. One that ends just there may
 * be in the part of the log that was moved away. */
static void sequence_begin_epochs(struct sequence *sequence, uint64_t update)
{
    const uint64_t updates = sequence->epoch_updates;
    if (updates == 0)
        return;
    sequence->due = (update + updates - 1) / updates * updates;
    sequence->due_is_here = sequence->due == update;
    sequence->epoch = update / updates;
}

void sequence_begin(struct sequence *sequence, uint64_t last)
{
    sequence->begun = true;
    sequence->last = last - last % sequence_step(sequence);
    sequence_begin_epochs(sequence, last);
}

/* Behind the end of an epoch whose line is here, the next one's is due. */
static void sequence_reach(struct sequence *sequence, uint64_t update)
{
    if (sequence->epoch_updates == 0 || update <= sequence->due || !sequence->due_is_here)
        return;
    sequence->due += sequence->epoch_updates;
    sequence->due_is_here = false;
}

static bool sequence_misses_epoch(const struct sequence *sequence, uint64_t update,
                                  char expected[SEQUENCE_EXPECTED_BYTES])
{
    if (sequence->epoch_updates == 0 || update <= sequence->due)
        return false;
    snprintf(expected, SEQUENCE_EXPECTED_BYTES, "epoch %" PRIu64, sequence->due / sequence->epoch_updates);
    return true;
}

static bool sequence_expects_number(const struct sequence *sequence, char expected[SEQUENCE_EXPECTED_BYTES])
{
    if (sequence->step > 0)
        snprintf(expected, SEQUENCE_EXPECTED_BYTES, "%s %" PRIu64, sequence->unit,
                 sequence->last + sequence->step);
    else
        snprintf(expected, SEQUENCE_EXPECTED_BYTES, "a later %s than %" PRIu64, sequence->unit,
                 sequence->last);
    return false;
}

static bool sequence_take_number(struct sequence *sequence, uint64_t number,
                                 char expected[SEQUENCE_EXPECTED_BYTES])
{
    const uint64_t step = sequence_step(sequence);
    if (!sequence->begun) {
        sequence_begin(sequence, number - 1);
        sequence->last = number > step ? number - step : 0;
    }
    sequence_reach(sequence, number);
    if (sequence_misses_epoch(sequence, number, expected))
        return false;
    if (sequence->step > 0 ? number != sequence->last + sequence->step : number <= sequence->last)
        return sequence_expects_number(sequence, expected);
    sequence->last = number;
    return true;
}

/* `update`: the epoch's last, or its regular end where the log does not say. */
static bool sequence_take_epoch(struct sequence *sequence, uint64_t epoch, uint64_t update,
                                char expected[SEQUENCE_EXPECTED_BYTES])
{
    const uint64_t line = update - update % sequence_step(sequence);
    if (!sequence->begun)
        sequence_begin(sequence, update);
    sequence_reach(sequence, update);
    if (sequence_misses_epoch(sequence, update, expected))
        return false;
    if (sequence->has_updates && (line > sequence->last || (sequence->is_told && epoch <= sequence->epoch)))
        return sequence_expects_number(sequence, expected);
    sequence->late = sequence->has_updates && line < sequence->last;
    if (!sequence->late && update == sequence->due)
        sequence->due_is_here = true;
    if (epoch > sequence->epoch)
        sequence->epoch = epoch;
    sequence->is_told = true;
    return true;
}

void sequence_take_event(struct sequence *sequence)
{
    sequence->is_told = sequence->late = false;
}

bool sequence_take(struct sequence *sequence, struct line_key key, char expected[SEQUENCE_EXPECTED_BYTES])
{
    struct sequence next = *sequence;
    const uint64_t updates = next.epoch_updates, end = key.epoch * updates;
    bool follows;
    next.late = false;
    if (key.kind != LINE_EPOCH) {
        follows = sequence_take_number(&next, key.number, expected);
    } else if (updates == 0) {
        snprintf(expected, SEQUENCE_EXPECTED_BYTES, "no epoch: the data has none");
        follows = false;
    } else if (key.epoch == 0 || (next.has_updates && (key.number > end || key.number + updates <= end))) {
        snprintf(expected, SEQUENCE_EXPECTED_BYTES,
                 "an epoch and the update that ends it, %" PRIu64 " to an epoch", updates);
        follows = false;
    } else {
        follows = sequence_take_epoch(&next, key.epoch, next.has_updates ? key.number : end, expected);
    }
    if (follows)
        *sequence = next;
    return follows;
}

uint64_t sequence_covered(const struct sequence *sequence)
{
    const uint64_t last = sequence->last + sequence_step(sequence) - 1;
    const uint64_t due = sequence->due + (sequence->due_is_here ? sequence->epoch_updates : 0);
    if (!sequence->begun)
        return UINT64_MAX;
    return sequence->epoch_updates > 0 && due < last ? due : last;
}
