/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_COMM_H
#define LIBSP_SP_COMM_H
/*
 * Communicators: one small table, several implementations.
 *
 *   self   one rank
 *   loop   P virtual ranks, threads of one process (sanitizer-friendly, deterministic)
 *   mpi    Open MPI, host memory
 *   (nccl) device memory, with the CUDA backend
 *
 * Everything is built on one primitive, the block exchange: any number of contiguous blocks to and from any peers, matched
 * per pair in order. Reductions are an exchange followed by a sum in rank order, so that the result has the same bits on
 * every rank, in every run and under every implementation.
 *
 * Pointers of exchange, reduce_scatter and all_gather are memory of the kernels backend attached to the mesh; the functions
 * called `host` take host memory. Collectives are called by all members in the same order. One thread a rank.
 *
 * Every wait has a deadline (sp_boot_opts.timeout_s): when it passes, the call fails with SP_ETIMEOUT and a text that names
 * the late rank(s), their node, the operation and the step last given to sp_mesh_set_step. When the mesh was aborted, calls
 * fail with SP_EPEER at once.
 */
#include <stddef.h>
#include <stdint.h>
#include "libsp/sp_err.h"

struct sp_comm;
int sp_comm_rank(const struct sp_comm *c);
int sp_comm_size(const struct sp_comm *c);
const char *sp_comm_name(const struct sp_comm *c);             /* "sp", "shard", "replicate", "world" */
int sp_comm_world_rank(const struct sp_comm *c, int rank);     /* global rank of a member */

struct sp_block {
	int peer; /* rank in the communicator; own rank is allowed */
	void *ptr;
	size_t bytes; /* 0 is allowed and moves nothing */
};
struct sp_request;
/* Starts the exchange; the block arrays may be reused at once, the memory they point to only after wait. Blocks are split
 * by the implementation where its count type is too small. `what` names the operation in messages (static string). At most
 * two exchanges of one communicator may be in flight. */
int sp_comm_start(struct sp_comm *c, const char *what, const struct sp_block *send, int nsend,
		  const struct sp_block *recv, int nrecv, struct sp_request **out, struct sp_error *err);
/* Progress without blocking; safe to call from a kernel's poll hook (arg: the communicator). */
void sp_comm_poll(void *comm);
/* Completes and releases the request, also on failure. */
int sp_comm_wait(struct sp_request *r, struct sp_error *err);
/* start + wait */
int sp_comm_exchange(struct sp_comm *c, const char *what, const struct sp_block *send, int nsend,
		     const struct sp_block *recv, int nrecv, struct sp_error *err);

/* x is fp32 [off[size]]; range i = [off[i], off[i+1]) belongs to rank i (off: host, [size + 1], rising from any start).
 * reduce_scatter: own range becomes the sum over ranks in rank order; other ranges are left undefined.
 * all_gather: every range becomes its owner's. all_reduce: both, over an even split of [0, n). */
int sp_comm_reduce_scatter(struct sp_comm *c, float *x, const int64_t *off, struct sp_error *err);
int sp_comm_all_gather(struct sp_comm *c, float *x, const int64_t *off, struct sp_error *err);
int sp_comm_all_reduce(struct sp_comm *c, float *x, int64_t n, struct sp_error *err);

int sp_comm_host_gather(struct sp_comm *c, const void *mine, size_t bytes, void *all, struct sp_error *err); /* all: size*bytes */
int sp_comm_host_sum(struct sp_comm *c, double *x, int n, struct sp_error *err);  /* in place, rank order, n <= 64 */
int sp_comm_host_max(struct sp_comm *c, int64_t *x, int n, struct sp_error *err); /* in place, n <= 64; votes */
int sp_comm_host_bcast(struct sp_comm *c, void *p, size_t bytes, int root, struct sp_error *err);
int sp_comm_barrier(struct sp_comm *c, struct sp_error *err);

#endif
