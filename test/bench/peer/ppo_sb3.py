#!/usr/bin/env python3
"""The peer: trains a job file of coalesced's, of the algorithm ppo or a2c, with Stable-Baselines3 in one process.
A job of ppo with a memory is trained with sb3-contrib's RecurrentPPO.

    ppo_sb3.py JOB.json [--seed N] [--steps N] [--reward R]

The hyper-parameters are the job's: they have Stable-Baselines3's names. An environment NAMENoVel-vN is NAME-vN with
velocities of zero, as RL Zoo's MaskVelocityWrapper makes them. The environments are stepped one after the
other (DummyVecEnv), PyTorch has one thread, and all runs on the CPU. --steps overrides /stop/steps. Evaluations during
the training are left out; after it, /evaluation/episodes episodes are played with the most probable actions.

The last line is for programs: the steps, the CPU seconds and the seconds of training without imports and evaluation,
steps per CPU second, after how many steps the mean reward of the last 100 episodes was first at least R (-: never), that
mean at the end (-: no episode has ended), and the mean and standard deviation of the evaluation.
"""
import argparse
import json
import time
import warnings

import gymnasium
import numpy
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

# Keys of /algorithm that are arguments as they are.
PLAIN = """n_steps batch_size n_epochs gamma gae_lambda clip_range_vf normalize_advantage ent_coef vf_coef target_kl
           use_sde use_rms_prop rms_prop_eps""".split()
# What Stable-Baselines3 cannot be told, and the only value that it has.
FIXED = {"value_loss": "mse", "target_kl_at": "minibatch", "bootstrap_truncated": True, "adam_epsilon": 1e-5}


# The velocities in observations.
VELOCITIES = {"CartPole-v1": [1, 3], "MountainCar-v0": [1], "MountainCarContinuous-v0": [1], "Pendulum-v1": [2]}
MEMORY = ("lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm")


class MaskVelocities(gymnasium.ObservationWrapper):
    """Sets the velocities in each observation to zero."""

    def __init__(self, environment):
        super().__init__(environment)
        self.mask = numpy.ones(environment.observation_space.shape, environment.observation_space.dtype)
        self.mask[VELOCITIES[environment.unwrapped.spec.id]] = 0

    def observation(self, observation):
        return observation * self.mask


class Threshold(BaseCallback):
    """Notes at which step the mean reward of the last 100 episodes was first at least `reward`."""

    def __init__(self, reward):
        super().__init__()
        self.reward, self.reached = reward, None

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        if self.reached is not None or self.reward == float("inf"):
            return  # a rollout of SAC may be one step
        rewards = [info["r"] for info in self.model.ep_info_buffer]
        if rewards and sum(rewards) / len(rewards) >= self.reward:
            self.reached = self.num_timesteps


def schedule(group, name, default):
    """A key of the job as a constant, or as a function of the share of the training that is left."""
    value = group.get(name, default)
    if group.get(name + "_schedule", "constant") == "constant":
        return value
    return lambda left: left * value


def arguments_of(job):
    """The arguments of PPO or A2C."""
    group = job["algorithm"]
    for key, only in FIXED.items():
        if group.get(key, only) != only:
            raise SystemExit(f"/algorithm/{key}: Stable-Baselines3 has {json.dumps(only)} alone")
    is_ppo = group["name"] == "ppo"
    found = {key: group[key] for key in PLAIN if key in group}
    found["sde_sample_freq"] = group.get("sde_sample_freq") or -1
    found["learning_rate"] = schedule(group, "learning_rate", 3e-4 if is_ppo else 7e-4)
    if is_ppo:
        found["clip_range"] = schedule(group, "clip_range", 0.2)
    if "max_grad_norm" in group:
        found["max_grad_norm"] = float("inf") if group["max_grad_norm"] is None else group["max_grad_norm"]
    policy = job.get("policy", {})
    hidden = policy.get("hidden", [64, 64])
    hidden = hidden if isinstance(hidden, list) else [hidden]
    found["policy_kwargs"] = {
        "net_arch": {"pi": hidden, "vf": hidden},
        "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[policy.get("activation", "tanh")],
        "ortho_init": policy.get("ortho_init", True),
        "log_std_init": policy.get("log_std_init", 0.0),
    }
    if policy.get("recurrent"):
        found["policy_kwargs"].update({key: policy[key] for key in MEMORY if key in policy})
    return found


def maker_of(job):
    """The algorithm's class, and its policy's name."""
    group, policy, observers = job["algorithm"], job.get("policy", {}), job.get("observers", {})
    if not policy.get("recurrent"):
        return {"ppo": PPO, "a2c": A2C}[group["name"]], "MlpPolicy"
    rows = max(observers.get("count", 1), 1) * observers.get("environments", 1) * group["n_steps"]
    if group["name"] != "ppo" or policy["recurrent"] != "lstm" or policy.get("value_network"):
        raise SystemExit("/policy/recurrent: sb3-contrib has LSTMs of ppo alone, and value networks of their own")
    divides = group["batch_size"] % group["n_steps"] == 0
    whole = group["sequences"] == "whole" if group.get("sequences") else divides
    if whole and group["batch_size"] < rows:
        raise SystemExit("/algorithm/sequences: sb3-contrib has padded sequences alone")
    from sb3_contrib import RecurrentPPO  # only these jobs need the package

    return RecurrentPPO, "MlpLstmPolicy"


def environments_of(job, seed):
    """All of the job's environments, in one process."""
    observers, environment = job.get("observers", {}), job.get("environment", {})
    count = max(observers.get("count", 1), 1) * observers.get("environments", 1)
    name = environment.get("gymnasium") or environment.get("name", "CartPole-v1")
    wrapper = MaskVelocities if "NoVel" in name else None
    return make_vec_env(
        name.replace("NoVel", ""), n_envs=count, seed=seed, env_kwargs=environment.get("options"), wrapper_class=wrapper
    )


def normalized(environments, job):
    """The environments as the policy sees them."""
    normalize = job.get("normalize", {})
    if not (normalize.get("norm_obs") or normalize.get("norm_reward")):
        return environments
    return VecNormalize(
        environments,
        norm_obs=normalize.get("norm_obs", False),
        norm_reward=normalize.get("norm_reward", False),
        clip_obs=normalize.get("clip_obs", 10.0),
        clip_reward=normalize.get("clip_reward", 10.0),
        gamma=job["algorithm"].get("gamma", 0.99),
    )


def evaluate(model, job, seed):
    """Mean and standard deviation of the rewards of episodes apart from training."""
    environments = normalized(environments_of(job, seed + 1000), job)
    if isinstance(environments, VecNormalize):
        environments.obs_rms = model.get_env().obs_rms
        environments.training = environments.norm_reward = False
    episodes = job.get("evaluation", {}).get("episodes", 10)
    return evaluate_policy(model, environments, n_eval_episodes=episodes, deterministic=True)


def train(description, name, model_of):
    """Trains the job that the command names, and prints the last line. model_of(job, environments, seed): the model."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--reward", type=float, default=float("inf"))
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    steps = arguments.steps or job.get("stop", {}).get("steps", 1000000)
    model = model_of(job, normalized(environments_of(job, arguments.seed), job), arguments.seed)
    threshold = Threshold(arguments.reward)
    begin, wall = time.process_time(), time.monotonic()
    model.learn(total_timesteps=steps, callback=threshold)
    used, wall = time.process_time() - begin, time.monotonic() - wall
    rewards = [info["r"] for info in model.ep_info_buffer]
    training = f"{sum(rewards) / len(rewards):.2f}" if rewards else "-"
    mean, deviation = evaluate(model, job, arguments.seed)
    print(
        f"peer {name} torch={torch.__version__} seed={arguments.seed} steps={model.num_timesteps} "
        f"cpu_s={used:.1f} wall_s={wall:.1f} steps_per_cpu_s={model.num_timesteps / used:.0f} reached={threshold.reached or '-'} "
        f"training={training} evaluation={mean:.2f} deviation={deviation:.2f}"
    )


def model_of(job, environments, seed):
    make, policy = maker_of(job)
    return make(policy, environments, seed=seed, device="cpu", **arguments_of(job))


if __name__ == "__main__":
    train(__doc__, "ppo_sb3", model_of)
