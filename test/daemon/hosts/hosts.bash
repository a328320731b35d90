# Sourced by the shell tests of jobs on several hosts, behind test/shell.bash and runs.bash: supervisors on one machine,
# as if each were on a host of its own.
#
#   make_keys N                        keys for N hosts
#   start_hosts N KIND RUN LAST [ARGUMENT]...
#                                      starts them: host I's output is RUN.I, its process ${host[I]}
#   start_host I N KIND RUN LAST [ARGUMENT]...   starts one of them
#   end_hosts N                        waits for all; their exit codes in ${code[I]}
#   says FILE TEXT                     waits until the file has the text
#   workers_of PROCESS ROLE            the processes of its workers of that role

port=$first_port
declare -A host code

make_keys() {
    rm -rf "$scratch/keys" && "$COALESCED" keygen "$scratch/keys" --hosts "$1"
}

start_host() {
    local index=$1 count=$2 job
    job_arguments "${@:3}" --node "$index/$count" --leader "127.0.0.1:$port" --keys "$scratch/keys"
    "$COALESCED" run "${job[@]}" </dev/null >>"$4.$index" 2>&1 &
    host[$index]=$!
}

start_hosts() {
    local count=$1 i
    port=$((port + 1))
    for ((i = 0; i < count; i++)); do
        start_host "$i" "$@"
    done
}

end_hosts() {
    local i
    for ((i = 0; i < $1; i++)); do
        code[$i]=0
        wait "${host[$i]}" || code[$i]=$?
    done
}

says() {
    local end=$((SECONDS + 60))
    until grep -aq -- "$2" "$1" 2>/dev/null; do
        sleep 0.02
        if [[ $SECONDS -ge $end ]]; then
            printf '%s never says: %s\n' "$1" "$2"
            return 1
        fi
    done
}

workers_of() {
    pgrep -P "$1" -f -- "--role $2" || true
}
