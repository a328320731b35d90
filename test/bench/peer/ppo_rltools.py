#!/usr/bin/env python3
"""The peer: trains RLtools' own Pendulum by RLtools' PPO, in one process, with a job's hyper-parameters.

    ppo_rltools.py JOB.json [--seed N] [--steps N] [--activation NAME]

RLtools is in C++. Its Python package compiles the training loop for these hyper-parameters and this processor
(-O3 -march=native -ffast-math, MKL with one thread), once for each; the cache lies beside the virtual environment.
RLtools does not limit the norm of gradients, and its value loss has the factor 1/2. --activation overrides
/policy/activation.

The last line is for programs: the steps, the CPU seconds of training without compiling, and steps per CPU second.
"""
import argparse
import json
import os
import sys
import time

# What RLtools cannot be told, and the only value that it has.
FIXED = {"value_loss": "half_mse", "vf_coef": 1.0, "max_grad_norm": None, "clip_range_vf": None}


def settings_of(job, steps, activation):
    """The arguments of RLtools' PPO. A layer of it is a product: two hidden layers are three."""
    group, hidden = job["algorithm"], job["policy"]["hidden"]
    for key, only in FIXED.items():
        if group.get(key) != only:
            raise SystemExit(f"/algorithm/{key}: RLtools has {json.dumps(only)} alone")
    networks = {"HIDDEN_DIM": hidden[0], "NUM_LAYERS": len(hidden) + 1, "ACTIVATION_FUNCTION": activation.upper()}
    return {
        "N_ENVIRONMENTS": job["observers"]["environments"],
        "ON_POLICY_RUNNER_STEPS_PER_ENV": group["n_steps"],
        "BATCH_SIZE": group["batch_size"],
        "N_EPOCHS": group["n_epochs"],
        "GAMMA": group["gamma"],
        "LAMBDA": group["gae_lambda"],
        "EPSILON_CLIP": group["clip_range"],
        "ACTION_ENTROPY_COEFFICIENT": group["ent_coef"],
        "INITIAL_ACTION_STD": 1.0,
        "OPTIMIZER_ALPHA": group["learning_rate"],
        "OPTIMIZER_EPSILON": group["adam_epsilon"],
        "TOTAL_STEP_LIMIT": steps,
        **{f"{network}_{key}": value for network in ("ACTOR", "CRITIC") for key, value in networks.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--activation")
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    steps = arguments.steps or job["stop"]["steps"]
    activation = arguments.activation or job["policy"]["activation"]
    import rltools
    import rltools.src.compile
    import rltools.src.ppo

    cache = os.path.join(sys.prefix, "cache")
    rltools.CACHE_PATH = rltools.src.compile.CACHE_PATH = rltools.src.ppo.CACHE_PATH = cache
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rltools")
    training = rltools.PPO(
        {"path": folder},
        enable_evaluation=False,
        interface_name=f"bench_{activation}",
        **settings_of(job, steps, activation),
    )
    begin, turns = time.process_time(), 1
    state = training.State(arguments.seed)
    while not state.step():
        turns += 1
    used = time.process_time() - begin
    done = turns * job["observers"]["environments"] * job["algorithm"]["n_steps"]
    print(
        f"peer ppo_rltools seed={arguments.seed} steps={done} cpu_s={used:.2f} steps_per_cpu_s={done / used:.0f}",
        flush=True,
    )


main()
