#!/usr/bin/env python3
"""The peer: trains CartPole of gymnax by PPO in JAX, the whole training one compiled function, as PureJaxRL does it.

    ppo_purejaxrl.py JOB.json [--seed N] [--steps N]

The loop is that of Lu and others, "Discovered Policy Optimisation" (2022), whose code is called PureJaxRL: scans over
updates, steps, epochs and minibatches, environments in vmap. Hyper-parameters are the job's, the details CleanRL's:
a clipped value loss, a learning rate that falls linearly, advantages normalized in each minibatch, no value for what
lies behind a truncation. One processor.

The last line is for programs: the steps, the CPU seconds of training without compiling, steps per CPU second, and the
mean length of an episode at the end.
"""
import argparse
import json
import os
import time

# Before JAX begins: its threads are as many as the processors.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ["JAX_PLATFORMS"] = "cpu"

import gymnax
import jax
import jax.numpy as jnp
import optax


def network_new(key, inputs, hidden, outputs, scale):
    """Weights and biases of dense layers, orthogonal as CleanRL's."""
    layers, widths = [], [inputs, *hidden, outputs]
    for i, (rows, columns) in enumerate(zip(widths, widths[1:])):
        key, draw = jax.random.split(key)
        gain = scale if i == len(hidden) else jnp.sqrt(2.0)
        layers.append((jax.nn.initializers.orthogonal(gain)(draw, (rows, columns)), jnp.zeros(columns)))
    return layers


def network(layers, x):
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def chosen(logits, action):
    """The log-probability of each row's action."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def loss_of(group, parameters, batch):
    """PPO's loss of a minibatch."""
    observation, action, old, old_value, advantage, target = batch
    logits, value = network(parameters["policy"], observation), network(parameters["value"], observation)[..., 0]
    ratio, clip = jnp.exp(chosen(logits, action) - old), group["clip_range"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()
    near = old_value + jnp.clip(value - old_value, -group["clip_range_vf"], group["clip_range_vf"])
    error = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
    logs = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
    return group["vf_coef"] * error - gain - group["ent_coef"] * entropy


def advantages_of(group, values, rewards, dones, last):
    """Generalized advantages over (steps, environments); dones[t]: the episode ended with step t."""

    def back(carry, row):
        advantage, after = carry
        value, reward, done = row
        delta = reward + group["gamma"] * after * (1 - done) - value
        advantage = delta + group["gamma"] * group["gae_lambda"] * (1 - done) * advantage
        return (advantage, value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), (values, rewards, dones), reverse=True)[1]


def training_of(job, steps):
    """A function of the seed's key that trains, and returns the mean length of the episodes of the last update."""
    group, count = job["algorithm"], job["observers"]["environments"]
    rows = count * group["n_steps"]
    updates, minibatches = steps // rows, rows // group["batch_size"]
    environment, parameters_of_environment = gymnax.make(job["environment"]["name"])
    reset = jax.vmap(environment.reset, in_axes=(0, None))
    step = jax.vmap(environment.step, in_axes=(0, 0, 0, None))

    def rate(number):
        return group["learning_rate"] * (1.0 - number // (minibatches * group["n_epochs"]) / updates)

    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(rate, eps=1e-5))

    def act(carry, _):
        parameters, state, observation, key = carry
        key, draw, keys = jax.random.split(key, 3)
        logits, value = network(parameters["policy"], observation), network(parameters["value"], observation)[..., 0]
        action = jax.random.categorical(draw, logits)
        after, state, reward, terminated, truncated, _ = step(
            jax.random.split(keys, count), state, action, parameters_of_environment
        )
        row = (observation, action, chosen(logits, action), value, reward, jnp.logical_or(terminated, truncated))
        return (parameters, state, after, key), row

    def minibatch(carry, batch):
        parameters, moments = carry
        gradient = jax.grad(lambda p: loss_of(group, p, batch))(parameters)
        change, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(parameters, change), moments), None

    def update(carry, _):
        parameters, moments, state, observation, key = carry
        (_, state, observation, key), rollout = jax.lax.scan(
            act, (parameters, state, observation, key), None, group["n_steps"]
        )
        seen, actions, logs, values, rewards, dones = rollout
        last = network(parameters["value"], observation)[..., 0]
        advantages = advantages_of(group, values, rewards, dones, last)
        table = (seen, actions, logs, values, advantages, advantages + values)
        table = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), table)

        def epoch(carry, draw):
            order = jax.random.permutation(draw, rows).reshape(minibatches, -1)
            return jax.lax.scan(minibatch, carry, jax.tree.map(lambda x: x[order], table))

        key, draw = jax.random.split(key)
        draws = jax.random.split(draw, group["n_epochs"])
        (parameters, moments), _ = jax.lax.scan(epoch, (parameters, moments), draws)
        return (parameters, moments, state, observation, key), rows / jnp.maximum(dones.sum(), 1)

    def train(key):
        key, of_policy, of_value, first = jax.random.split(key, 4)
        observation, state = reset(jax.random.split(first, count), parameters_of_environment)
        hidden = job.get("policy", {}).get("hidden", [64, 64])
        parameters = {
            "policy": network_new(of_policy, observation.shape[-1], hidden, environment.num_actions, 0.01),
            "value": network_new(of_value, observation.shape[-1], hidden, 1, 1.0),
        }
        carry = (parameters, optimizer.init(parameters), state, observation, key)
        return jax.lax.scan(update, carry, None, updates)[1][-1]

    return train, updates * rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    train, steps = training_of(job, arguments.steps or job["stop"]["steps"])
    key = jax.random.key(arguments.seed)
    compiled = jax.jit(train).lower(key).compile()
    begin = time.process_time()
    length = float(compiled(key))
    used = time.process_time() - begin
    print(
        f"peer ppo_purejaxrl jax={jax.__version__} seed={arguments.seed} steps={steps} cpu_s={used:.2f} "
        f"steps_per_cpu_s={steps / used:.0f} length={length:.1f}"
    )


main()
