"""load_policy beside the environment's own observations: predicts.py RUN CLASS, for test_python_spaces.sh.

An observation, a batch of them, their rows, and dicts of their parts must have the same actions.
"""
import os
import sys

import numpy as np

root = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../..")
sys.path.insert(0, os.path.join(root, "scripts/package/wheel"))
sys.path.insert(0, os.path.join(root, "worker/python"))
import nested
from coalesced import load_policy
from spaces import Space


def stack(members):
    """A batch of observations, as a vector of environments has it."""
    if isinstance(members[0], dict):
        return {key: stack([one[key] for one in members]) for key in members[0]}
    if isinstance(members[0], tuple):
        return tuple(stack(list(part)) for part in zip(*members))
    return np.stack([np.asarray(one) for one in members])


def main(run, name):
    env = getattr(nested, name)()
    seen, _ = env.reset(seed=1)
    observations = [seen] + [env.step(env.action_space.sample())[0] for _ in range(5)]
    policy = load_policy(run, torch=False, observation_space=env.observation_space)
    plain = load_policy(run, torch=False)
    batch, _ = policy.predict(stack(observations))
    convert = Space.of_observation(env.observation_space, 1).convert
    rows = np.stack([convert(one) for one in observations])
    outputs = policy(stack(observations))
    for i, one in enumerate(observations):
        assert np.array_equal(policy.predict(one)[0], batch[i]), (i, batch[i])
        assert np.array_equal(plain.predict(rows[i])[0], batch[i])
    assert np.array_equal(plain.predict(rows)[0], batch)
    for key, values in plain(rows).items():
        assert np.array_equal(values, outputs[key]), key
    assert len({str(values) for values in outputs["logits"]}) > 1, "every observation has the same outputs"
    parts, _ = policy._batch(stack(observations))
    assert np.array_equal(plain.predict(parts)[0], batch)
    for wrong in ({"nothing": 1}, rows[0][:-1]):
        try:
            plain.predict(wrong)
        except ValueError as why:
            assert "expected" in str(why), why
        else:
            raise AssertionError(wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
