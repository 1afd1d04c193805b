/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "libsp/sp_view.h"

static const char magic[8] = "spview1";

static int plugin_int(const char *name, int32_t *out, struct sp_view *v)
{
	const char *text = getenv(name);
	int n = 0;

	if (!text)
		snprintf(v->error, sizeof(v->error), "the plugin's %s is not in the environment", name);
	else if (!sp_env_parse_int(name, text, 0, INT32_MAX, &n, v->error, sizeof(v->error)))
		*out = n;
	return v->error[0] ? -1 : 0;
}

void sp_view_fill(struct sp_view *v, const struct sp_sizes *sizes, const struct sp_error *mistake)
{
	memcpy(v->magic, magic, sizeof(magic));
	snprintf(v->version, sizeof(v->version), "%s", SU_VERSION);
	v->pid = (int32_t)getpid();
	v->sizes[0] = sizes->sp;
	v->sizes[1] = sizes->cp;
	v->sizes[2] = sizes->dp_shard;
	v->sizes[3] = sizes->dp_replicate;
	if (mistake) {
		snprintf(v->error, sizeof(v->error), "%.*s", (int)sizeof(v->error) - 1, mistake->text);
		return;
	}
	if (!getenv(SP_ENV_ABI_NAME))
		return;
	if (plugin_int(SP_ENV_ABI_NAME, &v->plugin, v) || plugin_int(SP_ENV_RANK, &v->plugin_rank, v) ||
	    plugin_int(SP_ENV_WORLD, &v->plugin_world, v) || plugin_int(SP_ENV_SLOT, &v->plugin_slot, v) ||
	    plugin_int(SP_ENV_SP_RANK, &v->plugin_sp_rank, v) ||
	    plugin_int(SP_ENV_LOCAL_RANK, &v->plugin_local_rank, v) ||
	    plugin_int(SP_ENV_LOCAL_SIZE, &v->plugin_local_size, v) || plugin_int(SP_ENV_NODE, &v->plugin_node, v) ||
	    plugin_int(SP_ENV_NNODES, &v->plugin_nnodes, v))
		return; /* v->error says what */
}

/* "n1, n3": nodes of the ranks that have (with = 1) or lack the plugin, each once, at most 8. */
static void plugin_nodes(const struct sp_view *all, int world, int with, char *list, size_t len)
{
	size_t at = 0;
	int shown = 0;

	list[0] = 0;
	for (int r = 0; r < world; r++) {
		int seen = !!all[r].plugin != with;

		for (int k = 0; k < r && !seen; k++)
			seen = !!all[k].plugin == with && !strcmp(all[k].node, all[r].node);
		if (seen)
			continue;
		int n = shown == 8 ? snprintf(list + at, len - at, ", ...")
				   : snprintf(list + at, len - at, "%s%s", shown ? ", " : "", all[r].node);

		if (n < 0 || (size_t)n >= len - at || shown++ == 8)
			return;
		at += (size_t)n;
	}
}

static int check_plugin(const struct sp_view *all, int world, struct sp_error *err)
{
	char with[200], without[200];
	int have = 0;

	for (int r = 0; r < world; r++)
		have += !!all[r].plugin;
	if (have && have < world) {
		plugin_nodes(all, world, 1, with, sizeof(with));
		plugin_nodes(all, world, 0, without, sizeof(without));
		return sp_errorf(err, SP_ELAUNCH,
				 "the sp plugin did not run on node %s but did on %s: install spank_sp.so and its plugstack.conf "
				 "line on every node",
				 without, with);
	}
	for (int r = 0; r < world && have; r++)
		if (all[r].plugin != SP_ENV_ABI)
			return sp_errorf(err, SP_ELAUNCH,
					 "the sp plugin of node %s has SP_ABI %d, this program expects %d: install the plugin of "
					 "version %s there",
					 all[r].node, all[r].plugin, SP_ENV_ABI, SU_VERSION);
	return 0;
}

int sp_view_agree(const struct sp_view *all, int world, struct sp_error *err)
{
	static const char *const names[] = {"sp_size", "cp_size", "dp_shard_size", "dp_replicate_size"};
	const struct sp_view *a = all;

	for (int r = 0; r < world; r++)
		if (memcmp(all[r].magic, magic, sizeof(magic)) || strncmp(all[r].version, a->version, sizeof(a->version)))
			return sp_errorf(err, SP_ELAUNCH,
					 "rank %d (node %.63s) runs version %.23s, rank 0 (node %.63s) %.23s: install one version on "
					 "all nodes",
					 r, all[r].node, all[r].version, a->node, a->version);
	for (int r = 0; r < world; r++)
		if (all[r].error[0])
			return sp_errorf(err, SP_EUSAGE, "rank %d (node %s): %s", r, all[r].node, all[r].error);
	if (check_plugin(all, world, err))
		return -1;
	for (int r = 0; r < world; r++)
		for (int i = 0; i < 4; i++)
			if (all[r].sizes[i] != a->sizes[i])
				return sp_errorf(err, SP_EUSAGE,
						 "%s is %d on rank %d (node %s) but %d on rank 0 (node %s): all ranks need the same "
						 "configuration and environment",
						 names[i], all[r].sizes[i], r, all[r].node, a->sizes[i], a->node);
	return 0;
}

static int differs(const struct sp_mesh *m, int rank, const char *name, int said, int found, struct sp_error *err)
{
	if (said == found)
		return 0;
	return sp_errorf(err, SP_ELAUNCH,
			 "rank %d (node %s): the environment says %s=%d but the job has %d; the plugin and PMIx see different jobs "
			 "(were SP_* variables exported by hand, or inherited from another step?)",
			 rank, sp_mesh_node_of(m, rank), name, said, found);
}

int sp_view_check_mesh(const struct sp_view *all, const struct sp_mesh *m, struct sp_error *err)
{
	int world = m->info.world, rc = -1;
	int *counts = calloc((size_t)m->info.nnodes + (size_t)world, sizeof(int)), *slot_of = counts + m->info.nnodes;

	if (!counts)
		return sp_errorf(err, SP_ENOMEM, "no memory to check %d ranks", world);
	for (int s = 0; s < world; s++)
		slot_of[m->rank_of_slot[s]] = s;
	for (int r = 0; r < world; r++)
		counts[m->node_of_rank[r]]++;
	for (int r = 0; r < world; r++) {
		const struct sp_view *v = &all[r];
		int node = m->node_of_rank[r], local = 0;

		if (v->local_size && v->local_size != counts[node]) {
			sp_errorf(err, SP_ELAUNCH, "node %s: PMIx counts %d ranks there, but %d say they are",
				  m->nodes[node], v->local_size, counts[node]);
			goto out;
		}
		if (!v->plugin)
			continue;
		for (int k = 0; k < r; k++)
			local += m->node_of_rank[k] == node;
		if (differs(m, r, SP_ENV_WORLD, v->plugin_world, world, err) ||
		    differs(m, r, SP_ENV_RANK, v->plugin_rank, r, err) ||
		    differs(m, r, SP_ENV_NNODES, v->plugin_nnodes, m->info.nnodes, err) ||
		    differs(m, r, SP_ENV_NODE, v->plugin_node, node, err) ||
		    differs(m, r, SP_ENV_LOCAL_SIZE, v->plugin_local_size, counts[node], err) ||
		    differs(m, r, SP_ENV_LOCAL_RANK, v->plugin_local_rank, local, err) ||
		    differs(m, r, SP_ENV_SLOT, v->plugin_slot, slot_of[r], err) ||
		    differs(m, r, SP_ENV_SP_RANK, v->plugin_sp_rank, slot_of[r] % m->info.sizes.sp, err))
			goto out;
	}
	rc = 0;
out:
	free(counts);
	return rc;
}
