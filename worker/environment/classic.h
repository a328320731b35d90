/* The built-in environments as one plug-in: CartPole-v1, Acrobot-v1, MountainCar-v0, MountainCarContinuous-v0
 * and Pendulum-v1, as Gymnasium has them. cartpole.h, acrobot.h, mountain_car.h and pendulum.h are the
 * manuals of their physics, and say how far they are Gymnasium's. Four also exist without velocities, as RL
 * Zoo's MaskVelocityWrapper makes them: CartPoleNoVel-v1, MountainCarNoVel-v0, MountainCarContinuousNoVel-v0
 * and PendulumNoVel-v1. The velocities stay in the observation, and always read 0.
 *
 * They have no options. They end no episode by its length: the caller truncates at steps_max, which is
 * Gymnasium's limit (500, 500, 200, 999, 200). A discrete action is an int32; an action of
 * MountainCarContinuous-v0 and Pendulum-v1 is a float32 of shape (1).
 *
 * First states are uniform, within Gymnasium's bounds: value v of a state is drawn from words 2 (v mod 2) and
 * 2 (v mod 2) + 1 of block v / 2 of RNG_RESET at the key that the seed's four parts are (kernels/base/rng.h).
 *
 * Pictures are Gymnasium's views, painted with bars. As text: a line with the state's numbers, and 60 columns
 * of the same scene in letters. As RGB: 600 x 400 of CartPole and the mountain cars, 500 x 500 of the others.
 *
 * The bits are the same on every instruction set; COALESCED_ISA (kernels/lanes/isa.h) chooses one when an
 * instance is opened. A saved state is for this program on a machine of this byte order: the environment's
 * name in 32 bytes, and its values as doubles. load refuses another environment's state, and values that no
 * step leads to. */
#ifndef WORKER_ENVIRONMENT_CLASSIC_H
#define WORKER_ENVIRONMENT_CLASSIC_H

#include "worker/environment/environment.h"

extern const struct environment_plugin classic_environments;

#endif
