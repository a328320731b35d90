"""Compares coalesced.load_policy with ONNX, for test_load_policy.sh.

    load_policy.py onnx FOLDER RUN...    NumPy beside onnxruntime, which reads RUN.onnx; keeps what they saw in FOLDER
    load_policy.py torch FOLDER RUN...   PyTorch beside what is kept
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../scripts/package/wheel"))
from coalesced import load_policy, read_log

ROWS, STEPS = 5, 3
CLOSE = 2e-5  # of the largest output: the sums of a convolution over images of bytes have other orders


def observations_of(policy):
    space, draws = policy.environment["observation"], np.random.default_rng(1)
    shape = (STEPS, ROWS, *space["shape"])
    if space["dtype"] == "uint8":
        return draws.integers(0, 256, shape).astype(np.uint8)
    return draws.normal(size=shape).astype(np.float32)


def play(policy, observations):
    """The outputs of some steps of several environments, whose memories go on."""
    state, steps = policy.network.zero_state(ROWS), []
    for batch in observations:
        outputs = policy._outputs(batch, state)
        steps.append({name: np.array(values) for name, values in outputs.items()})
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def play_onnx(path, observations):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    state = {one.name: np.zeros((one.shape[0], ROWS, one.shape[2]), np.float32) for one in session.get_inputs()[1:]}
    names, steps = [one.name for one in session.get_outputs()], []
    for batch in observations:
        outputs = dict(zip(names, session.run(None, {"observations": batch, **state})))
        state = {name: outputs.pop(name + "_out") for name in state}
        steps.append(outputs)
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def compare(run, ours, theirs):
    assert set(ours) == set(theirs), f"{run}: {sorted(ours)}, expected {sorted(theirs)}"
    for name, values in theirs.items():
        worst = np.max(np.abs(ours[name] - values)) / max(np.max(np.abs(values)), 1)
        assert ours[name].shape == values.shape and worst <= CLOSE, f"{run}: {name}: {worst:.2g} apart"


def check_predict(run, policy, observations):
    """One observation and a batch, and the bounds of what is drawn."""
    action = policy.environment["action"]
    batch, state = policy.predict(observations[0])
    one, _ = policy.predict(observations[0][0])
    assert np.array_equal(batch[0], one) and list(one.shape) == action["shape"], (run, batch, one)
    again, _ = policy.predict(observations[1], state, episode_start=np.ones(ROWS, bool))
    fresh, _ = policy.predict(observations[1])
    assert np.array_equal(again, fresh), f"{run}: an episode that begins remembers the one before"
    drawn = np.stack([policy.predict(observations[0], deterministic=False)[0] for _ in range(50)])
    if "choices" in action:
        assert np.all(drawn >= 0) and np.all(drawn < action["choices"]), run
    else:
        assert np.all(drawn >= action["low"]) and np.all(drawn <= action["high"]), run


def main(how, folder, *runs):
    for run in runs:
        kept = os.path.join(folder, os.path.basename(run) + ".npz")
        policy = load_policy(run, torch=how == "torch")
        observations = observations_of(policy)
        ours = play(policy, observations)
        if how == "onnx":
            compare(run, ours, play_onnx(run + ".onnx", observations))
            np.savez(kept, **ours)
        else:
            compare(run, ours, dict(np.load(kept)))
            import torch

            names = dict(policy.named_parameters())
            assert names and isinstance(policy, torch.nn.Module) and set(names) <= set(policy.state_dict())
            import copy

            other = copy.deepcopy(policy)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            compare(run, play(policy, observations), ours)
            sum(output.sum() for output in policy(observations[0]).values()).backward()
            assert any(parameter.grad is not None for parameter in names.values()), f"{run}: no gradient"
        check_predict(run, policy, observations)
        assert np.all(np.isfinite(read_log(run)["running_reward"])), run


if __name__ == "__main__":
    main(*sys.argv[1:])
