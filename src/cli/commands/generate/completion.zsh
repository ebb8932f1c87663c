#compdef kithfs
# Completion of kithfs for zsh. The program is asked at each completion.

_kithfs() {
    local -a answers
    answers=("${(@f)$(
        KITHFS_COMPLETE=zsh _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((CURRENT - 1)) \
            kithfs -- "${(@Q)words[1,CURRENT]}" 2>/dev/null
    )}")
    # A file is wanted. Zsh completes files, as it can quote their names.
    if ((${answers[(I)*//files]})); then
        [[ $PREFIX != -* ]] || compset -P 1 '*='
        _files
        return
    fi
    [[ -n $answers ]] && _describe -V 'values' answers
}

# In a directory of $fpath, this file is the body of the function at its first call.
if [[ ${funcstack[1]} == _kithfs ]]; then
    _kithfs "$@"
else
    compdef _kithfs kithfs
fi
