#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Folder borders and house rules, read from the sources.
#
#     trainer -> libsp kernels io      libsp -> kernels      kernels, io -> nothing
#     spank   -> libsp/sp_env.h        tests -> everything   nothing -> tests

setup_file() {
	cd "$BATS_TEST_DIRNAME/../.." || return 1
	# The working tree's own files: tracked ones and new ones git does not ignore.
	git ls-files --cached --others --exclude-standard >"$BATS_FILE_TMPDIR/all" 2>/dev/null ||
		find kernels io libsp spank trainer tests jobs Makefile -type f >"$BATS_FILE_TMPDIR/all"
	grep -E '\.(c|h|cc|cu|cuh)$' "$BATS_FILE_TMPDIR/all" | while read -r f; do [ -f "$f" ] && echo "$f"; done >"$BATS_FILE_TMPDIR/c"
	# Includes as "FILE HEADER". Only what the preprocessor would see: comments may name any header.
	while read -r f; do
		sed -nE 's|^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]+)[>"].*|\1|p' "$f" | sed "s|^|$f |"
	done <"$BATS_FILE_TMPDIR/c" >"$BATS_FILE_TMPDIR/includes"
	# Code without its comments, one file each.
	mkdir "$BATS_FILE_TMPDIR/code"
	while read -r f; do
		mkdir -p "$BATS_FILE_TMPDIR/code/$(dirname "$f")"
		gcc -fpreprocessed -dD -E -P -x c "$f" -o "$BATS_FILE_TMPDIR/code/$f" 2>/dev/null
	done <"$BATS_FILE_TMPDIR/c"
}

setup() { cd "$BATS_TEST_DIRNAME/../.." || return 1; }

# Passes when the text is empty; shows it otherwise.
none() { [ -z "$1" ] || { printf '%s\n' "$1"; return 1; }; }

# border FOLDER ALLOWED...: headers of our folders that FOLDER's files may include, as extended regexes.
border() {
	local folder=$1 ours='^(kernels|io|libsp|spank|trainer|tests|jobs)/' allowed
	shift
	allowed=$(printf '|^%s' "^$folder/" "$@" | sed 's/\^^/^/; s/^|//')
	none "$(awk -v folder="$folder" -v ours="$ours" -v allowed="$allowed" \
		'index($1, folder "/") == 1 && $2 ~ ours && $2 !~ allowed { print $1 " includes " $2 }' "$BATS_FILE_TMPDIR/includes")"
}

code_has() {
	local pattern=$1
	shift
	(cd "$BATS_FILE_TMPDIR/code" && grep -nE "$pattern" -r "$@" --include='*.[ch]' 2>/dev/null) || true
}

@test "there are sources to look at" {
	[ "$(wc -l <"$BATS_FILE_TMPDIR/c")" -gt 20 ]
	[ "$(wc -l <"$BATS_FILE_TMPDIR/includes")" -gt 100 ]
	[ -s "$BATS_FILE_TMPDIR/code/libsp/sp_env.c" ]
}

@test "kernels include nothing of ours but kernels" { border kernels; }
@test "io includes nothing of ours but io" { border io; }
@test "libsp includes libsp and kernels" { border libsp kernels/; }
@test "spank includes spank and libsp/sp_env.h" { border spank libsp/sp_env.h; }
@test "trainer includes trainer, libsp, kernels and io" { border trainer libsp/ kernels/ io/; }

@test "our headers are included by their path from the top" {
	# A bare name would hide from the borders above.
	none "$(awk '$1 !~ /^tests\// && $2 !~ /\// { print }' "$BATS_FILE_TMPDIR/includes" | while read -r f h; do
		[ -e "$(dirname "$f")/$h" ] && echo "$f includes $h without its folder"
	done)"
}

@test "mpi.h, nccl.h and pmix.h are included by one .c file each" {
	for h in mpi nccl pmix; do
		users=$(awk -v h="$h.h" '$2 == h && $1 !~ /^tests\// { print $1 }' "$BATS_FILE_TMPDIR/includes" | sort -u)
		[ "$(printf '%s' "$users" | grep -c .)" -le 1 ] || { echo "$h.h:" $users; false; }
		case $users in '' | *.c) ;; *) echo "$h.h: $users is no .c file"; false ;; esac
	done
}

@test "Slurm's headers are included in spank/ only, and only spank.h" {
	none "$(awk '$2 ~ /^slurm\// && ($1 !~ /^(spank|tests)\// || $2 != "slurm/spank.h")' "$BATS_FILE_TMPDIR/includes")"
}

@test "the plugin links neither MPI, CUDA nor libslurm" {
	[ -f build/lib/spank_sp.so ] || skip 'build/lib/spank_sp.so is not built'
	none "$(readelf -d build/lib/spank_sp.so | grep NEEDED | grep -vE '\[(libc|ld-linux[^]]*)\.so[.0-9]*\]')"
	none "$(nm -D --defined-only build/lib/spank_sp.so | awk '{ print $3 }' | grep -vE '^(plugin_(name|type|version)|slurm_spank_[a-z_]+|spank_plugin_version)$')"
}

@test "libraries do not exit, abort or assert" {
	none "$(code_has '(^|[^a-zA-Z0-9_.>])(exit|_exit|abort|assert)[[:space:]]*\(' libsp io kernels)"
}

@test "only mains end the trainer's process" {
	none "$(code_has '(^|[^a-zA-Z0-9_.>])(exit|abort|assert)[[:space:]]*\(' trainer | grep -vE '^trainer/(main|spctl)\.c:' || true)"
}

@test "libraries do not print" {
	none "$(code_has '(^|[^a-zA-Z0-9_.>])((printf|puts|perror)[[:space:]]*\(|fprintf[[:space:]]*\([[:space:]]*std(err|out))' libsp io kernels)"
}

@test "no fast-math" {
	none "$(grep -nE 'Ofast|ffast-math|funsafe-math|fassociative-math|ffinite-math' Makefile ./*/module.mk || true)"
	none "$(code_has 'Ofast|fast-math|unsafe-math|associative-math|finite-math' kernels io libsp spank trainer)"
}

@test "no C file is longer than 800 lines" {
	none "$(while read -r f; do
		n=$(wc -l <"$f")
		[ "$n" -le 800 ] || echo "$f has $n lines, 800 are allowed: split it by idea"
	done <"$BATS_FILE_TMPDIR/c")"
}

@test "every C file starts with its licence line" {
	none "$(while read -r f; do head -n 1 "$f" | grep -qE '^(/\*|//) SPDX-License-Identifier: Apache-2\.0( \*/)?$' || echo "$f"; done <"$BATS_FILE_TMPDIR/c")"
}

@test "headers have include guards" {
	none "$(grep '\.h$' "$BATS_FILE_TMPDIR/c" | while read -r f; do
		g=$(sed -nE 's/^#ifndef ([A-Z0-9_]+)$/\1/p' "$f" | head -n 1)
		grep -q "^#define ${g:-none}\$" "$f" || grep -q 'no include guard' "$f" || echo "$f"
	done)"
}

@test "no work is left as a note in the code" {
	none "$(grep -E '\.(c|h|cu|cuh|sh|mk|bats)$|^Makefile$' "$BATS_FILE_TMPDIR/all" | grep -v '^tests/lint/' |
		xargs grep -nE '\b(TODO|FIXME|XXX)\b' 2>/dev/null || true)"
}
