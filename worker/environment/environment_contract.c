/* The checks of `coalesced try`: one function for each, in the order of its output. */
#include "worker/environment/environment_contract.h"

#include "kernels/base/monotime.h"
#include "worker/environment/environment_play.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* ---- plays ---- */

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
