#!/usr/bin/env python3
"""Records steps of PPO on images in PyTorch into test/golden/ppo_images_CASE.txt, one file for each of CASES.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/ppo_images.py [CASE]...

problem.py explains the numbers and the files; test/worker/model/test_policy_images_golden.c reads them. The policy is
the CNN of worker/model/policy_networks.c on images of 36 x 44 pixels and 2 channels, with a value that shares its features or
has a CNN of its own, and three choices or two floats. In the cases of PARTS the image is one of bytes, between vectors
of 3 and 2 floats, as Stable-Baselines3's CombinedExtractor joins them, and each output has a hidden layer of 6 units. Each of the STEPS is one minibatch of 7 of the 10 rows, the rows
(3 i + step) mod 10, ascending where there is a memory. The formulas are those of kernels/policy/surrogate.h, written here with autograd alone; in the case
choice_a2c the loss and the optimizer are A2C's.

The cases of MEMORIES have LSTMs of 8 units between the CNN and the outputs, as sb3-contrib's RecurrentPPO. Row r is step
r // 2 of environment r % 2; STARTS begin episodes. Where the row before is not in the minibatch, the state is the row's.

Each case's sequence begins at a seed that keeps ReLUs and clips away from their kinks. Parameters are numbers times
sqrt(2 / fan_in), biases times 0.1, log_std times 0.5. Then come, of all rows: observations (height, width, channels),
actions (indices, or numbers), old log-probabilities (0.2 times numbers, less 1.1 or 2), old values, advantages and
returns (numbers; returns times 2). With parts the observations are the vectors of 3 (numbers), the images (indices up to
256), and the vectors of 2. With memories also states (numbers): h and c of each memory and layer.

Recorded of each step: the output `losses` (see LOSSES), the clipped gradients, the updates.
"""
import functools
import math
import sys

import torch
from problem import WAYS, Numbers, bound, record, watch

HEIGHT, WIDTH, CHANNELS, ROWS, MINIBATCH, STEPS = 36, 44, 2, 10, 7, 3
LOSSES = ["loss", "policy", "value", "entropy", "kl", "clip_fraction", "gradient_norm"]
CASES = {  # whether actions are floats, the value shares the features, it is A2C; the norm to clip to; the seed
    "choice_shared": (False, True, False, 0.5, 14),
    "choice_separate": (False, False, False, 100.0, 7),
    "floats_shared": (True, True, False, 0.5, 18),
    "floats_separate": (True, False, False, 0.5, 17),
    "choice_a2c": (False, True, True, 0.5, 12),
    "parts_shared": (False, True, False, 0.5, 1),
    "parts_separate": (True, False, False, 0.5, 7),
    "memory_own": (False, False, False, 0.5, 30),
    "memory_linear": (True, True, False, 0.5, 31),
    "memory_detached": (False, True, False, 100.0, 38),
    "memory_shared": (True, True, False, 0.5, 30),
}
MEMORIES = {  # what the value reads; layers
    "memory_own": ("own", 1),
    "memory_linear": ("linear", 2),
    "memory_detached": ("detached", 1),
    "memory_shared": ("shared", 2),
}
PARTS = {"parts_shared", "parts_separate"}
UNITS, COLUMNS, STARTS = 8, 2, {3, 6}


class Extractor(torch.nn.Module):
    def __init__(self, features=512):
        super().__init__()
        self.cnn = torch.nn.Sequential(
            torch.nn.Conv2d(CHANNELS, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU(),
            torch.nn.Conv2d(64, 64, 3, 1), torch.nn.ReLU(), torch.nn.Flatten())  # fmt: skip
        self.linear = torch.nn.Sequential(torch.nn.Linear(128, features), torch.nn.ReLU())

    def forward(self, x):
        return self.linear(self.cnn(x))


class Joined(torch.nn.Module):
    """Of x, (before, image, behind)."""

    def __init__(self):
        super().__init__()
        self.extractors = torch.nn.ModuleDict({"camera": Extractor(256)})

    def forward(self, x):
        before, image, behind = x
        return torch.cat([before, self.extractors["camera"](image), behind], 1)


class OfParts(torch.nn.Module):
    """The modules are in the order of the parameters of worker/model/policy_parameters.h."""

    def __init__(self, floats, shared):
        super().__init__()
        if floats:
            self.log_std = torch.nn.Parameter(torch.zeros(2))
        self.mlp_extractor = torch.nn.Module()
        self.mlp_extractor.policy_net = torch.nn.Sequential(torch.nn.Linear(3 + 256 + 2, 6), torch.nn.Tanh())
        self.mlp_extractor.value_net = torch.nn.Sequential(torch.nn.Linear(3 + 256 + 2, 6), torch.nn.Tanh())
        self.action_net = torch.nn.Linear(6, 2 if floats else 3)
        self.value_net = torch.nn.Linear(6, 1)
        self.features_extractor = Joined()
        if not shared:
            self.vf_features_extractor = Joined()
        self.floats, self.shared = floats, shared

    def read(self, batch):
        x = batch["before"], batch["x"], batch["behind"]
        features = self.features_extractor(x)
        of_value = features if self.shared else self.vf_features_extractor(x)
        return self.mlp_extractor.policy_net(features), self.mlp_extractor.value_net(of_value)


class Policy(torch.nn.Module):
    def __init__(self, floats, shared, critic, layers):
        super().__init__()
        read = 512 if critic is None else UNITS
        if floats:
            self.log_std = torch.nn.Parameter(torch.zeros(2))
        self.features_extractor = Extractor()
        if not shared:
            self.vf_features_extractor = Extractor()
        self.action_net = torch.nn.Linear(read, 2 if floats else 3)
        self.value_net = torch.nn.Linear(read, 1)
        if critic is not None:
            self.lstm_actor = torch.nn.LSTM(512, UNITS, layers)
        if critic == "own":
            self.lstm_critic = torch.nn.LSTM(512, UNITS, layers)
        if critic == "linear":
            self.critic = torch.nn.Linear(512, UNITS)
        self.floats, self.shared, self.reads, self.layers = floats, shared, critic, layers

    def remember(self, lstm, features, rows, states):
        """What the LSTM makes of the rows, which ascend; `states` are before them."""
        last, out = {}, []
        for x, row, state in zip(features, rows.tolist(), states):
            state = state.reshape(self.layers, 2, 1, UNITS).transpose(0, 1).contiguous().unbind()
            if row - COLUMNS in last:
                state = last[row - COLUMNS]
            if row in STARTS:
                state = [torch.zeros_like(part) for part in state]
            y, last[row] = lstm(x.reshape(1, 1, -1), tuple(state))
            out.append(y.flatten())
        return torch.stack(out)

    def read(self, batch):
        """What the outputs and the value are computed from."""
        features = self.features_extractor(batch["x"])
        of_value = features if self.shared else self.vf_features_extractor(batch["x"])
        if self.reads is None:
            return features, of_value
        states = batch["states"].split(2 * self.layers * UNITS, 1)
        policy = self.remember(self.lstm_actor, features, batch["rows"], states[0])
        if self.reads == "own":
            return policy, self.remember(self.lstm_critic, of_value, batch["rows"], states[1])
        if self.reads == "linear":
            return policy, self.critic(of_value)
        return policy, policy if self.reads == "shared" else policy.detach()


def judge(policy, batch):
    """The actions' log-probabilities, the entropies, the values."""
    x, actions = batch["x"], batch["actions"]
    of_policy, of_value = policy.read(batch)
    outputs = policy.action_net(of_policy)
    value = policy.value_net(of_value)[:, 0]
    if policy.floats:
        distance = (actions - outputs) / policy.log_std.exp()
        each = -(distance**2) / 2 - policy.log_std - math.log(2 * math.pi) / 2
        entropy = (policy.log_std + math.log(2 * math.pi * math.e) / 2).sum().expand(len(x))
        return each.sum(1), entropy, value
    log = torch.log_softmax(outputs, dim=1)
    return log[torch.arange(len(x)), actions], -(log.exp() * log).sum(1), value


def load(policy, draw):
    for name, parameter in policy.named_parameters():
        scale = torch.tensor(0.5 if name == "log_std" else 0.1)
        if parameter.dim() > 1:
            scale = bound(2, parameter[0].numel())
        parameter.data = draw.take(*parameter.shape) * scale


def losses_of(policy, batch, plain, tell):
    """The loss, and all of LOSSES but the norm. Tells the distances to the kinks of the clips."""
    log_probability, entropy, value = judge(policy, batch)
    advantage = batch["advantages"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    difference = log_probability - batch["old"]
    ratio = difference.exp()
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    if plain:
        policy_loss = -(log_probability * advantage).mean()
    moved = value - batch["old_values"]
    tell(torch.cat([ratio - 0.8, ratio - 1.2, moved - 0.3, moved + 0.3])[:, None])
    near = batch["old_values"] + moved.clamp(-0.3, 0.3)
    value_loss = ((near - batch["returns"]) ** 2).mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
    kl = (ratio - 1 - difference).mean()
    return [loss, policy_loss, value_loss, entropy.mean(), kl, ((ratio - 1).abs() > 0.2).to(loss.dtype).mean()]


def run(case, dtype, way, seen):
    floats, shared, plain, max_norm, seed = CASES[case]
    layout, library, nudge = way
    draw = Numbers(seed)
    critic, layers = MEMORIES.get(case, (None, 0))
    policy = OfParts(floats, shared) if case in PARTS else Policy(floats, shared, critic, layers)
    load(policy, draw)
    policy = policy.to(dtype).to(memory_format=layout)
    watch(policy, seen)
    data = {"before": draw.take(ROWS, 3).to(dtype)} if case in PARTS else {}
    images = (draw.indices(256, ROWS, HEIGHT, WIDTH, CHANNELS).to(dtype) / 255
              if case in PARTS else draw.take(ROWS, HEIGHT, WIDTH, CHANNELS).to(dtype))  # fmt: skip
    data["x"] = (images.permute(0, 3, 1, 2) * (1 + nudge * 2.0**-23)).contiguous(memory_format=layout)
    if case in PARTS:
        data["behind"] = draw.take(ROWS, 2).to(dtype)
    data["actions"] = draw.take(ROWS, 2).to(dtype) if floats else draw.indices(3, ROWS)
    data["old"] = (torch.tensor(0.2) * draw.take(ROWS) - torch.tensor(2.0 if floats else 1.1)).to(dtype)
    for name in "old_values", "advantages":
        data[name] = draw.take(ROWS).to(dtype)
    data["returns"] = 2 * draw.take(ROWS).to(dtype)
    data["rows"] = torch.arange(ROWS)
    if critic is not None:
        data["states"] = draw.take(ROWS, (2 if critic == "own" else 1) * layers * 2 * UNITS).to(dtype)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.001, eps=1e-5)
    if plain:
        optimizer = torch.optim.RMSprop(policy.parameters(), lr=0.0001, eps=1e-5)
    with torch.backends.mkldnn.flags(enabled=library):
        for step in range(1, STEPS + 1):
            rows = (3 * torch.arange(MINIBATCH) + step) % ROWS
            if critic is not None:
                rows = rows.sort().values
            optimizer.zero_grad()
            batch = {name: values[rows] for name, values in data.items()}
            losses = losses_of(policy, batch, plain, functools.partial(seen, 0, "kink", f"clips of step {step}"))
            losses[0].backward()
            losses.append(torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm))
            seen(step, "output", "losses", torch.stack([number.detach().to(dtype) for number in losses]))
            before = {name: parameter.detach().double().clone() for name, parameter in policy.named_parameters()}
            for name, parameter in policy.named_parameters():
                seen(step, "gradient", name, parameter.grad)
            optimizer.step()
            for name, parameter in policy.named_parameters():
                seen(step, "update", name, parameter.detach().double() - before[name])
    return draw.state


def main():
    for case in sys.argv[1:] or CASES:
        record(f"test/golden/ppo_images_{case}.txt", "steps of PPO on images",
               lambda *arguments, case=case: run(case, *arguments), WAYS)


main()
