/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_COMM_IMPL_H
#define LIBSP_SP_COMM_IMPL_H
/*
 * Private: what an implementation of the communicator table provides (self, loop, mpi).
 *
 * sp_comm.c checks arguments, moves blocks a rank sends to itself and builds reductions and host collectives; an
 * implementation sees only non-empty blocks between different ranks.
 */
#include <stdint.h>
#include "kernels/kernels.h"
#include "libsp/sp_comm.h"

struct sp_mesh;

#define SP_COMM_INFLIGHT 2

/* Where the memory of an exchange lies: with a host backend both are the same. */
enum sp_mem { SP_MEM_HOST, SP_MEM_DEVICE };

struct sp_request {
	struct sp_comm *c;
	const char *what;
	enum sp_mem mem;
	int busy;
	void *impl; /* the implementation's part, kept from exchange to exchange */
};

struct sp_comm_vt {
	/* Posts the blocks of r. On failure nothing of r is left posted. */
	int (*start)(struct sp_request *r, const struct sp_block *send, int nsend, const struct sp_block *recv,
		     int nrecv, struct sp_error *err);
	void (*poll)(struct sp_request *r);
	/* Blocks until all of r is done, the deadline or an abort; afterwards no memory of r is touched. */
	int (*wait)(struct sp_request *r, struct sp_error *err);
	void (*free_request)(struct sp_request *r); /* r->impl */
	void (*destroy)(struct sp_comm *c);         /* c->impl */
};

struct sp_comm {
	const struct sp_comm_vt *vt; /* NULL: one rank, nothing to move */
	void *impl;
	const struct sp_mesh *mesh; /* deadline, step, node names; outlives the communicator */
	const char *name;
	int rank, size;
	int *world_rank; /* [size] global rank of each member */
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct sp_request req[SP_COMM_INFLIGHT];
	struct sp_block *blocks; /* send [size], then recv [size], of the collectives built on the exchange */
	int64_t *off;            /* [size + 1] of all_reduce */
	struct sp_block *others; /* blocks to and from other ranks while an exchange is being started */
	int others_cap;
	float *scratch; /* device, of reductions */
	size_t scratch_bytes;
	void *host; /* host, of host collectives */
	size_t host_bytes;
};

/* Takes vt, impl and world_rank over, also on failure (all are released then). */
int sp_comm_create(const struct sp_mesh *mesh, const char *name, const struct sp_comm_vt *vt, void *impl, int rank,
		   int size, int *world_rank, const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_comm **out,
		   struct sp_error *err);
void sp_comm_destroy(struct sp_comm *c);

int sp_comm_start_mem(struct sp_comm *c, enum sp_mem mem, const char *what, const struct sp_block *send, int nsend,
		      const struct sp_block *recv, int nrecv, struct sp_request **out, struct sp_error *err);

/* The deadline's text: names the ranks of `late` (bytes, [size], non-zero: late), their nodes, operation and step. */
int sp_comm_late(struct sp_comm *c, const char *what, const unsigned char *late, struct sp_error *err);

#endif
