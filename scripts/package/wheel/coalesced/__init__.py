"""coalesced, a training daemon: this package starts the program, and reads what it has written.

    coalesced run job.json             the program, in a shell; `python -m coalesced run job.json` is the same

    from coalesced import load_policy, read_log
    policy = load_policy("runs/ppo-cartpole")          a run, or a checkpoint of a run
    action, state = policy.predict(observation)        Stable-Baselines3's predict
    log = read_log("runs/ppo-cartpole")                NumPy arrays by the log's names
    log["episode"], log["ep_rew_mean"]

The job's environment or trainer may be a class of one's own. `coalesced.protocols` says what it must have.
"""
from .log import read_log
from .policy import load_policy

__all__ = ["load_policy", "read_log"]
__version__ = "@VERSION@"
