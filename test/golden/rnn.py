#!/usr/bin/env python3
"""Records the tutorial's language model in training into test/golden/rnn_small.txt and rnn_large.txt.

How to run it, from the repository's root, with Debian's python3-torch:

    /usr/bin/python3 test/golden/rnn.py

problem.py explains the numbers and the files; test/worker/model/test_rnn.c reads them. Three steps of SGD with lr 1.0
and no dropout on one batch, whose targets are tokens of the vocabulary; each step begins in the state that the
previous one left. rnn_small has the tutorial's sizes, rnn_large the job's. Their sequences begin at 1 and 2. The
encoder's weight is numbers as they are, all other parameters are numbers times
sqrt(4 / hidden). Then come the first h and c, the tokens, and the targets.
"""
import torch
from problem import Numbers, bound, record, train

# name: tokens, embedding, hidden, layers, length of a sequence, sequences, seed
CASES = {"small": (10, 2, 3, 4, 5, 3, 1), "large": (10000, 200, 200, 2, 35, 20, 2)}
STEPS = 3


class Model(torch.nn.Module):
    def __init__(self, tokens, embedding, hidden, layers):
        super().__init__()
        self.encoder = torch.nn.Embedding(tokens, embedding)
        self.rnn = torch.nn.LSTM(embedding, hidden, layers)
        self.decoder = torch.nn.Linear(hidden, tokens)

    def forward(self, data, state):
        output, state = self.rnn(self.encoder(data), state)
        return self.decoder(output), state


def run(case, dtype, nudge, seen):
    tokens, embedding, hidden, layers, length, batch, seed = CASES[case]
    draw = Numbers(seed)
    model = Model(tokens, embedding, hidden, layers)
    for name, parameter in model.named_parameters():
        values = draw.take(*parameter.shape)
        parameter.data = values if name == "encoder.weight" else values * bound(4, hidden)
    model = model.to(dtype)
    first = [draw.take(layers, batch, hidden).to(dtype) * (1 + nudge * 2.0**-23) for _ in "hc"]
    data = draw.indices(tokens, length, batch)
    target = draw.indices(tokens, length * batch)
    state = tuple(first)

    def forward():
        nonlocal state
        logits, after = model(data, state)
        state = tuple(part.detach() for part in after)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, tokens), target)
        return {"logits": logits, "h": after[0], "c": after[1]}, loss

    train(model, torch.optim.SGD(model.parameters(), lr=1.0), forward, STEPS, seen)
    return draw.state


def main():
    for case in CASES:
        title = f"the tutorial's language model, {case},"
        record(f"test/golden/rnn_{case}.txt", title, lambda *rest: run(case, *rest), (0, 1, -1, 2, -2))


main()
