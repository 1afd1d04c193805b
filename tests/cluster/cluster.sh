#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The private Slurm cluster: real munged, slurmctld and slurmd daemons on this machine alone, for tests and first runs.
#
#     tests/cluster/cluster.sh up [NODES]     start it (4 nodes unless said), write build/cluster/env
#     tests/cluster/cluster.sh down           end its jobs and daemons, leave nothing running
#     tests/cluster/cluster.sh status         which daemons and nodes are up; exit 0 when all are
#
# Everything lies in one folder (CLUSTER_DIR, default build/cluster): its own munge key and socket, configuration,
# logs, pid files and the nodes' private /tmp. Ports are chosen free at start, bound to 127.0.0.1, so several
# clusters run side by side. Nodes need namespaces and mounts, hence root; other users need sudo for that part.
#
#     cluster/env                  what a shell sources to use it
#     cluster/etc/slurm.conf       plugstack.conf includes plugstack.d/*.conf
#     cluster/etc/plugstack.d      the submit side's; nodes/NAME/plugstack.d is mounted over it inside each node
#     cluster/nodes/NAME/          tmp spool hosts plugstack.d
#     cluster/run cluster/log      pid files; one log a daemon
set -u
umask 022
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
top=$(cd "$here/../.." && pwd -P)
dir=${CLUSTER_DIR:-$top/build/cluster}
mkdir -p "$dir" && dir=$(cd "$dir" && pwd -P) || exit 1
cpus=${CLUSTER_CPUS:-4}
PATH=$PATH:/usr/sbin:/sbin
plugin=$top/build/lib/spank_sp.so
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo

die() { printf 'cluster: %s\n' "$*" >&2; exit 1; }
say() { printf 'cluster: %s\n' "$*"; }

# ---- daemons, known by their own pid files ------------------------------------------------------------------
# Prints the live pid of the daemon NAME, or fails. A number a dead daemon left behind and another process now has
# does not count: the command line must carry our folder.
pid_of() {
	local pid
	pid=$(cat "$dir/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
	tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$dir/" || return 1
	# A zombie has no command line, so what is left here runs.
	echo "$pid"
}

daemons() {
	local n
	echo munged
	echo slurmctld
	for n in $(cat "$dir/run/nodes" 2>/dev/null); do echo "slurmd-$n"; done
}

# Processes inside the nodes: slurmd, slurmstepd and users' tasks, found by the mount namespaces node.sh recorded.
node_processes() {
	local ns
	ns=$(cat "$dir"/run/slurmd-*.mntns 2>/dev/null | sort -u) && [ -n "$ns" ] || return 0
	$sudo find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/mnt' -printf '%p %l\n' 2>/dev/null |
		awk -v want="$ns" 'BEGIN { n = split(want, a, "\n"); for (i = 1; i <= n; i++) ours[a[i]] = 1 }
			$2 in ours { split($1, p, "/"); print p[3] }'
}

# Runs "$@" detached: own session, none of our file descriptors (a pipe or a lock held open would hang the caller).
launch() {
	local log=$1 fd
	shift
	(
		for fd in /proc/self/fd/*; do
			fd=${fd##*/}
			[ "$fd" -gt 2 ] && eval "exec $fd>&-"
		done 2>/dev/null
		cd / && exec setsid env -i PATH="$PATH" LANG=C.UTF-8 PMIX_MCA_psec=native "$@" </dev/null >"$log" 2>&1
	) &
}

# ---- up ------------------------------------------------------------------------------------------------------
check_machine() {
	local p missing=
	for p in munged slurmctld slurmd sinfo unshare ss; do
		command -v "$p" >/dev/null || missing="$missing $p"
	done
	[ -z "$missing" ] || die "not installed:$missing. Run \`make deps\` (Debian: slurmctld slurmd slurm-client munge iproute2)"
	case $dir$top in *[!A-Za-z0-9._/+@%=,-]*) die "the path '$dir' holds a character Slurm's configuration cannot carry: use a checkout whose path has letters, digits and ._-/ only" ;; esac
	[ ${#dir} -le 90 ] || die "the path '$dir' is ${#dir} characters long, 90 fit (Unix sockets): set CLUSTER_DIR to a shorter folder"
	if [ -n "$sudo" ]; then
		command -v sudo >/dev/null || die "nodes need namespaces and mounts: run as root, or install sudo for $(id -un)"
		sudo true || die "sudo refused: run as root, or let $(id -un) use sudo"
	fi
	$sudo unshare --mount --uts true 2>/dev/null ||
		die "this machine does not allow mount namespaces (a container without CAP_SYS_ADMIN?): run on a machine or VM of your own"
}

# Prints the first of COUNT ports in a row nobody uses, below the range the kernel hands out by itself.
free_ports() {
	local count=$1 first used port ok
	used=" $(ss -Htuan | awk '{ n = split($4, a, ":"); print a[n] }' | sort -u | tr '\n' ' ')"
	for _ in $(seq 200); do
		first=$((20000 + (RANDOM * 32768 + RANDOM) % 12000)) ok=1
		for ((port = first; port < first + count; port++)); do
			case $used in *" $port "*) ok=0; break ;; esac
		done
		[ $ok = 1 ] && { echo "$first"; return; }
	done
	return 1
}

# The plugin's line, here and on every node; without a built plugin the cluster runs plain Slurm.
write_plugstack() {
	local d
	for d in "$dir/etc/plugstack.d" "$dir"/nodes/*/plugstack.d; do
		if [ -f "$plugin" ]; then
			echo "required $plugin" >"$d/sp.conf"
		else
			rm -f "$d/sp.conf"
		fi
	done
}

write_config() {
	local port=$1 host
	host=$(hostname -s)
	cat >"$dir/etc/slurm.conf" <<-CONF
		ClusterName=private
		SlurmctldHost=$host(127.0.0.1)
		SlurmctldPort=$port
		SlurmUser=$(id -un)
		SlurmdUser=root
		AuthType=auth/munge
		CredType=cred/munge
		# A requeued job waits until its old credential has expired: 120 s by default.
		AuthInfo=socket=$dir/run/munge.socket,cred_expire=15
		# Listen on 127.0.0.1 only.
		CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
		StateSaveLocation=$dir/state
		SlurmdSpoolDir=/var/spool/slurmd
		SlurmctldPidFile=$dir/run/slurmctld.own.pid
		SlurmdPidFile=/var/spool/slurmd.own.pid
		SlurmctldLogFile=$dir/log/slurmctld.log
		SlurmdLogFile=$dir/log/slurmd-%n.log
		PlugStackConfig=$dir/etc/plugstack.conf
		TmpFS=/tmp
		MpiDefault=pmix
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		JobAcctGatherType=jobacct_gather/none
		AccountingStorageType=accounting_storage/none
		JobCompType=jobcomp/none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU
		# Nodes may claim more CPUs than the machine has.
		SlurmdParameters=config_overrides
		# Look for work every second: an expired wait or a freed node is not noticed before.
		SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1
		ReturnToService=2
		KillWait=3
		UnkillableStepTimeout=60
		# Many ranks on few cores answer late.
		MessageTimeout=30
		SlurmdTimeout=300
		InactiveLimit=0
		Waittime=0
		PropagateResourceLimitsExcept=MEMLOCK
	CONF
	local i=0 n
	for n in $nodes; do
		i=$((i + 1))
		echo "NodeName=$n NodeHostname=$n NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=$cpus RealMemory=4000 State=UNKNOWN"
	done >>"$dir/etc/slurm.conf"
	echo 'PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8' >>"$dir/etc/slurm.conf"
	echo "include $dir/etc/plugstack.d/*.conf" >"$dir/etc/plugstack.conf"
}

write_env() {
	cat >"$dir/env" <<-ENV
		# Use the private Slurm cluster from this shell:  . $dir/env
		export SLURM_CONF=$dir/etc/slurm.conf
		case ":\$PATH:" in *":$top/build/bin:"*) ;; *) export PATH=$top/build/bin:\$PATH ;; esac
		# Several ranks share a core: wait without spinning, one thread a rank.
		export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
		# Between nodes TCP over the loopback interface, inside a node shared memory; nothing leaves this machine.
		export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
		export OMPI_MCA_hwloc_base_binding_policy=none
		# The munge socket is private, PMIx would look for the system's.
		export PMIX_MCA_psec=native
	ENV
}

make_folders() {
	local n names
	names=$(printf ' %s' $nodes)
	$sudo rm -rf "$dir/state" "$dir/nodes" "$dir/run" "$dir/log" "$dir/etc"
	mkdir -p "$dir"/{etc/plugstack.d,run,log,state} || die "cannot write $dir"
	chmod 755 "$dir"/{run,etc,log}
	for n in $nodes; do
		mkdir -p "$dir/nodes/$n"/{tmp,spool,plugstack.d}
		chmod 1777 "$dir/nodes/$n/tmp"
		printf '127.0.0.1 localhost %s%s\n::1 localhost\n' "$(hostname -s)" "$names" >"$dir/nodes/$n/hosts"
	done
	echo $nodes >"$dir/run/nodes"
}

start_munged() {
	(umask 077 && head -c 1024 /dev/urandom >"$dir/run/munge.key")
	launch "$dir/log/munged.out" munged --foreground --force --num-threads=2 --key-file="$dir/run/munge.key" \
		--socket="$dir/run/munge.socket" --pid-file="$dir/run/munged.own.pid" --seed-file="$dir/run/munged.seed"
	echo $! >"$dir/run/munged.pid"
	for _ in $(seq 100); do
		[ -S "$dir/run/munge.socket" ] && return 0
		sleep 0.05
	done
	return 1
}

start_daemons() {
	local n
	start_munged || return 1
	# -c: no state of an earlier cluster. The nodes are asked to register as soon as the controller runs.
	launch "$dir/log/slurmctld.out" slurmctld -D -c -f "$dir/etc/slurm.conf"
	echo $! >"$dir/run/slurmctld.pid"
	for n in $nodes; do
		launch "$dir/log/slurmd-$n.out" $sudo env PATH="$PATH" PMIX_MCA_psec=native \
			unshare --mount --uts "$here/node.sh" "$n" "$dir" "$top"
	done
}

# Waits until every node is idle: 0. A daemon that ended, or 30 s: 1.
wait_ready() {
	local t d want
	want=$(echo $nodes | wc -w)
	for ((t = 0; t < 300; t++)); do
		[ "$(SLURM_CONF=$dir/etc/slurm.conf timeout 5 sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" = "$want" ] && return 0
		for d in munged slurmctld; do pid_of $d >/dev/null || return 1; done
		sleep 0.1
	done
	return 1
}

show_failure() {
	local d log
	for d in $(daemons); do
		pid_of "$d" >/dev/null && [ "$d" != slurmctld ] && continue
		for log in "$dir/log/$d.log" "$dir/log/$d.out"; do
			[ -s "$log" ] || continue
			printf -- '---- end of %s\n' "$log"
			tail -n 8 "$log"
		done
	done >&2
}

up() {
	local count=$1 try port started
	case $count in '' | *[!0-9]* | 0*) die "number of nodes '$count': give 1 to 64" ;; esac
	[ "$count" -le 64 ] || die "number of nodes $count: give 1 to 64"
	check_machine
	nodes=$(seq -f 'n%.0f' "$count" | tr '\n' ' ')
	if all_alive; then
		started=$(wc -w <"$dir/run/nodes")
		[ "$started" = "$count" ] ||
			die "already running with $started nodes, asked for $count: \`tests/cluster/cluster.sh down\` first"
		write_plugstack
		write_env
		say "already running ($started nodes); use it with: . $dir/env"
		return 0
	fi
	for try in 1 2 3; do
		end_daemons
		make_folders
		port=$(free_ports $((count + 1))) || die 'no free ports between 20000 and 32000'
		write_config "$port"
		write_plugstack
		write_env
		start_daemons && wait_ready && { say "$count nodes are idle; use them with: . $dir/env"; return 0; }
		# Another cluster may have taken a port between our look and our bind.
		grep -qs 'Address already in use' "$dir"/log/* || break
	done
	show_failure
	end_daemons
	die "did not start; logs are in $dir/log"
}

all_alive() {
	local d
	[ -s "$dir/run/nodes" ] || return 1
	for d in $(daemons); do pid_of "$d" >/dev/null || return 1; done
}

# ---- down ----------------------------------------------------------------------------------------------------
# Ends the pids given: TERM, then KILL what is left after five seconds. Returns when all are gone.
end_pids() {
	local t left p
	[ $# -gt 0 ] || return 0
	$sudo kill -TERM "$@" 2>/dev/null
	for ((t = 0; t < 200; t++)); do
		left=
		for p in "$@"; do [ -d "/proc/$p" ] && ! grep -qs '^State:.*Z' "/proc/$p/status" && left="$left $p"; done
		[ -z "$left" ] && return 0
		[ $t = 100 ] && $sudo kill -KILL $left 2>/dev/null
		sleep 0.05
	done
	say "still running after SIGKILL:$left" >&2
	return 1
}

end_daemons() {
	local d p rc=0 pids=
	if pid_of slurmctld >/dev/null; then
		# Jobs first, so that their tasks hear of it and write what they want to keep.
		p=$(SLURM_CONF=$dir/etc/slurm.conf timeout 5 squeue -h -o %A 2>/dev/null | sort -u)
		[ -z "$p" ] || SLURM_CONF=$dir/etc/slurm.conf timeout 5 scancel $p 2>/dev/null
		for _ in $(seq 50); do
			[ -z "$(SLURM_CONF=$dir/etc/slurm.conf timeout 5 squeue -h -o %A 2>/dev/null)" ] && break
			sleep 0.1
		done
	fi
	for d in $(daemons | tac); do
		p=$(pid_of "$d") && pids="$pids $p"
	done
	end_pids $pids || rc=1
	end_pids $(node_processes) || rc=1
	rm -f "$dir"/run/*.pid "$dir"/run/*.mntns "$dir/run/munge.socket"*
	return $rc
}

down() {
	local was=0
	[ -n "$(for d in $(daemons); do pid_of "$d"; done)$(node_processes)" ] && was=1
	end_daemons || die 'some processes did not end'
	rm -f "$dir/env"
	[ $was = 1 ] && say 'down' || say 'was not running'
}

status() {
	local d rc=0 p
	for d in $(daemons); do
		if p=$(pid_of "$d"); then printf '%-12s pid %s\n' "$d" "$p"; else printf '%-12s not running\n' "$d"; rc=1; fi
	done
	[ $rc = 0 ] || return 1
	SLURM_CONF=$dir/etc/slurm.conf timeout 10 sinfo -N -o '%N %T %C %E' || rc=1
	[ -z "$(SLURM_CONF=$dir/etc/slurm.conf timeout 10 sinfo -h -N -t down,drain,fail,unknown -o %N)" ] || rc=1
	return $rc
}

# Two callers at once take turns. The lock is not inherited by the daemons: launch closes it.
exec 9>"$dir.lock"
flock -w 120 9 || die "another cluster.sh holds $dir.lock"
case ${1:-} in
up) up "${2:-4}" ;;
down) down ;;
status) status ;;
*) sed -n '3,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
