/* Which contributions make a version, and where it may lie. Pure; the pserver's one thread calls it.
 *
 * There are at most a few hundred trainers and slots, so every function searches all of them. */
#include "worker/data_parallel/round.h"

#include <stdio.h>

static uint32_t round_slots(const struct round *round)
{
    const uint32_t useful = round->trainers + 1;
    uint32_t slots = 2;
    if (round->rule == JOB_ROUND_FIRST)
        slots = 3;
    else if (round->rule == JOB_ROUND_ASYNC)
        slots = round->number < useful ? round->number + 2 : useful;
    return slots < useful ? slots : useful;
}

void round_open(struct round *round, const struct job *job, uint64_t version, const uint64_t *steps)
{
    *round = (struct round){.rule = job->server.round.name,
                            .number = job->server.round.number,
                            .trainers = job_trainers(job),
                            .first_worker = job->server.count,
                            .version = version};
    round->slots = round_slots(round);
    for (uint32_t i = 0; i < round->slots; i++)
        round->slot[i] = i == 0 ? version : ROUND_NO_VERSION;
    for (uint32_t i = 0; i < round->trainers; i++)
        round->seat[i] = (struct round_seat){.step = steps[i], .held = ROUND_NO_VERSION};
}

uint32_t round_waiting(const struct round *round)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->trainers; i++)
        count += round->seat[i].waiting;
    return count;
}

bool round_slot_of(const struct round *round, uint64_t version, uint32_t *slot)
{
    for (uint32_t i = 0; version != ROUND_NO_VERSION && i < round->slots; i++)
        if (round->slot[i] == version) {
            *slot = i;
            return true;
        }
    return false;
}

void round_hold(struct round *round, uint32_t trainer, uint64_t version)
{
    round->seat[trainer].held = version;
}

enum status round_check_step(const struct round *round, uint32_t trainer, uint64_t step, struct error *error)
{
    const struct round_seat *seat = &round->seat[trainer];
    if (step == seat->step)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "trainer %u sent step %llu: expected step %llu",
                     round->first_worker + trainer, (unsigned long long)step, (unsigned long long)seat->step);
}

static enum status round_check_base(const struct round *round, uint32_t trainer, uint64_t base,
                                    struct error *error)
{
    const struct round_seat *seat = &round->seat[trainer];
    const uint64_t given = seat->held == ROUND_NO_VERSION && seat->waiting ? seat->base : seat->held;
    char expected[64];
    if (base > round->version)
        snprintf(expected, sizeof expected, "expected none above %llu", (unsigned long long)round->version);
    else if (given == ROUND_NO_VERSION)
        snprintf(expected, sizeof expected, "the trainer holds no version");
    else if (base != given)
        snprintf(expected, sizeof expected, "expected %llu, which it was given", (unsigned long long)given);
    else
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "trainer %u, step %llu: computed from version %llu: %s",
                     round->first_worker + trainer, (unsigned long long)seat->step, (unsigned long long)base,
                     expected);
}

enum status round_add(struct round *round, uint32_t trainer, uint64_t base, bool *replay, struct error *error)
{
    struct round_seat *seat = &round->seat[trainer];
    enum status status = round_check_base(round, trainer, base, error);
    if (status != STATUS_OK)
        return status;
    *replay = seat->waiting;
    if (!seat->waiting)
        seat->turn = round->turns++;
    seat->waiting = true;
    seat->base = base;
    seat->held = ROUND_NO_VERSION;
    return STATUS_OK;
}

void round_withdraw(struct round *round, uint32_t trainer)
{
    struct round_seat *seat = &round->seat[trainer];
    if (!seat->waiting)
        return;
    seat->waiting = false;
    if (seat->held == ROUND_NO_VERSION)
        seat->held = seat->base;
}

void round_forget(struct round *round, uint32_t trainer)
{
    round->seat[trainer].waiting = false;
    round->seat[trainer].held = ROUND_NO_VERSION;
}

static bool round_is_late(const struct round *round, const struct round_seat *seat)
{
    uint64_t behind = round->version - seat->base;
    return seat->waiting && behind > (round->rule == JOB_ROUND_ASYNC ? round->number : 0);
}

bool round_take_late(struct round *round, uint32_t *trainer)
{
    for (uint32_t i = 0; i < round->trainers; i++) {
        struct round_seat *seat = &round->seat[i];
        if (!round_is_late(round, seat))
            continue;
        seat->waiting = false;
        seat->step++;
        round->late++;
        *trainer = i;
        return true;
    }
    return false;
}

/* The number of contributions that arrived before `turn`, wait, and are not late. */
static uint32_t round_count_before(const struct round *round, uint64_t turn)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->trainers; i++) {
        const struct round_seat *seat = &round->seat[i];
        count += seat->waiting && !round_is_late(round, seat) && seat->turn < turn;
    }
    return count;
}

uint32_t round_members(const struct round *round, uint32_t *members)
{
    uint32_t needed = round->trainers, count = 0;
    if (round->rule == JOB_ROUND_FIRST)
        needed = round->number;
    else if (round->rule == JOB_ROUND_ASYNC)
        needed = 1;
    if (round_count_before(round, UINT64_MAX) < needed)
        return 0;
    for (uint32_t i = 0; i < round->trainers; i++) {
        const struct round_seat *seat = &round->seat[i];
        if (seat->waiting && !round_is_late(round, seat) && round_count_before(round, seat->turn) < needed)
            members[count++] = i;
    }
    return count;
}

static bool round_is_held(const struct round *round, uint64_t version)
{
    for (uint32_t i = 0; i < round->trainers; i++)
        if (round->seat[i].held == version)
            return true;
    return false;
}

bool round_free_slot(const struct round *round, uint32_t *slot)
{
    for (uint32_t i = 0; i < round->slots; i++) {
        const uint64_t version = round->slot[i];
        if (i == round->newest || (version != ROUND_NO_VERSION && round_is_held(round, version)))
            continue;
        *slot = i;
        return true;
    }
    return false;
}

void round_advance(struct round *round, uint32_t slot, const uint32_t *members, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct round_seat *seat = &round->seat[members[i]];
        seat->waiting = false;
        seat->step++;
    }
    round->slot[slot] = ++round->version;
    round->newest = slot;
}
