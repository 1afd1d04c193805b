/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_LAYOUT_H
#define SPANK_LAYOUT_H
/*
 * Does the mesh fit the step? Pure functions on what srun (before launch) and slurmstepd (on the node) know of a
 * step's layout.
 */
#include "libsp/sp_env.h"

struct plug_step {
	int64_t ntasks;
	int nnodes;
	const char *tasks_per_node; /* "4(x2),3" as Slurm writes it; may be NULL */
};

struct plug_layout {
	struct sp_sizes sizes; /* complete */
	int *counts;	       /* [nnodes] tasks of each node, owned */
	int nnodes;
	int spanning; /* sp groups across nodes */
};

/* Are the sizes possible at all, before a step is known? *out becomes them completed for one copy. Returns 0 or -1
 * as below. */
int plug_layout_sizes(const struct sp_sizes *wanted, struct sp_sizes *out, char *err, size_t errlen);

/* Completes the sizes for the step and reads its layout. Returns 0, or -1 with one line in err that names srun's
 * options. out is to be given to plug_layout_free in any case. */
int plug_layout_make(const struct sp_sizes *wanted, const struct plug_step *step, struct plug_layout *out,
		     char *err, size_t errlen);
void plug_layout_free(struct plug_layout *l);

/* One line on sp groups that cross nodes: how to keep them inside. Returns 1 when another layout on as many nodes
 * would avoid it, 0 when none can (text says what would), -1 when no group crosses nodes. */
int plug_layout_advice(const struct plug_layout *l, char *text, size_t len);

/* "world 8 = dp_replicate 2 x dp_shard 1 x cp 1 x sp 4 on 2 nodes (4(x2)), ..." */
void plug_layout_summary(const struct plug_layout *l, const struct plug_step *step, char *text, size_t len);

#endif
