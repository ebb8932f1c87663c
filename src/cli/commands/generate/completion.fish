# Completion of kithfs for fish. The program is asked at each completion.

function __kithfs_answers
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    KITHFS_COMPLETE=fish kithfs -- $words (commandline --current-token --cut-at-cursor) 2>/dev/null
end

function __kithfs_wants_file
    string match --quiet -- '*//files' (__kithfs_answers)
end

# Fish completes files, as it can quote their names.
complete --command kithfs --condition __kithfs_wants_file --force-files
complete --command kithfs --condition 'not __kithfs_wants_file' --no-files --keep-order --arguments '(__kithfs_answers)'
