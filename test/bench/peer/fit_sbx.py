#!/usr/bin/env python3
"""The peer: gradient steps of SBX's DQN, SAC and TD3 (Stable-Baselines3 in JAX), in CPU milliseconds, on one core.

    fit_sbx.py [NAME]        NAME: only cases whose name holds it

fit.py has the cases, and says what a step contains. SBX draws the rows of all steps of a call at once, and one compiled
loop takes the steps. The first call compiles, or reads what an earlier run compiled (build/jax-cache); it is left out.
SBX does not limit the norm of DQN's gradients.
"""
import os
import pathlib
import warnings

# Before JAX begins: its threads are as many as the processors.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(pathlib.Path(__file__).resolve().parents[3] / "build" / "jax-cache")

import fit
from sbx import DQN, SAC, TD3


def main():
    warnings.filterwarnings("ignore")
    for case in fit.selected():
        make = {"dqn": DQN, "sac": SAC, "td3": TD3}[case.learning]
        model = make(
            "MlpPolicy",
            fit.Noise(case),
            learning_starts=10**9,
            buffer_size=fit.FILLED,
            policy_kwargs={"net_arch": case.hidden},
            seed=1,
        )
        fit.measure(case, model, 1000 if case.learning == "dqn" else 20, draws=1)


main()
