"""The numbers of runs, for coalesced-plot and coalesced-sweep: curves from episodes.jsonl, and runs that repeat a job.

A curve is a pair of numbers from each line of a log, such as episode and running_reward. It has at most POINTS_MAX
points, whatever the log's length. At first a point is one line. When the points are full, each two neighbours become
one, their mean, and from then on a point stands for twice as many lines: `stride` is a power of two, and only the
newest point may stand for fewer lines.

The standard library alone, on one thread. A Failure is a sentence for people and an exit code of sysexits.h."""
import argparse
import bisect
import contextlib
import errno
import itertools
import json
import math
import operator
import os
import re
import signal
import stat
import sys

POINTS_MAX, BLOCK_BYTES, LINE_BYTES_MAX = 2048, 1 << 19, 1 << 23
LABEL_CHARACTERS_MAX, VALUE_CHARACTERS_MAX = 100, 48


class Failure(Exception):
    def __init__(self, sentence, code=os.EX_USAGE):
        super().__init__(sentence)
        self.code = code


def code_of(error):
    """The exit code of an OSError."""
    return os.EX_NOPERM if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else os.EX_IOERR


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(message)


def some_text(text):
    """A type of argparse."""
    if not text:
        raise argparse.ArgumentTypeError("expected a name or a path, got nothing")
    return text


def integer_to(most):
    """A type of argparse: an integer in 1..most."""
    def read(text):
        if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected an integer in 1..{most}, got {text}")
        return int(text)
    return read


def say(sentence):
    with contextlib.suppress(OSError):  # a terminal that is gone
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
        command = os.path.basename(sys.argv[0]).replace("-", " ")
        say(f"{failure}; see {command} --help" if failure.code == os.EX_USAGE else str(failure))
        code = failure.code
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"{error.filename or 'standard output'}: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = code_of(error)
    sys.exit(code)


# ---- files ----

def open_below(run, name, flags=os.O_RDONLY):
    """Opens RUN/NAME by the daemon's rules (config/RUNS.md): no symbolic link, no file of a third user."""
    path = f"{run}/{name}"
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        problem = "found a symbolic link, expected a regular file" if error.errno == errno.ELOOP else error.strerror
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        raise Failure(f"{path}: {problem}", os.EX_NOINPUT if is_missing else code_of(error)) from None
    about, folder = os.fstat(fd), os.stat(run)
    if stat.S_ISREG(about.st_mode) and about.st_uid in (0, os.geteuid(), folder.st_uid):
        if flags == os.O_RDONLY or about.st_nlink == 1:
            return fd
    os.close(fd)
    raise Failure(f"{path}: expected a regular file with one name, of user {folder.st_uid}", os.EX_IOERR)


def read_json(run, name):
    with open(open_below(run, name), "rb") as file:
        return json.load(file)


def write_whole(path, content, target):
    """Writes the file whole or not at all. `target`: where the file is, if `path` is a symbolic link."""
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise Failure(f"cannot write {path}: {error.strerror}", code_of(error)) from None


# ---- lines ----

def number_of(members, name):
    """The number of that name, a member or OBJECT.MEMBER; None: there is none. A member's own name may have a dot."""
    value = members.get(name)
    if value is None:
        outer, _, name = name.partition(".")
        return number_of(members[outer], name) if isinstance(members.get(outer), dict) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 1e300 else math.inf


def pattern_of(value, name, groups):
    """A pattern of JSON with the keys of `value`, which has that name. `groups`: patterns of two numbers, by name."""
    if isinstance(value, dict):
        prefix = f"{name}." if name else ""
        members = ((re.escape(json.dumps(key).encode()), pattern_of(inner, prefix + key, groups))
                   for key, inner in value.items())
        return rb"\{%s\}" % b",".join(map(b":".join, members))
    if isinstance(value, list):
        return rb"\[%s\]" % b",".join(pattern_of(inner, f"{name}.[", groups) for inner in value)
    return groups.get(name) or (rb'"[^"\\\n]*+"' if isinstance(value, str) else rb"[^,}\]\n]++")


def template_of(members, x, y):
    """A pattern with the groups x and y, the numbers of lines with the keys of `members`; its third group is another
    line. None: the line does not have each of the numbers once."""
    number = rb"-?\d++(?:\.\d++)?+(?:[eE][-+]?\d++)?+)"
    pattern = pattern_of(members, "", {x: b"(?P<x>" + number, y: b"(?P<y>" + number})
    if pattern.count(b"(?P<") != 2:
        return None
    return re.compile(pattern[:pattern.rindex(b"?+)") + 3] + rb".*\}\n|(.*\n)")


class Curve:
    """One curve of a run. `x` and `y` are names of number_of; x may also be "steps", the environment steps or samples
    up to a line, or "seconds", since the log's first line."""

    def __init__(self, x, y):
        self.x, self.y = x, y
        self.x_names = {"seconds": ["timing.unix_s"], "steps": ["total_timesteps", "env_steps", "samples"]}.get(x, [x])
        self.xs, self.ys = [], []  # the points, in the log's order
        self.stride, self.tail = 1, 1  # lines of a point, and of the newest point
        self.newest = None  # (x, y) of the newest line with both numbers
        self.ascends = True  # no x is less than the one before
        self.event = ""  # the newest line's event; "": the line is none, or there is no line
        self.lines = self.wrong = self.first_wrong = 0  # all lines; lines that are none of a log
        self.offset = 0  # of the first byte that is not read
        self.steps, self.begun_s = 0, None
        self.has_updates = False  # a line that is no epoch's had both numbers
        self.template, self.x_name = None, ""  # of most lines

    def read(self, run):
        """Takes the whole lines that were added to RUN/episodes.jsonl since the last call."""
        with open(open_below(run, "episodes.jsonl"), "rb", buffering=0) as file:
            size = BLOCK_BYTES
            while True:
                block = os.pread(file.fileno(), size, self.offset)
                used = block.rfind(b"\n") + 1
                self.take(block[:used])
                self.offset += used
                if len(block) < size:
                    return
                if not used and size >= LINE_BYTES_MAX:
                    raise Failure(f"{run}/episodes.jsonl: line {self.lines + 1} is longer than {size} bytes",
                                  os.EX_DATAERR)
                size = BLOCK_BYTES if used else 2 * size

    def take(self, block):
        """Takes whole lines. Most have the same keys, and a pattern finds their numbers: parsing takes too long."""
        begin = 0
        while begin < len(block) and self.template is None:
            end = block.index(b"\n", begin) + 1
            self._take_line(block[begin:end])
            begin = end
        rows = self.template.findall(block, begin) if begin < len(block) else []
        for other, group in itertools.groupby(rows, operator.itemgetter(2)):
            if other:
                for _ in group:
                    self._take_line(other)
                continue
            numbers = [list(map(float, column)) for column in list(zip(*group))[:2]]
            xs, ys = numbers if self.template.groupindex["x"] == 1 else reversed(numbers)
            self.lines += len(xs)
            self.event = ""
            self._add(self._place(self.x_name, xs), ys)

    def _take_line(self, line):
        self.lines += 1
        skips = self.template is not None and (self.x != "steps" or self.x_name == "total_timesteps")
        if skips and self.y.rpartition(".")[2].encode() not in line and re.fullmatch(rb'\{(?!"event").*\}\n', line):
            self.event = ""
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
            self._take_members(members, is_epoch=line.startswith(b'{"epoch":'))

    def _take_members(self, members, is_epoch):
        name = next((name for name in self.x_names if number_of(members, name) is not None), "")
        x, y = number_of(members, name), number_of(members, self.y)
        if x is None and self.x == "steps":
            x = 0  # more than before
        x = None if x is None else self._place(name, [x])[0]
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y):
            return
        if self.x != "epoch" and is_epoch and self.has_updates:
            return
        self.has_updates = self.has_updates or not is_epoch
        if self.template is None and (not is_epoch or self.x == "epoch"):
            self.template, self.x_name = template_of(members, name, self.y), name
        self._add([x], [y])

    def _place(self, name, numbers):
        """The xs of lines with these numbers of that name."""
        if self.x == "seconds":
            return [number - self.begun_s for number in numbers]
        if self.x == "steps":
            if name != "total_timesteps":
                numbers = list(itertools.accumulate(numbers, initial=self.steps))[1:]
            self.steps = numbers[-1]
        return numbers

    def _add(self, xs, ys):
        self.ascends = self.ascends and xs[0] >= (self.newest or xs)[0] and xs == sorted(xs)
        self.newest = (xs[-1], ys[-1])
        at = 0
        while at < len(xs):
            if not self.xs or self.tail >= self.stride:
                if len(self.xs) == POINTS_MAX:
                    self.xs, self.ys = ([(a + b) / 2 for a, b in zip(old[::2], old[1::2])]
                                        for old in (self.xs, self.ys))
                    self.stride *= 2
                self.xs.append(0.0)
                self.ys.append(0.0)
                self.tail = 0
            taken = min(self.stride - self.tail, len(xs) - at)
            self.tail += taken
            for points, new in ((self.xs, xs), (self.ys, ys)):
                points[-1] += (sum(new[at:at + taken]) / taken - points[-1]) * taken / self.tail
            at += taken

    def at(self, x):
        """y at x, on a straight line between two points; of several points at x, the newest one's. None: the curve does
        not reach there, or it does not ascend."""
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
        if isinstance(value, dict) and value:
            keys |= keys_of(value, below)
        else:
            keys[below] = json.dumps(value, separators=(",", ":"))
    return keys


def short_names(pointers):
    """The last part of each pointer, or the whole pointer where two end alike."""
    ends = [pointer.rpartition("/")[2] for pointer in pointers]
    return [pointer if ends.count(end) > 1 else end for pointer, end in zip(pointers, ends)]


# What a job says of its logs, files and processes: nothing of it changes what is learned.
BESIDE_TRAINING = ("/log/", "/metrics/", "/supervise/", "/checkpoint/", "/device")


def group_runs(jobs, names):
    """Runs whose jobs differ in /seed, and in BESIDE_TRAINING, alone are one group: a list of (label, numbers of the runs).
    The label has the keys that differ between groups, or, if there are none or too many, the first run's name; and the
    count of seeds."""
    groups, seeds = {}, []
    for i, job in enumerate(jobs):
        keys = {pointer: value for pointer, value in keys_of(job).items() if not pointer.startswith(BESIDE_TRAINING)}
        seeds.append(keys.pop("/seed", None))
        groups.setdefault(tuple(keys.items()), []).append(i)
    labels = []
    for key, runs in groups.items():
        differs = {pointer: value for pointer, value in key if any((pointer, value) not in other for other in groups)}
        values = [shown(value.strip('"'), VALUE_CHARACTERS_MAX) for value in differs.values()]
        label = ", ".join(map(" ".join, zip(short_names(differs), values)))
        if not label or len(label) > LABEL_CHARACTERS_MAX:
            label = shown(names[runs[0]], LABEL_CHARACTERS_MAX)
        if len(runs) > 1:
            label += f", {len(runs)} " + ("seeds" if len({seeds[i] for i in runs}) == len(runs) else "runs")
        labels.append((label, runs))
    return labels
