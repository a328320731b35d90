#!/usr/bin/env python3
"""Compares the steps of off_policy.py with Stable-Baselines3's, and prints by how much they differ. It writes nothing.

How to run it, from the repository's root, with the packages of scripts/deps sb3:

    build/sb3-venv/bin/python test/golden/off_policy_sb3.py

Each case that Stable-Baselines3 has options for goes through the train() of its DQN, SAC, TD3 or DDPG in float32, with
the same parameters, batches and draws. The differences are those to the float64 run of off_policy.py.
"""
import gymnasium
import numpy
import off_policy
import stable_baselines3
import torch
from off_policy import ACTIONS, DQN, GAMMA, INPUTS, SAC, TAU
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

# What Stable-Baselines3's train() has no option for. With target_interval it counts in another way (off_policy.py).
UNKNOWN = "double", "dueling", "weights", "masks"


class World(gymnasium.Env):
    """Only spaces: a policy acts in [-1, 1], and the batches are ours. Bytes come as the fractions that they become."""

    def __init__(self, o):
        self.observation_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (INPUTS,), numpy.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), numpy.float32)
        if o["learning"] == DQN:
            self.action_space = gymnasium.spaces.Discrete(ACTIONS)


def open_model(name, o):
    activation = torch.nn.Tanh if o["tanh"] else torch.nn.ReLU
    common = {"learning_rate": o["lr"], "gamma": GAMMA, "tau": TAU, "batch_size": o["rows"], "device": "cpu", "seed": 1}
    if o["learning"] == DQN:
        arguments = {"net_arch": off_policy.widths_of(o, "width"), "activation_fn": activation}
        return stable_baselines3.DQN("MlpPolicy", World(o), max_grad_norm=o["max_norm"], target_update_interval=1,
                                     policy_kwargs=arguments, **common)  # fmt: skip
    widths = {"pi": off_policy.widths_of(o, "width"), "qf": off_policy.widths_of(o, "critic_width")}
    arguments = {"net_arch": widths, "activation_fn": activation, "n_critics": o["critics"]}
    if o["learning"] == SAC:
        if o["sde"]:
            arguments |= {"log_std_init": o["log_std_init"], "use_expln": bool(o["expln"])}
        coefficient = f"auto_{o['ent_coef']}" if o["learns_entropy"] else o["ent_coef"]
        return stable_baselines3.SAC("MlpPolicy", World(o), ent_coef=coefficient, use_sde=bool(o["sde"]),
                                     policy_kwargs=arguments, **common)  # fmt: skip
    if name == "ddpg":
        return stable_baselines3.DDPG("MlpPolicy", World(o), policy_kwargs=arguments, **common)
    return stable_baselines3.TD3("MlpPolicy", World(o), policy_delay=o["policy_delay"],
                                 target_policy_noise=o["target_noise"], target_noise_clip=o["target_noise_clip"],
                                 policy_kwargs=arguments, **common)  # fmt: skip


def parameters_of(model, o):
    """By name, in the record's order."""
    found = dict(model.policy.named_parameters())
    if o["learns_entropy"] and o["learning"] == SAC:
        found["log_ent_coef"] = model.log_ent_coef
    return {name: found[name].data for name, _, _ in off_policy.list_parameters(o)}


class Draws:
    """Stands in for PyTorch's normal draws in a gradient step."""

    def __init__(self, o):
        self.o, self.step, self.calls = o, 0, 0

    def begin(self, step):
        self.step, self.calls = step, 0

    def standard(self, shape, dtype, device):
        """Of SAC: at the observations, then at the next ones. With gSDE a step draws a matrix, and then one that only
        acting reads."""
        which = 0 if self.o["sde"] else self.calls
        self.calls += 1
        assert self.calls <= 2
        count = shape.numel()
        return off_policy.normals(self.o["seed"], which, self.step, count).reshape(shape).to(dtype).to(device)

    def fill(self, tensor, mean, deviation):
        """Of TD3: at the next observations."""
        draws = off_policy.normals(self.o["seed"], 1, self.step, tensor.numel())
        return tensor.copy_(mean + deviation * draws.reshape(tensor.shape).to(tensor.dtype))


def samples(batch):
    actions = batch["actions"].reshape(len(batch["rewards"]), -1)
    return ReplayBufferSamples(batch["observations"], actions, batch["next_observations"],
                               batch["terminated"].unsqueeze(1), batch["rewards"].unsqueeze(1))  # fmt: skip


def run(name, o):
    """As off_policy.run."""
    model, draws, losses = open_model(name, o), Draws(o), []
    model.set_logger(Logger(None, []))
    first = off_policy.first_values(o, torch.float32)
    for key, value in parameters_of(model, o).items():
        assert value.shape == first[key].shape
        value.copy_(first[key])
    torch.distributions.normal._standard_normal = draws.standard
    torch.Tensor.normal_ = lambda *arguments: draws.fill(*arguments)
    for step, batch in enumerate(off_policy.make_batches(o, torch.float32), 1):
        draws.begin(step)
        model.replay_buffer.sample = lambda *_, batch=batch, **__: samples(batch)
        model.logger.name_to_value.clear()
        model.train(1, o["rows"])
        told = model.logger.name_to_value
        keys = ["loss" if o["learning"] == DQN else "critic_loss", "actor_loss", "ent_coef", "ent_coef_loss"]
        losses.append([float(told.get(f"train/{key}", 0)) for key in keys])
        if step == o["follow_after"]:
            model._on_step()
    parameters = torch.cat([value.flatten() for value in parameters_of(model, o).values()])
    return torch.tensor(losses, dtype=torch.float64), parameters.double()


def main():
    torch.set_num_threads(1)
    saved = torch.distributions.normal._standard_normal, torch.Tensor.normal_
    for name in off_policy.CASES:
        o, exact, _ = off_policy.open_case(name)
        if any(o[key] for key in UNKNOWN) or o["target_interval"] > 1:
            print(f"{name:20} not compared: Stable-Baselines3 has no such option, or counts in another way")
            continue
        losses, parameters = run(name, o)
        torch.distributions.normal._standard_normal, torch.Tensor.normal_ = saved
        relative = ((losses - exact[0]).abs() / exact[0].abs().clamp(min=1e-30)).max()
        print(f"{name:20} losses {relative:.2g} (relative), parameters {(parameters - exact[1]).abs().max():.2g}")


if __name__ == "__main__":
    main()
