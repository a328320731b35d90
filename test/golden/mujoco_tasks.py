#!/usr/bin/env python3
"""Records Gymnasium's MuJoCo environments into test/golden/mujoco_tasks.bin, which test/worker/environment/test_mujoco.c reads.

How to run it, from the repository's root, once scripts/deps mujoco has installed the packages:

    build/mujoco-venv/bin/python test/golden/mujoco_tasks.py

The file begins with one line of text, padded with blanks to 128 bytes, that names the versions it was recorded with. Then
follow episodes, little-endian:

    32 bytes    the environment's name, filled up with zeros
    5 uint32    positions, velocities, controls, floats of an observation, steps
    doubles     the first positions and velocities
    steps of    doubles: the action, the observation, the reward, 1 if the step terminated

An episode has 50 steps, or ends with the step that terminates.
"""
import importlib.metadata
import struct

import gymnasium
import numpy

HEADER_BYTES, NAME_BYTES, STEPS, EPISODES = 128, 32, 50, 2
NAMES = ("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Swimmer-v5", "Walker2d-v5")


def doubles(values):
    return numpy.asarray(values, dtype="<f8").tobytes()


def record(name, seed):
    environment = gymnasium.make(name).unwrapped
    environment.reset(seed=seed)
    draws = numpy.random.default_rng(seed)
    model, data, space = environment.model, environment.data, environment.action_space
    begin, steps = doubles(data.qpos) + doubles(data.qvel), []
    terminated = False
    while len(steps) < STEPS and not terminated:
        action = draws.uniform(space.low, space.high).astype(numpy.float32)
        observation, reward, terminated, _, _ = environment.step(action)
        steps.append(doubles(action) + doubles(observation) + doubles([reward, terminated]))
    sizes = struct.pack("<5I", model.nq, model.nv, model.nu, environment.observation_space.shape[0], len(steps))
    return name.encode().ljust(NAME_BYTES, b"\0") + sizes + begin + b"".join(steps)


def main():
    header = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("gymnasium", "mujoco", "numpy"))
    with open("test/golden/mujoco_tasks.bin", "wb") as file:
        file.write(header.encode().ljust(HEADER_BYTES))
        for name in NAMES:
            for seed in range(EPISODES):
                file.write(record(name, seed))


if __name__ == "__main__":
    main()
