/* Acrobot-v1's physics: two links in a chain that hangs from a pivot. A motor between the links turns them
 * against each other, every 200 ms by another torque, until the free end is one link's length above the
 * pivot.
 *
 * The equations are those of Sutton and Barto, "Reinforcement Learning: An Introduction" (1998), section
 * 11.3, with both links 1 m long and of 1 kg, and Gymnasium's Acrobot-v1's moments of inertia of 1 kg m^2,
 * constants, order of operations, and integration: one step of the classical Runge-Kutta method, after which
 * the angles are wrapped and the velocities bounded.
 *
 * Equal to Gymnasium's after each recorded step: the flags, the reward, and the observation in float32. The
 * float64 state differs by less than 1e-10, because NumPy's sine and cosine differ from sine.h's in the last
 * bits, and the fastest states magnify that. Trajectories from one first state therefore part after some
 * dozens of steps. test/golden/classic.py records Gymnasium's states; test/worker/environment/test_classic.c
 * compares.
 *
 * Everything is double; observations alone are rounded to float32. Pure functions. */
#ifndef WORKER_ENVIRONMENT_ACROBOT_H
#define WORKER_ENVIRONMENT_ACROBOT_H

#include "worker/environment/sine.h"

#include <stdbool.h>
#include <stdint.h>

#define ACROBOT_NAME "Acrobot-v1"

enum { ACROBOT_STATE_SIZE = 4, ACROBOT_OBSERVATION_SIZE = 6, ACROBOT_ACTIONS = 3, ACROBOT_STEPS_MAX = 500 };

#define ACROBOT_PI 3.14159265358979323846
#define ACROBOT_THETA1_DOT_MAX (4 * ACROBOT_PI) /* rad/s */
#define ACROBOT_THETA2_DOT_MAX (9 * ACROBOT_PI)
#define ACROBOT_RESET_MAX 0.1 /* |each value| at first; the first values are rounded to float32 */

struct acrobot_state {
    double theta1;                 /* rad, of the first link from hanging down, -pi … pi */
    double theta2;                 /* rad, of the second link from the first one's direction, -pi … pi */
    double theta1_dot, theta2_dot; /* rad/s */
};

/* d(state)/dt under `torque`, in N m. */
static inline struct acrobot_state acrobot_derivative(struct acrobot_state s, double torque)
{
    const double gravity = 9.8;
    const double cosine2 = cosine(s.theta2), sine2 = sine(s.theta2);
    const double d1 = 0.25 + (1.25 + cosine2) + 1 + 1;
    const double d2 = (0.25 + 0.5 * cosine2) + 1;
    const double phi2 = 0.5 * gravity * cosine(s.theta1 + s.theta2 - ACROBOT_PI / 2);
    const double phi1 = -0.5 * (s.theta2_dot * s.theta2_dot) * sine2 - s.theta2_dot * s.theta1_dot * sine2 +
                        1.5 * gravity * cosine(s.theta1 - ACROBOT_PI / 2) + phi2;
    const double acceleration2 =
        (torque + d2 / d1 * phi1 - 0.5 * (s.theta1_dot * s.theta1_dot) * sine2 - phi2) /
        (1.25 - d2 * d2 / d1);
    return (struct acrobot_state){s.theta1_dot, s.theta2_dot, -(d2 * acceleration2 + phi1) / d1,
                                  acceleration2};
}

/* s + step * slope. */
static inline struct acrobot_state acrobot_move(struct acrobot_state s, double step,
                                                struct acrobot_state slope)
{
    return (struct acrobot_state){s.theta1 + step * slope.theta1, s.theta2 + step * slope.theta2,
                                  s.theta1_dot + step * slope.theta1_dot,
                                  s.theta2_dot + step * slope.theta2_dot};
}

/* One turn closer to -pi … pi; no turn within. */
static inline double acrobot_turn(double theta)
{
    const double turn = 2 * ACROBOT_PI;
    return theta > ACROBOT_PI ? theta - turn : theta < -ACROBOT_PI ? theta + turn : theta;
}

/* Whether acrobot_turn would leave it. */
static inline bool acrobot_is_wrapped(double theta)
{
    return !(theta > ACROBOT_PI || theta < -ACROBOT_PI);
}

/* theta, turned until it is in -pi … pi. From a state within its bounds a step turns by less than 10^5 rad.
 */
static inline double acrobot_wrap(double theta)
{
    while (!acrobot_is_wrapped(theta))
        theta = acrobot_turn(theta);
    return theta;
}

static inline double acrobot_bound(double value, double max)
{
    return value > max ? max : value < -max ? -max : value;
}

/* The state 200 ms after `state` under `action` (0, 1, 2: a torque of -1, 0, 1 N m), with angles that are not
 * wrapped yet: acrobot_wrap follows. Loops over it become vector code, over acrobot_wrap they do not. */
static inline struct acrobot_state acrobot_swing(struct acrobot_state state, int32_t action)
{
    const double step_s = 0.2, torque = (double)action - 1;
    const struct acrobot_state k1 = acrobot_derivative(state, torque);
    const struct acrobot_state k2 = acrobot_derivative(acrobot_move(state, step_s / 2, k1), torque);
    const struct acrobot_state k3 = acrobot_derivative(acrobot_move(state, step_s / 2, k2), torque);
    const struct acrobot_state k4 = acrobot_derivative(acrobot_move(state, step_s, k3), torque);
    const struct acrobot_state sum = {k1.theta1 + 2 * k2.theta1 + 2 * k3.theta1 + k4.theta1,
                                      k1.theta2 + 2 * k2.theta2 + 2 * k3.theta2 + k4.theta2,
                                      k1.theta1_dot + 2 * k2.theta1_dot + 2 * k3.theta1_dot + k4.theta1_dot,
                                      k1.theta2_dot + 2 * k2.theta2_dot + 2 * k3.theta2_dot + k4.theta2_dot};
    struct acrobot_state next = acrobot_move(state, step_s / 6, sum);
    next.theta1_dot = acrobot_bound(next.theta1_dot, ACROBOT_THETA1_DOT_MAX);
    next.theta2_dot = acrobot_bound(next.theta2_dot, ACROBOT_THETA2_DOT_MAX);
    return next;
}

/* Whether the free end is above the line: an episode ends, and the step's reward is 0 instead of -1. */
static inline bool acrobot_terminated(struct acrobot_state state)
{
    return -cosine(state.theta1) - cosine(state.theta2 + state.theta1) > 1.0;
}

#endif
