#!/usr/bin/env python3
"""The peer: times training steps of torchvision's ResNet-50.

    resnet50.py [--threads N] [--layout contiguous|channels_last] [--steps N] [--batch N] [--device cpu|cuda]

The batch-updating parameter server's work for one trainer: images of 3x64x64, 30 classes, the mean squared
error against one-hot labels, SGD without momentum. A step is zero_grad, forward, backward and update. The
first two are not counted.

On a GPU, convolutions and products compute in plain float32 (TF32 is off), and a step ends when the GPU has finished.

Runs with any PyTorch that has torchvision, Debian's (/usr/bin/python3) or PyPI's. The last line is for programs:
samples per second of the median, the slowest and the fastest step, and the process's peak memory (VmHWM).
"""
import argparse
import os
import time

import torch
import torchvision
from memory import peak_mib

UNCOUNTED, CLASSES = 2, 30


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(layout, steps, batch, device):
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False
    model = torchvision.models.resnet50(num_classes=CLASSES).to(device, memory_format=layout).train()
    all_images = torch.randn(batch, 3, 64, 64).contiguous(memory_format=layout)
    all_labels = torch.nn.functional.one_hot(torch.randint(CLASSES, (batch,)), CLASSES).float()
    loss_of = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = []
    for _ in range(UNCOUNTED + steps):
        began = time.perf_counter()
        images, labels = all_images.to(device), all_labels.to(device)
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        wait(device)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[UNCOUNTED:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    layout = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[arguments.layout]
    seconds = measure(layout, arguments.steps, arguments.batch, arguments.device)
    rate, low, high = (arguments.batch / s for s in (seconds[len(seconds) // 2], seconds[-1], seconds[0]))
    print(
        f"peer resnet50 torch={torch.__version__} device={arguments.device} threads={arguments.threads} layout={arguments.layout} "
        f"batch={arguments.batch} steps={arguments.steps} samples_per_s={rate:.1f} low={low:.1f} "
        f"high={high:.1f} peak_mib={peak_mib():.0f}"
    )


main()
