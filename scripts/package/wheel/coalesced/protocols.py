"""What a job's own classes must have, as types. Nothing of a job needs to import this module.

    "environment": {"class": "module:Class"}        Environment, or a gymnasium.vector.VectorEnv
    "environment": {"pettingzoo": "module:function"}  a function that returns Agents, or a pettingzoo.AECEnv
    "trainers": {"class": "module:Class"}           Trainer; with "data": {"kind": "class"} also Samples, a
                                                    torch.utils.data.Dataset, or a function that returns two of them

A space is Gymnasium's: of observations a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these; of
actions the same, with bounds for each Box.
"""
from typing import Any, Dict, List, Mapping, Optional, Protocol, Tuple

import numpy as np

Info = Dict[str, Any]


class Environment(Protocol):
    """gymnasium.Env. The options of the job, /environment/options, are the arguments by which it is made. `metrics`, which
    it may lack, names figures that info has where an episode ends. info["action_mask"] has a 1 for each choice that is
    allowed; the mask of nested spaces is nested likewise."""

    observation_space: Any
    action_space: Any

    def reset(self, *, seed: Optional[int] = None, options: Optional[Mapping[str, Any]] = None) -> Tuple[Any, Info]:
        """The same seed begins the same episode."""

    def step(self, action: Any) -> Tuple[Any, float, bool, bool, Info]:
        """Observation, reward, terminated, truncated, info."""


class Agents(Protocol):
    """pettingzoo.ParallelEnv. All agents have the same spaces, and share the policy. An agent that has ended is left out of
    `agents`; the episode is over when nobody is left."""

    possible_agents: List[str]
    agents: List[str]

    def observation_space(self, agent: str) -> Any: ...

    def action_space(self, agent: str) -> Any: ...

    def reset(self, seed: Optional[int] = None, options: Optional[Mapping[str, Any]] = None) -> Tuple[Dict[str, Any], Dict[str, Info]]: ...

    def step(
        self, actions: Dict[str, Any]
    ) -> Tuple[Dict[str, Any], Dict[str, float], Dict[str, bool], Dict[str, bool], Dict[str, Info]]: ...


class Trainer(Protocol):
    """What /trainers/class names. It is made with the job (a dict, as in job.json), the number of this trainer from 0, and
    /trainers/options as keyword arguments. The sizes are read where /data/kind is "class"; either may be missing."""

    train_size: int  # the samples of an epoch
    held_out_size: int

    def batch(self, step: int) -> Tuple[np.ndarray, np.ndarray]:
        """Images, float32 (n, channels, height, width), and labels, int64 (n,): a function of the step alone."""

    def held_out(self, share: int, shares: int) -> Any:
        """The batches of one share of the held-out data, in order. Needed if the job evaluates."""

    def model(self) -> Any:
        """May be missing: a torch.nn.Module with the names and shapes of the job's /model."""


class Samples(Protocol):
    """torch.utils.data.Dataset, of map style, made with /trainers/options as keyword arguments. If its constructor has an
    argument `train`, it is made once more with train=False, for the held-out samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        """An image, float (channels, size, size) as /data says or of PIL, and its label. What it draws from Python's, NumPy's
        or PyTorch's generator is the same for the same sample and epoch."""
