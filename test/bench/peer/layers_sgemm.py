"""The products of SAC's and DQN's networks as PyTorch's sgemm computes them, on one thread; beside bench_dense.

    OMP_NUM_THREADS=1 build/sb3-venv/bin/python test/bench/peer/layers_sgemm.py

Only the products: no activation, no bias. `act`, `learn` and `pull` have those of bench_dense's rows of these names, and
`large` is a product of 768 by 768 matrices. Figures are the median and, in brackets, the tenth and the ninetieth
percentile of the thread's CPU time.
"""
import time

import torch

ROUNDS, ROUND_S = 31, 0.004
CHAINS = [([23, 256, 256, 1], 256), ([17, 256, 256, 12], 256), ([4, 64, 64, 2], 64)]


def chain(widths, rows):
    """What to run of each kind: pairs of factors, and their result."""
    products = {"act": [], "learn": [], "pull": []}
    for layer, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        x, weight, pull = torch.rand(rows, inputs), torch.rand(outputs, inputs), torch.rand(rows, outputs)
        back = (pull, weight, torch.empty(rows, inputs))
        products["act"].append((x, weight.t(), torch.empty(rows, outputs)))
        products["learn"].append((pull.t(), x, torch.empty(outputs, inputs)))
        products["learn"] += [back] if layer > 0 else []
        products["pull"].append(back)
    return products


def measure(name, kind, products):
    def run(times):
        begin = time.thread_time()
        for _ in range(times):
            for a, b, out in products:
                torch.mm(a, b, out=out)
        return (time.thread_time() - begin) / times

    run(3)
    times = int(ROUND_S / run(10)) + 1
    seconds = sorted(run(times) for _ in range(ROUNDS))
    flop = sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b, _ in products)
    low, typical, high = (flop / seconds[i] / 1e9 for i in (ROUNDS - 1 - ROUNDS // 10, ROUNDS // 2, ROUNDS // 10))
    print(f"{name:13s} sgemm    {kind:6s}  {typical:6.1f} GFLOP/s [{low:.1f} {high:.1f}]", flush=True)


def main():
    torch.set_num_threads(1)
    print(f"products, one thread; PyTorch {torch.__version__}")
    large = torch.rand(768, 768)
    measure("768", "large", [(large, large.clone(), torch.empty(768, 768))])
    for widths, rows in CHAINS:
        for kind, products in chain(widths, rows).items():
            measure("-".join(map(str, widths)), kind, products)


if __name__ == "__main__":
    main()
