#!/usr/bin/env python3
"""A trainer in Python: a ResNet of torchvision computes the gradients, our servers make the updates.

The supervisor starts it for a job with "trainers": {"class": "module:Class"}, and watches it like any worker. It is
written from worker/net/PROTOCOL.md alone.

    worker_session.py  messages to the supervisor and the servers
    trainer_class.py   what the class has to be: it makes the batches
    trainer_data.py    a class that makes the batches of the job's /data
    trainer_model.py   the model, and the row of numbers that travels
    Servers            the calls to all servers
    Trainer            steps, and evaluations when they are asked for
"""
import collections
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # an isolated interpreter does not look there
writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # into this folder
from trainer_class import call, evaluate_share, make_data, make_network, sizes_of
from worker_session import (
    CORRUPT, INTERNAL, INVALID, OK, PEER_DIED, SHUTDOWN,
    Failure, Hurry, Line, Session, import_package, np, work,
)  # fmt: skip

sys.dont_write_bytecode = writes_none

# The methods that trainers and servers have, and the numbers of PROTOCOL.md's chapter on them.
GET_MODEL, PUSH_CHUNK, PUSH_PULL, EVALUATE, DESCRIBE_DATA = 4, 5, 6, 7, 23
NEWEST = (1 << 64) - 1
LAST = 2  # a flag of answers: the job has made its last update
CHUNK = 131072
IN_FLIGHT = 4  # chunks on their way to or from one server


def bits(number):
    """A float64 as the protocol's 64 bits."""
    return struct.unpack("<Q", struct.pack("<d", number))[0]


# ---- the servers ----
Version = collections.namedtuple("Version", "number step last counted")  # counted[j]: server j has counted the step already


class Servers:
    def __init__(self, turns, start, job):
        self.turns, count = turns, job["server"]["count"]
        self.sessions = [Session(turns, start, j, f"server {j}", (EVALUATE,) if j == 0 else ()) for j in range(count)]
        self.first = self.sessions[0]  # asks for evaluations

    def greet(self):
        for session in self.sessions:
            job = session.greet()
        return job

    def describe(self, train, held_out):
        """Says how many samples the class has."""
        for session, request in [(session, session.request(DESCRIBE_DATA, (train, held_out))) for session in self.sessions]:
            session.wait(request)

    def place(self, layout):
        self.layout = layout
        self.chunks = []  # of each server: pairs of first and count
        for ranges in layout.ranges(len(self.sessions)):
            self.chunks.append([
                (at, min(CHUNK, end - at)) for first, end in ranges for at in range(first, end, CHUNK)
            ])  # fmt: skip

    def _transfer(self, which, ask, take):
        """Calls each of these servers for each of its chunks; a few calls to each are under way."""
        left = {j: collections.deque(self.chunks[j]) for j in which}
        under_way = {j: collections.deque() for j in which}
        while left or any(under_way.values()):
            for j in list(left):
                while left[j] and len(under_way[j]) < IN_FLIGHT:
                    chunk = left[j].popleft()
                    under_way[j].append((ask(self.sessions[j], *chunk), chunk))
                if not left[j]:
                    del left[j]
            for j in which:
                if under_way[j]:
                    request, chunk = under_way[j].popleft()
                    take(self.sessions[j].wait(request), *chunk)

    def pull(self, version, row):
        """Reads the whole of a version into the row."""

        def ask(session, first, count):
            return session.request(GET_MODEL, (version, first, count, self.layout.fingerprint))

        def take(reply, first, count):
            if len(reply.tensors) != 1 or reply.tensors[0].shape != (count,) or reply.tensors[0].dtype != np.float32:
                raise Failure(INTERNAL, f"a server's answer to GET_MODEL: expected {count} float32")
            if reply.args[0] != version:
                raise Failure(INTERNAL, f"a server's answer to GET_MODEL has version {reply.args[0]}: expected {version}")
            row[first : first + count] = reply.tensors[0]

        self._transfer(range(len(self.sessions)), ask, take)

    def push(self, at, row):
        """Hands the row out as the contribution of the step, to the servers that do not have the step yet."""

        def ask(session, first, count):
            return session.request(PUSH_CHUNK, (at.step, first), (row[first : first + count],))

        which = [j for j in range(len(self.sessions)) if not at.counted[j]]
        self._transfer(which, ask, lambda reply, first, count: None)

    def newest(self):
        """The version to go on from. After a trainer's death the servers may name different versions: the trainer then goes
        on from the lowest, which every server still has."""
        version, agree = self._merge(self._ask_for(NEWEST))
        if agree:
            return version
        return self._merge(self._ask_for(version.number))[0]

    def _ask_for(self, version):
        requests = [self._hold(session, version) for session in self.sessions]
        return [session.wait(request) for session, request in zip(self.sessions, requests)]

    def _hold(self, session, version):
        """Asks for a version without its elements: this trainer holds the version from then on."""
        return session.request(GET_MODEL, (version, 0, 0, self.layout.fingerprint))

    @staticmethod
    def _merge(replies):
        """The lowest version and step of the servers' answers, and whether all of them name one version."""
        numbers, steps = [reply.args[0] for reply in replies], [reply.args[2] for reply in replies]
        version = Version(min(numbers), min(steps), any(reply.args[3] & LAST for reply in replies),
                          [step > min(steps) for step in steps])  # fmt: skip
        return version, len(set(numbers)) == 1

    def push_pull(self, at, loss, meanwhile):
        """Says that the contribution is whole, and waits for the next version, until the round is full. `meanwhile` is
        called whenever something may have come."""
        said = (at.step, at.number, bits(loss), 4 * self.layout.elements)
        requests = []
        for session, counted in zip(self.sessions, at.counted):
            requests.append(self._hold(session, NEWEST) if counted else session.request(PUSH_PULL, said))
        pairs = list(zip(self.sessions, requests))
        while not all(request in session.replies for session, request in pairs):
            for session, request in pairs:
                if request in session.replies and session.replies[request].status != OK:
                    session.wait(request)  # raises it; BYE is behind it
            self.turns.check()
            self.turns.turn(1.0)
            meanwhile()  # after the last turn too: the answers may have come with a request to evaluate
        version, agree = self._merge([session.wait(request) for session, request in pairs])
        if not agree or version.step != at.step + 1:
            raise Failure(INTERNAL, f"the servers answered step {at.step} with step {version.step} of version "
                                    f"{version.number}{'' if agree else ' and others'}: expected the next step, and one "
                                    "version")  # fmt: skip
        return version


# ---- the trainer ----
class Trainer:
    def __init__(self, line, servers, job, number):
        self.line, self.servers, self.job, self.number = line, servers, job, number
        self.over = False
        with line.beating():
            torch = import_package("torch")
        torch.set_num_threads(job["trainers"]["threads"] or 1)
        self.data = self._call("constructing it", self._make_data)
        train, self.held_out = self._call("its size", sizes_of, job, self.data)
        if job["data"]["kind"] == "class":
            servers.describe(train, self.held_out)
        if not hasattr(self.data, "model"):
            with line.beating():
                import_package("torchvision")
        self.network = self._call("model", make_network, job, self.data, self._beat)
        servers.place(self.network.layout)
        self._take(servers.newest())

    def _beat(self):
        """Within a computation. An order to hurry ends it."""
        self.line.beat()
        self.line.read_orders()
        if self.line.hurry or self.line.leave:
            raise Hurry

    def _call(self, what, function, *arguments):
        """Calls the user's code."""
        self.line.beat()
        return call(self.job, what, function, *arguments)

    def _make_data(self):
        with self.line.beating():
            return make_data(self.job, self.number, self._beat)

    def _take(self, version):
        self.at = version
        self.over = self.over or version.last
        self.servers.pull(version.number, self.network.values)
        self.network.take()

    def _can_evaluate(self):
        """Only a single server can ask for another version than the present one: several servers go in step."""
        asked = self.servers.first.call
        return asked is not None and (len(self.servers.sessions) == 1 or asked.args[0] == self.at.number)

    def _tell(self, *evaluation):
        self.line.evaluation = evaluation

    def _evaluate(self):
        version, _, share, shares = self.servers.first.call.args
        if shares != self.job["trainers"]["count"] or share >= shares:
            raise Failure(INTERNAL, f"server 0 asks to evaluate share {share} of {shares}")
        try:
            if version != self.at.number:
                self.servers.pull(version, self.network.values)
                self.network.take()
            arguments = self.network, self.data, self.held_out, share, shares, self._tell
            total, right, count = self._call("held_out", evaluate_share, *arguments)
        except Failure as failure:
            status = CORRUPT if failure.status == INVALID else failure.status  # the same again, of a successor
            self.servers.first.decline(status, f"trainer {self.number}, evaluation of version {version}: {failure}")
            raise
        self.servers.first.answer(args=(bits(total), right, count))

    def _evaluate_meanwhile(self):
        if self._can_evaluate():
            self._evaluate()

    def _step(self):
        what = f"batch {self.at.step}"
        loss = self._call(what, self.network.compute, self._call(what, self.data.batch, self.at.step))
        self.servers.push(self.at, self.network.contribution)
        self._take(self.servers.push_pull(self.at, loss, self._evaluate_meanwhile))
        self._tell(0, 0)  # an update has followed: no trainer evaluates
        self.line.work += 1

    def _advance(self):
        self.servers.turns.check()
        if self._can_evaluate():
            version = self.servers.first.call.args[0]
            self._evaluate()
            if version != self.at.number and not self.over:
                self._take(self.servers.newest())
        elif self.over:
            self.servers.turns.turn(1.0)
        else:
            self.servers.turns.turn(0)
            if not self._can_evaluate():
                self._step()

    def run(self):
        """Until the supervisor says that it is time to leave."""
        while not self.line.leave:
            try:
                self._advance()
            except Hurry:
                self.over = True  # no step is needed any more; an evaluation may be
                if self.line.hurry or self.line.leave:
                    self.servers.first.decline(SHUTDOWN, "the job is ending")
                if self.line.hurry and not self.line.leave:
                    self.line.wait(1.0)
            except Failure as failure:
                if failure.status != PEER_DIED or not self.line.leave:
                    raise


def train(turns, start):
    servers = Servers(turns, start, start["job"])
    job = servers.greet()
    turns.line.beat()
    trainer = Trainer(turns.line, servers, job, start["worker"] - len(servers.sessions))
    turns.line.send(Line.READY)
    trainer.run()


if __name__ == "__main__":
    work(train, "pyzmq, numpy, torch and torchvision")
