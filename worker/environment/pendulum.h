/* Pendulum-v1's physics: a rod on a pivot, to be swung up and held upright by a motor that is too weak to
 * lift it at once. It moves by 50 ms a step, and no state ends an episode.
 *
 * The equations, their constants and the order of operations are those of Gymnasium's Pendulum-v1: a rod of
 * 1 m and 1 kg under a gravity of 10 m/s^2, whose angle moves with the new velocity. The angle is never
 * wrapped. NumPy 2 computes the torque's terms in float32, the action's type, and so do we. (NumPy 1 computes
 * them in float64, so Gymnasium's numbers on NumPy 1 differ from ours from the eighth digit on.)
 *
 * Equal to Gymnasium's (on NumPy 2) after each recorded step: the flags, the reward and the observation in
 * float32. The float64 state differs by less than 1e-14, because NumPy's sine and sine.h's differ in the last
 * bit. test/golden/classic.py records Gymnasium's states; test/worker/environment/test_classic.c compares.
 * Pure functions. */
#ifndef WORKER_ENVIRONMENT_PENDULUM_H
#define WORKER_ENVIRONMENT_PENDULUM_H

#include "worker/environment/sine.h"

#include <stdint.h>

#define PENDULUM_NAME "Pendulum-v1"

enum { PENDULUM_STATE_SIZE = 2, PENDULUM_OBSERVATION_SIZE = 3, PENDULUM_STEPS_MAX = 200 };

#define PENDULUM_PI 3.14159265358979323846
#define PENDULUM_SPEED_MAX 8.0   /* rad/s */
#define PENDULUM_TORQUE_MAX 2.0f /* N m */
#define PENDULUM_RESET_THETA_MAX PENDULUM_PI
#define PENDULUM_RESET_SPEED_MAX 1.0

struct pendulum_state {
    double theta;     /* rad, counter-clockwise from upright; grows with each turn */
    double theta_dot; /* rad/s */
};

/* theta in -pi … pi, by the rounded operations of Python's (theta + pi) % (2 pi) - pi. The remainder of the
 * division is exact: 2 pi in two pieces, of which the first has zeros enough at its end. */
static inline double pendulum_normalize(double theta)
{
    const double turn = 2 * PENDULUM_PI, turn_high = 0x1.921fb544p+2, turn_low = 0x1.0b46p-32;
    const double shifted = theta + PENDULUM_PI;
    const double turns = (shifted / turn + SINE_ROUND) - SINE_ROUND; /* to the nearest */
    const double rest = (shifted - turns * turn_high) - turns * turn_low;
    return (rest < 0 ? rest + turn : rest) - PENDULUM_PI;
}

/* The state 50 ms after `state` under `torque`, in N m. */
static inline struct pendulum_state pendulum_transition(struct pendulum_state state, float torque)
{
    const double step_s = 0.05, fastest = PENDULUM_SPEED_MAX;
    double theta_dot = state.theta_dot + (15.0 * sine(state.theta) + (double)(3.0f * torque)) * step_s;
    theta_dot = theta_dot > fastest ? fastest : theta_dot < -fastest ? -fastest : theta_dot;
    return (struct pendulum_state){state.theta + theta_dot * step_s, theta_dot};
}

/* The reward of the step that `torque` makes from `state`. */
static inline float pendulum_reward(struct pendulum_state state, float torque)
{
    const double angle = pendulum_normalize(state.theta);
    const float effort = 0.001f * (torque * torque);
    return (float)-(angle * angle + 0.1 * (state.theta_dot * state.theta_dot) + (double)effort);
}

#endif
