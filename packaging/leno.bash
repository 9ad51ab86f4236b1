# bash completion: the program completes its own command line.
complete -C /usr/bin/leno leno
