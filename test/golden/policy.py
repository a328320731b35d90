#!/usr/bin/env python3
"""Records the policy in PyTorch into test/golden/policy.txt, which test/worker/model/test_policy.c reads.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/policy.py

Parameters, observations and coefficients are those of mlp_problem_init(shape, dropout, rows, seed) in
test/kernels/policy/mlp_problem.c. The same generator, started again at seed + 1000, gives first the keep bits (kept
where the number is >= 0, row by row), then the actions ((number + 1) / 2 * actions, rounded down).

    # a line of text: the versions
    case INPUTS HIDDEN ACTIONS DROPOUT ROWS SEED
    NAME COUNT DEVIATION V0 V1 ...       float64 values, and how far PyTorch's own float32 was from them at most

NAME is probabilities (rows, actions), loss, gradient (slab order), or parameters after 1 or 3 steps of Adam
with lr 0.01 on this one batch.
"""
import itertools
import math

import torch

CASES = [(4, 128, 2, 0.6, 40, 1), (3, 20, 5, 0.25, 37, 2), (4, 50, 2, 0.5, 300, 3)]


def numbers(state):
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield ((state >> 40) - 2**23) / 2**23


class Policy(torch.nn.Module):
    """The tutorial's network, with the dropout's mask given."""

    def __init__(self, inputs, hidden, actions):
        super().__init__()
        self.affine1 = torch.nn.Linear(inputs, hidden)
        self.affine2 = torch.nn.Linear(hidden, actions)

    def forward(self, x, keep):
        return self.affine2(torch.relu(self.affine1(x) * keep))


def load(policy, draw, inputs, hidden):
    """The slab's numbers, each layer's times 1 / sqrt(fan-in) in float32."""
    bounds = [1 / torch.tensor(float(n)).sqrt() for n in (inputs, inputs, hidden, hidden)]
    for parameter, bound in zip(policy.parameters(), bounds):
        values = torch.tensor(list(itertools.islice(draw, parameter.numel())), dtype=torch.float32)
        parameter.data = (values * bound).reshape(parameter.shape)


def flat(tensors):
    return torch.cat([t.detach().double().flatten() for t in tensors])


def run(dtype, inputs, hidden, actions, dropout, rows, seed):
    draw, choose = numbers(seed), numbers(seed + 1000)
    policy = Policy(inputs, hidden, actions)
    load(policy, draw, inputs, hidden)
    policy = policy.to(dtype)
    x = torch.tensor(list(itertools.islice(draw, rows * inputs)), dtype=dtype).reshape(rows, inputs)
    coefficient = 2 * torch.tensor(list(itertools.islice(draw, rows)), dtype=dtype)
    kept = [float(next(choose) >= 0) / (1 - dropout) for _ in range(rows * hidden)]
    keep = torch.tensor(kept, dtype=dtype).reshape(rows, hidden)
    taken = torch.tensor([math.floor((next(choose) + 1) / 2 * actions) for _ in range(rows)])
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    seen = {}
    for step in (1, 2, 3):
        optimizer.zero_grad()
        z = policy(x, keep)
        log_probability = torch.log_softmax(z, dim=1)[torch.arange(rows), taken]
        loss = -(coefficient * log_probability).sum()
        loss.backward()
        if step == 1:
            seen["probabilities"] = flat([torch.softmax(z, dim=1)])
            seen["loss"] = flat([loss])
            seen["gradient"] = flat([p.grad for p in policy.parameters()])
        optimizer.step()
        if step in (1, 3):
            seen[f"parameters{step}"] = flat(policy.parameters())
    return seen


def main():
    with open("test/golden/policy.txt", "w", encoding="ascii") as out:
        out.write(f"# the policy in PyTorch {torch.__version__}, by test/golden/policy.py\n")
        for case in CASES:
            out.write("case " + " ".join(repr(n) for n in case) + "\n")
            exact, single = run(torch.float64, *case), run(torch.float32, *case)
            for name, values in exact.items():
                deviation = (values - single[name]).abs().max().item()
                text = " ".join(f"{v:.10g}" for v in values.tolist())
                out.write(f"{name} {values.numel()} {deviation:.3g} {text}\n")


main()
