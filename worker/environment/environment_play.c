/* Plays a probe with random actions, and records what each step gave. */
#include "worker/environment/environment_play.h"

#include "kernels/base/fnv.h"
#include "kernels/base/rng.h"
#include "worker/environment/environment_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- traces ---- */

enum status play_trace_new(struct play_trace *trace, uint32_t subjects, uint32_t steps, uint32_t agents,
                           struct error *error)
{
    const size_t records = (size_t)subjects * (steps + 1) * agents;
    *trace = (struct play_trace){.subjects = subjects, .steps = steps, .agents = agents};
    trace->records = calloc(records, sizeof *trace->records);
    if (trace->records == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the record of %zu steps", records);
    return STATUS_OK;
}

void play_trace_free(struct play_trace *trace)
{
    free(trace->records);
    trace->records = NULL;
}

static struct play_record *record_at(const struct play_trace *trace, uint32_t subject, uint32_t step,
                                     uint32_t agent)
{
    return &trace->records[((size_t)subject * (trace->steps + 1) + step) * trace->agents + agent];
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The name of what differs; NULL: nothing. */
static const char *difference(const struct play_record *a, const struct play_record *b)
{
    return a->flags != b->flags                             ? "the flags differ"
           : float_bits(a->reward) != float_bits(b->reward) ? "the reward differs"
           : a->observation != b->observation               ? "the observation differs"
           : a->mask != b->mask                             ? "the mask differs"
           : a->metrics != b->metrics                       ? "the metrics differ"
           : a->first != b->first                           ? "the state after the reset that follows differs"
                                                            : NULL;
}

enum status play_compare(const struct play_trace *expected, const struct play_trace *found,
                         struct error *error)
{
    for (uint32_t step = 0; step <= expected->steps; step++)
        for (uint32_t subject = 0; subject < expected->subjects; subject++)
            for (uint32_t agent = 0; agent < expected->agents; agent++) {
                const char *what = difference(record_at(expected, subject, step, agent),
                                              record_at(found, subject, step, agent));
                char of[32] = "", when[32] = "after its first reset";
                if (what == NULL)
                    continue;
                if (expected->agents > 1)
                    snprintf(of, sizeof of, ", agent %u", agent);
                if (step > 0)
                    snprintf(when, sizeof when, "in its step %u", step);
                return error_set(
                    error, STATUS_CORRUPT,
                    "environment %u%s, %s: %s from that of an instance with equal seeds and actions", subject,
                    of, when, what);
            }
    return STATUS_OK;
}

/* ---- actions ---- */

static void draw_words(const struct play *play, const struct play_seat *seat, uint32_t agent,
                       uint32_t element, uint32_t words[4])
{
    const struct rng_key key = {
        .seed = play->seed, .environment = seat->number, .step = seat->step, .episode = agent};
    rng_block(&key, RNG_ACTION, element, words);
}

/* A choice that the mask allows; any choice without a mask. */
static int32_t draw_choice(const uint32_t words[4], uint32_t choices, const uint8_t *mask)
{
    uint32_t allowed = 0;
    for (uint32_t i = 0; i < choices; i++)
        allowed += mask == NULL || mask[i] != 0;
    uint64_t left = rng_below(words[0], words[1], allowed);
    for (uint32_t i = 0; i < choices; i++)
        if ((mask == NULL || mask[i] != 0) && left-- == 0)
            return (int32_t)i;
    return 0;
}

/* Within low..high; one draw in eight is a bound itself. */
static float draw_number(const uint32_t words[4], double low, double high)
{
    const double uniform = rng_uniform_double(words[0], words[1]);
    const uint32_t edge = words[2] % 16;
    float value = (float)(edge == 0 ? low : edge == 1 ? high : low + uniform * (high - low));
    while ((double)value < low)
        value = nextafterf(value, INFINITY);
    while ((double)value > high)
        value = nextafterf(value, -INFINITY);
    return value;
}

static void draw_row(const struct play *play, uint32_t environment, uint32_t agent)
{
    const struct play_seat *seat = &play->seats[environment];
    const struct environment_space *space = &play->probe->spec->action;
    const size_t elements = environment_space_elements(space);
    const uint8_t flags = *(const uint8_t *)probe_row(play->probe, PROBE_FLAGS, environment, agent);
    const bool absent = seat->episode_step > 0 && (flags & ENVIRONMENT_ABSENT) != 0;
    const uint8_t *mask = play->probe->spec->has_mask && !absent
                              ? probe_row(play->probe, PROBE_MASK, environment, agent)
                              : NULL;
    uint8_t *row = probe_row(play->probe, PROBE_ACTION, environment, agent);
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t words[4];
        draw_words(play, seat, agent, i, words);
        if (space->choices != NULL) {
            const int32_t choice = draw_choice(words, space->choices[i], mask);
            memcpy(row + sizeof choice * i, &choice, sizeof choice);
            mask = mask != NULL ? mask + space->choices[i] : NULL;
        } else {
            const float number = draw_number(words, space->low[i], space->high[i]);
            memcpy(row + sizeof number * i, &number, sizeof number);
        }
    }
}

void play_draw_actions(const struct play *play, uint32_t environment)
{
    for (uint32_t agent = 0; agent < play->probe->spec->agents; agent++)
        draw_row(play, environment, agent);
}

/* ---- the record ---- */

static uint64_t row_hash(const struct play *play, uint64_t hash, enum probe_area area, uint32_t environment,
                         uint32_t agent)
{
    return fnv1a(hash, probe_row(play->probe, area, environment, agent), play->probe->areas[area].row_bytes);
}

static bool is_subject(const struct play *play, uint32_t environment)
{
    return play->seats[environment].number < PLAY_NEIGHBOURS_FIRST;
}

static void record_reset(const struct play *play, uint32_t environment)
{
    const struct play_seat *seat = &play->seats[environment];
    for (uint32_t agent = 0; is_subject(play, environment) && agent < play->trace->agents; agent++)
        record_at(play->trace, seat->number, seat->step, agent)->first =
            row_hash(play, row_hash(play, FNV1A_BEGIN, PROBE_OBSERVATION, environment, agent), PROBE_MASK,
                     environment, agent);
}

/* A row that is absent, or of an environment that failed, holds nothing but its flags. */
static void record_step(const struct play *play, uint32_t environment)
{
    const struct play_seat *seat = &play->seats[environment];
    const struct probe *probe = play->probe;
    for (uint32_t agent = 0; is_subject(play, environment) && agent < play->trace->agents; agent++) {
        struct play_record record = {.flags =
                                         *(const uint8_t *)probe_row(probe, PROBE_FLAGS, environment, agent)};
        if ((record.flags & (ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED)) == 0) {
            memcpy(&record.reward, probe_row(probe, PROBE_REWARD, environment, agent), sizeof record.reward);
            record.observation = row_hash(play, FNV1A_BEGIN, PROBE_OBSERVATION, environment, agent);
            record.mask = row_hash(play, FNV1A_BEGIN, PROBE_MASK, environment, agent);
        }
        if ((record.flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0)
            record.metrics = row_hash(play, FNV1A_BEGIN, PROBE_METRICS, environment, agent);
        *record_at(play->trace, seat->number, seat->step, agent) = record;
    }
}

/* ---- playing ---- */

static void seat_all(struct play *play)
{
    for (uint32_t i = 0; i < play->probe->count; i++)
        play->seats[i].number = PLAY_NEIGHBOURS_FIRST * (play->cast.generation + 1) + i;
    for (uint32_t i = 0; i < play->cast.subjects; i++)
        play->seats[play->cast.places[i]].number = play->cast.first + i;
}

/* Resets the n environments of play->which. */
static enum status reset_listed(struct play *play, uint32_t n, struct error *error)
{
    for (uint32_t i = 0; i < n; i++) {
        struct play_seat *seat = &play->seats[play->which[i]];
        play->seeds[i] = (struct environment_seed){play->seed, seat->number, seat->episode++, seat->step};
        seat->episode_step = 0;
    }
    const enum status status =
        probe_reset(play->probe, n, play->tick == 0 ? NULL : play->which, play->seeds, error);
    for (uint32_t i = 0; status == STATUS_OK && i < n; i++)
        record_reset(play, play->which[i]);
    return status;
}

enum status play_begin(struct play *play, struct probe *probe, struct play_trace *trace, uint64_t seed,
                       const struct play_cast *cast, struct error *error)
{
    *play = (struct play){.probe = probe, .trace = trace, .cast = *cast, .seed = seed};
    play->seats = calloc(probe->count, sizeof *play->seats);
    play->which = calloc(probe->count, sizeof *play->which);
    play->seeds = calloc(probe->count, sizeof *play->seeds);
    if (play->seats == NULL || play->which == NULL || play->seeds == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", probe->count);
    seat_all(play);
    for (uint32_t i = 0; i < probe->count; i++)
        play->which[i] = i;
    return reset_listed(play, probe->count, error);
}

void play_free(struct play *play)
{
    free(play->seats);
    free(play->which);
    free(play->seeds);
    *play = (struct play){0};
}

bool play_has(const struct play *play, uint32_t steps)
{
    for (uint32_t i = 0; i < play->cast.subjects; i++)
        if (play->seats[play->cast.places[i]].step < steps)
            return false;
    return true;
}

/* One in `of`, drawn for this tick. */
static bool draw_one_in(const struct play *play, uint32_t environment, uint32_t purpose, uint32_t of)
{
    const struct rng_key key = {
        .seed = play->seed, .environment = environment, .step = play->tick, .episode = purpose};
    uint32_t words[4];
    rng_block(&key, RNG_SHUFFLE, 0, words);
    return rng_below(words[0], words[1], of) == 0;
}

static uint32_t list_turns(struct play *play)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < play->probe->count; i++) {
        const bool finished = is_subject(play, i) && play->seats[i].step == play->trace->steps;
        if (!finished && (!play->cast.in_turns || draw_one_in(play, i, 1, 2)))
            play->which[n++] = i;
    }
    return n;
}

/* Counts the step that an environment has made. Whether it waits for a reset now. */
static bool count_step(struct play *play, uint32_t environment)
{
    const struct environment_spec *spec = play->probe->spec;
    struct play_seat *seat = &play->seats[environment];
    const uint8_t *flags = probe_row(play->probe, PROBE_FLAGS, environment, 0);
    const bool over = environment_is_over(flags, spec->agents);
    seat->step++;
    seat->episode_step++;
    record_step(play, environment);
    const bool restarted = (flags[0] & ENVIRONMENT_RESTARTED) != 0;
    if (restarted)
        seat->episode_step = 0;
    const bool cut = !over && spec->steps_max > 0 && seat->episode_step >= spec->steps_max;
    if (is_subject(play, environment)) {
        play->trace->ended += over || restarted;
        play->trace->truncated += cut;
        for (uint32_t agent = 0; agent < spec->agents; agent++)
            play->trace->failed += (flags[agent] & ENVIRONMENT_FAILED) != 0;
    }
    return over || cut;
}

enum status play_tick(struct play *play, struct error *error)
{
    uint32_t n = list_turns(play), resets = 0;
    const bool all = n == play->probe->count && play->tick % 2 == 0;
    play->tick++;
    if (n == 0)
        return STATUS_OK;
    for (uint32_t i = 0; i < n; i++)
        play_draw_actions(play, play->which[i]);
    const enum status status = probe_step(play->probe, n, all ? NULL : play->which, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t environment = play->which[i];
        const bool midway =
            play->cast.in_turns && !is_subject(play, environment) && draw_one_in(play, environment, 2, 16);
        if (count_step(play, environment) || midway)
            play->which[resets++] = environment;
    }
    return resets > 0 ? reset_listed(play, resets, error) : STATUS_OK;
}
