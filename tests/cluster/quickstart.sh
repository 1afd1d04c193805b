#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first run (`make quickstart`, after packages and build): private cluster, a real English text packed into a dataset,
# one training job over two nodes. Fails when the loss did not fall. Everything lies in build/quickstart.
set -u
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
cluster=${CLUSTER_DIR:-$top/build/cluster}
here=$top/build/quickstart
texts=/usr/share/games/fortunes

die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }
step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
[ -t 1 ] || step() { printf '\n== %s\n' "$*"; }

for program in trainer spctl; do
	[ -x "$top/build/bin/$program" ] || die "build/bin/$program is not built: run \`make\` first"
done

step 'A private Slurm cluster of four nodes on this machine'
"$top/tests/cluster/cluster.sh" up || exit 1
. "$cluster/env"
export LC_ALL=C

# A new run each time: with resume: auto an old one would only say that it is done.
rm -rf "$here"
mkdir -p "$here/text" && cd "$here" || die "cannot write $here"

step 'A dataset: the texts of the Debian package "fortunes"'
[ -d $texts ] || die "$texts is missing: run \`make deps\` (Debian package fortunes)"
# Plain text files only: .dat are indexes, .u8 links to the files themselves.
find $texts -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' -exec cp -t text {} +
bytes=$(cat text/* | wc -c)
[ "$bytes" -ge 1000000 ] || die "$texts holds $bytes bytes of text, 1000000 are needed: reinstall the package fortunes"
spctl pack --out data --seq-length 512 --doc-separator % text || die 'packing failed'
spctl inspect data || die 'the dataset cannot be read'

step 'Training: srun --sp-size=4 -N2 trainer   (four ranks on two nodes share each sequence)'
cp "$top/jobs/train.yaml" .
srun --sp-size=4 -N2 trainer || die "the training failed (exit code $?); logs of the cluster are in $cluster/log"

step 'What came out'
# Mean of the first and of the last five steps' losses.
read -r first last < <(awk 'match($0, /"loss":[0-9.eE+-]+/) { l[++n] = substr($0, RSTART + 7, RLENGTH - 7) }
	END { k = n < 10 ? 1 : 5; for (i = 1; i <= k; i++) { a += l[i]; b += l[n + 1 - i] } if (n) printf "%.4f %.4f\n", a / k, b / k }' \
	run/metrics.jsonl)
[ -n "${last-}" ] || die 'run/metrics.jsonl holds no loss'
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < 0.9 * a) }' || die "the loss did not fall: $first at the start, $last at the end"
checkpoint=$(ls -d run/checkpoints/step-* 2>/dev/null | tail -n 1)
[ -n "$checkpoint" ] || die 'there is no checkpoint in run/checkpoints'
[ -s run/model/config.json ] && [ -s run/model/model.safetensors ] || die 'there is no model in run/model'
printf 'loss         %s -> %s (means of five steps), every step in %s\n' "$first" "$last" build/quickstart/run/metrics.jsonl
printf 'checkpoint   build/quickstart/%s (%s)\n' "$checkpoint" "$(du -sh "$checkpoint" | cut -f1)"
printf 'model        build/quickstart/run/model: %s\n' "$(ls run/model | tr '\n' ' ')"

cat <<NEXT

The cluster stays up. Type next:

    . build/cluster/env                                    # srun, sbatch, squeue now speak to it
    cd build/quickstart
    srun --sp-size=4 -N2 trainer --set max_steps=80        # continues from the checkpoint
    sbatch ../../jobs/multi-node.sbatch --set output_dir=run2; squeue    # 8 ranks: 2 copies of 4
    spctl pack --help                                      # your own text
    make -C ../.. cluster-down                             # when you are done
NEXT
