#!/usr/bin/env python3
"""The peer: trains a job file of coalesced's that has a text with PyTorch in one process.

    language_model.py JOB.json [--text FILE] [--seed N] [--epochs N] [--threads N] [--updates N]

Reads a model-parallel job on text (config/rnn-text.json) and trains the same model on the same words in the same
settings: the words, the vocabulary and the batches of worker/data/corpus.h, dropout, the LSTM's state carried from
batch to batch and reset with each epoch, a clipped gradient norm, SGD, and a learning rate that falls when the
held-out loss does not. Initial values and dropout are PyTorch's own draws. --text names a text in place of the job's;
--updates ends an epoch early, for a trial.

A line per epoch has the held-out perplexity. The last line is for programs: the held-out perplexity of each epoch,
the unigram model's, the seconds of training and evaluation without the start of Python, and the process's peak
memory (VmHWM) in MiB.
"""
import argparse
import collections
import itertools
import json
import math
import os
import re
import time

import torch
from memory import peak_mib
from rnn_model import Model

UNKNOWN, END_OF_LINE = "<unk>", "<eos>"
SPACES = re.compile("[\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
MARK = "[!-/:-@\\[-`{-~\xa1\xa7\xab\xb6\xb7\xbb\xbf\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3011]"
BEGINNING, MARKS_AT_END = re.compile(f"{UNKNOWN}|{END_OF_LINE}|{MARK}"), re.compile(f"{MARK}*$")


def words_of(line):
    """A line's tokens without its end, by the rule of worker/data/tokenize.h."""
    words = []
    for run in filter(None, SPACES.split(line)):
        at = 0
        while found := BEGINNING.match(run, at):
            words.append(found.group())
            at = found.end()
        end = MARKS_AT_END.search(run, at).start()
        words += [run[at:end]] * (end > at) + list(run[end:])
    return words


def read_text(path, job):
    """The vocabulary, and the training and held-out text as tensors of word numbers."""
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        lines = [words + [END_OF_LINE] for words in map(words_of, file) if words]
    split = len(lines) - min(math.floor(job["data"]["held_out"] * len(lines)), len(lines) - 1)
    splits = [list(itertools.chain.from_iterable(split)) for split in (lines[:split], lines[split:])]
    counts = collections.Counter(splits[0])
    kept = [word for word, count in counts.items() if count >= job["data"]["minimum_count"]]
    kept = sorted(set(kept) - {UNKNOWN, END_OF_LINE}, key=lambda word: (-counts[word], word.encode()))
    number = {word: i for i, word in enumerate([UNKNOWN, END_OF_LINE, *kept])}
    return list(number), [torch.tensor([number.get(word, 0) for word in split]) for split in splits]


def unigram_perplexity(size, training, held_out):
    counts = torch.bincount(training, minlength=size).double() + 1
    return (-(counts / counts.sum()).log()[held_out].mean()).exp().item()


def batches(split, columns, steps):
    """Tokens and targets, (steps, columns) each."""
    rows = len(split) // columns
    split = split[: rows * columns].view(columns, rows).t().contiguous()
    for begin in range(0, rows - 1, steps):
        end = min(begin + steps, rows - 1)
        yield split[begin:end], split[begin + 1 : end + 1]


def loss_of(logits, target):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def train_epoch(job, model, optimizer, split, updates):
    columns = job["trainers"]["count"] * job["trainers"]["batch"]
    state = model.train().zero_state(columns)
    limit = job["optimizer"].get("max_norm") or math.inf
    for data, target in itertools.islice(batches(split, columns, job["data"]["steps"]), updates):
        optimizer.zero_grad()
        logits, state = model(data, tuple(half.detach() for half in state))
        loss_of(logits, target).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()


def evaluate(job, model, split):
    """The mean loss per target."""
    columns, total, count = job["evaluation"]["batch"], 0.0, 0
    state = model.eval().zero_state(columns)
    with torch.no_grad():
        for data, target in batches(split, columns, job["data"]["steps"]):
            logits, state = model(data, state)
            total += loss_of(logits, target).item() * target.numel()
            count += target.numel()
    return total / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--text")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--updates", type=int)
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    seed = job["seed"] if arguments.seed is None else arguments.seed
    epochs = arguments.epochs or job["stop"]["epochs"]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(seed)
    vocabulary, (training, held_out) = read_text(arguments.text or job["data"]["path"], job)
    unigram = unigram_perplexity(len(vocabulary), training, held_out)
    print(
        f"{len(vocabulary)} words, {len(training)} tokens and {len(held_out)} held out, unigram {unigram:.2f}",
        flush=True,
    )
    sizes = (job["model"][key] for key in ("embedding", "hidden", "layers", "dropout"))
    model = Model(len(vocabulary), *sizes)
    settings = job["optimizer"]
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=settings.get("momentum", 0))
    best, losses, began = math.inf, [], time.perf_counter()
    for epoch in range(1, epochs + 1):
        train_epoch(job, model, optimizer, training, arguments.updates)
        losses.append(evaluate(job, model, held_out))
        rate = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch}: perplexity {math.exp(losses[-1]):.2f}, lr {rate:g}", flush=True)
        if settings.get("schedule") == "plateau" and losses[-1] >= best:
            optimizer.param_groups[0]["lr"] *= settings["decay"]
        best = min(best, losses[-1])
    print(
        f"peer language_model torch={torch.__version__} threads={arguments.threads} seed={seed} epochs={epochs} "
        f"perplexity={','.join(f'{math.exp(loss):.3f}' for loss in losses)} unigram={unigram:.3f} "
        f"seconds={time.perf_counter() - began:.1f} peak_mib={peak_mib():.0f}"
    )


main()
