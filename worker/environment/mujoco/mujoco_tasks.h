/* Gymnasium's MuJoCo tasks, version 5, as numbers: what is observed, rewarded, and when an episode ends.
 * Facts from gymnasium/envs/mujoco, each file NAME_v5.py; the models are the XML files beside them.
 *
 * One step is `substeps` steps of MuJoCo's. With x the place along the track before and x' behind it, dt the
 * seconds of a step, a the action and F the external force on each body, clipped to ±1:
 *
 *     reward = forward (x' - x) / dt + alive [healthy] - control sum(a²) - contact sum(F²)
 *
 * The observation is (positions without the first `hidden`, velocities clipped to ±velocity_max, and with
 * `has_forces` F of each body but the world). An episode ends in a state that is not healthy. */
#ifndef WORKER_ENVIRONMENT_MUJOCO_MUJOCO_TASKS_H
#define WORKER_ENVIRONMENT_MUJOCO_MUJOCO_TASKS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MUJOCO_LIMITS = 2 };

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
    uint32_t steps_max;
    uint32_t hidden;
    double velocity_max;
    bool has_forces;
    bool follows_body; /* x is the first body's place, and not the first position: MuJoCo computes it before a
                          substep, so it lags one behind */
    bool normal_velocity; /* a reset adds noise * normal(0, 1) to velocities, and not a uniform of ±noise */
    double state_max;     /* healthy: below it are |positions but the first two| and |velocities| */
    struct {
        uint32_t position; /* healthy: this position lies within */
        double low, high;
        bool closed; /* low and high themselves are healthy */
    } limits[MUJOCO_LIMITS];
};

#define ANYTHING                                                                                             \
    {                                                                                                        \
        0, -INFINITY, INFINITY, true                                                                         \
    }

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
     .steps_max = 1000,
     .hidden = 2,
     .velocity_max = INFINITY,
     .has_forces = true,
     .follows_body = true,
     .normal_velocity = true,
     .state_max = INFINITY,
     .limits = {{2, 0.2, 1.0, true}, ANYTHING}},
    {.name = "HalfCheetah-v5",
     .model = "half_cheetah.xml",
     .settings = {.forward = 1, .control = 0.1, .noise = 0.1, .substeps = 5},
     .steps_max = 1000,
     .hidden = 1,
     .velocity_max = INFINITY,
     .normal_velocity = true,
     .state_max = INFINITY,
     .limits = {ANYTHING, ANYTHING}},
    {.name = "Hopper-v5",
     .model = "hopper.xml",
     .settings = {.forward = 1, .alive = 1, .control = 1e-3, .noise = 5e-3, .substeps = 4, .terminates = 1},
     .steps_max = 1000,
     .hidden = 1,
     .velocity_max = 10,
     .state_max = 100,
     .limits = {{1, 0.7, INFINITY, false}, {2, -0.2, 0.2, false}}},
    {.name = "InvertedPendulum-v5",
     .model = "inverted_pendulum.xml",
     .settings = {.alive = 1, .noise = 0.01, .substeps = 2, .terminates = 1},
     .steps_max = 1000,
     .velocity_max = INFINITY,
     .state_max = INFINITY,
     .limits = {{1, -0.2, 0.2, true}, ANYTHING}},
    {.name = "Swimmer-v5",
     .model = "swimmer.xml",
     .settings = {.forward = 1, .control = 1e-4, .noise = 0.1, .substeps = 4},
     .steps_max = 1000,
     .hidden = 2,
     .velocity_max = INFINITY,
     .state_max = INFINITY,
     .limits = {ANYTHING, ANYTHING}},
    {.name = "Walker2d-v5",
     .model = "walker2d_v5.xml",
     .settings = {.forward = 1, .alive = 1, .control = 1e-3, .noise = 5e-3, .substeps = 4, .terminates = 1},
     .steps_max = 1000,
     .hidden = 1,
     .velocity_max = 10,
     .state_max = INFINITY,
     .limits = {{1, 0.8, 2.0, false}, {2, -1.0, 1.0, false}}},
};

/* In the same order. */
static const char *const mujoco_names[] = {"Ant-v5",     "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5",
                                           "Swimmer-v5", "Walker2d-v5",    NULL};

#endif
