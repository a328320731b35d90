/* CartPole-v1's physics: a pole on a cart, pushed left or right once every 20 ms.
 *
 * The equations are those of Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve
 * difficult learning control problems" (1983), with a frictionless cart as in Gymnasium's CartPole-v1,
 * whose constants, order of operations and "euler" update these are: the position moves with the old
 * velocity.
 *
 * Equal to Gymnasium's after each recorded step: the flags, and the observation in float32. Not equal: the
 * float64 state, which differs by less than 1e-12 where NumPy's sine or cosine and the polynomials below
 * differ in their last bit. How often that is depends on NumPy's version and on the processor: in 42 % of the
 * recorded steps (NumPy 1.24 with AVX-512), in 0.05 % of the same steps where libm's sine and cosine stand in
 * their place. Trajectories from one first state therefore part after some hundred steps.
 * test/golden/cartpole.py records Gymnasium's states; test/worker/environment/test_cartpole.c compares.
 *
 * Everything is double; observations alone are rounded to float32. Pure functions. */
#ifndef WORKER_ENVIRONMENT_CARTPOLE_H
#define WORKER_ENVIRONMENT_CARTPOLE_H

#include "kernels/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARTPOLE_NAME "CartPole-v1"

enum { CARTPOLE_STATE_SIZE = 4, CARTPOLE_ACTIONS = 2, CARTPOLE_STEPS_MAX = 500 };

#define CARTPOLE_X_MAX_M 2.4                                                 /* metres from the centre */
#define CARTPOLE_THETA_MAX_RAD (12.0 * 2.0 * 3.14159265358979323846 / 360.0) /* radians from upright */
#define CARTPOLE_RESET_MAX 0.05                                              /* |each value| at first */

struct cartpole_state {
    double x;         /* m, to the right */
    double x_dot;     /* m/s */
    double theta;     /* rad, clockwise from upright */
    double theta_dot; /* rad/s */
};

/* Whether an episode ends at `state`. A state that is not a number has ended, too. */
static inline bool cartpole_terminated(struct cartpole_state state)
{
    return !(fabs(state.x) <= CARTPOLE_X_MAX_M && fabs(state.theta) <= CARTPOLE_THETA_MAX_RAD);
}

/* Sine and cosine of a pole's angle, |theta| <= 0.25: Taylor's polynomials, whose first omitted terms are
 * below 1e-19 there. They vectorize, and give the same bits on every processor: libm chooses a variant by the
 * processor, and now and then that changes the last bit. */
static inline double cartpole_sin(double theta)
{
    double s = theta * theta;
    double tail = -1.0 / 39916800.0 + s * (1.0 / 6227020800.0);
    tail = -1.0 / 5040.0 + s * (1.0 / 362880.0 + s * tail);
    return theta + theta * (s * (-1.0 / 6.0 + s * (1.0 / 120.0 + s * tail)));
}

static inline double cartpole_cos(double theta)
{
    double s = theta * theta;
    double tail = -1.0 / 3628800.0 + s * (1.0 / 479001600.0);
    tail = -1.0 / 720.0 + s * (1.0 / 40320.0 + s * tail);
    return 1.0 + s * (-0.5 + s * (1.0 / 24.0 + s * tail));
}

/* The state 20 ms after `state` under `action` (0 pushes left, 1 right). `state` must not have ended
 * (cartpole_terminated): the polynomials above hold up to the threshold and no further. */
static inline struct cartpole_state cartpole_transition(struct cartpole_state state, int32_t action)
{
    const double gravity = 9.8, pole_kg = 0.1, total_kg = 0.1 + 1.0, half_length_m = 0.5;
    const double pole_kg_m = 0.1 * 0.5, push_n = 10.0, tau_s = 0.02;
    double force = (2.0 * (double)action - 1.0) * push_n;
    double cosine = cartpole_cos(state.theta);
    double sine = cartpole_sin(state.theta);
    double pushed = (force + pole_kg_m * (state.theta_dot * state.theta_dot) * sine) / total_kg;
    double theta_acceleration = (gravity * sine - cosine * pushed) /
                                (half_length_m * (4.0 / 3.0 - pole_kg * (cosine * cosine) / total_kg));
    double x_acceleration = pushed - pole_kg_m * theta_acceleration * cosine / total_kg;
    return (struct cartpole_state){.x = state.x + tau_s * state.x_dot,
                                   .x_dot = state.x_dot + tau_s * x_acceleration,
                                   .theta = state.theta + tau_s * state.theta_dot,
                                   .theta_dot = state.theta_dot + tau_s * theta_acceleration};
}

#endif
