#!/usr/bin/env python3
"""The held-out data of a class in Python, for `coalesced evaluate` (worker/data_parallel/evaluation.c). The command
starts it, sends a model, and is answered with each share's sums: as the trainers compute them, so that they are the same
numbers. The messages:

    to the child      u32 bytes, the job as JSON; u32 shares; u32 elements, and as many float32: the model's image
                      (worker/net/PROTOCOL.md, "The model as one row of numbers")
    from the child    of each share: float64, the sum of its losses; u64 hits; u64 samples
"""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # an isolated interpreter does not look there
writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # into this folder
from command_child import answer, receive, work
from trainer_class import call, evaluate_share, make_data, make_network, sizes_of
from worker_session import INVALID, MISSING, OK, UNAVAILABLE, Failure, import_package, np

sys.dont_write_bytecode = writes_none


def nothing():
    """Nobody watches this process."""


def open_network(job, image):
    """The data, how much of it is held out, and the model with these values."""
    torch = import_package("torch")
    torch.set_num_threads(job["trainers"]["threads"] or 1)
    data = call(job, "constructing it", make_data, job, 0, nothing)
    _, held_out = call(job, "its size", sizes_of, job, data)
    if held_out == 0:
        raise Failure(INVALID, f"{job['trainers']['class']}: nothing is held out to evaluate on: expected held_out_size and held_out, "
                               "or a Dataset whose constructor has an argument train")  # fmt: skip
    if not hasattr(data, "model"):
        import_package("torchvision")
    network = call(job, "model", make_network, job, data, nothing)
    if len(image) != network.layout.elements:
        raise Failure(INVALID, f"the checkpoint's model has {len(image)} elements: expected {network.layout.elements}")
    network.values[:] = image
    network.take()
    return data, held_out, network


def serve(peer):
    (size,) = struct.unpack("=I", receive(peer, 4))
    job = json.loads(receive(peer, size))
    shares, elements = struct.unpack("=II", receive(peer, 8))
    data = receive(peer, 4 * elements)
    if MISSING is not None:
        raise Failure(UNAVAILABLE, f"{sys.executable}: {MISSING}: expected the packages pyzmq, numpy, torch and torchvision")
    data, held_out, network = open_network(job, np.frombuffer(data, np.float32))
    sums = [call(job, "held_out", evaluate_share, network, data, held_out, share, shares) for share in range(shares)]
    answer(peer, OK, *(struct.pack("=dQQ", *share) for share in sums))


if __name__ == "__main__":
    work(serve)
