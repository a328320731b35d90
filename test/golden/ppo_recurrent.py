#!/usr/bin/env python3
"""Records an update of PPO with memory in PyTorch into test/golden/ppo_recurrent.txt, which
test/worker/reinforce/test_ppo_golden_recurrent.c reads.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/ppo_recurrent.py

The formulas and the file's form are those of test/golden/ppo.py. The policy has recurrent layers of 4 units, PyTorch's
nn.LSTM or nn.GRU, in front of a hidden layer of 5 units with tanh. What the value reads follows sb3-contrib's
RecurrentActorCriticPolicy: layers of its own, the policy's layers without their gradient, or a linear layer; or, beyond
sb3-contrib, the policy's recurrent and hidden layers with their gradient (shared). The parameters have the order of
worker/model/policy_parameters.h.

The policy acts step by step, in a rollout whose episodes end in the middle; one episode fails, and nothing is learned
from it. The states before each row are kept, as constants of the update. A minibatch then has whole columns, or padded
sequences: pieces of the order (column, step). Its rows go through the recurrent layers one by one. A row that begins an
episode reads zeros; a row whose predecessor is not in the minibatch reads the kept state.

Inputs: options (see OPTIONS of ppo.py), sizes (see SIZES), parameters, observations (steps + 1, columns, 3), begin
(columns, floats), rewards, flags, actions, masks (steps, columns, …), last_rows, last (…, 3), log_probabilities and
values (steps, columns) of the old policy, order0 … Results: states (steps + 1, columns, floats), values (steps, columns)
when acting; closing (columns), truncated, advantages, returns (steps, columns); of each minibatch losses, gradient
(clipped), parameters (after the step); figures (see FIGURES) of the update.
"""
import torch
from philox import philox
from ppo import CHOICE, CHOICES, FLOATS, INPUTS, OPTIONS, TERMINATED, TRUNCATED
from ppo import Policy, advantages, improve, load, optimizer_of, write_case
from problem import Numbers

UNITS, HIDDEN = 4, 5
FAILED = 8
SHUFFLE, UPDATE = 5, 1
LSTM, GRU = torch.nn.LSTM, torch.nn.GRU
SIZES = ["columns", "steps", "batch_size", "minibatches", "seed"]
FIGURES = ["loss", "policy", "value", "entropy", "clip_fraction", "kl"]
PLAIN = [0.2, 0, 0.5, 0.01, 0, 1, 0.3, 1, 0]
CLIPPED = [0.2, 0.1, 0.5, 0.01, 1, 1, 1e9, 1, 0]
A2C = [0.2, 0, 0.5, 0.01, 0, 0, 0.5, 1, 1]
# The cell, its layers, what the value reads, choices of each component or the number of floats, whether the columns stay
# whole, rows of a minibatch, options. Names that end in _sde have state-dependent exploration, in _masked masks.
CASES = {
    "lstm": (LSTM, 1, "own", CHOICE, True, 12, PLAIN),
    "lstm_padded": (LSTM, 1, "own", FLOATS, False, 9, CLIPPED),
    "lstm_round": (LSTM, 1, "own", CHOICE, False, 19, PLAIN),
    "lstm_detached": (LSTM, 1, "detached", CHOICE, True, 12, PLAIN),
    "lstm_linear": (LSTM, 1, "linear", FLOATS, False, 9, PLAIN),
    "lstm_shared": (LSTM, 1, "shared", CHOICE, True, 12, CLIPPED),
    "lstm_layers": (LSTM, 2, "own", CHOICE, False, 9, PLAIN),
    "lstm_sde": (LSTM, 1, "own", FLOATS, True, 12, PLAIN),
    "lstm_a2c": (LSTM, 1, "own", CHOICE, True, 24, A2C),
    "gru": (GRU, 1, "own", FLOATS, True, 12, PLAIN),
    "gru_padded_masked": (GRU, 1, "own", CHOICES, False, 9, CLIPPED),
    "gru_detached": (GRU, 1, "detached", FLOATS, False, 9, PLAIN),
    "gru_linear": (GRU, 1, "linear", CHOICE, True, 12, PLAIN),
    "gru_shared": (GRU, 1, "shared", FLOATS, False, 9, PLAIN),
    "gru_long": (GRU, 1, "own", CHOICE, True, 320, PLAIN),
    "gru_layers": (GRU, 3, "detached", CHOICE, True, 12, PLAIN),
}


class Recurrent(Policy):
    def __init__(self, name):
        cell, layers, critic, head = CASES[name][:4]
        super().__init__(head, [UNITS, HIDDEN], name.endswith("_sde"), critic == "shared")
        self.layers, self.kind = layers, critic
        self.parts = 2 if cell is LSTM else 1  # of a layer's state: h, and c
        self.actor = cell(INPUTS, UNITS, layers)
        self.critic = None
        if critic == "own":
            self.critic = cell(INPUTS, UNITS, layers)
        elif critic == "linear":
            self.critic = torch.nn.Linear(INPUTS, UNITS)
        self.floats = layers * self.parts * UNITS * (2 if critic == "own" else 1)

    def run_memory(self, memory, x, state):
        """One step of rows (rows, inputs): what the layers make of them, and the states (rows, floats) behind them."""
        parts = state.reshape(len(x), self.layers, self.parts, UNITS).permute(2, 1, 0, 3).contiguous()
        y, new = memory(x.unsqueeze(0), tuple(parts) if self.parts == 2 else parts[0])
        new = torch.stack(new) if self.parts == 2 else new.unsqueeze(0)
        return y.squeeze(0), new.permute(2, 1, 0, 3).reshape(len(x), -1)

    def remember(self, x, state):
        """What the policy's hidden layers read, what the value's read, and the states behind the rows."""
        if self.kind == "own":
            half = self.floats // 2
            actor, first = self.run_memory(self.actor, x, state[:, :half])
            critic, second = self.run_memory(self.critic, x, state[:, half:])
            return actor, critic, torch.cat([first, second], 1)
        actor, state = self.run_memory(self.actor, x, state)
        if self.kind == "linear":
            return actor, self.critic(x), state
        return actor, actor if self.kind == "shared" else actor.detach(), state


def sizes_of(name):
    """Columns and steps."""
    return (8, 40) if name == "gru_long" else (4, 6)


def make_flags(columns, steps):
    flags = torch.zeros(steps, columns)
    flags[1, 0], flags[2, 1], flags[steps - 1, 2] = TERMINATED, TRUNCATED, TRUNCATED
    flags[1, 3], flags[3, 3], flags[4, 1] = TRUNCATED, FAILED, TERMINATED
    for column in range(4, columns):
        flags[column::7, column] = TERMINATED
    return flags


def act(policy, inputs, columns, steps):
    """States before all rows and the closing ones; what the policy's and the value's hidden layers read of the rows."""
    flags = inputs["flags"].reshape(steps, columns)
    state, states, features = inputs["begin"].clone(), [], []
    state[1] = 0  # its episode has ended with the rollout before
    x = inputs["observations"].reshape(steps + 1, columns, INPUTS)
    for step in range(steps):
        states.append(state)
        ended = flags[step - 1] if step > 0 else torch.zeros(columns)
        actor, critic, state = policy.remember(x[step], torch.where(ended.unsqueeze(1) != 0, 0.0, state))
        features.append((actor, critic))
    states.append(state)
    return torch.cat(states), torch.cat([f[0] for f in features]), torch.cat([f[1] for f in features])


def bootstrap(policy, inputs, states, columns):
    """The values of the closing step and of the last observations of truncated episodes."""
    closing = torch.where(inputs["flags"][-columns:].unsqueeze(1) != 0, 0.0, states[-columns:])
    found = []
    for x, state in (inputs["observations"][-columns:], closing), \
                    (inputs["last"], states[inputs["last_rows"].long() + columns]):
        found.append(policy.estimate(policy.remember(x, state)[1]))
    return found


def learned_rows(flags, columns):
    """By (column, step), without the episodes that failed."""
    rows = []
    for column in range(columns):
        failed, mine = False, []
        for step in reversed(range(len(flags) // columns)):
            row = step * columns + column
            if flags[row]:
                failed = flags[row] == FAILED
            if not failed:
                mine.append(row)
        rows += reversed(mine)
    return rows


def minibatches(name, flags):
    """Rows of each, ascending, by worker/reinforce/ppo.h; and the seed of the draws. Of lstm_round the first seed with
    which a minibatch goes round from the end of a column to its begin."""
    whole, size = CASES[name][4:6]
    columns, steps = sizes_of(name)
    rows = learned_rows(flags.tolist(), columns)
    for seed in range(7, 100):
        def draw(number):
            return philox(seed, SHUFFLE, 0, (number, 0, UPDATE))[0]

        of = {}
        if whole:
            order = sorted(range(columns), key=lambda column: (draw(column), column))
            if columns <= size // steps:
                order = list(range(columns))
            of = {row: order.index(row % columns) // (size // steps) for row in rows}
        else:
            begin = draw(0) * len(rows) >> 32 if len(rows) > size else 0
            of = {row: ((i - begin) % len(rows)) // size for i, row in enumerate(rows)}
        found = [sorted(row for row in rows if of[row] == m) for m in range(max(of.values()) + 1)]
        if name != "lstm_round" or any(gap(found[0], column, columns) for column in range(3)):
            return found, seed
    raise ValueError(f"{name}: no seed goes round")


def gap(rows, column, columns):
    """Whether the column's rows have a hole that is no failed episode's."""
    mine = [row for row in rows if row % columns == column]
    return any(b - a > columns for a, b in zip(mine, mine[1:]))


def learn_features(policy, x, rows, states, flags, columns):
    """What the hidden layers read of a minibatch's rows."""
    last, actors, critics = {}, [], []
    for row in rows:
        column = row % columns
        before, state = last.get(column, (None, None))
        if before != row - columns:
            state = states[row : row + 1]
        if row >= columns and flags[row - columns] != 0:
            state = torch.zeros_like(state)
        actor, critic, state = policy.remember(x[row : row + 1], state)
        last[column] = row, state
        actors.append(actor)
        critics.append(critic)
    return torch.cat(actors), torch.cat(critics)


def judge(policy, features, inputs, rows):
    head = policy.head
    actions = inputs["actions"][rows] if isinstance(head, int) else inputs["actions"][rows].long()
    masks = inputs["masks"][rows] if "masks" in inputs else None
    return *policy.judge(features[0], actions, masks), policy.estimate(features[1])


def make_inputs(name):
    head, _, size, options = CASES[name][3:]
    columns, steps = sizes_of(name)
    draw, policy = Numbers(list(CASES).index(name) + 1), Recurrent(name)
    rows = columns * steps
    inputs = {"options": torch.tensor(options, dtype=torch.float32)}
    inputs["parameters"] = torch.cat([draw.take(p.numel()) * 0.6 for p in policy.parameters()])
    inputs["observations"] = draw.take(rows + columns, INPUTS) * 2
    inputs["begin"] = draw.take(columns, policy.floats) * 0.5
    inputs["rewards"] = draw.take(rows) * 1.5
    inputs["flags"] = make_flags(columns, steps).flatten()
    inputs["last_rows"] = (inputs["flags"] == TRUNCATED).nonzero().flatten().float()
    inputs["last"] = draw.take(len(inputs["last_rows"]), INPUTS)
    if isinstance(head, int):
        inputs["actions"] = draw.take(rows, head) * 2
    else:
        inputs["actions"] = torch.stack([draw.indices(c, rows) for c in head], -1).float()
    if name.endswith("_masked"):
        masks, first = (draw.take(rows, sum(head)) > 0).float(), 0
        for component, choices in enumerate(head):  # the action itself is allowed
            masks.scatter_(-1, first + inputs["actions"][:, component : component + 1].long(), 1)
            first += choices
        inputs["masks"] = masks
    load(policy, inputs)
    with torch.no_grad():
        log_probability, _, value = judge(policy, act(policy, inputs, columns, steps)[1:], inputs, slice(None))
        inputs["log_probabilities"] = log_probability + 0.3 * draw.take(rows)
        inputs["values"] = value + 0.3 * draw.take(rows)
    orders, seed = minibatches(name, inputs["flags"])
    inputs["sizes"] = torch.tensor([columns, steps, size, len(orders), seed]).float()
    for i, order in enumerate(orders):
        inputs[f"order{i}"] = torch.tensor(order).float()
    return inputs


def run(name, dtype):
    columns, steps = sizes_of(name)
    inputs = {key: value.to(dtype) for key, value in make_inputs(name).items()}
    options = dict(zip(OPTIONS, inputs["options"].tolist()))
    policy = Recurrent(name).to(dtype)
    load(policy, inputs)
    with torch.no_grad():
        states, _, features = act(policy, inputs, columns, steps)
        seen = {"states": states, "values": policy.estimate(features)}
        closing, truncated = bootstrap(policy, inputs, states, columns)
    all_advantages, returns = advantages(inputs, options, closing, truncated)
    learned = torch.zeros_like(all_advantages)
    learned[learned_rows(inputs["flags"].tolist(), columns)] = 1
    seen |= {"closing": closing, "truncated": truncated}
    seen |= {"advantages": all_advantages * learned, "returns": returns * learned}
    optimizer, losses = optimizer_of(policy, options), []
    for i in range(int(inputs["sizes"][3])):
        rows = inputs[f"order{i}"].long().tolist()
        features = learn_features(policy, inputs["observations"], rows, states, inputs["flags"], columns)
        before = inputs["log_probabilities"][rows], inputs["values"][rows]
        step = improve(policy, optimizer, options, judge(policy, features, inputs, rows), before,
                       all_advantages[rows], returns[rows])  # fmt: skip
        losses.append(step["losses"])
        seen |= {f"{key}{i}": value for key, value in step.items()}
    mean = torch.stack(losses).mean(0)
    seen["figures"] = torch.stack([losses[-1][0], mean[1], mean[2], -mean[3], mean[5], mean[4]])
    return {key: value.detach().double() for key, value in seen.items()}


def main():
    torch.set_num_threads(1)
    with open("test/golden/ppo_recurrent.txt", "w", encoding="ascii") as out:
        out.write(f"# an update of PPO with memory in PyTorch {torch.__version__}, by test/golden/ppo_recurrent.py\n")
        for name in CASES:
            write_case(out, name, make_inputs(name), run(name, torch.float64), run(name, torch.float32))


if __name__ == "__main__":
    main()
