"""Environments with nested spaces, with images of several forms, and with several agents, for test_python_spaces.sh."""
import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A walk on a line of 9 places; its end is the goal. Subclasses show it in other forms."""

    metadata = {"render_modes": ["rgb_array", "ansi"]}
    PLACES, STEPS_MAX = 9, 40

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(self.PLACES)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(0, self.PLACES - 1)), 0
        return self.see(), self.info()

    def see(self):
        return self.place

    def info(self):
        return {}

    def is_right(self, action):
        return action == 1

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        self.place = max(self.place + (1 if self.is_right(action) else -1), 0)
        over = self.place == self.PLACES - 1
        return self.see(), 1.0 if over else -0.1, over, self.steps == self.STEPS_MAX, self.info()

    def render(self):
        if self.render_mode == "ansi":
            return "." * self.place + "@" + "." * (self.PLACES - 1 - self.place) + "\n"
        picture = np.zeros((8, 8 * self.PLACES, 3), np.uint8)
        picture[:, 8 * self.place : 8 * self.place + 8] = (255, 128, 0)
        return picture


class Parts(Walk):
    """A Dict within a Dict, and a Tuple; the keys are not sorted."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = spaces.Dict({
            "where": spaces.Dict({"place": spaces.Discrete(self.PLACES), "speed": spaces.Box(-1, 1, (2, 2), np.float32)}),
            "flags": spaces.MultiBinary(3),
            "dice": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(0, 255, (2,), np.uint8))),
        })  # fmt: skip

    def see(self):
        place = self.place
        return {
            "where": {"place": place, "speed": np.full((2, 2), place / 10, np.float32)},
            "flags": np.array([place & 1, place & 2, place & 4], bool).astype(np.int8),
            "dice": (np.array([place % 2, place % 3]), np.array([place, 255], np.uint8)),
        }


class Choices(Walk):
    """A Tuple and a Dict of choices of several sizes, with a mask in their form, whose keys have another order."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        inner = spaces.Dict({"turn": spaces.Discrete(3), "door": spaces.MultiDiscrete([2, 4])})
        self.action_space = spaces.Tuple((spaces.Discrete(2, start=3), inner))

    def is_right(self, action):
        assert action[1]["door"][1] == 2 and action[1]["turn"] != 1, "the mask forbids the others"
        return action[0] == 4

    def info(self):
        return {"action_mask": ((1, 1), self.inner_mask())}

    def inner_mask(self):
        return {"turn": np.array([1, 0, 1]), "door": (np.array([1, 1]), np.array([0, 0, 1, 0]))}


class MaskForgets(Choices):
    def inner_mask(self):
        return {"door": super().inner_mask()["door"]}


class MaskShort(Choices):
    def inner_mask(self):
        return {**super().inner_mask(), "turn": np.array([1])}


class Forces(Walk):
    """A Dict of Boxes as the action."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = spaces.Dict(
            {"push": spaces.Box(-1, 1, (1,), np.float32), "turn": spaces.Box(-2, 2, (2, 2), np.float32)}
        )

    def is_right(self, action):
        return action["push"][0] > 0


class Picture(Walk):
    SHAPE = (40, 40, 1)

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = spaces.Box(0, 255, self.SHAPE, np.uint8)

    def see(self):
        picture = np.zeros((40, 40), np.uint8)
        picture[:, 4 * self.place : 4 * self.place + 4] = 255
        return picture.reshape(self.SHAPE)


class ChannelsFirst(Picture):
    SHAPE = (1, 40, 40)


class NoChannels(Picture):
    SHAPE = (40, 40)


class Mixed(Picture):
    """Images among other parts: one whose channels begin, and a smaller one without channels, whose bytes end odd."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = spaces.Dict(
            {
                "bytes": spaces.Box(0, 255, (3,), np.uint8),
                "camera": spaces.Box(0, 255, (1, 40, 40), np.uint8),
                "inner": spaces.Tuple([spaces.Box(0, 255, (37, 37), np.uint8), spaces.Box(-1, 1, (2, 2), np.float32)]),
                "speed": spaces.Discrete(2),
            }
        )

    def see(self):
        picture = super().see()[..., 0]
        return {
            "bytes": np.full(3, self.place, np.uint8),
            "camera": picture[np.newaxis],
            "inner": (picture[:37, :37].copy(), np.full((2, 2), self.place / 9, np.float32)),
            "speed": self.place % 2,
        }


class SameNames(Walk):
    """Two parts that would both be a.b."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})


class LongName(Walk):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = spaces.Dict({"x" * 64: spaces.Discrete(2)})


class Endless(Walk):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = spaces.Dict({"words": spaces.Text(4)})


class ForgetsPart(Parts):
    def see(self):
        seen = super().see()
        if getattr(self, "steps", 0) > 3:
            del seen["flags"]
        return seen


class BadPart(Parts):
    def see(self):
        seen = super().see()
        if getattr(self, "steps", 0) > 3:
            seen["where"]["speed"] = np.zeros(3)
        return seen


class RenderRaises(Walk):
    def render(self):
        raise OSError("no screen")


class RenderGives(Walk):
    def render(self):
        return np.zeros((4, 4))


class Corner(Walk):
    metadata = {}


class Killed(Walk):
    """Ends Python in a step; a process that it has forked lives on for a while."""

    def step(self, action):
        if os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


class CloseHangs(Walk):
    def close(self):
        time.sleep(1000)


def any_options(**options):
    return Walk(**options)


class Elastic(Walk):
    """Has as many choices as its users' ELASTIC says."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = spaces.Discrete(int(os.environ.get("ELASTIC", "2")))


class OldGym:
    """The interface of gym before 0.26."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        return np.zeros(1, np.float32)

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, {}


class Walks(gymnasium.vector.VectorEnv):
    """Some Parts, stepped together."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}

    def __init__(self, num_envs):
        self.num_envs, self.all = num_envs, [Parts() for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = self.all[0].observation_space, self.all[0].action_space

    @staticmethod
    def _joined(rows):
        if isinstance(rows[0], dict):
            return {key: Walks._joined([row[key] for row in rows]) for key in rows[0]}
        if isinstance(rows[0], tuple):
            return tuple(Walks._joined(parts) for parts in zip(*rows))
        return np.stack(rows)

    def reset(self, *, seed=None, options=None):
        which = options["reset_mask"] if options else [True] * self.num_envs
        seed = seed if isinstance(seed, list) else [seed] * self.num_envs
        for i, one in enumerate(self.all):
            if which[i]:
                one.reset(seed=seed[i])
        return self._joined([one.see() for one in self.all]), {}

    def step(self, actions):
        results = [one.step(action) for one, action in zip(self.all, actions)]
        return self._joined([result[0] for result in results]), *(np.array(part) for part in list(zip(*results))[1:4]), {}


def some_walks(num_envs):
    return Walks(num_envs)


def walks_without_count():
    return Walks(2)


# ---- PettingZoo ----
def chase(agents=3, seats=12):
    """Agents that walk to the end of a line, each in its own time; those that are there leave."""
    from pettingzoo import ParallelEnv

    class Chase(ParallelEnv):
        metadata = {"name": "chase", "render_modes": ["rgb_array"]}

        def __init__(self):
            self.possible_agents = [f"runner_{i}" for i in range(agents)]
            self.render_mode = None

        def observation_space(self, agent):
            return spaces.Box(0, seats, (2,), np.float32)

        def action_space(self, agent):
            return spaces.Discrete(3)

        def reset(self, seed=None, options=None):
            self.random = np.random.default_rng(seed)
            self.agents, self.steps = list(self.possible_agents), 0
            self.places = {agent: int(self.random.integers(0, seats - 2)) for agent in self.agents}
            return self._see(), {agent: {} for agent in self.agents}

        def _see(self):
            return {agent: np.array([self.places[agent], len(self.agents)], np.float32) for agent in self.agents}

        def step(self, actions):
            assert set(actions) == set(self.agents), (actions, self.agents)
            self.steps += 1
            for agent, action in actions.items():
                self.places[agent] = min(max(self.places[agent] + action - 1, 0), seats)
            seen = self._see()
            there = {agent: self.places[agent] == seats for agent in self.agents}
            cut = {agent: self.steps == 60 for agent in self.agents}
            rewards = {agent: 1.0 if there[agent] else -0.05 for agent in self.agents}
            infos = {agent: {} for agent in self.agents}
            self.agents = [agent for agent in self.agents if not there[agent] and not cut[agent]]
            return seen, rewards, there, cut, infos

        def render(self):
            picture = np.zeros((8 * agents, 8 * seats + 8, 3), np.uint8)
            for i, agent in enumerate(self.possible_agents):
                picture[8 * i : 8 * i + 8, 8 * self.places[agent] : 8 * self.places[agent] + 8] = 255
            return picture

    return Chase()


def measured():
    """With figures of an ended episode; everybody leaves at once, without a word."""
    one = chase()
    one.metrics, step = ("place",), one.step

    def step_measured(actions):
        seen, rewards, there, cut, infos = step(actions)
        if any(there.values()):
            one.agents = []
        for agent in infos:
            infos[agent]["place"] = one.places[agent]
        return seen, rewards, there, cut, infos

    one.step = step_measured
    return one


def late():
    """The last agent comes later."""
    one = chase()
    reset = one.reset

    def reset_some(seed=None, options=None):
        result = reset(seed, options)
        one.agents.pop()
        return result

    one.reset = reset_some
    return one


def unequal():
    one = chase()
    one.action_space = lambda agent: spaces.Discrete(2 + (agent == "runner_1"))
    return one


def turns():
    """Two agents that take turns and share a counter: PettingZoo's interface for games."""
    from pettingzoo import AECEnv
    from pettingzoo.utils import AgentSelector

    class Turns(AECEnv):
        metadata = {"name": "turns", "is_parallelizable": True}

        def __init__(self):
            super().__init__()
            self.possible_agents = ["first", "second"]

        def observation_space(self, agent):
            return spaces.Dict({"observation": spaces.Box(0, 20, (1,), np.float32),
                                "action_mask": spaces.Box(0, 1, (2,), np.int8)})  # fmt: skip

        def action_space(self, agent):
            return spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.agents = list(self.possible_agents)
            self.selector = AgentSelector(self.agents)
            self.agent_selection = self.selector.next()
            self.count = int(np.random.default_rng(seed).integers(0, 5))
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos = {agent: {} for agent in self.agents}

        def observe(self, agent):
            mask = np.array([1, self.count < 19], np.int8)
            return {"observation": np.array([self.count], np.float32), "action_mask": mask}

        def step(self, action):
            agent = self.agent_selection
            if self.terminations[agent] or self.truncations[agent]:
                self._was_dead_step(action)
                return
            self._cumulative_rewards[agent] = 0.0
            self.count += int(action)
            self.rewards = dict.fromkeys(self.agents, 0.1 * int(action))
            if self.selector.is_last():
                self.terminations = dict.fromkeys(self.agents, self.count >= 18)
            self._accumulate_rewards()
            self.agent_selection = self.selector.next()

    return Turns()
