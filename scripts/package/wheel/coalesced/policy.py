"""Loads the policy of a checkpoint: as a torch.nn.Module where PyTorch is installed, else with NumPy alone.

Both compute the same outputs, which are those of `coalesced export --onnx`:

    logits (batch, sum of choices)   of choices, component after component
    mean, std (batch, components)    of a Gaussian
    value (batch, 1)                 of ppo and a2c
    values (batch, choices)          of dqn
    action (batch, components)       of sac and td3, without exploration, within the bounds

The parameters have Stable-Baselines3's names. An observation has the shape that the checkpoint's environment.json names,
with the job's /environment/frames joined along its last axis: a choice is one-hot, and an image has its channels last. One
with parts is a dict by their names, or the row of all parts, as gymnasium.spaces.flatten makes it of vectors. With the
environment's observation_space, predict takes observations as the environment gives them.
"""
import importlib
import importlib.util
import json
import os
import struct
import sys

import numpy as np

NORMALIZER_EPSILON, EXPLORATION_EPSILON, CLIP_MEAN = 1e-8, 1e-6, 2.0
STRIDES = (4, 2, 1)  # of the CNN's convolutions


# ---- files ----
def read_safetensors(path):
    """A dict of arrays by name. Numbers are float32, as the program writes them."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        head, data = json.loads(file.read(size)), file.read()
    tensors = {}
    for name, facts in head.items():
        if name == "__metadata__":
            continue
        kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
        if facts["dtype"] not in kinds:
            raise ValueError(f"{path}: {name} holds {facts['dtype']}: expected one of {', '.join(kinds)}")
        begin, end = facts["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], kinds[facts["dtype"]]).reshape(facts["shape"]).copy()
    return tensors


def find_checkpoint(path):
    """The checkpoint itself, or a run's newest one. A folder without a number's name is none that a run goes on from."""
    if os.path.exists(os.path.join(path, "manifest.json")):
        return path
    folder = os.path.join(path, "checkpoints")
    numbers = [name for name in os.listdir(folder) if name.isdigit()] if os.path.isdir(folder) else []
    if not numbers:
        raise FileNotFoundError(f"{path}: expected a run with checkpoints, or a checkpoint, RUN/checkpoints/NUMBER")
    return os.path.join(folder, max(numbers, key=int))


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# ---- arithmetic: the same functions of NumPy and of PyTorch ----
class NumpyMath:
    tanh, exp, sqrt, clip = staticmethod(np.tanh), staticmethod(np.exp), staticmethod(np.sqrt), staticmethod(np.clip)

    @staticmethod
    def array(values):
        return np.asarray(values, np.float32)

    @staticmethod
    def relu(x):
        return np.maximum(x, 0)

    @staticmethod
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def linear(x, weight, bias):
        return x @ weight.T + bias

    @staticmethod
    def convolve(x, weight, bias, stride):
        windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
        return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True) + bias[:, None, None]

    @staticmethod
    def channels_first(x):
        return np.moveaxis(x, -1, 1)

    @staticmethod
    def split(x, count):
        return np.split(x, count, axis=-1)

    @staticmethod
    def join(features):
        return np.concatenate(features, axis=1)

    @staticmethod
    def expand(row, like):
        return np.broadcast_to(row, like.shape)


# ---- the networks ----
class Network:
    """Outputs out of observations. `names`: of all parameters and statistics; `parameters`: a function that finds the one of
    a name."""

    def __init__(self, math, names, parameters, job, environment):
        self.math, self.names, self.of, self.job, self.environment = math, names, parameters, job, environment
        self.activation = math.tanh if job["policy"]["activation"] == "tanh" else math.relu
        self.algorithm = job.get("algorithm", {}).get("name", "reinforce")
        self.use_sde = job.get("algorithm", {}).get("use_sde", False)
        self.cell = job["policy"].get("recurrent")

    def linear(self, name, x):
        return self.math.linear(x, self.of(name + ".weight"), self.of(name + ".bias"))

    def chain(self, name, x, last=None):
        """Hidden layers NAME.0, NAME.2, … up to `last`, which is left out."""
        layer = 0
        while f"{name}.{layer}.weight" in self.names and layer != last:
            x = self.activation(self.linear(f"{name}.{layer}", x))
            layer += 2
        return x

    def last_of(self, name):
        return max(int(one[len(name) + 1 :].split(".")[0]) for one in self.names if one.startswith(name + "."))

    def observe(self, observations):
        """What the network reads: an array, or, of parts with images among them, a dict of arrays."""
        parts = self.environment["observation"].get("parts")
        if not parts:
            return self._observe_one(observations, self.environment["observation"], 0)
        seen, first = {}, 0
        for part in parts:
            seen[part["name"]] = self._observe_one(observations[part["name"]], part, first)
            first += 0 if part["dtype"] == "uint8" else elements_of(part)
        return seen if self._has_cnn() else self.math.join(list(seen.values()))

    def _has_cnn(self):
        return self.job["policy"].get("network") == "cnn"

    def _observe_one(self, observations, space, first):
        """An image, or a vector, whose numbers have the statistics from number `first` on."""
        x = self.math.array(observations)
        is_image = space["dtype"] == "uint8"
        if is_image:
            x = x / 255
        elif "obs_rms.mean" in self.names:
            mean, variance = (
                self.of(name)[first : first + elements_of(space)].reshape(tuple(space["shape"])) for name in ("obs_rms.mean", "obs_rms.var")
            )
            clip = self.job["normalize"]["clip_obs"]
            x = self.math.clip((x - mean) / self.math.sqrt(variance + NORMALIZER_EPSILON), -clip, clip)
        if self._has_cnn() and (is_image or "parts" not in self.environment["observation"]):
            return self.math.channels_first(x)
        return x.reshape(len(x), -1)

    def images(self, name, x):
        """The features of Stable-Baselines3's NatureCNN, or of its CombinedExtractor; x itself where there is none of this
        name."""
        if isinstance(x, dict):
            return self.math.join([self.images(f"{name}.extractors.{part}", one) for part, one in x.items()])
        if f"{name}.cnn.0.weight" not in self.names:
            return x
        for layer, stride in zip((0, 2, 4), STRIDES):
            convolution = f"{name}.cnn.{layer}"
            x = self.math.relu(self.math.convolve(x, self.of(convolution + ".weight"), self.of(convolution + ".bias"), stride))
        return self.math.relu(self.linear(f"{name}.linear.0", x.reshape(len(x), -1)))

    def remember(self, name, x, state):
        """One step of PyTorch's nn.LSTM or nn.GRU. `state`: (layers, batch, units) of h, and of c; what is behind the step is
        put in its place."""
        layer = 0
        while f"{name}.weight_ih_l{layer}" in self.names:
            inputs = self.math.linear(x, self.of(f"{name}.weight_ih_l{layer}"), self.of(f"{name}.bias_ih_l{layer}"))
            past = self.math.linear(state[0][layer], self.of(f"{name}.weight_hh_l{layer}"), self.of(f"{name}.bias_hh_l{layer}"))
            x = self._lstm(inputs, past, state, layer) if self.cell == "lstm" else self._gru(inputs, past, state, layer)
            layer += 1
        return x

    def _lstm(self, inputs, past, state, layer):
        i, f, g, o = self.math.split(inputs + past, 4)
        sigmoid = self.math.sigmoid
        state[1][layer] = sigmoid(f) * state[1][layer] + sigmoid(i) * self.math.tanh(g)
        state[0][layer] = sigmoid(o) * self.math.tanh(state[1][layer])
        return state[0][layer]

    def _gru(self, inputs, past, state, layer):
        (r, z, n), (past_r, past_z, past_n) = self.math.split(inputs, 3), self.math.split(past, 3)
        keep = self.math.sigmoid(z + past_z)
        new = self.math.tanh(n + self.math.sigmoid(r + past_r) * past_n)
        state[0][layer] = (1 - keep) * new + keep * state[0][layer]
        return state[0][layer]

    # -- states --
    def memories(self):
        """The modules that remember: the policy's, and the value's own."""
        return [name for name in (f"{self.cell}_actor", f"{self.cell}_critic") if f"{name}.weight_ih_l0" in self.names]

    def zero_state(self, batch):
        """By memory, the list of h, and of an LSTM c, each a list of layers."""
        state = {}
        for name in self.memories():
            layers = sum(one.startswith(f"{name}.weight_hh_l") for one in self.names)
            units = self.of(f"{name}.weight_hh_l0").shape[1]
            zeros = lambda: [self.math.array(np.zeros((batch, units))) for _ in range(layers)]
            state[name] = [zeros() for _ in range(2 if self.cell == "lstm" else 1)]
        return state

    # -- outputs --
    def outputs(self, observations, state):
        x = self.observe(observations)
        if self.algorithm == "dqn":
            return self._values(x)
        if self.algorithm in ("sac", "td3"):
            return self._squashed(x)
        return self._actor_critic(x, state)

    def _tutorial(self, x):
        """PyTorch's example of REINFORCE; its dropout is for training alone."""
        hidden = self.math.relu(self.linear("affine1", x))
        return {"logits": self.linear("affine2", hidden)}

    def _actor_critic(self, x, state):
        if "affine1.weight" in self.names:
            return self._tutorial(x)
        policy_image = self.images("features_extractor", x)
        features = policy_image
        if self.cell:
            features = self.remember(f"{self.cell}_actor", features, state[f"{self.cell}_actor"])
        remembered = features
        shared = "mlp_extractor.shared_net.0.weight" in self.names
        features = self.chain("mlp_extractor." + ("shared_net" if shared else "policy_net"), features)
        outputs = {}
        if self.environment["action"]["dtype"] == "int32":
            outputs["logits"] = self.linear("action_net", features)
        else:
            outputs["mean"] = self.linear("action_net", features)
            outputs["std"] = self._deviation(features, outputs["mean"])
        if "value_net.weight" in self.names:
            if not shared:
                inputs = self._value_inputs(x, policy_image, remembered, state)
                features = self.chain("mlp_extractor.value_net", inputs)
            outputs["value"] = self.linear("value_net", features)
        return outputs

    def _deviation(self, features, mean):
        deviation = self.math.exp(self.of("log_std"))
        if not self.use_sde:
            return self.math.expand(deviation, mean)
        return self.math.sqrt((features * features) @ (deviation * deviation) + EXPLORATION_EPSILON)

    def _value_inputs(self, x, image, remembered, state):
        shares_value = self.job["policy"].get("value_network") == "shared"
        if self.cell and (shares_value or self.job["policy"]["shared_lstm"]):
            return remembered
        if any(one.startswith("vf_features_extractor.") for one in self.names):
            image = self.images("vf_features_extractor", x)
        if not self.cell:
            return image
        if f"{self.cell}_critic.weight_ih_l0" in self.names:
            return self.remember(f"{self.cell}_critic", image, state[f"{self.cell}_critic"])
        return self.linear("critic", image)

    def _values(self, x):
        x = self.images("q_net.features_extractor", x)
        last = self.last_of("q_net.q_net")
        values = self.linear(f"q_net.q_net.{last}", self.chain("q_net.q_net", x, last))
        if self.job["policy"].get("dueling"):
            advantages = values[:, 1:]
            values = values[:, :1] + advantages - advantages.mean(1).reshape(-1, 1)
        return {"values": values}

    def _squashed(self, x):
        if self.algorithm == "td3":
            last = self.last_of("actor.mu")
            x = self.linear(f"actor.mu.{last}", self.chain("actor.mu", x, last))
        elif self.use_sde:
            x = self.math.clip(self.linear("actor.mu.0", self.chain("actor.latent_pi", x)), -CLIP_MEAN, CLIP_MEAN)
        else:
            x = self.linear("actor.mu", self.chain("actor.latent_pi", x))
        low, high = bounds_of(self.environment["action"])
        half, middle = self.math.array((high - low) / 2), self.math.array((high + low) / 2)
        return {"action": self.math.tanh(x) * half + middle}


def elements_of(space):
    return int(np.prod(space["shape"], dtype=np.int64))


def members_of(observation, name=""):
    """The leaves of nested dicts and tuples by the names of parts."""
    if not isinstance(observation, (dict, tuple)):
        return {name: observation}
    found = {}
    for key, member in observation.items() if isinstance(observation, dict) else enumerate(observation):
        found.update(members_of(member, f"{name}.{key}" if name else str(key)))
    return found


def as_described(value, space, what):
    """The array of a space's shape, or a batch of them, and whether it is one."""
    value, rank = np.asarray(value), len(space["shape"])
    if list(value.shape[value.ndim - rank :]) != space["shape"] or value.ndim > rank + 1:
        raise ValueError(f"{what} has the shape {value.shape}: expected {tuple(space['shape'])}, or a batch of these")
    return value, value.ndim == rank


def parts_of_rows(space, rows):
    """A dict of the parts of a batch of rows: floats, or bytes in which each part begins at a multiple of 4."""
    parts, at, packed = {}, 0, space["dtype"] == "uint8"
    rows = np.ascontiguousarray(rows, "u1" if packed else "<f4")
    for part in space["parts"]:
        is_image = part["dtype"] == "uint8"
        width = elements_of(part) * (4 if packed and not is_image else 1)
        values = np.ascontiguousarray(rows[:, at : at + width])
        values = values.view("<f4") if packed and not is_image else values
        parts[part["name"]] = values.reshape(len(rows), *part["shape"])
        at += -(-width // 4) * 4 if packed else width
    return parts


def rows_of(observations):
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)


def converter_of(observation_space):
    """What makes rows of an environment's observations, by the rules of its workers: worker/python/spaces.py."""
    here = os.path.dirname(os.path.realpath(__file__))
    for folder in (os.path.join(here, "lib", "coalesced"), os.path.join(here, "../../../../worker/python")):
        if os.path.exists(os.path.join(folder, "spaces.py")) and folder not in sys.path:
            sys.path.append(folder)
    missing = importlib.import_module("worker_session").MISSING
    if missing:
        raise ImportError(f"observation_space: {missing}")
    return importlib.import_module("spaces").Space.of_observation(observation_space, 1).convert


def pick(observations, i):
    """Observation i of a batch in a dict, a tuple or an array."""
    if isinstance(observations, dict):
        return {key: pick(member, i) for key, member in observations.items()}
    if isinstance(observations, tuple):
        return tuple(pick(member, i) for member in observations)
    return observations[i]


def bounds_of(space):
    """Of actions: every bound is finite."""
    return tuple(np.broadcast_to(np.asarray(space[side], np.float64), elements_of(space)) for side in ("low", "high"))


# ---- what both forms of a policy have ----
class Acting:
    """predict and its state, over `outputs`, which gives NumPy arrays by name. `space`: the environment's, whose observations
    `convert` makes rows of; None: they are rows already, or dicts of parts."""

    space = convert = None

    def predict(self, observation, state=None, episode_start=None, deterministic=True, action_masks=None):
        """The action for an observation, or the actions for a batch of them, and the state behind the step, as
        Stable-Baselines3's predict. A policy without memory has the state None. `episode_start`: a truth for each row,
        whether an episode begins there. `action_masks`: (sum of choices), or a row of them for each observation."""
        batch, is_one = self._batch(observation)
        state = self._begin(state, episode_start, rows_of(batch))
        outputs = self._outputs(batch, state)
        actions = self._choose(outputs, deterministic, action_masks)
        return (actions[0] if is_one else actions), (state or None)

    def _batch(self, observation):
        """A batch out of one observation or a batch of them, and whether it was one."""
        space = self.environment["observation"]
        if self.space is not None:
            is_one = self.space.contains(observation)
            count = 1 if is_one else len(next(iter(members_of(observation).values())))
            rows = np.stack([self.convert(observation if is_one else pick(observation, i)) for i in range(count)])
        elif not isinstance(observation, (dict, tuple)):
            rows, is_one = as_described(observation, space, "an observation")
            rows = rows[np.newaxis] if is_one else rows
        else:
            return self._batch_of_parts(members_of(observation))
        return (parts_of_rows(space, rows) if "parts" in space else rows), is_one

    def _batch_of_parts(self, members):
        batch, ones = {}, set()
        for part in self.environment["observation"].get("parts", []):
            name = part["name"]
            if name not in members:
                raise ValueError(f"an observation has the parts {', '.join(members)}: expected a part {name}, too")
            value, is_one = as_described(members[name], part, f"the part {name} of an observation")
            batch[name] = value[np.newaxis] if is_one else value
            ones.add(is_one)
        if len(ones) != 1 or len({len(value) for value in batch.values()}) != 1:
            raise ValueError("an observation is a dict of parts of several batch sizes, or the environment's has no parts: "
                             "expected one size for all parts, or an array")  # fmt: skip
        return batch, ones.pop()

    def _begin(self, state, episode_start, rows):
        fresh = self.network.zero_state(rows)
        if not fresh or state is None:
            return fresh
        starts = np.zeros(rows, bool) if episode_start is None else np.broadcast_to(np.asarray(episode_start, bool), rows)
        keep = self.network.math.array(~starts[:, np.newaxis])
        return {name: [[layer * keep for layer in part] for part in parts] for name, parts in state.items()}

    def _choose(self, outputs, deterministic, action_masks):
        space = self.environment["action"]
        if "action" in outputs:
            return outputs["action"].reshape(-1, *space["shape"])
        if "mean" in outputs:
            actions = outputs["mean"]
            if not deterministic:
                actions = self.random.normal(actions, outputs["std"]).astype(np.float32)
            return np.clip(actions, *bounds_of(space)).astype(np.float32).reshape(-1, *space["shape"])
        logits = outputs["values"] if "values" in outputs else outputs["logits"]
        if action_masks is not None:
            logits = np.where(np.broadcast_to(np.asarray(action_masks, bool), logits.shape), logits, -np.inf)
        if not deterministic and "values" not in outputs:
            logits = logits + self.random.gumbel(size=logits.shape)  # its greatest one is a draw by softmax
        choices = np.broadcast_to(space["choices"], elements_of(space))
        parts = np.split(logits, np.cumsum(choices)[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], 1).reshape(-1, *space["shape"])


class NumpyPolicy(Acting):
    """A policy without PyTorch. Call it with a batch of observations for the outputs."""

    def __init__(self, tensors, job, environment):
        self.tensors, self.job, self.environment = tensors, job, environment
        self.random = np.random.default_rng(0)
        self.network = Network(NumpyMath, set(tensors), tensors.__getitem__, job, environment)

    def _outputs(self, batch, state):
        return self.network.outputs(batch, state)

    def __call__(self, observations, state=None):
        batch, _ = self._batch(observations)
        return self._outputs(batch, state or self.network.zero_state(rows_of(batch)))


def load_policy(checkpoint, torch=None, observation_space=None):
    """The policy of a checkpoint's folder, RUN/checkpoints/NUMBER, or of a run's newest checkpoint. `torch`: whether it is a
    torch.nn.Module; None: where PyTorch is installed. `observation_space`: the environment's, of Gymnasium; then predict
    takes its observations, single ones or batches of them."""
    folder = find_checkpoint(os.fspath(checkpoint))
    description = os.path.join(folder, "environment.json")
    if not os.path.exists(description):
        raise FileNotFoundError(f"{folder}: there is no environment.json in it: expected a checkpoint of a job of the kind "
                                "reinforce")  # fmt: skip
    job = read_json(os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(folder))), "job.json"))
    tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
    if torch is None:
        torch = importlib.util.find_spec("torch") is not None
    if torch:
        from .torch_policy import TorchPolicy as kind
    else:
        kind = NumpyPolicy
    policy = kind(tensors, job, read_json(description))
    if observation_space is not None:
        if job["environment"].get("frames", 1) not in (None, 1):
            raise ValueError("observation_space: expected None: the policy reads /environment/frames, which the caller joins")
        policy.space, policy.convert = observation_space, converter_of(observation_space)
    return policy
