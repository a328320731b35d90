# bash completion for coalesced: commands, options, job files, checkpoints, and the pointers of --set, which the
# program itself knows.

_coalesced_set() {
    local current=$1 equals=$2 pointer
    if [[ -z $equals ]]; then
        mapfile -t COMPREPLY < <(compgen -S = -W "$("${COMP_WORDS[0]}" schema pointers 2>/dev/null | cut -d ' ' -f 1)" \
            -- "$current")
        compopt -o nospace 2>/dev/null
    else
        pointer=$3
        mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" schema pointers 2>/dev/null |
            sed -n "s|^$pointer ||p")" -- "$current")
    fi
}

_coalesced() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'run keygen join check evaluate generate play export try status list stop clean page plot sweep forward schema --help --version' -- "$current")
        return
    fi
    # readline splits words at "=": --set /device = au
    if [[ $current == '=' && ${COMP_WORDS[COMP_CWORD - 2]} == --@(set|over) ]]; then
        _coalesced_set '' = "$previous"
        return
    elif [[ $previous == '=' && ${COMP_WORDS[COMP_CWORD - 3]} == --@(set|over) ]]; then
        _coalesced_set "$current" = "${COMP_WORDS[COMP_CWORD - 2]}"
        return
    fi
    case $previous in
        --stop)
            mapfile -t COMPREPLY < <(compgen -W 'median halving' -- "$current")
            return
            ;;
        --sampler)
            mapfile -t COMPREPLY < <(compgen -W 'grid random tpe' -- "$current")
            return
            ;;
        --set | --over)
            _coalesced_set "$current" ''
            return
            ;;
        --run-dir | --keys)
            compopt -o dirnames 2>/dev/null
            return
            ;;
        --episodes | --listen | --render | --words | --seed | --temperature | --name | --options | --steps | --limit-s | \
            --node | --leader | --hosts | --older-than | --observers | --trainers | --output | --x | --y | --parallel | --runs | --storage)
            return
            ;;
    esac
    local options=
    case $command in
        run) options='--set --run-dir --resume --profile --node --leader --keys --help' ;;
        keygen) options='--hosts --help' ;;
        join) options='--keys --observers --trainers --node --help' ;;
        check) options='--set --json --help' ;;
        evaluate) options='--set --episodes --help' ;;
        generate) options='--words --seed --temperature --help' ;;
        play) options='--episodes --sample --render --help' ;;
        export) options='--onnx --help' ;;
        try) options='--name --options --steps --seed --limit-s --help' ;;
        status) options='--watch --json --help' ;;
        list) options='--running --json --help' ;;
        stop) options='--help' ;;
        clean) options='--older-than --all --dry-run --help' ;;
        page) options='--listen --token --help' ;;
        plot) options='--output --x --y --help' ;;
        forward) options='--mlflow --wandb --once --help' ;;
        sweep) options='--over --sampler --runs --parallel --stop --storage --set --run-dir --resume --help' ;;
        schema) options='man pointers' ;;
    esac
    if [[ $current == -* || $command == schema ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
        return
    fi
    # Job files end in .json; a checkpoint is a folder, or a safetensors file; a plug-in ends in .so.
    compopt -o filenames 2>/dev/null
    if [[ $command == status ]]; then
        mapfile -t COMPREPLY < <(compgen -d -W "$("${COMP_WORDS[0]}" list 2>/dev/null | cut -f1)" -- "$current")
    elif [[ $command == stop ]]; then
        mapfile -t COMPREPLY < <(compgen -d -W "$("${COMP_WORDS[0]}" list --running 2>/dev/null | cut -f1)" -- "$current")
    elif [[ $command == list || $command == clean || $command == generate || $command == play || $command == export || $command == plot || $command == forward ]]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$current")
    elif [[ $command == try ]]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$current"; compgen -f -X '!*.so' -- "$current")
    elif [[ $command == evaluate ]]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$current"; compgen -f -X '!*.@(json|safetensors)' -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -d -- "$current"; compgen -f -X '!*.json' -- "$current")
    fi
}
complete -F _coalesced coalesced
