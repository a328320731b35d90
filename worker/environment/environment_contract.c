/* Plays with random actions, and the checks of `coalesced try`: one function for each, in the order of its
 * output. */
#include "worker/environment/environment_contract.h"

#include "kernels/base/fnv.h"
#include "kernels/base/monotime.h"
#include "kernels/base/rng.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- plays ----
 *
 * A play has a few environments, the subjects, take random actions, and records all that they give. Seeds and
 * actions follow from the play's seed, the subject's number and its steps. So every play of the same subjects
 * must give the same record, wherever they are placed. The other environments of an instance, the neighbours,
 * have numbers of their own. */

enum { PLAY_SUBJECTS_MAX = 5, PLAY_NEIGHBOURS_FIRST = 1000 };

/* What one row gave in one step, and at the reset after it if there was one. The integers are hashes. */
struct play_record {
    uint64_t observation, mask, metrics;
    uint64_t first; /* observation and mask after the reset */
    float reward;
    uint8_t flags;
};

struct play_trace {
    uint32_t subjects, steps, agents;
    struct play_record *records; /* (subjects, steps + 1, agents); step 0 is the first reset */
    uint64_t ended;              /* episodes that the environments ended */
    uint64_t failed;             /* those among them that ended with ENVIRONMENT_FAILED */
    uint64_t truncated;          /* episodes that the caller ended, at steps_max */
};

/* Who plays where. */
struct play_cast {
    uint32_t places[PLAY_SUBJECTS_MAX]; /* (subjects) environments of the instance */
    uint32_t subjects;
    uint32_t first;      /* the number of the subject at places[0]; the others follow */
    uint32_t generation; /* the neighbours of two generations differ */
    bool in_turns;       /* a tick steps some of the environments, drawn, and resets some neighbours */
};

struct play {
    struct probe *probe;
    struct play_trace *trace;
    struct play_cast cast;
    uint64_t seed;
    uint32_t tick;
    struct play_seat {
        uint32_t number; /* the subject's, or the neighbour's from PLAY_NEIGHBOURS_FIRST */
        uint32_t step;   /* steps so far */
        uint32_t episode, episode_step;
    } * seats;       /* (probe's count) */
    uint32_t *which; /* (count) of one call */
    struct environment_seed *seeds;
};

/* ---- traces ---- */

/* Errors: STATUS_NO_MEMORY. play_trace_free follows after either result. */
static enum status play_trace_new(struct play_trace *trace, uint32_t subjects, uint32_t steps,
                                  uint32_t agents, struct error *error)
{
    const size_t records = (size_t)subjects * (steps + 1) * agents;
    *trace = (struct play_trace){.subjects = subjects, .steps = steps, .agents = agents};
    trace->records = calloc(records, sizeof *trace->records);
    if (trace->records == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the record of %zu steps", records);
    return STATUS_OK;
}

static void play_trace_free(struct play_trace *trace)
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

/* The first place where two traces differ: STATUS_CORRUPT and a sentence without the environment's name. */
static enum status play_compare(const struct play_trace *expected, const struct play_trace *found,
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

/* Draws the next actions of an environment, among those that its mask allows. */
static void play_draw_actions(const struct play *play, uint32_t environment)
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

/* Resets all environments of the probe, for steps that go into `trace`. play_free follows after either
 * result. */
static enum status play_begin(struct play *play, struct probe *probe, struct play_trace *trace, uint64_t seed,
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

static void play_free(struct play *play)
{
    free(play->seats);
    free(play->which);
    free(play->seeds);
    *play = (struct play){0};
}

/* Whether every subject has `steps` steps. */
static bool play_has(const struct play *play, uint32_t steps)
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

/* One step of all environments, or of those whose turn it is, and the resets that follow. */
static enum status play_tick(struct play *play, struct error *error)
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

/* ---- the contract ---- */

struct contract {
    const struct environment_trial *trial;
    uint64_t seed;
    uint32_t steps;
    contract_report *report;
    void *context;
    struct environment_spec spec; /* its pointers are good while an instance is open */
    uint32_t subjects;            /* PLAY_SUBJECTS_MAX; 1 of a singleton */
    struct play_trace reference;  /* of the first play */
};

__attribute__((format(printf, 2, 3))) static void tell(const struct contract *c, const char *format, ...)
{
    char line[512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    c->report(c->context, line);
}

static void set_clause(const struct contract *c, const char *clause)
{
    struct plugin_call *progress = c->trial->progress;
    snprintf(progress->clause, sizeof progress->clause, "%s", clause);
}

/* Holds the trace to the reference. */
static enum status compare(const struct contract *c, const struct play_trace *found, struct error *error)
{
    struct error why;
    if ((c->spec.limits & ENVIRONMENT_CANNOT_SEED) != 0 ||
        play_compare(&c->reference, found, &why) == STATUS_OK)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT, "%.64s: %s: %s", c->trial->name, c->trial->progress->clause,
                     why.text);
}

static enum status play_to(struct play *play, uint32_t steps, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !play_has(play, steps))
        status = play_tick(play, error);
    return status;
}

/* Plays in a probe that is open already. */
static enum status play_in(const struct contract *c, struct probe *probe, const struct play_cast *cast,
                           struct play_trace *trace, struct error *error)
{
    struct play play;
    enum status status = play_begin(&play, probe, trace, c->seed, cast, error);
    if (status == STATUS_OK)
        status = play_to(&play, trace->steps, error);
    play_free(&play);
    return status;
}

/* Plays in a new instance of `count` environments. */
static enum status play_new(const struct contract *c, uint32_t count, const struct play_cast *cast,
                            struct play_trace *trace, struct error *error)
{
    struct probe probe = {0};
    enum status status = probe_open(&probe, c->trial, count, error);
    if (status == STATUS_OK)
        status = play_in(c, &probe, cast, trace, error);
    probe_close(&probe);
    return status;
}

static struct play_cast cast_in_order(const struct contract *c)
{
    return (struct play_cast){.places = {0, 1, 2, 3, 4}, .subjects = c->subjects};
}

static enum status trace_new(const struct contract *c, struct play_trace *trace, struct error *error)
{
    return play_trace_new(trace, c->subjects, c->steps, c->spec.agents, error);
}

/* ---- what it says of itself ---- */

static int describe_space(char *out, size_t size, const struct environment_space *space)
{
    static const char *const types[] = {"", "uint8", "int32", "float32"};
    int length = snprintf(out, size, "%s (", types[space->dtype]);
    for (uint32_t i = 0; i < space->rank; i++)
        length += snprintf(out + length, size - (size_t)length, "%s%u", i > 0 ? ", " : "", space->shape[i]);
    length += snprintf(out + length, size - (size_t)length, ")");
    return length;
}

static void describe(const struct contract *c)
{
    char observation[80], action[80];
    const struct environment_spec *spec = &c->spec;
    describe_space(observation, sizeof observation, &spec->observation);
    const int length = describe_space(action, sizeof action, &spec->action);
    if (spec->action.choices != NULL)
        snprintf(action + length, sizeof action - (size_t)length, " of %zu choices%s",
                 environment_choices(spec), spec->has_mask ? ", masked" : "");
    char end[48] = "the environment alone ends episodes";
    if (spec->steps_max > 0)
        snprintf(end, sizeof end, "at most %u steps", spec->steps_max);
    tell(c, "%s: %u agent%s, observation %s, action %s, %s", c->trial->name, spec->agents,
         spec->agents > 1 ? "s" : "", observation, action, end);
}

static enum status check_spec(struct contract *c, struct error *error)
{
    struct probe probe = {0};
    set_clause(c, "open gives a good spec");
    const enum status status = probe_open(&probe, c->trial, 1, error);
    if (status == STATUS_OK) {
        c->spec = *probe.spec;
        c->subjects = (c->spec.limits & ENVIRONMENT_SINGLETON) != 0 ? 1 : PLAY_SUBJECTS_MAX;
        describe(c);
    }
    probe_close(&probe);
    return status;
}

static enum status check_refusals(struct contract *c, struct error *error)
{
    set_clause(c, "open refuses what it does not know");
    enum status status =
        probe_refuses(c->trial, "no such environment", c->trial->options, "an unknown name", error);
    if (status == STATUS_OK)
        status =
            probe_refuses(c->trial, c->trial->name, "{\"no such option\":1}", "an unknown option", error);
    if (status == STATUS_OK)
        tell(c, "  ok  open refuses an unknown name and an unknown option");
    return status;
}

/* ---- the first play ---- */

static void tell_episodes(const struct contract *c)
{
    const struct play_trace *trace = &c->reference;
    tell(c,
         "  ok  %u random steps of %u environments: numbers, bounds, flags, masks; nothing else is touched",
         c->steps, c->subjects);
    tell(c, "      %" PRIu64 " episodes ended, %" PRIu64 " of them failed; %" PRIu64 " were cut at steps_max",
         trace->ended, trace->failed, trace->truncated);
}

/* The same instance plays twice: a reset with the seeds of the first one leaves nothing of what was. */
static enum status check_reference(struct contract *c, struct error *error)
{
    struct probe probe = {0};
    struct play_trace again = {0};
    const struct play_cast cast = cast_in_order(c);
    set_clause(c, "random steps");
    enum status status = trace_new(c, &c->reference, error);
    if (status == STATUS_OK)
        status = trace_new(c, &again, error);
    if (status == STATUS_OK)
        status = probe_open(&probe, c->trial, c->subjects, error);
    if (status == STATUS_OK)
        status = play_in(c, &probe, &cast, &c->reference, error);
    if (status == STATUS_OK) {
        tell_episodes(c);
        set_clause(c, "a reset depends on its seed alone");
        status = play_in(c, &probe, &cast, &again, error);
    }
    if (status == STATUS_OK)
        status = compare(c, &again, error);
    if (status == STATUS_OK && (c->spec.limits & ENVIRONMENT_CANNOT_SEED) == 0)
        tell(c, "  ok  a reset depends on its seed alone, not on what was before");
    probe_close(&probe);
    play_trace_free(&again);
    return status;
}

/* ---- the same bits ---- */

/* A plug-in that draws from the second of the day gives other draws in the next one. */
static void await_next_second(void)
{
    const time_t now = time(NULL);
    while (time(NULL) == now)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static enum status check_seeds(struct contract *c, struct play_trace *trace, struct error *error)
{
    const struct play_cast cast = cast_in_order(c);
    set_clause(c, "equal seeds give equal bits");
    await_next_second();
    enum status status = play_new(c, c->subjects, &cast, trace, error);
    if (status == STATUS_OK)
        status = compare(c, trace, error);
    if (status == STATUS_OK)
        tell(c, "  ok  equal seeds give equal bits, in another instance and another second");
    return status;
}

/* Alone, in instances of one environment. */
static enum status check_count(struct contract *c, struct play_trace *trace, struct error *error)
{
    enum status status = STATUS_OK;
    set_clause(c, "the bits depend on no count");
    for (uint32_t i = 0; i < c->subjects && status == STATUS_OK; i++) {
        const struct play_cast alone = {.subjects = 1, .first = i};
        status = play_new(c, 1, &alone, trace, error);
    }
    if (status == STATUS_OK)
        status = compare(c, trace, error);
    if (status == STATUS_OK)
        tell(c, "  ok  an environment alone gives the bits that it gave among %u", c->subjects);
    return status;
}

/* Among others, which are reset midway; in other rows; not all of them in each call. */
static enum status check_company(struct contract *c, struct play_trace *trace, struct error *error)
{
    enum { COMPANY = 21 };
    struct play_cast cast = {.places = {20, 9, 8, 2, 13}, .subjects = c->subjects, .generation = 1};
    set_clause(c, "the bits depend on neither row nor neighbours");
    enum status status = play_new(c, COMPANY, &cast, trace, error);
    if (status == STATUS_OK)
        status = compare(c, trace, error);
    if (status != STATUS_OK)
        return status;
    set_clause(c, "a call is for the environments that it names");
    cast.in_turns = true;
    cast.generation = 2;
    status = play_new(c, COMPANY, &cast, trace, error);
    if (status == STATUS_OK)
        status = compare(c, trace, error);
    if (status == STATUS_OK)
        tell(c, "  ok  rows, neighbours, turns, and resets of neighbours change no bit (%d environments)",
             COMPANY);
    return status;
}

/* Two instances are played in turn; the other one's environments are all neighbours. */
static enum status play_beside(const struct contract *c, struct probe *probe, struct probe *other,
                               struct play_trace *trace, struct error *error)
{
    const struct play_cast cast = cast_in_order(c), none = {.generation = 3};
    struct play play = {0}, beside = {0};
    enum status status = play_begin(&beside, other, trace, c->seed, &none, error);
    if (status == STATUS_OK)
        status = play_begin(&play, probe, trace, c->seed, &cast, error);
    while (status == STATUS_OK && !play_has(&play, c->steps)) {
        status = play_tick(&beside, error);
        if (status == STATUS_OK)
            status = play_tick(&play, error);
    }
    play_free(&play);
    play_free(&beside);
    return status;
}

static enum status check_instances(struct contract *c, struct play_trace *trace, struct error *error)
{
    struct probe probe = {0}, other = {0};
    set_clause(c, "two instances share nothing");
    enum status status = probe_open(&probe, c->trial, c->subjects, error);
    if (status == STATUS_OK)
        status = probe_open(&other, c->trial, 3, error);
    if (status == STATUS_OK)
        status = play_beside(c, &probe, &other, trace, error);
    probe_close(&other);
    probe_close(&probe);
    if (status == STATUS_OK)
        status = compare(c, trace, error);
    if (status == STATUS_OK)
        tell(c, "  ok  two instances at a time share nothing");
    return status;
}

static enum status check_bits(struct contract *c, struct error *error)
{
    struct play_trace trace = {0};
    if ((c->spec.limits & ENVIRONMENT_CANNOT_SEED) != 0) {
        tell(c, "  --  CANNOT_SEED: no two plays are compared");
        return STATUS_OK;
    }
    enum status status = trace_new(c, &trace, error);
    if (status == STATUS_OK)
        status = check_seeds(c, &trace, error);
    if (status == STATUS_OK && (c->spec.limits & ENVIRONMENT_SINGLETON) != 0) {
        tell(c, "  --  SINGLETON: one instance, of one environment");
    } else if (status == STATUS_OK) {
        status = check_count(c, &trace, error);
        if (status == STATUS_OK)
            status = check_company(c, &trace, error);
        if (status == STATUS_OK)
            status = check_instances(c, &trace, error);
    }
    play_trace_free(&trace);
    return status;
}

/* ---- save and load ---- */

struct saved {
    void *state;
    size_t size;
};

static enum status check_state_refusals(struct probe *probe, const struct saved *saved, struct error *error)
{
    const enum status status = probe_refuses_state(probe, 0, saved->state, 0, error);
    return status == STATUS_OK ? probe_refuses_state(probe, 0, saved->state, saved->size - 1, error) : status;
}

/* Moves a subject's state, its seat, and what the caller keeps of its last step. */
static enum status load_subject(struct play *to, uint32_t place, const struct play *from, uint32_t was,
                                const struct saved *saved, struct error *error)
{
    const uint32_t agents = from->probe->spec->agents;
    to->seats[place] = from->seats[was];
    memcpy(probe_row(to->probe, PROBE_FLAGS, place, 0), probe_row(from->probe, PROBE_FLAGS, was, 0), agents);
    enum status status = probe_load(to->probe, place, saved->state, saved->size, error);
    if (status != STATUS_OK)
        return status;
    static const enum probe_area areas[] = {PROBE_OBSERVATION, PROBE_MASK};
    for (size_t i = 0; i < sizeof areas / sizeof areas[0]; i++)
        for (uint32_t agent = 0; agent < agents; agent++)
            if (memcmp(probe_row(to->probe, areas[i], place, agent),
                       probe_row(from->probe, areas[i], was, agent),
                       to->probe->areas[areas[i]].row_bytes) != 0 &&
                (*(uint8_t *)probe_row(to->probe, PROBE_FLAGS, place, agent) & ENVIRONMENT_ABSENT) == 0)
                return error_set(error, STATUS_CORRUPT,
                                 "%.64s: %s: load wrote another %s than the one at the time of save",
                                 to->probe->trial->name, to->probe->trial->progress->clause,
                                 areas[i] == PROBE_MASK ? "mask" : "observation");
    return STATUS_OK;
}

/* Saves the subjects of a play that has half of its steps, and gives the rest to other environments of a new
 * instance, whose places are `cast`'s. */
static enum status continue_elsewhere(const struct contract *c, struct play *play, struct saved *saved,
                                      const struct play_cast *cast, struct error *error)
{
    const uint32_t count = c->subjects == 1 ? 1 : 7;
    const uint32_t agents = c->spec.agents;
    struct probe probe = {0};
    struct play rest = {0};
    struct play_trace scratch = {0}; /* for the resets of play_begin */
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < c->subjects && status == STATUS_OK; i++)
        status = probe_save(play->probe, play->cast.places[i], &saved[i].state, &saved[i].size, error);
    if (status == STATUS_OK)
        status = play_trace_new(&scratch, c->subjects, c->steps, agents, error);
    if (status == STATUS_OK)
        status = probe_open(&probe, c->trial, count, error);
    if (status == STATUS_OK)
        status = play_begin(&rest, &probe, &scratch, c->seed, cast, error);
    rest.trace = play->trace;
    if (status == STATUS_OK)
        status = check_state_refusals(&probe, &saved[0], error);
    for (uint32_t i = 0; i < c->subjects && status == STATUS_OK; i++)
        status = load_subject(&rest, cast->places[i], play, play->cast.places[i], &saved[i], error);
    if (status == STATUS_OK)
        status = play_to(&rest, c->steps, error);
    play_free(&rest);
    probe_close(&probe);
    play_trace_free(&scratch);
    return status;
}

static enum status play_with_save(const struct contract *c, struct probe *probe, struct play_trace *trace,
                                  struct error *error)
{
    const struct play_cast first = cast_in_order(c);
    struct play_cast second = {.places = {6, 3, 4, 0, 2}, .subjects = c->subjects, .generation = 4};
    struct saved saved[PLAY_SUBJECTS_MAX] = {{0}};
    struct play play = {0};
    if (c->subjects == 1)
        second.places[0] = 0;
    enum status status = play_begin(&play, probe, trace, c->seed, &first, error);
    if (status == STATUS_OK)
        status = play_to(&play, c->steps / 2, error);
    if (status == STATUS_OK)
        status = continue_elsewhere(c, &play, saved, &second, error);
    for (uint32_t i = 0; i < PLAY_SUBJECTS_MAX; i++)
        free(saved[i].state);
    play_free(&play);
    return status;
}

static enum status check_save(struct contract *c, struct error *error)
{
    struct probe probe = {0};
    struct play_trace trace = {0};
    const bool can_save = c->trial->plugin->save != NULL;
    const char *loss = environment_loss((c->spec.limits & ENVIRONMENT_CANNOT_SEED) == 0, can_save);
    if (loss != NULL)
        tell(c, "  --  %s %s", c->trial->name, loss);
    if (can_save && (c->spec.limits & ENVIRONMENT_SINGLETON) != 0)
        tell(c, "  --  save and load are not checked: SINGLETON, and it needs two instances");
    if (!can_save || (c->spec.limits & ENVIRONMENT_SINGLETON) != 0)
        return STATUS_OK;
    set_clause(c, "a saved state continues with the same bits");
    enum status status = trace_new(c, &trace, error);
    if (status == STATUS_OK)
        status = probe_open(&probe, c->trial, c->subjects, error);
    if (status == STATUS_OK)
        status = play_with_save(c, &probe, &trace, error);
    if (status == STATUS_OK)
        status = compare(c, &trace, error);
    if (status == STATUS_OK)
        tell(c, "  ok  a saved state continues%s in another instance and another row",
             (c->spec.limits & ENVIRONMENT_CANNOT_SEED) != 0 ? "" : " with the same bits,");
    probe_close(&probe);
    play_trace_free(&trace);
    return status;
}

/* ---- render ---- */

/* Renders after every tick of a short play, which must go as the reference did. */
static enum status render_along(const struct contract *c, struct play *play, size_t *text, size_t *picture,
                                struct error *error)
{
    enum { TICKS = 20 };
    enum status status = STATUS_OK;
    for (uint32_t tick = 0; tick < TICKS && status == STATUS_OK && !play_has(play, c->steps); tick++) {
        status = play_tick(play, error);
        for (uint32_t i = 0; i < c->subjects && status == STATUS_OK; i++) {
            status = probe_render(play->probe, i, ENVIRONMENT_TEXT, text, error);
            if (status == STATUS_OK)
                status = probe_render(play->probe, i, ENVIRONMENT_RGB, picture, error);
        }
    }
    return status == STATUS_OK ? play_to(play, c->steps, error) : status;
}

static enum status check_render(struct contract *c, struct error *error)
{
    const struct play_cast cast = cast_in_order(c);
    struct probe probe = {0};
    struct play play = {0};
    struct play_trace trace = {0};
    size_t text = 0, picture = 0;
    if (c->trial->plugin->render == NULL) {
        tell(c, "  --  render is not checked: there is none");
        return STATUS_OK;
    }
    set_clause(c, "render draws, and changes nothing");
    enum status status = trace_new(c, &trace, error);
    if (status == STATUS_OK)
        status = probe_open(&probe, c->trial, c->subjects, error);
    if (status == STATUS_OK)
        status = play_begin(&play, &probe, &trace, c->seed, &cast, error);
    if (status == STATUS_OK)
        status = render_along(c, &play, &text, &picture, error);
    if (status == STATUS_OK)
        status = compare(c, &trace, error);
    if (status == STATUS_OK)
        tell(c, "  ok  render draws%s%s%s, and changes nothing", text > 0 ? " text" : "",
             text > 0 && picture > 0 ? " and" : "",
             picture > 0 ? " pictures"
             : text > 0  ? ""
                         : " nothing");
    play_free(&play);
    probe_close(&probe);
    play_trace_free(&trace);
    return status;
}

/* ---- speed ---- */

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The environments of play->which that the last step ended, or that steps_max cuts; their seeds. */
static uint32_t list_ended(struct play *play)
{
    const struct environment_spec *spec = play->probe->spec;
    uint32_t n = 0;
    for (uint32_t i = 0; i < play->probe->count; i++) {
        struct play_seat *seat = &play->seats[i];
        seat->step++;
        seat->episode_step++;
        if (!environment_is_over(probe_row(play->probe, PROBE_FLAGS, i, 0), spec->agents) &&
            (spec->steps_max == 0 || seat->episode_step < spec->steps_max))
            continue;
        play->seeds[n] = (struct environment_seed){play->seed, seat->number, seat->episode++, seat->step};
        play->which[n++] = i;
        seat->episode_step = 0;
    }
    return n;
}

/* At most `ticks` steps, for about a second; *done is how many. Only step and reset are timed. */
static enum status measure_steps(struct play *play, uint32_t ticks, uint32_t *done, double *seconds,
                                 struct error *error)
{
    enum { WHOLE_US = 1000000 };
    const struct monotime until = monotime_add_us(monotime_now(), WHOLE_US);
    enum status status = STATUS_OK;
    for (*done = 0; *done < ticks && status == STATUS_OK && monotime_before(monotime_now(), until); ++*done) {
        for (uint32_t i = 0; i < play->probe->count; i++)
            play_draw_actions(play, i);
        const double begun = cpu_seconds();
        status = probe_bare_step(play->probe, error);
        const double stepped = cpu_seconds();
        *seconds += stepped - begun;
        const uint32_t ended = status == STATUS_OK ? list_ended(play) : 0;
        const double reset = cpu_seconds();
        if (ended > 0)
            status = probe_bare_reset(play->probe, ended, play->which, play->seeds, error);
        *seconds += ended > 0 ? cpu_seconds() - reset : 0;
    }
    return status;
}

static enum status measure(struct contract *c, struct error *error)
{
    enum { COUNT = 256, TICKS_MAX = 1000 };
    const uint32_t count = c->subjects == 1 ? 1 : COUNT;
    uint32_t steps = c->steps < TICKS_MAX ? c->steps : TICKS_MAX;
    const struct play_cast none = {.generation = 5};
    struct probe probe = {0};
    struct play play = {0};
    double seconds = 0;
    set_clause(c, "steps per CPU second");
    enum status status = probe_open(&probe, c->trial, count, error);
    if (status == STATUS_OK)
        status = play_begin(&play, &probe, &c->reference, c->seed, &none, error);
    if (status == STATUS_OK)
        status = measure_steps(&play, steps, &steps, &seconds, error);
    if (status == STATUS_OK)
        tell(c, "      %.3g steps per CPU second, resets included (%u environments, %u steps of each)",
             seconds > 0 ? (double)count * steps / seconds : 0.0, count, steps);
    play_free(&play);
    probe_close(&probe);
    return status;
}

/* ---- all of it ---- */

enum status environment_contract(const struct environment_trial *trial, uint64_t seed, uint32_t steps,
                                 contract_report *report, void *context, struct error *error)
{
    static enum status (*const checks[])(struct contract *, struct error *) = {
        check_spec, check_refusals, check_reference, check_bits, check_save, check_render, measure};
    struct contract contract = {
        .trial = trial, .seed = seed, .steps = steps, .report = report, .context = context};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0] && status == STATUS_OK; i++)
        status = checks[i](&contract, error);
    play_trace_free(&contract.reference);
    return status;
}
