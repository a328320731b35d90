"""Drives worker/python/environments.py's Atari and observer.py's Group with a game of three lives that needs no ALE.

    PYTHONPATH=worker/python python atari_stub.py    prints nothing; an assertion names what is wrong
"""
import types

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing

import environments
import observer


class Game(gymnasium.Env):
    """Every third step loses a life; FIRE shows 200 and earns 5. Other steps show their number and earn 1."""

    observation_space = spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, frameskip):
        assert frameskip == 1
        self.ale = types.SimpleNamespace(lives=lambda: self.left)

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "UP"]

    def see(self, number):
        return np.full((84, 84), number, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.steps, self.fired = 3, 0, 0
        return self.see(100), {}

    def step(self, action):
        if action == 1:
            self.fired += 1
            return self.see(200), 5.0, False, False, {}
        self.steps += 1
        self.left -= self.steps % 3 == 0
        return self.see(self.steps), 1.0, self.left == 0, False, {}


JOB = {"seed": 1, "observers": {"environments": 1}, "rollout": {"begin": "continue"},
       "environment": {"gymnasium": "ALE/Stub-v0", "class": None, "pettingzoo": None, "options": {}, "frames": 4, "renew": False,
                       "atari": True}}


def made(*_, **__):
    return environments.Atari, lambda **more: Game(**more)


environments.find_environments = made
environments.AtariPreprocessing = AtariPreprocessing
gymnasium.wrappers.AtariPreprocessing = lambda game: game
group = observer.Group(JOB, 0, 0, 1, lambda *_: None)
group.begin(1, 0, False, False)
game = group.environments.all[0]
assert game.fired == 1 and group.shown[0].reshape(84, 84, 4)[0, 0].tolist() == [200] * 4

flags, rewards, newest = [], [], []
for number in range(1, 10):
    (outcome,) = group.environments.step([0], [np.uint32(2)])
    over = group._take(0, outcome)
    flags.append(int(group.flags[0]))
    rewards.append(float(group.rewards[0]))
    newest.append(group.shown[0].reshape(84, 84, 4)[0, 0].tolist())
    assert over == (number == 9), number
LIFE = environments.Environments.LIFE_LOST
assert flags == [0, 0, LIFE, 0, 0, LIFE, 0, 0, 1], flags
assert rewards == [6.0, 1.0, 6.0, 1.0, 1.0, 6.0, 1.0, 1.0, 1.0], rewards  # with what each FIRE has earned
assert game.fired == 3, game.fired
assert newest[1] == [200, 200, 1, 2] and newest[2] == [200] * 4 and newest[3] == [200, 200, 200, 4], newest
assert newest[8] == [200, 7, 8, 9], newest
