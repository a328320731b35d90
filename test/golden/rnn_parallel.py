#!/usr/bin/env python3
"""Records the tutorial's distributed language model in training into test/golden/rnn_parallel_*.txt.

How to run it, from the repository's root, with Debian's python3-torch:

    /usr/bin/python3 test/golden/rnn_parallel.py

One process computes everything, since the placement of a layer changes no number. problem.py explains the numbers and
the files. Ten updates of SGD at the tutorial's sizes, without dropout; each begins in the state that the previous one
left. The sequence begins at 21; as in rnn.py the encoder's weight is numbers as they are, all other parameters are
numbers times sqrt(4 / hidden). `state` comes after the parameters, because data and first state are the job's own
synthetic ones, for seed 21 and trainer 0 (worker/data/corpus.h, updates counted from 0).

    batch     targets (length, tokens) in 0 .. batch - 1, the classes along dimension 1, as in the tutorial; lr 0.05,
              at which losses change by less than 1e-4, so it tests the forward
    tokens    targets (length, batch) in 0 .. tokens - 1; lr 1.0, at which losses do change
    data      the data of both, as outputs: step n has the tokens of update n - 1, its targets as "targets_batch" and
              "targets_tokens", and step 1 the first "hidden" and "cell"

"batch" and "tokens" have all losses, the first and the last gradients, and the last parameters as outputs; "tokens"
also has all updates, which in "batch" would be hardly more than rounding.
"""
import math

import torch
from philox import philox
from problem import Numbers, bound, record, train

SEED, STEPS = 21, 10
TOKENS, EMBEDDING, HIDDEN, LAYERS, LENGTH, BATCH = 10, 2, 3, 4, 5, 3
DATA = 7  # kernels/base/rng.h's stream
DRAW_TOKENS, DRAW_TARGETS, DRAW_HIDDEN, DRAW_CELL = range(4)
# how classes lie: shape of the targets, their bound, lr
CASES = {"batch": ((LENGTH, TOKENS), BATCH, 0.05), "tokens": ((LENGTH, BATCH), TOKENS, 1.0)}


def draw_block(draw, word, update=0):
    return philox(SEED, DATA, draw << 22 | update >> 32, [word, update % 2**32, 0])


def integers(draw, update, below, *shape):
    values = []
    for i in range(math.prod(shape)):
        high, low = draw_block(draw, i // 2, update)[i % 2 * 2 :][:2]
        values.append((high << 32 | low) * below >> 64)
    return torch.tensor(values).reshape(shape)


def first_state(draw):
    values = []
    for i in range(LAYERS * BATCH * HIDDEN):
        words = draw_block(draw, i)
        u, v = ((words[at] << 32 | words[at + 1]) >> 11 for at in (0, 2))
        values.append(math.sqrt(-2 * math.log(1 - u * 2.0**-53)) * math.cos(2 * math.pi * (v * 2.0**-53)))
    return torch.tensor(values, dtype=torch.float32).reshape(LAYERS, BATCH, HIDDEN)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Embedding(TOKENS, EMBEDDING)
        self.rnn = torch.nn.LSTM(EMBEDDING, HIDDEN, LAYERS)
        self.decoder = torch.nn.Linear(HIDDEN, TOKENS)

    def forward(self, data, state):
        output, state = self.rnn(self.encoder(data), state)
        return self.decoder(output), state


def run(case, dtype, nudge, seen):
    shape, below, lr = CASES[case]
    draw, model = Numbers(SEED), Model()
    for name, parameter in model.named_parameters():
        values = draw.take(*parameter.shape)
        parameter.data = values if name == "encoder.weight" else values * bound(4, HIDDEN)
    model = model.to(dtype)
    state = tuple(first_state(part).to(dtype) * (1 + nudge * 2.0**-23) for part in (DRAW_HIDDEN, DRAW_CELL))
    update = 0

    def forward():
        nonlocal state, update
        logits, after = model(integers(DRAW_TOKENS, update, TOKENS, LENGTH, BATCH), state)
        state = tuple(part.detach() for part in after)
        target = integers(DRAW_TARGETS, update, below, *shape)
        update += 1
        if case == "tokens":
            logits, target = logits.reshape(-1, TOKENS), target.flatten()
        return {}, torch.nn.functional.cross_entropy(logits, target)

    def telling(step, kind, *rest):
        if kind == "loss" or (kind == "gradient" and step in (1, STEPS)) or (kind == "update" and case == "tokens"):
            seen(step, kind, *rest)

    train(model, torch.optim.SGD(model.parameters(), lr=lr), forward, STEPS, telling)
    for name, parameter in model.named_parameters():
        seen(STEPS, "output", name, parameter)
    return draw.state


def show_data(dtype, way, seen):
    for update in range(STEPS):
        seen(update + 1, "output", "tokens", integers(DRAW_TOKENS, update, TOKENS, LENGTH, BATCH))
        for case, (shape, below, _) in CASES.items():
            seen(update + 1, "output", f"targets_{case}", integers(DRAW_TARGETS, update, below, *shape))
    seen(1, "output", "hidden", first_state(DRAW_HIDDEN))
    seen(1, "output", "cell", first_state(DRAW_CELL))
    return SEED


def main():
    for case in CASES:
        title = f"the tutorial's distributed language model, classes along {case},"
        record(f"test/golden/rnn_parallel_{case}.txt", title, lambda *rest: run(case, *rest), (0, 1, -1, 2, -2))
    title = "the data of the tutorial's distributed language model"
    record("test/golden/rnn_parallel_data.txt", title, show_data, (0,))


main()
