#!/usr/bin/env python3
"""Writes two safetensors files for test/kernels/safetensors/test_safetensors_file.c, and checks the files that it writes.

How to run it, from the repository's root:

    build/python-venv/bin/python test/golden/safetensors_files.py             writes test/golden/python*.safetensors
    build/python-venv/bin/python test/golden/safetensors_files.py FILE...     checks files that the test wrote

The tensors' values follow from their place: element i of tensor number t (in alphabetical order of the
names) is 100 t + i, minus 7 for the floating ones. A file that the C test wrote holds the same tensors in
another order.

Exit: 0 written or equal, 1 different, 77 a package is missing (a line names it).
"""
import sys

try:
    import numpy
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(f"Python does not read or write safetensors files: {missing} (scripts/deps python installs what it needs)")
    sys.exit(77)

SHAPES = {
    "conv.weight": ((2, 3, 1, 2), numpy.float32),
    "double": ((3,), numpy.float64),
    "empty": ((0, 4), numpy.float32),
    "indices": ((2, 2), numpy.int32),
    "num_batches_tracked": ((), numpy.int64),
    'odd "name"\\\n\u00e9': ((2,), numpy.float32),
}


def tensors():
    made = {}
    for number, (name, (shape, dtype)) in enumerate(sorted(SHAPES.items())):
        count = int(numpy.prod(shape))
        values = 100 * number + numpy.arange(count) - (7 if numpy.issubdtype(dtype, numpy.floating) else 0)
        made[name] = values.astype(dtype).reshape(shape)
    return made


def check(path):
    expected, found = tensors(), load_file(path)
    assert sorted(expected) == sorted(found), (path, sorted(found))
    for name, values in expected.items():
        assert values.dtype == found[name].dtype and values.shape == found[name].shape, (path, name)
        assert (values == found[name]).all(), (path, name)


def main():
    if len(sys.argv) > 1:
        for path in sys.argv[1:]:
            check(path)
            with safe_open(path, framework="numpy") as file:
                print(f"{path}: {len(file.keys())} tensors")
        return
    save_file(tensors(), "test/golden/python.safetensors", metadata={"format": "pt", "by": "test/golden"})
    half = {"half": numpy.arange(3, dtype=numpy.float16), "flags": numpy.array([True, False, True])}
    save_file(half, "test/golden/python-other.safetensors")


main()
