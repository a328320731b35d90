# Sourced behind test/daemon/worlds.bash by the tests of environments in Python. $python is an interpreter with Gymnasium and
# PettingZoo; without one the test skips. The working folder becomes test/daemon/worlds, whose modules jobs name.

# shellcheck disable=SC2154 # the test's own folder
python=$(readlink -m "$here/../../build/gymnasium-venv/bin")/python # the link itself: it knows its packages
[[ -x $python ]] || skip "Gymnasium is not installed (scripts/deps gymnasium)"
COALESCED=$(readlink -f "$COALESCED")
cd "$here/worlds"
export PYTHONDONTWRITEBYTECODE=1
