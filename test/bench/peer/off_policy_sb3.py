#!/usr/bin/env python3
"""The peer: trains a job file of coalesced's, of the algorithm dqn, sac or td3, with Stable-Baselines3 in one process.

    off_policy_sb3.py JOB.json [--seed N] [--steps N] [--reward R]

All else is as in ppo_sb3.py, the last line too.
"""
import json

import numpy
import ppo_sb3
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

MAKERS = {"dqn": DQN, "sac": SAC, "td3": TD3}
# Keys of /algorithm that are arguments as they are.
PLAIN = """gamma buffer_size learning_starts batch_size gradient_steps tau target_update_interval exploration_fraction
           exploration_initial_eps exploration_final_eps ent_coef target_entropy use_sde policy_delay target_policy_noise
           target_noise_clip stats_window_size""".split()
# What Stable-Baselines3 cannot be told, and the only value that it has.
FIXED = {"double_q": False, "prioritized_replay": False, "overlap": 0}
LEARNING_RATES = {"dqn": 1e-4, "sac": 3e-4, "td3": 1e-3}


def widths(hidden):
    return hidden if isinstance(hidden, list) else [hidden]


def policy_of(job):
    """policy_kwargs."""
    group, policy, found = job["algorithm"], job.get("policy", {}), {}
    if "hidden" in policy:
        hidden = policy["hidden"]
        found["net_arch"] = {k: widths(v) for k, v in hidden.items()} if isinstance(hidden, dict) else widths(hidden)
    found["activation_fn"] = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[policy.get("activation", "relu")]
    found["optimizer_kwargs"] = {"eps": group.get("adam_epsilon", 1e-8)}
    found.update({key: group[key] for key in ("n_critics", "use_expln") if key in group})
    if group["name"] == "sac":
        found["log_std_init"] = policy.get("log_std_init", -3)
    return found


def noise_of(group, environments):
    """The noise on actions, or None."""
    if not group.get("noise_type"):
        return None
    make = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}[group["noise_type"]]
    ones = numpy.ones(environments.action_space.shape)
    return make(0 * ones, group.get("noise_std", 0.1) * ones)


def model_of(job, environments, seed):
    group = job["algorithm"]
    for key, only in FIXED.items():
        if group.get(key, only) != only:
            raise SystemExit(f"/algorithm/{key}: Stable-Baselines3 has {json.dumps(only)} alone")
    found = {key: group[key] for key in PLAIN if key in group}
    found["learning_rate"] = ppo_sb3.schedule(group, "learning_rate", LEARNING_RATES[group["name"]])
    if "train_freq" in group:
        freq = group["train_freq"]
        found["train_freq"] = tuple(freq) if isinstance(freq, list) else freq
    if "max_grad_norm" in group:
        found["max_grad_norm"] = float("inf") if group["max_grad_norm"] is None else group["max_grad_norm"]
    if group["name"] == "sac":
        found["sde_sample_freq"] = group.get("sde_sample_freq") or -1
    if group["name"] != "dqn":
        found["action_noise"] = noise_of(group, environments)
    return MAKERS[group["name"]](
        "MlpPolicy", environments, seed=seed, device="cpu", policy_kwargs=policy_of(job), **found
    )


if __name__ == "__main__":
    ppo_sb3.train(__doc__, "off_policy_sb3", model_of)
