#!/usr/bin/env python3
"""Records images resized by PyTorch into test/golden/resize.txt, which test/worker/data/test_transform.c reads.

How to run it, from the repository's root, with Debian's python3-torch: /usr/bin/python3 test/golden/resize.py

After a line with the version, a block is a line `WIDTH HEIGHT CHANNELS SIZE` and then CHANNELS * SIZE lines of
SIZE numbers, (channels, size, size), in [0, 255]. The image has the byte (37 x + 101 y + 53 c + 7 x y) mod 256 at
(y, x, c).
"""

import pathlib

import torch

CASES = [(7, 5, 1, 4), (3, 5, 3, 8), (40, 3, 1, 6), (8, 8, 3, 8), (1, 1, 1, 3), (100, 90, 3, 5),
         (64, 33, 1, 32), (9, 300, 1, 7)]


def main():
    lines = [f"# PyTorch {torch.__version__}"]
    for width, height, channels, size in CASES:
        y, x, c = torch.meshgrid(*(torch.arange(n) for n in (height, width, channels)), indexing="ij")
        image = ((37 * x + 101 * y + 53 * c + 7 * x * y) % 256).permute(2, 0, 1)[None].float()
        out = torch.nn.functional.interpolate(image, (size, size), mode="bilinear", antialias=True,
                                              align_corners=False)
        lines.append(f"{width} {height} {channels} {size}")
        for row in out[0].reshape(-1, size):
            lines.append(" ".join(f"{value:.9g}" for value in row.tolist()))
    pathlib.Path("test/golden/resize.txt").write_text("\n".join(lines) + "\n")


main()
