#!/usr/bin/env python3
"""Records steps of DQN on images in PyTorch into test/golden/dqn_images_CASE.txt, one file for each of CASES.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/dqn_images.py [CASE]...

problem.py explains the numbers and the files; test/worker/model/test_policy_dqn_images_golden.c reads them. The network is
that of Stable-Baselines3's CnnPolicy (worker/model/policy_networks.c) on images of 36 x 44 pixels and 2 channels, with
three choices; a dueling one has the state's value and then the advantages as outputs. Each of the STEPS is one
gradient step on the same 8 transitions, after which the target follows by TAU. The loss is the mean of the rows'
weights times smooth_l1_loss.

Each case's sequence begins at a seed that keeps ReLUs, the Huber loss and the greatest values away from their kinks.
Parameters of the network, then of its target, are numbers times sqrt(2 / fan_in), biases times 0.1. Then come
observations and next observations (height, width, channels; numbers, or of bytes indices below 256), actions
(indices), rewards (2 times numbers) and weights (0.5 times numbers, plus 0.75; 1 where they are not wanted). Rows of
ENDS have terminated. With masks row i's next observation forbids choice i modulo 3.

Recorded of each step: the loss, the output `errors` (|target - value| of each row), the clipped gradients of the
network, and the updates of both.
"""
import sys

import torch
from problem import WAYS, Numbers, bound, record, watch

HEIGHT, WIDTH, CHANNELS, ROWS, CHOICES, STEPS = 36, 44, 2, 8, 3, 3
GAMMA, TAU, ENDS = 0.9, 0.25, [2, 5]
CASES = {  # bytes, double Q-learning, dueling, masks, weights; the norm to clip to; the seed
    "bytes": (True, False, False, False, False, 0.5, 4),
    "double": (False, True, False, True, True, 100.0, 147),
    "dueling": (False, False, True, True, False, 0.5, 16),
    "all": (True, True, True, True, True, 0.5, 6),
}


class Extractor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = torch.nn.Sequential(
            torch.nn.Conv2d(CHANNELS, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU(),
            torch.nn.Conv2d(64, 64, 3, 1), torch.nn.ReLU(), torch.nn.Flatten())  # fmt: skip
        self.linear = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU())

    def forward(self, x):
        return self.linear(self.cnn(x))


class Network(torch.nn.Module):
    def __init__(self, dueling):
        super().__init__()
        self.features_extractor = Extractor()
        self.q_net = torch.nn.Sequential(torch.nn.Linear(512, CHOICES + dueling))
        self.dueling = dueling

    def forward(self, x):
        outputs = self.q_net(self.features_extractor(x))
        if not self.dueling:
            return outputs
        advantages = outputs[:, 1:]
        return outputs[:, :1] + advantages - advantages.mean(1, keepdim=True)


class Learner(torch.nn.Module):
    def __init__(self, dueling):
        super().__init__()
        self.q_net = Network(dueling)
        self.q_net_target = Network(dueling)


def load(learner, draw):
    for parameter in learner.parameters():
        scale = bound(2, parameter[0].numel()) if parameter.dim() > 1 else torch.tensor(0.1)
        parameter.data = draw.take(*parameter.shape) * scale


def greatest(values, allowed, tell):
    """The first of the greatest allowed values. Tells how far the next one is."""
    values = values.masked_fill(~allowed, -1e3)
    first, second = values.topk(2, dim=1).values.unbind(1)
    tell("choice", (first - second)[:, None])
    return values.argmax(1)


def losses_of(learner, batch, double, tell):
    """The loss, and the errors. Tells the distances to the kinks."""
    with torch.no_grad():
        judge = learner.q_net_target(batch["next"])
        chooser = learner.q_net(batch["next"]) if double else judge
        following = judge[torch.arange(ROWS), greatest(chooser, batch["allowed"], tell)]
        target = batch["rewards"] + GAMMA * (1 - batch["ends"]) * following
    value = learner.q_net(batch["x"])[torch.arange(ROWS), batch["actions"]]
    error = (value - target).detach().abs()
    tell("Huber loss", (error - 1)[:, None])
    loss = (batch["weights"] * torch.nn.functional.smooth_l1_loss(value, target, reduction="none")).mean()
    return loss, error


def draw_batch(draw, case, dtype, way):
    is_bytes, _, _, masks, weighs, _, _ = CASES[case]
    layout, _, nudge = way
    data = {}
    for name in "x", "next":
        shape = ROWS, HEIGHT, WIDTH, CHANNELS
        images = draw.indices(256, *shape).to(dtype) / 255 if is_bytes else draw.take(*shape).to(dtype)
        data[name] = (images.permute(0, 3, 1, 2) * (1 + nudge * 2.0**-23)).contiguous(memory_format=layout)
    data["actions"] = draw.indices(CHOICES, ROWS)
    data["rewards"] = 2 * draw.take(ROWS).to(dtype)
    weights = torch.tensor(0.5) * draw.take(ROWS) + torch.tensor(0.75)
    data["weights"] = weights.to(dtype) if weighs else torch.ones(ROWS, dtype=dtype)
    data["ends"] = torch.zeros(ROWS, dtype=dtype)
    data["ends"][ENDS] = 1
    data["allowed"] = torch.ones(ROWS, CHOICES, dtype=torch.bool)
    if masks:
        data["allowed"][torch.arange(ROWS), torch.arange(ROWS) % CHOICES] = False
    return data


def run(case, dtype, way, seen):
    _, double, dueling, _, _, max_norm, seed = CASES[case]
    layout, library, _ = way
    draw = Numbers(seed)
    learner = Learner(dueling)
    load(learner, draw)
    learner = learner.to(dtype).to(memory_format=layout)
    watch(learner, seen)
    batch = draw_batch(draw, case, dtype, way)
    optimizer = torch.optim.Adam(learner.q_net.parameters(), lr=0.001)
    with torch.backends.mkldnn.flags(enabled=library):
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss, errors = losses_of(
                learner, batch, double, lambda name, far, step=step: seen(0, "kink", f"{name} of step {step}", far))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learner.q_net.parameters(), max_norm)
            seen(step, "loss", "loss", loss)
            seen(step, "output", "errors", errors)
            before = {name: parameter.detach().double().clone() for name, parameter in learner.named_parameters()}
            for name, parameter in learner.q_net.named_parameters():
                seen(step, "gradient", f"q_net.{name}", parameter.grad)
            optimizer.step()
            with torch.no_grad():
                for to, of in zip(learner.q_net_target.parameters(), learner.q_net.parameters()):
                    to.mul_(1 - TAU)
                    torch.add(to, of, alpha=TAU, out=to)
            for name, parameter in learner.named_parameters():
                seen(step, "update", name, parameter.detach().double() - before[name])
    return draw.state


def main():
    for case in sys.argv[1:] or CASES:
        record(f"test/golden/dqn_images_{case}.txt", "steps of DQN on images",
               lambda *arguments, case=case: run(case, *arguments), WAYS)


if __name__ == "__main__":
    main()
