#!/usr/bin/env python3
"""Records gradient steps of DQN, SAC and TD3 in PyTorch into test/golden/off_policy.txt, which
test/worker/model/test_q_golden.c reads.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/off_policy.py

off_policy_sb3.py prints how far Stable-Baselines3's own train() is from these steps.

The formulas are those of worker/model/policy.h, written here with autograd alone. An observation has 5 elements, an
action 3 choices or 3 floats, a network most often layers of 16 and 8 units. Parameters have the names and the order of
worker/model/policy_parameters.h, and the first values of its policy_begin_parameter. Draws are those of
kernels/lanes/normal.h at the keys of RNG_LEARNING.

The batches of a case are numbers of problem.py, so the record need not hold them. The sequence begins with the state
batch_seed. Each of the five steps takes, in this order:

    observations       (rows, 5) numbers * 2; bytes floor((number + 1) * 128)
    next_observations  (rows, 5) as observations
    actions            (rows, 3) numbers; choices (rows) floor((number + 1) / 2 * 3)
    rewards            (rows) numbers * 3
    terminated         (rows) number < -0.6
    weights            (rows) number + 1, where the case has weights
    next_allowed       (rows, 3) number > 0, where the case has masks; choice `row % 3` is allowed too

Stable-Baselines3 2.9.2 differs from policy.h in these points, and the record follows policy.h:

    target_interval  SAC moves its targets with every step whose number, from 1, is a multiple of the interval.
                     Stable-Baselines3 counts from 0, and anew in each call of train(). With an interval of 2 and five
                     steps a call, it moves them at steps 1, 3 and 5; with one step a call, at every step.
    log P with gSDE  Stable-Baselines3 finds the sum before tanh by atanh of the action, which it first clips to
                     1 - 1.2e-7. Here that sum is taken as it is.
    bytes            Stable-Baselines3 divides those of images by 255, and no others.

The file's form is that of ppo.py. A case has the input options (see OPTIONS), and the results losses (5, 4): critic,
actor, entropy coefficient and its loss, 0 where policy.h has NaN; and parameters: all, with the targets, after the last
step.
"""
import functools
import math

import torch
from philox import philox
from problem import Numbers

INPUTS, ACTIONS, STEPS = 5, 3, 5
GAMMA, TAU = 0.98, 0.02
INIT, LEARNING = 1, 10
DQN, SAC, TD3 = 1, 2, 3
# learning: DQN, SAC or TD3. lr: with 0.02 the network soon prefers other choices than its target. width0, width1,
# critic_width0, critic_width1: units of the hidden layers, and of the critics'; 0: there is no such layer.
# follow_after: the step after which DQN's target follows; 0: none.
DEFAULTS = {
    "learning": 0, "rows": 24, "seed": 0, "batch_seed": 0, "lr": 1e-3, "width0": 16, "width1": 8, "tanh": 0, "bytes": 0,
    "double": 0, "dueling": 0, "weights": 0, "masks": 0, "max_norm": 10, "follow_after": 0,
    "critics": 2, "critic_width0": 16, "critic_width1": 8,
    "learns_entropy": 1, "ent_coef": 1, "target_interval": 1, "sde": 0, "expln": 0, "log_std_init": 0,
    "policy_delay": 2, "target_noise": 0.2, "target_noise_clip": 0.5,
}  # fmt: skip
OPTIONS = list(DEFAULTS)
CASES = {
    "dqn": {"learning": DQN},
    "dqn_double": {"learning": DQN, "double": 1, "lr": 0.02, "follow_after": 2},
    "dqn_dueling": {"learning": DQN, "dueling": 1},
    "dqn_double_dueling": {"learning": DQN, "double": 1, "lr": 0.02, "dueling": 1, "weights": 1, "masks": 1},
    "dqn_weights": {"learning": DQN, "weights": 1},
    "dqn_clipped": {"learning": DQN, "max_norm": 0.05},
    "dqn_masks": {"learning": DQN, "masks": 1},
    "dqn_bytes": {"learning": DQN, "bytes": 1},
    "dqn_follow": {"learning": DQN, "follow_after": 3},
    "dqn_tanh": {"learning": DQN, "tanh": 1},
    "dqn_linear": {"learning": DQN, "width0": 0, "width1": 0},
    "dqn_chunks": {"learning": DQN, "rows": 300},
    "sac_auto": {"learning": SAC},
    "sac_auto_0.1": {"learning": SAC, "ent_coef": 0.1},
    "sac_fixed": {"learning": SAC, "learns_entropy": 0, "ent_coef": 0.2},
    "sac_critic": {"learning": SAC, "critics": 1},
    "sac_critics": {"learning": SAC, "critics": 3, "critic_width0": 8, "critic_width1": 4},
    "sac_layers": {"learning": SAC, "critic_width0": 12, "critic_width1": 0},
    "sac_tanh": {"learning": SAC, "tanh": 1},
    "sac_interval": {"learning": SAC, "target_interval": 2},
    "sac_bytes": {"learning": SAC, "bytes": 1, "critic_width1": 0},
    "sac_linear": {"learning": SAC, "width0": 0, "width1": 0, "bytes": 1, "critic_width0": 8, "critic_width1": 0},
    "sac_chunks": {"learning": SAC, "rows": 300},
    "sac_sde": {"learning": SAC, "sde": 1, "log_std_init": -1},
    "sac_sde_tanh": {"learning": SAC, "sde": 1, "log_std_init": -3, "tanh": 1, "learns_entropy": 0, "ent_coef": 0.2},
    "sac_sde_expln": {"learning": SAC, "sde": 1, "expln": 1, "log_std_init": 0.002, "critic_width1": 0},
    "sac_sde_chunks": {"learning": SAC, "sde": 1, "log_std_init": -1, "rows": 300, "critic_width1": 0},
    "td3": {"learning": TD3},
    "td3_clipped": {"learning": TD3, "target_noise": 0.5, "target_noise_clip": 0.3, "policy_delay": 3, "tanh": 1},
    "ddpg": {"learning": TD3, "critics": 1, "policy_delay": 1, "target_noise": 0},
    "td3_linear": {"learning": TD3, "width0": 16, "width1": 0, "critic_width0": 0, "critic_width1": 0},
    "td3_chunks": {"learning": TD3, "rows": 300, "policy_delay": 1},
}
# Rounding may not change the path of a case: the first pair of seeds is taken whose float32 run is so near.
NEAR, NEAR_LOSSES, SEEDS = 2.5e-7, 3e-6, 100


# ---- what a case begins with ----


def chain(name, inputs, widths):
    """The weights and biases of dense layers: name, shape and fan-in of each."""
    found = []
    for layer, (fan_in, units) in enumerate(zip([inputs] + widths, widths)):
        found.append((f"{name}.{2 * layer}.weight", (units, fan_in), fan_in))
        found.append((f"{name}.{2 * layer}.bias", (units,), fan_in))
    return found


def targets(parameters, old, new):
    return [(new + name.removeprefix(old), shape, 0) for name, shape, _ in parameters]


def widths_of(o, key):
    """Units of the hidden layers."""
    return [o[f"{key}{i}"] for i in (0, 1) if o[f"{key}{i}"]]


def list_parameters(o):
    """Name, shape and fan-in of each; fan-in 0: constant, or a target."""
    hidden, widths = widths_of(o, "width"), widths_of(o, "critic_width")
    if o["learning"] == DQN:
        network = chain("q_net.q_net", INPUTS, hidden + [ACTIONS + o["dueling"]])
        return network + targets(network, "q_net.", "q_net_target.")
    critics = []
    for j in range(o["critics"]):
        critics += chain(f"critic.qf{j}", INPUTS + ACTIONS, widths + [1])
    if o["learning"] == TD3:
        actor = chain("actor.mu", INPUTS, hidden + [ACTIONS])
        followers = targets(actor, "actor.", "actor_target.") + targets(critics, "critic.", "critic_target.")
        return actor + critics + followers
    units = hidden[-1] if hidden else INPUTS
    actor = chain("actor.latent_pi", INPUTS, hidden)
    if o["sde"]:
        actor = [("actor.log_std", (units, ACTIONS), 0)] + actor
        actor += [("actor.mu.0.weight", (ACTIONS, units), units), ("actor.mu.0.bias", (ACTIONS,), units)]
    else:
        for kind, shape in ("weight", (ACTIONS, units)), ("bias", (ACTIONS,)):
            actor += [(f"actor.{layer}.{kind}", shape, units) for layer in ("mu", "log_std")]
    weight = [("log_ent_coef", (1,), 0)] if o["learns_entropy"] else []
    return actor + critics + targets(critics, "critic.", "critic_target.") + weight


def followed(name):
    return name.replace("_target.", ".", 1)


def first_values(o, dtype):
    """All parameters by name."""
    values = {}
    for number, (name, shape, fan_in) in enumerate(list_parameters(o)):
        if name == "log_ent_coef":
            value = torch.tensor([math.log(o["ent_coef"])])
        elif name == "actor.log_std":
            value = torch.full(shape, o["log_std_init"])
        elif "_target." in name:
            value = values[followed(name)]
        else:
            words = (philox(o["seed"], INIT, 0, (e, 0, number))[0] for e in range(math.prod(shape)))
            numbers = [(2 * (w >> 8) * 2**-24 - 1) / math.sqrt(fan_in) for w in words]
            value = torch.tensor(numbers).reshape(shape)
        values[name] = value.float().to(dtype).clone()
    return values


def make_batches(o, dtype):
    draw, rows, batches = Numbers(o["batch_seed"]), o["rows"], []
    for _ in range(STEPS):
        batch = {}
        for name in "observations", "next_observations":
            numbers = draw.take(rows, INPUTS)
            batch[name] = ((numbers + 1) * 128).floor().to(dtype) / 255 if o["bytes"] else numbers * 2
        batch["actions"] = draw.indices(ACTIONS, rows) if o["learning"] == DQN else draw.take(rows, ACTIONS)
        batch["rewards"] = draw.take(rows) * 3
        batch["terminated"] = (draw.take(rows) < -0.6).float()
        batch["weights"] = draw.take(rows) + 1 if o["weights"] else torch.ones(rows)
        batch["next_allowed"] = torch.ones(rows, ACTIONS, dtype=torch.bool)
        if o["masks"]:
            batch["next_allowed"] = draw.take(rows, ACTIONS) > 0
            batch["next_allowed"][range(rows), [row % ACTIONS for row in range(rows)]] = True
        batches.append({key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()})
    return batches


@functools.lru_cache
def normals(seed, step, episode, count):
    """The first draws of normal_fill (kernels/lanes/normal.h)."""
    found = []
    for number in range(count):
        group, part, lane = number // 64, number % 64 // 16, number % 16
        words = philox(seed, LEARNING, 0, (16 * group + lane, step, episode))
        first, second = words[:2] if part < 2 else words[2:]
        radius = math.sqrt(-2 * math.log((first // 2 + 0.5) / 2**31))
        found.append(radius * (math.cos, math.sin)[part % 2](2 * math.pi * second / 2**32))
    return torch.tensor(found, dtype=torch.float64)


# ---- the steps ----


class Learner:
    """The policy of a case: parameters by name, p, and an optimizer for each part that learns."""

    def __init__(self, o, dtype):
        self.o, self.dtype, self.steps = o, dtype, 0
        self.p = first_values(o, dtype)
        self.f = torch.tanh if o["tanh"] else torch.relu
        self.optimizers = {}
        for part in "q_net.", "actor.", "critic.", "log_ent_coef":
            mine = self.of(part)
            if mine:
                self.optimizers[part] = torch.optim.Adam([value.requires_grad_() for value in mine], lr=o["lr"])

    def of(self, part):
        return [value for name, value in self.p.items() if name.startswith(part)]

    def layer(self, name, x):
        return torch.nn.functional.linear(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def run(self, name, x):
        """Dense layers, with the activation between them."""
        layers = sum(key.startswith(f"{name}.") and key.endswith("weight") for key in self.p)
        for number in range(layers):
            x = self.layer(f"{name}.{2 * number}", self.f(x) if number > 0 else x)
        return x

    def move(self, part, loss):
        """One step of Adam."""
        mine = self.optimizers[part].param_groups[0]["params"]
        for parameter, gradient in zip(mine, torch.autograd.grad(loss, mine)):
            parameter.grad = gradient
        if part == "q_net.":
            torch.nn.utils.clip_grad_norm_(mine, self.o["max_norm"])
        self.optimizers[part].step()

    def follow(self):
        with torch.no_grad():
            for name, value in self.p.items():
                if "_target." in name:
                    value += TAU * (self.p[followed(name)] - value)

    def noise(self, which, *shape):
        draws = normals(self.o["seed"], which, self.steps, math.prod(shape))
        return draws.reshape(shape).to(self.dtype)

    def fit(self, batch):
        self.steps += 1
        return {DQN: self.fit_dqn, SAC: self.fit_sac, TD3: self.fit_td3}[self.o["learning"]](batch)

    # DQN

    def q_values(self, network, x):
        z = self.run(f"{network}.q_net", x)
        if not self.o["dueling"]:
            return z
        return z[:, :1] + z[:, 1:] - z[:, 1:].mean(1, keepdim=True)

    def fit_dqn(self, batch):
        with torch.no_grad():
            judged = self.q_values("q_net_target", batch["next_observations"])
            chooser = self.q_values("q_net", batch["next_observations"]) if self.o["double"] else judged
            choice = chooser.masked_fill(~batch["next_allowed"], -math.inf).argmax(1, keepdim=True)
            following = (1 - batch["terminated"]) * judged.gather(1, choice).squeeze(1)
            target = batch["rewards"] + GAMMA * following
        value = self.q_values("q_net", batch["observations"]).gather(1, batch["actions"].unsqueeze(1)).squeeze(1)
        loss = (batch["weights"] * torch.nn.functional.smooth_l1_loss(value, target, reduction="none")).mean()
        self.move("q_net.", loss)
        if self.steps == self.o["follow_after"]:
            self.follow()
        return [loss.item(), 0, 0, 0]

    # critics

    def judge(self, network, x, actions):
        """The values of all critics (rows, critics)."""
        both = torch.cat([x, actions], 1)
        return torch.cat([self.run(f"{network}.qf{j}", both) for j in range(self.o["critics"])], 1)

    def critic_loss(self, batch, target):
        errors = self.judge("critic", batch["observations"], batch["actions"]) - target.unsqueeze(1)
        return (errors**2).mean(0).sum()

    # SAC

    def deviations(self):
        """gSDE's, of the weights of its noise."""
        log_std = self.p["actor.log_std"]
        if not self.o["expln"]:
            return log_std.exp()
        above = torch.log1p(torch.where(log_std > 0, log_std, 0) + 1e-6) + 1
        return torch.where(log_std > 0, above, log_std.exp())

    def explore(self, x, which):
        """Actions, and their log-probabilities."""
        for number in range(len(widths_of(self.o, "width"))):
            x = self.f(self.layer(f"actor.latent_pi.{2 * number}", x))
        if self.o["sde"]:
            std = self.deviations()
            mean = self.layer("actor.mu.0", x).clamp(-2, 2)
            sums = mean + x @ (std * self.noise(0, x.shape[1], ACTIONS))
            normal = torch.distributions.Normal(mean, (x**2 @ std**2 + 1e-6).sqrt())
        else:
            mean, log_std = self.layer("actor.mu", x), self.layer("actor.log_std", x).clamp(-20, 2)
            normal = torch.distributions.Normal(mean, log_std.exp())
            sums = mean + log_std.exp() * self.noise(which, len(x), ACTIONS)
        actions = torch.tanh(sums)
        return actions, (normal.log_prob(sums) - torch.log(1 - actions**2 + 1e-6)).sum(1)

    def fit_sac(self, batch):
        o, coefficient, entropy_loss = self.o, self.o["ent_coef"], 0
        actions, log_probability = self.explore(batch["observations"], 0)
        if o["learns_entropy"]:
            coefficient = self.p["log_ent_coef"].detach().exp().item()
            loss = -(self.p["log_ent_coef"] * (log_probability.detach() - ACTIONS)).mean()
            entropy_loss = loss.item()
            self.move("log_ent_coef", loss)
        with torch.no_grad():
            next_actions, next_log_probability = self.explore(batch["next_observations"], 1)
            least = self.judge("critic_target", batch["next_observations"], next_actions).min(1).values
            following = (1 - batch["terminated"]) * (least - coefficient * next_log_probability)
        critic_loss = 0.5 * self.critic_loss(batch, batch["rewards"] + GAMMA * following)
        self.move("critic.", critic_loss)
        least = self.judge("critic", batch["observations"], actions).min(1).values
        actor_loss = (coefficient * log_probability - least).mean()
        self.move("actor.", actor_loss)
        if self.steps % o["target_interval"] == 0:
            self.follow()
        return [critic_loss.item(), actor_loss.item(), coefficient, entropy_loss]

    # TD3

    def fit_td3(self, batch):
        o, actor_loss = self.o, torch.zeros(1)
        with torch.no_grad():
            most = o["target_noise_clip"]
            noise = (o["target_noise"] * self.noise(1, o["rows"], ACTIONS)).clamp(-most, most)
            next_actions = (self.run("actor_target.mu", batch["next_observations"]).tanh() + noise).clamp(-1, 1)
            least = self.judge("critic_target", batch["next_observations"], next_actions).min(1).values
            target = batch["rewards"] + GAMMA * (1 - batch["terminated"]) * least
        critic_loss = self.critic_loss(batch, target)
        self.move("critic.", critic_loss)
        if self.steps % o["policy_delay"] == 0:
            actions = self.run("actor.mu", batch["observations"]).tanh()
            actor_loss = -self.judge("critic", batch["observations"], actions)[:, 0].mean()
            self.move("actor.", actor_loss)
            self.follow()
        return [critic_loss.item(), actor_loss.item(), 0, 0]


def run(o, dtype):
    """Losses (steps, 4) and parameters of a case."""
    learner = Learner(o, dtype)
    losses = [learner.fit(batch) for batch in make_batches(o, dtype)]
    parameters = torch.cat([value.detach().flatten() for value in learner.p.values()])
    return torch.tensor(losses, dtype=torch.float64), parameters.double()


def open_case(name):
    """The options, with seeds, and the results of the float64 run; how far the float32 run is from it."""
    for seed in range(SEEDS):
        o = DEFAULTS | CASES[name] | {"seed": 100 + seed, "batch_seed": 1 + seed}
        exact, single = run(o, torch.float64), run(o, torch.float32)
        losses = ((exact[0] - single[0]).abs() / exact[0].abs().clamp(min=1e-30)).max().item()
        deviation = (exact[1] - single[1]).abs().max().item()
        if deviation < NEAR and losses < NEAR_LOSSES:
            return o, exact, (losses, deviation)
    raise ValueError(f"{name}: rounding changes the path with every seed")


def write_entry(out, name, values, deviation=None):
    numbers = [f"{v:.8g}" for v in values]
    head = [name, str(len(numbers))] + ([] if deviation is None else [f"{deviation:.3g}"])
    out.write(" ".join(head + numbers) + "\n")


def main():
    torch.set_num_threads(1)
    with open("test/golden/off_policy.txt", "w", encoding="ascii") as out:
        out.write(f"# steps of DQN, SAC and TD3 in PyTorch {torch.__version__}, by test/golden/off_policy.py\n")
        for name in CASES:
            o, (losses, parameters), deviations = open_case(name)
            out.write(f"case {name}\n")
            write_entry(out, "options", [o[key] for key in OPTIONS])
            write_entry(out, "=losses", losses.flatten().tolist(), deviations[0])
            write_entry(out, "=parameters", parameters.tolist(), deviations[1])


if __name__ == "__main__":
    main()
