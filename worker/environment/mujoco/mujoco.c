/* The plug-in of Gymnasium's MuJoCo tasks, version 5: one model of MuJoCo's for an instance, and one mjData
 * for each environment. Thread: that of the caller.
 *
 * A model is NAME.xml in the folder mujoco-models/ beside this plug-in, or where the option "model" points.
 */
#include "kernels/base/rng.h"
#include "kernels/lanes/normal.h"
#include "worker/environment/environment.h"

#include <cjson/cJSON.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <mujoco/mujoco.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tasks, as numbers: what is observed, rewarded, and when an episode ends ----
 *
 * Facts from gymnasium/envs/mujoco, each file NAME_v5.py; the models are the XML files beside them.
 *
 * One step is `substeps` steps of MuJoCo's. With x the place along the track before and x' behind it, dt the
 * seconds of a step, a the action and F the external force on each body, clipped to ±1:
 *
 *     reward = forward (x' - x) / dt + alive [healthy] - control sum(a²) - contact sum(F²)
 *
 * The observation is (positions without the first `hidden`, velocities clipped to ±velocity_max, and with
 * `has_forces` F of each body but the world). An episode ends in a state that is not healthy. */

enum { MUJOCO_LIMITS = 2, STEPS_MAX = 1000 };

/* What the job's options may change, under the names that Gymnasium's keywords have. */
struct mujoco_settings {
    double forward, alive, control, contact;
    double noise;      /* of a reset, around the model's first state */
    double substeps;   /* a whole number */
    double terminates; /* 0: a state that is not healthy ends nothing */
};

struct mujoco_task {
    const char *name, *model;
    struct mujoco_settings settings;
    uint32_t hidden;
    double velocity_max; /* 0: none */
    bool has_forces;
    bool follows_body; /* x is the first body's place, and not the first position: MuJoCo computes it before a
                          substep, so it lags one behind */
    bool normal_velocity; /* a reset adds noise * normal(0, 1) to velocities, and not a uniform of ±noise */
    double state_max; /* healthy: below it are |positions but the first two| and |velocities|; 0: any are */
    struct {
        uint32_t position; /* healthy: this position lies within */
        double low, high;  /* high 0: there is no such limit */
        bool closed;       /* low and high themselves are healthy */
    } limits[MUJOCO_LIMITS];
};

static const struct mujoco_task mujoco_tasks[] = {
    {.name = "Ant-v5",
     .model = "ant.xml",
     .settings = {.forward = 1,
                  .alive = 1,
                  .control = 0.5,
                  .contact = 5e-4,
                  .noise = 0.1,
                  .substeps = 5,
                  .terminates = 1},
     .hidden = 2,
     .has_forces = true,
     .follows_body = true,
     .normal_velocity = true,
     .limits = {{2, 0.2, 1.0, true}}},
    {.name = "HalfCheetah-v5",
     .model = "half_cheetah.xml",
     .settings = {.forward = 1, .control = 0.1, .noise = 0.1, .substeps = 5},
     .hidden = 1,
     .normal_velocity = true},
    {.name = "Hopper-v5",
     .model = "hopper.xml",
     .settings = {.forward = 1, .alive = 1, .control = 1e-3, .noise = 5e-3, .substeps = 4, .terminates = 1},
     .hidden = 1,
     .velocity_max = 10,
     .state_max = 100,
     .limits = {{1, 0.7, INFINITY, false}, {2, -0.2, 0.2, false}}},
    {.name = "InvertedPendulum-v5",
     .model = "inverted_pendulum.xml",
     .settings = {.alive = 1, .noise = 0.01, .substeps = 2, .terminates = 1},
     .limits = {{1, -0.2, 0.2, true}}},
    {.name = "Swimmer-v5",
     .model = "swimmer.xml",
     .settings = {.forward = 1, .control = 1e-4, .noise = 0.1, .substeps = 4},
     .hidden = 2},
    {.name = "Walker2d-v5",
     .model = "walker2d_v5.xml",
     .settings = {.forward = 1, .alive = 1, .control = 1e-3, .noise = 5e-3, .substeps = 4, .terminates = 1},
     .hidden = 1,
     .velocity_max = 10,
     .limits = {{1, 0.8, 2.0, false}, {2, -1.0, 1.0, false}}},
};

/* In the same order. */
static const char *const mujoco_names[] = {"Ant-v5",     "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5",
                                           "Swimmer-v5", "Walker2d-v5",    NULL};

/* ---- an instance ---- */

enum { STATE = mjSTATE_INTEGRATION, FORCES = 6 };

struct world {
    mjData *data;
    double x;
};

struct instance {
    const struct mujoco_task *task;
    struct mujoco_settings settings;
    struct environment_spec spec;
    mjModel *model;
    uint32_t count, inputs; /* environments; floats of an observation */
    size_t state_numbers;   /* of MuJoCo's state */
    double *low, *high;     /* (controls) */
    double *state;          /* (1 + state_numbers) of one environment, saved or loaded */
    float *observations;    /* (count, inputs) the latest ones */
    float *draws;           /* (velocities) normal */
    normal_group *draw_normal;
    char path[PATH_MAX];
    struct world worlds[];
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

/* ---- options ---- */

static double *setting_named(struct mujoco_settings *settings, const char *name)
{
    const struct {
        const char *name;
        double *value;
    } table[] = {{"forward_reward_weight", &settings->forward},
                 {"healthy_reward", &settings->alive},
                 {"ctrl_cost_weight", &settings->control},
                 {"contact_cost_weight", &settings->contact},
                 {"reset_noise_scale", &settings->noise},
                 {"frame_skip", &settings->substeps},
                 {"terminate_when_unhealthy", &settings->terminates}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].value;
    return NULL;
}

static int take_option(struct instance *self, const cJSON *option, char *error)
{
    double *value = setting_named(&self->settings, option->string);
    if (strcmp(option->string, "model") == 0) {
        if (!cJSON_IsString(option) || strlen(option->valuestring) >= sizeof self->path)
            return refuse(error, "model: expected a path");
        snprintf(self->path, sizeof self->path, "%s", option->valuestring);
        return 0;
    }
    if (value == NULL)
        return refuse(error, "unknown option \"%.100s\"", option->string);
    if (value == &self->settings.terminates ? !cJSON_IsBool(option) : !cJSON_IsNumber(option))
        return refuse(error, "%s: expected %s", option->string,
                      value == &self->settings.terminates ? "true or false" : "a number");
    *value = cJSON_IsBool(option) ? (double)cJSON_IsTrue(option) : option->valuedouble;
    if (!isfinite(*value))
        return refuse(error, "%s: expected a finite number", option->string);
    return 0;
}

static int take_options(struct instance *self, const char *options, char *error)
{
    cJSON *root = cJSON_Parse(options);
    int failed = cJSON_IsObject(root) ? 0 : refuse(error, "the options are no JSON object");
    for (const cJSON *option = failed ? NULL : root->child; option != NULL && !failed; option = option->next)
        failed = take_option(self, option, error);
    cJSON_Delete(root);
    const double substeps = self->settings.substeps;
    if (!failed && !(substeps >= 1 && substeps <= 1000 && substeps == floor(substeps)))
        return refuse(error, "frame_skip: expected a whole number in 1..1000, got %g", substeps);
    if (!failed && self->settings.noise < 0)
        return refuse(error, "reset_noise_scale: expected at least 0, got %g", self->settings.noise);
    return failed;
}

/* ---- opening ---- */

/* A model of the user's may have any number of joints, but what the task looks at must be there. */
static int check_model(const struct instance *self, char *error)
{
    const mjModel *model = self->model;
    uint32_t positions = self->task->hidden > 1 ? self->task->hidden : 1;
    for (unsigned i = 0; i < MUJOCO_LIMITS; i++)
        if (self->task->limits[i].position >= positions)
            positions = self->task->limits[i].position + 1;
    if (model->nq < positions || model->nu == 0 || model->nbody < 2)
        return refuse(error, "%s has %d positions, %d controls and %d bodies: %s needs %u, 1 and 2",
                      self->path, (int)model->nq, (int)model->nu, (int)model->nbody, self->task->name,
                      positions);
    for (int i = 0; i < model->nu; i++)
        if (!model->actuator_ctrllimited[i])
            return refuse(error, "%s: control %d has no range", self->path, i);
    return 0;
}

static int load_model(struct instance *self, char *error)
{
    char why[ENVIRONMENT_ERROR_BYTES] = "";
    self->model = mj_loadXML(self->path, NULL, why, (int)sizeof why);
    if (self->model == NULL)
        return refuse(error, "%.200s: %.180s", self->path, why);
    if (check_model(self, error) != 0)
        return 1;
    /* Bodies that are one tree are one island: looking for islands takes time, and the bits are the same. */
    if (self->model->ntree == 1)
        self->model->opt.disableflags |= mjDSBL_ISLAND;
    self->inputs = (uint32_t)(self->model->nq - self->task->hidden + self->model->nv);
    if (self->task->has_forces)
        self->inputs += (uint32_t)(self->model->nbody - 1) * FORCES;
    self->state_numbers = (size_t)mj_stateSize(self->model, STATE);
    return 0;
}

static int open_memory(struct instance *self, char *error)
{
    const size_t controls = (size_t)self->model->nu;
    self->low = calloc(controls, sizeof *self->low);
    self->high = calloc(controls, sizeof *self->high);
    self->state = calloc(1 + self->state_numbers, sizeof *self->state);
    self->draws = calloc((size_t)self->model->nv, sizeof *self->draws);
    self->observations = calloc((size_t)self->count * self->inputs, sizeof *self->observations);
    bool whole = self->low != NULL && self->high != NULL && self->state != NULL && self->draws != NULL &&
                 self->observations != NULL;
    for (uint32_t i = 0; i < self->count && whole; i++)
        whole = (self->worlds[i].data = mj_makeData(self->model)) != NULL;
    if (!whole)
        return refuse(error, "no memory for %u environments", self->count);
    for (size_t i = 0; i < controls; i++) {
        self->low[i] = self->model->actuator_ctrlrange[2 * i];
        self->high[i] = self->model->actuator_ctrlrange[2 * i + 1];
    }
    return 0;
}

static void fill_spec(struct instance *self)
{
    self->spec = (struct environment_spec){
        .size = sizeof self->spec,
        .agents = 1,
        .steps_max = STEPS_MAX,
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {self->inputs}},
        .action = {.dtype = ENVIRONMENT_F32,
                   .rank = 1,
                   .shape = {(uint32_t)self->model->nu},
                   .low = self->low,
                   .high = self->high}};
}

static void mujoco_close(void *context)
{
    struct instance *self = context;
    for (uint32_t i = 0; i < self->count; i++)
        mj_deleteData(self->worlds[i].data);
    mj_deleteModel(self->model);
    free(self->low);
    free(self->high);
    free(self->state);
    free(self->observations);
    free(self->draws);
    free(self);
}

static int mujoco_open(void **out, const struct environment_spec **spec, const char *name,
                       const char *options, uint32_t count, char error[ENVIRONMENT_ERROR_BYTES])
{
    unsigned task = 0;
    while (mujoco_names[task] != NULL && strcmp(mujoco_names[task], name) != 0)
        task++;
    if (mujoco_names[task] == NULL)
        return refuse(error, "there is no environment %.100s", name);
    struct instance *self = calloc(1, sizeof *self + count * sizeof self->worlds[0]);
    if (self == NULL)
        return refuse(error, "no memory for %u environments", count);
    self->task = &mujoco_tasks[task];
    self->settings = self->task->settings;
    self->count = count;
    self->draw_normal = normal_group_baseline;
    /* The model's file in mujoco-models/ beside this plug-in. */
    Dl_info place;
    const char *folder = dladdr(mujoco_tasks, &place) != 0 ? place.dli_fname : "";
    const char *slash = strrchr(folder, '/');
    snprintf(self->path, sizeof self->path, "%.*smujoco-models/%s",
             slash != NULL ? (int)(slash - folder + 1) : 0, folder, self->task->model);
    if (take_options(self, options, error) != 0 || load_model(self, error) != 0 ||
        open_memory(self, error) != 0) {
        mujoco_close(self);
        return 1;
    }
    fill_spec(self);
    *out = self;
    *spec = &self->spec;
    return 0;
}

/* ---- one environment ---- */

static double clipped(double value, double limit)
{
    return fmin(fmax(value, -limit), limit);
}

static double track_place(const struct instance *self, const mjData *data)
{
    return self->task->follows_body ? data->xpos[3] : data->qpos[0];
}

static void observe(struct instance *self, uint32_t which, const struct environment_buffers *buffers)
{
    const mjModel *model = self->model;
    const mjData *data = self->worlds[which].data;
    const double velocity_max = self->task->velocity_max > 0 ? self->task->velocity_max : INFINITY;
    float *row = self->observations + (size_t)which * self->inputs, *to = row;
    for (int i = (int)self->task->hidden; i < model->nq; i++)
        *to++ = (float)data->qpos[i];
    for (int i = 0; i < model->nv; i++)
        *to++ = (float)clipped(data->qvel[i], velocity_max);
    for (int i = FORCES; self->task->has_forces && i < model->nbody * FORCES; i++)
        *to++ = (float)clipped(data->cfrc_ext[i], 1);
    memcpy((float *)buffers->observation + (size_t)which * self->inputs, row, self->inputs * sizeof *row);
}

static bool is_healthy(const struct instance *self, const mjData *data)
{
    const struct mujoco_task *task = self->task;
    bool healthy = true;
    for (unsigned i = 0; i < MUJOCO_LIMITS && task->limits[i].high != 0; i++) {
        const double position = data->qpos[task->limits[i].position];
        const double low = task->limits[i].low, high = task->limits[i].high;
        healthy &=
            task->limits[i].closed ? low <= position && position <= high : low < position && position < high;
    }
    for (int i = 2; i < self->model->nq && task->state_max > 0; i++)
        healthy &= fabs(data->qpos[i]) < task->state_max;
    for (int i = 0; i < self->model->nv && task->state_max > 0; i++)
        healthy &= fabs(data->qvel[i]) < task->state_max;
    return healthy;
}

static double cost(const struct instance *self, const mjData *data)
{
    double control = 0, contact = 0;
    for (int i = 0; i < self->model->nu; i++)
        control += data->ctrl[i] * data->ctrl[i];
    for (int i = 0; self->task->has_forces && i < self->model->nbody * FORCES; i++)
        contact += clipped(data->cfrc_ext[i], 1) * clipped(data->cfrc_ext[i], 1);
    return self->settings.control * control + self->settings.contact * contact;
}

/* ---- reset and step ---- */

static void draw_state(struct instance *self, mjData *data, const struct environment_seed *seed)
{
    struct rng_key key = {.seed = environment_seed_mix(*seed)};
    const double noise = self->settings.noise;
    const int positions = (int)self->model->nq, velocities = (int)self->model->nv;
    for (int i = 0; i < positions + velocities; i++) {
        uint32_t words[4];
        key.environment = (uint32_t)i;
        rng_block(&key, RNG_RESET, 0, words);
        const double uniform = noise * (2 * rng_uniform_double(words[0], words[1]) - 1);
        if (i < positions)
            data->qpos[i] += uniform;
        else if (!self->task->normal_velocity)
            data->qvel[i - positions] = uniform;
    }
    if (!self->task->normal_velocity)
        return;
    normal_fill(self->draw_normal, self->draws, (uint64_t)velocities, &key, RNG_RESET, 1);
    for (int i = 0; i < velocities; i++)
        data->qvel[i] = noise * (double)self->draws[i];
}

static int mujoco_reset(void *context, const struct environment_buffers *buffers, uint32_t n,
                        const uint32_t *which, const struct environment_seed *seeds,
                        char error[ENVIRONMENT_ERROR_BYTES])
{
    struct instance *self = context;
    (void)error;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = which != NULL ? which[i] : i;
        mjData *data = self->worlds[row].data;
        mj_resetData(self->model, data);
        draw_state(self, data, &seeds[i]);
        mj_forward(self->model, data);
        self->worlds[row].x = track_place(self, data);
        observe(self, row, buffers);
    }
    return 0;
}

static void step_world(struct instance *self, uint32_t row, const struct environment_buffers *buffers)
{
    struct world *world = &self->worlds[row];
    mjData *data = world->data;
    const float *action = (const float *)buffers->action + (size_t)row * (size_t)self->model->nu;
    const double x = world->x, seconds = self->model->opt.timestep * self->settings.substeps;
    for (int i = 0; i < self->model->nu; i++)
        data->ctrl[i] = (double)action[i];
    for (int i = 0; i < (int)self->settings.substeps; i++)
        mj_step(self->model, data);
    if (self->task->has_forces)
        mj_rnePostConstraint(self->model, data);
    world->x = track_place(self, data);
    const bool healthy = is_healthy(self, data);
    const double reward =
        self->settings.forward * (world->x - x) / seconds + self->settings.alive * healthy - cost(self, data);
    buffers->reward[row] = (float)reward;
    buffers->flags[row] = 0;
    if (!healthy && self->settings.terminates != 0)
        buffers->flags[row] = ENVIRONMENT_TERMINATED;
    /* MuJoCo puts an environment whose numbers are not finite, or huge, into its first state, and counts. */
    if (data->warning[mjWARN_BADQPOS].number + data->warning[mjWARN_BADQVEL].number +
            data->warning[mjWARN_BADQACC].number >
        0)
        buffers->flags[row] = ENVIRONMENT_FAILED;
    observe(self, row, buffers);
}

static int mujoco_step(void *context, const struct environment_buffers *buffers, uint32_t n,
                       const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    (void)error;
    for (uint32_t i = 0; i < n; i++)
        step_world(context, which != NULL ? which[i] : i, buffers);
    return 0;
}

/* ---- a saved state: x, MuJoCo's state, the observation ---- */

static size_t saved_bytes(const struct instance *self)
{
    return (1 + self->state_numbers) * sizeof(double) + self->inputs * sizeof(float);
}

static size_t mujoco_save(void *context, uint32_t which, void *out, size_t capacity)
{
    struct instance *self = context;
    const size_t numbers = (1 + self->state_numbers) * sizeof(double);
    if (capacity < saved_bytes(self))
        return saved_bytes(self);
    self->state[0] = self->worlds[which].x;
    mj_getState(self->model, self->worlds[which].data, self->state + 1, STATE);
    memcpy(out, self->state, numbers);
    memcpy((char *)out + numbers, self->observations + (size_t)which * self->inputs,
           self->inputs * sizeof(float));
    return saved_bytes(self);
}

static int mujoco_load(void *context, const struct environment_buffers *buffers, uint32_t which,
                       const void *state, size_t size, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct instance *self = context;
    const size_t numbers = (1 + self->state_numbers) * sizeof(double);
    if (size != saved_bytes(self))
        return refuse(error, "a state of %zu bytes: expected %zu", size, saved_bytes(self));
    memcpy(self->state, state, numbers);
    for (size_t i = 0; i <= self->state_numbers; i++)
        if (!isfinite(self->state[i]))
            return refuse(error, "number %zu of the state is not finite", i);
    mj_resetData(self->model, self->worlds[which].data);
    self->worlds[which].x = self->state[0];
    mj_setState(self->model, self->worlds[which].data, self->state + 1, STATE);
    float *row = self->observations + (size_t)which * self->inputs;
    memcpy(row, (const char *)state + numbers, self->inputs * sizeof *row);
    memcpy((float *)buffers->observation + (size_t)which * self->inputs, row, self->inputs * sizeof *row);
    return 0;
}

/* MuJoCo writes its warnings to a file in the working directory otherwise. */
static void ignore_warning(const char *text)
{
    (void)text;
}

static const struct environment_plugin plugin = {.version = ENVIRONMENT_VERSION,
                                                 .size = sizeof plugin,
                                                 .names = mujoco_names,
                                                 .open = mujoco_open,
                                                 .close = mujoco_close,
                                                 .reset = mujoco_reset,
                                                 .step = mujoco_step,
                                                 .save = mujoco_save,
                                                 .load = mujoco_load};

__attribute__((visibility("default"))) const struct environment_plugin *environment_plugin(void)
{
    mju_user_warning = ignore_warning;
    return &plugin;
}
