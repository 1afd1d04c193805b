/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_CMDLINE_H
#define SPANK_CMDLINE_H
/*
 * Reads the command line of srun, sbatch or salloc before Slurm does. Slurm calls slurm_spank_init before it
 * parses options, and that is the only moment at which a plugin can still give a task count (through
 * SLURM_NTASKS), so what the user typed has to be found out from the words themselves.
 *
 * Pure functions on words and text: nothing is printed, nothing is read from the system. When a word cannot be
 * understood with certainty (an option of another plugin, a foreign script dialect), the result says `unsure` and
 * the caller does nothing.
 */
#include <stddef.h>

enum plug_command { PLUG_SRUN = 1, PLUG_SBATCH = 2, PLUG_SALLOC = 4 };

/* The mesh dimensions, in the order of the option table. */
enum plug_dim { PLUG_SP, PLUG_CP, PLUG_SHARD, PLUG_REPLICATE, PLUG_NDIMS };

struct plug_option {
	const char *name;
	char letter; /* 0: none */
	char arg;    /* enum plug_arg */
	char cmds;   /* enum plug_command bits */
	char role;   /* enum plug_role */
};
enum plug_arg { PLUG_ARG_NONE, PLUG_ARG_ATTACHED /* optional: only behind '=' */, PLUG_ARG_REQUIRED };
enum plug_role {
	PLUG_ROLE_OTHER,
	PLUG_ROLE_TASKS,    /* decides the number of tasks */
	PLUG_ROLE_PER_TASK, /* decides it together with ROLE_GPUS */
	PLUG_ROLE_GPUS,
	PLUG_ROLE_NODES,
	PLUG_ROLE_SHAPE, /* chooses nodes or CPUs of a step by hand */
	PLUG_ROLE_DIST,
	PLUG_ROLE_OVERCOMMIT,
	PLUG_ROLE_INTERACTIVE,
	PLUG_ROLE_HET,
	PLUG_ROLE_WRAP,
	PLUG_ROLE_JOBID,
	PLUG_ROLE_DIM, /* PLUG_ROLE_DIM + enum plug_dim */
};
/* Slurm's own options, 20.11 to 26.05 (spank_cmdline_options.c). */
extern const struct plug_option plug_slurm_options[];
extern const int plug_slurm_noptions;

#define PLUG_VALUE_LEN 16
struct plug_scan {
	char value[PLUG_NDIMS]
		  [PLUG_VALUE_LEN]; /* last value given; "" when the option is absent, "?" when too long */
	char nodes[PLUG_VALUE_LEN]; /* value of -N */
	int tasks;		    /* something decides the task count already */
	int per_task, gpus;
	int shape, overcommit, interactive, het, wrap, jobid;
	int unsure;  /* not understood with certainty: act on nothing */
	int maybe;   /* internal: behind a word that may be a value or the program */
	int program; /* index of the first word that is no option, argc when there is none */
};

/* Adds what argv[1..argc) says to *scan (zero it first; several sources may be added, the last value wins). */
void plug_scan_argv(enum plug_command cmd, int argc, char *const *argv, struct plug_scan *scan);

/* Adds the #SBATCH lines of a batch script of len bytes. Returns 0, or -1 when out of memory. */
int plug_scan_script(const char *text, size_t len, struct plug_scan *scan);

/* True when a task count is given one way or another. */
int plug_scan_has_tasks(const struct plug_scan *scan);

#endif
