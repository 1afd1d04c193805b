/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_MESH_H
#define LIBSP_SP_MESH_H
/*
 * The process mesh: start-up, agreement of all views, communicators, the way out.
 *
 *   sp_boot      finds out who and where this process is: PMIx under Slurm (or mpirun), one process without a launcher.
 *                Exchanges every rank's view (node, plugin environment, sizes, library version) in one collected PMIx
 *                fence, places ranks by (node, local index) (sp_env.h) and refuses any disagreement by name.
 *   sp_mesh_attach   creates the communicators sp, shard, replicate, world on a kernels context, in that fixed order.
 *   sp_mesh_close    leaves in order; sp_mesh_abort takes all ranks down with an exit code.
 *
 * Refused with one line: N processes of a Slurm step started without PMIx (would be N singletons), a node without the plugin
 * while others have it, plugin sizes that differ from PMIx's, sizes that do not multiply to the world, a rank that does not
 * arrive within init_timeout_s (named with its node).
 */
#include <stdint.h>
#include "kernels/kernels.h"
#include "libsp/sp_comm.h"
#include "libsp/sp_env.h"
#include "libsp/sp_err.h"

enum sp_group {
	SP_GROUP_SP,        /* shares one sequence */
	SP_GROUP_SHARD,     /* dp_shard x cp x sp: shares the ZeRO shards; rank order (shard, cp, sp), sp fastest */
	SP_GROUP_REPLICATE, /* same place in every copy */
	SP_GROUP_WORLD,     /* rank = slot (mesh order), not the launcher's rank */
};

struct sp_boot_opts {
	struct sp_sizes sizes; /* from the configuration file; 0: not given. Environment and plugin win (reported in `notes`) */
	int init_timeout_s;    /* 0: SP_INIT_TIMEOUT or 120 */
	int timeout_s;         /* deadline of every later wait; 0: 1800 */
	/* Called with lines worth logging once (a value that lost, an sp group across nodes); may be NULL. */
	void (*note)(void *arg, const char *line);
	void *note_arg;
};

struct sp_mesh_info {
	int world, rank; /* as the launcher numbers them; rank 0 is not always slot 0 */
	struct sp_sizes sizes;
	struct sp_coord coord;
	int nnodes, node, local_rank, local_size;
	int spanning_groups;   /* sp groups across nodes */
	const char *launcher;  /* "pmix", "loop", "self" */
	const char *hostname;  /* node name as the launcher gives it */
};

struct sp_mesh;
/* On failure *out is NULL, but for SP_ETIMEOUT: ranks that wait for each other leave only together, so *out is then a mesh
 * good for sp_mesh_abort alone (a process that just exits takes the others down too, with the launcher's exit code). */
int sp_boot(const struct sp_boot_opts *o, struct sp_mesh **out, struct sp_error *err);

/* P virtual ranks in one process as if on `nnodes` nodes: out[0..world) each to be used by its own thread. */
int sp_boot_loop(const struct sp_boot_opts *o, int world, int nnodes, struct sp_mesh **out, struct sp_error *err);

void sp_mesh_info(const struct sp_mesh *m, struct sp_mesh_info *out);
const char *sp_mesh_node_of(const struct sp_mesh *m, int rank); /* node name of a global rank */

/* The context must outlive the mesh. Collective. */
int sp_mesh_attach(struct sp_mesh *m, const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_error *err);
struct sp_comm *sp_mesh_comm(struct sp_mesh *m, enum sp_group g); /* NULL before attach */
void sp_mesh_set_step(struct sp_mesh *m, int64_t step);           /* for the texts of deadlines */

/* Orderly exit of all ranks (collective, bounded by the deadline); frees m. */
void sp_mesh_close(struct sp_mesh *m);
/* Ends the whole job: PMIx_Abort(code, text) under a launcher, marks the loop aborted so that all its ranks return. Under a
 * launcher it does not return; frees nothing. */
void sp_mesh_abort(struct sp_mesh *m, int exit_code, const char *text);

#endif
