#!/usr/bin/env python3
"""Records rounds of a parameter server with two trainers into test/golden/parameter_server.txt, and the same with
gradients that travel as bfloat16 into test/golden/parameter_server_bfloat16.txt.

How to run it, from the repository's root, with Debian's python3-torchvision (half a minute):

    /usr/bin/python3 test/golden/parameter_server.py

problem.py explains the numbers and the file; test/worker/data_parallel/test_parameter_server_golden.c reads it and has the
daemon train the same model. One process computes everything: in each round, both trainers' gradients of the mean
squared error (one-hot labels), from the same weights and with batch norm over each trainer's own batch of 10; then
their average, and a step of SGD with lr 0.01 and momentum 0.9. Running statistics move by 0.1 towards the mean of
the two batches'. Three rounds of torchvision's ResNet-18 with 30 classes and 8 channels in its first stage.

The sequence begins at SEED, which keeps the ReLUs and the max pool away from their kinks in both records. Weights are
drawn as in resnet.py, each block's last batch norm's being 0.1. Then come 60 images as bytes (3, 32, 32) and their
labels. A pixel is (byte / 255 - 0.5) / 0.25. Each trainer's images of a round follow the daemon's own shuffle of epoch
0 for SEED (worker/data/loader.h).

As bfloat16, each trainer's gradient and the error that the trainer has kept of it are added and rounded, and what
rounding takes is kept for the next round. A number that lies near the middle of two bfloat16 is rounded up by one
processor and down by the other. No seed keeps all numbers of a gradient away from the middle, so the least deviation of
an update is what one rounding step of the gradient's largest number makes of it.
"""
import functools

import torch
import torchvision
from narrow_resnet import load_resnet, narrow_resnet
from philox import philox
from problem import WAYS, Numbers, record, watch

SEED, TRAINERS, BATCH, WIDTH, CLASSES, STEPS = 70, 2, 10, 8, 30, 3
LR = 0.01
BFLOAT16_BITS = 7  # of the fraction
SAMPLES = TRAINERS * BATCH * STEPS
SHUFFLE = 5  # kernels/base/rng.h's stream


def permutation(seed, epoch, count):
    """The order of an epoch's samples."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        words = philox(seed, SHUFFLE, 0, [i // 2, epoch % 2**32, epoch >> 32])
        high, low = words[i % 2 * 2 : i % 2 * 2 + 2]
        other = (high << 32 | low) * (i + 1) >> 64
        order[i], order[other] = order[other], order[i]
    return order


def statistics(model):
    return [buffer for buffer in model.buffers() if buffer.dim() > 0]


def round_to_bfloat16(model, kept, seen, step):
    """Rounds the gradients in .grad. `kept` has the errors, by name, before and after."""
    for name, parameter in model.named_parameters():
        total = parameter.grad + kept.get(name, 0)
        parameter.grad = total.to(torch.bfloat16).to(total.dtype)
        kept[name] = total - parameter.grad
        rounding_step = 2.0 ** (total.abs().max().log2().floor() - BFLOAT16_BITS)
        seen(step, "least", name, LR / TRAINERS * rounding_step)


def round_gradient(model, images, labels, step, chosen, seen, kept):
    """The trainers' mean gradient is left in .grad, the mean of their running statistics in the buffers. `kept`: by
    trainer, where gradients are rounded; else None."""
    sums = [0] * len(list(model.parameters()))
    before = [buffer.clone() for buffer in statistics(model)]
    moved = [torch.zeros_like(buffer) for buffer in before]
    for trainer in range(TRAINERS):
        mine = chosen[trainer * BATCH : (trainer + 1) * BATCH]
        loss = torch.nn.functional.mse_loss(model(images[mine]), labels[mine])
        model.zero_grad()
        loss.backward()
        seen(step, "loss", f"trainer{trainer}", loss)
        if kept is not None:
            round_to_bfloat16(model, kept[trainer], seen, step)
        sums = [total + parameter.grad for total, parameter in zip(sums, model.parameters())]
        for total, buffer, old in zip(moved, statistics(model), before):
            total += buffer / TRAINERS
            buffer.copy_(old)
    for total, buffer in zip(moved, statistics(model)):
        buffer.copy_(total)
    for parameter, total in zip(model.parameters(), sums):
        parameter.grad = total / TRAINERS


def run(dtype, way, seen, rounds=False):
    layout, library, nudge = way
    draw = Numbers(SEED)
    model = narrow_resnet(18, WIDTH, CLASSES)
    load_resnet(model, draw, ".bn2.weight")
    model = model.to(dtype).to(memory_format=layout).train()
    watch(model, seen)
    pixels = draw.indices(256, SAMPLES, 3, 32, 32).to(dtype)
    labels = torch.nn.functional.one_hot(draw.indices(CLASSES, SAMPLES), CLASSES).to(dtype)
    images = ((pixels / 255 - 0.5) / 0.25 * (1 + nudge * 2.0**-23)).contiguous(memory_format=layout)
    order = torch.tensor(permutation(SEED, 0, SAMPLES))
    kept = [{} for _ in range(TRAINERS)] if rounds else None
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    with torch.backends.mkldnn.flags(enabled=library):
        for step in range(1, STEPS + 1):
            chosen = order[(step - 1) * TRAINERS * BATCH : step * TRAINERS * BATCH]
            round_gradient(model, images, labels, step, chosen, seen, kept)
            before = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
            optimizer.step()
            for name, parameter in model.named_parameters():
                seen(step, "update", name, parameter.detach().double() - before[name])
    for name, buffer in model.named_buffers():
        if buffer.dim() > 0:
            seen(STEPS, "statistic", name, buffer)
    return draw.state


def main():
    title = f"torchvision {torchvision.__version__}'s ResNet-18, narrow, by two trainers"
    record("test/golden/parameter_server.txt", title, run, WAYS)
    title += ", gradients as bfloat16"
    record("test/golden/parameter_server_bfloat16.txt", title, functools.partial(run, rounds=True), WAYS)


main()
