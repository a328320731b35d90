#!/usr/bin/env python3
"""Records every operation of kernels/kernels.h, as PyTorch computes it in float64, into test/golden/ref.txt, with
which test/oracle/test_ref.c compares the oracle (test/oracle).

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/ref.py

Inputs come from the generator that test/kernels/policy/mlp_problem.c has too (64-bit state, Knuth's MMIX constants, the top 24
bits as a number in [-1, 1)), one state per case that begins with the case's number, from 1. In the file:

    # a line of text: the versions
    case OP RELU TRAINING EPSILON KH KW SH SW PH PW P SEED W0 W1 W2 SCALE
    shape RANK SIZE...                reshape's
    in I RANK SIZE... LIMIT           input I: drawn in this order; LIMIT 0: floating, else int32 below LIMIT
    out I RANK SIZE... VALUE...       output I; int32 as numbers
    dout I                            the gradient of output I, drawn after all inputs, in this order
    din I VALUE...                    the gradient that arrives at input I
    end

A floating input is the number itself, a variance its absolute value plus 0.5; an integer is
floor((number + 1) / 2 * LIMIT). Philox4x32-10 is implemented here independently from "Parallel random numbers: as
easy as 1, 2, 3" (Salmon et al., SC11), so that draws have a second source.
"""
import math

import torch
import torch.nn.functional as F
from philox import philox

OPS = ("linear conv2d batch_norm max_pool avg_pool relu add reshape dropout log_softmax embedding "
       "lstm mse cross_entropy log_probability sum tanh gru").split()
DROPOUT = 3


def numbers(state):
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield ((state >> 40) - 2**23) / 2**23


def keep(seed, row, j, p):
    group, v = j // 128, j % 128 // 16
    word = philox(seed, DROPOUT, 16 * group + j % 16, row)[v // 2]
    return (word >> 16 * (v % 2)) % 2**16 >= round(65536 * p)


def mask(x, rows, a):
    if rows is None:
        rows = [a["draw"]]
    else:
        rows = rows.tolist()
    count = x.numel() // len(rows)
    bits = [keep(a["seed"], row, j, a["p"]) for row in rows for j in range(count)]
    return torch.tensor(bits, dtype=torch.float64).reshape(x.shape)


def relu_if(y, a):
    return F.relu(y) if a["relu"] else y


def batch_norm(a, x, weight, bias, mean, variance):
    y = F.batch_norm(x, mean, variance, weight, bias, bool(a["training"]), 0.1, a["epsilon"])
    if not a["training"]:
        return [relu_if(y, a)]
    flat = x.detach().transpose(0, 1).flatten(1)
    return [relu_if(y, a), flat.mean(1), flat.var(1, unbiased=True)]


def lstm(a, x, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh):
    batch, hidden = x.shape[1], weight_hh.shape[1]
    zero = torch.zeros(batch, hidden, dtype=torch.float64)
    h, c = (zero if t is None else t for t in (h0, c0))
    weights = [weight_ih, weight_hh] + ([] if bias_ih is None else [bias_ih, bias_hh])
    y, hn, cn = torch._VF.lstm(x, (h[None], c[None]), weights, bias_ih is not None, 1, 0.0, False, False, False)
    return [y, hn[0], cn[0]]


def gru(x, h0, *parameters):
    h = torch.zeros(x.shape[1], parameters[1].shape[1], dtype=torch.float64) if h0 is None else h0
    weights = [parameter for parameter in parameters if parameter is not None]
    y, hn = torch._VF.gru(x, h[None], weights, len(weights) == 4, 1, 0.0, False, False, False)
    return [y, hn[0]]


def compute(op, a, t):
    pool = dict(kernel_size=a["kernel"], stride=a["stride"], padding=a["padding"])
    return {
        "linear": lambda: [F.linear(*t)],
        "conv2d": lambda: [F.conv2d(*t, stride=a["stride"], padding=a["padding"])],
        "batch_norm": lambda: batch_norm(a, *t),
        "max_pool": lambda: [F.max_pool2d(t[0], **pool)],
        "avg_pool": lambda: [F.avg_pool2d(t[0], **pool)],
        "relu": lambda: [F.relu(t[0])],
        "add": lambda: [relu_if(t[0] + t[1], a)],
        "reshape": lambda: [t[0].reshape(a["shape"])],
        "dropout": lambda: [t[0] * mask(t[0], t[1], a) / (1 - a["p"])],
        "log_softmax": lambda: [F.log_softmax(t[0], -1)],
        "embedding": lambda: [F.embedding(*t)],
        "lstm": lambda: lstm(a, *t),
        "gru": lambda: gru(*t),
        "mse": lambda: [F.mse_loss(*t)],
        "cross_entropy": lambda: [F.cross_entropy(*t)],
        "log_probability": lambda: [t[0].gather(1, t[1][:, None])[:, 0]],
        "tanh": lambda: [torch.tanh(t[0])],
        "sum": lambda: [a["scale"] * (t[0] if t[1] is None else t[0] * t[1]).sum()],
    }[op]()


def C(op, *inputs, **attributes):
    return op, inputs, attributes


def I(limit, *sizes):
    return limit, sizes


# One (operation, inputs, attributes) each; an input is its sizes, I(limit, sizes...) for integers, or None.
CASES = [
    C("linear", (3, 5), (4, 5), (4,)),
    C("linear", (1, 1), (2, 1), None),
    C("conv2d", (2, 3, 7, 6), (4, 3, 3, 3), stride=(1, 1), padding=(1, 1)),
    C("conv2d", (2, 3, 7, 6), (4, 3, 3, 2), stride=(2, 3), padding=(1, 0)),
    C("conv2d", (1, 2, 5, 5), (3, 2, 1, 1), stride=(2, 2), padding=(0, 0)),
    C("conv2d", (1, 1, 2, 2), (2, 1, 3, 3), stride=(3, 3), padding=(3, 4)),
    C("batch_norm", (3, 2, 2, 3), (2,), (2,), None, None, training=1),
    C("batch_norm", (3, 2, 2, 3), (2,), (2,), None, None, training=1, relu=1, epsilon=0.1),
    C("batch_norm", (2, 3, 1, 1), (3,), (3,), (3,), (3,), training=1),
    C("batch_norm", (2, 2, 2, 2), (2,), (2,), (2,), (2,), relu=1),
    C("max_pool", (2, 2, 6, 7), kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
    C("max_pool", (1, 2, 5, 4), kernel=(2, 3), stride=(1, 2), padding=(0, 1)),
    C("avg_pool", (2, 2, 6, 7), kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
    C("avg_pool", (2, 3, 4, 5), kernel=(4, 5), stride=(1, 1), padding=(0, 0)),
    C("relu", (3, 4)),
    C("add", (2, 3), (2, 3)),
    C("add", (2, 3, 2, 2), (2, 3, 2, 2), relu=1),
    C("reshape", (2, 3, 4), shape=(6, 4)),
    C("dropout", (7, 43), None, p=0.4, draw=(2, 5, 77), seed=2**40 + 3),
    C("dropout", (6, 200), I(1000, 3, 3), p=0.6, seed=99),
    C("log_softmax", (3, 5)),
    C("log_softmax", (2, 2, 7)),
    C("embedding", I(4, 3, 2), (4, 5)),
    C("embedding", I(3, 7), (3, 1)),
    C("lstm", (4, 3, 5), (3, 2), (3, 2), (8, 5), (8, 2), (8,), (8,), dout=(0, 1, 2)),
    C("lstm", (3, 2, 4), (2, 3), (2, 3), (12, 4), (12, 3), (12,), (12,), dout=(0,)),
    C("lstm", (1, 1, 1), (1, 1), (1, 1), (4, 1), (4, 1), (4,), (4,), dout=(1,)),
    C("lstm", (2, 2, 3), (2, 2), (2, 2), (8, 3), (8, 2), (8,), (8,), dout=(2,)),
    C("mse", (3, 4), (3, 4)),
    C("cross_entropy", (5, 3), I(3, 5)),
    C("cross_entropy", (5, 3, 10), I(3, 5, 10)),
    C("log_probability", (4, 3), I(3, 4)),
    C("sum", (3, 4), None, scale=0.25),
    C("sum", (2, 5), (2, 5), scale=-2.0),
    C("conv2d", (2, 3, 5, 4), (4, 3, 3, 2), (4,), stride=(2, 1), padding=(1, 0)),
    C("tanh", (3, 4)),
    C("gru", (4, 3, 5), (3, 2), (6, 5), (6, 2), (6,), (6,), dout=(0, 1)),
    C("gru", (3, 2, 4), (2, 3), (9, 4), (9, 3), (9,), (9,), dout=(0,)),
    C("gru", (2, 2, 3), (2, 2), (6, 3), (6, 2), (6,), (6,), dout=(1,)),
]
DEFAULTS = dict(relu=0, training=0, epsilon=1e-5, kernel=(1, 1), stride=(1, 1), padding=(0, 0), p=0.0, seed=0,
                draw=(0, 0, 0), scale=1.0, shape=(), dout=(0,))


def draw_input(op, i, spec, draw):
    """The tensor, and its line in the file without the index."""
    limit, sizes = spec if op_is_integer(spec) else (0, spec)
    values = [next(draw) for _ in range(math.prod(sizes))]
    if limit:
        tensor = torch.tensor([math.floor((v + 1) / 2 * limit) for v in values])
    else:
        tensor = torch.tensor(values, dtype=torch.float64)
        if op == "batch_norm" and i == 4:
            tensor = tensor.abs() + 0.5
    return tensor.reshape(sizes), " ".join(map(str, (len(sizes), *sizes, limit)))


def op_is_integer(spec):
    return len(spec) == 2 and isinstance(spec[1], tuple)


def text_of(tensor):
    return " ".join(repr(v) for v in tensor.detach().flatten().tolist())


def record(out, number, op, specs, given):
    a = {**DEFAULTS, **given}
    draw = numbers(number)
    print("case", OPS.index(op), a["relu"], a["training"], repr(a["epsilon"]), *a["kernel"], *a["stride"],
          *a["padding"], repr(a["p"]), a["seed"], *a["draw"], repr(a["scale"]), file=out)
    print("shape", len(a["shape"]), *a["shape"], file=out)
    tensors = []
    for i, spec in enumerate(specs):
        tensor, line = (None, None) if spec is None else draw_input(op, i, spec, draw)
        tensors.append(tensor)
        if spec is not None:
            print("in", i, line, file=out)
            differentiable = tensor.is_floating_point() and not (op == "batch_norm" and i > 2)
            tensor.requires_grad_(differentiable and not (op in ("mse", "sum") and i == 1))
    outputs = compute(op, a, tensors)
    for i, y in enumerate(outputs):
        print("out", i, y.dim(), *y.shape, text_of(y), file=out)
    infers = op == "batch_norm" and not a["training"]
    douts = []
    for i in () if infers else a["dout"]:
        values = [next(draw) for _ in range(outputs[i].numel())]
        douts.append(torch.tensor(values, dtype=torch.float64).reshape(outputs[i].shape))
        print("dout", i, file=out)
    if douts:
        torch.autograd.backward([outputs[i] for i in a["dout"]], douts)
    for i, tensor in enumerate(tensors):
        if douts and tensor is not None and tensor.requires_grad:
            print("din", i, text_of(tensor.grad), file=out)
    print("end", file=out)


def main():
    with open("test/golden/ref.txt", "w", encoding="ascii") as out:
        print(f"# operations of PyTorch {torch.__version__} in float64, by test/golden/ref.py", file=out)
        for number, (op, specs, given) in enumerate(CASES, 1):
            record(out, number, op, specs, given)


main()
