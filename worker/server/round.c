/* Which contributions make a version, and where it may lie. Pure; the pserver's one thread calls it.
 *
 * There are at most a few hundred trainers and slots, so every function searches all of them. */
#include "worker/server/round.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct seat {
    uint64_t step; /* the next one */
    uint64_t held; /* ROUND_NO_VERSION: none */
    bool waiting;  /* the contribution of `step` is in */
    uint64_t base; /* its version */
    uint64_t turn; /* its place in the order of arrival */
};

struct round {
    int rule;
    uint32_t number, trainers, slots, first_worker;
    uint64_t version, late, turns;
    uint64_t slot[JOB_TRAINERS_MAX + 1]; /* (slots) the version in each */
    struct seat seat[];                  /* (trainers) */
};

uint32_t round_slots(const struct round_config *config)
{
    const uint32_t useful = config->trainers + 1;
    uint32_t slots = 2;
    if (config->rule == JOB_ROUND_FIRST)
        slots = 3;
    else if (config->rule == JOB_ROUND_ASYNC)
        slots = config->number < useful ? config->number + 2 : useful;
    return slots < useful ? slots : useful;
}

enum status round_new(struct round **out, const struct round_config *config, struct error *error)
{
    assert(config->trainers >= 1 && config->trainers <= JOB_TRAINERS_MAX);
    struct round *round = calloc(1, sizeof *round + config->trainers * sizeof round->seat[0]);
    if (round == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the round of %u trainers", config->trainers);
    round->rule = config->rule;
    round->number = config->number;
    round->trainers = config->trainers;
    round->slots = round_slots(config);
    round->first_worker = config->first_worker;
    round->version = config->version;
    for (uint32_t i = 0; i < round->slots; i++)
        round->slot[i] = i == 0 ? config->version : ROUND_NO_VERSION;
    for (uint32_t i = 0; i < round->trainers; i++)
        round->seat[i] =
            (struct seat){.step = config->steps != NULL ? config->steps[i] : 0, .held = ROUND_NO_VERSION};
    *out = round;
    return STATUS_OK;
}

void round_free(struct round *round)
{
    free(round);
}

uint64_t round_version(const struct round *round)
{
    return round->version;
}

uint64_t round_step(const struct round *round, uint32_t trainer)
{
    return round->seat[trainer].step;
}

uint32_t round_waiting(const struct round *round)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->trainers; i++)
        count += round->seat[i].waiting;
    return count;
}

uint64_t round_late(const struct round *round)
{
    return round->late;
}

bool round_has(const struct round *round, uint32_t trainer)
{
    return round->seat[trainer].waiting;
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
    uint32_t slot;
    bool lies = round_slot_of(round, version, &slot);
    assert(lies);
    (void)lies;
    round->seat[trainer].held = version;
}

enum status round_check_step(const struct round *round, uint32_t trainer, uint64_t step, struct error *error)
{
    const struct seat *seat = &round->seat[trainer];
    if (step == seat->step)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "trainer %u sent step %llu: expected step %llu",
                     round->first_worker + trainer, (unsigned long long)step, (unsigned long long)seat->step);
}

static enum status round_check_base(const struct round *round, uint32_t trainer, uint64_t base,
                                    struct error *error)
{
    const struct seat *seat = &round->seat[trainer];
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

enum status round_add(struct round *round, uint32_t trainer, uint64_t step, uint64_t base, bool *replay,
                      struct error *error)
{
    struct seat *seat = &round->seat[trainer];
    enum status status = round_check_step(round, trainer, step, error);
    if (status == STATUS_OK)
        status = round_check_base(round, trainer, base, error);
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
    struct seat *seat = &round->seat[trainer];
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

static bool round_is_late(const struct round *round, const struct seat *seat)
{
    uint64_t behind = round->version - seat->base;
    return seat->waiting && behind > (round->rule == JOB_ROUND_ASYNC ? round->number : 0);
}

bool round_take_late(struct round *round, uint32_t *trainer)
{
    for (uint32_t i = 0; i < round->trainers; i++) {
        struct seat *seat = &round->seat[i];
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
        const struct seat *seat = &round->seat[i];
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
        const struct seat *seat = &round->seat[i];
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
        uint64_t version = round->slot[i];
        if (version != ROUND_NO_VERSION && (version == round->version || round_is_held(round, version)))
            continue;
        *slot = i;
        return true;
    }
    return false;
}

void round_advance(struct round *round, uint32_t slot, const uint32_t *members, uint32_t count)
{
    assert(round->slot[slot] == ROUND_NO_VERSION ||
           (round->slot[slot] != round->version && !round_is_held(round, round->slot[slot])));
    for (uint32_t i = 0; i < count; i++) {
        struct seat *seat = &round->seat[members[i]];
        assert(seat->waiting);
        seat->waiting = false;
        seat->step++;
    }
    round->slot[slot] = ++round->version;
}
