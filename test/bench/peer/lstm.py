#!/usr/bin/env python3
"""The peer: times training steps of the tutorial's language model in one process.

    lstm.py [--threads N] [--size tutorial|job] [--steps N] [--dropout P]

Embedding, LSTM, decoder, cross entropy over the vocabulary, SGD, the LSTM's state carried from step to step.
`tutorial`: 10 tokens, 2 wide, 3 hidden, 4 layers, 5 steps of 3 sequences. `job`: 10,000 tokens, 200 wide,
200 hidden, 2 layers, 35 steps of 20. A training step is zero_grad, forward, backward and update. The first tenth
of the steps is not counted.

Runs with any PyTorch. Debian's is only as fast as its BLAS: install libopenblas0-pthread. The last line is for
programs: milliseconds of the median, the fastest and the slowest step, and the process's peak memory (VmHWM).
"""
import argparse
import os
import time

import torch
from memory import peak_mib
from rnn_model import SIZES, Model


def measure(size, steps, dropout):
    torch.manual_seed(1)
    tokens, embedding, hidden, layers, length, batch = SIZES[size]
    model = Model(tokens, embedding, hidden, layers, dropout).train()
    data = torch.randint(tokens, (length, batch))
    target = torch.randint(tokens, (length * batch,))
    state = model.zero_state(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    uncounted = steps // 10 + 1
    seconds = []
    for _ in range(uncounted + steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        logits, state = model(data, tuple(part.detach() for part in state))
        torch.nn.functional.cross_entropy(logits.reshape(-1, tokens), target).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[uncounted:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", choices=tuple(SIZES), default="job")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dropout", type=float, default=0.5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    seconds = measure(arguments.size, arguments.steps, arguments.dropout)
    middle, low, high = (1000 * s for s in (seconds[len(seconds) // 2], seconds[0], seconds[-1]))
    print(
        f"peer lstm torch={torch.__version__} threads={arguments.threads} size={arguments.size} "
        f"dropout={arguments.dropout} steps={arguments.steps} ms_per_step={middle:.3f} low={low:.3f} "
        f"high={high:.3f} peak_mib={peak_mib():.0f}"
    )


main()
