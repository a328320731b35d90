#!/usr/bin/env python3
"""An observer whose environments are in Python: any id that gymnasium.make knows, any of EnvPool's as "envpool/ID", or a
class of one's own: a gymnasium.Env, or a gymnasium.vector.VectorEnv without autoreset, which gets num_envs.

The supervisor starts it for a job with "environment": {"gymnasium": ID} or {"class": "module:Class"}, and watches it
like any worker. It is written from worker/net/PROTOCOL.md alone, with pyzmq and NumPy, and shows how a worker in
another language is made. Everything runs on one thread.

    Line          the control line to the supervisor: orders in, beats and reports out
    Segment       memory that the agent reads too, for large observations
    Session       the connection to the agent: requests and replies
    Space         an observation or an action: Gymnasium's description of it, and the agent's
    Environments  Gymnasium's environments, one after the other, with their checks; Vector, Pool: all at once
    Group         environments that are stepped together, and ask the agent together
    Observer      plays the episodes that the agent asks for
"""
import fcntl
import hashlib
import hmac
import importlib
import json
import mmap
import os
import secrets
import select
import socket
import struct
import sys
import time
import traceback

# The statuses that this program uses (PROTOCOL.md, "Statuses"), and the exit code of each, from sysexits.h.
OK, INVALID, NOT_FOUND, PEER_DIED, SHUTDOWN, CORRUPT, UNAVAILABLE, INTERNAL = 0, 2, 3, 6, 7, 11, 12, 13
EXIT_CODES = {INVALID: 78, NOT_FOUND: 66, CORRUPT: 65, UNAVAILABLE: 69}
EXIT_OTHERWISE = 70

FORGOTTEN_BY_SUPERVISOR = 69


class Failure(Exception):
    """What ends this worker: a status and a sentence."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Hurry(Exception):
    """The job is ending: the running episode is abandoned."""


try:
    import numpy as np
    import zmq
except ImportError as missing:
    np = zmq = None
    MISSING = str(missing)


# ---- the control line ----
class Line:
    START, CONNECT, DIED, HURRY, EXIT = 1, 2, 3, 6, 7
    READY, BEAT, FAILED = 9, 10, 16
    BYTES_MAX = 4 + 32 * 1024
    BEAT_S = 0.1
    _START = struct.Struct("<HBxII32s160s4096s4096s")

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.beat_due = 0.0
        self.connect = self.hurry = self.leave = self.agent_died = False

    def fileno(self):
        return self.socket.fileno()

    def send(self, kind, body=b""):
        try:
            self.socket.send(struct.pack("<I", kind) + body, socket.MSG_NOSIGNAL)
        except OSError:
            os._exit(FORGOTTEN_BY_SUPERVISOR)

    def beat(self):
        now = time.monotonic()
        if now >= self.beat_due:
            self.send(self.BEAT)
            self.beat_due = now + self.BEAT_S

    def _receive(self, flags=0):
        """A message's kind and body; None if none waits."""
        try:
            message = self.socket.recv(self.BYTES_MAX, flags)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        if not message:
            os._exit(FORGOTTEN_BY_SUPERVISOR)
        return struct.unpack_from("<I", message)[0], message[4:]

    def start(self):
        """Waits for START; its members by name."""
        kind, body = self._receive()
        if kind != self.START or len(body) < self._START.size:
            raise Failure(INTERNAL, f"expected START from the supervisor on descriptor {self.fileno()}")
        worker, role, incarnation, generation, secret, address, _, _ = self._START.unpack_from(body)
        return {
            "worker": worker,
            "role": role,
            "incarnation": incarnation,
            "generation": generation,
            "secret": secret,
            "address": address.split(b"\0", 1)[0].decode(),
        }

    def read_orders(self):
        while (message := self._receive(socket.MSG_DONTWAIT)) is not None:
            kind, body = message
            if kind == self.CONNECT:
                self.connect = True
            elif kind == self.DIED:
                self.agent_died = self.agent_died or struct.unpack_from("<H", body)[0] == 0
            elif kind == self.HURRY:
                self.hurry = True
            elif kind == self.EXIT:
                self.leave = True

    def wait(self, seconds):
        """Until an order has come, or `seconds` are over."""
        self.beat()
        select.select([self.socket], [], [], seconds)
        self.read_orders()

    def fail(self, failure):
        text = str(failure).encode()[:479]
        self.send(self.FAILED, struct.pack("<i480s", failure.status, text))


# ---- messages ----
DTYPES = {1: "<f4", 2: "<u4", 3: "u1", 4: "<u8"}
NUMBERS = {"<f4": 1, "<u4": 2, "|u1": 3, "<u8": 4}


class Message:
    """A header and its payload. Tensors are NumPy arrays."""

    HELLO, WELCOME, REQUEST, REPLY, BYE, PIECE = 1, 2, 3, 4, 5, 6
    BYTES = 200
    PAYLOAD_MAX = 1 << 20
    NO_DEADLINE = (1 << 64) - 1
    _HEADER = struct.Struct("<IHBBHBBHHIIQQ4QQII80s32s")
    _TENSOR = struct.Struct("<BBH4I")
    _MAGIC, _VERSION = 0x4C414F43, 6

    def __init__(self, kind=0, status=OK, method=0, request=0, args=(), tensors=(), payload=b"", left=0, body=0):
        self.kind, self.status, self.method, self.request = kind, status, method, request
        self.args = tuple(args) + (0,) * (4 - len(args))
        self.tensors, self.payload, self.left, self.body = tensors, payload, left, body
        self.places = (0, 0, 0, 0)  # of lent tensors
        self.role = self.source = self.destination = self.incarnation = self.generation = 0

    def header(self, payload_bytes):
        described = b"".join(
            self._TENSOR.pack(NUMBERS[t.dtype.str], t.ndim, 0, *t.shape, *(0,) * (4 - t.ndim)) for t in self.tensors
        )
        return self._HEADER.pack(
            self._MAGIC, self._VERSION, self.kind, self.status, self.method, self.role, len(self.tensors), self.source,
            self.destination, self.incarnation, self.generation, self.request, self.left, *self.args, 0, payload_bytes,
            self.body, described, struct.pack("<4Q", *self.places),
        )  # fmt: skip

    @classmethod
    def read(cls, frames):
        """The message that two frames hold; its tensors are read by unpack. ValueError: they hold none."""
        if len(frames) != 2 or len(frames[0]) != cls.BYTES:
            raise ValueError("expected a header of 200 bytes and a payload")
        (magic, version, kind, status, method, role, count, source, destination, incarnation, generation, request,
         _left, a, b, c, d, _context, payload_bytes, body, described, places) = cls._HEADER.unpack(frames[0])  # fmt: skip
        if magic != cls._MAGIC or version != cls._VERSION:
            raise ValueError(f"expected version {cls._VERSION} of the protocol, got {version}")
        if payload_bytes != len(frames[1]) or count > 4 or any(places):
            raise ValueError("a header that does not fit its payload")
        message = cls(kind, status, method, request, (a, b, c, d), payload=frames[1], body=body)
        message.role, message.source, message.destination = role, source, destination
        message.incarnation, message.generation = incarnation, generation
        message.described = [cls._TENSOR.unpack_from(described, 20 * i) for i in range(count)]
        return message

    def unpack(self, data):
        """Reads the tensors out of the bytes that travelled."""
        tensors, at = [], 0
        for dtype, rank, _, *dims in self.described:
            if dtype not in DTYPES or not 1 <= rank <= 4 or 0 in dims[:rank]:
                raise ValueError("a tensor of no known type or shape")
            count = int(np.prod(dims[:rank], dtype=np.int64))
            size = count * np.dtype(DTYPES[dtype]).itemsize
            if at + size > len(data):
                raise ValueError("tensors that are longer than what came with them")
            tensors.append(np.frombuffer(data, DTYPES[dtype], count, at).reshape(dims[:rank]))
            at += size
        if at != len(data):
            raise ValueError("tensors that are shorter than what came with them")
        self.tensors = tensors


# ---- shared memory ----
class Segment:
    """This worker's memfd. Arrays that lie in it are lent: the agent reads them where they are."""

    FIRST = 5  # the descriptor of worker 0's
    OBSERVERS_MAX = 64  # a job of more has no segments
    LEAST, ALIGNMENT = 1 << 16, 64

    def __init__(self):
        self.memory = np.zeros(0, "u1")
        self.taken = 0

    @classmethod
    def rounded(cls, size):
        return -(-size // cls.ALIGNMENT) * cls.ALIGNMENT

    def create(self, worker, size):
        """Gives the segment its size, once for all incarnations of the worker, and maps it."""
        descriptor = self.FIRST + worker
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        if os.fstat(descriptor).st_size != size:
            raise Failure(INTERNAL, f"this worker's segment is sealed at another size than {size} bytes")
        self.memory = np.frombuffer(mmap.mmap(descriptor, size), "u1")

    def array(self, shape, dtype):
        """Zeros within the segment."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        part = self.memory[self.taken : self.taken + size]
        self.taken += self.rounded(size)
        part[:] = 0
        return part.view(dtype).reshape(shape)

    def place_of(self, array):
        """1 + the array's offset in the segment; 0: it must travel."""
        offset = array.ctypes.data - self.memory.ctypes.data
        within = 0 <= offset <= self.memory.nbytes - array.nbytes and offset % self.ALIGNMENT == 0
        return 1 + offset if within and array.nbytes >= self.LEAST else 0


# ---- the session with the agent ----
class Session:
    OBSERVER = 2
    ECHO, RUN_EPISODE, STEP, DESCRIBE, RUN_EVALUATION = 1, 2, 3, 21, 22
    HELLO_EVERY_S = 0.25
    LINGER_MS = 200

    def __init__(self, line, start):
        self.line, self.start = line, start
        self.segment = Segment()
        self.requests = 0  # sent so far
        self.replies = {}  # by request id: what has come and was not asked for yet
        self.unwanted = set()  # requests whose reply nobody waits for
        self.seen = 0  # the highest request id of the agent
        self.pieces = bytearray()
        self.episode = None  # the agent's RUN_EPISODE or RUN_EVALUATION, until it is answered
        self.peer = None  # the agent's incarnation
        secret = start["secret"]
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 60)
        self.socket.setsockopt(zmq.RCVHWM, 60)
        self.socket.setsockopt_string(zmq.PLAIN_USERNAME, "0")
        self.socket.setsockopt_string(zmq.PLAIN_PASSWORD, hmac.new(secret, b"0", hashlib.sha256).hexdigest())
        self.socket.connect(start["address"] + ".0")
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(line.fileno(), zmq.POLLIN)

    # -- sending --
    def _fill(self, message):
        message.source, message.destination = self.start["worker"], 0
        message.incarnation, message.generation = self.start["incarnation"], self.start["generation"]
        return message

    def _send(self, message, payload):
        frames = [self._fill(message).header(len(payload)), payload]
        while True:
            try:
                return self.socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:  # the queue is full: the agent reads it, or dies
                self.check()
                self.turn(0.01)

    def _send_tensors(self, message):
        """Sends a request or a reply; what is longer than a payload goes ahead in pieces."""
        message.tensors = [np.ascontiguousarray(t) for t in message.tensors]
        places = [self.segment.place_of(t) for t in message.tensors]
        message.places = (*places, *(0,) * (4 - len(places)))
        payload = b"".join(t.tobytes() for t, place in zip(message.tensors, places) if place == 0)
        total = len(payload)
        if total > Message.PAYLOAD_MAX:
            message.body = total
            for at in range(0, total, Message.PAYLOAD_MAX):
                piece = Message(Message.PIECE, request=message.request, args=(at, message.kind), body=total)
                self._send(piece, payload[at : at + Message.PAYLOAD_MAX])
            payload = b""
        self._send(message, payload)

    def request(self, method, args=(), tensors=()):
        """Sends a request; its id."""
        self.requests += 1
        self._send_tensors(
            Message(Message.REQUEST, method=method, request=self.requests, args=args, tensors=tensors,
                    left=Message.NO_DEADLINE)
        )  # fmt: skip
        return self.requests

    def reply(self, to, tensors, args=()):
        self._send_tensors(Message(Message.REPLY, method=to.method, request=to.request, args=args, tensors=tensors))

    def _send_text(self, message, text):
        """If the queue is full, nobody waits for the text."""
        payload = text.encode()[:400]
        try:
            self.socket.send_multipart([self._fill(message).header(len(payload)), payload], zmq.NOBLOCK)
        except zmq.Again:
            pass

    def refuse(self, to, status, text):
        self._send_text(Message(Message.REPLY, status, to.method, to.request), text)

    def bye(self, text):
        self.socket.setsockopt(zmq.LINGER, self.LINGER_MS)
        if self.peer is not None:
            self._send_text(Message(Message.BYE), text)
        self.socket.close()
        zmq.Context.instance().term()

    # -- receiving --
    def turn(self, seconds):
        """Takes in what has come, of messages and orders; waits for it at most so long."""
        self.line.beat()
        events = dict(self.poller.poll(seconds * 1000))
        if self.line.fileno() in events:
            self.line.read_orders()
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            try:
                self._take(self.socket.recv_multipart(zmq.NOBLOCK))
            except ValueError as why:
                raise Failure(INTERNAL, f"a message of the agent: {why}") from None

    def _take(self, frames):
        message = Message.read(frames)
        if message.generation != self.start["generation"]:
            return
        if message.kind == Message.BYE:
            raise Failure(PEER_DIED, f"the agent is gone: {message.payload.decode(errors='replace')}")
        if message.kind == Message.WELCOME:
            self.welcome = frames
        elif message.source != 0 or message.incarnation != self.peer:
            raise ValueError("another sender than the one that answered HELLO")
        elif message.kind == Message.PIECE:
            if message.args[0] == 0:
                self.pieces.clear()
            if message.args[0] != len(self.pieces):
                raise ValueError("a piece that does not continue the one before")
            self.pieces += message.payload
        else:
            self._take_call(message)

    def _take_call(self, message):
        data = message.payload
        if message.body > 0:
            if message.body != len(self.pieces):
                raise ValueError("a body that has not come whole")
            data, self.pieces = bytes(self.pieces), bytearray()
        if message.status == OK:
            message.unpack(data)
        if message.kind == Message.REPLY:
            if message.request in self.unwanted:
                self.unwanted.discard(message.request)
            else:
                self.replies[message.request] = message
        elif message.kind == Message.REQUEST and message.request > self.seen:
            self.seen = message.request
            self._take_request(message)

    def _take_request(self, message):
        if message.method == self.ECHO:
            self.reply(message, message.tensors, message.args)
        elif message.method not in (self.RUN_EPISODE, self.RUN_EVALUATION):
            raise ValueError(f"method {message.method} is not served here")
        elif self.episode is not None:
            self.refuse(message, 8, "an episode is being played already")
        else:
            self.episode = message

    def wait(self, request):
        """The tensors of the reply to a request. Hurry: the job is ending. Failure: the agent refused, or is gone."""
        while request not in self.replies:
            self.check()
            self.turn(1.0)
        reply = self.replies.pop(request)
        if reply.status == SHUTDOWN:
            raise Hurry
        if reply.status != OK:
            raise Failure(reply.status, f"the agent answered: {reply.payload.decode(errors='replace')}")
        return reply.tensors

    def check(self):
        if self.line.hurry or self.line.leave:
            raise Hurry
        if self.line.agent_died:
            raise Failure(PEER_DIED, "the agent is gone")

    # -- beginning --
    def greet(self):
        """Says HELLO until the agent answers; the job, as the agent has it."""
        nonce = secrets.token_bytes(32)
        hello = Message(Message.HELLO)
        hello.role = self.OBSERVER
        header = self._fill(hello).header(64)
        proof = hmac.new(self.start["secret"], header + nonce, hashlib.sha256).digest()
        self.welcome = None
        while self.welcome is None:
            self.check()
            try:
                self.socket.send_multipart([header, nonce + proof], zmq.NOBLOCK)
            except zmq.Again:
                pass
            self.turn(self.HELLO_EVERY_S)
        header, payload = self.welcome
        proof = hmac.new(self.start["secret"], header + nonce + payload[32:], hashlib.sha256).digest()
        if not hmac.compare_digest(proof, payload[:32]):
            raise Failure(INTERNAL, "the agent's WELCOME does not prove the job's secret")
        self.peer = Message.read(self.welcome).incarnation
        return json.loads(payload[32:])


# ---- spaces ----
def bounds_of(low, high):
    """Members "low" and "high" of a description: one number or a list each; null is no bound."""

    def numbers(values):
        values = [float(v) if np.isfinite(v) else None for v in np.asarray(values, np.float64).ravel()]
        return values[0] if all(v == values[0] for v in values) else values

    return {"low": numbers(low), "high": numbers(high)}


def refuse_space(what, space, expected):
    raise Failure(INVALID, f"the {what} space is {space}: expected {expected}")


class Space:
    """shape and dtype are what travels; convert brings a value of Gymnasium's into that form, or back."""

    def __init__(self, dtype, shape, bounds, convert):
        self.dtype, self.shape, self.convert = dtype, tuple(shape), convert
        name = {"<f4": "float32", "u1": "uint8", "<u4": "int32"}[dtype]
        self.description = {"dtype": name, "shape": list(self.shape), **bounds}

    @classmethod
    def of_observation(cls, space, frames):
        spaces = importlib.import_module("gymnasium").spaces
        if isinstance(space, spaces.Discrete):
            single = cls._one_hot([space.n], lambda value: [int(value) - int(space.start)])
        elif isinstance(space, spaces.MultiDiscrete):
            starts = np.asarray(getattr(space, "start", 0))
            single = cls._one_hot(np.ravel(space.nvec), lambda value: np.ravel(np.asarray(value) - starts))
        elif isinstance(space, spaces.MultiBinary):
            single = cls("<f4", space.shape, bounds_of(0, 1), cls._checked(space.shape, "<f4"))
        elif isinstance(space, spaces.Box) and len(space.shape) <= 3:
            dtype = "u1" if space.dtype == np.uint8 else "<f4"
            single = cls(dtype, space.shape, bounds_of(space.low, space.high), cls._checked(space.shape, dtype))
        else:
            refuse_space(
                "observation", space,
                "a Box of rank 3 at most, Discrete, MultiDiscrete or MultiBinary (gymnasium.wrappers.FlattenObservation "
                "makes one of others)",
            )  # fmt: skip
        return single if frames == 1 else single._stacked(frames)

    @classmethod
    def _one_hot(cls, counts, index):
        """A whole number of n becomes n numbers, of which one is 1."""
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        total = int(np.sum(counts))

        def convert(value):
            numbers = np.asarray(index(value), np.int64)
            if numbers.shape != offsets.shape or np.any(numbers < 0) or np.any(numbers >= counts):
                raise ValueError(f"is {value}, beyond its space")
            row = np.zeros(total, "<f4")
            row[offsets + numbers] = 1
            return row

        return cls("<f4", [total], bounds_of(0, 1), convert)

    @staticmethod
    def _checked(shape, dtype):
        def convert(value):
            row = np.asarray(value)
            if row.shape != shape:
                raise ValueError(f"has the shape {row.shape}, expected {shape}")
            if dtype == "u1" and row.dtype != np.uint8:
                raise ValueError(f"has the dtype {row.dtype}, expected uint8")
            if dtype == "<f4":
                if row.dtype.kind not in "fiub":
                    raise ValueError(f"has the dtype {row.dtype}, expected numbers")
                row = row.astype("<f4")
                if not np.all(np.isfinite(row)):
                    raise ValueError(f"has the value {row[~np.isfinite(row)].flat[0]}, expected finite ones")
            return row

        return convert

    def _stacked(self, frames):
        """The same space with `frames` observations joined along the last axis."""
        shape = self.shape or (1,)

        def repeated(bound):
            whole = np.broadcast_to(np.asarray(bound, object).reshape(shape if isinstance(bound, list) else ()), shape)
            numbers = list(np.concatenate([whole] * frames, axis=-1).ravel())
            return numbers[0] if all(n == numbers[0] for n in numbers) else numbers

        stacked = Space(self.dtype, (*shape[:-1], shape[-1] * frames), {}, lambda v: self.convert(v).reshape(shape))
        for bound in ("low", "high"):
            stacked.description[bound] = repeated(self.description[bound])
        return stacked

    @classmethod
    def of_action(cls, space):
        spaces = importlib.import_module("gymnasium").spaces
        if isinstance(space, spaces.Discrete):
            start = int(space.start)
            return cls._choices([], int(space.n), lambda row: int(row) + start)
        if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
            starts = np.asarray(getattr(space, "start", 0))
            return cls._choices(space.shape, [int(n) for n in space.nvec],
                                lambda row: (row + starts).astype(space.dtype))  # fmt: skip
        if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
            return cls._choices(space.shape, [2] * space.shape[0], lambda row: row.astype(space.dtype))
        if isinstance(space, spaces.Box) and space.dtype.kind == "f":
            if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
                refuse_space("action", space, "finite bounds")
            shape = [] if space.shape == () else [int(np.prod(space.shape))]
            return cls("<f4", shape, bounds_of(space.low, space.high),
                       lambda row: row.reshape(space.shape).astype(space.dtype))  # fmt: skip
        return refuse_space("action", space, "Discrete, or a MultiDiscrete or MultiBinary of rank 1, or a Box of floats")

    @classmethod
    def _choices(cls, shape, choices, convert):
        if isinstance(choices, list) and len(set(choices)) == 1:
            choices = choices[0]
        return cls("<u4", shape, {"choices": choices}, convert)

    def choice_count(self):
        choices = self.description["choices"]
        return sum(choices) if isinstance(choices, list) else choices * int(np.prod(self.shape, dtype=np.int64))


# ---- environments ----
def seed_of(job_seed, environment, episode, step):
    """environment.h's environment_seed_mix, without the sign bit of the 32 that NumPy's older generators take."""
    mask, mixed = (1 << 64) - 1, 0
    for word in (job_seed, environment << 32 | episode, step):
        mixed = ((mixed ^ word) + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & mask
        mixed ^= mixed >> 31
    return mixed >> 33


class Environments:
    """`count` environments; each has its own object of Gymnasium's. Numbers are the job's."""

    TERMINATED, TRUNCATED = 1, 2

    can_seed = True
    steps_alone = True  # one of them can be stepped without the others

    def __init__(self, job, name, make, first, count, progress):
        self.seed, self.first, self.count, self.name = job["seed"], first, count, name
        self.progress = progress  # called between two calls of the user's code
        self.frames = job["environment"]["frames"]
        self._make(make)
        one, self.steps_max = self._one()
        try:
            self.observation = Space.of_observation(*self._space(one, "observation_space"), self.frames)
            self.action = Space.of_action(*self._space(one, "action_space"))
        except Failure as failure:
            raise Failure(failure.status, f"{self.name}: {failure}") from None
        self.metrics = [str(name) for name in getattr(one.unwrapped, "metrics", ())]
        self.has_mask = "choices" in self.action.description and self._shows_mask()
        self.choices = self.action.choice_count() if self.has_mask else 0

    def _make(self, make):
        self.all = []
        for i in range(self.count):
            self.all.append(self._call(self.first + i, "making it", make))

    def _one(self):
        """The environment that tells of its spaces, and its longest episode."""
        spec = getattr(self.all[0], "spec", None)
        self.can_seed = not getattr(spec, "nondeterministic", False)
        return self.all[0], getattr(spec, "max_episode_steps", None) or 0

    def _space(self, one, name):
        if not hasattr(one, name):
            raise Failure(INVALID, f"it has no {name}")
        return (getattr(one, name),)

    def _shows_mask(self):
        return "action_mask" in self._first_state(0, 0)[1]

    def describe(self):
        described = {
            "name": self.name,
            "agents": 1,
            "steps_max": self.steps_max,
            "mask": self.has_mask,
            "can_seed": self.can_seed,
            "singleton": False,
            "metrics": self.metrics,
            "observation": self.observation.description,
            "action": self.action.description,
        }
        return json.dumps(described, allow_nan=False, separators=(",", ":"))

    def _call(self, number, what, function):
        """Calls the user's code; an exception names the environment."""
        self.progress()
        try:
            return function()
        except Exception as why:
            traceback.print_exc()
            raise Failure(INVALID, f"{self.name}: environment {number}: {what}: {last_lines(why)}") from why

    def _broken(self, index, text):
        return Failure(CORRUPT, f"{self.name}: environment {self.first + index}: {text}")

    def course_differs(self, index):
        return self._broken(index, "played again with the same seed and actions, its episode ended earlier: expected "
                                   "the same course, or a spec that says nondeterministic=True")  # fmt: skip

    def _observation(self, index, value):
        try:
            return self.observation.convert(value)
        except (TypeError, ValueError) as why:
            raise self._broken(index, f"its observation {why}") from None

    def _mask(self, index, info):
        if not self.has_mask:
            return None
        mask = np.asarray(info.get("action_mask", ()))
        if mask.size != self.choices or not np.all((mask == 0) | (mask == 1)) or not mask.any():
            raise self._broken(index, f"its action_mask is {mask.tolist()}: expected {self.choices} of 0 and 1, not all 0")
        return mask.astype("u1").ravel()

    def _first_state(self, index, seed):
        result = self._call(self.first + index, "reset", lambda: self.all[index].reset(seed=seed))
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise self._broken(index, "reset returned no pair of an observation and a dict")
        return result

    def _seed(self, index, episode, step):
        return seed_of(self.seed, self.first + index, episode, step)

    def reset(self, which, episode, step):
        """Of each environment: the first observation, and the mask."""
        for index in which:
            observation, info = self._first_state(index, self._seed(index, episode, step))
            yield self._observation(index, observation), self._mask(index, info)

    def step(self, which, rows):
        """Of each environment: observation, reward, flags, mask, metrics (of an episode that ended, else empty)."""
        for index, row in zip(which, rows):
            yield self._step(index, row)

    def _step(self, index, row):
        action = self.action.convert(row)
        result = self._call(self.first + index, "step", lambda: self.all[index].step(action))
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], dict):
            raise self._broken(index, "step returned no tuple of observation, reward, terminated, truncated and info")
        return self._outcome(index, *result)

    def _outcome(self, index, value, reward, terminated, truncated, info):
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            raise self._broken(index, f"its reward is {reward!r}: expected a number") from None
        if not np.isfinite(np.float32(reward)):
            raise self._broken(index, f"its reward is {reward}: expected a finite float32")
        flags = (self.TERMINATED if terminated else 0) | (self.TRUNCATED if truncated else 0)
        return self._observation(index, value), reward, flags, self._mask(index, info), self._metrics(index, flags, info)

    def _metrics(self, index, flags, info):
        if flags == 0 or not self.metrics:
            return []
        try:
            values = [float(info[name]) for name in self.metrics]
        except (KeyError, TypeError, ValueError) as why:
            raise self._broken(index, f"the metrics of its episode: {type(why).__name__}: {why}") from None
        if not np.all(np.isfinite(np.float32(values))):
            raise self._broken(index, f"the metrics of its episode are {values}: expected finite ones")
        return values

    def close(self):
        for one in self.all:
            try:
                one.close()
            except Exception:
                traceback.print_exc()


class Vector(Environments):
    """A gymnasium.vector.VectorEnv, which steps all of its environments at once."""

    steps_alone = False

    def _make(self, make):
        self.all = [self._call(self.first, "making it", lambda: make(num_envs=self.count))]
        mode = getattr(self.all[0].metadata.get("autoreset_mode"), "name", None)
        if mode != "DISABLED":
            raise Failure(INVALID, f"{self.name}: metadata['autoreset_mode'] is {mode}: expected DISABLED")

    def _one(self):
        spec = getattr(self.all[0], "spec", None)
        return self.all[0], getattr(spec, "max_episode_steps", None) or 0

    def _space(self, one, name):
        return super()._space(one, "single_" + name)

    def _shows_mask(self):
        return "action_mask" in self._call(self.first, "reset", lambda: self.all[0].reset(seed=0))[1]

    @staticmethod
    def _info(infos, index):
        return {name: values[index] for name, values in infos.items() if np.ndim(values) > 0}

    def reset(self, which, episode, step):
        seeds = [None] * self.count
        for index in which:
            seeds[index] = self._seed(index, episode, step)
        mask = np.zeros(self.count, np.bool_)
        mask[list(which)] = True
        values, infos = self._call(
            self.first, "reset", lambda: self.all[0].reset(seed=seeds, options={"reset_mask": mask})
        )
        for index in which:
            yield self._observation(index, values[index]), self._mask(index, self._info(infos, index))

    def step(self, which, rows):
        if len(which) < self.count:
            raise Failure(INVALID, f"{self.name}: all of its environments are stepped at once: expected "
                                   '"steps" for /rollout/mode')  # fmt: skip
        actions = np.stack([self.action.convert(row) for row in rows])
        values, rewards, terminated, truncated, infos = self._call(
            self.first, "step", lambda: self.all[0].step(actions)
        )
        for i in which:
            yield self._outcome(i, values[i], rewards[i], terminated[i], truncated[i], self._info(infos, i))


class Apart(Vector):
    """A VectorEnv for each environment, so that they can end one by one."""

    steps_alone = True

    def _make(self, make):
        count, self.count = self.count, 1
        vectors = []
        for _ in range(count):
            super()._make(make)
            vectors += self.all
        self.all, self.count = vectors, count

    def reset(self, which, episode, step):
        everything = {"reset_mask": np.ones(1, np.bool_)}
        for index in which:
            seeds = [self._seed(index, episode, step)]
            values, infos = self._call(
                self.first + index, "reset", lambda: self.all[index].reset(seed=seeds, options=everything)
            )
            yield self._observation(index, values[0]), self._mask(index, self._info(infos, 0))

    def step(self, which, rows):
        for index, row in zip(which, rows):
            actions = np.stack([self.action.convert(row)])
            *results, infos = self._call(self.first + index, "step", lambda: self.all[index].step(actions))
            yield self._outcome(index, *(result[0] for result in results), self._info(infos, 0))


class Pool(Environments):
    """EnvPool's environments, which are stepped at once, too, but which also step in part. They draw from one seed, so
    a first state does not depend on the episode alone."""

    can_seed = False

    def _make(self, make):
        seed = self._seed(0, 0, 0)
        self.all = [self._call(self.first, "making it", lambda: make(num_envs=self.count, num_threads=1, seed=seed))]

    def _one(self):
        return self.all[0], int(self.all[0].spec.config.max_episode_steps)

    def _shows_mask(self):
        return False

    def _in_order(self, infos, *arrays):
        """Results come in the order in which they were ready."""
        order = np.argsort(infos["env_id"])
        return ([array[i] for array in arrays] for i in order)

    def reset(self, which, episode, step):
        ids = np.asarray(which, np.int32)
        values, infos = self._call(self.first, "reset", lambda: self.all[0].reset(ids))
        for index, (value,) in zip(which, self._in_order(infos, values)):
            yield self._observation(index, value), None

    def step(self, which, rows):
        actions = np.stack([self.action.convert(row) for row in rows])
        ids = np.asarray(which, np.int32)
        *results, infos = self._call(self.first, "step", lambda: self.all[0].step(actions, ids))
        for index, outcome in zip(which, self._in_order(infos, *results)):
            yield self._outcome(index, *outcome, {})


def open_environments(job, first, count, progress, evaluation=False):
    said = job["environment"]
    name, options = said["gymnasium"] or said["class"], said["options"]
    gymnasium = importlib.import_module("gymnasium")
    try:
        if said["gymnasium"] is None:
            module, member = name.split(":")
            made = getattr(importlib.import_module(module), member)
            of_vector = isinstance(made, type) and issubclass(made, gymnasium.vector.VectorEnv)
            of_vector = of_vector and (Apart if evaluation else Vector)
            kind, make = of_vector or Environments, made
        elif name.startswith("envpool/"):
            pool = importlib.import_module("envpool")
            kind, make = Pool, lambda **more: pool.make_gymnasium(name.split("/", 1)[1], **more)
        else:
            kind, make = Environments, lambda **more: gymnasium.make(name, **more)
    except Exception as why:
        key = "class" if said["gymnasium"] is None else "gymnasium"
        raise Failure(INVALID, f"/environment/{key}: {name}: {last_lines(why)}") from why
    title = f"{name}, evaluation" if evaluation else name
    return kind(job, title, lambda **more: make(**options, **more), first, count, progress)


def last_lines(why):
    """An exception in one line: what it says, and where it came from."""
    frames = traceback.extract_tb(why.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(why).__name__}: {' '.join(str(why).split())[:200]}{where[-120:]}"


# ---- groups ----
def goes_on(job):
    """Whether a rollout goes on where the one before has ended. Jobs of PPO and A2C have no /rollout: theirs do."""
    return job.get("rollout", {"begin": "continue"})["begin"] == "continue"


class Group:
    """Steps its environments, and asks the agent for all their actions in one request.

    Environments of Gymnasium have no states that could be saved. But an episode follows from its seed and its actions:
    these are the state, and whoever loads it plays the episode again up to there."""

    STATE = struct.Struct("<QQ")  # the episode and the step of the reset, by which it was seeded; the actions follow
    STATE_BYTES_MAX = 1 << 20  # of one environment: an episode of more actions has no state

    def __init__(self, job, number, first, count, progress, evaluation=False):
        self.number, self.first, self.count = number, first, count
        self.environments = open_environments(job, first, count, progress, evaluation)
        e = self.environments
        # The environments' observations; behind them, in a request, the last ones of episodes that have ended.
        self.shown = np.zeros((2 * count, *e.observation.shape), e.observation.dtype)
        self.sent = np.zeros_like(self.shown)  # in place of them, unless all environments are live
        self.rewards = np.zeros(count, "<f4")
        self.flags = np.zeros(count, "u1")
        self.masks = np.zeros((count, e.choices), "u1")
        self.metrics = [[]] * count
        self.last_steps = np.zeros(count, "<u4")
        self.ended = []  # rows whose episode ended in the last step
        # Of each environment, where states are wanted: its last reset's episode and step, and the actions since.
        self.can_save = goes_on(job) and not evaluation and e.can_seed and e.steps_alone
        self.resets = [(0, 0)] * count
        self.taken = [bytearray() for _ in range(count)]
        self.asked = None  # the request under way

    def lent_bytes(self):
        """What `lend` takes of the segment; 0: the observations are too small to be lent."""
        return 0 if self.shown.nbytes < Segment.LEAST else 2 * Segment.rounded(self.shown.nbytes)

    def lend(self, segment):
        self.shown = segment.array(self.shown.shape, self.shown.dtype)
        self.sent = segment.array(self.sent.shape, self.sent.dtype)

    def begin(self, episode, steps, continues, closes, longest=0):
        self.episode, self.steps, self.step = episode, steps, 0
        self.longest = longest  # the step that cuts an episode of an evaluation; 0: none does
        self.closes = closes  # one more step behind the last, whose answer is empty
        self.live = list(range(self.count))
        self.ended = []
        if not continues:
            self._reset(self.live, 0)

    def _reset(self, which, step):
        for i, (observation, mask) in zip(which, self.environments.reset(which, self.episode, step)):
            self.resets[i] = (self.episode, step)
            self.taken[i].clear()
            self._show(i, observation, mask, True)

    def _show(self, i, observation, mask, is_first):
        """Keeps the newest observation, with frames behind the ones before, and the mask."""
        frames = self.environments.frames
        if mask is not None:
            self.masks[i] = mask
        if frames == 1:
            self.shown[i] = observation
        elif is_first:
            self.shown[i] = np.concatenate([observation] * frames, axis=-1)
        else:
            past = self.shown[i][..., observation.shape[-1] :]
            self.shown[i] = np.concatenate([past, observation], axis=-1)

    def _gather(self):
        """The live rows' observations, with the last ones behind them. While all are live they lie so already."""
        live, ended = len(self.live), len(self.ended)
        if live == self.count:
            return self.shown[: live + ended]
        self.sent[:live] = self.shown[self.live]
        return self.sent[:live]

    def ask(self, session):
        live, begins = self.live, self.step == 0
        numbers = np.asarray(live, "<u4") + np.uint32(self.first)
        rewards = np.zeros(len(live), "<f4") if begins else self.rewards[live]
        metrics = [value for i in self.ended for value in self.metrics[i]]
        flags = np.zeros((len(live), 1 + self.masks.shape[1]), "u1")
        flags[:, 1:] = self.masks[live]
        if not begins:
            flags[:, 0] = self.flags[live]
        self.asked = session.request(
            Session.STEP, (self.episode, self.step, self.number),
            (numbers, self._gather(), np.concatenate([rewards, np.asarray(metrics, "<f4")]), flags),
        )  # fmt: skip

    def take_actions(self, session):
        tensors = session.wait(self.asked)
        self.asked = None
        action = self.environments.action
        shape = (len(self.live), int(np.prod(action.shape, dtype=np.int64)))
        if len(tensors) != 1 or tensors[0].dtype != action.dtype or tensors[0].shape != shape:
            raise Failure(INTERNAL, f"the agent's answer to step {self.step}: expected {len(self.live)} actions")
        return tensors[0].reshape(len(self.live), *action.shape)

    def play_step(self, session):
        """Steps the environments with the agent's actions. Whether the group is done."""
        if 0 < self.steps == self.step:  # the closing step has been answered
            session.wait(self.asked)
            self.asked = None
            return True
        actions = self.take_actions(session)
        if self.can_save:
            for i, row in zip(self.live, actions):
                if len(self.taken[i]) <= self.STATE_BYTES_MAX:
                    self.taken[i] += row.tobytes()
        is_last, is_cut = self.step + 1 == self.steps, self.step + 1 == self.longest
        kept, self.ended = [], []
        for i, outcome in zip(self.live, self.environments.step(self.live, actions)):
            observation, self.rewards[i], flags, mask, self.metrics[i] = outcome
            self.flags[i] = flags
            self._show(i, observation, mask, False)
            self.last_steps[i] = self.step + 1
            if flags == 0 and not is_cut:
                kept.append(i)
            elif self.steps > 0:
                kept.append(i)
                self.shown[self.count + len(self.ended)] = self.shown[i]
                self.ended.append(i)
        if self.ended:
            self._reset(self.ended, self.step + 1)
        self.live = kept
        self.step += 1
        return (is_last and not self.closes) or not kept

    def save(self):
        """The environments' states, each behind its length; None: they have none."""
        if not self.can_save or any(len(taken) > self.STATE_BYTES_MAX for taken in self.taken):
            return None
        states = [self.STATE.pack(*reset) + taken for reset, taken in zip(self.resets, self.taken)]
        return b"".join(struct.pack("<I", len(state)) + state for state in states)

    def load(self, states, check):
        """Puts the environments into the states at the beginning of these bytes; the bytes behind them. `check` is
        called between two environments."""
        for i in range(self.count):
            check()
            (size,) = struct.unpack_from("<I", states)
            self._play_again(i, states[4 : 4 + size])
            states = states[4 + size :]
        return states

    def _play_again(self, i, state):
        """The course of the environment since its reset."""
        action = self.environments.action
        row_bytes = np.dtype(action.dtype).itemsize * int(np.prod(action.shape, dtype=np.int64))
        if len(state) < self.STATE.size or (len(state) - self.STATE.size) % row_bytes != 0:
            raise Failure(INVALID, f"{self.environments.name}: environment {self.first + i}: its saved state has "
                                   f"{len(state)} bytes: expected {self.STATE.size} and {row_bytes} for each action")  # fmt: skip
        self.episode, step = self.STATE.unpack_from(state)
        taken = np.frombuffer(state, action.dtype, offset=self.STATE.size).reshape(-1, *action.shape)
        self._reset([i], step)
        for row in taken:
            for observation, _, flags, mask, _ in self.environments.step([i], [row]):
                self._show(i, observation, mask, False)
                if flags != 0:
                    raise self.environments.course_differs(i)
        self.taken[i] += taken.tobytes()


# ---- the observer ----
class Observer:
    STATES_BYTES_MAX = 1 << 28

    def __init__(self, line, session, job, worker):
        self.line, self.session, self.job = line, session, job
        self.evaluation = None  # the environments of evaluations, from the first one on
        count, groups = job["observers"]["environments"], job["observers"]["groups"]
        first = (worker - 1) * count
        begins = [g * count // groups for g in range(groups + 1)]
        self.groups = []
        for g in range(groups):
            self.groups.append(Group(job, g, first + begins[g], begins[g + 1] - begins[g], line.beat))
        size = sum(group.lent_bytes() for group in self.groups)
        if size > 0 and job["observers"]["count"] <= Segment.OBSERVERS_MAX:
            session.segment.create(worker, size)
            for group in self.groups:
                if group.lent_bytes() > 0:
                    group.lend(session.segment)
        text = self.groups[0].environments.describe().encode()
        session.wait(session.request(Session.DESCRIBE, (), (np.frombuffer(text, "u1"),)))

    def play(self, call):
        episode, steps, begins, closes = call.args
        if begins == 2:
            states = call.tensors[0].tobytes()
            for group in self.groups:
                states = group.load(states, self.session.check)
        for group in self.groups:
            group.begin(episode, steps, begins != 0, closes != 0)
            group.ask(self.session)
        playing = list(self.groups)
        while playing:
            for group in list(playing):
                if not group.play_step(self.session):
                    group.ask(self.session)
                    continue
                playing.remove(group)
                if playing and steps == 0:  # the agent need not wait for its rows any more
                    self.session.unwanted.add(
                        self.session.request(Session.STEP, (episode, group.step, group.number))
                    )
        states = [group.save() for group in self.groups]
        whole = b"" if None in states else b"".join(states)
        states = (np.frombuffer(whole, "u1"),) if 0 < len(whole) <= self.STATES_BYTES_MAX else ()
        self._answer(call, self.groups, states)

    def evaluate(self, call):
        """Plays the episodes of an evaluation all at once, in environments that are made at the first one."""
        first, count, longest, _ = call.args
        if self.evaluation is None or (self.evaluation.first, self.evaluation.count) != (first, count):
            self.evaluation = Group(self.job, 0, first, count, self.line.beat, evaluation=True)
        group = self.evaluation
        group.begin(0, 0, False, False, longest)
        group.ask(self.session)
        while not group.play_step(self.session):
            group.ask(self.session)
        self._answer(call, [group])

    def _answer(self, call, groups, states=()):
        rewards = np.concatenate([g.rewards for g in groups])
        flags = np.concatenate([g.flags for g in groups])
        metrics = [v for g in groups for i in range(g.count) if g.flags[i] != 0 for v in g.metrics[i]]
        results = (
            np.concatenate([rewards, np.asarray(metrics, "<f4")]),
            flags,
            np.concatenate([g.last_steps for g in groups]),
            *states,
        )
        self.session.episode = None
        self.session.reply(call, results)

    def run(self):
        while not self.line.leave:
            call = self.session.episode
            try:
                if call is not None and not self.line.hurry:
                    self.evaluate(call) if call.method == Session.RUN_EVALUATION else self.play(call)
                elif self.line.agent_died and not self.line.hurry:
                    raise Failure(PEER_DIED, "the agent is gone")
                else:
                    self.session.turn(1.0)
            except Hurry:
                pass
            if self.line.hurry and self.session.episode is not None:
                self.session.episode, call = None, self.session.episode
                self.session.refuse(call, SHUTDOWN, "the job is ending")

    def close(self):
        for group in [*self.groups, *([self.evaluation] if self.evaluation else [])]:
            group.environments.close()


def observe(line):
    if zmq is None:
        raise Failure(UNAVAILABLE, f"{sys.executable}: {MISSING}: expected the packages pyzmq, numpy and gymnasium")
    start = line.start()
    while not line.connect and not line.leave:
        line.wait(0.5)
    if line.leave:
        return
    session = Session(line, start)
    try:
        job = session.greet()
        line.beat()
        try:
            importlib.import_module("gymnasium")
        except ImportError as why:
            raise Failure(UNAVAILABLE, f"{sys.executable}: {why}: expected the package gymnasium") from why
        observer = Observer(line, session, job, start["worker"])
        line.send(Line.READY)
        observer.run()
        observer.close()
    except Hurry:
        while not line.leave:
            line.wait(0.5)
    except Failure as failure:
        session.bye(str(failure))
        raise
    session.bye("finished")


def main():
    control = 3
    sys.path.insert(0, os.getcwd())
    for descriptor in os.listdir("/proc/self/fd"):  # programs that an environment starts get none of them
        if int(descriptor) >= control:
            try:
                os.set_inheritable(int(descriptor), False)
            except OSError:
                pass  # the one that listed them
    line = Line(control)
    try:
        observe(line)
    except Failure as failure:
        line.fail(failure)
        return EXIT_CODES.get(failure.status, EXIT_OTHERWISE)
    except Exception as why:
        traceback.print_exc()
        line.fail(Failure(INTERNAL, f"observer.py: {last_lines(why)}"))
        return EXIT_OTHERWISE
    return 0


if __name__ == "__main__":
    sys.exit(main())
