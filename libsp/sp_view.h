/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_VIEW_H
#define LIBSP_SP_VIEW_H
/* Private: what a rank tells all others at start, and the check that all say the same. Pure but for sp_view_fill. */
#include <stdint.h>
#include "libsp/sp_mesh_impl.h"

/* Fixed size, the same on every rank of one version; travels as bytes. */
struct sp_view {
	char magic[8];
	char version[24];
	char node[SP_NODE_NAME]; /* as the launcher names it; empty: not told */
	char error[320];         /* what this rank found wrong on its own; empty: nothing */
	int32_t pid;
	int32_t local_size;      /* ranks on its node, as PMIx counts them; 0: not told */
	int32_t sizes[4];        /* sp, cp, dp_shard, dp_replicate; 0: not given */
	int32_t plugin;          /* SP_ABI of the environment; 0: no plugin */
	int32_t plugin_rank, plugin_world, plugin_slot, plugin_sp_rank, plugin_local_rank, plugin_local_size, plugin_node,
		plugin_nnodes;   /* as the plugin exported them */
};

/* This rank's view; a mistake in its environment goes into v->error so that all ranks hear of it. */
void sp_view_fill(struct sp_view *v, const struct sp_sizes *sizes, const struct sp_error *mistake);

/* All ranks' views: same version, no mistakes, plugin everywhere or nowhere, same sizes. */
int sp_view_agree(const struct sp_view *all, int world, struct sp_error *err);
/* The placed mesh against every rank's plugin and PMIx. */
int sp_view_check_mesh(const struct sp_view *all, const struct sp_mesh *m, struct sp_error *err);

#endif
