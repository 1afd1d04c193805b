/* SPDX-License-Identifier: Apache-2.0 */
/* srun: supplies the task count before options are read, checks the layout before a task starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/spank_hooks.h"
#include "spank/spank_layout.h"
#include "spank/spank_opts.h"
#include "spank/spank_supply.h"

static struct {
	struct plug_conf conf;
	int inherited[PLUG_NDIMS]; /* handed on by sbatch or salloc: the callback's first call is not the user's */
	int supplied;		   /* task count given by us, 0: none */
	int inside;		   /* the step runs in an allocation that outlives it */
	int on;
	struct sp_sizes sizes; /* as given */
} local;

static void read_command_line(void)
{
	struct plug_scan scan = {0};
	char **argv = NULL, text[16];
	int argc = plug_cmdline_read(&argv);

	local.inside = getenv("SLURM_JOB_ID") != NULL || getenv("SLURM_JOBID") != NULL;
	if (argc < 1)
		return;
	plug_scan_argv(PLUG_SRUN, argc, argv, &scan);
	plug_cmdline_free(argv);
	local.inside |= scan.jobid;
	local.supplied = plug_supply_count(&scan, 1, &local.conf, plug_getenv_process, NULL);
	if (local.supplied > 0) {
		snprintf(text, sizeof(text), "%d", local.supplied);
		setenv("SLURM_NTASKS", text, 1);
	}
}

int plug_local_init(spank_t sp, int ac, char **av)
{
	char err[PLUG_ERR_LEN];

	if (plug_conf_parse(ac, av, &local.conf, err, sizeof(err)) < 0) {
		slurm_error(PLUG_PREFIX "%s", err);
		return -1;
	}
	if (plug_opts_register(sp, &local.conf) < 0)
		return -1;
	unsetenv(PLUG_STEP_VAR);
	for (int d = 0; d < PLUG_NDIMS; d++)
		local.inherited[d] = getenv(plug_dim_inherited[d]) != NULL;
	read_command_line();
	return 0;
}

/* The user named an option for this very step, rather than for the job around it. */
static int is_explicit(void)
{
	for (int d = 0; d < PLUG_NDIMS; d++)
		if (plug_opts()->calls[d] > local.inherited[d])
			return 1;
	return 0;
}

/* A step that only inherited the options runs without them. */
static void switch_off(const char *why)
{
	slurm_verbose(PLUG_PREFIX "step runs without the job's sequence parallelism: %s", why);
	local.on = 0;
	setenv(PLUG_STEP_VAR, PLUG_STEP_OFF, 1);
}

/*
 * Refuses the step that slurmctld has created already. In an allocation of srun's own, -1 ends both. In an
 * allocation that goes on, slurmctld would count the step as running for ever (there is nothing on the nodes to
 * report its end) and hold back the next one; so there it is launched and ends on the nodes before any program is
 * run.
 */
static int refuse(const char *why)
{
	if (!is_explicit()) {
		switch_off(why);
		return 0;
	}
	slurm_error(PLUG_PREFIX "%s", why);
	if (!local.inside)
		return -1;
	setenv(PLUG_STEP_VAR, PLUG_STEP_REFUSED, 1);
	return 0;
}

int plug_local_post_opt(spank_t sp)
{
	char err[PLUG_ERR_LEN];
	struct sp_sizes complete;
	int rc;

	(void)sp;
	rc = plug_sizes(plug_opts(), local.conf.max_sp, plug_getenv_process, NULL, &local.sizes, err, sizeof(err));
	local.on = rc == 1;
	if (local.on)
		rc = plug_layout_sizes(&local.sizes, &complete, err, sizeof(err));
	if (rc < 0 && is_explicit()) {
		slurm_error(PLUG_PREFIX "%s", err);
		return -1;
	}
	if (rc < 0)
		switch_off(err);
	else if (!local.on && is_explicit()) /* "none": a job's older value travels beside it */
		setenv(PLUG_STEP_VAR, PLUG_STEP_OFF, 1);
	return 0;
}

/* The step's layout against the mesh and the launcher; 0, or -1 with err set. */
static int check_step(const struct plug_step *step, struct plug_layout *l, char *err, size_t errlen)
{
	const char *mpi = getenv("SLURM_MPI_TYPE");

	if (getenv("SLURM_HET_SIZE") != NULL || getenv("SLURM_PACK_SIZE") != NULL) {
		snprintf(err, errlen,
			 "heterogeneous jobs are not supported: use one component, or --sp-size=none");
		return -1;
	}
	if (plug_layout_make(&local.sizes, step, l, err, errlen) < 0)
		return -1;
	if (local.conf.require_pmix && step->ntasks > 1 && mpi != NULL && strncmp(mpi, "pmix", 4) != 0) {
		snprintf(err, errlen,
			 "%lld tasks of one mesh need PMIx, this step uses --mpi=%.40s: add --mpi=pmix",
			 (long long)step->ntasks, mpi);
		return -1;
	}
	return 0;
}

static void report(const struct plug_layout *l, const struct plug_step *step)
{
	char text[512];
	int avoidable = plug_layout_advice(l, text, sizeof(text));

	if (avoidable > 0 && is_explicit())
		slurm_info(PLUG_PREFIX "%s", text);
	else if (avoidable >= 0)
		slurm_verbose(PLUG_PREFIX "%s", text);
	plug_layout_summary(l, step, text, sizeof(text));
	slurm_verbose(PLUG_PREFIX "%s%s", text, local.supplied ? "; task count supplied" : "");
}

int plug_local_user_init(spank_t sp)
{
	char err[PLUG_ERR_LEN];
	struct plug_layout l = {0};
	struct plug_step step = {.tasks_per_node = getenv("SLURM_TASKS_PER_NODE")};
	uint32_t ntasks = 0, nnodes = 0, stepid = 0;
	int rc = 0;

	if (!local.on)
		return 0;
	/* SLURM_NNODES may be the job's; these two are the step's. */
	if (spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &ntasks) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_NNODES, &nnodes) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &stepid) != ESPANK_SUCCESS)
		return refuse("srun does not say how the step is laid out: this Slurm is not supported");
	step.ntasks = ntasks;
	step.nnodes = (int)nnodes;
	if (check_step(&step, &l, err, sizeof(err)) < 0)
		rc = refuse(err);
	else
		report(&l, &step);
	plug_layout_free(&l);
	return rc;
}
