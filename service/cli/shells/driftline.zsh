#compdef driftline
# Completion of driftline for zsh. Load it in ~/.zshrc after compinit:  source <(driftline completion zsh)
# Or keep it in a folder of your $fpath as _driftline.

_driftline() {
    local -a found described
    local line
    found=("${(@f)$("${words[1]}" _complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in $found; do
        [[ $line == :files* ]] && { _files; return }
        described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( $#described )) && _describe -V driftline described
}

if [[ $funcstack[1] == _driftline ]]; then
    _driftline "$@"
else
    compdef _driftline driftline
fi
