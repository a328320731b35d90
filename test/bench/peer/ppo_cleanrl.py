#!/usr/bin/env python3
"""The peer: runs CleanRL's ppo.py, as its package has it, with a job's hyper-parameters.

    ppo_cleanrl.py JOB.json [--seed N] [--steps N]

The job must say what CleanRL has built in: two hidden layers of 64 with tanh, half_mse, the KL divergence looked at after
an epoch, no bootstrap at truncations, and, if the value is clipped, by /algorithm/clip_range. --steps overrides
/stop/steps. PyTorch has one thread, and all runs on the CPU. The script's files go to a temporary folder.

The last line is for programs: the steps, the CPU seconds without imports, steps per CPU second, and the mean reward of
the last 20 episodes, the measure of CleanRL's documentation.
"""
import argparse
import contextlib
import io
import json
import os
import re
import runpy
import sys
import tempfile
import time
import warnings

# What CleanRL's script cannot be told, and the only value that it has.
FIXED = {"value_loss": "half_mse", "bootstrap_truncated": False, "adam_epsilon": 1e-5}
# Keys of /algorithm, and the script's options.
NAMES = {
    "n_steps": "num-steps",
    "n_epochs": "update-epochs",
    "learning_rate": "learning-rate",
    "gamma": "gamma",
    "gae_lambda": "gae-lambda",
    "clip_range": "clip-coef",
    "ent_coef": "ent-coef",
    "vf_coef": "vf-coef",
    "max_grad_norm": "max-grad-norm",
    "target_kl": "target-kl",
    "normalize_advantage": "norm-adv",
}


def options_of(job, seed, steps):
    """The options of CleanRL's script."""
    group, count = job["algorithm"], job["observers"]["environments"]
    for key, only in FIXED.items():
        if group.get(key, only) != only:
            raise SystemExit(f"/algorithm/{key}: CleanRL has {json.dumps(only)} alone")
    clipped = group.get("clip_range_vf")
    if clipped not in (None, group["clip_range"]):
        raise SystemExit(f"/algorithm/clip_range_vf: CleanRL has null or /algorithm/clip_range, {group['clip_range']}")
    options = {
        "seed": seed,
        "cuda": False,
        "env-id": job["environment"]["name"],
        "total-timesteps": steps,
        "num-envs": count,
        "num-minibatches": count * group["n_steps"] // group["batch_size"],
        "anneal-lr": group.get("learning_rate_schedule") == "linear",
        "clip-vloss": clipped is not None,
    }
    options.update({NAMES[key]: value for key, value in group.items() if key in NAMES and value is not None})
    return [word for name, value in options.items() for word in ("--" + name, str(value))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    steps = arguments.steps or job["stop"]["steps"]
    warnings.filterwarnings("ignore")
    import gym
    import torch
    import torch.utils.tensorboard

    gym.logger.set_level(gym.logger.ERROR)
    torch.set_num_threads(1)
    sys.argv = [sys.argv[0]] + options_of(job, arguments.seed, steps)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        begin = time.process_time()
        with contextlib.redirect_stdout(said):
            runpy.run_module("cleanrl.ppo", run_name="__main__")
        used = time.process_time() - begin
        os.chdir("/")
    lines = re.findall(r"global_step=(\d+), episodic_return=(\S+)", said.getvalue())
    rewards = [float(reward) for _, reward in lines[-20:]]
    rollout = job["observers"]["environments"] * job["algorithm"]["n_steps"]
    done = steps // rollout * rollout
    print(
        f"peer ppo_cleanrl torch={torch.__version__} seed={arguments.seed} steps={done} cpu_s={used:.1f} "
        f"steps_per_cpu_s={done / used:.0f} training={sum(rewards) / max(len(rewards), 1):.2f}"
    )


main()
