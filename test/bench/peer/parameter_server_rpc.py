#!/usr/bin/env python3
"""The peer: the batch-updating parameter server over torch.distributed.rpc.

    parameter_server_rpc.py [--trainers N] [--rounds N] [--batch N] [--threads N]

One process holds ResNet-50 (30 classes) and its SGD (lr 0.001, momentum 0.9). Each trainer, a process of its own,
computes the gradient of the mean squared error on random images of 3x64x64 and sends it in one call. The answer, the
updated model, comes when all trainers' gradients are in. Processes and calls are arranged as in PyTorch's tutorial
"Implementing Batch RPC Processing Using Asynchronous Executions", because that is the program that people run; the
code is our own. Processes meet through a file instead of a fixed port.

The last line is for programs: samples per second over all rounds but the first three (in which memory is allocated
and libraries choose their algorithms), of the slowest and of the fastest of these rounds, and of the whole job with
start and end of the processes; and the largest peak memory (VmHWM) of a trainer and that of the server, in MiB.
"""
import argparse
import os
import tempfile
import threading
import time

os.environ.setdefault("GLOG_minloglevel", "1")  # Debian's build reports every shutdown

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torchvision
from memory import peak_mib

UNCOUNTED, CLASSES, SIDE = 3, 30, 64


class Server:
    """The model and its optimizer. Calls come on the RPC layer's threads; the lock guards the sums."""

    def __init__(self, trainers):
        self.model = torchvision.models.resnet50(num_classes=CLASSES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.trainers, self.arrived = trainers, 0
        self.lock = threading.Lock()
        self.updated = torch.futures.Future()
        self.ends = []  # when each round's update was made
        self.zero()

    def zero(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def get_model(self):
        return self.model

    def report(self):
        return self.ends, peak_mib()

    @staticmethod
    @rpc.functions.async_execution
    def push(server, gradients):
        self = server.local_value()
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients):
                parameter.grad += gradient
            self.arrived += 1
            answer = self.updated
            if self.arrived == self.trainers:
                for parameter in self.model.parameters():
                    parameter.grad /= self.trainers
                self.optimizer.step()
                self.zero()
                self.arrived = 0
                self.updated = torch.futures.Future()
                self.ends.append(time.perf_counter())
                answer.set_result(self.model)
        return answer


def train(server, rounds, batch):
    """Runs one trainer; returns its peak memory."""
    model = server.rpc_sync().get_model()
    loss_of = torch.nn.MSELoss()
    labels = torch.nn.functional.one_hot(torch.randint(CLASSES, (batch,)), CLASSES).float()
    for _ in range(rounds):
        images = torch.randn(batch, 3, SIDE, SIDE)
        loss_of(model(images), labels).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        model = rpc.rpc_sync(server.owner(), Server.push, args=(server, gradients))
    return peak_mib()


def run(rank, arguments, meeting, began):
    torch.set_num_threads(arguments.threads)
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=2 * arguments.trainers + 4, rpc_timeout=0, init_method=f"file://{meeting}"
    )
    world = arguments.trainers + 1
    rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world, rpc_backend_options=options)
    if rank == 0:
        server = rpc.RRef(Server(arguments.trainers))
        started = time.perf_counter()
        work = [
            rpc.rpc_async(f"trainer{i}", train, args=(server, arguments.rounds, arguments.batch))
            for i in range(1, world)
        ]
        trainer_mib = max(future.wait() for future in work)
        ends, server_mib = server.local_value().report()
        tell(arguments, [started, *ends], trainer_mib, server_mib, time.perf_counter() - began)
    rpc.shutdown()


def tell(arguments, times, trainer_mib, server_mib, job_s):
    samples = arguments.trainers * arguments.batch
    rounds = sorted(after - before for before, after in zip(times[UNCOUNTED:], times[UNCOUNTED + 1 :])) or [float("nan")]
    rate = samples * len(rounds) / sum(rounds)
    print(
        f"peer parameter_server torch={torch.__version__} trainers={arguments.trainers} batch={arguments.batch} "
        f"threads={arguments.threads} rounds={arguments.rounds} samples_per_s={rate:.1f} "
        f"low={samples / rounds[-1]:.1f} high={samples / rounds[0]:.1f} "
        f"job_samples_per_s={samples * arguments.rounds / job_s:.1f} trainer_mib={trainer_mib:.0f} "
        f"server_mib={server_mib:.0f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0, help="of each trainer; 0: cores / trainers, at least 1")
    arguments = parser.parse_args()
    if min(arguments.trainers, arguments.rounds, arguments.batch) < 1 or arguments.threads < 0:
        parser.error("trainers, rounds and batch must be at least 1, threads at least 0")
    cores = len(os.sched_getaffinity(0))
    arguments.threads = arguments.threads or max(1, cores // arguments.trainers)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        mp.spawn(run, args=(arguments, meeting, began), nprocs=arguments.trainers + 1)


if __name__ == "__main__":
    main()
