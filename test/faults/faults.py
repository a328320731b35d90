#!/usr/bin/env python3
"""Fails each call of the daemon's own code once, in turn, and judges what each failure leaves behind.

    BUILD=build/release test/faults/faults.py SCENARIO... [--all | --sample N] [--jobs N] [--only REGEX] [--results FILE]
    test/faults/faults.py --list

A scenario is one command on a tiny job: a run of each kind, a resume, check, evaluate, generate, schema, --help. An
undisturbed run of it, under test/preload/fail_call.c, lists every call that can fail: allocations, writes, syncs, renames,
opens, mappings, sockets, forks, threads, polls. A fault is one of these calls, in one process, with one error. For each fault
the scenario runs again, and then

  - it must end in time, with exit code 0 or a code that --help lists, and no process by a signal;
  - with another exit code than 0 a line on standard error says what failed, and exit code 0 means the same output and logs as
    undisturbed (without `timing` and events);
  - no process is left, and no socket without a line that says so; every line of the logs is whole, and each checkpoint has the
    hashes of its manifest;
  - a run that failed then goes on (--resume where it has begun, else a fresh run) and ends with the undisturbed logs.

--all takes every place of the program from which a call comes (a place is a stack, see fail_call.c), in every process but those
that do the same as another. Of a place with many calls it takes the first and the last; of writes and other calls that may
tear a file also the second, the third and the middle one. --sample N takes N of these faults, the same ones every time. --only
takes those faults whose description matches.

The order of calls differs from run to run, so that a fault may not be reached. More than half not reached is an error.

Exit: 0 nothing found, 1 a fault was not borne or the faults could not be tested, 64 usage.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import errno
import gzip
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("BUILD", "build/release")).resolve()
DAEMON = BUILD / "coalesced"
PRELOAD = BUILD / "test/preload/fail_call.so"
LIMIT_S = 60
DOCUMENTED = {0, 64, 65, 66, 69, 70, 74, 75, 77, 78}

# ---- jobs and scenarios ----

# ResNet-18 with an eighth of its channels, on 20 images of the MNIST family's format.
SERVER = {"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
          "trainers": {"count": 2, "batch": 4, "threads": 1}, "server": {"count": 2}, "data": {"size": 16},
          "optimizer": {"lr": 0.01, "momentum": 0.9}, "stop": {"updates": 4}, "checkpoint": {"every": 2}}
IMAGES = {"data": {"kind": "idx", "path": "images", "size": 16}, "loss": {"name": "cross_entropy"},
          "evaluation": {"every": 1}, "stop": {"epochs": 2}}
PICTURES = {"data": {"kind": "folder", "path": "pictures", "size": 16}, "model": {"name": "resnet18", "classes": 2, "width": 8},
            "trainers": {"count": 1, "batch": 4, "threads": 1}, "server": {"count": 1}}
PARALLEL = {"kind": "model-parallel", "device": "cpu",
            "model": {"embedding": 4, "hidden": 5, "layers": 2, "dropout": 0.25},
            "threads": {"embedding": 1, "lstm": 1, "decoder": 1}, "trainers": {"batch": 3, "threads": 1},
            "data": {"kind": "text", "path": "tale.txt", "steps": 4, "held_out": 0.25},
            "optimizer": {"lr": 0.5, "schedule": "plateau", "max_norm": 0.5}, "evaluation": {"batch": 2},
            "stop": {"epochs": 2}, "checkpoint": {"every": 10}}
REINFORCE = {"kind": "reinforce", "device": "cpu", "observers": {"count": 2, "environments": 2},
             "rollout": {"mode": "episode"}, "stop": {"episodes": 4, "running_reward": 475}, "checkpoint": {"every": 2, "best": True}}
JOBS = {"reinforce": REINFORCE, "shared": SERVER | IMAGES, "pictures": SERVER | IMAGES | PICTURES, "inline": SERVER | {"transport": "inline"},
        "parallel": PARALLEL}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What runs: `words` with the job's file, the run directory and a checkpoint filled in."""
    job: str
    words: tuple
    begins: bool = False  # a run; it goes on after the fault
    from_run: tuple = ()  # --set of an earlier run whose directory this one finds


RUN = ("run", "{job}", "--run-dir", "{run}")
HALF = {"reinforce": ("/stop/episodes=2",), "shared": ("/stop/epochs=1",), "inline": ("/stop/updates=2",), "parallel": ("/stop/epochs=1",)}
SCENARIOS = {kind: Scenario(kind, RUN, begins=True) for kind in JOBS}
SCENARIOS |= {f"resume-{kind}": Scenario(kind, RUN + ("--resume",), True, sets) for kind, sets in HALF.items()}
SCENARIOS |= {
    "again": Scenario("reinforce", RUN, True, ("/stop/episodes=1",)),
    "check-images": Scenario("shared", ("check", "{job}")),
    "check-text": Scenario("parallel", ("check", "{job}")),
    "check-wrong": Scenario("shared", ("check", "{job}", "--set", "/stop/epoch=1", "--set", "/trainers/count=0")),
    "evaluate-images": Scenario("shared", ("evaluate", "{checkpoint}", "{job}"), from_run=("/stop/epochs=1",)),
    "evaluate-text": Scenario("parallel", ("evaluate", "{checkpoint}", "{job}"), from_run=("/stop/epochs=1",)),
    "generate": Scenario("parallel", ("generate", "{checkpoint}", "--words", "5"), from_run=("/stop/epochs=1",)),
    "schema": Scenario("shared", ("schema",)),
    "manual": Scenario("shared", ("schema", "man")),
    "pointers": Scenario("shared", ("schema", "pointers")),
    "help": Scenario("shared", ("--help",)),
}


def write_images(folder, name, count):
    pixels = bytes((7 * i + i // 16) % 256 for i in range(count * 16 * 16))
    (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(struct.pack(">4I", 0x803, count, 16, 16) + pixels))
    labels = bytes(i % 10 for i in range(count))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)


def write_pictures(folder):
    """JPEG and PNG files in two classes, from the files of test/golden."""
    golden = pathlib.Path(__file__).resolve().parent.parent / "golden/images.txt"
    files = [line.split() for line in golden.read_text().splitlines() if not line.startswith("#")]
    chosen = [(file[0], file[5]) for file in files if re.match(r"(color|full|palette4|gray)[.0-9]*(jpg|png)", file[0])]
    for i, (name, content) in enumerate(chosen):
        for split in ("train", "test"):
            place = folder / split / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(bytes.fromhex(content))


def write_tale(path):
    words = ["the", "river", "runs", "to", "flüss", "sea", ",", "and"]
    word, text = 3, ""
    for i in range(200):
        word = (3 * word + i % 5 + i // 7) % 8
        text += words[word] + ("\n" if i % 5 == 4 else " ")
    path.write_text(text)


# ---- running ----

@dataclasses.dataclass
class Outcome:
    code: int
    out: str
    err: str
    seconds: float
    left: list  # processes


def environment(place, mark, more):
    kept = {name: value for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "LC_ALL", "COALESCED_ISA", "COALESCED_PLUGINS")}
    return kept | {"RUNTIME_DIRECTORY": str(place / "sockets"), "FAULTS_MARK": mark} | more


def processes_of(mark):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"FAULTS_MARK={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def processes_left(mark):
    """Those that outlive the command by two seconds. They are killed."""
    until = time.monotonic() + 2
    while (found := processes_of(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    named = []
    for pid in found:
        try:
            named.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return [name for name in named if name]


def run(place, words, more=None):
    mark, began = place.name + os.urandom(4).hex(), time.monotonic()
    with open(place / "out", "wb") as out, open(place / "err", "wb") as err:
        process = subprocess.Popen([str(DAEMON), *words], cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment(place, mark, more or {}))
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in processes_of(mark):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            code = None
    seconds = time.monotonic() - began
    return Outcome(code, (place / "out").read_text(errors="replace"), (place / "err").read_text(errors="replace"), seconds,
                   processes_left(mark))


def sets(pairs):
    return [word for pair in pairs for word in ("--set", pair)]


class Stage:
    """One scenario: its prepared folder, its undisturbed outcome, its faults."""

    def __init__(self, name, scratch):
        self.name, self.scenario = name, SCENARIOS[name]
        self.base = scratch / name
        self.base.mkdir()
        (self.base / "images").mkdir()
        (self.base / "sockets").mkdir(mode=0o700)
        write_images(self.base / "images", "train", 20)
        write_images(self.base / "images", "t10k", 9)
        write_pictures(self.base / "pictures")
        write_tale(self.base / "tale.txt")
        (self.base / "job.json").write_text(json.dumps(JOBS[self.scenario.job]))
        if self.scenario.from_run:
            self.expect(run(self.base, self.words(RUN) + sets(self.scenario.from_run)), "the run before")
        self.trace = self.undisturbed()

    @staticmethod
    def expect(outcome, what):
        if outcome.code != 0:
            sys.exit(f"faults: {what} ended with {outcome.code}: {outcome.err}")

    def words(self, words):
        checkpoints = self.base / "run/checkpoints"
        newest = max((c.name for c in checkpoints.iterdir()), default="") if checkpoints.is_dir() else ""
        filled = {"job": "job.json", "run": "run", "checkpoint": f"run/checkpoints/{newest}"}
        return [word.format_map(filled) for word in words]

    def place(self):
        """A copy of the prepared folder. Its path is short, because sockets lie in it."""
        place = pathlib.Path(tempfile.mkdtemp(prefix="f", dir=self.base.parent))
        shutil.copytree(self.base, place, dirs_exist_ok=True)
        return place

    def undisturbed(self):
        place = self.place()
        outcome = run(place, self.words(self.scenario.words), {"LD_PRELOAD": str(PRELOAD), "FAIL_CALL_TRACE": str(place / "trace")})
        self.code, self.out, self.logs = outcome.code, outcome.out, logs_of(place / "run")
        if outcome.code not in (0, 78) or outcome.left:
            sys.exit(f"faults: {self.name} undisturbed ended with {outcome.code}: {outcome.err}")
        again = run(place, self.words(RUN) + ["--resume"]) if self.scenario.begins else None
        self.resumes = again is not None and again.code == 0
        trace = (place / "trace").read_text().splitlines()
        shutil.rmtree(place)
        return trace


# ---- faults ----

# What a call says when it fails. Several errors: each is a fault of its own. 0: a write that writes half.
ERRORS = {"memory": ["ENOMEM"], "stream": ["ENOMEM"], "write": ["ENOSPC", "half"], "sync": ["EIO"], "rename": ["EIO"],
          "remove": ["EIO"], "make": ["ENOSPC"], "size": ["ENOSPC"], "stat": ["EIO"], "read": ["EIO"], "open": ["EMFILE"],
          "close": ["EIO"], "map": ["ENOMEM"], "socket": ["ENOBUFS"], "wait": ["ENOMEM"], "process": ["EAGAIN"],
          "zmq": ["ENOMEM"],
          "__getdelim": ["EIO", "ENOMEM"], "socketpair": ["EMFILE"], "zmq_socket": ["EMFILE"], "zmq_bind": ["EADDRINUSE"],
          "zmq_setsockopt": ["EINVAL"], "sched_setscheduler": ["EPERM"], "recvmsg": ["ENOMEM"], "execl": ["ENOMEM"]}


@dataclasses.dataclass(frozen=True)
class Fault:
    scenario: str
    role: str
    kind: str
    function: str
    place: str
    number: int  # of the calls at this place
    error: str
    stack: tuple

    def environment(self, done):
        number = 0 if self.error == "half" else getattr(errno, self.error)
        return {"LD_PRELOAD": str(PRELOAD), "FAIL_CALL": f"{self.role}:{self.place}:{self.number}:{number}",
                "FAIL_CALL_DONE": str(done)}

    def __str__(self):
        return f"{self.scenario} {self.role} {self.kind} {self.function} #{self.number} {self.error} at {where(self.stack)}"


# The calls whose failure may tear a file.
TEARING = ("write", "sync", "rename", "remove", "size", "make")


def chosen_numbers(kind, stack, count):
    """Which of a place's calls fail. A library's calls look alike, whoever called it."""
    numbers = {1, count}
    if kind in TEARING:
        numbers |= {2, 3, (count + 1) // 2}
    if not stack[-1].startswith(("+", "libcoalesced-")):
        numbers |= set(range(1, count, max(1, count // 30)))
    return sorted(number for number in numbers if number <= count)


def alike(stage, role):
    """Whether a process of a lower number does the same work: observers, and trainers beside the first."""
    name, _, number = role.partition(".")
    lowest = {"observer": 1, "trainer": JOBS[stage.scenario.job].get("server", {}).get("count", 1)}.get(name)
    return lowest is not None and int(number) > lowest


def faults_of(stage):
    """Every fault of the trace, in the order of the first calls."""
    counts, most = collections.Counter(), {}
    for line in stage.trace:
        pid, role, kind, function, place, *stack = line.split(" ")
        if alike(stage, role):
            continue
        counts[pid, role, place] += 1
        key = (role, kind, function, place, tuple(stack))
        most[key] = max(most.get(key, 0), counts[pid, role, place])
    return [Fault(stage.name, role, kind, function, place, number, error, stack)
            for (role, kind, function, place, stack), count in most.items() for number in chosen_numbers(kind, stack, count)
            for error in ERRORS.get(function, ERRORS[kind])]


SYMBOLS = {}  # by frame


def learn_symbols(faults):
    """Asks for the names of all functions at once: addr2line reads the program's lines anew for each call."""
    for part, file in (("", DAEMON), ("libcoalesced-", BUILD / "libcoalesced-onednn.so")):
        frames = sorted({frame for fault in faults for frame in fault.stack if frame.startswith(f"{part}+")})
        asked = "".join(f"{int(frame.partition('+')[2], 16) - 1:x}\n" for frame in frames)
        said = subprocess.run(["addr2line", "-f", "-s", "-e", str(file)], input=asked, capture_output=True, text=True,
                              check=False).stdout.splitlines()
        for frame, function, line in zip(frames, said[::2], said[1::2]):
            SYMBOLS[frame] = f"{function} ({line.split(' ')[0]})"


def where(stack):
    """The functions of a stack, innermost first."""
    return " < ".join(SYMBOLS.get(frame, frame) for frame in stack[:5])


# ---- judging ----

def logs_of(folder):
    """What two runs of a job have in common: the records without `timing`, and episodes.log without rates."""
    lines = []
    if not (folder / "episodes.jsonl").exists():
        return None
    for text in (folder / "episodes.jsonl").read_text().splitlines():
        line = json.loads(text)
        line.pop("timing", None)
        if "event" not in line:
            lines.append(line)
    text = (folder / "episodes.log").read_text() if (folder / "episodes.log").exists() else ""
    return lines, re.sub(r"\t[A-Z][a-z]+/s: [0-9.]+", "", text)


def judge_logs(folder):
    for name in ("episodes.jsonl", "episodes.log"):
        text = (folder / name).read_bytes() if (folder / name).exists() else b""
        if text and not text.endswith(b"\n"):
            yield f"{name} ends in half a line"
    try:
        logs_of(folder)
    except ValueError as error:
        yield f"episodes.jsonl has a line that is not JSON: {error}"
    if (folder / "job.json").exists():
        try:
            json.loads((folder / "job.json").read_text())
        except ValueError as error:
            yield f"job.json is torn: {error}"


def judge_checkpoints(folder):
    for checkpoint in sorted((folder / "checkpoints").glob("*")):
        if checkpoint.name.endswith(".tmp"):
            continue
        try:
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            for name, facts in manifest["files"].items():
                if hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() != facts["sha256"]:
                    yield f"{checkpoint.name}/{name} is not what the manifest says"
        except (OSError, ValueError, KeyError) as error:
            yield f"{checkpoint.name} is torn: {error!r}"


def judge_words(outcome):
    """The message of a failed command."""
    lines = [line for line in outcome.err.splitlines() if line.strip()]
    if not lines:
        yield "it says nothing"
    for line in lines:
        if re.search(r"\(null\)|: Success\b|Assertion|no heartbeat|unknown status|by signal \d+|: *$", line):
            yield f"it says: {line}"


def judge_end(stage, outcome, place):
    if outcome.code is None:
        yield f"it hangs; last words: {outcome.err[-300:]}"
        return
    if outcome.code not in DOCUMENTED:
        yield f"exit code {outcome.code}"
    if outcome.code != stage.code:
        yield from judge_words(outcome)
    elif outcome.out != stage.out and not stage.scenario.begins:
        yield "other output, and the same exit code"
    elif stage.scenario.begins and logs_of(place / "run") != stage.logs:
        yield "other logs, and exit code 0"
    yield from (f"a process is left: {name}" for name in outcome.left)
    yield from (f"a socket is left, and no line says so: {path.name}" for path in (place / "sockets").iterdir()
                if not re.search(f"cannot remove .*{re.escape(path.name)}", outcome.err))


def judge_going_on(stage, place):
    """The next start is right again."""
    resumes = stage.resumes and (place / "run/job.json").exists()
    again = run(place, stage.words(RUN) + (["--resume"] if resumes else []))
    if again.code != 0:
        yield f"the next start{' (--resume)' if resumes else ''} ends with {again.code}: {again.err[-300:]}"
    elif logs_of(place / "run") != stage.logs:
        yield f"the next start{' (--resume)' if resumes else ''} ends with other logs"


@dataclasses.dataclass
class Verdict:
    fault: Fault
    reached: bool
    code: int
    seconds: float
    words: str
    findings: list


def inject(stage, fault):
    place = stage.place()
    try:
        outcome = run(place, stage.words(stage.scenario.words), fault.environment(place / "done"))
        reached = (place / "done").exists()
        findings = [*judge_logs(place / "run")]
        if not findings:
            findings += [*judge_end(stage, outcome, place), *judge_checkpoints(place / "run")]
            if stage.scenario.begins and reached and outcome.code != stage.code:
                findings += judge_going_on(stage, place)
        words = " | ".join(outcome.err.splitlines()[-3:])
        return Verdict(fault, reached, outcome.code, outcome.seconds, words, findings)
    finally:
        shutil.rmtree(place, ignore_errors=True)


# ---- the command ----

def tell_finding(verdict):
    if verdict.findings:
        print(f"FOUND {verdict.fault}\n    exit code {verdict.code}, {verdict.seconds:.1f} s: {verdict.words}", flush=True)
        for finding in verdict.findings:
            print(f"    {finding}", flush=True)


def tell_sums(verdicts):
    table = collections.defaultdict(lambda: [0, 0, 0])
    for verdict in verdicts:
        row = table[verdict.fault.scenario, verdict.fault.role]
        row[0] += verdict.reached
        row[1] += not verdict.reached
        row[2] += bool(verdict.findings)
    for (scenario, role), (reached, missed, found) in table.items():
        print(f"{scenario:16} {role:12} {reached:5} faults, {missed} not reached, {found} findings", flush=True)


def write_result(path, verdict):
    fault = verdict.fault
    words = [fault.scenario, fault.role, fault.kind, fault.function, str(fault.number), fault.error, where(fault.stack),
             str(verdict.reached), str(verdict.code), f"{verdict.seconds:.2f}", "; ".join(verdict.findings), verdict.words]
    with open(path, "a", encoding="utf-8") as file:
        file.write("\t".join(words).replace("\n", " ") + "\n")


# Faults that were not borne once are in every sample.
FOUND_BEFORE = (r"^schema schema memory malloc #1 .*libcjson", r"^reinforce run write .* half at \S* .*rundir_lock",
                r"^reinforce run socket sendmsg #1 .*generation_connect", r"^reinforce run socket recvmsg #1 ",
                r"^reinforce run remove unlink #1 EIO at file_remove_or_warn .*status_socket_close",
                r"^reinforce agent.0 zmq .*session_welcome", r"^pictures trainer.1 memory malloc #1 .*libpng",
                r"^generate generate memory malloc #1 .*job_read_file", r"^reinforce observer.1 zmq .*send_request",
                r"^resume-shared trainer.2 memory aligned_alloc .*loader_allocate", r"^check-images check read read #1 EIO at libz",
                r"^resume-shared run read __getdelim #1 ENOMEM .*log_file_cut",
                r"^resume-shared run read \S+ #1 EIO .*log_file_run_id")


def found_before(name, faults):
    """The first fault that each pattern of the scenario matches. A pattern whose function was renamed ends the test."""
    patterns = [pattern for pattern in FOUND_BEFORE if pattern.startswith(f"^{name} ")]
    firsts = [next((fault for fault in faults if re.search(pattern, str(fault))), None) for pattern in patterns]
    if None in firsts:
        sys.exit(f"faults: FOUND_BEFORE: no call matches {patterns[firsts.index(None)]}")
    return firsts


def test_scenario(name, options):
    """Injects the chosen faults; their verdicts."""
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        stage = Stage(name, pathlib.Path(scratch))
        faults = faults_of(stage)
        print(f"{name}: {len(stage.trace)} calls, {len(faults)} faults", flush=True)
        learn_symbols(faults)
        before = found_before(name, faults)
        faults = [fault for fault in faults if re.search(options.only, str(fault))]
        if not faults:
            sys.exit(f"faults.py: {name}: no fault matches --only {options.only}")
        if not options.all and len(faults) > options.sample:
            faults = random.Random(13).sample(faults, options.sample) + before
        verdicts = []
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for verdict in pool.map(lambda fault: inject(stage, fault), faults):
                verdicts.append(verdict)
                tell_finding(verdict)
                if options.results:
                    write_result(options.results, verdict)
        return verdicts


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s SCENARIO... [--all | --sample N] [--jobs N] [--only REGEX] [--results FILE]")
    parser.add_argument("scenarios", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--results")
    options = parser.parse_args()
    if options.list:
        print("\n".join(SCENARIOS))
        return 0
    verdicts = [verdict for name in options.scenarios or SCENARIOS for verdict in test_scenario(name, options)]
    tell_sums(verdicts)
    if 2 * sum(verdict.reached for verdict in verdicts) < len(verdicts):
        sys.exit("faults: more than half of the faults were not reached: the test tests little")
    return int(any(verdict.findings for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
