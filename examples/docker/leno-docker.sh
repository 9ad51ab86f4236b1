#!/bin/sh
# Configures Docker for leno networks with the output of `leno docker-opts` for the
# installed Docker version. You can run it at any time, for example after the host took
# another subnet: it leaves settings that are already correct unchanged.
#
#   leno-docker.sh [-dry-run] [-restart] docker0 [NETWORK]
#       Puts docker0 in the network (default: "default") with a drop-in for
#       docker.service, which runs leno before each start of Docker. Fails if another
#       drop-in removes leno's options. With -restart, it restarts Docker at once, which
#       stops containers.
#
#   leno-docker.sh [-dry-run] [-force] network NETWORK
#       Creates a Docker network leno-NETWORK, and recreates it when the subnet changed.
#       With -force, it also disconnects containers, connects them again with the aliases
#       and addresses that they requested, and takes over a network of that name that was
#       created by hand.
#
# Instead of NETWORK, you can pass the path of a subnet file: /run/leno/blue.env.
# -dry-run prints what the script would do, and does nothing.
set -euf

dry='' restart='' force='' dir=${SYSTEMD_DIR:-/etc/systemd/system}
label=leno.options

die() {
	printf 'leno-docker: %s\n' "$*" >&2
	exit 1
}

usage() {
	sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

# Runs a command, or prints it in a dry run.
run() {
	if [ -n "$dry" ]; then
		printf 'would run: %s\n' "$*"
	else
		"$@"
	fi
}

# Prints the output of `leno docker-opts` for the network on one line, without comments.
options() {
	case $network in
	*/*) set -- "$@" "-subnet-file=$network" ;;
	*) set -- "$@" "-network=$network" ;;
	esac
	out=$(leno docker-opts "$@") || die "cannot get the Docker options for network $network from leno, see above"
	printf '%s\n' "$out" | sed -e '/^#/d' -e '/^$/d' -e 's/ \\$//' | tr -s '\n ' '  '
}

# Reports whether a drop-in was written by this script or comes from examples/docker.
ours() { case $(sed q "$1") in "# docker0 in leno's network"*) ;; *) return 1 ;; esac; }

# Prints the output of `systemctl cat` for docker.service without the files in its arguments.
without() {
	printf '%s\n' "$unit" | awk 'BEGIN { for (i = 1; i < ARGC; i++) own["# " ARGV[i]]; ARGC = 1 }
		/^# \// { skip = $0 in own } !skip' "$@"
}

# Prints the settings of docker.service in systemd that lack leno's part.
missing() {
	shown=$(systemctl show docker.service --property=ExecStart --property=ExecStartPre --property=EnvironmentFiles) ||
		die "cannot read the settings of docker.service from systemd"
	# shellcheck disable=SC2016 # systemd replaces the variable
	set -- ExecStart '{.* $LENO_DOCKER_OPTS ' ExecStartPre '{.* -key=LENO_DOCKER_OPTS -write=/run/leno-docker.env ' EnvironmentFiles '/run/leno-docker.env '
	while [ $# -gt 0 ]; do
		printf '%s\n' "$shown" | sed 's/^EnvironmentFile=/EnvironmentFiles=/' | grep -q "^$1=$2" || printf '%s ' "$1"
		shift 2
	done
}

docker0() {
	case $network in *[!A-Za-z0-9_./-]*) die "'$network' is not a valid network name" ;; esac
	options -format=env >/dev/null # it fails if daemon.json is in the way
	command -v systemctl >/dev/null || die "systemctl is not installed: start dockerd with the options that \`leno docker-opts\` prints"
	# systemd reads it after drop-ins such as override.conf.
	file=$dir/docker.service.d/zz-leno.conf earlier=$dir/docker.service.d/leno.conf
	[ ! -e "$file" ] || ours "$file" || die "$file was not written by this script: rename it"
	if [ ! -e "$earlier" ] || ! ours "$earlier"; then earlier=; fi
	# The unit's command for starting Docker, to which the options are added. Read it as it
	# is written, because systemd shows it without quotes. The last one counts.
	unit=$(systemctl cat docker.service) || die "systemd has no docker.service: install Docker Engine first"
	start=$(without "$file" "$earlier" | sed -e ':a' -e '/\\$/{N;s/\\\n[[:blank:]]*/ /;ba' -e '}' |
		sed -n 's/^[[:blank:]]*ExecStart[[:blank:]]*=[[:blank:]]*//p' | sed -n '$s/[[:blank:]]*$//p')
	[ -n "$start" ] || die "docker.service has no readable ExecStart"
	# Use a separate variable: the administrator may use DOCKER_OPTS.
	# shellcheck disable=SC2016 # systemd replaces the variable
	case " $start " in *' $LENO_DOCKER_OPTS '*) ;; *) start="$start \$LENO_DOCKER_OPTS" ;; esac
	which=-network=$network
	case $network in */*) which=-subnet-file=$network ;; esac
	text="# docker0 in leno's network: written by leno-docker.sh
[Unit]
Wants=leno.service
After=leno.service

[Service]
ExecStartPre=$(command -v leno) docker-opts $which -format=env -key=LENO_DOCKER_OPTS -write=/run/leno-docker.env
EnvironmentFile=-/run/leno-docker.env
ExecStart=
ExecStart=$start"
	new=1
	if [ -e "$file" ] && [ "$(cat "$file")" = "$text" ] && [ -z "$earlier" ]; then
		echo "$file is up to date."
		new=
	elif [ -n "$dry" ]; then
		printf 'would write %s:\n%s\n' "$file" "$text"
	else
		mkdir -p "$dir/docker.service.d"
		printf '%s\n' "$text" >"$file.new"
		mv "$file.new" "$file"
		echo "Wrote $file."
	fi
	[ -z "$earlier" ] || run rm "$earlier"
	if [ -z "$new" ]; then # systemd may not have read the file yet
		lacks=$(missing) || exit 1
		[ -z "$lacks" ] || new=1
	fi
	[ -z "$new" ] || run systemctl daemon-reload
	[ -n "$dry" ] || effective
	if [ -n "$restart" ]; then
		run systemctl restart docker.service
	elif [ -n "$new" ]; then
		echo "Restart Docker to apply the change: systemctl restart docker"
	fi
}

# Fails unless Docker gets leno's options. Files that systemd reads later may override or
# reset leno's settings.
effective() {
	lacks=$(missing) || exit 1
	[ -n "$lacks" ] || return 0
	why="a file that systemd reads after $file resets ${lacks% }"
	case $lacks in
	'ExecStart '*)
		last=$(systemctl cat docker.service | awk '/^# \// { file = substr($0, 3) } /^[ \t]*ExecStart[ \t]*=/ { last = file } END { print last }')
		[ "$last" = "$file" ] || why="$last sets ExecStart and systemd reads it after $file; add \$LENO_DOCKER_OPTS to the end of the command there, or rename that file so that it sorts before zz-leno.conf, and run this script again"
		;;
	esac
	die "docker.service starts Docker without leno's options, so docker0 is not in network $network: $why. See \`systemctl cat docker.service\`"
}

user_network() {
	command -v docker >/dev/null || die "docker is not installed: install Docker Engine first"
	docker info >/dev/null 2>&1 || die "Docker does not respond: is it running, and do you have permission to use it? See \`docker info\`"
	want=$(options -create) || exit 1
	# shellcheck disable=SC2086 # leno prints words without spaces or wildcards
	set -- $want
	if [ "$#" -le 3 ] || [ "$1 $2 $3" != "docker network create" ]; then die "unexpected output of \`leno docker-opts\`: $want"; fi
	shift 3
	for name in "$@"; do :; done # the last
	want="$*"
	asked=
	if [ -n "$(docker network ls --quiet --filter "name=^$name\$")" ]; then
		is=$(docker network inspect --format "{{index .Labels \"$label\"}}" "$name")
		if [ "$is" = "$want" ]; then
			echo "Docker network $name is up to date."
			return
		fi
		containers=$(members)
		[ -n "$is" ] || [ -n "$force" ] || die "the Docker network $name was not created by this script: remove it, or take it over with -force"
		[ -z "$containers" ] || [ -n "$force" ] ||
			die "Docker network $name must be recreated and is in use by: $containers - remove these containers, including stopped ones, or disconnect and reconnect them with -force"
		for c in $containers; do
			asked="$asked$c $(asked_for "$c")
"
		done
		# Reconnect the containers if anything fails from here on, or on an interrupt.
		trap 'trap - EXIT; put_on' EXIT
		trap 'exit 130' INT
		trap 'exit 143' TERM HUP
		for c in $containers; do run docker network disconnect --force "$name" "$c"; done
		run docker network rm "$name"
	fi
	run docker network create "--label=$label=$want" "$@" >&3 || die "Docker did not create $name, see above"
	trap - EXIT
	put_on
	[ -n "$dry" ] || echo "Created Docker network $name."
}

# Prints the containers of the network on one line, including stopped ones, which keep its ID.
members() {
	docker ps --all --filter "network=$name" '--format={{.Names}}' | tr '\n' ' ' | sed 's/ $//'
}

# Prints what a container requested on the network, as options of `docker network connect`.
asked_for() {
	docker container inspect --format "{{with index .NetworkSettings.Networks \"$name\"}}{{with .IPAMConfig\
		}}{{with print .IPv4Address}}{{if ne . \"invalid IP\"}}--ip={{.}} {{end}}{{end}}{{with print .IPv6Address\
		}}{{if ne . \"invalid IP\"}}--ip6={{.}} {{end}}{{end}}{{end}}{{range .Aliases}}--alias={{.}} {{end}}{{end}}" "$1"
}

# Connects the containers that are not on the network. Lists those that cannot be connected.
put_on() {
	off='' on=$(members) || on=''
	[ -z "$dry" ] || on=
	while read -r c options; do
		case " $on " in *" $c "*) continue ;; esac
		[ -n "$c" ] || continue
		# shellcheck disable=SC2086 # words, as asked_for has them
		if run docker network connect $options "$name" "$c"; then continue; fi
		others=$(printf '%s\n' "$options" | sed 's/--ip6\{0,1\}=[^ ]* *//g')
		# shellcheck disable=SC2086
		if [ "$others" != "$options" ] && run docker network connect $others "$name" "$c"; then
			printf 'leno-docker: %s is connected to %s, but without the requested options: %s\n' "$c" "$name" "$options" >&2
			continue
		fi
		off="$off
	docker network connect ${options:+$options }$name $c"
	done <<-END
		$asked
	END
	[ -z "$off" ] || die "some containers are no longer connected to network $name; when it exists, connect them with:$off"
}

while :; do
	case ${1:-} in
	-dry-run | --dry-run) dry=1 ;;
	-restart | --restart) restart=1 ;;
	-force | --force) force=1 ;;
	*) break ;;
	esac
	shift
done
command -v leno >/dev/null || die "leno is not on PATH"
# Docker prints the ID of a new network, which is hidden. The commands of a dry run are not.
if [ -n "$dry" ]; then exec 3>&1; else exec 3>/dev/null; fi
case ${1:-}:$# in
docker0:1 | docker0:2) network=${2:-default} && docker0 ;;
network:2) network=$2 && user_network ;;
*) usage ;;
esac
