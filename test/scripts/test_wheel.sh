#!/usr/bin/env bash
# Builds the Python package, and installs it with pip, without root, apt or a compiler, in a bare Debian that has Python and
# none of the libraries (test/scripts/debian.bash). There jobs train, in C and in Python; policies and logs are read.
# test_load_policy.sh compares the policies.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/scripts/debian.bash
source "$here/debian.bash"

[[ -z ${SAN:-} ]] || skip "the package is a release build"
cd "$here/../.."
[[ -x build/wheel-venv/bin/auditwheel ]] || skip "auditwheel is not installed (scripts/deps wheel)"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed (scripts/deps wheel)"
[[ $EUID -eq 0 ]] || skip "no Debian can be made without root"

root=$scratch/root
version=$(sed -n 's/^VERSION := //p' Makefile)
wheel=coalesced-$version-py3-none-manylinux_2_36_x86_64.whl

builds() {
    mkdir "$scratch/wheels"
    scripts/package/wheel/build "$version" "$scratch/wheels" 2>"$scratch/words" || { cat "$scratch/words"; return 1; }
    [[ -s $scratch/wheels/$wheel ]]
}
brings_its_libraries() {
    local names
    names=$(python3 -m zipfile -l "$scratch/wheels/$wheel")
    grep -q 'coalesced.libs/libzmq' <<<"$names" && grep -q 'dist-info/licenses/libzmq5' <<<"$names" &&
        grep -q 'dist-info/licenses/LICENSE' <<<"$names" && ! grep -q cuda <<<"$names"
}
# The bare Debian has no network: pip finds the packages in a folder.
gathers_packages() {
    build/wheel-venv/bin/pip download --quiet --only-binary=:all: --dest "$scratch/wheels" numpy gymnasium pyzmq pettingzoo
}
# shellcheck disable=SC2016 # expanded in the Debian
# as_user COMMAND...: in the Debian, as nobody, with the environment of the package first in PATH.
as_user() {
    within setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/home/user PATH=/home/user/venv/bin:/usr/bin:/bin \
        sh -c 'cd "$HOME" && exec "$@"' sh "$@"
}
installs() {
    mkdir -p "$root/home/user" && cp -r "$scratch/wheels" "$root/wheels" && chown 65534:65534 "$root/home/user" &&
        as_user python3 -m venv venv &&
        as_user pip install --quiet --no-index --find-links /wheels 'coalesced[gymnasium,pettingzoo]'
}

check "the package is built" builds
check "it has the libraries and their licences" brings_its_libraries
check "the packages that it asks for" gathers_packages
make_debian "$root"
check "pip installs it in a bare Debian, as nobody" installs

# user_file NAME: of the user's folder, from standard input.
user_file() {
    cat >"$root/home/user/$1"
}
user_file pole.json <<'JSON'
{"kind": "reinforce", "observers": {"count": 0, "environments": 8}, "environment": {"name": "CartPole-v1"},
 "algorithm": {"name": "ppo", "n_steps": 64}, "stop": {"steps": 10240}}
JSON
user_file images.json <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "data": {"size": 16}, "stop": {"updates": 3}}
JSON
user_file gym.json <<'JSON'
{"kind": "reinforce", "observers": {"count": 1, "environments": 4}, "environment": {"gymnasium": "CartPole-v1"},
 "algorithm": {"name": "ppo", "n_steps": 32}, "evaluation": {"every": 4, "episodes": 3}, "stop": {"steps": 1024}}
JSON
user_file own.json <<'JSON'
{"kind": "reinforce", "observers": {"count": 1, "environments": 4}, "environment": {"class": "corridor:Corridor"},
 "algorithm": {"name": "ppo", "n_steps": 32}, "stop": {"steps": 1024}}
JSON
user_file corridor.py <<'PYTHON'
import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({"place": gymnasium.spaces.Discrete(6)})
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(0, 5))
        return {"place": self.place}, {}

    def step(self, action):
        self.place = max(self.place + (1 if action else -1), 0)
        return {"place": self.place}, -0.1, self.place == 5, False, {}
PYTHON
user_file reads.py <<'PYTHON'
import coalesced
import coalesced.protocols
import numpy as np

policy = coalesced.load_policy("runs/pole")
action, state = policy.predict(np.zeros(4, np.float32))
assert action in (0, 1) and state is None and type(policy).__name__ == "NumpyPolicy", (action, state, policy)
log = coalesced.read_log("runs/pole")
assert len(log["episode"]) == 20 and np.all(np.diff(log["total_timesteps"]) == 512), log
PYTHON
trains() {
    as_user coalesced run "$1.json" >"$scratch/words" 2>&1 || { cat "$scratch/words"; return 1; }
}
check "a job in C trains" trains pole
check "a parameter server, by oneDNN" trains images
check "an id of Gymnasium's, with the package's own interpreter" trains gym
check "a class of one's own" trains own
evaluates() {
    as_user python -m coalesced evaluate "runs/$1" --episodes 2 | grep -q '^Mean reward: '
}
check "python -m coalesced evaluates it" evaluates own
check "and a policy in C" evaluates pole
check "Python reads policy and log" as_user python reads.py
shows_its_version() {
    [[ $(as_user coalesced --version) == "coalesced $version" ]]
}
check "coalesced --version" shows_its_version

finish
