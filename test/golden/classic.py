#!/usr/bin/env python3
"""Records Gymnasium's Acrobot-v1, MountainCar-v0, MountainCarContinuous-v0 and Pendulum-v1 into test/golden/acrobot.bin,
mountain_car.bin, mountain_car_continuous.bin and pendulum.bin, which test/worker/environment/test_classic.c reads.

How to run it, from the repository's root:

    scripts/venv build/classic-venv gymnasium==1.4.0 numpy==2.4.6 envpool==1.2.5
    build/classic-venv/bin/python test/golden/classic.py

NumPy 2 is needed: it computes a float32 times a Python number in float32, NumPy 1 in float64.

A file begins with one line of text, padded with blanks to 128 bytes, that names the versions it was recorded with. Then
follow records, little-endian, one for every state that was seen:

    doubles     the environment's own state (4 of Acrobot, else 2)
    floats      the observation that Gymnasium gave for it (6, 2, 2, 3)
    double      the reward of the step that led here; 0 in an episode's first record
    float       the action taken next
    uint16      episode        uint16   step, from 0
    uint8       1: an action was taken, so the next record is the state after it
    uint8       1: the step that led here terminated the episode
    2 bytes     zero

No time limit is applied. Most episodes begin with a reset, others in a state that was put in place: anywhere within the
bounds, and on them.
"""
import os
import platform
import struct

import gymnasium
import numpy

HEADER_BYTES = 128
DRAWS = numpy.random.default_rng(14)
assert numpy.__version__ >= "2", "see above"


def choose(_):
    return int(DRAWS.integers(3))


def force(maximum):
    """A random float32 within +-maximum; one in five is a bound, one in ten is 0."""
    kind = DRAWS.random()
    value = maximum if kind < 0.1 else -maximum if kind < 0.2 else 0 if kind < 0.3 else DRAWS.uniform(-maximum, maximum)
    return numpy.array([value], dtype=numpy.float32)


def with_speed(index, low, high):
    """The action `high` while value `index` of the state grows, else `low`: it adds energy."""
    return lambda state: high if state[index] >= 0 else low


def within(*bounds):
    """A random state within +-bounds; a value in eight is a bound."""
    return [float(DRAWS.choice([-bound, bound]) if DRAWS.random() < 0.125 else DRAWS.uniform(-bound, bound)) for bound in bounds]


def car():
    """A random state of a car, often at the wall or at full speed, and not yet at the goal."""
    position = -1.2 if DRAWS.random() < 0.1 else DRAWS.uniform(-1.2, 0.44)
    speed = DRAWS.choice([-0.07, 0.07]) if DRAWS.random() < 0.2 else DRAWS.uniform(-0.07, 0.07)
    return [float(position), float(speed)]


def floats(values):
    return numpy.array(values, dtype=numpy.float32)


def torque(value):
    return numpy.array([value], dtype=numpy.float32)


# Of each environment: file, episodes as (policy, first state or None for a reset, steps at most, how many).
RECORDINGS = {
    "Acrobot-v1": (
        "acrobot",
        [
            (choose, None, 150, 10),
            (with_speed(3, 0, 2), None, 300, 8),
            (choose, lambda: within(numpy.pi, numpy.pi, 4 * numpy.pi, 9 * numpy.pi), 5, 500),
        ],
    ),
    "MountainCar-v0": (
        "mountain_car",
        [
            (choose, None, 150, 10),
            (with_speed(1, 0, 2), None, 300, 8),
            (lambda _: 0, None, 100, 4),
            (choose, car, 5, 500),
        ],
    ),
    "MountainCarContinuous-v0": (
        "mountain_car_continuous",
        [
            (lambda _: force(1), None, 150, 10),
            (with_speed(1, torque(-1), torque(1)), None, 300, 8),
            (lambda _: force(1), None, 2, 250),
            (lambda _: force(1), lambda: floats(car()), 5, 500),
        ],
    ),
    "Pendulum-v1": (
        "pendulum",
        [
            (lambda _: force(2), None, 200, 5),
            (with_speed(1, torque(-2), torque(2)), None, 1200, 3),
            (lambda _: force(2), lambda: within(1000, 8), 4, 250),
            (lambda _: force(2), lambda: within(numpy.pi, 8), 4, 250),
        ],
    ),
}


def record(environment, episode, policy, first, steps):
    """One episode: the bytes of its records, the number of its transitions, whether it terminated."""
    observation, _ = environment.reset(seed=episode)
    if first is not None:
        environment.state = first() if environment.spec.id == "MountainCarContinuous-v0" else numpy.array(first())
        observation = observed(environment)
    parts, reward, terminated = [], 0.0, False
    for step in range(steps + 1):
        state = [float(value) for value in environment.state]
        ends = terminated or step == steps
        action = policy(state)
        number = float(numpy.asarray(action).reshape(-1)[0])
        parts.append(
            struct.pack(f"<{len(state)}d{len(observation)}f", *state, *observation)
            + struct.pack("<dfHHBB2x", reward, number, episode, step, not ends, terminated)
        )
        if ends:
            return b"".join(parts), step, terminated
        observation, reward, terminated, _, _ = environment.step(action)
        assert observation.dtype == numpy.float32
        reward = float(reward)


def observed(environment):
    """What the environment would have shown of its state."""
    for name in ("_get_ob", "_get_obs"):
        if hasattr(environment, name):
            return getattr(environment, name)()
    return numpy.array(environment.state, dtype=numpy.float32)


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    for name, (file_name, episodes) in RECORDINGS.items():
        environment = gymnasium.make(name).unwrapped
        parts, transitions, terminated, episode = [], 0, 0, 0
        for policy, first, steps, count in episodes:
            for _ in range(count):
                part, length, ended = record(environment, episode, policy, first, steps)
                parts.append(part)
                transitions += length
                terminated += ended
                episode += 1
        header = (
            f"{name} gymnasium {gymnasium.__version__} numpy {numpy.__version__} "
            f"python {platform.python_version()}: {episode} episodes, {transitions} transitions"
        ).ljust(HEADER_BYTES - 1) + "\n"
        assert len(header) == HEADER_BYTES
        path = os.path.join(folder, f"{file_name}.bin")
        with open(path, "wb") as file:
            file.write(header.encode("ascii") + b"".join(parts))
        print(f"{header.strip()}, {terminated} terminated: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
