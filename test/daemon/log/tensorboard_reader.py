"""Reads a run's event files with TensorBoard's own loader, and compares them with its episodes.jsonl.

usage: tensorboard_reader.py RUN...    every run's events; exit 1 and a line for each difference

Each line of episodes.jsonl must have made one event of each of its tags, at its step and with its values, and there is
no other event. A value is a float there, and a rate has three decimals in the log. A line that was computed again after
a death has another rate than its event."""
import json
import math
import os
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PPO = {"ep_rew_mean": "rollout", "ep_len_mean": "rollout", "learning_rate": "train", "n_updates": "train",
       "policy_gradient_loss": "train", "policy_loss": "train", "value_loss": "train", "entropy_loss": "train",
       "explained_variance": "train", "std": "train", "approx_kl": "train", "clip_fraction": "train",
       "clip_range": "train"}


def figures(line):
    """The tags and values that a line of the log stands for."""
    timing = line["timing"]
    if "total_timesteps" in line:
        for key, group in PPO.items():
            if key in line:
                yield f"{group}/{key}", line[key]
        if "policy_loss" not in line:
            yield "train/loss", line["loss"]
        for key in ("mean_reward", "mean_ep_length", "success_rate"):
            if "eval" in line:
                yield f"eval/{key}", line["eval"][key]
    elif "episode" in line:
        yield "rollout/ep_rew_mean", line["running_reward"]
        yield "rollout/ep_rew", line["reward"]
        yield "train/loss", line["loss"]
    elif "epoch" not in line:
        yield "train/loss", line["loss"]
        yield "train/learning_rate", line["lr"]
        yield "time/samples_per_second", timing["samples_per_s"]
    elif line.get("held_out"):
        yield "eval/loss", line["held_out"]["loss"]
        yield "eval/perplexity", line["held_out"]["perplexity"]
    elif line.get("evaluated"):
        yield "eval/loss", line["test_loss"]
        yield "eval/accuracy", line["accuracy"]
    if "episode" in line:
        yield "time/fps", timing["fps" if "total_timesteps" in line else "env_steps_per_s"]
        yield from line.get("metrics", {}).items()


def single(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def same(tag, value, wanted):
    return math.isclose(value, wanted, rel_tol=1e-3, abs_tol=0.06) if tag.startswith("time/") else value == single(wanted)


def compare(run):
    accumulator = EventAccumulator(os.path.join(run, "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    found = {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
             for tag in accumulator.Tags()["scalars"]}
    wanted, resumed = {}, False
    with open(os.path.join(run, "episodes.jsonl"), encoding="utf-8") as log:
        for line in map(json.loads, log):
            if "event" in line:
                resumed |= line["event"] == "resumed"
                continue
            step = line.get("total_timesteps", line.get("episode", line.get("update")))
            for tag, value in figures(line):
                if value is not None:
                    wanted.setdefault(tag, []).append((step, value))
    faults = [f"{run}: tags {sorted(found)}, expected {sorted(wanted)}"] if set(found) != set(wanted) else []
    for tag in set(found) & set(wanted):
        alike = len(found[tag]) == len(wanted[tag]) and all(
            a[0] == b[0] and (same(tag, a[1], b[1]) or resumed and tag.startswith("time/")) for a, b in zip(found[tag], wanted[tag]))
        if not alike:
            faults.append(f"{run}: {tag}: {found[tag]}, expected {wanted[tag]}")
    if not wanted:
        faults.append(f"{run}: the log is empty")
    return faults


if __name__ == "__main__":
    problems = [fault for run in sys.argv[1:] for fault in compare(run)]
    print("\n".join(problems), end="")
    sys.exit(1 if problems else 0)
