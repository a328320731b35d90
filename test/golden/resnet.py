#!/usr/bin/env python3
"""Records torchvision's ResNets in training into test/golden/resnet18.txt and resnet50.txt.

How to run it, from the repository's root, with Debian's python3-torchvision (a few seconds):

    /usr/bin/python3 test/golden/resnet.py

problem.py explains the numbers and the files; test/worker/model/test_resnet.c reads them. Three steps of SGD with
lr 0.01 on one batch of 8 images of 3x32x32, 30 classes. ResNet-18 has 8 channels in the first stage, cross entropy and
momentum 0.9; ResNet-50 has 4, the mean squared error against one-hot labels, as in the tutorial, and no momentum. Each
sequence begins at a seed that keeps ReLUs and the max pool away from their kinks.

Weights of convolutions and of the classifier are numbers times sqrt(6 / fan_in), biases numbers times 3. Batch norms'
weights draw no number: they are 1, but 0.1 for each block's last one, without which ResNet-50 is chaotic in float32.
Then come the images, and the labels as indices.
"""
import torch
import torchvision
from narrow_resnet import load_resnet, narrow_resnet
from problem import WAYS, Numbers, record, train, watch

BATCH, SIDE, CLASSES, STEPS = 8, 32, 30, 3
# By depth: the width, the seed, how the name of a block's last batch norm's weight ends.
CASES = {18: (8, 14, ".bn2.weight"), 50: (4, 58, ".bn3.weight")}


def run(depth, dtype, way, seen):
    layout, library, nudge = way
    width, seed, last = CASES[depth]
    draw = Numbers(seed)
    model = narrow_resnet(depth, width, CLASSES)
    load_resnet(model, draw, last)
    model = model.to(dtype).to(memory_format=layout).train()
    watch(model, seen)
    images = draw.take(BATCH, 3, SIDE, SIDE).to(dtype).to(memory_format=layout) * (1 + nudge * 2.0**-23)
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
    for depth in CASES:
        title = f"torchvision {torchvision.__version__}'s ResNet-{depth}, narrow,"
        record(f"test/golden/resnet{depth}.txt", title, lambda *arguments: run(depth, *arguments), WAYS)


main()
