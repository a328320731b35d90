#!/usr/bin/env python3
"""Records torchvision's ResNets in training into test/golden/resnet18.txt and resnet50.txt.

How to run it, from the repository's root, with Debian's python3-torchvision (a few minutes):

    /usr/bin/python3 test/golden/resnet.py

problem.py explains the numbers and the files; test/worker/model/test_resnet.c reads them. Three steps of SGD with lr 0.01 on one batch of 20 images of 3x64x64, 30 classes. ResNet-18: cross entropy, momentum 0.9;
ResNet-50: the mean squared error against one-hot labels, as in the tutorial, without momentum. The sequence
begins at the depth. Weights of convolutions and of the classifier are numbers times sqrt(6 / fan_in), biases
numbers times 0.1. Batch norms' weights draw no number: they are 1, but 0.1 for each block's last one, without which
ResNet-50 is chaotic in float32. Then come the images, and the labels as indices.
"""
import torch
import torchvision
from problem import Numbers, load_resnet, record, train

BATCH, CLASSES, STEPS = 20, 30, 3


def run(depth, dtype, way, seen):
    layout, library, nudge = way
    draw = Numbers(depth)
    make, last = {
        18: (torchvision.models.resnet18, ".bn2.weight"),
        50: (torchvision.models.resnet50, ".bn3.weight"),
    }[depth]
    model = make(num_classes=CLASSES)
    load_resnet(model, draw, last)
    model = model.to(dtype).to(memory_format=layout).train()
    images = draw.take(BATCH, 3, 64, 64).to(dtype).to(memory_format=layout) * (1 + nudge * 2.0**-23)
    labels = draw.indices(CLASSES, BATCH)
    one_hot = torch.nn.functional.one_hot(labels, CLASSES).to(dtype)

    def forward():
        logits = model(images)
        if depth == 18:
            return {"logits": logits}, torch.nn.functional.cross_entropy(logits, labels)
        return {"logits": logits}, torch.nn.functional.mse_loss(logits, one_hot)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9 if depth == 18 else 0)
    with torch.backends.mkldnn.flags(enabled=library):
        train(model, optimizer, forward, STEPS, seen)
    return draw.state


def main():
    plain, last = torch.contiguous_format, torch.channels_last
    ways = [(layout, True, nudge) for nudge in (0, 1, -1, 2, -2, 3, -3, 4, -4) for layout in (plain, last)]
    ways.append((plain, False, 0))
    for depth in (18, 50):
        title = f"torchvision {torchvision.__version__}'s ResNet-{depth}"
        record(f"test/golden/resnet{depth}.txt", title, lambda *arguments: run(depth, *arguments), ways)


main()
