#!/usr/bin/env python3
"""The peer: CartPole by REINFORCE over torch.distributed.rpc.

One agent and N observers, a process each. An observer owns an environment and asks the agent for every
action; the agent owns the policy and learns after each episode. Three modes:

    batch     N x 500 steps an episode; the agent answers all observers from one forward pass when the last
              state of a round has arrived
    nobatch   the same, one forward pass for every request
    episode   episodes of their own length, one call for the action and one for the reward, discounted and
              normalized returns, until solved or --episodes are over (0: no limit)

Processes and calls are arranged as in PyTorch's RPC tutorials ("Implementing Batch RPC Processing Using
Asynchronous Executions", "Getting Started with Distributed RPC Framework"), because those are the programs that
people run; the code is our own. It does less than they do (no copies to a GPU and back, returns per observer),
which is in the peer's favour. Processes meet through a file instead of a fixed port, so that two jobs do not
collide.

The last line is for programs: `peer mode=batch observers=10 ... env_steps_per_s=... job_s=...`. The steps per
second are taken around the episodes, learning included; job_s is the time of the whole job with the start and
end of its processes, but without this first interpreter's own start. Prepare with test/bench/peer/setup.
"""
import os

# Set before torch is imported, and for the spawned processes: eleven thread pools would compete for the cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("GLOG_minloglevel", "1")  # Debian's build reports every shutdown

import argparse
import tempfile
import threading
import time

import gymnasium
import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributions import Categorical

EPISODE_STEPS = 500
HIDDEN = 128


def parse_arguments():
    parser = argparse.ArgumentParser(description="CartPole over torch.distributed.rpc")
    parser.add_argument("mode", choices=["batch", "nobatch", "episode"])
    parser.add_argument("--observers", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=10, help="0, in mode episode: until solved")
    parser.add_argument("--seed", type=int, default=543)
    parser.add_argument("--verbose", action="store_true", help="a line for every tenth episode")
    arguments = parser.parse_args()
    if arguments.observers < 1 or arguments.episodes < 0:
        parser.error("--observers must be at least 1 and --episodes at least 0")
    if arguments.episodes == 0 and arguments.mode != "episode":
        parser.error("--episodes 0 belongs to mode episode")
    return arguments


def discounted(rewards, gamma):
    """The return of each step of an episode: its reward plus gamma times the next step's return."""
    returns, following = torch.zeros(len(rewards)), 0.0
    for step in reversed(range(len(rewards))):
        following = rewards[step] + gamma * following
        returns[step] = following
    return returns


class Observer:
    """An environment, in a process of its own. `number` counts observers from 0."""

    def __init__(self, number, seed):
        self.number = number
        self.environment = gymnasium.make("CartPole-v1")
        self.environment.reset(seed=seed + number)  # seeds the draws of all later resets

    def run_steps(self, agent, ask):
        """Plays 500 steps over several episodes. Returns the (500) returns and the first episode's length."""
        returns, rewards, first_length = [], [], None
        state, _ = self.environment.reset()
        for step in range(EPISODE_STEPS):
            action = rpc.rpc_sync(agent.owner(), ask, args=(agent, self.number, torch.from_numpy(state)))
            state, reward, terminated, truncated, _ = self.environment.step(action)
            rewards.append(reward)
            if terminated or truncated or step + 1 == EPISODE_STEPS:
                returns.append(discounted(rewards, gamma=1.0))
                first_length = first_length or len(rewards)
                rewards = []
                state, _ = self.environment.reset()
        return torch.cat(returns), first_length

    def run_episode(self, agent):
        state, _ = self.environment.reset()
        over = False
        while not over:
            action = agent.rpc_sync().choose(self.number, torch.from_numpy(state))
            state, reward, terminated, truncated, _ = self.environment.step(action)
            agent.rpc_sync().note_reward(self.number, reward)
            over = terminated or truncated


class Agent:
    """The policy and its learner. Calls arrive on the RPC layer's threads."""

    def __init__(self, observers, seed):
        torch.manual_seed(seed)
        self.policy = torch.nn.Sequential(
            torch.nn.Linear(4, HIDDEN),
            torch.nn.Dropout(0.6),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, 2),
            torch.nn.Softmax(dim=-1),
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.here = rpc.RRef(self)
        self.observers = [rpc.remote(f"observer{i}", Observer, args=(i, seed)) for i in range(observers)]
        self.running_reward, self.env_steps = 0.0, 0
        self.lock = threading.Lock()
        self.round = torch.futures.Future()
        self.round_states, self.round_missing = torch.zeros(observers, 4), observers
        self.forget()

    def forget(self):
        self.round_log_probs = []
        self.log_probs = [[] for _ in self.observers]
        self.rewards = [[] for _ in self.observers]

    # ---- called by observers ----

    def choose(self, number, state):
        distribution = Categorical(self.policy(state.unsqueeze(0)))
        action = distribution.sample()
        self.log_probs[number].append(distribution.log_prob(action))
        return action.item()

    def note_reward(self, number, reward):
        self.rewards[number].append(reward)

    @staticmethod
    def choose_alone(agent, number, state):
        return agent.local_value().choose(number, state)

    @staticmethod
    @rpc.functions.async_execution
    def choose_together(agent, number, state):
        """A future of this observer's action. The call that completes the round computes all actions."""
        self = agent.local_value()
        with self.lock:
            self.round_states[number] = state
            mine = self.round.then(lambda actions: actions.value()[number].item())
            self.round_missing -= 1
            if self.round_missing == 0:
                # A copy, since the backward pass needs these states and the next round overwrites them.
                distribution = Categorical(self.policy(self.round_states.clone()))
                actions = distribution.sample()
                self.round_log_probs.append(distribution.log_prob(actions))
                full, self.round = self.round, torch.futures.Future()
                self.round_missing = len(self.observers)
                full.set_result(actions)
        return mine

    # ---- called by the job ----

    def learn(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train_steps(self, batch):
        ask = Agent.choose_together if batch else Agent.choose_alone
        running = [o.rpc_async(timeout=0).run_steps(self.here, ask) for o in self.observers]
        done = torch.futures.wait_all(running)
        if batch:
            log_probs = torch.stack(self.round_log_probs).t()  # (observers, steps)
        else:
            log_probs = torch.stack([torch.cat(own) for own in self.log_probs])
        returns = torch.stack([own for own, _ in done])
        self.learn(-(log_probs * returns).sum() / len(done))
        self.env_steps += returns.numel()
        self.running_reward = 0.5 * sum(length for _, length in done) / len(done) + 0.5 * self.running_reward
        self.forget()

    def train_episode(self):
        running = [o.rpc_async(timeout=0).run_episode(self.here) for o in self.observers]
        torch.futures.wait_all(running)
        losses = []
        for log_probs, rewards in zip(self.log_probs, self.rewards):
            returns = discounted(rewards, gamma=0.99)
            returns = (returns - returns.mean()) / (returns.std() + torch.finfo(torch.float32).eps)
            losses.append(-(torch.cat(log_probs) * returns).sum())
            self.env_steps += len(rewards)
        self.learn(torch.stack(losses).sum())
        self.running_reward = 0.05 * min(map(sum, self.rewards)) + 0.95 * self.running_reward
        self.forget()


def lead(arguments, results):
    """The agent's process: trains, then sends the result to the parent."""
    agent = Agent(arguments.observers, arguments.seed)
    threshold = gymnasium.spec("CartPole-v1").reward_threshold
    start_s, episode, solved = time.perf_counter(), 0, False
    while not solved and (arguments.episodes == 0 or episode < arguments.episodes):
        if arguments.mode == "episode":
            agent.train_episode()
            solved = agent.running_reward > threshold
        else:
            agent.train_steps(arguments.mode == "batch")
        episode += 1
        if arguments.verbose and episode % 10 == 0:
            print(f"Episode {episode}\tAverage reward: {agent.running_reward:.2f}", flush=True)
    spent_s = time.perf_counter() - start_s
    results.put((episode, agent.env_steps, spent_s, agent.running_reward, solved))


def run_process(rank, arguments, rendezvous, results):
    torch.set_num_threads(1)
    rpc.init_rpc(
        "agent" if rank == 0 else f"observer{rank - 1}",
        rank=rank,
        world_size=arguments.observers + 1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}"),
    )
    if rank == 0:
        lead(arguments, results)
    rpc.shutdown()


def main():
    arguments = parse_arguments()
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        mp.spawn(
            run_process,
            args=(arguments, os.path.join(folder, "rendezvous"), results),
            nprocs=arguments.observers + 1,
        )
        job_s = time.perf_counter() - start_s
    episodes, env_steps, spent_s, running_reward, solved = results.get()
    print(
        f"peer mode={arguments.mode} observers={arguments.observers} episodes={episodes} "
        f"env_steps={env_steps} episodes_s={spent_s:.3f} env_steps_per_s={env_steps / spent_s:.1f} "
        f"job_s={job_s:.3f} running_reward={running_reward:.2f} solved={'yes' if solved else 'no'} "
        f"torch={torch.__version__} gymnasium={gymnasium.__version__}"
    )


if __name__ == "__main__":
    main()
