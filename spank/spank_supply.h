/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_SUPPLY_H
#define SPANK_SUPPLY_H
/*
 * The task count a user left out: ntasks = sp x cp x dp_shard x dp_replicate, as far as these are given.
 */
#include "spank/spank_cmdline.h"
#include "spank/spank_conf.h"
#include "spank/spank_opts.h"

/*
 * Number of tasks to give to a command of which `scan` was read, 0 for none. `inherited` says whether options that
 * the surrounding job handed on count (srun: yes; sbatch and salloc: no). Environment variables are looked up with
 * get.
 *
 * Nothing is supplied when anything else decides the count, when the command is a heterogeneous one or an
 * interactive step, when the words could not be understood with certainty; and to a step that only inherited the
 * options, when it chooses its nodes or CPUs by hand or the job's CPUs would not do (a helper step must not fail
 * on our account).
 */
int plug_supply_count(const struct plug_scan *scan, int inherited, const struct plug_conf *conf,
		      plug_getenv_f *get, void *arg);

/* This process' command line: words in one block, *argv to be freed with plug_cmdline_free. Returns argc or -1. */
int plug_cmdline_read(char ***argv);
void plug_cmdline_free(char **argv);

/* plug_getenv_f of srun, sbatch and salloc. */
const char *plug_getenv_process(void *arg, const char *name, char *buf, size_t len);

/* A whole file (regular ones only when `regular`), at most max bytes, NUL-terminated. Returns its length or -1. */
long plug_read_file(const char *path, int regular, size_t max, char **out);

#endif
