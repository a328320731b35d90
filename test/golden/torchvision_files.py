#!/usr/bin/env python3
"""Exchanges a ResNet-50's weights with test/worker/model/test_torchvision.c, in both directions.

    torchvision_files.py FOLDER

FOLDER holds ours.safetensors and ours.logits (text: the model's outputs in evaluation). The weights are loaded with
load_state_dict(strict=True) into torchvision's ResNet-50, whose logits must equal ours within 1e-4 of the largest.
Then another model is trained for a few batches and written as theirs.safetensors and theirs.logits. The images on
both sides are numbers of problem.py's sequence from state 99.

Needs PyTorch and torchvision of Debian, and safetensors of PyPI. `scripts/deps python` installs them for
build/python-venv/bin/python.

Exit: 0 the same, 1 not, 77 not run, with a line that says why.
"""
import sys

CLASSES, IMAGES, SIDE, STATE, BATCHES = 30, 4, 64, 99, 5


try:
    import torch
    import torchvision
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"torchvision is not run: {missing} (scripts/deps python installs what it needs)")
    sys.exit(77)

from problem import Numbers


def logits_of(model):
    images = Numbers(STATE).take(IMAGES, 3, SIDE, SIDE)
    with torch.no_grad():
        return model.eval()(images).double().flatten()


def ours(folder):
    model = torchvision.models.resnet50(num_classes=CLASSES)
    model.load_state_dict(load_file(f"{folder}/ours.safetensors"), strict=True)
    with open(f"{folder}/ours.logits", encoding="ascii") as file:
        expected = torch.tensor([float(value) for value in file.read().split()], dtype=torch.float64)
    got, count = logits_of(model), model.bn1.num_batches_tracked
    worst = ((got - expected).abs().max() / expected.abs().max()).item()
    print(f"ours in torchvision: logits differ by {worst:.3g} of the largest, {count.item()} batches tracked")
    return worst <= 1e-4 and count.dtype == torch.int64 and count.item() == 3


def theirs(folder):
    torch.manual_seed(5)
    model = torchvision.models.resnet50(num_classes=CLASSES).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(BATCHES):
        optimizer.zero_grad()
        model(torch.randn(2, 3, SIDE, SIDE)).square().mean().backward()
        optimizer.step()
    save_file(model.state_dict(), f"{folder}/theirs.safetensors")
    with open(f"{folder}/theirs.logits", "w", encoding="ascii") as file:
        file.writelines(f"{value:.10g}\n" for value in logits_of(model).tolist())


def main():
    torch.set_num_threads(1)
    folder = sys.argv[1]
    same = ours(folder)
    theirs(folder)
    sys.exit(0 if same else 1)


main()
