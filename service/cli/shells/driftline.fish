# Completion of driftline for fish. Keep it as ~/.config/fish/completions/driftline.fish, or load it:
#   driftline completion fish | source

function __driftline_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l answer ($before[1] _complete $before[2..-1] $current 2>/dev/null)
    if string match --quiet ':files*' -- $answer[1]
        __fish_complete_path $current
    else
        string join \n -- $answer
    end
end

complete --command driftline --no-files --arguments '(__driftline_complete)'
