#!/usr/bin/env python3
"""Records squashed Gaussians of Stable-Baselines3 into test/golden/squashed.txt, which
test/kernels/policy/test_squashed_golden.c reads.

How to run it, from the repository's root, with the packages of `scripts/deps sb3`:
build/sb3-venv/bin/python test/golden/squashed.py

The file's form is that of test/golden/ppo.py. The distributions are those of SAC's actor, with draws of our own. L is
the sum of d_actions times the actions, and of d_log_probability times the log-probabilities.

Inputs: z (rows, means and log_stds, or means), noise (rows, components; of cases that begin with sde (features,
components)), d_actions (rows, components), d_log_probability (1); of sde features (rows, features), log_std (features,
components). Results: actions, log_probability (rows), and L's slopes d_z, d_features, d_log_std.
"""
import torch
from ppo import write_case
from problem import Numbers
from stable_baselines3 import __version__ as version
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution, StateDependentNoiseDistribution
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN

ROWS, COMPONENTS, FEATURES, CLIP_MEAN = 9, 3, 5, 2.0
CASES = ["diagonal", "sde_exp", "sde_expln"]


def make_inputs(name):
    draw = Numbers(CASES.index(name) + 1)
    inputs = {"z": draw.take(ROWS, COMPONENTS * (1 if name.startswith("sde") else 2)),
              "noise": draw.take(FEATURES if name.startswith("sde") else ROWS, COMPONENTS),
              "d_actions": draw.take(ROWS, COMPONENTS), "d_log_probability": draw.take(1)}  # fmt: skip
    if name.startswith("sde"):
        inputs["z"] *= 3  # a third is clipped
        inputs["features"] = draw.take(ROWS, FEATURES)
        inputs["log_std"] = draw.take(FEATURES, COMPONENTS)
    else:
        inputs["z"][1, COMPONENTS + 1] = 2.25  # is clamped
        inputs["noise"][1, 1] = 0.1
    return inputs


def run(name, dtype):
    inputs = {key: value.to(dtype) for key, value in make_inputs(name).items()}
    leaves = [inputs[key].requires_grad_() for key in ("z", "features", "log_std") if key in inputs]

    def draws(shape, **_):
        return inputs["noise"] if tuple(shape) == tuple(inputs["noise"].shape) else torch.zeros(*shape, dtype=dtype)

    torch.distributions.normal._standard_normal = draws
    if name == "diagonal":
        mean, log_std = inputs["z"].chunk(2, dim=1)
        distribution = SquashedDiagGaussianDistribution(COMPONENTS)
        given = (mean, torch.clamp(log_std, LOG_STD_MIN, LOG_STD_MAX))
    else:
        distribution = StateDependentNoiseDistribution(
            COMPONENTS, use_expln=name == "sde_expln", learn_features=True, squash_output=True)  # fmt: skip
        distribution.sample_weights(inputs["log_std"])
        mean = torch.nn.Hardtanh(-CLIP_MEAN, CLIP_MEAN)(inputs["z"])
        given = (mean, inputs["log_std"], inputs["features"])
    actions, log_probability = distribution.log_prob_from_params(*given)
    loss = (inputs["d_actions"] * actions).sum() + (inputs["d_log_probability"] * log_probability).sum()
    slopes = torch.autograd.grad(loss, leaves)
    names = ["actions", "log_probability", "d_z", "d_features", "d_log_std"]
    return {key: value.detach().double() for key, value in zip(names, (actions, log_probability, *slopes))}


def main():
    torch.set_num_threads(1)
    with open("test/golden/squashed.txt", "w", encoding="ascii") as out:
        out.write(f"# Stable-Baselines3 {version} and PyTorch {torch.__version__}, by test/golden/squashed.py\n")
        for name in CASES:
            write_case(out, name, make_inputs(name), run(name, torch.float64), run(name, torch.float32))


if __name__ == "__main__":
    main()
