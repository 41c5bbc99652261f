# Completion of driftline for bash. Load it in ~/.bashrc:  source <(driftline completion bash)

_driftline() {
    local word="${COMP_WORDS[COMP_CWORD]}" before=("${COMP_WORDS[@]:1:COMP_CWORD-1}") answer IFS=$'\n'
    COMPREPLY=()
    # Bash splits --option=value into three words.
    if [[ $word == "=" ]]; then word=""; fi
    answer=$("${COMP_WORDS[0]}" _complete "${before[@]}" "$word" 2>/dev/null | cut -f1) || return 0
    if [[ $answer == ":files" ]]; then
        compopt -o default 2>/dev/null
        return 0
    fi
    [[ -z $answer ]] || COMPREPLY=($answer)
}

complete -F _driftline driftline
