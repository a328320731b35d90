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
    """Of each step a batch, which is a dict where the observation has parts."""
    space, draws = policy.environment["observation"], np.random.default_rng(1)

    def draw(space):
        shape = (ROWS, *space["shape"])
        if space["dtype"] == "uint8":
            return draws.integers(0, 256, shape).astype(np.uint8)
        return draws.normal(size=shape).astype(np.float32)

    if "parts" in space:
        return [{part["name"]: draw(part) for part in space["parts"]} for _ in range(STEPS)]
    return [draw(space) for _ in range(STEPS)]


def one_of(batch):
    return {name: one_of(part) for name, part in batch.items()} if isinstance(batch, dict) else batch[0]


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
    states = [one for one in session.get_inputs() if not one.name.startswith("observations")]
    state = {one.name: np.zeros((one.shape[0], ROWS, one.shape[2]), np.float32) for one in states}
    names, steps = [one.name for one in session.get_outputs()], []
    for batch in observations:
        inputs = {f"observations.{name}": part for name, part in batch.items()} if isinstance(batch, dict) else {"observations": batch}
        outputs = dict(zip(names, session.run(None, {**inputs, **state})))
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
    one, _ = policy.predict(one_of(observations[0]))
    assert np.array_equal(batch[0], one) and list(one.shape) == action["shape"], (run, batch, one)
    again, _ = policy.predict(observations[1], state, episode_start=np.ones(ROWS, bool))
    fresh, _ = policy.predict(observations[1])
    assert np.array_equal(again, fresh), f"{run}: an episode that begins remembers the one before"
    drawn = np.stack([policy.predict(observations[0], deterministic=False)[0] for _ in range(50)])
    if "choices" in action:
        assert np.all(drawn >= 0) and np.all(drawn < action["choices"]), run
    else:
        assert np.all(drawn >= action["low"]) and np.all(drawn <= action["high"]), run


def space_of(part):
    from gymnasium import spaces

    shape = tuple(part["shape"])
    if part["dtype"] == "uint8":
        return spaces.Box(0, 255, (shape[2], *shape[:2]), np.uint8)
    return spaces.Box(-np.inf, np.inf, shape or (1,), np.float32)


def check_sb3(run, policy, batch):
    """The parameters load into Stable-Baselines3's MultiInputPolicy, all of them under their names, and its outputs are
    ours. It keeps the policy's extractor under a second name, and a shared one under a third."""
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.policies import MultiInputActorCriticPolicy

    of_policy, shares = policy.job["policy"], policy.job["policy"]["value_network"] != "separate"
    parts = {part["name"]: part for part in policy.environment["observation"]["parts"]}
    space = spaces.Dict([(name, space_of(part)) for name, part in parts.items()])
    theirs = MultiInputActorCriticPolicy(space, spaces.Discrete(policy.environment["action"]["choices"]), lambda _: 1e-3,
        net_arch=of_policy["hidden"], share_features_extractor=shares,
        activation_fn={"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[of_policy["activation"]])  # fmt: skip
    ours = {name: values for name, values in policy.state_dict().items() if not name.startswith("obs_rms")}
    for name in [one for one in ours if one.startswith("features_extractor.")]:
        ours["pi_" + name] = ours[name]
        if shares:
            ours["vf_" + name] = ours[name]
    theirs.load_state_dict(ours, strict=True)
    seen = {name: batch[name].reshape(ROWS, *(part["shape"] or [1])) for name, part in parts.items()}
    seen = {name: torch.as_tensor(np.moveaxis(x, -1, 1).copy() if x.ndim == 4 else x) for name, x in seen.items()}
    with torch.no_grad():
        logits, value = theirs.get_distribution(seen).distribution.logits, theirs.predict_values(seen)
    found = {name: x.numpy() for name, x in (("logits", logits), ("value", value))}
    outputs = policy._outputs(batch, policy.network.zero_state(ROWS))
    outputs["logits"] = outputs["logits"] - np.log(np.exp(outputs["logits"]).sum(1, keepdims=True))
    compare(run, outputs, found)


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
            if os.path.basename(run) in ("parts-apart", "parts-shared"):
                try:
                    check_sb3(run, policy, observations[0])
                except ImportError as missing:
                    print(f"skipped: Stable-Baselines3 is not run: {missing}")
            sum(output.sum() for output in policy(observations[0]).values()).backward()
            assert any(parameter.grad is not None for parameter in names.values()), f"{run}: no gradient"
        check_predict(run, policy, observations)
        assert np.all(np.isfinite(read_log(run)["running_reward"])), run


if __name__ == "__main__":
    main(*sys.argv[1:])
