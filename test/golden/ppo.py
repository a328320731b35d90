#!/usr/bin/env python3
"""Records an update of PPO in PyTorch into test/golden/ppo.txt, which test/worker/reinforce/test_ppo_golden.c reads.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/ppo.py

The formulas are those of worker/reinforce/ppo.h and kernels/policy/surrogate.h, written here with autograd
alone; those of A2C, with RMSprop, where the option plain is 1. A rollout of 3 environments and 5 steps has a
termination and two truncations in its middle, one of them at the last step. The policy has hidden layers of 8 and 6 units with tanh, and a value network of its own; its parameters have
the names and the order of kernels/policy/dense.h. Cases that end in _sde have state-dependent exploration; in those that
end in _shared the value reads the policy's hidden layers, and in those that end in _apart its network has one of 4
units.

    # a line of text: the versions
    case NAME
    NAME COUNT V...                inputs, float32
    NAME COUNT DEVIATION V...      results (their names begin with "="): of the float64 run, and how far PyTorch's
                                   own float32 was from them at most

Inputs: options (see OPTIONS), parameters, observations (6, 3, 3) with the closing step, rewards, flags, actions, masks
(5, 3, …), last_rows, last (…, 3), log_probabilities and values (5, 3) of the old policy, order0 … order2. Results:
closing (3), truncated, advantages, returns (5, 3), and for each of the minibatches 0 to 2: losses (see LOSSES),
gradient (clipped), parameters (after the step).
"""
import math

import torch
from problem import Numbers

COLUMNS, STEPS, INPUTS = 3, 5, 3
TERMINATED, TRUNCATED = 1, 2
GAMMA, LAMBDA, LR, EPSILON = 0.98, 0.9, 0.01, 1e-5
OPTIONS = ["clip", "value_clip", "value_coefficient", "entropy_coefficient", "halved", "normalizes", "max_norm",
           "bootstraps", "plain"]  # fmt: skip
LOSSES = ["loss", "policy", "value", "entropy", "kl", "clip_fraction", "gradient_norm"]
CHOICE, CHOICES, FLOATS = [3], [3, 2], 2
CASES = {  # choices of each component, or the number of floats; masks; then the options, 0: no clip of the value
    "choice": (CHOICE, False, [0.2, 0, 0.5, 0.01, 0, 1, 0.3, 1, 0]),
    "choice_value_clipped": (CHOICE, False, [0.2, 0.1, 0.5, 0, 0, 1, 0.3, 1, 0]),
    "choice_halved": (CHOICE, False, [0.1, 0.1, 1, 0.01, 1, 0, 1e9, 0, 0]),
    "choices_masked": (CHOICES, True, [0.2, 0, 0.5, 0.02, 0, 1, 0.5, 1, 0]),
    "floats": (FLOATS, False, [0.2, 0, 0.5, 0.01, 0, 1, 0.4, 1, 0]),
    "floats_value_clipped": (FLOATS, False, [0.3, 0.2, 0.25, 0, 1, 1, 1e9, 1, 0]),
    "choice_a2c": (CHOICE, False, [0.2, 0, 0.5, 0.01, 0, 0, 0.3, 1, 1]),
    "floats_a2c": (FLOATS, False, [0.2, 0, 0.5, 0, 0, 1, 0.5, 1, 1]),
    "floats_sde": (FLOATS, False, [0.2, 0, 0.5, 0.01, 0, 1, 0.4, 1, 0]),
    "choice_shared": (CHOICE, False, [0.2, 0.1, 0.5, 0.01, 0, 1, 0.3, 1, 0]),
    "floats_shared": (FLOATS, False, [0.2, 0, 0.5, 0.01, 0, 1, 0.4, 1, 0]),
    "choices_apart": (CHOICES, False, [0.2, 0, 0.5, 0.01, 0, 1, 0.3, 1, 0]),
}


class Policy(torch.nn.Module):
    """`widths`: floats of what the hidden layers read, then the units of each; `value_widths`: the same of a value
    network with other layers."""

    def __init__(self, head, widths, explores, shares, value_widths=None):
        super().__init__()
        self.head, self.explores = head, explores
        outputs = head if isinstance(head, int) else sum(head)
        if isinstance(head, int):
            self.log_std = torch.nn.Parameter(torch.zeros((widths[-1], head) if explores else head))

        def tower(widths):
            return torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in zip(widths, widths[1:]))

        value_widths = value_widths or widths
        self.policy_net = tower(widths)
        self.value_net = self.policy_net if shares else tower(value_widths)
        self.action, self.value = torch.nn.Linear(widths[-1], outputs), torch.nn.Linear(value_widths[-1], 1)

    def estimate(self, x):
        for layer in self.value_net:
            x = torch.tanh(layer(x))
        return self.value(x).squeeze(-1)

    def judge(self, x, actions, masks):
        """log P of the actions, and the entropies."""
        for layer in self.policy_net:
            x = torch.tanh(layer(x))
        z = self.action(x)
        if self.explores:
            variance = x.detach() ** 2 @ self.log_std.exp() ** 2 + 1e-6
            normal = torch.distributions.Normal(z, variance.sqrt())
            return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)
        if isinstance(self.head, int):
            t = (actions - z) / self.log_std.exp()
            half = math.log(2 * math.pi) / 2
            return (-t * t / 2 - self.log_std - half).sum(-1), (self.log_std + half + 0.5).sum().expand(len(x))
        log_probability, entropy = 0, 0
        for component, logits in enumerate(z.split(self.head, -1)):
            if masks is not None:
                logits = logits.masked_fill(masks.split(self.head, -1)[component] == 0, -1e30)
            logs = torch.log_softmax(logits, -1)
            log_probability = log_probability + logs.gather(-1, actions[:, component : component + 1]).squeeze(-1)
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return log_probability, entropy


def policy_of(name):
    value_widths = [INPUTS, 4] if name.endswith("_apart") else None
    return Policy(CASES[name][0], [INPUTS, 8, 6], name.endswith("_sde"), name.endswith("_shared"), value_widths)


def make_inputs(name):
    head, has_masks, options = CASES[name]
    draw = Numbers(list(CASES).index(name) + 1)
    rows = STEPS * COLUMNS
    inputs = {"options": torch.tensor(options, dtype=torch.float32)}
    policy = policy_of(name)
    inputs["parameters"] = torch.cat([draw.take(p.numel()) * 0.6 for p in policy.parameters()])
    inputs["observations"] = draw.take((STEPS + 1) * COLUMNS, INPUTS) * 2
    inputs["rewards"] = draw.take(rows) * 1.5
    flags = torch.zeros(STEPS, COLUMNS)
    flags[1, 0], flags[2, 1], flags[4, 2] = TERMINATED, TRUNCATED, TRUNCATED
    inputs["flags"] = flags.flatten()
    inputs["last_rows"] = torch.tensor([2.0 * COLUMNS + 1, 4.0 * COLUMNS + 2])
    inputs["last"] = draw.take(2, INPUTS)
    if isinstance(head, int):
        inputs["actions"] = draw.take(rows, head) * 2
    else:
        inputs["actions"] = torch.stack([draw.indices(c, rows) for c in head], -1).float()
    if has_masks:
        masks = (draw.take(rows, sum(head)) > 0).float()
        first = 0
        for component, choices in enumerate(head):  # the action itself is allowed
            masks.scatter_(-1, first + inputs["actions"][:, component : component + 1].long(), 1)
            first += choices
        inputs["masks"] = masks
    load(policy, inputs)
    with torch.no_grad():
        actions = inputs["actions"] if isinstance(head, int) else inputs["actions"].long()
        x = inputs["observations"][:rows]
        log_probability, _ = policy.judge(x, actions, inputs.get("masks"))
        inputs["log_probabilities"] = log_probability + 0.3 * draw.take(rows)
        inputs["values"] = policy.estimate(x) + 0.3 * draw.take(rows)
    order = torch.argsort(draw.take(rows))
    for i in range(3):
        inputs[f"order{i}"] = order[5 * i : 5 * i + 5].sort().values.float()
    return inputs


def load(policy, inputs):
    at = 0
    for p in policy.parameters():
        p.data = inputs["parameters"][at : at + p.numel()].reshape(p.shape).clone()
        at += p.numel()


def advantages(inputs, options, closing, truncated):
    """Of (steps, columns), flat; and the returns."""
    columns = len(closing)
    rewards, values = inputs["rewards"].reshape(-1, columns), inputs["values"].reshape(-1, columns)
    flags, last_rows = inputs["flags"].reshape(-1, columns), inputs["last_rows"].long().tolist()
    result = torch.zeros(len(rewards), columns, dtype=closing.dtype)
    for column in range(columns):
        advantage, following = 0.0, closing[column]
        for step in reversed(range(len(rewards))):
            flag = int(flags[step, column])
            if flag:
                advantage, following = 0.0, 0.0
            if flag == TRUNCATED and options["bootstraps"]:
                following = truncated[last_rows.index(step * columns + column)]
            delta = rewards[step, column] + GAMMA * following - values[step, column]
            advantage = delta + GAMMA * LAMBDA * advantage
            result[step, column] = advantage
            following = values[step, column]
    return result.flatten(), (result + values).flatten()


def optimizer_of(policy, options):
    if options["plain"]:
        return torch.optim.RMSprop(policy.parameters(), lr=LR, eps=EPSILON)
    return torch.optim.Adam(policy.parameters(), lr=LR, eps=EPSILON)


def improve(policy, optimizer, options, found, before, advantage, target):
    """One step. `found`: log-probabilities, entropies and values of the rows; `before`: log-probabilities and values of
    the old policy. Returns what is seen of it."""
    log_probability, entropy, value = found
    old_log_probability, old = before
    if options["normalizes"]:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    difference = log_probability - old_log_probability
    ratio, clip = difference.exp(), options["clip"]
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    if options["plain"]:
        policy_loss = -(log_probability * advantage).mean()
    square = (value - target) ** 2
    if options["value_clip"]:
        near = old + (value - old).clamp(-options["value_clip"], options["value_clip"])
        clipped = (near - target) ** 2
        square = torch.max(square, clipped) if options["halved"] else clipped
    value_loss = square.mean() * (0.5 if options["halved"] else 1)
    loss = policy_loss + options["value_coefficient"] * value_loss - options["entropy_coefficient"] * entropy.mean()
    kl = (ratio - 1 - difference).mean()
    fraction = ((ratio - 1).abs() > clip).to(ratio.dtype).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), options["max_norm"])
    losses = [loss, policy_loss, value_loss, entropy.mean(), kl, fraction, norm]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
    gradient = torch.cat([g.flatten().clone() for g in gradients])
    optimizer.step()
    return {
        "losses": torch.stack([number.detach().to(ratio.dtype) for number in losses]),
        "gradient": gradient,
        "parameters": torch.cat([p.detach().flatten() for p in policy.parameters()]),
    }


def run(name, dtype):
    head = CASES[name][0]
    inputs = {key: value.to(dtype) for key, value in make_inputs(name).items()}
    options = dict(zip(OPTIONS, inputs["options"].tolist()))
    policy = policy_of(name).to(dtype)
    load(policy, inputs)
    x = inputs["observations"]
    actions = inputs["actions"] if isinstance(head, int) else inputs["actions"].long()
    with torch.no_grad():
        closing, truncated = policy.estimate(x[STEPS * COLUMNS :]), policy.estimate(inputs["last"])
    all_advantages, returns = advantages(inputs, options, closing, truncated)
    seen = {"closing": closing, "truncated": truncated, "advantages": all_advantages, "returns": returns}
    optimizer = optimizer_of(policy, options)
    for i in range(3):
        rows = inputs[f"order{i}"].long()
        masks = inputs["masks"][rows] if "masks" in inputs else None
        found = *policy.judge(x[rows], actions[rows], masks), policy.estimate(x[rows])
        before = inputs["log_probabilities"][rows], inputs["values"][rows]
        step = improve(policy, optimizer, options, found, before, all_advantages[rows], returns[rows])
        seen |= {f"{key}{i}": value for key, value in step.items()}
    return {key: value.detach().double() for key, value in seen.items()}


def write_case(out, name, inputs, exact, single):
    out.write(f"case {name}\n")
    for key, value in inputs.items():
        out.write(f"{key} {value.numel()} " + " ".join(f"{v:.9g}" for v in value.flatten().tolist()) + "\n")
    for key, value in exact.items():
        deviation = (value - single[key]).abs().max().item()
        text = " ".join(f"{v:.10g}" for v in value.flatten().tolist())
        out.write(f"={key} {value.numel()} {deviation:.3g} {text}\n")


def main():
    torch.set_num_threads(1)
    with open("test/golden/ppo.txt", "w", encoding="ascii") as out:
        out.write(f"# an update of PPO in PyTorch {torch.__version__}, by test/golden/ppo.py\n")
        for name in CASES:
            write_case(out, name, make_inputs(name), run(name, torch.float64), run(name, torch.float32))


if __name__ == "__main__":
    main()
