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

#include <stdbool.h>
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

extern const struct mujoco_task mujoco_tasks[];
extern const char *const mujoco_names[]; /* ended by NULL, in the same order */

#endif
