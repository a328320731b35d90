#!/usr/bin/env python3
"""Records the policy with masks drawn row by row into test/golden/policy_tape.txt.

How to run it, from the repository's root, with Debian's python3-torch:

    /usr/bin/python3 test/golden/policy_tape.py

problem.py explains the numbers and the file; test/worker/model/test_policy_mlp_gpu_golden.c reads it. Three
steps of Adam with lr 0.01 on one batch of 300 rows, with the sum of -coefficient * log-probability of the
row's action as the loss. The sequence begins at 7. Parameters are numbers times sqrt(1 / fan_in),
observations numbers, coefficients numbers times 2, actions indices. Masks are drawn by Philox4x32-10 as
kernels/kernels.h says, implemented here independently from Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC11: seed SEED, and row i's words are environment i % 5, step i // 5, episode 3.
"""
import numpy
import torch
from problem import Numbers, bound, record, train, watch

INPUTS, HIDDEN, ACTIONS, ROWS, DROPOUT, STEPS = 4, 128, 2, 300, 0.6, 3
SEED = 0x123456789ABCDEF
STREAM_DROPOUT = 3


def philox(counter, key):
    """Ten rounds on arrays of four counter words and two key words, all uint64 below 2^32."""
    low = numpy.uint64(0xFFFFFFFF)
    half = numpy.uint64(32)
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = a * numpy.uint64(0xD2511F53), c * numpy.uint64(0xCD9E8D57)
        a, b, c, d = (q >> half) ^ b ^ k0, q & low, (p >> half) ^ d ^ k1, p & low
        k0, k1 = (k0 + numpy.uint64(0x9E3779B9)) & low, (k1 + numpy.uint64(0xBB67AE85)) & low
    return a, b, c, d


def keep_bits():
    """(ROWS, HIDDEN): 1 where a unit is kept."""
    row, unit = numpy.meshgrid(numpy.arange(ROWS, dtype=numpy.uint64), numpy.arange(HIDDEN), indexing="ij")
    block = 16 * (unit // 128) + unit % 16
    part = unit % 128 // 16
    counter = (
        numpy.uint64(STREAM_DROPOUT << 24) | block.astype(numpy.uint64),
        row % numpy.uint64(5),
        row // numpy.uint64(5),
        numpy.full_like(row, 3),
    )
    words = numpy.stack(philox(counter, (numpy.uint64(SEED & 0xFFFFFFFF), numpy.uint64(SEED >> 32))))
    word = numpy.take_along_axis(words, (part // 2)[None], axis=0)[0]
    bits = word >> (16 * (part % 2)).astype(numpy.uint64) & numpy.uint64(0xFFFF)
    return torch.from_numpy((bits >= round(65536 * DROPOUT)).astype(numpy.float64))


class Policy(torch.nn.Module):
    """The tutorial's network, with the dropout's mask given."""

    def __init__(self):
        super().__init__()
        self.affine1 = torch.nn.Linear(INPUTS, HIDDEN)
        self.relu = torch.nn.ReLU()
        self.affine2 = torch.nn.Linear(HIDDEN, ACTIONS)

    def forward(self, x, keep):
        return self.affine2(self.relu(self.affine1(x)) * keep / (1 - DROPOUT))


def run(dtype, nudge, seen):
    draw = Numbers(7)
    policy = Policy()
    for name, parameter in policy.named_parameters():
        fan_in = INPUTS if name.startswith("affine1") else HIDDEN
        parameter.data = draw.take(*parameter.shape) * bound(1, fan_in)
    policy = policy.to(dtype)
    watch(policy, seen)
    x = draw.take(ROWS, INPUTS).to(dtype) * (1 + nudge * 2.0**-23)
    coefficient = 2 * draw.take(ROWS).to(dtype)
    actions = draw.indices(ACTIONS, ROWS)
    keep = keep_bits().to(dtype)

    def forward():
        logits = policy(x, keep)
        log_probability = torch.log_softmax(logits, dim=1)[torch.arange(ROWS), actions]
        loss = -(coefficient * log_probability).sum()
        return {"keep": keep, "probabilities": torch.softmax(logits, dim=1)}, loss

    train(policy, torch.optim.Adam(policy.parameters(), lr=0.01), forward, STEPS, seen)
    return draw.state


def main():
    record("test/golden/policy_tape.txt", "the policy", run, (0, 1, -1, 2, -2, 3, -3, 4, -4))


main()
