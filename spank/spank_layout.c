/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/spank_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The contract's messages speak the configuration file's names; who types srun knows the options. */
static void name_options(char *text, size_t len)
{
	static const char *const names[][2] = {{"dp_replicate_size ", "--dp-replicate="},
					       {"dp_shard_size ", "--dp-shard="},
					       {"sp_size ", "--sp-size="},
					       {"cp_size ", "--cp-size="}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t from = strlen(names[i][0]), to = strlen(names[i][1]);

		for (char *p = text; (p = strstr(p, names[i][0])) != NULL; p += to) {
			size_t tail = strlen(p + from) + 1;

			if ((size_t)(p - text) + to + tail > len)
				return;
			memmove(p + to, p + from, tail);
			memcpy(p, names[i][1], to);
		}
	}
}

static int complete(struct sp_sizes *s, int64_t world, char *err, size_t errlen)
{
	if (sp_env_complete(s, world, err, errlen) == 0)
		return 0;
	name_options(err, errlen);
	return -1;
}

int plug_layout_sizes(const struct sp_sizes *wanted, struct sp_sizes *out, char *err, size_t errlen)
{
	*out = *wanted;
	return complete(out, 0, err, errlen);
}

int plug_layout_make(const struct sp_sizes *wanted, const struct plug_step *step, struct plug_layout *out,
		     char *err, size_t errlen)
{
	int n = 0;
	int64_t sum = 0;

	*out = (struct plug_layout){.sizes = *wanted, .nnodes = step->nnodes};
	if (complete(&out->sizes, step->ntasks, err, errlen) < 0)
		return -1;
	if (step->nnodes < 1 || step->nnodes > SP_ENV_MAX_NODES) {
		snprintf(err, errlen, "a step on %d nodes is not supported: use 1 to %d", step->nnodes,
			 SP_ENV_MAX_NODES);
		return -1;
	}
	out->counts = calloc((size_t)step->nnodes, sizeof(int));
	if (out->counts == NULL) {
		snprintf(err, errlen, "out of memory");
		return -1;
	}
	if (sp_env_parse_tasks_per_node(step->tasks_per_node, out->counts, step->nnodes, &n, err, errlen) < 0)
		return -1;
	for (int i = 0; i < n; i++)
		sum += out->counts[i];
	if (n != step->nnodes || sum != step->ntasks) {
		snprintf(err, errlen,
			 "SLURM_TASKS_PER_NODE=%.60s (%lld tasks on %d nodes) does not describe this step of %lld "
			 "tasks on %d "
			 "nodes: give --ntasks-per-node",
			 step->tasks_per_node, (long long)sum, n, (long long)step->ntasks, step->nnodes);
		return -1;
	}
	out->spanning = sp_env_spanning_groups(&out->sizes, out->counts, out->nnodes);
	return 0;
}

void plug_layout_free(struct plug_layout *l)
{
	free(l->counts);
	l->counts = NULL;
}

int plug_layout_advice(const struct plug_layout *l, char *text, size_t len)
{
	int64_t world = sp_env_product(&l->sizes), groups = world / l->sizes.sp;
	int n;

	if (l->spanning <= 0)
		return -1;
	n = snprintf(text, len, "%d of %lld sp groups span%s nodes", l->spanning, (long long)groups,
		     l->spanning == 1 ? "s" : "");
	/* Every node runs a task at least, so whole groups on each node need as many groups as nodes. */
	if (groups < l->nnodes) {
		snprintf(text + n, len - (size_t)n, ": %lld node%s (-N) would keep them inside", (long long)groups,
			 groups == 1 ? "" : "s");
		return 0;
	}
	if (groups % l->nnodes == 0)
		snprintf(text + n, len - (size_t)n, ": --ntasks-per-node=%lld keeps them inside",
			 (long long)world / l->nnodes);
	else
		snprintf(text + n, len - (size_t)n, ": --distribution=plane=%d keeps them inside", l->sizes.sp);
	return 1;
}

void plug_layout_summary(const struct plug_layout *l, const struct plug_step *step, char *text, size_t len)
{
	const struct sp_sizes *s = &l->sizes;
	int n = snprintf(text, len,
			 "world %lld = dp_replicate %d x dp_shard %d x cp %d x sp %d on %d node%s (%.40s tasks)",
			 (long long)sp_env_product(s), s->dp_replicate, s->dp_shard, s->cp, s->sp, l->nnodes,
			 l->nnodes == 1 ? "" : "s", step->tasks_per_node);

	if (n > 0 && (size_t)n < len && l->spanning > 0)
		snprintf(text + n, len - (size_t)n, ", %d sp group%s across nodes", l->spanning,
			 l->spanning == 1 ? "" : "s");
}
