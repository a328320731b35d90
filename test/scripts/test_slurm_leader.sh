#!/usr/bin/env bash
# scripts/slurm/job.sbatch on three nodes of a real Slurm, whose daemons this test starts: the leader's node is lost.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/scripts/slurm.bash
source "$here/slurm.bash"
# shellcheck source=test/scripts/slurm_nodes.bash
source "$here/slurm_nodes.bash"

# What the others say is lost with srun, which ran on that node.
loses_the_leader() {
    local n
    trains && n=$(node_of 0) && node_crash "$n" && goes_on_anew && node_up "$n"
}
# The leader lives on, and holds the lock of the run directory, until its node hears of the end of its job.
loses_the_leaders_cable() {
    local n
    trains && n=$(node_of 0) && ip link set "ve$n" down && wait_for yes says_yes 'an earlier start still runs' &&
        ip link set "ve$n" up && goes_on_anew
}

check "the leader's node crashes: the others put the job back, and it goes on" loses_the_leader
check "the leader's cable is pulled: no two leaders" loses_the_leaders_cable

finish
