/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "libsp/sp_comm_mpi.h"
#include "libsp/sp_mesh_impl.h"
#include "libsp/sp_pmix.h"

static const char *const group_names[] = {"sp", "shard", "replicate", "world"};

struct sp_mesh *sp_mesh_new(const char *launcher, int world, int rank, int nnodes, struct sp_error *err)
{
	struct sp_mesh *m = calloc(1, sizeof(*m));

	if (m) {
		m->info = (struct sp_mesh_info){.world = world, .rank = rank, .nnodes = nnodes, .launcher = launcher,
						.hostname = "?"};
		m->rank_of_slot = calloc((size_t)world, sizeof(int));
		m->node_of_rank = calloc((size_t)world, sizeof(int));
		m->nodes = calloc((size_t)nnodes, sizeof(*m->nodes));
	}
	if (!m || !m->rank_of_slot || !m->node_of_rank || !m->nodes) {
		sp_mesh_free(m);
		sp_errorf(err, SP_ENOMEM, "no memory for a mesh of %d ranks", world);
		return NULL;
	}
	return m;
}

void sp_mesh_free(struct sp_mesh *m)
{
	if (!m)
		return;
	for (int g = 0; g < 4; g++)
		sp_comm_destroy(m->comm[g]);
	sp_loop_release(m->loop);
	free(m->rank_of_slot);
	free(m->node_of_rank);
	free(m->nodes);
	free(m);
}

/* counts[node] and local[rank]: a rank's index among the ranks of its node, by rank. */
static void count_nodes(const struct sp_mesh *m, int *counts, int *local)
{
	memset(counts, 0, (size_t)m->info.nnodes * sizeof(*counts));
	for (int r = 0; r < m->info.world; r++)
		local[r] = counts[m->node_of_rank[r]]++;
}

int sp_mesh_place(struct sp_mesh *m, const struct sp_sizes *sizes, struct sp_error *err)
{
	struct sp_mesh_info *in = &m->info;
	int *counts = calloc((size_t)in->nnodes + (size_t)in->world, sizeof(int));
	int *local = counts + in->nnodes, rc = -1;
	char text[400];

	if (!counts)
		return sp_errorf(err, SP_ENOMEM, "no memory to place %d ranks", in->world);
	in->sizes = *sizes;
	if (sp_env_complete(&in->sizes, in->world, text, sizeof(text))) {
		sp_errorf(err, SP_EUSAGE, "%s", text);
		goto out;
	}
	count_nodes(m, counts, local);
	for (int r = 0; r < in->world; r++) {
		struct sp_coord at;

		if (sp_env_place(&in->sizes, counts, in->nnodes, m->node_of_rank[r], local[r], &at, NULL)) {
			sp_errorf(err, SP_EINTERNAL, "no place for rank %d: task %d of node %s", r, local[r],
				  m->nodes[m->node_of_rank[r]]);
			goto out;
		}
		m->rank_of_slot[at.slot] = r;
		if (r == in->rank)
			in->coord = at;
	}
	in->node = m->node_of_rank[in->rank];
	in->local_rank = local[in->rank];
	in->local_size = counts[in->node];
	in->hostname = m->nodes[in->node];
	in->spanning_groups = sp_env_spanning_groups(&in->sizes, counts, in->nnodes);
	rc = 0;
out:
	free(counts);
	return rc;
}

void sp_mesh_info(const struct sp_mesh *m, struct sp_mesh_info *out)
{
	*out = m->info;
}

const char *sp_mesh_node_of(const struct sp_mesh *m, int rank)
{
	if (rank < 0 || rank >= m->info.world || m->node_of_rank[rank] < 0)
		return "?";
	return m->nodes[m->node_of_rank[rank]];
}

struct sp_comm *sp_mesh_comm(struct sp_mesh *m, enum sp_group g)
{
	return m->comm[g];
}

void sp_mesh_set_step(struct sp_mesh *m, int64_t step)
{
	m->step = step;
}

/* The members of this rank's group g are slots first, first + stride, ...; groups of one kind have equal sizes. */
struct members {
	int size, rank, first, stride, colour;
};

static struct members members_of(const struct sp_mesh *m, enum sp_group g)
{
	const struct sp_sizes *z = &m->info.sizes;
	int slot = m->info.coord.slot, shard = z->sp * z->cp * z->dp_shard;

	switch (g) {
	case SP_GROUP_SP:
		return (struct members){z->sp, slot % z->sp, slot - slot % z->sp, 1, slot / z->sp};
	case SP_GROUP_SHARD:
		return (struct members){shard, slot % shard, slot - slot % shard, 1, slot / shard};
	case SP_GROUP_REPLICATE:
		return (struct members){z->dp_replicate, slot / shard, slot % shard, shard, slot % shard};
	case SP_GROUP_WORLD:
		break;
	}
	return (struct members){m->info.world, slot, 0, 1, 0};
}

static int attach_group(struct sp_mesh *m, enum sp_group g, const struct kn_ops *ops, struct kn_ctx *ctx,
			struct sp_error *err)
{
	struct members mem = members_of(m, g);
	int *world_rank = calloc((size_t)mem.size, sizeof(int));

	if (!world_rank)
		return sp_errorf(err, SP_ENOMEM, "no memory for a communicator of %d ranks", mem.size);
	for (int i = 0; i < mem.size; i++)
		world_rank[i] = m->rank_of_slot[mem.first + i * mem.stride];
	if (mem.size == 1)
		return sp_comm_create(m, group_names[g], NULL, NULL, 0, 1, world_rank, ops, ctx, &m->comm[g], err);
	if (m->loop)
		return sp_loop_comm(m, g, mem.colour, mem.rank, mem.size, world_rank, ops, ctx, err);
	return sp_mpi_comm(m, g, mem.colour, mem.rank, mem.size, world_rank, ops, ctx, err);
}

int sp_mesh_attach(struct sp_mesh *m, const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_error *err)
{
	if (m->failed || m->comm[SP_GROUP_WORLD])
		return sp_errorf(err, SP_EINTERNAL, "this mesh %s", m->failed ? "did not start" : "is attached already");
	if (m->pmix && m->info.world > 1 && sp_mpi_start(m, ops, err))
		return -1;
	for (enum sp_group g = SP_GROUP_SP; g <= SP_GROUP_WORLD; g++)
		if (attach_group(m, g, ops, ctx, err))
			return -1;
	return 0;
}

void sp_mesh_close(struct sp_mesh *m)
{
	struct sp_error err = {.text = ""};

	if (!m)
		return;
	if (m->comm[SP_GROUP_WORLD] && sp_comm_barrier(m->comm[SP_GROUP_WORLD], &err) && m->pmix)
		sp_mesh_abort(m, 1, err.text); /* the others are lost: waiting in MPI_Finalize would have no end */
	for (int g = 0; g < 4; g++) {
		sp_comm_destroy(m->comm[g]);
		m->comm[g] = NULL;
	}
	sp_mpi_stop(m);
	if (m->pmix && !m->failed) /* after a deadline leaving without a word is what tells the launcher to end the rest */
		sp_pmix_finalize(m->pmix);
	sp_mesh_free(m);
}

void sp_mesh_abort(struct sp_mesh *m, int exit_code, const char *text)
{
	if (m->loop)
		sp_loop_abort(m->loop, m->info.rank, text);
	if (m->pmix)
		sp_pmix_abort(m->pmix, exit_code, text);
}
