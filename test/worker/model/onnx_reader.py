"""Checks exported models with ONNX's own checker, and computes them with onnxruntime.

usage: onnx_reader.py compare FOLDER        the models that test_onnx.c has written there, held to what it wrote beside
       onnx_reader.py weights MODEL FILE    the model's constants are the tensors of the safetensors file

A policy with memory plays the rows step by step, with its own states, where the file `starts` says which rows begin
an episode.

Exit 1 and a line for each difference. Outputs may differ from ours by 5e-6 of the largest one and 5e-6: the sums of
float32 have another order."""
import glob
import json
import math
import os
import sys

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime

BOUND = 5e-6
COLUMNS = 4  # environments of a policy with memory


def session_of(path):
    onnx.checker.check_model(onnx.load(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def beside(path, ending, dtype):
    name = f"{path.removesuffix('.onnx')}.{ending}"
    return np.fromfile(name, dtype) if os.path.exists(name) else None


def log_softmax(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def of_choices(logits, choices, actions):
    """The log-probability of each row's actions, and the most probable ones."""
    total, best, first = np.zeros(len(logits)), [], 0
    for component, count in enumerate(choices):
        part = log_softmax(logits[:, first:first + count])
        total += part[np.arange(len(part)), actions[:, component]]
        best.append(part.argmax(axis=1))
        first += count
    return total, np.stack(best, axis=1)


def of_floats(mean, std, actions):
    t = (actions - mean) / std
    return (-t * t / 2 - np.log(std) - math.log(2 * math.pi) / 2).sum(axis=1)


def states_of(outputs):
    """The states behind the last step, in our order: of each memory, of each layer, h and c: (columns, floats)."""
    memories = []
    for prefix in ("", "value_"):
        parts = [outputs[name] for name in (f"{prefix}h_out", f"{prefix}c_out") if name in outputs]
        memories += [part[layer] for layer in range(len(parts[0]) if parts else 0) for part in parts]
    return np.concatenate(memories, axis=1)


def play(session, batch, starts):
    """The outputs of all steps, and the states behind the last one."""
    inputs = {of.name: of for of in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    kept = [name for name in inputs if name != "observations"]
    assert [f"{name}_out" for name in kept] == [name for name in names if name.endswith("_out")], (kept, names)
    steps, columns = starts.shape
    states = {name: np.zeros([inputs[name].shape[0], columns, inputs[name].shape[2]], np.float32) for name in kept}
    seen = []
    for step in range(steps):
        for state in states.values():
            state[:, starts[step] != 0] = 0
        rows = batch[step * columns:(step + 1) * columns]
        outputs = dict(zip(names, session.run(names, {"observations": rows} | states)))
        states = {name: outputs[f"{name}_out"] for name in kept}
        seen.append(outputs)
    played = {name: np.concatenate([outputs[name] for outputs in seen]) for name in names if not name.endswith("_out")}
    return played | {f"{name}_out": state for name, state in states.items()}


def differences(path, outputs):
    """(what, ours, theirs) of everything that lies beside the model."""
    if (ours := beside(path, "logits", np.float32)) is not None:
        yield "logits", ours, outputs["logits"].reshape(-1).astype(float)
        return
    rows = len(next(iter(outputs.values())))
    choices = beside(path, "choices", np.uint32)
    chosen = beside(path, "chosen", np.float32 if choices is None else np.int32).reshape(rows, -1)
    drawn = beside(path, "drawn", chosen.dtype)
    drawn = None if drawn is None else drawn.reshape(rows, -1)
    wide = {name: value.astype(float) for name, value in outputs.items()}
    if choices is None:
        yield "the mean", chosen, wide["mean"]
    else:
        scores = wide["values"] if "values" in wide else wide["logits"]
        yield "the choice", chosen, of_choices(scores, choices, chosen)[1]
    if (ours := beside(path, "probabilities", np.float32)) is not None:
        yield "probabilities", ours.reshape(rows, -1), np.exp(log_softmax(wide["logits"]))
    if drawn is None:
        return
    theirs = of_floats(wide["mean"], wide["std"], drawn) if choices is None else \
        of_choices(wide["logits"], choices, drawn)[0]
    yield "log-probabilities", beside(path, "log_probabilities", np.float32), theirs
    yield "values", beside(path, "values", np.float32), wide["value"].reshape(-1)
    if (ours := beside(path, "states", np.float32)) is not None:
        theirs = states_of(wide)
        yield "states", ours.reshape(theirs.shape), theirs


def compare(folder):
    paths = sorted(glob.glob(os.path.join(folder, "*.onnx")))
    faults = [] if paths else [f"{folder}: no models"]
    for path in paths:
        session = session_of(path)
        of = session.get_inputs()[0]
        batch = beside(path, "observations", np.uint8 if of.type == "tensor(uint8)" else np.float32)
        batch = batch.reshape([-1] + list(of.shape[1:]))
        if (starts := beside(path, "starts", np.uint8)) is not None:
            outputs = play(session, batch, starts.reshape(-1, COLUMNS))
        else:
            names = [output.name for output in session.get_outputs()]
            outputs = dict(zip(names, session.run(names, {of.name: batch})))
            single = session.run(names, {of.name: batch[:1]})
            for name, row in zip(names, single):
                if not np.allclose(row, outputs[name][:1], rtol=1e-4, atol=1e-5):
                    faults.append(f"{path}: {name} of one row is not that of the batch")
        for what, ours, theirs in differences(path, outputs):
            worst = np.abs(ours.astype(float) - theirs).max()
            bound = 0 if ours.dtype == np.int32 else BOUND * np.abs(theirs).max() + BOUND
            print(f"{os.path.basename(path)}: {what} differ by {worst:.2g} of {np.abs(theirs).max():.3g}")
            if not worst <= bound:
                faults.append(f"{path}: {what} differ by {worst}, expected at most {bound}")
    return faults


def weights(path, file):
    with open(file, "rb") as tensors:
        header = json.loads(tensors.read(int.from_bytes(tensors.read(8), "little")))
        data = tensors.read()
    session_of(path)
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    faults = []
    for name, entry in header.items():
        if name.endswith("num_batches_tracked") or name in ("__metadata__", "obs_rms.var"):
            continue
        wanted = np.frombuffer(data[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        if name not in found or not np.array_equal(found[name].reshape(wanted.shape), wanted):
            faults.append(f"{path}: {name} is not that of {file}")
    return faults


if __name__ == "__main__":
    problems = compare(sys.argv[2]) if sys.argv[1] == "compare" else weights(sys.argv[2], sys.argv[3])
    print("\n".join(problems), end="")
    sys.exit(1 if problems else 0)
