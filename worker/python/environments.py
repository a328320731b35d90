"""Environments in Python, with the checks of all that they return, for worker/python/observer.py and
command_environments.py.

    Environments  Gymnasium's environments, one after the other
    Atari         ALE's games behind Gymnasium's AtariPreprocessing
    Parallel      PettingZoo's, whose agents are rows
    Vector        a VectorEnv, which steps all of its environments at once
    Apart         a VectorEnv for each environment, so that they can end one by one
    Pool          EnvPool's environments
"""
import importlib
import inspect
import json
import traceback

from spaces import Space
from worker_session import CORRUPT, INVALID, UNAVAILABLE, Failure, import_package, last_lines, np


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
    """`count` environments; each has its own object of Gymnasium's. Numbers are the job's. Where they have several
    agents, each value of reset and step has a row for each; flags are environment.h's, as a plug-in gives them."""

    TERMINATED, TRUNCATED, ABSENT, LIFE_LOST = 1, 2, 16, 32

    agents = 1
    can_seed = True
    at_once = False  # each call of the user's code is for all of them

    def __init__(self, job, name, make, first, count, progress):
        self.seed, self.first, self.count, self.name = job["seed"], first, count, name
        self.plain_name = key_of(job)[1]
        self.progress = progress  # called before a call of the user's code, with what it is, and after it
        self.frames, self.renews = job["environment"]["frames"], job["environment"]["renew"]
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
        self.make, self.all = make, []
        for i in range(self.count):
            self.all.append(self._call(self.first + i, "making it", make))
            self._check_kind(self.all[-1])

    def _renew(self, index):
        """A new environment in place of one that would bring something of its last episode along."""
        try:
            self._call(self.first + index, "close", self.all[index].close)
        except Failure:
            pass  # its traceback has been printed, and the environment is given up
        self.all[index] = self._call(self.first + index, "making it", self.make)

    def _one(self):
        """The environment that tells of its spaces, and its longest episode."""
        spec = getattr(self.all[0], "spec", None)
        self.can_seed = not getattr(spec, "nondeterministic", False)
        return self.all[0], getattr(spec, "max_episode_steps", None) or 0

    def action_rows(self):
        """The shape of one environment's actions."""
        return self.action.shape if self.agents == 1 else (self.agents, *self.action.shape)

    def action_bytes(self):
        """The bytes of one environment's actions."""
        return np.dtype(self.action.dtype).itemsize * int(np.prod(self.action_rows(), dtype=np.int64))

    def _check_kind(self, one):
        """Names what is often given in place of a gymnasium.Env."""
        gymnasium = importlib.import_module("gymnasium")
        modules = {kind.__module__.split(".")[0] for kind in type(one).__mro__}
        if isinstance(one, gymnasium.vector.VectorEnv):
            raise Failure(INVALID, f"{self.name}: it returned a VectorEnv: expected that it has an argument num_envs, the "
                                   "number of environments to make")  # fmt: skip
        if "pettingzoo" in modules:
            raise Failure(INVALID, f'{self.name}: an environment of PettingZoo: expected it under "pettingzoo" in place of '
                                   '"class"')  # fmt: skip
        if "gym" in modules or (hasattr(one, "reset") and not accepts(one.reset, "seed", otherwise=True)):
            raise Failure(INVALID, f"{self.name}: expected a gymnasium.Env, whose reset takes a seed; shimmy's "
                                   "GymV21CompatibilityV0 or GymV26CompatibilityV0 converts one of the older gym")  # fmt: skip

    def _space(self, one, name):
        space = getattr(one, name, None)
        if space is None:
            raise Failure(INVALID, f"it has no {name}")
        if callable(space) and inspect.ismethod(space):
            raise Failure(INVALID, f"its {name} is a method, as PettingZoo's are: expected a space of Gymnasium's")
        if type(space).__module__.split(".")[0] == "gym":
            raise Failure(INVALID, f"its {name} is of the older gym: expected a space of Gymnasium's")
        return space

    def _shows_mask(self):
        return "action_mask" in self._first_state(0, 0)[1]

    def describe(self):
        described = {
            "name": self.plain_name,
            "agents": self.agents,
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

    def _flat_mask(self, index, info):
        try:
            return self.action.flat_mask(info.get("action_mask", ()))
        except ValueError as why:
            raise self._broken(index, f"its action_mask {why}") from None

    def _mask(self, index, info):
        if not self.has_mask:
            return None
        mask = self._flat_mask(index, info)
        if mask.size != self.choices or not np.all((mask == 0) | (mask == 1)) or not mask.any():
            raise self._broken(index, f"its action_mask is {mask.tolist()}: expected {self.choices} of 0 and 1, not all 0")
        return mask.astype("u1").ravel()

    def _first_state(self, index, seed):
        if self.renews:
            self._renew(index)
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
        reward, flags, metrics = self._earned(index, reward, terminated, truncated, info)
        return self._observation(index, value), reward, flags, self._mask(index, info), metrics

    def _earned(self, index, reward, terminated, truncated, info):
        """The reward, the flags, and the metrics of an episode that has ended."""
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            raise self._broken(index, f"its reward is {reward!r}: expected a number") from None
        if not np.isfinite(np.float32(reward)):
            raise self._broken(index, f"its reward is {reward}: expected a finite float32")
        flags = (self.TERMINATED if terminated else 0) | (self.TRUNCATED if truncated else 0)
        return reward, flags, self._metrics(index, flags, info)

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

    def render(self, index):
        """A str, or an array (height, width, 3) of uint8."""
        picture = self._call(self.first + index, "render", lambda: self._picture(index))
        if isinstance(picture, str):
            return picture
        if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
            return picture
        raise self._broken(index, "render returned no str, and no uint8 array of the shape (height, width, 3)")

    def _picture(self, index):
        return self.all[index].render()

    def render_modes(self):
        return list((getattr(self.all[0], "metadata", None) or {}).get("render_modes", ()))

    def close(self):
        for one in self.all:
            try:
                one.close()
            except Exception:
                traceback.print_exc()


class Atari(Environments):
    """ALE's games as the papers play them. Gymnasium's AtariPreprocessing has the idle steps, the frames and the pixels.
    FIRE begins a life, where the game has that button: some games wait for it for ever. What FIRE earns belongs to the step
    before; at the beginning of a game, to the first step."""

    def _make(self, make):
        super()._make(lambda: self._preprocessed(make))
        self.lives, self.earned_before = [0] * self.count, [0.0] * self.count

    @staticmethod
    def _preprocessed(make):
        wrappers = importlib.import_module("gymnasium.wrappers")
        return wrappers.AtariPreprocessing(make(frameskip=1))

    def _lives(self, index):
        return self.all[index].unwrapped.ale.lives()

    def _fire(self, index):
        """What a step of FIRE gives; None: the game has no such button."""
        meanings = self.all[index].unwrapped.get_action_meanings()
        if "FIRE" not in meanings:
            return None
        return self._call(self.first + index, "step", lambda: self.all[index].step(meanings.index("FIRE")))

    def _first_state(self, index, seed):
        value, info = super()._first_state(index, seed)
        fired = self._fire(index)
        self.lives[index] = self._lives(index)
        if fired is None or fired[2] or fired[3]:
            self.earned_before[index] = 0.0
            return value, info
        value, self.earned_before[index], _, _, info = fired
        return value, info

    def _outcome(self, index, value, reward, terminated, truncated, info):
        lives = self._lives(index)
        lost = lives < self.lives[index] and not terminated and not truncated
        if lost:
            fired = self._fire(index)
            if fired is not None:
                value, more, terminated, truncated, info = fired
                reward += more
        self.lives[index] = self._lives(index)
        reward, self.earned_before[index] = reward + self.earned_before[index], 0.0
        value, reward, flags, mask, metrics = super()._outcome(index, value, reward, terminated, truncated, info)
        return value, reward, flags | (self.LIFE_LOST if lost else 0), mask, metrics


class Vector(Environments):
    """A gymnasium.vector.VectorEnv, which steps all of its environments at once."""

    at_once = True

    def _make(self, make):
        if self.renews:
            raise Failure(INVALID, f"{self.name}: expected false for /environment/renew: a VectorEnv resets some environments "
                                   "and keeps others")  # fmt: skip
        self.size = self.count if self.at_once else 1  # the environments of each VectorEnv
        self.all = []
        for first in range(self.first, self.first + self.count, self.size):
            self.all.append(self._call(first, "making it", lambda: make(num_envs=self.size)))
            self._check_kind(self.all[-1])
            mode = getattr(self.all[-1].metadata.get("autoreset_mode"), "name", None)
            if mode != "DISABLED":
                raise Failure(INVALID, f"{self.name}: metadata['autoreset_mode'] is {mode}: expected DISABLED")

    def _check_kind(self, one):
        gymnasium = importlib.import_module("gymnasium")
        if not isinstance(one, gymnasium.vector.VectorEnv):
            raise Failure(INVALID, f"{self.name}: it has the argument num_envs: expected it to make a VectorEnv")

    def _one(self):
        spec = getattr(self.all[0], "spec", None)
        return self.all[0], getattr(spec, "max_episode_steps", None) or 0

    def _space(self, one, name):
        return super()._space(one, "single_" + name)

    def _picture(self, index):
        return self.all[index].render()[0]

    @staticmethod
    def _info(infos, index):
        return {
            name: value_at(values, index)
            for name, values in infos.items()
            if isinstance(values, (dict, tuple)) or np.ndim(values) > 0
        }

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
                yield self._observation(index, value_at(values, at)), self._mask(index, self._info(infos, at))

    def step(self, which, rows):
        if self.at_once and len(which) < self.count:
            raise Failure(INVALID, f"{self.name}: all of its environments are stepped at once: expected "
                                   '"steps" for /rollout/mode')  # fmt: skip
        rows = iter(rows)
        for first, one, own in self._parts(which):
            actions = stacked([self.action.convert(row) for _, row in zip(own, rows)])
            *results, infos = self._call(first, "step", lambda: one.step(actions))
            for index in own:
                at = index % self.size
                yield self._outcome(index, *(value_at(result, at) for result in results), self._info(infos, at))


def value_at(values, at):
    """One environment's value out of a VectorEnv's, which is nested as its space is."""
    if isinstance(values, dict):
        return {key: value_at(one, at) for key, one in values.items()}
    if isinstance(values, tuple):
        return tuple(value_at(one, at) for one in values)
    return values[at]


def stacked(values):
    """A VectorEnv's value out of those of its environments."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(parts) for parts in zip(*values))
    return np.stack(values)


class Apart(Vector):
    """A VectorEnv for each environment, so that they can end one by one."""

    at_once = False


class Parallel(Environments):
    """PettingZoo's environments for agents that act at the same time; those for agents that take turns become such by
    PettingZoo's own conversion. All agents have the same spaces. An agent that is not there has a row of zeros."""

    def _check_kind(self, one):
        if not hasattr(one, "possible_agents") or not callable(getattr(one, "observation_space", None)):
            raise Failure(INVALID, f"{self.name}: expected a pettingzoo.ParallelEnv or AECEnv")

    def _make(self, make):
        super()._make(lambda: self._parallel(make()))
        one = self.all[0]
        self.names = list(one.possible_agents)
        self.agents = len(self.names)
        self.masked_within = self._holds_mask(one.observation_space(self.names[0]))

    @staticmethod
    def _parallel(one):
        """One whose agents act at the same time."""
        pettingzoo = importlib.import_module("pettingzoo")
        if not isinstance(one, pettingzoo.AECEnv):
            return one
        conversions = importlib.import_module("pettingzoo.utils.conversions")
        if one.metadata.get("is_parallelizable"):
            return conversions.aec_to_parallel(one)
        return conversions.turn_based_aec_to_parallel(one)

    def _one(self):
        return self.all[0], 0

    def _space(self, one, name):
        found = [getattr(one, name)(agent) for agent in self.names]
        for agent, space in zip(self.names, found):
            if space != found[0]:
                raise Failure(INVALID, f"the agents {self.names[0]} and {agent} have different spaces, {found[0]} and {space}: "
                                       f"expected one {name} (SuperSuit's pad_observations_v0 and pad_action_space_v0 "
                                       "make them equal)")  # fmt: skip
        return found[0]["observation"] if name == "observation_space" and self.masked_within else found[0]

    @staticmethod
    def _holds_mask(space):
        """Whether an observation is a dict of "observation" and "action_mask", as in PettingZoo's classic games."""
        members = getattr(space, "spaces", None)
        return isinstance(members, dict) and set(members) == {"observation", "action_mask"}

    def _shows_mask(self):
        if self.masked_within:
            return True
        infos = self._first_state(0, 0)[1]
        return any("action_mask" in info for info in infos.values())

    def _flat_mask(self, index, info):
        """An agent that is not to move has no choice at all; then each is allowed."""
        mask = super()._flat_mask(index, info)
        return mask if mask.any() else np.ones_like(mask)

    def _row(self, index, agent, observations, infos):
        """The observation and the mask of one agent."""
        value, info = observations[agent], infos.get(agent, {})
        if self.masked_within:
            try:
                value, info = value["observation"], {**info, "action_mask": value["action_mask"]}
            except (KeyError, TypeError):
                raise self._broken(index, f"{agent}'s observation has no observation and action_mask") from None
        return self._observation(index, value), self._mask(index, info)

    def _rows(self, index, present, observations, infos):
        """The rows of the agents that are present; zeros, and masks that allow all, of the others."""
        shape = (self.agents, *self.observation.shape)
        if self.frames > 1:
            shape = (*shape[:-1], shape[-1] // self.frames)
        rows = np.zeros(shape, self.observation.dtype)
        masks = np.ones((self.agents, self.choices), "u1") if self.has_mask else None
        for i, agent in enumerate(self.names):
            if agent in present:
                if agent not in observations:
                    raise self._broken(index, f"{agent} is present, and has no observation")
                rows[i], mask = self._row(index, agent, observations, infos)
                if masks is not None:
                    masks[i] = mask
        return rows, masks

    def reset(self, which, episode, step):
        for index in which:
            observations, infos = self._first_state(index, self._seed(index, episode, step))
            if set(self.all[index].agents) != set(self.names):
                raise self._broken(index, f"reset begins with the agents {self.all[index].agents}: expected all of {self.names}")
            yield self._rows(index, self.names, observations, infos)

    def _step(self, index, row):
        one = self.all[index]
        actions = {agent: self.action.convert(row[i]) for i, agent in enumerate(self.names) if agent in one.agents}
        result = self._call(self.first + index, "step", lambda: one.step(actions))
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, dict) for part in result):
            raise self._broken(index, "step returned no five dicts: observations, rewards, terminations, truncations, infos")
        observations, rewards, terminations, truncations, infos = result
        present = set(actions) | set(one.agents)  # those that were there, and those that have come
        rows, masks = self._rows(index, present, observations, infos)
        earned, flags, metrics = np.zeros(self.agents, "<f4"), np.zeros(self.agents, "u1"), [[]] * self.agents
        for i, agent in enumerate(self.names):
            if agent not in present:
                flags[i] = self.ABSENT
                continue
            ended = terminations.get(agent, False)
            cut = truncations.get(agent, False) or (not ended and agent not in one.agents)
            earned[i], flags[i], metrics[i] = self._earned(index, rewards.get(agent, 0.0), ended, cut, infos.get(agent, {}))
        return rows, earned, flags, masks, metrics


class Pool(Environments):
    """EnvPool's environments, which are stepped at once, too, but which also step in part. They draw from one seed, so
    a first state does not depend on the episode alone."""

    can_seed = False
    at_once = True

    def _make(self, make):
        if self.renews:
            raise Failure(INVALID, f"{self.name}: expected false for /environment/renew: a pool makes its environments at once")
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


def imported(name):
    module, member = name.split(":")
    return getattr(importlib.import_module(module), member)


def find_class(name, evaluation):
    """Returns the class of this file that steps it, and what makes it."""
    gymnasium = importlib.import_module("gymnasium")
    made = imported(name)
    is_class = isinstance(made, type)
    is_vector = issubclass(made, gymnasium.vector.VectorEnv) if is_class else accepts(made, "num_envs", any_name=False)
    return (Apart if evaluation else Vector) if is_vector else Environments, made


def find_id(name):
    """The same, for an id of Gymnasium's or EnvPool's."""
    gymnasium = importlib.import_module("gymnasium")
    if name.startswith("envpool/"):
        pool = importlib.import_module("envpool")
        return Pool, lambda **more: pool.make_gymnasium(name.split("/", 1)[1], **more)
    if name.startswith("ALE/"):
        gymnasium.register_envs(import_package("ale_py"))
    return Environments, lambda **more: gymnasium.make(name, **more)


def find_game(name):
    """The same, for a game of ALE's."""
    gymnasium = importlib.import_module("gymnasium")
    gymnasium.register_envs(import_package("ale_py"))
    import_package("cv2", "opencv-python-headless")
    if not str(gymnasium.spec(name).entry_point).startswith("ale_py"):
        raise Failure(INVALID, f"/environment/atari: {name} is no game of ALE's: expected an id such as ALE/Pong-v5")
    return Atari, lambda **more: gymnasium.make(name, **more)


def key_of(job):
    """The key of the job that names its environment, and what it says."""
    said = job["environment"]
    key = next(key for key in ("gymnasium", "class", "pettingzoo") if said[key] is not None)
    return key, said[key]


def find_environments(job, evaluation=False):
    """Imports what the job names. Returns the class of this file that steps it, and what makes it."""
    key, name = key_of(job)
    try:
        if key == "class":
            return find_class(name, evaluation)
        if key == "pettingzoo":
            import_package("pettingzoo")
            return Parallel, imported(name)
        return find_game(name) if job["environment"]["atari"] else find_id(name)
    except Failure:
        raise
    except Exception as why:
        raise Failure(INVALID, f"/environment/{key}: {name}: {last_lines(why)}") from why


def accepts(function, argument, any_name=True, otherwise=False):
    """Whether a class or a function has this argument, or, unless `any_name` is false, takes any. `otherwise`: what counts
    where nobody can tell."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return otherwise
    return any(one.name == argument or (any_name and one.kind == one.VAR_KEYWORD) for one in known)


def open_environments(job, first, count, progress, evaluation=False, render_mode=None):
    """`render_mode`: what render will be asked for; None: nothing."""
    (_, name), options = key_of(job), job["environment"]["options"]
    kind, make = find_environments(job, evaluation)
    if render_mode is not None and accepts(make, "render_mode"):
        options = {**options, "render_mode": render_mode}
    title = f"{name}, evaluation" if evaluation else name
    environments = kind(job, title, lambda **more: make(**options, **more), first, count, progress)
    if render_mode is not None and render_mode not in environments.render_modes():
        raise Failure(UNAVAILABLE, f"{name} draws no {render_mode}: its metadata['render_modes'] is "
                                   f"{environments.render_modes()}")  # fmt: skip
    return environments
