/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_MESH_IMPL_H
#define LIBSP_SP_MESH_IMPL_H
/*
 * Private: the mesh object and how start-up fills it. One object a rank; in a loop every virtual rank has its own.
 *
 *   sp_boot.c       which launcher; one process; sizes from configuration and environment
 *   sp_boot_pmix.c  under a launcher: exchange of views, deadline
 *   sp_view.c       what a rank tells the others, and the agreement check
 *   sp_boot_loop.c  virtual ranks
 *   sp_mesh.c       placement, groups, attach, close, abort
 */
#include "libsp/sp_comm_impl.h"
#include "libsp/sp_mesh.h"

#define SP_NODE_NAME 64

struct sp_loop;
struct sp_pmix;
struct sp_mpi;

struct sp_mesh {
	struct sp_mesh_info info;
	int timeout_s;
	int64_t step;
	int *rank_of_slot;            /* [world] */
	int *node_of_rank;            /* [world], -1: not known */
	char (*nodes)[SP_NODE_NAME];  /* [nnodes] */
	struct sp_comm *comm[4];      /* by enum sp_group */
	struct sp_loop *loop;         /* a share; NULL unless launcher is "loop" */
	struct sp_pmix *pmix;         /* NULL unless launcher is "pmix" */
	struct sp_mpi *mpi;           /* after attach of several processes */
	int init_timeout_s;
	int failed;                   /* start-up ended in a deadline: good for abort and close alone */
};

/* A mesh of `world` ranks on `nnodes` nodes, names and maps empty. */
struct sp_mesh *sp_mesh_new(const char *launcher, int world, int rank, int nnodes, struct sp_error *err);
void sp_mesh_free(struct sp_mesh *m);

/* From sizes, nodes and node_of_rank: completes sizes, fills coordinates, local ranks and rank_of_slot. */
int sp_mesh_place(struct sp_mesh *m, const struct sp_sizes *sizes, struct sp_error *err);

/* Sizes as the environment and the configuration give them (0: neither) and the deadline of start-up. Lines about values
 * that lost go to `lost` (may be NULL), '\n' after each. */
int sp_boot_sizes(const struct sp_boot_opts *o, struct sp_sizes *sizes, int *init_timeout_s, char *lost, size_t lostlen,
		  struct sp_error *err);
/* Says through o->note what is worth saying once: called by slot 0. */
void sp_boot_notes(const struct sp_boot_opts *o, const struct sp_mesh *m, const char *lost);
int sp_boot_pmix(const struct sp_boot_opts *o, struct sp_mesh **out, struct sp_error *err);
/* The deadline's text: missing[rank] is 1 for those who did not come. Returns -1. */
int sp_boot_missing(struct sp_mesh *m, const unsigned char *missing, const char *where, int seconds,
		    struct sp_error *err);

/* ---- loop ---------------------------------------------------------------------------------------------------- */
struct sp_loop *sp_loop_create(int world, struct sp_error *err); /* with `world` shares */
void sp_loop_release(struct sp_loop *l);                         /* one share */
void sp_loop_abort(struct sp_loop *l, int rank, const char *text);
int sp_loop_comm(struct sp_mesh *m, enum sp_group g, int colour, int rank, int size, int *world_rank,
		 const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_error *err);

#endif
