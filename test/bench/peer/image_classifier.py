#!/usr/bin/env python3
"""The peer: trains a job file of coalesced's with PyTorch in one process.

    image_classifier.py JOB.json [--seed N] [--threads N] [--layout contiguous|channels_last]

Reads a parameter-server job on idx data (the MNIST family's files, gzipped or not) and trains the same model on
the same data in the same settings: batches of trainers x batch samples, an epoch's remainder left out, batch
norm over each trainer's batch alone, its statistics averaged over the trainers, the same loss, momentum and
learning-rate schedule, gray images spread over 3 channels and padded. The order of the samples and the initial
values are PyTorch's own draws.

The last line is for programs: test accuracy and loss after the last epoch, the seconds of training and
evaluation without the start of Python, and the process's peak memory (VmHWM) in MiB.
"""
import argparse
import copy
import gzip
import json
import os
import time

import numpy
import torch
import torchvision
from memory import peak_mib


def read_idx(folder, name, header):
    for path, opened in ((f"{folder}/{name}", open), (f"{folder}/{name}.gz", gzip.open)):
        if os.path.exists(path):
            with opened(path, "rb") as file:
                return numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=header)
    raise SystemExit(f"{folder}/{name}: not there, plain or with .gz")


def read_split(job, split):
    """A split as the model sees it: float32 (samples, channels, size, size), and labels."""
    data = job["data"]
    labels = torch.from_numpy(read_idx(data["path"], f"{split}-labels-idx1-ubyte", 8).astype(numpy.int64))
    pixels = read_idx(data["path"], f"{split}-images-idx3-ubyte", 16).reshape(len(labels), 1, 28, 28)
    images = torch.from_numpy(pixels.astype(numpy.float32)) / 255
    spare = data["size"] - 28
    if data["fit"] != "pad" or spare < 0:
        raise SystemExit("only padding is known here")
    images = torch.nn.functional.pad(images, (spare // 2, spare - spare // 2) * 2)
    images = (images - data["mean"][0]) / data["std"][0]
    return images.expand(-1, data["channels"], -1, -1), labels


def statistics(model):
    return [buffer for buffer in model.buffers() if buffer.dim() > 0]


def train_epoch(job, model, optimizer, scheduler, images, labels, loss_of):
    """Moves batch norm's running statistics towards the mean of the trainers', as the daemon does."""
    trainers, batch = job["trainers"]["count"], job["trainers"]["batch"]
    order = torch.randperm(len(labels))
    for first in range(0, len(labels) - trainers * batch + 1, trainers * batch):
        optimizer.zero_grad()
        before, moved = [s.clone() for s in statistics(model)], None
        for trainer in range(trainers):
            chosen = order[first + trainer * batch : first + (trainer + 1) * batch]
            (loss_of(model(images[chosen].contiguous()), labels[chosen]) / trainers).backward()
            now = [s.clone() for s in statistics(model)]
            moved = now if moved is None else [a + b for a, b in zip(moved, now)]
            for buffer, old in zip(statistics(model), before):
                buffer.copy_(old)
        for buffer, total in zip(statistics(model), moved):
            buffer.copy_(total / trainers)
        optimizer.step()
        scheduler.step()


def evaluate(model, images, labels, loss_of):
    model = copy.deepcopy(model).eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for first in range(0, len(labels), 200):
            logits = model(images[first : first + 200].contiguous())
            wanted = labels[first : first + 200]
            correct += (logits.argmax(1) == wanted).sum().item()
            loss += loss_of(logits, wanted).item() * len(wanted)
    return correct / len(labels), loss / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    layout = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[arguments.layout]
    began = time.perf_counter()
    make = {"resnet18": torchvision.models.resnet18, "resnet50": torchvision.models.resnet50}[job["model"]["name"]]
    model = make(num_classes=job["model"]["classes"]).to(memory_format=layout).train()
    settings = job["optimizer"]
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=settings["momentum"])
    images, labels = read_split(job, "train")
    held_out = read_split(job, "t10k")
    updates = len(labels) // (job["trainers"]["count"] * job["trainers"]["batch"]) * job["stop"]["epochs"]
    decay = settings.get("schedule", "constant") == "linear"
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda u: 1 - u / updates if decay else 1.0)
    loss_of = torch.nn.CrossEntropyLoss()
    for epoch in range(1, job["stop"]["epochs"] + 1):
        train_epoch(job, model, optimizer, scheduler, images, labels, loss_of)
        accuracy, loss = evaluate(model, *held_out, loss_of)
        print(f"epoch {epoch}  test loss {loss:.4f}  accuracy {100 * accuracy:.2f} %", flush=True)
    print(
        f"peer image_classifier torch={torch.__version__} threads={arguments.threads} layout={arguments.layout} "
        f"seed={arguments.seed} accuracy={accuracy:.4f} loss={loss:.4f} "
        f"seconds={time.perf_counter() - began:.1f} peak_mib={peak_mib():.0f}"
    )


main()
