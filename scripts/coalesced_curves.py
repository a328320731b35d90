"""The numbers of runs, for coalesced-plot and coalesced-sweep: curves from episodes.jsonl, and runs that repeat one job.

A curve is a pair of numbers from each line of a log, such as episode and running_reward. It has at most POINTS_MAX points,
whatever the log's length. At first a point is one line. When the points are full, each two neighbours become one, their mean,
and from then on a point stands for twice as many lines: `stride` is a power of two, and only the newest point may stand for
fewer lines.

The standard library alone, on one thread. A Failure is a sentence for people and an exit code of sysexits.h."""
import argparse
import bisect
import errno
import itertools
import json
import math
import os
import re
import signal
import stat
import sys

POINTS_MAX, BLOCK_BYTES, LINE_BYTES_MAX = 2048, 1 << 19, 1 << 23
LABEL_CHARACTERS_MAX, VALUE_CHARACTERS_MAX = 100, 48
EX_USAGE, EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_SOFTWARE, EX_IOERR, EX_TEMPFAIL, EX_NOPERM, EX_CONFIG = \
    64, 65, 66, 69, 70, 74, 75, 77, 78
TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(:)?|[-+.\w]+|[{}\[\],]')


class Failure(Exception):
    def __init__(self, code, sentence):
        super().__init__(sentence)
        self.code = code


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise usage(message)


def integer_to(most):
    """A type of argparse: an integer in 1..most."""
    def read(text):
        if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected an integer in 1..{most}, got {text}")
        return int(text)
    return read


def usage(sentence):
    command = os.path.basename(sys.argv[0]).replace("-", " ")
    return Failure(EX_USAGE, f"{sentence}; see {command} --help")


def failure_of(error, sentence):
    """The Failure of an OSError."""
    codes = {errno.ENOENT: EX_NOINPUT, errno.ENOTDIR: EX_NOINPUT, errno.EACCES: EX_NOPERM, errno.EPERM: EX_NOPERM,
             errno.EROFS: EX_NOPERM}
    return Failure(codes.get(error.errno, EX_IOERR), f"{sentence}: {error.strerror}")


def say(sentence):
    print(f"coalesced: {shown(sentence, 2000)}", file=sys.stderr, flush=True)


def shown(text, characters_max):
    """The text as it may stand in a message or a figure: printable, and not too long."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return text if len(text) <= characters_max else text[:characters_max] + "..."


def run_program(main):
    """Ends the process with main()'s exit code. A Failure becomes a sentence on standard error."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except Failure as failure:
        say(str(failure))
        code = failure.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EX_IOERR
    except OSError as error:
        say(f"{error.filename or 'standard output'}: {error.strerror}")
        code = EX_IOERR
    sys.exit(code)


def open_below(run, name, flags=os.O_RDONLY):
    """Opens RUN/NAME by the daemon's rules (config/RUNS.md): no symbolic link, no file of a third user."""
    path = f"{run}/{name}"
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Failure(EX_IOERR, f"{path}: found a symbolic link, expected a regular file") from None
        raise failure_of(error, path) from None
    about, folder = os.fstat(fd), os.stat(run)
    if stat.S_ISREG(about.st_mode) and about.st_uid in (0, os.geteuid(), folder.st_uid):
        if flags == os.O_RDONLY or about.st_nlink == 1:
            return fd
    os.close(fd)
    raise Failure(EX_IOERR, f"{path}: expected a regular file with one name, of user {folder.st_uid}")


# ---- lines ----

def number_of(members, name):
    """The number of that name, a member or OBJECT.MEMBER; None: there is none. A member's own name may have a dot."""
    value = members.get(name)
    dot = name.find(".")
    while value is None and dot >= 0:
        inner = members.get(name[:dot])
        value = number_of(inner, name[dot + 1:]) if isinstance(inner, dict) else None
        dot = name.find(".", dot + 1)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 1e300 else math.inf


def template_of(line, x, y):
    """A pattern whose first two groups are the numbers x and y of lines with the keys of `line`, in x's and y's order, or
    whose third group is another line. None: the line does not have both."""
    pattern, path, key, found, end = b"", [], "", [], 0
    for token in TOKEN.finditer(line):
        if token.start() != end:
            return None
        end, text = token.end(), token.group()
        name = ".".join(part for part in [*path, key] if part)
        if text in b"{[":
            path.append(key if text == b"{" else "[")
        elif text in b"}]":
            path.pop()
        elif token.group(2):
            key = token.group(1).decode()
        elif text != b",":
            if name in (x, y):
                found.append(name)
                pattern += b"(-?\\d[^%s]*+)" % line[end:end + 1]
                if len(found) == 2:
                    return re.compile(b"%s.*\\}\n|(.*\n)" % pattern), found[0] == x
            else:
                pattern += b'"[^"\\\\]*"' if text.startswith(b'"') else b"[^%s]++" % re.escape(line[end:end + 1])
            continue
        pattern += re.escape(text)
        if text in b"{[":
            key = ""
    return None


class Curve:
    """One curve of a run. `x` and `y` are names of number_of; x may also be "steps", the environment steps or samples up to a
    line, or "seconds", since the log's first line."""

    def __init__(self, x, y):
        self.x, self.y = x, y
        self.xs, self.ys = [], []  # the points, in the log's order
        self.stride, self.tail = 1, 1  # lines of a point, and of the newest point
        self.newest = None  # (x, y) of the newest line with both numbers
        self.ascends = True  # no x is less than the one before
        self.event = ""  # the newest line's event; "": the line is none, or there is no line
        self.lines = self.wrong = self.first_wrong = 0  # all lines; lines that are none of a log
        self.offset = 0  # of the first byte that is not read
        self.steps, self.begun_s, self.adds_steps = 0, None, False
        self.has_updates = False  # a line that is no epoch's had both numbers
        self.template, self.x_first = None, True

    def read(self, run):
        """Takes the whole lines that were added to RUN/episodes.jsonl since the last call."""
        fd = open_below(run, "episodes.jsonl")
        size = BLOCK_BYTES
        try:
            while True:
                block = os.pread(fd, size, self.offset)
                used = block.rfind(b"\n") + 1
                if used:
                    self.take(block[:used])
                    self.offset += used
                if len(block) < size:
                    return
                if not used and size >= LINE_BYTES_MAX:
                    raise Failure(EX_DATAERR, f"{run}/episodes.jsonl: line {self.lines + 1} is longer than {size} bytes")
                size = BLOCK_BYTES if used else 2 * size
        finally:
            os.close(fd)

    def take(self, block):
        """Takes whole lines. Where most have the same keys, a pattern finds their numbers: ten million are too many to parse."""
        while block and self.template is None:
            line, _, block = block.partition(b"\n")
            self._take_line(line)
        rows = self.template.findall(block) if block else []
        if not rows:
            return
        first, second, others = zip(*rows)
        xs, ys = (first, second) if self.x_first else (second, first)
        begin = 0
        for i in [i for i, line in enumerate(others) if line] if any(others) else []:
            self._take_numbers(xs[begin:i], ys[begin:i])
            self._take_line(others[i][:-1])
            begin = i + 1
        self._take_numbers(xs[begin:], ys[begin:])

    def _take_numbers(self, xs, ys):
        """Takes the numbers of lines that fit the template, as bytes."""
        if not xs:
            return
        xs, ys = list(map(float, xs)), list(map(float, ys))
        self.lines += len(xs)
        self.event = ""
        if self.adds_steps:
            xs = list(itertools.accumulate(xs, initial=self.steps))[1:]
        if self.x == "steps":
            self.steps = xs[-1]
        elif self.x == "seconds":
            xs = [x - self.begun_s for x in xs]
        self._add(xs, ys)

    def _take_line(self, line):
        self.lines += 1
        is_event = line.startswith(b'{"event"')
        known = self.template is not None and (not self.adds_steps and self.y.rpartition(".")[2].encode() not in line)
        if known and not is_event and line.startswith(b"{") and line.endswith(b"}"):
            self.event = ""  # the line has no number y
            return
        try:
            members = json.loads(line)
        except ValueError:
            members = None
        if not isinstance(members, dict):
            self.first_wrong = self.first_wrong or self.lines
            self.wrong += 1
            return
        if self.begun_s is None:
            self.begun_s = number_of(members, "timing.unix_s")
        self.event = str(members.get("event", ""))
        if not self.event:
            self._take_members(members, line)

    def _take_members(self, members, line):
        is_epoch = line.startswith(b'{"epoch":')
        x, y = self._x_of(members), number_of(members, self.y)
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y):
            return
        if is_epoch and self.has_updates and self.x != "epoch":
            return
        self.has_updates = self.has_updates or not is_epoch
        if self.template is None and (not is_epoch or self.x == "epoch") and self.x != self.y:
            total = next((key for key in ("total_timesteps", "env_steps", "samples") if key in members), "")
            name = {"seconds": "timing.unix_s", "steps": total}.get(self.x, self.x)
            self.template, self.x_first = template_of(line, name, self.y) or (None, True)
            self.adds_steps = self.x == "steps" and total != "total_timesteps" and self.template is not None
        self._add([x], [y])

    def _x_of(self, members):
        if self.x == "seconds":
            now = number_of(members, "timing.unix_s")
            return None if now is None else now - self.begun_s
        if self.x != "steps":
            return number_of(members, self.x)
        total, added = number_of(members, "total_timesteps"), number_of(members, "env_steps")
        added = number_of(members, "samples") if added is None else added
        self.steps = total if total is not None else self.steps + (added or 0)
        return self.steps

    def _add(self, xs, ys):
        if self.ascends:
            last = self.newest[0] if self.newest else -math.inf
            self.ascends = xs[0] >= last and (len(xs) == 1 or xs == sorted(xs))
        self.newest = (xs[-1], ys[-1])
        at = 0
        while at < len(xs):
            if not self.xs or self.tail >= self.stride:
                if len(self.xs) == POINTS_MAX:
                    self._halve()
                self.xs.append(0.0)
                self.ys.append(0.0)
                self.tail = 0
            taken = min(self.stride - self.tail, len(xs) - at)
            self.tail += taken
            self.xs[-1] += (sum(xs[at:at + taken]) / taken - self.xs[-1]) * taken / self.tail
            self.ys[-1] += (sum(ys[at:at + taken]) / taken - self.ys[-1]) * taken / self.tail
            at += taken

    def _halve(self):
        self.xs = [(a + b) / 2 for a, b in zip(self.xs[::2], self.xs[1::2])]
        self.ys = [(a + b) / 2 for a, b in zip(self.ys[::2], self.ys[1::2])]
        self.stride = self.tail = 2 * self.stride

    def at(self, x):
        """y at x, on a straight line between two points; of several points at x, the newest one's. None: the curve does not
        reach there, or it does not ascend."""
        if not self.ascends or not self.xs or not self.xs[0] <= x <= self.xs[-1]:
            return None
        i = bisect.bisect_right(self.xs, x) - 1
        if i + 1 == len(self.xs):
            return self.ys[i]
        return self.ys[i] + (self.ys[i + 1] - self.ys[i]) * (x - self.xs[i]) / (self.xs[i + 1] - self.xs[i])

    def mean_until(self, x):
        """The mean over the lines up to x; None: there is no point up to x."""
        count = bisect.bisect_right(self.xs, x) if self.ascends else sum(at <= x for at in self.xs)
        if count == 0:
            return None
        last = self.tail if count == len(self.xs) else self.stride
        return (sum(self.ys[:count - 1]) * self.stride + self.ys[count - 1] * last) / ((count - 1) * self.stride + last)


# ---- jobs ----

def algorithm_of(job):
    return job["algorithm"]["name"] if job["kind"] == "reinforce" else ""


def default_keys(jobs):
    """The numbers x and y to show of runs of these jobs where none are named."""
    rewards = [job for job in jobs if job["kind"] == "reinforce"]
    critics = [job for job in rewards if algorithm_of(job) in ("ppo", "a2c")]
    if len(rewards) < len(jobs):
        return "steps" if rewards else "update", "loss"
    return "steps" if critics else "episode", "ep_rew_mean" if len(critics) == len(jobs) else "running_reward"


def keys_of(job, pointer=""):
    """Each key of a job with its value as JSON, by pointer."""
    keys = {}
    for name, value in job.items():
        below = f"{pointer}/" + name.replace("~", "~0").replace("/", "~1")
        keys |= keys_of(value, below) if isinstance(value, dict) and value else {below: json.dumps(value, separators=(",", ":"))}
    return keys


def group_runs(jobs, names):
    """Runs whose jobs differ in /seed alone are one group: a list of (label, numbers of the runs). The label has the keys in
    which the groups differ, or, where there are none or too many, the first run's name; and how many seeds the group has."""
    keys = [keys_of(job) for job in jobs]
    seeds = [own.pop("/seed", None) for own in keys]
    groups = {}
    for i, own in enumerate(keys):
        groups.setdefault(tuple(own.items()), []).append(i)
    labels = []
    for key, runs in groups.items():
        differs = [pointer for pointer, value in key if any(dict(other).get(pointer) != value for other in groups)]
        ends = [pointer.rpartition("/")[2] for pointer in differs]
        names_of = [pointer if ends.count(end) > 1 else end for pointer, end in zip(differs, ends)]
        values = [shown(dict(key)[pointer].strip('"'), VALUE_CHARACTERS_MAX) for pointer in differs]
        label = ", ".join(f"{name} {value}" for name, value in zip(names_of, values))
        if not label or len(label) > LABEL_CHARACTERS_MAX:
            label = shown(names[runs[0]], LABEL_CHARACTERS_MAX)
        if len(runs) > 1:
            label += f", {len(runs)} " + ("seeds" if len({seeds[i] for i in runs}) == len(runs) else "runs")
        labels.append((label, runs))
    return labels
