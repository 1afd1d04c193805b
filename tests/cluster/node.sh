#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One node of the private cluster. Started by cluster.sh as root:
#
#     unshare --mount --uts node.sh NAME CLUSTER_DIR CHECKOUT
#
# Gives the node its own hostname, /tmp, /dev/shm, /etc/hosts, spool and plugstack folder, then becomes slurmd.
# All of it lies in this process's mount namespace and ends with its last process; nothing is seen outside.
set -eu
name=$1 dir=$2 top=$3
own=$dir/nodes/$name

hostname "$name"
mount -t tmpfs -o mode=1777 "shm-$name" /dev/shm
mount --bind "$own/hosts" /etc/hosts
# A short spool path: slurmstepd and the PMIx server put Unix sockets there, whose paths end at 107 characters.
mount --bind "$own/spool" /var/spool
# slurmd and slurmstepd read plugstack.d through this; what a test changes in it is this node's alone.
mount --bind "$own/plugstack.d" "$dir/etc/plugstack.d"
# The private /tmp would hide a checkout or a cluster folder that lies below /tmp: carry them along.
for keep in "$top" "$dir"; do
	case $keep in /tmp/*) ;; *) continue ;; esac
	mkdir -p "$own/tmp${keep#/tmp}"
	mount --rbind "$keep" "$own/tmp${keep#/tmp}"
done
mount --rbind "$own/tmp" /tmp
cd /
echo $$ >"$dir/run/slurmd-$name.pid"
readlink /proc/self/ns/mnt >"$dir/run/slurmd-$name.mntns"
exec slurmd -D -f "$dir/etc/slurm.conf" -N "$name"
