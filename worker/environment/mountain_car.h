/* MountainCar-v0's and MountainCarContinuous-v0's physics: a car in a valley, too weak to drive straight up
 * the hill to the flag.
 *
 * The equations are those of Moore, "Efficient Memory-Based Learning for Robot Control" (1990), as in Sutton
 * and Barto, "Reinforcement Learning: An Introduction" (1998), with the constants and the order of operations
 * of Gymnasium's two environments. The valley's height at `position` is sin(3 position).
 *
 * MountainCar-v0 is double throughout. Of Gymnasium's MountainCarContinuous-v0 the state is float64 after a
 * reset and float32 after each step, and NumPy 2 then computes in float32; so do we. (NumPy 1 computes the
 * same formulas in float64, so Gymnasium's numbers on NumPy 1 differ from ours from the eighth digit on.)
 *
 * Equal to Gymnasium's (on NumPy 2) after each recorded step: the flags, the reward, the observation in
 * float32, and MountainCarContinuous's state. MountainCar's float64 state differs by less than 1e-17, where
 * libm's cosine and sine.h's differ in the last bit. test/golden/classic.py records Gymnasium's states;
 * test/worker/environment/test_classic.c compares. Pure functions. */
#ifndef WORKER_ENVIRONMENT_MOUNTAIN_CAR_H
#define WORKER_ENVIRONMENT_MOUNTAIN_CAR_H

#include "worker/environment/sine.h"

#include <stdbool.h>
#include <stdint.h>

#define MOUNTAIN_CAR_NAME "MountainCar-v0"
#define MOUNTAIN_CAR_CONTINUOUS_NAME "MountainCarContinuous-v0"

enum {
    MOUNTAIN_CAR_STATE_SIZE = 2,
    MOUNTAIN_CAR_ACTIONS = 3,
    MOUNTAIN_CAR_STEPS_MAX = 200,
    MOUNTAIN_CAR_CONTINUOUS_STEPS_MAX = 999
};

#define MOUNTAIN_CAR_POSITION_MIN (-1.2) /* a wall, where the car stops */
#define MOUNTAIN_CAR_POSITION_MAX 0.6
#define MOUNTAIN_CAR_SPEED_MAX 0.07
#define MOUNTAIN_CAR_GOAL 0.5 /* the flag's position */
#define MOUNTAIN_CAR_CONTINUOUS_GOAL 0.45
#define MOUNTAIN_CAR_RESET_MIN (-0.6) /* position at first; the velocity is 0 */
#define MOUNTAIN_CAR_RESET_MAX (-0.4)

struct mountain_car_state {
    double position; /* to the right; the valley is lowest at -pi / 6 */
    double velocity; /* per step */
};

/* ---- MountainCar-v0: each step's reward is -1 ---- */

/* One step under `action`: 0 drives left, 1 not at all, 2 right. */
static inline struct mountain_car_state mountain_car_transition(struct mountain_car_state state,
                                                                int32_t action)
{
    const double push = 0.001, gravity = 0.0025, fastest = MOUNTAIN_CAR_SPEED_MAX;
    double velocity = state.velocity + (((double)action - 1) * push + cosine(3 * state.position) * -gravity);
    velocity = velocity > fastest ? fastest : velocity < -fastest ? -fastest : velocity;
    double position = state.position + velocity;
    position = position > MOUNTAIN_CAR_POSITION_MAX ? MOUNTAIN_CAR_POSITION_MAX : position;
    position = position < MOUNTAIN_CAR_POSITION_MIN ? MOUNTAIN_CAR_POSITION_MIN : position;
    const double forward = velocity < 0 ? 0 : velocity;
    velocity = position == MOUNTAIN_CAR_POSITION_MIN ? forward : velocity;
    return (struct mountain_car_state){position, velocity};
}

static inline bool mountain_car_terminated(struct mountain_car_state state)
{
    return state.position >= MOUNTAIN_CAR_GOAL && state.velocity >= 0;
}

/* ---- MountainCarContinuous-v0 ---- */

/* 3 position, in the precision that the state has: a float32 after a step. */
static inline double mountain_car_continuous_angle(double position)
{
    const float narrow = (float)position;
    return (double)narrow == position ? (double)(3.0f * narrow) : 3.0 * position;
}

/* One step under `force`, -1 … 1. The new state's values are float32. */
static inline struct mountain_car_state mountain_car_continuous_transition(struct mountain_car_state state,
                                                                           float force)
{
    const float power = 0.0015f, fastest = (float)MOUNTAIN_CAR_SPEED_MAX;
    const float low = (float)MOUNTAIN_CAR_POSITION_MIN, high = (float)MOUNTAIN_CAR_POSITION_MAX;
    const float slope = (float)(0.0025 * cosine(mountain_car_continuous_angle(state.position)));
    float velocity = (float)state.velocity + (force * power - slope);
    velocity = velocity > fastest ? fastest : velocity < -fastest ? -fastest : velocity;
    float position = (float)(state.position + (double)velocity);
    position = position > high ? high : position < low ? low : position;
    const float forward = velocity < 0 ? 0 : velocity;
    velocity = position == low ? forward : velocity;
    return (struct mountain_car_state){(double)position, (double)velocity};
}

static inline bool mountain_car_continuous_terminated(struct mountain_car_state state)
{
    return state.position >= (double)(float)MOUNTAIN_CAR_CONTINUOUS_GOAL && state.velocity >= 0;
}

/* Of the step that `force` made: 100 where it ended the episode, less the cost of the force. */
static inline float mountain_car_continuous_reward(float force, bool terminated)
{
    return (float)((terminated ? 100.0 : 0.0) - (double)force * (double)force * 0.1);
}

#endif
