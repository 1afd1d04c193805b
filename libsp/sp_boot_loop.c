/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include "libsp/sp_mesh_impl.h"
#include "libsp/sp_plan.h"

static int boot_one(const struct sp_boot_opts *o, struct sp_mesh *m, const struct sp_sizes *sizes, struct sp_error *err)
{
	for (int n = 0; n < m->info.nnodes; n++) {
		int64_t begin, end;

		snprintf(m->nodes[n], SP_NODE_NAME, "virtual%d", n);
		sp_split(m->info.world, m->info.nnodes, n, &begin, &end);
		for (int64_t r = begin; r < end; r++)
			m->node_of_rank[r] = n;
	}
	m->timeout_s = o->timeout_s > 0 ? o->timeout_s : 1800;
	return sp_mesh_place(m, sizes, err);
}

int sp_boot_loop(const struct sp_boot_opts *o, int world, int nnodes, struct sp_mesh **out, struct sp_error *err)
{
	struct sp_loop *loop;
	struct sp_sizes sizes;
	char lost[400];
	int init_timeout, made = 0;

	if (world < 1 || nnodes < 1 || nnodes > world)
		return sp_errorf(err, SP_EUSAGE, "%d virtual ranks on %d virtual nodes: need 1 or more, and a rank a node",
				 world, nnodes);
	if (sp_boot_sizes(o, &sizes, &init_timeout, lost, sizeof(lost), err))
		return -1;
	loop = sp_loop_create(world, err);
	if (!loop)
		return -1;
	for (; made < world; made++) {
		out[made] = sp_mesh_new("loop", world, made, nnodes, err);
		if (!out[made])
			goto fail;
		out[made]->loop = loop;
		out[made]->init_timeout_s = init_timeout;
		if (boot_one(o, out[made], &sizes, err)) {
			made++; /* it holds a share already */
			goto fail;
		}
	}
	for (int r = 0; r < world; r++)
		sp_boot_notes(o, out[r], lost);
	return 0;
fail:
	for (int r = made; r < world; r++)
		sp_loop_release(loop);
	for (int r = 0; r < made; r++)
		sp_mesh_free(out[r]);
	for (int r = 0; r < world; r++)
		out[r] = NULL;
	return -1;
}
