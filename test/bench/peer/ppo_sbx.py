#!/usr/bin/env python3
"""The peer: trains a job file of coalesced's, of the algorithm ppo, with SBX (Stable-Baselines3 in JAX) in one process.

    ppo_sbx.py JOB.json [--seed N] [--steps N]

Hyper-parameters and environments are those of ppo_sb3.py. JAX has one processor. The first rollout and its update
compile; they are left out.

The last line is for programs: the steps, the CPU seconds of training, steps per CPU second, and the mean reward of the
last 100 episodes.
"""
import argparse
import json
import os
import time
import warnings

# Before JAX begins: its threads are as many as the processors.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ["JAX_PLATFORMS"] = "cpu"

import flax.linen
import jax
import ppo_sb3
import torch
from sbx import PPO
from stable_baselines3.common.callbacks import BaseCallback


class SecondRollout(BaseCallback):
    """Notes when the second rollout begins, and after how many steps: from then on nothing is compiled."""

    rollouts = begin = steps = 0

    def _on_rollout_start(self):
        self.rollouts += 1
        if self.rollouts == 2:
            self.begin, self.steps = time.process_time(), self.num_timesteps

    def _on_step(self):
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    options = ppo_sb3.arguments_of(job)
    activation = job.get("policy", {}).get("activation", "tanh")
    options["policy_kwargs"] = {
        "net_arch": options["policy_kwargs"]["net_arch"],
        "activation_fn": getattr(flax.linen, activation),
    }
    environments = ppo_sb3.environments_of(job, arguments.seed)
    model = PPO("MlpPolicy", environments, seed=arguments.seed, **options)
    second = SecondRollout()
    model.learn(total_timesteps=arguments.steps or job["stop"]["steps"], callback=second)
    used, done = time.process_time() - second.begin, model.num_timesteps - second.steps
    rewards = [info["r"] for info in model.ep_info_buffer]
    print(
        f"peer ppo_sbx jax={jax.__version__} seed={arguments.seed} steps={done} cpu_s={used:.1f} "
        f"steps_per_cpu_s={done / used:.0f} training={sum(rewards) / max(len(rewards), 1):.2f}"
    )


main()
