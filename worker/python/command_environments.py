#!/usr/bin/env python3
"""The environments of a job that are in Python, for a command that plays episodes (worker/environment/
python_environments.h, where the messages are described). The command starts it, and it ends with the command.
"""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # an isolated interpreter does not look there
writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # into this folder
from command_child import answer, receive, work
from worker_session import MISSING, OK, UNAVAILABLE, Failure, import_package, np

sys.dont_write_bytecode = writes_none

RESET, STEP, RENDER = 1, 2, 3
MODES = {1: "ansi", 2: "rgb_array"}  # Gymnasium's render_mode of environment.h's pictures


def make_environments(job, count, rendering):
    import_package("gymnasium")
    from environments import open_environments

    job["environment"]["frames"] = 1  # the command joins frames
    return open_environments(job, 0, count, lambda *_: None, evaluation=True, render_mode=MODES.get(rendering))


class Server:
    def __init__(self, peer, environments):
        self.peer, self.environments = peer, environments

    def _masks(self, masks):
        return b"".join(np.asarray(mask, "u1").tobytes() for mask in masks if mask is not None)

    def reset(self, which):
        """Each environment begins the episode and step that its seed follows from."""
        places = list(struct.iter_unpack("=II", receive(self.peer, 8 * len(which))))
        if len(set(places)) == 1:
            rows = self.environments.reset(which, *places[0])
        else:
            rows = [next(self.environments.reset([i], *place)) for i, place in zip(which, places)]
        observations, masks = zip(*rows)
        return b"".join(np.ascontiguousarray(o).tobytes() for o in observations), self._masks(masks)

    def step(self, which):
        environments = self.environments
        data = receive(self.peer, environments.action_bytes() * len(which))
        actions = np.frombuffer(data, environments.action.dtype).reshape(len(which), *environments.action_rows())
        observations, rewards, flags, masks, metrics = zip(*environments.step(which, actions))
        none = [0.0] * len(environments.metrics)
        if environments.agents > 1:
            metrics = [row for rows in metrics for row in rows]
        return (
            b"".join(np.ascontiguousarray(o).tobytes() for o in observations),
            self._masks(masks),
            np.asarray(rewards, "<f4").tobytes(),
            np.asarray(flags, "u1").tobytes(),
            np.asarray([row or none for row in metrics], "<f4").tobytes(),
        )

    def render(self, which):
        picture = self.environments.render(which[0])
        if isinstance(picture, str):
            return struct.pack("=II", 0, 0), picture.encode()
        height, width, _ = picture.shape
        return struct.pack("=II", width, height), np.ascontiguousarray(picture).tobytes()

    def run(self):
        calls = {RESET: self.reset, STEP: self.step, RENDER: self.render}
        while (head := receive(self.peer, 8)) is not None:
            kind, n = struct.unpack("=II", head)
            which = struct.unpack(f"={n}I", receive(self.peer, 4 * n))
            answer(self.peer, OK, *calls[kind](which))


def serve(peer):
    count, rendering, size = struct.unpack("=III", receive(peer, 12))
    job = json.loads(receive(peer, size))
    if MISSING is not None:
        raise Failure(UNAVAILABLE, f"{sys.executable}: {MISSING}: expected the packages pyzmq, numpy and gymnasium")
    environments = make_environments(job, count, rendering)
    answer(peer, OK, environments.describe().encode())
    Server(peer, environments).run()
    environments.close()


if __name__ == "__main__":
    work(serve)
