/* The table of tasks. */
#include "worker/environment/mujoco/mujoco_tasks.h"

#include <math.h>
#include <stddef.h>

#define ANYTHING                                                                                             \
    {                                                                                                        \
        0, -INFINITY, INFINITY, true                                                                         \
    }

const struct mujoco_task mujoco_tasks[] = {
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

const char *const mujoco_names[] = {"Ant-v5",     "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5",
                                    "Swimmer-v5", "Walker2d-v5",    NULL};
