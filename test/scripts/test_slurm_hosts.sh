#!/usr/bin/env bash
# scripts/slurm/job.sbatch, and srun, on three nodes of a real Slurm, whose daemons this test starts: a node that crashes,
# a cable, the time limit, scancel.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/scripts/slurm.bash
source "$here/slurm.bash"
# shellcheck source=test/scripts/slurm_nodes.bash
source "$here/slurm_nodes.bash"

runs_by_srun() {
    timeout 90 srun -N3 --mpi=pmi2 "$COALESCED" run job.json --set /stop/episodes=100 &>srun.out && is_sound &&
        [[ $(tail -1 ours) == '{"episode":100,'* ]] && grep -q 'host 2 takes part' srun.out
}
runs_by_folder() {
    export SLURM_MPI_TYPE=none
    trains && trains_on && scancel --signal=TERM "$(cat "$scratch/job")" && wait_for COMPLETED state && is_sound &&
        [[ ! -e runs/run/hosts ]]
}
loses_a_node() {
    local n
    trains && n=$(node_of 2) && node_crash "$n" && wait_for yes says_yes "host 2 (node$n) is lost" && goes_on &&
        node_up "$n"
}
loses_a_cable() {
    local n
    trains && n=$(node_of 1) && ip link set "ve$n" down && wait_for yes says_yes "host 1 (node$n) is lost" &&
        ip link set "ve$n" up && wait_for yes says_yes "host 1 (node$n) is back" && goes_on
}
is_out_of_time() {
    trains && scancel --signal=USR1 --batch "$(cat "$scratch/job")" && wait_for PENDING state &&
        says 'out of time: the job goes back to the queue' && [[ $(has_stopped) == yes ]] && goes_on_anew
}
is_cancelled() {
    trains && scancel "$(cat "$scratch/job")" && wait_for CANCELLED state && wait_for yes has_stopped && is_sound &&
        ! says 'goes back to the queue' && ! says hurrying
}

check "srun: three nodes give the log of one machine" runs_by_srun
check "hosts that find each other through the run directory" runs_by_folder
check "a node crashes" loses_a_node
check "a cable is pulled, and put back" loses_a_cable
check "a job that is out of time goes back to the queue, and goes on" is_out_of_time
check "a job is cancelled: the round is finished" is_cancelled

finish
