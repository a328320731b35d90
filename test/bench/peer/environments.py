"""Steps per CPU second of Gymnasium's and EnvPool's environments alone, the peers of test/bench/bench_environment.c.

    environments.py gymnasium NAME 1
    environments.py envpool NAME NUM_ENVS...

Each number makes one line, for so many environments:

    peer product=envpool environments=1024 steps_per_s=…

Gymnasium steps one environment, the way its documentation does. EnvPool steps num_envs of them synchronously
(batch_size = num_envs) with one thread. The actions are random, and drawn before the clock starts. Resets are within
the time: Gymnasium's by reset(), which counts as no step; EnvPool's by a call of step(), which counts. The clock is the
CPU time of the process, which runs on one core.
"""

import os
import sys
import time
import warnings

import numpy as np

WARM_UP_S, ROUND_S, TABLES = 0.05, 0.4, 64

warnings.filterwarnings("ignore")


def draw_actions(space, shape):
    """(TABLES, ...) actions of the space."""
    generator = np.random.default_rng(1)
    if hasattr(space, "n"):
        return generator.integers(0, space.n, (TABLES, *shape)).astype(np.int32)
    return generator.uniform(space.low, space.high, (TABLES, *shape, *space.shape)).astype(space.dtype)


def measure(play, least_s):
    """play() makes some steps and returns how many. Steps per CPU second over at least least_s."""
    begin, steps, used = time.process_time(), 0, 0
    while used < least_s:
        steps += play()
        used = time.process_time() - begin
    return steps / used


def gymnasium_player(name, _count):
    import gymnasium

    environment = gymnasium.make(name)
    environment.reset(seed=1)
    actions = list(draw_actions(environment.action_space, ()))

    def play():
        for action in actions:
            _, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                environment.reset()
        return TABLES

    return play


def envpool_player(name, count):
    import envpool

    environment = envpool.make_gymnasium(name, num_envs=count, batch_size=count, num_threads=1, seed=1)
    environment.reset()
    actions = list(draw_actions(environment.action_space, (count,)))

    def play():
        for action in actions:
            environment.step(action)
        return TABLES * count

    return play


def main():
    product, name = sys.argv[1:3]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for count in map(int, sys.argv[3:]):
        play = {"gymnasium": gymnasium_player, "envpool": envpool_player}[product](name, count)
        measure(play, WARM_UP_S)
        print(f"peer product={product} environments={count} steps_per_s={measure(play, ROUND_S):.0f}", flush=True)


main()
