"""How a worker in Python speaks with the supervisor and with other workers: the frame of worker/python/observer.py and
worker/python/trainer.py. It is written from worker/net/PROTOCOL.md alone, with pyzmq and NumPy, on one thread; another beats
while this one imports.

    Line      the control line to the supervisor: orders in, beats and reports out
    Message   a header and its payload
    Segment   memory that the other worker reads too, for large tensors
    Turns     waits for the line and for all sessions at once
    Session   the connection to a worker that this one dials: requests and replies
    work      runs a worker from its start to its exit code

Without pyzmq or NumPy, the module can be imported, and `work` reports what is missing.
"""
import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import hmac
import importlib
import json
import mmap
import os
import resource
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback

# The statuses that these programs use (PROTOCOL.md, "Statuses"), and the exit code of each, from sysexits.h.
OK, INVALID, NOT_FOUND, PEER_DIED, SHUTDOWN, CORRUPT, UNAVAILABLE, INTERNAL = 0, 2, 3, 6, 7, 11, 12, 13
BUSY, IO = 8, 10
EXIT_CODES = {INVALID: 78, NOT_FOUND: 66, CORRUPT: 65, UNAVAILABLE: 69, IO: 74}
EXIT_OTHERWISE = 70

FORGOTTEN_BY_SUPERVISOR = 69
PR_SET_PDEATHSIG = 1  # prctl's


class Failure(Exception):
    """What ends this worker: a status and a sentence."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Hurry(Exception):
    """The job is ending: what is under way is abandoned."""


MISSING = None
try:
    import numpy as np
    import zmq
except ImportError as missing:
    np = zmq = None
    MISSING = str(missing)


def cut(text, size):
    """At most so many bytes of UTF-8, and no half of a character."""
    return text.encode(errors="replace")[:size].decode(errors="ignore").encode()


def last_lines(why):
    """An exception in one line: what it says, and where it came from."""
    text = f"{type(why).__name__}: {' '.join(str(why).split())[:200]}"
    frames = traceback.extract_tb(why.__traceback__)
    if not frames:
        return text
    path, line, name, _ = frames[-1]
    return f"{text} ({path if len(path) <= 80 else '...' + path[-77:]}:{line}, in {name[:30]})"


# ---- the control line ----
class Line:
    START, CONNECT, DIED, HURRY, EXIT, FAR = 1, 2, 3, 6, 7, 17
    READY, BEAT, FAILED = 9, 10, 16
    BYTES_MAX = 4 + 32 * 1024
    BEAT_S = 0.1
    LONG_CALL_S = 600
    CALL_DESCRIPTOR = 5
    _START = struct.Struct("<HBxIII32s160s4096s4096sHH32s2048s64s")
    # host: the number of this one; key: its secret one; keys: all hosts' public ones.
    _START_NAMES = "worker role incarnation generation _ secret address _ _ host _ key keys _".split()
    _FAR = struct.Struct("<HH64s")
    _BEAT = struct.Struct("=8Q4I")
    _CALL = struct.Struct("=Q3I")
    _CALLS = {"making it": 2, "reset": 3, "step": 4}

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.beat_due = 0.0
        self.work = 0  # steps since the start, for the beats
        self.evaluation = (0, 0)  # how many samples of an evaluation are done, of how many; likewise
        self.connect = self.hurry = self.leave = False
        self.far = {}  # the listeners on other hosts: number -> (host, address)
        self.died = set()  # the numbers of workers that are gone
        try:
            self.call = mmap.mmap(self.CALL_DESCRIPTOR, self._CALL.size)
        except (OSError, ValueError):
            self.call = bytearray(self._CALL.size)

    def fileno(self):
        return self.socket.fileno()

    def send(self, kind, body=b""):
        try:
            self.socket.send(struct.pack("<I", kind) + body, socket.MSG_NOSIGNAL)
        except OSError:
            os._exit(FORGOTTEN_BY_SUPERVISOR)

    @staticmethod
    def _resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def beat(self):
        now = time.monotonic()
        if now >= self.beat_due:
            use = int(time.process_time() * 1e6), self._resident(), self.work
            self.send(self.BEAT, self._BEAT.pack(*use, 0, 0, 0, 0, 0, 0, 0, *self.evaluation))
            self.beat_due = now + self.BEAT_S

    @contextlib.contextmanager
    def beating(self):
        """Beats on a thread of its own while one call, such as an import, keeps this thread for long; an order to leave ends
        the process. A call that takes ten minutes hangs."""
        over, end = threading.Event(), time.monotonic() + self.LONG_CALL_S

        def beat():
            while not over.wait(self.BEAT_S) and time.monotonic() < end:
                self.beat()
                self.read_orders()
                if self.leave:
                    os._exit(0)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def progress(self, what="", first=0, last=0):
        """Beats, and notes a call of these environments in memory that the supervisor reads when this process is gone or
        hangs. Without arguments: the call has ended."""
        if what:
            self.beat()
        self._CALL.pack_into(self.call, 0, what in self._CALLS, self._CALLS.get(what, 0), first, last)

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
        start = dict(zip(self._START_NAMES, self._START.unpack_from(body)))
        start["address"] = start["address"].split(b"\0", 1)[0].decode()
        start["keys"] = [start["keys"][i : i + 32] for i in range(0, len(start["keys"]), 32)]
        start["far"], start["job"] = self.far, json.loads(body[self._START.size :].rstrip(b"\0"))
        return start

    def read_orders(self):
        while (message := self._receive(socket.MSG_DONTWAIT)) is not None:
            kind, body = message
            if kind == self.CONNECT:
                self.connect = True
            elif kind == self.FAR:
                for worker, host, address in self._FAR.iter_unpack(body):
                    self.far[worker] = (host, address.split(b"\0", 1)[0].decode())
            elif kind == self.DIED:
                self.died.add(struct.unpack_from("<H", body)[0])
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
        text = cut(str(failure), 479)
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

    def __init__(self, kind=0, status=OK, method=0, request=0, args=(), tensors=(), payload=b"", body=0):
        self.kind, self.status, self.method, self.request = kind, status, method, request
        self.args = tuple(args) + (0,) * (4 - len(args))
        self.tensors, self.payload, self.body = tensors, payload, body
        self.places = (0, 0, 0, 0)  # of lent tensors

    def header(self, payload_bytes, start, destination):
        """`start`: what the supervisor told this worker, which sends the message."""
        role = start["role"] if self.kind == self.HELLO else 0
        left = self.NO_DEADLINE if self.kind == self.REQUEST else 0
        described = b"".join(
            self._TENSOR.pack(NUMBERS[t.dtype.str], t.ndim, 0, *t.shape, *(0,) * (4 - t.ndim)) for t in self.tensors
        )
        return self._HEADER.pack(
            self._MAGIC, self._VERSION, self.kind, self.status, self.method, role, len(self.tensors), start["worker"],
            destination, start["incarnation"], start["generation"], self.request, left, *self.args, 0, payload_bytes,
            self.body, described, struct.pack("<4Q", *self.places),
        )  # fmt: skip

    @classmethod
    def read(cls, frames):
        """The message that two frames hold; its tensors are read by unpack. ValueError: they hold none."""
        if len(frames) != 2 or len(frames[0]) != cls.BYTES:
            raise ValueError("expected a header of 200 bytes and a payload")
        (magic, version, kind, status, method, _role, count, source, _to, incarnation, generation, request,
         _left, a, b, c, d, _context, payload_bytes, body, described, places) = cls._HEADER.unpack(frames[0])  # fmt: skip
        if magic != cls._MAGIC or version != cls._VERSION:
            raise ValueError(f"expected version {cls._VERSION} of the protocol, got {version}")
        if payload_bytes != len(frames[1]) or count > 4 or any(places):
            raise ValueError("a header that does not fit its payload")
        message = cls(kind, status, method, request, (a, b, c, d), payload=frames[1], body=body)
        message.source, message.incarnation, message.generation = source, incarnation, generation
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

    FIRST = 6  # the descriptor of worker 0's
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


# ---- the sessions ----
def try_threads():
    """libzmq ends the process where it cannot start its two threads, so as many are tried first."""
    over, threads = threading.Event(), []
    try:
        for _ in range(2):
            threads.append(threading.Thread(target=over.wait))
            threads[-1].start()
    except RuntimeError as why:
        threads.pop()
        limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_NPROC, resource.RLIMIT_AS)]
        raise Failure(IO, f"cannot start the threads of ZeroMQ (limits: {limits[0]} processes, {limits[1]} bytes of memory; "
                          f"-1: none): {why}") from None  # fmt: skip
    finally:
        over.set()
        for thread in threads:
            thread.join()


class Turns:
    """Waits for the line and for all sessions at once."""

    def __init__(self, line):
        try_threads()
        self.line, self.sessions = line, []
        self.poller = zmq.Poller()
        self.poller.register(line.fileno(), zmq.POLLIN)

    def add(self, session):
        self.sessions.append(session)
        self.poller.register(session.socket, zmq.POLLIN)

    def turn(self, seconds):
        """Takes in what has come, of messages and orders; waits for it at most so long."""
        self.line.beat()
        events = dict(self.poller.poll(seconds * 1000))
        if self.line.fileno() in events:
            self.line.read_orders()
        for session in self.sessions:
            session.take_in()

    def check(self):
        """Raises Hurry when the job is ending, Failure when a peer is gone."""
        if self.line.hurry or self.line.leave:
            raise Hurry
        for session in self.sessions:
            if session.ended is not None:
                raise Failure(PEER_DIED, f"{session.name} said BYE: {session.ended}")
            if session.number in self.line.died:
                raise Failure(PEER_DIED, f"{session.name} is gone")

    def bye(self, text):
        for session in self.sessions:
            session.bye(text)
        zmq.Context.instance().term()


class Session:
    """The connection to worker `number`, a listener that messages call `name`. Of its requests those of `methods` are
    served: `call` is one of them until the owner answers it."""

    ECHO = 1
    HELLO_EVERY_S = 0.25
    LINGER_MS = 200

    def __init__(self, turns, start, number, name, methods):
        self.turns, self.start, self.number, self.name, self.methods = turns, start, number, name, methods
        self.segment = Segment()
        self.requests = 0  # sent so far
        self.replies = {}  # by request id: what has come and was not asked for yet
        self.unwanted = set()  # requests whose reply nobody waits for
        self.seen = 0  # the highest request id of the peer
        self.pieces = bytearray()
        self.call = None
        self.peer = None  # the peer's incarnation
        self.ended = None  # the peer's BYE: its answers that came ahead of it still count
        self.welcome = None
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 60)
        self.socket.setsockopt(zmq.RCVHWM, 60)
        self._connect()
        turns.add(self)

    def _connect(self):
        """On one host the pass opens the connection, between hosts this host's key."""
        if self.number in self.start["far"]:
            host, address = self.start["far"][self.number]
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, self.start["keys"][host])
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, self.start["keys"][self.start["host"]])
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, self.start["key"])
            self.socket.connect(address)
            return
        user = str(self.number)
        password = hmac.new(self.start["secret"], user.encode(), hashlib.sha256).hexdigest()
        self.socket.setsockopt_string(zmq.PLAIN_USERNAME, user)
        self.socket.setsockopt_string(zmq.PLAIN_PASSWORD, password)
        self.socket.connect(f"{self.start['address']}.{self.number}")

    # -- sending --
    def _send(self, message, payload):
        frames = [message.header(len(payload), self.start, self.number), payload]
        while True:
            try:
                return self.socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:  # the queue is full: the peer reads it, or dies
                self.turns.check()
                self.turns.turn(0.01)

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
        self._send_tensors(Message(Message.REQUEST, method=method, request=self.requests, args=args, tensors=tensors))
        return self.requests

    def reply(self, to, tensors, args=()):
        self._send_tensors(Message(Message.REPLY, method=to.method, request=to.request, args=args, tensors=tensors))

    def answer(self, tensors=(), args=()):
        """Replies to `call`, which is over then."""
        call, self.call = self.call, None
        self.reply(call, tensors, args)

    def decline(self, status, text):
        """Refuses `call`, if there is one."""
        call, self.call = self.call, None
        if call is not None:
            self.refuse(call, status, text)

    def _send_text(self, message, text):
        """If the queue is full, nobody waits for the text."""
        payload = cut(text, 400)
        try:
            self.socket.send_multipart([message.header(len(payload), self.start, self.number), payload], zmq.NOBLOCK)
        except zmq.Again:
            pass

    def refuse(self, to, status, text):
        self._send_text(Message(Message.REPLY, status, to.method, to.request), text)

    def bye(self, text):
        self.socket.setsockopt(zmq.LINGER, self.LINGER_MS)
        if self.peer is not None:
            self._send_text(Message(Message.BYE), text)
        self.socket.close()

    # -- receiving --
    def take_in(self):
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            try:
                self._take(self.socket.recv_multipart(zmq.NOBLOCK))
            except ValueError as why:
                raise Failure(INTERNAL, f"a message of {self.name}: {why}") from None

    def _take(self, frames):
        message = Message.read(frames)
        if message.generation != self.start["generation"]:
            return
        if message.kind == Message.BYE:
            self.ended = message.payload.decode(errors="replace")
        elif message.kind == Message.WELCOME:
            self.welcome, self.peer = frames, message.incarnation  # greet looks at the proof
        elif message.source != self.number or message.incarnation != self.peer:
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
        elif message.method not in self.methods:
            raise ValueError(f"method {message.method} is not served here")
        elif self.call is not None:
            self.refuse(message, BUSY, "a call of this kind is under way already")
        else:
            self.call = message

    def wait(self, request):
        """The reply to a request. Raises Hurry when the job is ending, Failure when the peer refused or is gone."""
        while request not in self.replies:
            self.turns.check()
            self.turns.turn(1.0)
        reply = self.replies.pop(request)
        if reply.status == SHUTDOWN:
            raise Hurry
        if reply.status != OK:
            raise Failure(reply.status, f"{self.name} answered: {reply.payload.decode(errors='replace')}")
        return reply

    # -- beginning --
    def greet(self):
        """Says HELLO until the peer answers; the job, as the peer has it."""
        nonce = secrets.token_bytes(32)
        header = Message(Message.HELLO).header(64, self.start, self.number)
        proof = hmac.new(self.start["secret"], header + nonce, hashlib.sha256).digest()
        while self.welcome is None:
            self.turns.check()
            try:
                self.socket.send_multipart([header, nonce + proof], zmq.NOBLOCK)
            except zmq.Again:
                pass
            self.turns.turn(self.HELLO_EVERY_S)
        header, payload = self.welcome
        proof = hmac.new(self.start["secret"], header + nonce + payload[32:], hashlib.sha256).digest()
        if not hmac.compare_digest(proof, payload[:32]):
            raise Failure(INTERNAL, f"the WELCOME of {self.name} does not prove the job's secret")
        return json.loads(payload[32:])


# ---- the frame ----
def _run(run, line, start):
    """Until the supervisor says that it is time to leave."""
    turns = Turns(line)
    try:
        run(turns, start)
    except Hurry:
        while not line.leave:
            line.wait(0.5)
    except Failure as failure:
        turns.bye(str(failure))
        raise
    turns.bye("finished")


def work(run, packages):
    """Runs a worker: run(turns, start) from its CONNECT on. `packages`: what the program needs, for messages. Ends the
    process: exit handlers run, but modules are not torn down, which takes PyTorch seconds."""
    control = 3
    sys.path.insert(0, os.getcwd())
    for descriptor in os.listdir("/proc/self/fd"):  # programs that the user's code starts get none of them
        if int(descriptor) >= control:
            try:
                os.set_inheritable(int(descriptor), False)
            except OSError:
                pass  # the one that listed them
    line, code = Line(control), 0
    try:
        if zmq is None:
            raise Failure(UNAVAILABLE, f"{sys.executable}: {MISSING}: expected the packages {packages}")
        start = line.start()
        while not line.connect and not line.leave:
            line.wait(0.5)
        if not line.leave:
            _run(run, line, start)
    except Failure as failure:
        line.fail(failure)
        code = EXIT_CODES.get(failure.status, EXIT_OTHERWISE)
    except Exception as why:
        traceback.print_exc()
        line.fail(Failure(INTERNAL, f"{os.path.basename(sys.argv[0])}: {last_lines(why)}"))
        code = EXIT_OTHERWISE
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def import_package(name, package=None):
    """`package`: what brings the module, where that has another name."""
    try:
        return importlib.import_module(name)
    except ImportError as why:
        raise Failure(UNAVAILABLE, f"{sys.executable}: {why}: expected the package {package or name}") from why
