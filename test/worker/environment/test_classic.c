/* The built-in environments' steps against Gymnasium's records (test/golden/acrobot.bin and its three
 * neighbours, by classic.py beside them), on every instruction set that this machine has, and in any company;
 * and their first states. CartPole's physics has a test of its own. coalesced try checks the rest of
 * environment.h (test_try.sh). */
#include "kernels/base/rng.h"
#include "kernels/lanes/isa.h"
#include "test/workplace.h"
#include "worker/environment/classic.h"
#include "worker/environment/classic_lanes.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 128, ENDING_BYTES = 20 };

static classic_step *const *const lanes_of[ISA_COUNT] = {[ISA_BASELINE] = classic_lanes_baseline,
                                                         [ISA_AVX2] = classic_lanes_avx2,
                                                         [ISA_AVX512] = classic_lanes_avx512};

/* A recorded environment. `state`: how far a step's double state may be from Gymnasium's. */
static const struct recording {
    enum classic_kind kind;
    const char *file;
    uint32_t values, observations;
    bool has_choices;
    double state;
    unsigned transitions, terminated;
} recordings[] = {
    {CLASSIC_ACROBOT, "acrobot", 4, 6, true, 1e-10, 3500, 300},
    {CLASSIC_MOUNTAIN_CAR, "mountain_car", 2, 2, true, 1e-17, 5000, 20},
    {CLASSIC_MOUNTAIN_CAR_CONTINUOUS, "mountain_car_continuous", 2, 2, false, 0, 5000, 30},
    {CLASSIC_PENDULUM, "pendulum", 2, 3, false, 1e-14, 6000, 0},
};

/* Transition t of a recording is column t: its state, its action, and what Gymnasium made of them. */
struct transitions {
    uint32_t count, capacity;
    double *states, *next; /* (values, capacity) */
    float *observations;   /* (capacity, observations) after the step */
    double *rewards;       /* (capacity) */
    uint8_t *terminated;   /* (capacity) */
    void *actions;         /* (capacity) int32 or float */
};

static char *read_file(const char *name, size_t *bytes)
{
    char path[80];
    snprintf(path, sizeof path, "test/golden/%s.bin", name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s: cannot be opened", path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    char *text = malloc(*bytes);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(fseek(file, 0, SEEK_SET), 0);
    ck_assert_uint_eq(fread(text, 1, *bytes, file), *bytes);
    fclose(file);
    return text;
}

static void *zeros(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Takes the record's state and action, and the next record's state, observation, reward and end. */
static void take_transition(struct transitions *to, const struct recording *of, const char *record,
                            const char *next)
{
    const size_t observation = of->values * sizeof(double);
    const size_t reward = observation + of->observations * sizeof(float);
    const uint32_t t = to->count++;
    float action;
    memcpy(&action, record + reward + sizeof(double), sizeof action);
    for (uint32_t v = 0; v < of->values; v++) {
        memcpy(&to->states[v * to->capacity + t], record + v * sizeof(double), sizeof(double));
        memcpy(&to->next[v * to->capacity + t], next + v * sizeof(double), sizeof(double));
    }
    memcpy(to->observations + (size_t)t * of->observations, next + observation,
           of->observations * sizeof(float));
    memcpy(&to->rewards[t], next + reward, sizeof(double));
    to->terminated[t] = (uint8_t)next[reward + 17];
    if (of->has_choices)
        ((int32_t *)to->actions)[t] = (int32_t)action;
    else
        ((float *)to->actions)[t] = action;
}

static void read_transitions(struct transitions *to, const struct recording *of)
{
    size_t bytes;
    char *text = read_file(of->file, &bytes);
    const size_t record = of->values * sizeof(double) + of->observations * sizeof(float) + ENDING_BYTES;
    ck_assert_uint_eq((bytes - HEADER_BYTES) % record, 0);
    const size_t count = (bytes - HEADER_BYTES) / record;
    *to = (struct transitions){.capacity = (uint32_t)count,
                               .states = zeros(count * of->values, sizeof(double)),
                               .next = zeros(count * of->values, sizeof(double)),
                               .observations = zeros(count * of->observations, sizeof(float)),
                               .rewards = zeros(count, sizeof(double)),
                               .terminated = zeros(count, 1),
                               .actions = zeros(count, sizeof(float))};
    for (size_t i = 0; i + 1 < count; i++) {
        const char *at = text + HEADER_BYTES + i * record;
        if (at[record - 4] == 1) /* an action was taken */
            take_transition(to, of, at, at + record);
    }
    free(text);
}

static void free_transitions(struct transitions *t)
{
    free(t->states);
    free(t->next);
    free(t->observations);
    free(t->rewards);
    free(t->terminated);
    free(t->actions);
}

/* What a step wrote, of as many columns. */
struct outcome {
    double *states;
    float *observations, *rewards;
    uint8_t *flags;
};

static struct outcome outcome_of(const struct transitions *t, const struct recording *of)
{
    struct outcome outcome = {.states = zeros((size_t)t->capacity * of->values, sizeof(double)),
                              .observations = zeros((size_t)t->capacity * of->observations, sizeof(float)),
                              .rewards = zeros(t->capacity, sizeof(float)),
                              .flags = zeros(t->capacity, 1)};
    memcpy(outcome.states, t->states, (size_t)t->capacity * of->values * sizeof(double));
    return outcome;
}

static void free_outcome(struct outcome *outcome)
{
    free(outcome->states);
    free(outcome->observations);
    free(outcome->rewards);
    free(outcome->flags);
}

/* Steps n columns on an instruction set. */
static void step_columns(classic_step *const *lanes, const struct transitions *t, const struct recording *of,
                         struct outcome *outcome, uint32_t n, const uint32_t *which)
{
    const struct classic_call call = {.states = outcome->states,
                                      .stride = t->capacity,
                                      .n = n,
                                      .which = which,
                                      .actions = t->actions,
                                      .observations = outcome->observations,
                                      .rewards = outcome->rewards,
                                      .flags = outcome->flags};
    lanes[of->kind](&call);
}

/* The sets that this machine has: those up to the best. */
static enum isa best_isa(void)
{
    enum isa isa = ISA_BASELINE;
    struct error error;
    ck_assert_int_eq(isa_choose(&isa, &error), STATUS_OK);
    return isa;
}

static void expect_gymnasiums(const struct transitions *t, const struct recording *of,
                              const struct outcome *outcome)
{
    unsigned ended = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        for (uint32_t k = 0; k < of->observations; k++) {
            const size_t at = (size_t)i * of->observations + k;
            ck_assert_msg(outcome->observations[at] == t->observations[at],
                          "%s, transition %u: observation %u is %.9g, recorded %.9g", of->file, i, k,
                          (double)outcome->observations[at], (double)t->observations[at]);
        }
        for (uint32_t v = 0; v < of->values; v++) {
            const size_t at = (size_t)v * t->capacity + i;
            ck_assert_msg(fabs(outcome->states[at] - t->next[at]) <= of->state,
                          "%s, transition %u: value %u is %.17g, recorded %.17g", of->file, i, v,
                          outcome->states[at], t->next[at]);
        }
        ck_assert_msg(outcome->rewards[i] == (float)t->rewards[i], "%s, transition %u: reward %.9g, not %.9g",
                      of->file, i, (double)outcome->rewards[i], t->rewards[i]);
        ck_assert_uint_eq(outcome->flags[i], t->terminated[i] ? ENVIRONMENT_TERMINATED : 0);
        ended += t->terminated[i];
    }
    ck_assert_uint_ge(t->count, of->transitions);
    ck_assert_uint_ge(ended, of->terminated);
}

static void expect_same(const struct transitions *t, const struct recording *of, const struct outcome *a,
                        const struct outcome *b)
{
    ck_assert_mem_eq(a->states, b->states, (size_t)t->capacity * of->values * sizeof(double));
    ck_assert_mem_eq(a->observations, b->observations,
                     (size_t)t->capacity * of->observations * sizeof(float));
    ck_assert_mem_eq(a->rewards, b->rewards, t->capacity * sizeof(float));
    ck_assert_mem_eq(a->flags, b->flags, t->capacity);
}

/* Every recorded transition, on every set, alone and together: Gymnasium's numbers, and the same bits. */
START_TEST(a_step_is_gymnasiums)
{
    const struct recording *of = &recordings[_i];
    struct transitions t;
    read_transitions(&t, of);
    struct outcome together = outcome_of(&t, of);
    step_columns(lanes_of[ISA_BASELINE], &t, of, &together, t.count, NULL);
    expect_gymnasiums(&t, of, &together);
    for (enum isa isa = ISA_BASELINE; isa <= best_isa(); isa++) {
        struct outcome whole = outcome_of(&t, of), parts = outcome_of(&t, of);
        step_columns(lanes_of[isa], &t, of, &whole, t.count, NULL);
        expect_same(&t, of, &together, &whole);
        for (uint32_t first = 0; first < 3; first++) { /* every third, in three calls */
            uint32_t *which = zeros(t.count, sizeof *which), n = 0;
            for (uint32_t i = first; i < t.count; i += 3)
                which[n++] = i;
            step_columns(lanes_of[isa], &t, of, &parts, n, which);
            free(which);
        }
        expect_same(&t, of, &together, &parts);
        free_outcome(&whole);
        free_outcome(&parts);
    }
    free_outcome(&together);
    free_transitions(&t);
}
END_TEST

/* ---- first states ---- */

/* Where Gymnasium draws the first observation from; value by value, a range that is a point is not drawn. */
static const struct first {
    const char *name;
    uint32_t values;
    double low[4], high[4];
} firsts[] = {
    {"CartPole-v1", 4, {-0.05, -0.05, -0.05, -0.05}, {0.05, 0.05, 0.05, 0.05}},
    {"MountainCar-v0", 2, {-0.6, 0}, {-0.4, 0}},
    {"MountainCarContinuous-v0", 2, {-0.6, 0}, {-0.4, 0}},
};

/* The observation is the state here: value v is drawn as classic.h says, and fills its range. */
START_TEST(first_states_are_drawn_as_documented)
{
    enum { COUNT = 2000 };
    const struct first *of = &firsts[_i];
    static float observations[COUNT * 4];
    static struct environment_seed seeds[COUNT];
    const struct environment_spec *spec;
    const struct environment_buffers buffers = {.observation = observations};
    unsigned tenths[4][10] = {{0}};
    char error[ENVIRONMENT_ERROR_BYTES];
    void *self;
    ck_assert_int_eq(classic_environments.open(&self, &spec, of->name, "{}", COUNT, error), 0);
    for (uint32_t i = 0; i < COUNT; i++)
        seeds[i] = (struct environment_seed){.job = 543, .environment = i, .episode = 13, .step = 11};
    ck_assert_int_eq(classic_environments.reset(self, &buffers, COUNT, NULL, seeds, error), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct rng_key key = {.seed = 543, .environment = i, .step = 11, .episode = 13};
        for (uint32_t v = 0; v < of->values; v++) {
            uint32_t words[4];
            rng_block(&key, RNG_RESET, v / 2, words);
            const double uniform = rng_uniform_double(words[v % 2 * 2], words[v % 2 * 2 + 1]);
            const double value = of->low[v] + (of->high[v] - of->low[v]) * uniform;
            ck_assert_float_eq(observations[i * of->values + v], (float)value);
            tenths[v][(int)(uniform * 10)]++;
        }
    }
    for (uint32_t v = 0; v < of->values; v++) /* 200 expected, deviation 13 */
        for (int i = 0; i < 10; i++)
            ck_assert(tenths[v][i] > 130 && tenths[v][i] < 270);
    classic_environments.close(self);
}
END_TEST

/* ---- without velocities ---- */

/* RL Zoo's wrapper multiplies Gymnasium's observation by 0 at these elements, and by 1 elsewhere. */
static const struct masked {
    const char *name, *whole;
    uint32_t elements;
    bool velocity[4], has_choices;
} masked[] = {
    {"CartPoleNoVel-v1", "CartPole-v1", 4, {false, true, false, true}, true},
    {"MountainCarNoVel-v0", "MountainCar-v0", 2, {false, true}, true},
    {"MountainCarContinuousNoVel-v0", "MountainCarContinuous-v0", 2, {false, true}, false},
    {"PendulumNoVel-v1", "Pendulum-v1", 3, {false, false, true}, false},
};

enum { MASKED_COUNT = 37, MASKED_STEPS = 8 };

/* One of the two environments that are compared. */
struct side {
    void *self;
    float observations[MASKED_COUNT * 4], rewards[MASKED_COUNT];
    uint8_t flags[MASKED_COUNT];
    struct environment_buffers buffers;
};

static void open_side(struct side *side, const char *name, void *actions)
{
    const struct environment_spec *spec;
    struct environment_seed seeds[MASKED_COUNT];
    char error[ENVIRONMENT_ERROR_BYTES];
    for (uint32_t i = 0; i < MASKED_COUNT; i++)
        seeds[i] = (struct environment_seed){.job = 543, .environment = i};
    side->buffers = (struct environment_buffers){
        .observation = side->observations, .action = actions, .reward = side->rewards, .flags = side->flags};
    ck_assert_int_eq(classic_environments.open(&side->self, &spec, name, "{}", MASKED_COUNT, error), 0);
    ck_assert_int_eq(classic_environments.reset(side->self, &side->buffers, MASKED_COUNT, NULL, seeds, error),
                     0);
}

static void expect_masked(const struct side *hidden, const struct side *whole, const struct masked *of)
{
    for (uint32_t i = 0; i < MASKED_COUNT * of->elements; i++) {
        const float mask = of->velocity[i % of->elements] ? 0 : 1;
        ck_assert_float_eq(hidden->observations[i], mask * whole->observations[i]);
    }
    ck_assert_mem_eq(hidden->rewards, whole->rewards, sizeof whole->rewards);
    ck_assert_mem_eq(hidden->flags, whole->flags, sizeof whole->flags);
}

START_TEST(velocities_are_masked_after_reset_step_and_load)
{
    const struct masked *of = &masked[_i];
    static struct side hidden, whole;
    static const uint32_t every_second[] = {0, 2, 4, 6, 8};
    int32_t choices[MASKED_COUNT];
    float forces[MASKED_COUNT], moved = 0;
    char error[ENVIRONMENT_ERROR_BYTES], state[256];
    void *actions = of->has_choices ? (void *)choices : forces;
    for (uint32_t i = 0; i < MASKED_COUNT; i++) {
        choices[i] = i % 2;
        forces[i] = i % 2 ? 1 : -1;
    }
    open_side(&hidden, of->name, actions);
    open_side(&whole, of->whole, actions);
    expect_masked(&hidden, &whole, of);
    for (int step = 0; step < MASKED_STEPS; step++) {
        const uint32_t n = step % 2 ? 5 : MASKED_COUNT, *which = step % 2 ? every_second : NULL;
        classic_environments.step(hidden.self, &hidden.buffers, n, which, error);
        classic_environments.step(whole.self, &whole.buffers, n, which, error);
        expect_masked(&hidden, &whole, of);
    }
    const size_t bytes = classic_environments.save(hidden.self, 1, state, sizeof state);
    ck_assert_uint_le(bytes, sizeof state);
    ck_assert_int_eq(classic_environments.load(hidden.self, &hidden.buffers, 1, state, bytes, error), 0);
    expect_masked(&hidden, &whole, of);
    ck_assert_int_ne(classic_environments.load(whole.self, &whole.buffers, 1, state, bytes, error), 0);
    for (uint32_t e = 0; e < of->elements; e++)
        moved += of->velocity[e] ? fabsf(whole.observations[e]) : 0;
    ck_assert_float_gt(moved, 0);
    classic_environments.close(hidden.self);
    classic_environments.close(whole.self);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("classic");
    TCase *steps = tcase_create("steps");
    tcase_add_loop_test(steps, a_step_is_gymnasiums, 0, sizeof recordings / sizeof recordings[0]);
    suite_add_tcase(suite, steps);
    TCase *first = tcase_create("first states");
    tcase_add_loop_test(first, first_states_are_drawn_as_documented, 0, sizeof firsts / sizeof firsts[0]);
    suite_add_tcase(suite, first);
    TCase *velocities = tcase_create("without velocities");
    tcase_add_loop_test(velocities, velocities_are_masked_after_reset_step_and_load, 0,
                        sizeof masked / sizeof masked[0]);
    suite_add_tcase(suite, velocities);
    return suite_run(suite);
}
