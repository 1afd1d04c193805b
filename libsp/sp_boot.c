/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "libsp/sp_mesh_impl.h"

#define DEFAULT_INIT_TIMEOUT 120
#define MAX_TIMEOUT 86400

/* One size: the environment's value wins over the configuration's. */
static int one_size(const char *name, const char *key, int *size, char *lost, size_t lostlen, struct sp_error *err)
{
	const char *text = getenv(name);
	char why[300];
	int v;

	if (*size < 0 || *size > SP_ENV_MAX_SIZE)
		return sp_errorf(err, SP_EUSAGE, "%s is %d: must be 1 to %d", key, *size, SP_ENV_MAX_SIZE);
	if (!text || !*text)
		return 0;
	if (sp_env_parse_int(name, text, 1, SP_ENV_MAX_SIZE, &v, why, sizeof(why)))
		return sp_errorf(err, SP_EUSAGE, "%s", why);
	if (*size && *size != v && lost) {
		size_t at = strlen(lost);

		snprintf(lost + at, lostlen - at, "%s: %d of the configuration gives way to %s=%d\n", key, *size, name,
			 v);
	}
	*size = v;
	return 0;
}

int sp_boot_sizes(const struct sp_boot_opts *o, struct sp_sizes *sizes, int *init_timeout_s, char *lost, size_t lostlen,
		  struct sp_error *err)
{
	const char *text = getenv(SP_ENV_INIT_TIMEOUT);
	char why[300];

	*sizes = o->sizes;
	if (lost && lostlen)
		*lost = 0;
	if (one_size(SP_ENV_SP_SIZE, "sp_size", &sizes->sp, lost, lostlen, err) ||
	    one_size(SP_ENV_CP_SIZE, "cp_size", &sizes->cp, lost, lostlen, err) ||
	    one_size(SP_ENV_DP_SHARD, "dp_shard_size", &sizes->dp_shard, lost, lostlen, err) ||
	    one_size(SP_ENV_DP_REPLICATE, "dp_replicate_size", &sizes->dp_replicate, lost, lostlen, err))
		return -1;
	*init_timeout_s = o->init_timeout_s > 0 ? o->init_timeout_s : DEFAULT_INIT_TIMEOUT;
	if (o->init_timeout_s <= 0 && text && *text &&
	    sp_env_parse_int(SP_ENV_INIT_TIMEOUT, text, 1, MAX_TIMEOUT, init_timeout_s, why, sizeof(why)))
		return sp_errorf(err, SP_EUSAGE, "%s", why);
	return 0;
}

void sp_boot_notes(const struct sp_boot_opts *o, const struct sp_mesh *m, const char *lost)
{
	char line[200];

	if (!o->note || m->info.coord.slot)
		return;
	while (*lost) {
		size_t len = strcspn(lost, "\n");

		snprintf(line, sizeof(line), "%.*s", (int)len, lost);
		o->note(o->note_arg, line);
		lost += len + (lost[len] == '\n');
	}
	if (m->info.spanning_groups > 0) {
		snprintf(line, sizeof(line),
			 "%d of %d sp groups span nodes: their exchange crosses the network; a task count per node that "
			 "is a multiple of %d avoids it",
			 m->info.spanning_groups, m->info.world / m->info.sizes.sp, m->info.sizes.sp);
		o->note(o->note_arg, line);
	}
}

static int env_count(const char *name)
{
	const char *text = getenv(name);

	return text ? atoi(text) : 0;
}

/* N processes that do not know of each other would be N trainings: say how to start them. A batch script's own shell has
 * SLURM_NTASKS and SLURM_PROCID too, but only srun sets the variables of a step. */
static int refuse_singletons(struct sp_error *err)
{
	int tasks = getenv("SLURM_STEP_ID") ? env_count("SLURM_STEP_NUM_TASKS") : 0;

	if (tasks > 1)
		return sp_errorf(err, SP_ELAUNCH,
				 "this step has %d tasks but no PMIx, so each would train alone: start it with srun "
				 "--mpi=pmix (`srun --mpi=list` shows what this cluster has)",
				 tasks);
	tasks = env_count("PMI_SIZE");
	if (tasks > 1)
		return sp_errorf(err, SP_ELAUNCH,
				 "%d processes were started by a launcher without PMIx, so each would train alone: use srun "
				 "--mpi=pmix or Open MPI's mpirun",
				 tasks);
	return 0;
}

static int boot_self(const struct sp_boot_opts *o, struct sp_mesh **out, struct sp_error *err)
{
	struct sp_sizes sizes;
	struct sp_mesh *m;
	char lost[400];

	if (refuse_singletons(err))
		return -1;
	m = sp_mesh_new("self", 1, 0, 1, err);
	if (!m)
		return -1;
	gethostname(m->nodes[0], SP_NODE_NAME - 1);
	m->timeout_s = o->timeout_s > 0 ? o->timeout_s : 1800;
	if (sp_boot_sizes(o, &sizes, &m->init_timeout_s, lost, sizeof(lost), err))
		goto fail;
	if (sp_env_product(&sizes) != 1) {
		sp_errorf(err, SP_EUSAGE,
			  "one process without a launcher, but sp_size x cp_size x dp_shard_size x dp_replicate_size is %lld: "
			  "start with srun --mpi=pmix --sp-size=%d",
			  (long long)sp_env_product(&sizes), sizes.sp ? sizes.sp : 1);
		goto fail;
	}
	if (sp_mesh_place(m, &sizes, err))
		goto fail;
	sp_boot_notes(o, m, lost);
	*out = m;
	return 0;
fail:
	sp_mesh_free(m);
	return -1;
}

int sp_boot(const struct sp_boot_opts *o, struct sp_mesh **out, struct sp_error *err)
{
	*out = NULL;
	if (getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK"))
		return sp_boot_pmix(o, out, err);
	return boot_self(o, out, err);
}
