"""The environments of an observer in Python (worker/python/observer.py), with the checks of all that they return.

    Space         an observation or an action: Gymnasium's description of it, and the agent's
    Environments  Gymnasium's environments, one after the other
    Vector        a VectorEnv, which steps all of its environments at once
    Apart         a VectorEnv for each environment, so that they can end one by one
    Pool          EnvPool's environments
"""
import importlib
import json
import traceback

from worker_session import CORRUPT, INVALID, Failure, last_lines, np


# ---- spaces ----
def one_or_all(numbers):
    """A member of a description: one number, or a list where they differ."""
    return numbers[0] if len(set(numbers)) == 1 else numbers


def refuse_space(what, space, expected):
    raise Failure(INVALID, f"the {what} space is {space}: expected {expected}")


class Space:
    """shape and dtype are what travels; convert brings a value of Gymnasium's into that form, or back. An action that
    chooses has `choices`, a list, in place of the bounds low and high."""

    def __init__(self, dtype, shape, convert, bounds=(), choices=None):
        self.dtype, self.shape, self.convert, self.bounds, self.choices = dtype, tuple(shape), convert, bounds, choices
        name = {"<f4": "float32", "u1": "uint8", "<u4": "int32"}[dtype]
        self.description = {"dtype": name, "shape": list(self.shape)}
        for key, bound in zip(("low", "high"), bounds):  # null is no bound
            self.description[key] = one_or_all([float(v) if np.isfinite(v) else None for v in np.ravel(bound)])
        if choices is not None:
            self.description["choices"] = one_or_all(choices)

    @classmethod
    def of_observation(cls, space, frames):
        spaces = importlib.import_module("gymnasium").spaces
        if isinstance(space, spaces.Discrete):
            single = cls._one_hot([space.n], lambda value: [int(value) - int(space.start)])
        elif isinstance(space, spaces.MultiDiscrete):
            starts = np.asarray(getattr(space, "start", 0))
            single = cls._one_hot(np.ravel(space.nvec), lambda value: np.ravel(np.asarray(value) - starts))
        elif isinstance(space, spaces.MultiBinary):
            single = cls("<f4", space.shape, cls._checked(space.shape, "<f4"), (0, 1))
        elif isinstance(space, spaces.Box) and len(space.shape) <= 3:
            dtype = "u1" if space.dtype == np.uint8 else "<f4"
            single = cls(dtype, space.shape, cls._checked(space.shape, dtype), (space.low, space.high))
        else:
            refuse_space(
                "observation", space,
                "a Box of rank 3 at most, Discrete, MultiDiscrete or MultiBinary (gymnasium.wrappers.FlattenObservation "
                "makes one of others)",
            )  # fmt: skip
        return single if frames == 1 else single._stacked(frames)

    @classmethod
    def _one_hot(cls, counts, index):
        """A whole number of n becomes n numbers, of which one is 1."""
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        total = int(np.sum(counts))

        def convert(value):
            numbers = np.asarray(index(value), np.int64)
            if numbers.shape != offsets.shape or np.any(numbers < 0) or np.any(numbers >= counts):
                raise ValueError(f"is {value}, beyond its space")
            row = np.zeros(total, "<f4")
            row[offsets + numbers] = 1
            return row

        return cls("<f4", [total], convert, (0, 1))

    @staticmethod
    def _checked(shape, dtype):
        def convert(value):
            row = np.asarray(value)
            if row.shape != shape:
                raise ValueError(f"has the shape {row.shape}, expected {shape}")
            if dtype == "u1" and row.dtype != np.uint8:
                raise ValueError(f"has the dtype {row.dtype}, expected uint8")
            if dtype == "<f4":
                if row.dtype.kind not in "fiub":
                    raise ValueError(f"has the dtype {row.dtype}, expected numbers")
                row = row.astype("<f4")
                if not np.all(np.isfinite(row)):
                    raise ValueError(f"has the value {row[~np.isfinite(row)].flat[0]}, expected finite ones")
            return row

        return convert

    def _stacked(self, frames):
        """The same space with `frames` observations joined along the last axis."""
        shape = self.shape or (1,)
        bounds = [np.concatenate([np.broadcast_to(bound, shape)] * frames, axis=-1) for bound in self.bounds]
        whole = (*shape[:-1], shape[-1] * frames)
        return Space(self.dtype, whole, lambda value: self.convert(value).reshape(shape), bounds)

    @classmethod
    def of_action(cls, space):
        spaces = importlib.import_module("gymnasium").spaces
        if isinstance(space, spaces.Discrete):
            start = int(space.start)
            return cls("<u4", [], lambda row: int(row) + start, choices=[int(space.n)])
        if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
            starts = np.asarray(getattr(space, "start", 0))
            return cls("<u4", space.shape, lambda row: (row + starts).astype(space.dtype),
                       choices=[int(n) for n in space.nvec])  # fmt: skip
        if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
            return cls("<u4", space.shape, lambda row: row.astype(space.dtype), choices=[2] * space.shape[0])
        if isinstance(space, spaces.Box) and space.dtype.kind == "f":
            if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
                refuse_space("action", space, "finite bounds")
            shape = [] if space.shape == () else [int(np.prod(space.shape))]
            return cls("<f4", shape, lambda row: row.reshape(space.shape).astype(space.dtype),
                       (space.low, space.high))  # fmt: skip
        return refuse_space("action", space, "Discrete, or a MultiDiscrete or MultiBinary of rank 1, or a Box of floats")


# ---- environments ----
def seed_of(job_seed, environment, episode, step):
    """environment.h's environment_seed_mix, without the sign bit of the 32 that NumPy's older generators take."""
    mask, mixed = (1 << 64) - 1, 0
    for word in (job_seed, environment << 32 | episode, step):
        mixed = ((mixed ^ word) + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & mask
        mixed ^= mixed >> 31
    return mixed >> 33


class Environments:
    """`count` environments; each has its own object of Gymnasium's. Numbers are the job's."""

    TERMINATED, TRUNCATED = 1, 2

    can_seed = True
    at_once = False  # each call of the user's code is for all of them

    def __init__(self, job, name, make, first, count, progress):
        self.seed, self.first, self.count, self.name = job["seed"], first, count, name
        self.progress = progress  # called before a call of the user's code, with what it is, and after it
        self.frames = job["environment"]["frames"]
        self._make(make)
        one, self.steps_max = self._one()
        try:
            self.observation = Space.of_observation(self._space(one, "observation_space"), self.frames)
            self.action = Space.of_action(self._space(one, "action_space"))
        except Failure as failure:
            raise Failure(failure.status, f"{self.name}: {failure}") from None
        self.metrics = [str(name) for name in getattr(one.unwrapped, "metrics", ())]
        self.has_mask = self.action.choices is not None and self._shows_mask()
        self.choices = sum(self.action.choices) if self.has_mask else 0

    @property
    def can_save(self):
        """Whether playing an episode again leads one environment to the same place."""
        return self.can_seed and not self.at_once

    def _make(self, make):
        self.all = []
        for i in range(self.count):
            self.all.append(self._call(self.first + i, "making it", make))

    def _one(self):
        """The environment that tells of its spaces, and its longest episode."""
        spec = getattr(self.all[0], "spec", None)
        self.can_seed = not getattr(spec, "nondeterministic", False)
        return self.all[0], getattr(spec, "max_episode_steps", None) or 0

    def _space(self, one, name):
        if not hasattr(one, name):
            raise Failure(INVALID, f"it has no {name}")
        return getattr(one, name)

    def _shows_mask(self):
        return "action_mask" in self._first_state(0, 0)[1]

    def describe(self):
        described = {
            "name": self.name,
            "agents": 1,
            "steps_max": self.steps_max,
            "mask": self.has_mask,
            "can_seed": self.can_seed,
            "can_save": self.can_save,
            "singleton": False,
            "metrics": self.metrics,
            "observation": self.observation.description,
            "action": self.action.description,
        }
        return json.dumps(described, allow_nan=False, separators=(",", ":"))

    def _call(self, number, what, function):
        """Calls the user's code; an exception names the environment."""
        self.progress(what, number, number + self.count - 1 if self.at_once else number)
        try:
            return function()
        except Exception as why:
            traceback.print_exc()
            raise Failure(INVALID, f"{self.name}: environment {number}: {what}: {last_lines(why)}") from why
        finally:
            self.progress()

    def _broken(self, index, text):
        return Failure(CORRUPT, f"{self.name}: environment {self.first + index}: {text}")

    def _observation(self, index, value):
        try:
            return self.observation.convert(value)
        except (TypeError, ValueError) as why:
            raise self._broken(index, f"its observation {why}") from None

    def _mask(self, index, info):
        if not self.has_mask:
            return None
        mask = np.asarray(info.get("action_mask", ()))
        if mask.size != self.choices or not np.all((mask == 0) | (mask == 1)) or not mask.any():
            raise self._broken(index, f"its action_mask is {mask.tolist()}: expected {self.choices} of 0 and 1, not all 0")
        return mask.astype("u1").ravel()

    def _first_state(self, index, seed):
        result = self._call(self.first + index, "reset", lambda: self.all[index].reset(seed=seed))
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise self._broken(index, "reset returned no pair of an observation and a dict")
        return result

    def _seed(self, index, episode, step):
        return seed_of(self.seed, self.first + index, episode, step)

    def reset(self, which, episode, step):
        """Of each environment: the first observation, and the mask."""
        for index in which:
            observation, info = self._first_state(index, self._seed(index, episode, step))
            yield self._observation(index, observation), self._mask(index, info)

    def step(self, which, rows):
        """Of each environment: observation, reward, flags, mask, metrics (of an episode that ended, else empty)."""
        for index, row in zip(which, rows):
            yield self._step(index, row)

    def _step(self, index, row):
        action = self.action.convert(row)
        result = self._call(self.first + index, "step", lambda: self.all[index].step(action))
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], dict):
            raise self._broken(index, "step returned no tuple of observation, reward, terminated, truncated and info")
        return self._outcome(index, *result)

    def _outcome(self, index, value, reward, terminated, truncated, info):
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            raise self._broken(index, f"its reward is {reward!r}: expected a number") from None
        if not np.isfinite(np.float32(reward)):
            raise self._broken(index, f"its reward is {reward}: expected a finite float32")
        flags = (self.TERMINATED if terminated else 0) | (self.TRUNCATED if truncated else 0)
        return self._observation(index, value), reward, flags, self._mask(index, info), self._metrics(index, flags, info)

    def _metrics(self, index, flags, info):
        if flags == 0 or not self.metrics:
            return []
        try:
            values = [float(info[name]) for name in self.metrics]
        except (KeyError, TypeError, ValueError) as why:
            raise self._broken(index, f"the metrics of its episode: {type(why).__name__}: {why}") from None
        if not np.all(np.isfinite(np.float32(values))):
            raise self._broken(index, f"the metrics of its episode are {values}: expected finite ones")
        return values

    def close(self):
        for one in self.all:
            try:
                one.close()
            except Exception:
                traceback.print_exc()


class Vector(Environments):
    """A gymnasium.vector.VectorEnv, which steps all of its environments at once."""

    at_once = True

    def _make(self, make):
        self.size = self.count if self.at_once else 1  # the environments of each VectorEnv
        self.all = []
        for first in range(self.first, self.first + self.count, self.size):
            self.all.append(self._call(first, "making it", lambda: make(num_envs=self.size)))
            mode = getattr(self.all[-1].metadata.get("autoreset_mode"), "name", None)
            if mode != "DISABLED":
                raise Failure(INVALID, f"{self.name}: metadata['autoreset_mode'] is {mode}: expected DISABLED")

    def _one(self):
        spec = getattr(self.all[0], "spec", None)
        return self.all[0], getattr(spec, "max_episode_steps", None) or 0

    def _space(self, one, name):
        return super()._space(one, "single_" + name)

    @staticmethod
    def _info(infos, index):
        return {name: values[index] for name, values in infos.items() if np.ndim(values) > 0}

    def _parts(self, which):
        """For each VectorEnv with some of these: its first environment's number, the VectorEnv, and which of them it has."""
        if self.at_once:
            return [(self.first, self.all[0], which)]
        return [(self.first + index, self.all[index], [index]) for index in which]

    def reset(self, which, episode, step):
        for first, one, own in self._parts(which):
            seeds = [None] * self.size
            for index in own:
                seeds[index % self.size] = self._seed(index, episode, step)
            mask = {"reset_mask": np.asarray([seed is not None for seed in seeds])}
            values, infos = self._call(first, "reset", lambda: one.reset(seed=seeds, options=mask))
            for index in own:
                at = index % self.size
                yield self._observation(index, values[at]), self._mask(index, self._info(infos, at))

    def step(self, which, rows):
        if self.at_once and len(which) < self.count:
            raise Failure(INVALID, f"{self.name}: all of its environments are stepped at once: expected "
                                   '"steps" for /rollout/mode')  # fmt: skip
        rows = iter(rows)
        for first, one, own in self._parts(which):
            actions = np.stack([self.action.convert(row) for _, row in zip(own, rows)])
            *results, infos = self._call(first, "step", lambda: one.step(actions))
            for index in own:
                at = index % self.size
                yield self._outcome(index, *(result[at] for result in results), self._info(infos, at))


class Apart(Vector):
    """A VectorEnv for each environment, so that they can end one by one."""

    at_once = False


class Pool(Environments):
    """EnvPool's environments, which are stepped at once, too, but which also step in part. They draw from one seed, so
    a first state does not depend on the episode alone."""

    can_seed = False
    at_once = True

    def _make(self, make):
        seed = self._seed(0, 0, 0)
        self.all = [self._call(self.first, "making it", lambda: make(num_envs=self.count, num_threads=1, seed=seed))]

    def _one(self):
        return self.all[0], int(self.all[0].spec.config.max_episode_steps)

    def _shows_mask(self):
        return False

    def _in_order(self, infos, *arrays):
        """Results come in the order in which they were ready."""
        order = np.argsort(infos["env_id"])
        return ([array[i] for array in arrays] for i in order)

    def reset(self, which, episode, step):
        ids = np.asarray(which, np.int32)
        values, infos = self._call(self.first, "reset", lambda: self.all[0].reset(ids))
        for index, (value,) in zip(which, self._in_order(infos, values)):
            yield self._observation(index, value), None

    def step(self, which, rows):
        actions = np.stack([self.action.convert(row) for row in rows])
        ids = np.asarray(which, np.int32)
        *results, infos = self._call(self.first, "step", lambda: self.all[0].step(actions, ids))
        for index, outcome in zip(which, self._in_order(infos, *results)):
            yield self._outcome(index, *outcome, {})


def find_environments(job, evaluation=False):
    """Imports what the job names; the class of this file for it, and a function that makes one."""
    said = job["environment"]
    key = "class" if said["gymnasium"] is None else "gymnasium"
    name = said[key]
    gymnasium = importlib.import_module("gymnasium")
    try:
        if key == "class":
            module, member = name.split(":")
            made = getattr(importlib.import_module(module), member)
            is_vector = isinstance(made, type) and issubclass(made, gymnasium.vector.VectorEnv)
            return (Apart if evaluation else Vector) if is_vector else Environments, made
        if name.startswith("envpool/"):
            pool = importlib.import_module("envpool")
            return Pool, lambda **more: pool.make_gymnasium(name.split("/", 1)[1], **more)
        return Environments, lambda **more: gymnasium.make(name, **more)
    except Exception as why:
        raise Failure(INVALID, f"/environment/{key}: {name}: {last_lines(why)}") from why


def open_environments(job, first, count, progress, evaluation=False):
    said = job["environment"]
    name, options = said["gymnasium"] or said["class"], said["options"]
    kind, make = find_environments(job, evaluation)
    title = f"{name}, evaluation" if evaluation else name
    return kind(job, title, lambda **more: make(**options, **more), first, count, progress)
