"""Environments with Gymnasium's interface for test_gymnasium.sh: good ones, and one for each fault."""
import atexit
import ctypes
import os
import pathlib
import random
import signal
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """A walk on a line; `length` is its option, and is_home its metric."""

    metrics = ("is_home",)

    def __init__(self, length=6):
        self.length = length
        self.observation_space = spaces.Box(0, length, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(1, self.length))
        return self._see(), {}

    def _see(self):
        return np.array([self.place], np.float64)

    def step(self, action):
        self.place += 1 if action == 1 else -1
        over = self.place in (0, self.length)
        return self._see(), -1.0, over, False, {"is_home": self.place == self.length}


class Masked(Corridor):
    """At the ends a step out of the corridor is not allowed; doors of several kinds."""

    metrics = ()

    def __init__(self):
        super().__init__(4)
        self.observation_space = spaces.Discrete(5)

    def _mask(self):
        return {"action_mask": np.array([self.place > 0, True], np.int8)}

    def _see(self):
        return self.place

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._see(), self._mask()

    def step(self, action):
        if not self._mask()["action_mask"][action]:
            raise RuntimeError("a step through the wall")
        self.place = min(self.place + (1 if action == 1 else -1), 4)
        return self._see(), 1.0, self.place == 4, False, self._mask()


class Doors(gymnasium.Env):
    """Several choices, a picture."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.MultiDiscrete([2, 3], start=[5, -1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def _see(self):
        return self.np_random.integers(0, 256, (36, 36, 1), dtype=np.uint8)

    def step(self, action):
        assert action[0] in (5, 6) and action[1] in (-1, 0, 1), action
        self.steps += 1
        return self._see(), float(action[1]), False, self.steps == 20, {}


class Screens(Doors):
    """Large enough to be lent: four of them make 110 KiB, two make 55."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def _see(self):
        return np.full((84, 84, 4), self.np_random.integers(0, 256), np.uint8)


class Fault(Corridor):
    """Breaks in the step after the third."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.steps += 1
        outcome = list(super().step(action))
        outcome[2] = False
        self.place = 2
        return self.fault(outcome) if self.steps > 3 else tuple(outcome)


def fault(index, value):
    """A class whose outcome has another member."""

    class Made(Fault):
        def fault(self, outcome):
            outcome[index] = value
            return tuple(outcome)

    return Made


WrongShape = fault(0, np.zeros(2))
NotANumber = fault(0, np.array([np.nan]))
Text = fault(0, np.array(["west"]))
Nothing = fault(0, None)
RewardNothing = fault(1, None)
RewardText = fault(1, "much")
RewardNaN = fault(1, float("nan"))
RewardHuge = fault(1, 1e300)


class StepRaises(Fault):
    def fault(self, outcome):
        raise ValueError("the joint 4 came off")


class StepForgets(Fault):
    def fault(self, outcome):
        return outcome[:4]


class StepHangs(Fault):
    def fault(self, outcome):
        time.sleep(1000)


class StepCrashes(Fault):
    def fault(self, outcome):
        ctypes.string_at(8)


class StepExits(Fault):
    def fault(self, outcome):
        os._exit(3)


class MetricMissing(Fault):
    def fault(self, outcome):
        return (*outcome[:2], True, False, {})


class MaskEmpty(Masked):
    def _mask(self):
        return {"action_mask": np.zeros(2, np.int8)}


class ResetRaises(Corridor):
    def reset(self, *, seed=None, options=None):
        raise OSError("no such level")


class ResetForgets(Corridor):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class InitRaises(Corridor):
    def __init__(self):
        raise RuntimeError("the licence has expired")


class Loud(Corridor):
    """Starts a thread that does not end, and prints behind its failure."""

    def __init__(self):
        threading.Thread(target=time.sleep, args=(1000,)).start()
        atexit.register(print, "a word at the end")
        print("a word before")
        raise ValueError("the loud one fails")


class EndlessActions(Corridor):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class NoSpaces(gymnasium.Env):
    pass


class Clock(Corridor):
    """Draws from the clock, and says so: a successor's steps are others."""

    spec = gymnasium.envs.registration.EnvSpec("Clock-v0", nondeterministic=True)

    def step(self, action):
        outcome = super().step(action)
        return (outcome[0] + time.time() % 1, *outcome[1:])


class Dice(gymnasium.Env):
    """Draws its first state from a generator that no seed sets, without a word of it. Kills its process amid an episode,
    as often as there are files of the folder DICE, which it removes."""

    spec = gymnasium.envs.registration.EnvSpec("Dice-v0", max_episode_steps=30)
    observation_space = spaces.Box(0, 30, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.drawn = 0, random.random()
        return self._see(), self._mask()

    def _see(self):
        return np.array([self.steps, self.drawn], np.float32)

    def _mask(self):
        return {"action_mask": np.array([self.drawn < 0.6, self.drawn > 0.4], np.int8)}

    def step(self, action):
        if not self._mask()["action_mask"][action]:
            raise RuntimeError("no such door")
        self.steps += 1
        if self.steps == 20:
            self._die()
        return self._see(), self.drawn, False, self.steps == 30, self._mask()

    @staticmethod
    def _die():
        for path in list(pathlib.Path(os.environ["DICE"]).iterdir()):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


class Elastic(Corridor):
    """The variable CORRIDOR sets its length."""

    def step(self, action):
        self.length = int(os.environ.get("CORRIDOR", self.length))
        return super().step(action)


class Corridors(gymnasium.vector.VectorEnv):
    """The same as Corridor, all at once."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}

    def __init__(self, num_envs, length=6):
        self.num_envs, self.length = num_envs, length
        self.single_observation_space = spaces.Box(0, length, (1,), np.float64)
        self.single_action_space = spaces.Discrete(2)
        self.metrics = ("is_home",)
        self.spec = gymnasium.envs.registration.EnvSpec("Corridors-v0", max_episode_steps=50)
        self.places = np.zeros(num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        which = options["reset_mask"] if options else np.ones(self.num_envs, np.bool_)
        for i in np.flatnonzero(which):
            drawn, _ = gymnasium.utils.seeding.np_random(seed if isinstance(seed, int) else seed[i])
            self.places[i] = drawn.integers(1, self.length)
        return self.places[:, None].astype(np.float64), {}

    def step(self, actions):
        self.places += np.where(actions == 1, 1, -1)
        over = (self.places == 0) | (self.places == self.length)
        home = {"is_home": (self.places == self.length).astype(np.float64)}
        return self.places[:, None].astype(np.float64), np.full(self.num_envs, -1.0), over, over & False, home


class Resetting(Corridors):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}


class Drawn(Corridor):
    """Lengths, rewards and metrics follow from the seed, whatever the actions."""

    metrics = ("is_success",)

    def reset(self, *, seed=None, options=None):
        self.drawn, self.left = seed, 1 + seed % 7
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.left -= 1
        over = self.left == 0
        return self._see(), self.drawn % 11 / 4, over and self.drawn % 2 == 0, over and self.drawn % 2 == 1, {
            "is_success": self.drawn % 3 == 0
        }


class Sights(Drawn):
    """Drawn, where what is seen and allowed follows from the seed and the step, too."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (4, 4, 2), np.uint8)
        self.action_space = spaces.MultiDiscrete([2, 3])

    def _mask(self):
        return {"action_mask": np.array([True, self.left % 2 == 0, self.drawn % 5 < 3, True, True], np.int8)}

    def _see(self):
        return ((np.arange(32) * (self.left + self.drawn % 10)) % 256).astype(np.uint8).reshape(4, 4, 2)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._mask()

    def step(self, action):
        assert self._mask()["action_mask"][[action[0], 2 + action[1]]].all(), action
        outcome = super().step(action)
        return (*outcome[:4], {**outcome[4], **self._mask()})


class Marked(Corridor):
    """In the third step of an episode of one seed it writes the file `marker`, if there is none; what then?"""

    def __init__(self, seed, marker, then):
        super().__init__(20)
        self.seed, self.marker, self.then = seed, marker, then

    def reset(self, *, seed=None, options=None):
        self.is_marked, self.steps = seed == self.seed, 0
        return super().reset(seed=seed)

    def step(self, action):
        self.steps += 1
        if self.is_marked and self.steps >= 3 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            if self.then == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.then == "raise":
                raise ValueError("the joint 4 came off")
        if self.is_marked and self.steps >= 3 and self.then == "dawdle":
            time.sleep(0.1)
        return super().step(action)
