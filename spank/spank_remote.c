/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slurmstepd: hands each task its place in the mesh. Everything that can go wrong is kept until task_init, the one
 * hook whose failure reaches the user with a proper exit code and leaves the node alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/spank_hooks.h"
#include "spank/spank_layout.h"
#include "spank/spank_opts.h"

/* Batch, extern, interactive and pending steps have ids from here on: no tasks of a mesh. */
#define FIRST_SPECIAL_STEP 0xfffffff0u
/* libsp names the late rank when its own deadline ends; PMIx' one must not come first. */
#define PMIX_GRACE 60

static struct {
	struct plug_conf conf;
	int skip;    /* not a step of a mesh, or srun switched the feature off */
	int refused; /* srun has said why */
	int on;
	struct sp_sizes sizes;
	struct plug_layout layout;
	char tasks_per_node[4096]; /* "" when longer; then not exported */
	uint32_t node, nlocal, ntasks;
	char error[PLUG_ERR_LEN]; /* first failure */
} remote;

static void keep_error(const char *text)
{
	if (remote.error[0] == '\0')
		snprintf(remote.error, sizeof(remote.error), "%s", text);
}

/* The environment tasks will have (spank_getenv copies and cuts; this does neither). */
static const char *getenv_job(void *arg, const char *name, char *buf, size_t len)
{
	size_t n = strlen(name);
	char **env = NULL;

	(void)buf;
	(void)len;
	if (spank_get_item((spank_t)arg, S_JOB_ENV, &env) != ESPANK_SUCCESS || env == NULL)
		return NULL;
	for (; *env != NULL; env++)
		if (strncmp(*env, name, n) == 0 && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

int plug_remote_init(spank_t sp, int ac, char **av)
{
	char err[PLUG_ERR_LEN];

	if (plug_conf_parse(ac, av, &remote.conf, err, sizeof(err)) < 0)
		keep_error(err);
	if (plug_opts_register(sp, &remote.conf) < 0)
		keep_error("the plugin's options could not be registered on this node");
	return 0;
}

static void set_pmix_defaults(spank_t sp)
{
	const char *text = getenv_job(sp, SP_ENV_INIT_TIMEOUT, NULL, 0);
	char buf[32], err[PLUG_ERR_LEN];
	int seconds = remote.conf.init_timeout;

	if (text != NULL && sp_env_parse_int(SP_ENV_INIT_TIMEOUT, text, 1, 86400, &seconds, err, sizeof(err)) < 0)
		seconds = remote.conf.init_timeout; /* libsp refuses it with a message */
	snprintf(buf, sizeof(buf), "%d", seconds + PMIX_GRACE);
	/* Slurm's default collective is no barrier across nodes unless data is collected; the ring is. A user's
	 * own value stays. */
	spank_setenv(sp, "SLURM_PMIX_FENCE", "ring", 0);
	spank_setenv(sp, "SLURM_PMIX_TIMEOUT", buf, 0);
}

int plug_remote_post_opt(spank_t sp)
{
	const char *step = getenv_job(sp, PLUG_STEP_VAR, NULL, 0);
	char err[PLUG_ERR_LEN];
	uint32_t stepid = 0;
	int rc;

	if (spank_get_item(sp, S_JOB_STEPID, &stepid) != ESPANK_SUCCESS || stepid >= FIRST_SPECIAL_STEP) {
		remote.skip = 1;
		return 0;
	}
	if (step != NULL) {
		remote.skip = strcmp(step, PLUG_STEP_OFF) == 0;
		remote.refused = strcmp(step, PLUG_STEP_REFUSED) == 0;
		spank_unsetenv(sp, PLUG_STEP_VAR);
		if (remote.skip || remote.refused)
			return 0;
	}
	rc = plug_sizes(plug_opts(), SP_ENV_MAX_SIZE, getenv_job, sp, &remote.sizes, err, sizeof(err));
	if (rc < 0)
		keep_error(err);
	remote.on = rc == 1 || (rc < 0) || plug_opts()->error[0] != '\0';
	if (plug_opts()->error[0] != '\0')
		keep_error(plug_opts()->error);
	if (remote.on)
		set_pmix_defaults(sp);
	return 0;
}

/* Layout of the step as this node sees it; errors are kept. */
static int make_layout(spank_t sp)
{
	struct plug_step step = {.tasks_per_node = getenv_job(sp, "SLURM_STEP_TASKS_PER_NODE", NULL, 0)};
	char err[PLUG_ERR_LEN];
	uint32_t nnodes = 0;

	if (spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &remote.ntasks) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_NNODES, &nnodes) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_NODEID, &remote.node) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &remote.nlocal) != ESPANK_SUCCESS) {
		keep_error("slurmstepd does not say how the step is laid out: this Slurm is not supported");
		return -1;
	}
	if (step.tasks_per_node == NULL)
		step.tasks_per_node = getenv_job(sp, "SLURM_TASKS_PER_NODE", NULL, 0);
	step.ntasks = remote.ntasks;
	step.nnodes = (int)nnodes;
	if (plug_layout_make(&remote.sizes, &step, &remote.layout, err, sizeof(err)) < 0) {
		keep_error(err);
		return -1;
	}
	if (remote.node >= nnodes || (uint32_t)remote.layout.counts[remote.node] != remote.nlocal) {
		snprintf(err, sizeof(err),
			 "node %u of the step runs %u tasks, SLURM_TASKS_PER_NODE=%.60s says otherwise",
			 remote.node, remote.nlocal, step.tasks_per_node);
		keep_error(err);
		return -1;
	}
	if (strlen(step.tasks_per_node) < sizeof(remote.tasks_per_node))
		strcpy(remote.tasks_per_node, step.tasks_per_node);
	return 0;
}

int plug_remote_user_init(spank_t sp)
{
	if (!remote.skip && remote.on && remote.error[0] == '\0')
		make_layout(sp);
	return 0;
}

static int export_int(spank_t sp, const char *name, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)value);
	return spank_setenv(sp, name, text, 1) == ESPANK_SUCCESS ? 0 : -1;
}

static int export_place(spank_t sp, int local, uint32_t rank, const struct sp_coord *c)
{
	const struct sp_sizes *s = &remote.layout.sizes;
	const struct {
		const char *name;
		int64_t value;
	} vars[] = {
		{SP_ENV_ABI_NAME, SP_ENV_ABI},
		{SP_ENV_SP_SIZE, s->sp},
		{SP_ENV_CP_SIZE, s->cp},
		{SP_ENV_DP_SHARD, s->dp_shard},
		{SP_ENV_DP_REPLICATE, s->dp_replicate},
		{SP_ENV_WORLD, remote.ntasks},
		{SP_ENV_RANK, rank},
		{SP_ENV_SLOT, c->slot},
		{SP_ENV_SP_RANK, c->sp},
		{SP_ENV_CP_RANK, c->cp},
		{SP_ENV_SHARD_RANK, c->dp_shard},
		{SP_ENV_REPLICATE_RANK, c->dp_replicate},
		{SP_ENV_LOCAL_RANK, local},
		{SP_ENV_LOCAL_SIZE, remote.nlocal},
		{SP_ENV_NODE, remote.node},
		{SP_ENV_NNODES, remote.layout.nnodes},
	};

	for (size_t i = 0; i < sizeof(vars) / sizeof(vars[0]); i++)
		if (export_int(sp, vars[i].name, vars[i].value) < 0)
			return -1;
	if (remote.tasks_per_node[0] != '\0' &&
	    spank_setenv(sp, SP_ENV_TASKS_PER_NODE, remote.tasks_per_node, 1) != ESPANK_SUCCESS)
		return -1;
	if (getenv_job(sp, SP_ENV_INIT_TIMEOUT, NULL, 0) == NULL)
		return export_int(sp, SP_ENV_INIT_TIMEOUT, remote.conf.init_timeout);
	return 0;
}

int plug_remote_task_init(spank_t sp)
{
	struct sp_coord c;
	uint32_t rank = 0;
	int local = -1;

	if (remote.refused)
		_exit(1); /* as a failing hook would, without two lines a task about it */
	if (remote.skip || !remote.on)
		return 0;
	if (spank_get_item(sp, S_TASK_ID, &local) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS)
		keep_error("slurmstepd does not say which task this is: this Slurm is not supported");
	else if (remote.error[0] == '\0' &&
		 (sp_env_place(&remote.layout.sizes, remote.layout.counts, remote.layout.nnodes, (int)remote.node,
			       local, &c, NULL) < 0 ||
		  export_place(sp, local, rank, &c) < 0))
		keep_error("the place of this task could not be worked out or put into its environment");
	if (remote.error[0] == '\0')
		return 0;
	if (local <= 0) /* one line a node */
		slurm_error(PLUG_PREFIX "%s", remote.error);
	return -1;
}

int plug_remote_exit(spank_t sp)
{
	(void)sp;
	plug_layout_free(&remote.layout);
	return 0;
}
