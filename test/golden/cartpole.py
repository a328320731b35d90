#!/usr/bin/env python3
"""Records Gymnasium's CartPole-v1 into test/golden/cartpole.bin, which test/worker/environment/test_cartpole.c reads.

How to run it, from the repository's root, in any virtual environment that has Gymnasium:

    test/bench/peer/setup && build/peer-venv/bin/python test/golden/cartpole.py

The file begins with one line of text, padded with blanks to 128 bytes, that names the versions it was
recorded with. Then follow records of 56 bytes, little-endian, one for every state that was seen:

    4 doubles   the environment's own state: x, x_dot, theta, theta_dot
    4 floats    the observation that Gymnasium gave for it
    uint16      episode        uint16   step, from 0
    uint8       the action taken next; 255 in an episode's last record
    uint8       how the step that led here ended: 1 terminated, 2 truncated, 3 both
    2 bytes     zero

The state after a transition is therefore the next record's.
"""
import os
import platform
import struct

import gymnasium
import numpy

HEADER_BYTES = 128
RECORD = struct.Struct("<4d4fHHBB2x")
NO_ACTION = 255

DRAWS = numpy.random.default_rng(20)


def random_push(state):
    """Falls after some twenty steps, to either side."""
    return int(DRAWS.integers(2))


def balance(state):
    """Holds the pole up and the cart near the middle until the time is out."""
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.5 * theta_dot + 0.05 * x + 0.1 * x_dot > 0)


def careless(state):
    """Balances, but pushes at random in two of five steps: wide swings and late falls."""
    return random_push(state) if DRAWS.random() < 0.4 else balance(state)


def drift_right(state):
    """Holds the pole a little to the right, so that the cart leaves the track on that side."""
    return int(state[2] - 0.05 + 0.5 * state[3] > 0)


def drift_left(state):
    return int(state[2] + 0.05 + 0.5 * state[3] > 0)


EPISODES = [(random_push, 60), (balance, 10), (careless, 25), (drift_right, 4), (drift_left, 4)]


def record(environment, episode, policy):
    """One episode: the bytes of its records, the number of its transitions and how it ended."""
    observation, _ = environment.reset(seed=episode)
    records, step, flags = [], 0, 0
    while True:
        state = [float(value) for value in environment.unwrapped.state]
        action = NO_ACTION if flags else policy(state)
        records.append(RECORD.pack(*state, *observation, episode, step, action, flags))
        if flags:
            return b"".join(records), step, flags
        observation, reward, terminated, truncated, _ = environment.step(action)
        assert observation.dtype == numpy.float32 and reward == 1.0
        flags = int(terminated) | int(truncated) << 1
        step += 1


def main():
    environment = gymnasium.make("CartPole-v1")
    parts, transitions, episode = [], 0, 0
    for policy, count in EPISODES:
        lengths = []
        for _ in range(count):
            part, steps, _ = record(environment, episode, policy)
            parts.append(part)
            lengths.append(steps)
            episode += 1
        transitions += sum(lengths)
        print(f"{policy.__name__}: {count} episodes of {min(lengths)} to {max(lengths)} steps")
    header = (
        f"CartPole-v1 gymnasium {gymnasium.__version__} numpy {numpy.__version__} "
        f"python {platform.python_version()}: {episode} episodes, {transitions} transitions"
    ).ljust(HEADER_BYTES - 1) + "\n"
    assert len(header) == HEADER_BYTES
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cartpole.bin")
    with open(path, "wb") as file:
        file.write(header.encode("ascii") + b"".join(parts))
    print(f"{header.strip()}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
