"""The numbers of a problem, and the record of a training run. Shared by the scripts of the models.

Numbers are those of test/kernels/policy/mlp_problem.h: the top 24 bits of a 64-bit state (times Knuth's MMIX
multiplier plus his increment) as a float32 in [-1, 1). A problem uses one sequence: first the parameters in the order
of the state_dict, then the data, then the direction.

A record is a text file that test/golden.c reads:

    # a line of text: the versions
    state NUMBER                                   the generator's state after the data
    STEP KIND NAME COUNT DEVIATION V0 V1 ...       from the float64 run; steps count from 1

KIND is output, loss, gradient, update (a parameter after the step minus before) or statistic. Outputs and
losses of at most 1,024 elements are stored whole. Every other tensor is stored as two values: its norm, and its dot
product with the direction, whose element i is number i after `state` for every tensor. A large output also has 256
values at equal distances, as NAME.sample.

DEVIATION is the largest deviation of PyTorch's own float32 runs from the float64 run: of an element where values are
stored, else the norm of the difference, which bounds the differences of the norm and of a dot product with a unit
vector. The runs differ in how PyTorch computes (layout, library) and in the last bits of the input (times
1 + n 2^-23). All use one thread; a second one changes only last digits.

Rounding is a small, smooth disturbance only while it changes no path. Where a ReLU's input is nearly 0, or two
candidates of a max pool are nearly equal, rounding decides where the gradient flows, and each processor rounds in
another way. One such element changed gradients of the full ResNets by 1e-3 to 5e-2, which no number of runs bounds.
So every problem keeps away from these kinks: a kink's distance in the float64 run is at least MARGIN times the largest
deviation that any float32 run has of it in the same channel. The script ends with an error where a problem does not,
and then the problem needs another seed. The ResNets are narrow and their batches small, because a seed can only be
found for a few hundred thousand distances.
"""
import itertools
import sys

import numpy
import torch

MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407
BLOCK = 1 << 20
WHOLE, SAMPLE = 1024, 256
MARGIN = 8
# How PyTorch computes: (the images' layout, whether with oneDNN, how many units the input is moved by).
PLAIN, LAST = torch.contiguous_format, torch.channels_last
WAYS = [(layout, True, nudge) for nudge in (0, 1, -1, 2, -2, 3, -3, 4, -4) for layout in (PLAIN, LAST)]
WAYS.append((PLAIN, False, 0))


class Numbers:
    """The sequence, many numbers at a time: state[n + 1 + i] = jump[i] * state[n] + add[i], modulo 2^64."""

    jump = numpy.array([MULTIPLIER], dtype=numpy.uint64)
    add = numpy.array([INCREMENT], dtype=numpy.uint64)

    def __init__(self, state):
        self.state = numpy.uint64(state)

    def take(self, *shape):
        """The next numbers as a float32 tensor of this shape."""
        left, parts = int(numpy.prod(shape, dtype=numpy.int64)), []
        while left > 0:
            count = min(left, BLOCK)
            states = Numbers.jump[:count] * self.state + Numbers.add[:count]
            self.state = states[-1]
            parts.append((states >> numpy.uint64(40)).astype(numpy.int64) - 2**23)
            left -= count
        values = numpy.concatenate(parts).astype(numpy.float32) * numpy.float32(2**-23)
        return torch.from_numpy(values.reshape(shape))

    def indices(self, count, *shape):
        """The next numbers as integers in 0 .. count - 1."""
        return ((self.take(*shape).double() + 1) / 2 * count).floor().long()


while len(Numbers.jump) < BLOCK:
    Numbers.add = numpy.concatenate([Numbers.add, Numbers.jump * Numbers.add[-1] + Numbers.add])
    Numbers.jump = numpy.concatenate([Numbers.jump, Numbers.jump * Numbers.jump[-1]])


def bound(numerator, denominator):
    """sqrt(numerator / denominator) as float32 arithmetic has it."""
    return (torch.tensor(float(numerator)) / torch.tensor(float(denominator))).sqrt()


def gap(pool, x):
    """By how much the largest value of each window of a max pool exceeds the next one: (n, channels, windows). 1 where
    at most one value is above 0, since ties of zeros behind a ReLU move no gradient."""
    border = [pool.padding] * 4
    windows = torch.nn.functional.unfold(torch.nn.functional.pad(x, border), pool.kernel_size, stride=pool.stride)
    first, second = windows.unflatten(1, (x.shape[1], -1)).topk(2, dim=2).values.unbind(2)
    return torch.where(second > 0, first - second, torch.ones_like(first))


def watch(model, seen):
    """Tells seen(0, "kink", name, distances) of the inputs of the model's ReLUs and max pools in every forward."""
    calls = itertools.count(1)

    def tell(name, distances):
        seen(0, "kink", f"{name} in call {next(calls)}", distances)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ReLU):
            module.register_forward_pre_hook(lambda _, inputs, name=name: tell(name, inputs[0]))
        if isinstance(module, torch.nn.MaxPool2d):
            module.register_forward_pre_hook(lambda pool, inputs, name=name: tell(name, gap(pool, inputs[0])))


def train(model, optimizer, forward, steps, seen):
    """Takes the steps; tells seen(step, kind, name, tensor) all that is recorded of them.

    forward() is one step's: its outputs by name, and the loss.
    """
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        outputs, loss = forward()
        loss.backward()
        for name, output in outputs.items():
            seen(step, "output", name, output)
        seen(step, "loss", "loss", loss)
        before = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            seen(step, "gradient", name, parameter.grad)
        optimizer.step()
        for name, parameter in model.named_parameters():
            seen(step, "update", name, parameter.detach().double() - before[name])
    for name, buffer in model.named_buffers():
        if buffer.dim() > 0:
            seen(steps, "statistic", name, buffer)


def pieces(kind, name, tensor):
    """A tensor's records: (name, float64 elements, whether they are stored as norm and dot product)."""
    flat = tensor.detach().double().flatten()
    if kind not in ("output", "loss"):
        return [(name, flat, True)]
    if len(flat) <= WHOLE:
        return [(name, flat, False)]
    stride = len(flat) // SAMPLE
    return [(name, flat, True), (name + ".sample", flat[: stride * SAMPLE : stride], False)]


def by_channel(tensor):
    """(n, channels, ...) as (channels, values) in float64."""
    return tensor.detach().double().transpose(0, 1).flatten(1).clone()


def check_margin(path, exact, deviation):
    """Ends the script where a distance to a kink is less than MARGIN times its channel's largest deviation."""
    margins = {name: (exact[name].abs().amin(1) / deviation[name]).nan_to_num(0.0).min().item() for name in exact}
    if margins:
        nearest = min(margins, key=margins.get)
        print(f"{path}: kinks keep {margins[nearest]:.3g} times the rounding away, the nearest is {nearest}")
        if margins[nearest] < MARGIN:
            sys.exit(f"{path}: {MARGIN} times are wanted: the problem needs another seed")


def record(path, title, run, ways):
    """Writes the record of run(dtype, way, seen) at `path`; `ways` are those of the float32 runs.

    run answers the sequence's state after the data. What it tells `seen` of kind "kink" are distances, of kind "least"
    the least deviation of an update.
    """
    exact, deviation, kinks, moved = {}, {}, {}, {}

    def expect(step, kind, name, tensor):
        if kind == "kink":
            kinks[name] = by_channel(tensor)
        elif kind == "least":
            deviation[step, "update", name] = max(deviation.get((step, "update", name), 0.0), tensor.item())
        else:
            for part, values, vector in pieces(kind, name, tensor):
                exact[step, kind, part] = values.clone(), vector

    def compare(step, kind, name, tensor):
        if kind == "kink":
            distance = (by_channel(tensor) - kinks[name]).abs().amax(1)
            moved[name] = torch.maximum(moved.get(name, distance), distance)
        elif kind != "least":
            for part, values, vector in pieces(kind, name, tensor):
                difference = values - exact[step, kind, part][0]
                distance = difference.norm() if vector else difference.abs().max()
                key = step, kind, part
                deviation[key] = max(deviation.get(key, 0.0), distance.item())

    torch.use_deterministic_algorithms(True)
    state = run(torch.float64, ways[0], expect)
    torch.set_num_threads(1)
    for way in ways:
        run(torch.float32, way, compare)
    check_margin(path, kinks, moved)
    direction = Numbers(state).take(max(len(values) for values, _ in exact.values())).double()
    with open(path, "w", encoding="ascii") as out:
        out.write(f"# {title} in PyTorch {torch.__version__}\nstate {int(state)}\n")
        for (step, kind, name), (values, vector) in exact.items():
            if vector:
                values = torch.stack([values.norm(), values @ direction[: len(values)]])
            text = " ".join(f"{v:.10g}" for v in values.tolist())
            out.write(f"{step} {kind} {name} {len(values)} {deviation[step, kind, name]:.3g} {text}\n")
