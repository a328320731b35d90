#!/usr/bin/env python3
"""The peer: trains PufferLib's own CartPole by PufferLib's PPO, in one process, with a job's hyper-parameters.

    ppo_pufferlib.py JOB.json [--seed N] [--steps N]

Environments, rollout, minibatches, epochs, discount, learning rate, clipping, coefficients and the width of the one
hidden layer are the job's. PufferLib has its own way in the rest, which it cannot be told: it draws segments of a rollout
by their advantages (with exponent 0 here: all alike), corrects advantages by V-trace, lets the learning rate fall as a
cosine, and has the activation GELU. Its CartPole is in C, ends an episode after 200 steps, and does not tell truncation
from termination. Adam is the optimizer. PyTorch has one thread, and all runs on the CPU.

The last line is for programs: the steps, the CPU seconds of training without imports, and steps per CPU second.
"""
import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings


def settings_of(pufferl, job, steps, seed):
    """PufferLib's defaults, with the job's values in place of its own."""
    settings = pufferl.load_config("puffer_cartpole")["train"]
    group, count = job["algorithm"], job["observers"]["environments"]
    settings.update(
        device="cpu",
        optimizer="adam",
        seed=seed,
        torch_deterministic=False,
        use_rnn=False,
        env="puffer_cartpole",
        total_timesteps=steps,
        batch_size=count * group["n_steps"],
        bptt_horizon=group["n_steps"],
        minibatch_size=group["batch_size"],
        max_minibatch_size=group["batch_size"],
        update_epochs=group["n_epochs"],
        gamma=group["gamma"],
        gae_lambda=group["gae_lambda"],
        learning_rate=group["learning_rate"],
        clip_coef=group["clip_range"],
        vf_clip_coef=group["clip_range_vf"],
        vf_coef=group["vf_coef"],
        ent_coef=group["ent_coef"],
        max_grad_norm=group["max_grad_norm"],
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_eps=1e-5,
        prio_alpha=0.0,
        checkpoint_interval=10**9,
    )
    return settings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    with open(arguments.job, encoding="utf-8") as file:
        job = json.load(file)
    steps = arguments.steps or job["stop"]["steps"]
    rollout = job["observers"]["environments"] * job["algorithm"]["n_steps"]
    if steps < rollout:
        parser.error(f"--steps: expected at least a rollout, {rollout}, got {steps}")
    # PufferLib takes a CUDA compiler in PATH for a GPU, reads the arguments as its own, and writes into the working
    # directory when it is imported.
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.environ["PATH"] = "/usr/bin:/bin"
    sys.argv = sys.argv[:1]
    warnings.filterwarnings("ignore")
    import torch
    import pufferlib.vector
    from pufferlib import pufferl
    from pufferlib.models import Default
    from pufferlib.ocean.cartpole.cartpole import Cartpole

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    environments = pufferlib.vector.make(
        Cartpole, env_kwargs={"num_envs": job["observers"]["environments"]}, backend=pufferlib.PufferEnv
    )
    policy = Default(environments.driver_env, hidden_size=job["policy"]["hidden"][0])
    lengths = []
    with contextlib.redirect_stdout(io.StringIO()):  # its dashboard
        trainer = pufferl.PuffeRL(settings_of(pufferl, job, steps, arguments.seed), environments, policy)
        begin = time.process_time()
        while trainer.global_step < steps:
            lengths = trainer.evaluate()["episode_length"][-100:]
            trainer.train()
        used = time.process_time() - begin
    print(
        f"peer ppo_pufferlib pufferlib={pufferlib.__version__} torch={torch.__version__} seed={arguments.seed} "
        f"steps={trainer.global_step} cpu_s={used:.1f} steps_per_cpu_s={trainer.global_step / used:.0f} "
        f"length={sum(lengths) / max(len(lengths), 1):.1f}",
        flush=True,
    )
    shutil.rmtree(folder)


# PufferLib's thread that watches the processor does not end by itself, not even after an error.
try:
    main()
except Exception:
    traceback.print_exc()
    os._exit(1)
os._exit(0)
