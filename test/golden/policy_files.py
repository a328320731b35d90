#!/usr/bin/env python3
"""Loads a policy's checkpoint into the tutorial's module, for test/worker/model/test_policy_values.c.

    policy_files.py FOLDER

FOLDER holds checkpoints/00000003/, and rows: on each line an observation and our probabilities without dropout.
model.safetensors is loaded with load_state_dict(strict=True) and must give these probabilities within 1e-6.
optimizer.safetensors and the manifest are made a state of torch.optim.Adam, which loads it, and takes a step.

Needs PyTorch of Debian, and safetensors of PyPI. `scripts/deps python` installs them for
build/python-venv/bin/python.

Exit: 0 the same, 1 not, 77 not run, with a line that says why.
"""
import json
import sys

try:
    import torch
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"PyTorch is not run: {missing} (scripts/deps python installs what it needs)")
    sys.exit(77)


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = torch.nn.Linear(4, 128)
        self.dropout = torch.nn.Dropout(p=0.6)
        self.affine2 = torch.nn.Linear(128, 2)

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.dropout(self.affine1(x)))), dim=1)


def same_probabilities(module, path):
    with open(path, encoding="ascii") as file:
        rows = torch.tensor([[float(value) for value in line.split()] for line in file])
    with torch.no_grad():
        worst = (module.eval()(rows[:, :4]) - rows[:, 4:]).abs().max().item()
    print(f"probabilities differ by {worst:.3g}")
    return worst <= 1e-6


def adam_of(module, checkpoint):
    moments = load_file(f"{checkpoint}/optimizer.safetensors")
    with open(f"{checkpoint}/manifest.json", encoding="ascii") as file:
        manifest = json.load(file)
    adam = torch.optim.Adam(module.parameters(), lr=0.01)
    state = adam.state_dict()
    for index, (name, parameter) in enumerate(module.named_parameters()):
        state["state"][index] = {"step": torch.tensor(float(manifest["steps"][0]))} | {
            moment: moments.pop(f"{name}.{moment}") for moment in ("exp_avg", "exp_avg_sq")}
        if any(state["state"][index][moment].shape != parameter.shape for moment in ("exp_avg", "exp_avg_sq")):
            return False
    adam.load_state_dict(state)
    module(torch.ones(1, 4)).log().sum().backward()
    adam.step()
    return not moments and manifest["running_reward"] == 9.5 and manifest["update"] == 3


def main(folder):
    module = Policy()
    checkpoint = f"{folder}/checkpoints/00000003"
    module.load_state_dict(load_file(f"{checkpoint}/model.safetensors"), strict=True)
    return same_probabilities(module, f"{folder}/rows") and adam_of(module, checkpoint)


sys.exit(0 if main(sys.argv[1]) else 1)
