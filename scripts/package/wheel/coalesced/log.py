"""Reads the log of a run."""
import json
import os

import numpy as np


def read_log(run):
    """The lines of RUN/episodes.jsonl, which stand for an episode or an update each, as a dict of float64 arrays of one
    length. Figures within others have joined names: "eval.mean_reward", "timing.steps_per_s". NaN: the line has no such
    figure. `run`: the run's folder."""
    rows = []
    with open(os.path.join(run, "episodes.jsonl"), encoding="utf-8") as file:
        for line in file:
            row = parse(line)
            if row is not None and "event" not in row:
                rows.append(dict(flat(row)))
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: np.array([row.get(name, np.nan) for row in rows], np.float64) for name in names}


def parse(line):
    """A line of a running job may be cut."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def flat(row, prefix=""):
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, (int, float)):
            yield prefix + name, np.nan if value is None else float(value)
