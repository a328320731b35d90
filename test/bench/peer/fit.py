"""The cases of test/bench/bench_fit.c for the peers of `scripts/bench --peer fits`, and how they are timed.

A case's name says all: "sac 17/6 256x256 rows 128" is SAC with 17 numbers in an observation, 6 in an action, hidden
layers of 256 units in each network, and 128 transitions in a batch. Hyper-parameters are Stable-Baselines3's defaults.

A gradient step begins with a batch that lies in memory, as bench_fit's does: SAC's and TD3's also move the targets,
DQN's does not. Drawing the batch from the replay buffer is timed apart.
"""
import statistics
import sys
import time
import typing

import gymnasium
import numpy

NAMES = """sac 17/6 256x256 rows 256
sac 3/1 256x256 rows 256
sac 2/1 64x64 rows 512
td3 17/6 400x300 rows 256
dqn 4/2 64x64 rows 32
dqn 4/2 64x64 rows 64
dqn 4/2 64x64 rows 512
dqn 4/2 256x256 rows 64
dqn 6/3 256x256 rows 128""".split("\n")
ROUNDS = 5
FILLED = 1000  # transitions in the buffer


class Case(typing.NamedTuple):
    name: str
    learning: str
    inputs: int
    components: int
    hidden: typing.List[int]
    rows: int


def case_of(name):
    learning, sizes, hidden, _, rows = name.split()
    inputs, components = sizes.split("/")
    return Case(name, learning, int(inputs), int(components), [int(width) for width in hidden.split("x")], int(rows))


def selected():
    """The cases whose name holds the first argument; all without one."""
    return [case_of(name) for name in NAMES if len(sys.argv) < 2 or sys.argv[1] in name]


class Noise(gymnasium.Env):
    """Random observations and rewards, with the case's sizes. An episode has 100 steps."""

    def __init__(self, case):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (case.inputs,), numpy.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (case.components,), numpy.float32)
        if case.learning == "dqn":
            self.action_space = gymnasium.spaces.Discrete(case.components)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), self.np_random.uniform(-1, 1), False, self.steps == 100, {}


def milliseconds(work, steps):
    """CPU milliseconds a step, sorted, of ROUNDS calls of `work` that take `steps` steps each."""
    found = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        found.append((time.process_time() - begin) * 1000 / steps)
    return sorted(found)


def line(name, found, rest=""):
    """A case's line, as bench_fit prints it."""
    print(f"{name:<28} {statistics.median(found):8.3f} ms [{found[0]:.3f} {found[-1]:.3f}]{rest}", flush=True)


def measure(case, model, steps, draws):
    """Fills the model's buffer, and prints the case's line. A call of model.train takes `steps` steps, an even number
    for TD3's delay, and draws `draws` times."""
    model.learn(FILLED)
    draw = model.replay_buffer.sample
    rows = case.rows * steps // draws
    drawn = milliseconds(lambda: [draw(rows) for _ in range(draws)], steps)
    batch = draw(rows)
    model.replay_buffer.sample = lambda *_, **__: batch
    begin = time.process_time()
    model.train(gradient_steps=steps, batch_size=case.rows)
    first = time.process_time() - begin
    found = milliseconds(lambda: model.train(gradient_steps=steps, batch_size=case.rows), steps)
    line(case.name, found, f"   drawing {statistics.median(drawn):.3f} ms   first call {first:.1f} s")
