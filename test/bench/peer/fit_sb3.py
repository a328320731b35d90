#!/usr/bin/env python3
"""The peer: gradient steps of Stable-Baselines3's DQN, SAC and TD3, in CPU milliseconds, on one thread.

    fit_sb3.py [NAME]        NAME: only cases whose name holds it

fit.py has the cases, and says what a step contains. Without NAME the first line is the machine's sgemm of
256x256x256, by PyTorch.
"""
import sys
import warnings

import fit
import torch
from stable_baselines3 import DQN, SAC, TD3


def sgemm():
    a, b = torch.rand(256, 256), torch.rand(256, 256)
    product = torch.empty(256, 256)
    fit.line("sgemm 256x256x256", fit.milliseconds(lambda: [torch.mm(a, b, out=product) for _ in range(500)], 500))


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if len(sys.argv) < 2:
        sgemm()
    for case in fit.selected():
        make = {"dqn": DQN, "sac": SAC, "td3": TD3}[case.learning]
        model = make(
            "MlpPolicy",
            fit.Noise(case),
            learning_starts=10**9,
            buffer_size=fit.FILLED,
            policy_kwargs={"net_arch": case.hidden},
            seed=1,
            device="cpu",
        )
        steps = 100 if case.learning == "dqn" else 20
        fit.measure(case, model, steps, draws=steps)


main()
