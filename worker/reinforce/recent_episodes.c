/* Keeps the returns and lengths of the newest episodes in a ring. */
#include "worker/reinforce/recent_episodes.h"

#include "worker/environment/environment.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status recent_episodes_open(struct recent_episodes *recent, uint32_t columns, uint32_t window,
                                 struct error *error)
{
    *recent = (struct recent_episodes){.columns = columns,
                                       .window = window,
                                       .last = calloc(window, sizeof *recent->last),
                                       .so_far = calloc(columns, sizeof *recent->so_far)};
    if (recent->last == NULL || recent->so_far == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for %u episodes that have ended and %u that go on", window, columns);
    return STATUS_OK;
}

void recent_episodes_close(struct recent_episodes *recent)
{
    free(recent->last);
    free(recent->so_far);
    *recent = (struct recent_episodes){0};
}

static void take_row(struct recent_episodes *recent, const struct rollout *rollout, uint32_t step,
                     uint32_t column)
{
    const uint32_t row = rollout_row(rollout, step, column);
    struct recent_episode *so_far = &recent->so_far[column];
    if (rollout_is_absent(rollout, step, column))
        return;
    so_far->reward += (double)rollout->rewards[row];
    so_far->length++;
    if (rollout->flags[row] == 0)
        return;
    if ((rollout->flags[row] & ENVIRONMENT_FAILED) == 0)
        recent->last[recent->ended++ % recent->window] = *so_far;
    *so_far = (struct recent_episode){0};
}

void recent_episodes_take(struct recent_episodes *recent, const struct rollout *rollout)
{
    for (uint32_t step = 0; step < rollout->config.steps_max; step++)
        for (uint32_t column = 0; column < recent->columns; column++)
            if (step < rollout->lengths[column])
                take_row(recent, rollout, step, column);
}

void recent_episodes_forget(struct recent_episodes *recent, uint32_t first, uint32_t count)
{
    memset(recent->so_far + first, 0, count * sizeof *recent->so_far);
}

void recent_episodes_mean(const struct recent_episodes *recent, double *reward, double *length)
{
    const uint64_t count = recent->ended < recent->window ? recent->ended : recent->window;
    *reward = *length = count > 0 ? 0 : (double)NAN;
    for (uint64_t i = 0; i < count; i++) {
        *reward += recent->last[i].reward / (double)count;
        *length += (double)recent->last[i].length / (double)count;
    }
}

/* ---- bytes ---- */

/* What stands before the window and so_far. */
struct head {
    uint64_t columns, window, ended;
};

size_t recent_episodes_bytes(const struct recent_episodes *recent)
{
    return sizeof(struct head) + ((size_t)recent->window + recent->columns) * sizeof(struct recent_episode);
}

void recent_episodes_write(const struct recent_episodes *recent, char *out)
{
    const struct head head = {.columns = recent->columns, .window = recent->window, .ended = recent->ended};
    const size_t bytes = recent->window * sizeof *recent->last;
    memcpy(out, &head, sizeof head);
    memcpy(out + sizeof head, recent->last, bytes);
    memcpy(out + sizeof head + bytes, recent->so_far, recent->columns * sizeof *recent->so_far);
}

size_t recent_episodes_read(struct recent_episodes *recent, const char *from, size_t bytes)
{
    const size_t window = sizeof(struct head) + recent->window * sizeof *recent->last;
    struct head head = {0};
    if (bytes >= window)
        memcpy(&head, from, sizeof head);
    if (head.columns == 0 || head.window != recent->window ||
        head.columns > (bytes - window) / sizeof *recent->so_far)
        return 0;
    recent->ended = head.ended;
    memcpy(recent->last, from + sizeof head, window - sizeof head);
    memcpy(recent->so_far, from + window,
           (head.columns < recent->columns ? head.columns : recent->columns) * sizeof *recent->so_far);
    return window + head.columns * sizeof *recent->so_far;
}
