#!/usr/bin/env python3
"""The peer on a GPU: the tutorial's policy acting on batches of rows, eagerly and as a CUDA graph.

    gpu_policy.py [--rounds N] [ROWS...]

A launch does the work of coalesced's, end to end: observations from pinned memory to the GPU, two layers with dropout
between them, softmax, a sampled action for each row, the actions back in pinned memory, and the wait for them. Layers
compute in plain float32 (TF32 is off). Prints "no CUDA" and exits 77 where PyTorch has no GPU. Each line is for
programs: microseconds per launch, the median and the tenth and ninetieth percentile.
"""
import argparse
import sys
import time

import torch

INPUTS, HIDDEN, ACTIONS, DROPOUT = 4, 128, 2, 0.6
UNCOUNTED = 50


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = torch.nn.Linear(INPUTS, HIDDEN)
        self.dropout = torch.nn.Dropout(p=DROPOUT)
        self.affine2 = torch.nn.Linear(HIDDEN, ACTIONS)

    def forward(self, rows):
        hidden = torch.relu(self.dropout(self.affine1(rows)))
        return torch.softmax(self.affine2(hidden), dim=1)


def act(policy, rows):
    """Samples by inverting the cumulative probabilities, which a CUDA graph can capture."""
    cumulated = policy(rows).cumsum(dim=1)
    drawn = torch.rand(rows.shape[0], 1, device=rows.device)
    return (drawn >= cumulated).sum(dim=1).clamp_(max=ACTIONS - 1).to(torch.uint8)


def eager_launch(policy, source, target):
    def launch():
        target.copy_(act(policy, source.to("cuda", non_blocking=True)), non_blocking=True)
        torch.cuda.synchronize()

    return launch


def graph_launch(policy, source, target):
    rows = torch.zeros(source.shape, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            act(policy, rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows.copy_(source, non_blocking=True)
        target.copy_(act(policy, rows), non_blocking=True)

    def launch():
        graph.replay()
        torch.cuda.synchronize()

    return launch


def microseconds(launch, rounds):
    for _ in range(UNCOUNTED):
        launch()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        launch()
        taken.append((time.perf_counter() - began) * 1e6)
    taken.sort()
    return taken[len(taken) // 2], taken[len(taken) // 10], taken[len(taken) * 9 // 10]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("rows", type=int, nargs="*", default=[1, 10, 64, 1024, 16384])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA in this PyTorch")
        sys.exit(77)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    policy = Policy().to("cuda").train()
    with torch.no_grad():
        for rows in arguments.rows:
            source = torch.randn(rows, INPUTS).pin_memory()
            target = torch.zeros(rows, dtype=torch.uint8).pin_memory()
            for name, make in (("eager", eager_launch), ("graph", graph_launch)):
                median, low, high = microseconds(make(policy, source, target), arguments.rounds)
                print(f"peer policy {name} torch={torch.__version__} rows={rows} us={median:.1f} "
                      f"low={low:.1f} high={high:.1f}", flush=True)


main()
