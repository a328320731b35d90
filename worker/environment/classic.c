/* The plug-in of the built-in environments: names, spaces, memory, resets and saved states. classic_lanes.h
 * steps them. One thread at a time uses an instance; there is no lock. */
#include "worker/environment/classic.h"

#include "kernels/base/rng.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/lanes/isa.h"
#include "worker/environment/acrobot.h"
#include "worker/environment/cartpole.h"
#include "worker/environment/classic_lanes.h"
#include "worker/environment/classic_view.h"
#include "worker/environment/mountain_car.h"
#include "worker/environment/pendulum.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [CLASSIC_CARTPOLE] = CARTPOLE_NAME,
    [CLASSIC_ACROBOT] = ACROBOT_NAME,
    [CLASSIC_MOUNTAIN_CAR] = MOUNTAIN_CAR_NAME,
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] = MOUNTAIN_CAR_CONTINUOUS_NAME,
    [CLASSIC_PENDULUM] = PENDULUM_NAME,
    [CLASSIC_KINDS] = NULL,
};

/* ---- spaces ---- */

static const double cartpole_high[] = {2 * CARTPOLE_X_MAX_M, INFINITY, 2 * CARTPOLE_THETA_MAX_RAD, INFINITY},
                    cartpole_low[] = {-2 * CARTPOLE_X_MAX_M, -INFINITY, -2 * CARTPOLE_THETA_MAX_RAD,
                                      -INFINITY},
                    acrobot_high[] = {1, 1, 1, 1, ACROBOT_THETA1_DOT_MAX, ACROBOT_THETA2_DOT_MAX},
                    acrobot_low[] = {-1, -1, -1, -1, -ACROBOT_THETA1_DOT_MAX, -ACROBOT_THETA2_DOT_MAX},
                    mountain_car_high[] = {MOUNTAIN_CAR_POSITION_MAX, MOUNTAIN_CAR_SPEED_MAX},
                    mountain_car_low[] = {MOUNTAIN_CAR_POSITION_MIN, -MOUNTAIN_CAR_SPEED_MAX},
                    pendulum_high[] = {1, 1, PENDULUM_SPEED_MAX},
                    pendulum_low[] = {-1, -1, -PENDULUM_SPEED_MAX}, force_high[] = {1}, force_low[] = {-1},
                    torque_high[] = {PENDULUM_TORQUE_MAX}, torque_low[] = {-PENDULUM_TORQUE_MAX};

static const uint32_t two_choices[] = {CARTPOLE_ACTIONS}, three_choices[] = {ACROBOT_ACTIONS};

#define OBSERVATION(size, of)                                                                                \
    .observation = {                                                                                         \
        .dtype = ENVIRONMENT_F32, .rank = 1, .shape = {(size)}, .low = of##_low, .high = of##_high}
#define CHOICE(of) .action = {.dtype = ENVIRONMENT_I32, .choices = (of)}
#define FORCE(of)                                                                                            \
    .action = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {1}, .low = of##_low, .high = of##_high}
#define SPEC(max) .size = sizeof(struct environment_spec), .agents = 1, .steps_max = (max)

static const struct environment_spec specs[CLASSIC_KINDS] = {
    [CLASSIC_CARTPOLE] = {SPEC(CARTPOLE_STEPS_MAX), OBSERVATION(CARTPOLE_STATE_SIZE, cartpole),
                          CHOICE(two_choices)},
    [CLASSIC_ACROBOT] = {SPEC(ACROBOT_STEPS_MAX), OBSERVATION(ACROBOT_OBSERVATION_SIZE, acrobot),
                         CHOICE(three_choices)},
    [CLASSIC_MOUNTAIN_CAR] = {SPEC(MOUNTAIN_CAR_STEPS_MAX),
                              OBSERVATION(MOUNTAIN_CAR_STATE_SIZE, mountain_car), CHOICE(three_choices)},
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] = {SPEC(MOUNTAIN_CAR_CONTINUOUS_STEPS_MAX),
                                         OBSERVATION(MOUNTAIN_CAR_STATE_SIZE, mountain_car), FORCE(force)},
    [CLASSIC_PENDULUM] = {SPEC(PENDULUM_STEPS_MAX), OBSERVATION(PENDULUM_OBSERVATION_SIZE, pendulum),
                          FORCE(torque)},
};

/* A value of a state: where it begins, and where it can get to. */
struct value_range {
    double first_low, first_high;
    double low, high;
};

static const struct state_form {
    uint32_t values;
    bool first_is_float; /* a first state is rounded to float32, as Gymnasium's Acrobot does */
    struct value_range ranges[CLASSIC_VALUES_MAX];
} forms[CLASSIC_KINDS] = {
    [CLASSIC_CARTPOLE] =
        {CARTPOLE_STATE_SIZE,
         false,
         {{-CARTPOLE_RESET_MAX, CARTPOLE_RESET_MAX, -2 * CARTPOLE_X_MAX_M, 2 * CARTPOLE_X_MAX_M},
          {-CARTPOLE_RESET_MAX, CARTPOLE_RESET_MAX, -1e3, 1e3},
          {-CARTPOLE_RESET_MAX, CARTPOLE_RESET_MAX, -2 * CARTPOLE_THETA_MAX_RAD, 2 * CARTPOLE_THETA_MAX_RAD},
          {-CARTPOLE_RESET_MAX, CARTPOLE_RESET_MAX, -1e3, 1e3}}},
    [CLASSIC_ACROBOT] =
        {ACROBOT_STATE_SIZE,
         true,
         {{-ACROBOT_RESET_MAX, ACROBOT_RESET_MAX, -ACROBOT_PI, ACROBOT_PI},
          {-ACROBOT_RESET_MAX, ACROBOT_RESET_MAX, -ACROBOT_PI, ACROBOT_PI},
          {-ACROBOT_RESET_MAX, ACROBOT_RESET_MAX, -ACROBOT_THETA1_DOT_MAX, ACROBOT_THETA1_DOT_MAX},
          {-ACROBOT_RESET_MAX, ACROBOT_RESET_MAX, -ACROBOT_THETA2_DOT_MAX, ACROBOT_THETA2_DOT_MAX}}},
    /* float32 rounds both cars' bounds outwards. */
    [CLASSIC_MOUNTAIN_CAR] = {MOUNTAIN_CAR_STATE_SIZE,
                              false,
                              {{MOUNTAIN_CAR_RESET_MIN, MOUNTAIN_CAR_RESET_MAX,
                                (float)MOUNTAIN_CAR_POSITION_MIN, (float)MOUNTAIN_CAR_POSITION_MAX},
                               {0, 0, -(float)MOUNTAIN_CAR_SPEED_MAX, (float)MOUNTAIN_CAR_SPEED_MAX}}},
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] =
        {MOUNTAIN_CAR_STATE_SIZE,
         false,
         {{MOUNTAIN_CAR_RESET_MIN, MOUNTAIN_CAR_RESET_MAX, (float)MOUNTAIN_CAR_POSITION_MIN,
           (float)MOUNTAIN_CAR_POSITION_MAX},
          {0, 0, -(float)MOUNTAIN_CAR_SPEED_MAX, (float)MOUNTAIN_CAR_SPEED_MAX}}},
    [CLASSIC_PENDULUM] =
        {PENDULUM_STATE_SIZE,
         false,
         {{-PENDULUM_RESET_THETA_MAX, PENDULUM_RESET_THETA_MAX, -SINE_ANGLE_MAX, SINE_ANGLE_MAX},
          {-PENDULUM_RESET_SPEED_MAX, PENDULUM_RESET_SPEED_MAX, -PENDULUM_SPEED_MAX, PENDULUM_SPEED_MAX}}},
};

/* ---- open and close ---- */

struct classic {
    enum classic_kind kind;
    const struct classic_lanes *lanes;
    size_t count;
    double states[]; /* (forms[kind].values, count) */
};

__attribute__((format(printf, 2, 3))) static int refuse(char error[ENVIRONMENT_ERROR_BYTES],
                                                        const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(error, ENVIRONMENT_ERROR_BYTES, format, list);
    va_end(list);
    return 1;
}

/* Refuses all but an empty object. */
static int check_options(const char *name, const char *options, char error[ENVIRONMENT_ERROR_BYTES])
{
    char shown[64];
    cJSON *root = cJSON_Parse(options);
    int failed = 0;
    if (!cJSON_IsObject(root)) {
        failed = refuse(error, "%s: options: expected a JSON object", name);
    } else if (root->child != NULL) {
        text_show(shown, sizeof shown, root->child->string, strlen(root->child->string), 40);
        failed = refuse(error, "%s: options: unknown option \"%s\"; %s has no options", name, shown, name);
    }
    cJSON_Delete(root);
    return failed;
}

static int choose_lanes(const struct classic_lanes **out, char error[ENVIRONMENT_ERROR_BYTES])
{
    static const struct classic_lanes *const lanes_of[ISA_COUNT] = {[ISA_BASELINE] = &classic_lanes_baseline,
                                                                    [ISA_AVX2] = &classic_lanes_avx2,
                                                                    [ISA_AVX512] = &classic_lanes_avx512};
    enum isa isa = ISA_BASELINE;
    struct error why;
    if (isa_choose(&isa, &why) != STATUS_OK)
        return refuse(error, "%.*s", ENVIRONMENT_ERROR_BYTES - 1, why.text);
    *out = lanes_of[isa];
    return 0;
}

static int classic_open(void **out, const struct environment_spec **spec, const char *name,
                        const char *options, uint32_t count, char error[ENVIRONMENT_ERROR_BYTES])
{
    const struct classic_lanes *lanes = NULL;
    uint32_t kind = 0;
    while (kind < CLASSIC_KINDS && strcmp(names[kind], name) != 0)
        kind++;
    if (kind == CLASSIC_KINDS)
        return refuse(error, "\"%.64s\" is not a built-in environment", name);
    if (check_options(name, options, error) != 0 || choose_lanes(&lanes, error) != 0)
        return 1;
    struct classic *classic =
        calloc(1, sizeof *classic + (size_t)count * forms[kind].values * sizeof classic->states[0]);
    if (classic == NULL)
        return refuse(error, "%s: no memory for %u environments", name, count);
    classic->kind = (enum classic_kind)kind;
    classic->lanes = lanes;
    classic->count = count;
    *out = classic;
    *spec = &specs[kind];
    return 0;
}

static void classic_close(void *self)
{
    free(self);
}

/* ---- reset and step ---- */

static struct classic_call call_of(struct classic *self, const struct environment_buffers *buffers,
                                   uint32_t n, const uint32_t *which)
{
    return (struct classic_call){.states = self->states,
                                 .stride = self->count,
                                 .n = n,
                                 .which = which,
                                 .actions = buffers->action,
                                 .observations = buffers->observation,
                                 .rewards = buffers->reward,
                                 .flags = buffers->flags};
}

static void draw_state(struct classic *self, uint32_t environment, const struct environment_seed *seed)
{
    const struct state_form *form = &forms[self->kind];
    const struct rng_key key = {seed->job, seed->environment, seed->step, seed->episode};
    uint32_t words[4] = {0};
    for (uint32_t v = 0; v < form->values; v++) {
        const struct value_range *range = &form->ranges[v];
        if (v % 2 == 0)
            rng_block(&key, RNG_RESET, v / 2, words);
        const double uniform = rng_uniform_double(words[v % 2 * 2], words[v % 2 * 2 + 1]);
        const double value = range->first_low + (range->first_high - range->first_low) * uniform;
        self->states[v * self->count + environment] = form->first_is_float ? (double)(float)value : value;
    }
}

static int classic_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                         const uint32_t *which, const struct environment_seed *seeds,
                         char error[ENVIRONMENT_ERROR_BYTES])
{
    struct classic *classic = self;
    (void)error;
    for (uint32_t i = 0; i < n; i++)
        draw_state(classic, which != NULL ? which[i] : i, &seeds[i]);
    const struct classic_call call = call_of(classic, buffers, n, which);
    classic->lanes->observe[classic->kind](&call);
    return 0;
}

static int classic_step_environments(void *self, const struct environment_buffers *buffers, uint32_t n,
                                     const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct classic *classic = self;
    (void)error;
    const struct classic_call call = call_of(classic, buffers, n, which);
    classic->lanes->step[classic->kind](&call);
    return 0;
}

/* ---- render, save, load ---- */

static void read_values(const struct classic *self, uint32_t which, double values[CLASSIC_VALUES_MAX])
{
    for (uint32_t v = 0; v < forms[self->kind].values; v++)
        values[v] = self->states[v * self->count + which];
}

static size_t classic_render(void *self, uint32_t which, int kind, uint32_t *width, uint32_t *height,
                             void *out, size_t capacity)
{
    const struct classic *classic = self;
    double values[CLASSIC_VALUES_MAX] = {0};
    read_values(classic, which, values);
    return classic_view(classic->kind, values, kind, width, height, out, capacity);
}

struct classic_saved {
    char name[32]; /* filled up with zeros */
    double values[CLASSIC_VALUES_MAX];
};

/* Bytes of a saved state: without the values that the kind lacks. */
static size_t saved_bytes(enum classic_kind kind)
{
    return offsetof(struct classic_saved, values) + forms[kind].values * sizeof(double);
}

static size_t classic_save(void *self, uint32_t which, void *out, size_t capacity)
{
    const struct classic *classic = self;
    const size_t bytes = saved_bytes(classic->kind);
    struct classic_saved saved = {0};
    if (bytes > capacity)
        return bytes;
    memcpy(saved.name, names[classic->kind], strlen(names[classic->kind]));
    read_values(classic, which, saved.values);
    memcpy(out, &saved, bytes);
    return bytes;
}

static int check_saved(enum classic_kind kind, const struct classic_saved *saved, size_t size,
                       char error[ENVIRONMENT_ERROR_BYTES])
{
    struct classic_saved expected = {0};
    memcpy(expected.name, names[kind], strlen(names[kind]));
    if (size != saved_bytes(kind))
        return refuse(error, "a saved state of %s has %zu bytes: expected %zu", names[kind], size,
                      saved_bytes(kind));
    if (memcmp(saved->name, expected.name, sizeof saved->name) != 0)
        return refuse(error, "the saved state is not of %s", names[kind]);
    for (uint32_t v = 0; v < forms[kind].values; v++) {
        const struct value_range *range = &forms[kind].ranges[v];
        if (!(saved->values[v] >= range->low && saved->values[v] <= range->high))
            return refuse(error, "value %u of a saved state of %s is %g: expected %g..%g", v, names[kind],
                          saved->values[v], range->low, range->high);
    }
    return 0;
}

static int classic_load(void *self, const struct environment_buffers *buffers, uint32_t which,
                        const void *state, size_t size, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct classic *classic = self;
    struct classic_saved saved = {0};
    memcpy(&saved, state, size < sizeof saved ? size : sizeof saved);
    if (check_saved(classic->kind, &saved, size, error) != 0)
        return 1;
    for (uint32_t v = 0; v < forms[classic->kind].values; v++)
        classic->states[v * classic->count + which] = saved.values[v];
    const struct classic_call call = call_of(classic, buffers, 1, &which);
    classic->lanes->observe[classic->kind](&call);
    return 0;
}

const struct environment_plugin classic_environments = {
    .version = ENVIRONMENT_VERSION,
    .size = sizeof(struct environment_plugin),
    .names = names,
    .open = classic_open,
    .close = classic_close,
    .reset = classic_reset,
    .step = classic_step_environments,
    .render = classic_render,
    .save = classic_save,
    .load = classic_load,
};
