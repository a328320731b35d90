#!/usr/bin/env python3
"""The peer: times a language model over two workers of torch.distributed.rpc.

    rnn_rpc.py [--size tutorial|job] [--threads N] [--steps N] [--dropout P]

One process holds the embedding and the decoder, the other the LSTM; each step opens a context of distributed
autograd, calls both remote modules, runs the distributed backward and steps a DistributedOptimizer (SGD) on all
owners. Processes and calls are arranged as in PyTorch's tutorial "Getting Started with Distributed RPC Framework",
because that is the program that people run; the code is our own. Processes meet through a file instead of a fixed
port.

`tutorial`: 10 tokens, 2 wide, 3 hidden, 4 layers, 5 steps of 3 sequences, targets (5, 10) whose classes lie along
dimension 1. `job`: 10,000 tokens, 200 wide, 200 hidden, 2 layers, 35 steps of 20, targets over the vocabulary.
Tokens and targets are random and new at each step. The first tenth of the steps is not counted.

The last line is for programs: iterations per second over all counted steps, those of the slowest and of the
fastest tenth of them, and each process's peak memory (VmHWM) in MiB.
"""
import argparse
import os
import tempfile
import time

os.environ.setdefault("GLOG_minloglevel", "1")  # Debian's build reports every shutdown

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from memory import peak_mib
from rnn_model import SIZES
from torch.distributed.optim import DistributedOptimizer

SERVER, TRAINER = "server", "trainer"


class Embedding(torch.nn.Module):
    def __init__(self, tokens, width, dropout):
        super().__init__()
        self.encoder = torch.nn.Embedding(tokens, width)
        self.encoder.weight.data.uniform_(-0.1, 0.1)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, data):
        return self.drop(self.encoder(data))


class Decoder(torch.nn.Module):
    def __init__(self, tokens, hidden, dropout):
        super().__init__()
        self.drop = torch.nn.Dropout(dropout)
        self.decoder = torch.nn.Linear(hidden, tokens)
        self.decoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.bias.data.zero_()

    def forward(self, output):
        return self.decoder(self.drop(output))


def apply(module, *values):
    return module.local_value()(*values)


def references(module):
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


def at_owner(function, module, *values):
    return rpc.rpc_sync(module.owner(), function, args=(module, *values))


def batch_of(arguments):
    """Draws a step's tokens and targets."""
    tokens, _, _, _, length, batch = SIZES[arguments.size]
    shape, below = ((length, tokens), batch) if arguments.size == "tutorial" else ((length, batch), tokens)
    return torch.randint(tokens, (length, batch)), torch.randint(below, shape)


def loss_of(arguments, logits, target):
    if arguments.size == "job":
        logits, target = logits.flatten(0, 1), target.flatten()
    return torch.nn.functional.cross_entropy(logits, target)


def train(arguments):
    """The seconds of each counted step."""
    tokens, width, hidden, layers, _, batch = SIZES[arguments.size]
    torch.manual_seed(1)
    embedding = rpc.remote(SERVER, Embedding, args=(tokens, width, arguments.dropout))
    lstm = torch.nn.LSTM(width, hidden, layers, dropout=arguments.dropout)
    decoder = rpc.remote(SERVER, Decoder, args=(tokens, hidden, arguments.dropout))
    parameters = at_owner(references, embedding) + references(rpc.RRef(lstm)) + at_owner(references, decoder)
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
    state = torch.randn(layers, batch, hidden), torch.randn(layers, batch, hidden)
    uncounted = arguments.steps // 10 + 1
    seconds = []
    for _ in range(uncounted + arguments.steps):
        began = time.perf_counter()
        data, target = batch_of(arguments)
        with dist_autograd.context() as context:
            output, state = lstm(at_owner(apply, embedding, data), tuple(part.detach() for part in state))
            loss = loss_of(arguments, at_owner(apply, decoder, output), target)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[uncounted:])


def tell(arguments, seconds, server_mib):
    tenth = len(seconds) // 10 + 1
    fastest, slowest = (tenth / sum(part) for part in (seconds[:tenth], seconds[-tenth:]))
    print(
        f"peer rnn_rpc torch={torch.__version__} threads={arguments.threads} size={arguments.size} "
        f"dropout={arguments.dropout} steps={arguments.steps} iterations_per_s={len(seconds) / sum(seconds):.2f} "
        f"low={slowest:.2f} high={fastest:.2f} trainer_mib={peak_mib():.0f} server_mib={server_mib:.0f}",
        flush=True,
    )


def run(rank, arguments, meeting):
    torch.set_num_threads(arguments.threads)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}")
    rpc.init_rpc((SERVER, TRAINER)[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 1:
        seconds = train(arguments)
        tell(arguments, seconds, rpc.rpc_sync(SERVER, peak_mib))
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="tutorial")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dropout", type=float, default=0.5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(arguments, os.path.join(folder, "meeting")), nprocs=2)


if __name__ == "__main__":
    main()
