#!/usr/bin/env python3
"""Troubles the HTTP server of a run (test/daemon/watch/test_http.sh), and looks at what it answers.

    http_fuzz.py ADDRESS PID fuzz SEED COUNT     requests of random and mutated bytes, all at once and byte by byte
    http_fuzz.py ADDRESS PID paths               no path is one of the file system
    http_fuzz.py ADDRESS PID idle COUNT          so many idle connections are held, and closed after 10 s
    http_fuzz.py ADDRESS PID streams SECONDS     streams that nobody reads; one too many is refused
    http_fuzz.py ADDRESS PID full COUNT RUN      so many idle connections, more than the server holds, while observers are
                                                 killed, $COALESCED asks for the status, and the logs are rotated
    http_fuzz.py ADDRESS PID slow                headers that come byte by byte

ADDRESS is 127.0.0.1:PORT, PID the supervisor. Exit: 0 all as expected, 1 not; a line says what."""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

IDLE_S = 10
LIMIT_S = float(os.environ.get("HTTP_LIMIT_S", "1"))  # to answer within: a sanitizer needs more
SENTENCE = b"expected /, /metrics, /status.json or /events\n"
HOST, PORT = sys.argv[1].split(":")
PID = int(sys.argv[2])
# What the files asked for would begin with, and no answer may have.
FILES = (b"root:", b"PATH=", b"\x7fELF", b"Inter-|")


class Wrong(Exception):
    pass


# ---- the server ----
def connect(receive_bytes=None):
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(30)
    connection.connect((HOST, int(PORT)))
    return connection


def read_all(connection, limit_s=30.0):
    connection.settimeout(limit_s)
    answer = b""
    try:
        while piece := connection.recv(65536):
            answer += piece
    except (BlockingIOError, ConnectionError, TimeoutError):
        pass
    return answer


def ask(request):
    with connect() as connection:
        connection.sendall(request)
        return read_all(connection)


def get(path):
    """(code, headers, body)"""
    answer = ask(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.") else 0, head, body


def expect_life():
    """/metrics answers soon, of five times at least once: other programs have the processors too. And the run goes on."""
    took = []
    while not took or (len(took) < 5 and min(took) > LIMIT_S):
        begin = time.monotonic()
        code, _, body = get(b"/metrics")
        took.append(time.monotonic() - begin)
        if code != 200 or not body.endswith(b"# EOF\n"):
            raise Wrong(f"/metrics: {code}, {len(body)} bytes")
    if min(took) > LIMIT_S:
        raise Wrong(f"/metrics took {took} s")
    episode = progress()
    end = time.monotonic() + 60
    while progress() <= episode:
        if time.monotonic() > end:
            raise Wrong(f"the run stands still at {episode}")
        time.sleep(0.05)


def progress():
    return json.loads(get(b"/status.json")[2])["progress"].get("episode", 0)


def descriptors():
    return len(os.listdir(f"/proc/{PID}/fd"))


def settled_descriptors():
    """Without what the run opens for a moment, such as a checkpoint."""
    least = descriptors()
    for _ in range(10):
        time.sleep(0.05)
        least = min(least, descriptors())
    return least


def resident_bytes():
    with open(f"/proc/{PID}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def expect_descriptors(most, limit_s):
    end = time.monotonic() + limit_s
    while (now := descriptors()) > most:
        if time.monotonic() > end:
            raise Wrong(f"{now} descriptors after {limit_s} s, expected {most}")
        time.sleep(0.1)


def close_streams(connections):
    """What the server does not close: a request for /events may be among them."""
    for connection in connections:
        if b"text/event-stream" in read_all(connection, 0):
            connection.close()


# ---- requests ----
TARGETS = [b"/", b"/metrics", b"/status.json", b"/events", b"/etc/passwd", b"/../../../etc/passwd", b"//etc/passwd", b"*",
           b"/%2e%2e/%2e%2e/etc/passwd", b"/%00", b"/%", b"/%zz", b"/metrics%00.html", b"/metrics?a=b&&=%ff;#x", b"",
           b"http://localhost/metrics", b"http://elsewhere.example/", b"https://[::1]:99999/", b"localhost:443",
           b"/" + b"a" * 5000, b"/" + b"../" * 3000, b"/" + b"%2e" * 4000, b"\\..\\..\\etc\\passwd", b"file:///etc/passwd"]
METHODS = [b"GET"] * 8 + [b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"get", b"G\x00T", b"",
                          b"M" * 9000, b"PRI"]
VERSIONS = [b" HTTP/1.1"] * 8 + [b" HTTP/1.0", b"", b" HTTP/0.9", b" HTTP/2.0", b" HTTP/9999999999.1", b" http/1.1", b" \xff",
                                 b"  HTTP/1.1  "]
HEADERS = [b"Host: localhost", b"Host: elsewhere.example", b"Host:", b"Host: localhost\r\nHost: localhost", b"Connection: close",
           b"Connection: keep-alive", b"Connection: upgrade\r\nUpgrade: h2c", b"Content-Length: 5", b"Content-Length: -1",
           b"Content-Length: 99999999999999999999999", b"Content-Length: 4\r\nContent-Length: 5",
           b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip",
           b"Expect: 100-continue", b"Authorization: Basic", b"Authorization: Basic ====", b"Authorization: Basic " + b"Q" * 3000,
           b"Authorization: Bearer", b"Authorization: Digest " + b"a=\"" * 200, b"Range: bytes=0-1,5-,-7", b"Cookie: " + b"a=b;" * 900,
           b"X: " + b"y" * 20000, b"NoColon", b": nameless", b" folded", b"\tfolded", b"A\x00B: c\x00d", b"\xff\xfe: \x80",
           b"Accept: text/html", b"Accept: ;q=,;,application/openmetrics-text;q=nan;;", b"Accept: " + b",;" * 400,
           b"Last-Event-ID: 9999999999999999999"]
BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"fffffffffffffffffffff\r\nx", b"-1\r\nx\r\n", b"zz\r\n", b"0\r\n\r\n",
          b"7fffffffffffffff\r\n" + b"x" * 100, b"5;" + b"e" * 9000 + b"\r\nhello\r\n", b"x" * 100000, b"\x00" * 1000]
ENDS = [b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n", b"\x00\r\n"]


def request_of(random_):
    kind = random_.randrange(12)
    if kind == 0:
        return random_.randbytes(random_.randrange(1, 3000))
    if kind == 1:
        return bytes(random_.choice(b" \r\n\t:/%GET\x00") for _ in range(random_.randrange(1, 400)))
    end = random_.choice(ENDS)
    many = 1500 if random_.randrange(40) == 0 else random_.randrange(7)
    lines = [random_.choice(METHODS) + b" " + random_.choice(TARGETS) + random_.choice(VERSIONS)]
    if random_.randrange(4) > 0:
        lines.append(b"Host: localhost")
    lines += [random_.choice(HEADERS) for _ in range(many)]
    text = end.join(lines) + end + end + random_.choice(BODIES)
    if kind < 5:  # bytes that differ, are missing, or come twice
        for _ in range(random_.randrange(1, 8)):
            at = random_.randrange(len(text))
            text = text[:at] + random_.choice([random_.randbytes(1), b"", text[at:at + 20], b"\x00"]) + text[at + 1:]
    if kind == 5:
        text = text[:random_.randrange(len(text) + 1)]
    if kind == 6:
        text *= random_.randrange(2, 30)  # a pipeline
    return text


def send(connection, text, random_):
    """As far as the server reads."""
    try:
        if random_.randrange(20) == 0:
            for i in range(min(len(text), 200)):  # each byte a packet
                connection.send(text[i:i + 1])
            text = text[200:]
        connection.setblocking(False)
        connection.send(text)
    except OSError:
        pass


def look_at(answer, request):
    for file in FILES:
        if file in answer and file not in request:
            raise Wrong(f"{request[:200]!r} has the answer {answer[:400]!r}")
    if answer and not answer.startswith(b"HTTP/1."):
        raise Wrong(f"{request[:200]!r} has the answer {answer[:400]!r}")


# ---- what is tried ----
def fuzz(seed, count):
    """The connections of a hundred requests are open at a time. Their answers are looked at before they are closed; some
    stay open until the server closes them."""
    random_ = random.Random(seed)
    before, begun_bytes = settled_descriptors(), 0
    opened, kept = [], []
    for i in range(count):
        request = request_of(random_)
        connection = connect()
        send(connection, request, random_)
        opened.append((connection, request))
        if len(opened) == 100:
            time.sleep(0.05)
            for old, asked in opened:
                answer = read_all(old, 0)
                look_at(answer, asked)
                if len(kept) < 200 and random_.randrange(10) == 0 and b"text/event-stream" not in answer:
                    kept.append(old)
                else:
                    old.close()
            opened = []
        if i % (count // 4) == count // 8:
            expect_life()
        if i == count // 4:
            begun_bytes = resident_bytes()
    for old, _ in opened:
        old.close()
    expect_life()
    close_streams(kept)
    expect_descriptors(before, IDLE_S + 5)
    grown = resident_bytes() - begun_bytes
    # Streams may hold some; the curve and the log are bounded. A sanitizer keeps what is freed.
    if grown > 8 << 20 and not os.environ.get("SAN"):
        raise Wrong(f"{grown} bytes more in memory after {count} requests")
    print(f"seed {seed}: {count} requests, {grown >> 10} KiB more in memory")


def paths():
    targets = [b"/etc/passwd", b"//etc/passwd", b"/../../etc/passwd", b"/..", b"/.", b"/%2e%2e/", b"/%2e%2e/%2e%2e/etc/passwd",
               b"/..%2f..%2fetc/passwd", b"/%2fetc%2fpasswd", b"/status.json/../../../etc/passwd", b"/metrics/../etc/passwd",
               b"/metrics/", b"/metrics/.", b"//metrics", b"/status.json%00", b"/events/", b"/proc/self/environ", b"/proc/self/exe",
               b"/proc/net/dev", b"/page.html", b"/index.html", b"/daemon/http/page.html", b"/job.json", b"/checkpoints/", b"/METRICS",
               b"/favicon.ico", b"/.git/config", b"file:///etc/passwd", b"http://localhost/etc/passwd", b"http://localhost/metrics"]
    for target in targets:
        code, head, body = get(target)
        if code != 404 or body != SENTENCE or b"text/plain" not in head:
            raise Wrong(f"{target!r}: {code}, {body[:200]!r}")
    print(f"{len(targets)} paths")


def idle(count):
    before = settled_descriptors()
    begin = time.monotonic()
    held = []
    for i in range(count):
        connection = connect()
        if i % 2:
            connection.send([b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: loc", b"\r\n"][i % 3])
        held.append(connection)
    opened_s = time.monotonic() - begin
    if opened_s < IDLE_S / 2:
        time.sleep(0.3)
        if (now := descriptors()) < before + count:
            raise Wrong(f"{now - before} connections are held, expected {count}")
    expect_life()
    for connection in held:
        connection.settimeout(IDLE_S + 20)
        try:
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass
    closed_s = time.monotonic() - begin
    if closed_s < IDLE_S - 1:
        raise Wrong(f"closed after {closed_s:.1f} s")
    expect_descriptors(before, 5)
    expect_life()
    print(f"{count} connections, opened in {opened_s:.2f} s, closed after {closed_s:.1f} s")


def until(what, holds):
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            raise Wrong(what)
        time.sleep(0.05)


def workers_of(run):
    """By the run's own socket: its page has no descriptor to spare."""
    asked = subprocess.run([os.environ["COALESCED"], "status", run, "--json"], capture_output=True, check=True, timeout=60)
    return json.loads(asked.stdout)["workers"]


def full(count, run):
    held = [connect() for _ in range(count)]
    for turn in range(1, 4):
        for each in workers_of(run)[1:]:
            os.kill(each["pid"], signal.SIGKILL)
        until(f"not all workers are back after turn {turn}", lambda least=turn: all(
            each["restarts"] >= least and each["state"] == "running" for each in workers_of(run)[1:]))
    os.rename(f"{run}/episodes.jsonl", f"{run}/moved")
    os.kill(PID, signal.SIGUSR1)
    until("the logs do not go on", lambda: os.path.exists(f"{run}/episodes.jsonl"))
    for connection in held:
        connection.close()
    expect_life()


def streams(seconds):
    most = 64
    before = settled_descriptors()
    held = []
    for _ in range(most):
        connection = connect(receive_bytes=1)
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        held.append(connection)
    time.sleep(1)
    code, _, body = get(b"/events")
    if code != 503 or body != b"too many streams\n":
        raise Wrong(f"one stream too many: {code}, {body[:100]!r}")
    for _ in range(seconds):
        time.sleep(1)
        expect_life()
    for connection in held:
        connection.close()
    expect_descriptors(before, IDLE_S)
    with connect() as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b"event: tick\n" not in answer:
            answer += connection.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200") or b"event: begin\ndata: {" not in answer:
        raise Wrong(f"a stream after them: {answer[:300]!r}")


def slow():
    held = [connect() for _ in range(20)]
    for byte in b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/openmetrics-text\r\n\r\n":
        for connection in held:
            connection.send(bytes([byte]))
        time.sleep(0.02)
    expect_life()
    for connection in held:
        answer = read_all(connection)
        if not answer.startswith(b"HTTP/1.1 200") or not answer.endswith(b"# EOF\n"):
            raise Wrong(f"{answer[:200]!r}")


def main():
    what = {"fuzz": fuzz, "paths": paths, "idle": idle, "full": full, "streams": streams, "slow": slow}[sys.argv[3]]
    try:
        what(*(int(argument) if argument.isdigit() else argument for argument in sys.argv[4:]))
    except Wrong as wrong:
        print(" ".join(sys.argv[3:]), wrong, sep=": ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
