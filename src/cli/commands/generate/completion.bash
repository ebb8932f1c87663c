# Completion of kithfs for bash. The program is asked at each completion.

_kithfs() {
    # Bash also splits words at `=` and `:`. Words without a blank between them are one word.
    local line=${COMP_LINE:0:COMP_POINT} words=() before= word blank i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        blank=${line%%[![:space:]]*}
        line=${line#"$blank"}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$line
        if ((i == 0)) || [[ $blank ]]; then
            before= words+=("$word")
        else
            before=${words[-1]} words[-1]+=$word
        fi
        line=${line#"$word"}
    done
    # After `--color=`, bash completes an empty word.
    [[ $word != [=:] ]] || before=${words[-1]}

    local answers answer
    mapfile -t answers < <(
        KITHFS_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
            kithfs -- "${words[@]}" 2>/dev/null
    )
    COMPREPLY=()
    for answer in "${answers[@]}"; do
        # A file is wanted. Readline completes files, as it can quote their names.
        if [[ $answer == *//files ]]; then
            COMPREPLY=()
            compopt -o default
            return
        fi
        [[ -z $answer ]] || COMPREPLY+=("${answer#"$before"}")
    done
}

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)); then
    complete -o nosort -F _kithfs kithfs
else
    complete -F _kithfs kithfs
fi
