#!/usr/bin/env python3
"""Records torch.optim.Adam and RMSprop into test/golden/adam.txt, which test/kernels/test_adam.c reads.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/adam.py

Parameters and gradients come from the generator that test/kernels/policy/mlp_problem.c has too (64-bit state, Knuth's MMIX
constants, the top 24 bits as a number in [-1, 1)), so the file holds only settings and results:

    # a line of text: the versions
    case LR BETA1 BETA2 EPSILON RMSPROP COUNT STEPS    one case; the state begins with the case's number, from
                                                   1. RMSPROP 1: RMSprop, whose alpha is BETA2; BETA1 is 0
    STEP DEVIATION V0 V1 ...                       the float64 parameters after that step, COUNT of them, and
                                                   how far PyTorch's own float32 run was from them at most
Parameters are numbers of the generator; then, step by step, gradients: numbers times 4 ** (element % 5 - 2),
those of every seventh element times 0.
"""
import torch

CASES = [
    (1e-3, 0.9, 0.999, 1e-8, 0),
    (1e-2, 0.9, 0.999, 1e-8, 0),
    (0.1, 0.5, 0.9, 1e-3, 0),
    (0.02, 0.0, 0.99, 1e-8, 0),
    (7e-4, 0.0, 0.99, 1e-5, 1),
]
COUNT = 24
STEPS = 300
RECORDED = (1, 2, 3, 10, 300)


def numbers(state):
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield ((state >> 40) - 2**23) / 2**23


def run(dtype, seed, lr, betas, eps, rmsprop):
    draw = numbers(seed)
    parameter = torch.nn.Parameter(torch.tensor([next(draw) for _ in range(COUNT)], dtype=dtype))
    optimizer = torch.optim.Adam([parameter], lr=lr, betas=betas, eps=eps)
    if rmsprop:
        optimizer = torch.optim.RMSprop([parameter], lr=lr, alpha=betas[1], eps=eps)
    seen = []
    for _ in range(STEPS):
        values = [next(draw) * 4.0 ** (i % 5 - 2) * (i % 7 != 0) for i in range(COUNT)]
        parameter.grad = torch.tensor(values, dtype=dtype)
        optimizer.step()
        seen.append(parameter.detach().double().clone())
    return seen


def main():
    with open("test/golden/adam.txt", "w", encoding="ascii") as out:
        out.write(f"# torch.optim.Adam of PyTorch {torch.__version__}, by test/golden/adam.py\n")
        for seed, (lr, beta1, beta2, eps, rmsprop) in enumerate(CASES, 1):
            out.write(f"case {lr!r} {beta1!r} {beta2!r} {eps!r} {rmsprop} {COUNT} {len(RECORDED)}\n")
            exact = run(torch.float64, seed, lr, (beta1, beta2), eps, rmsprop)
            single = run(torch.float32, seed, lr, (beta1, beta2), eps, rmsprop)
            for step in RECORDED:
                deviation = (exact[step - 1] - single[step - 1]).abs().max().item()
                values = " ".join(repr(v) for v in exact[step - 1].tolist())
                out.write(f"{step} {deviation!r} {values}\n")


main()
