/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libsp/sp_comm_impl.h"
#include "libsp/sp_mesh_impl.h"

int sp_comm_rank(const struct sp_comm *c)
{
	return c->rank;
}

int sp_comm_size(const struct sp_comm *c)
{
	return c->size;
}

const char *sp_comm_name(const struct sp_comm *c)
{
	return c->name;
}

int sp_comm_world_rank(const struct sp_comm *c, int rank)
{
	return c->world_rank[rank];
}

int sp_comm_create(const struct sp_mesh *mesh, const char *name, const struct sp_comm_vt *vt, void *impl, int rank,
		   int size, int *world_rank, const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_comm **out,
		   struct sp_error *err)
{
	struct sp_comm *c = calloc(1, sizeof(*c));
	struct sp_comm orphan = {.vt = vt, .impl = impl};

	*out = NULL;
	if (!c) {
		if (vt)
			vt->destroy(&orphan);
		free(world_rank);
		return sp_errorf(err, SP_ENOMEM, "no memory for communicator %s", name);
	}
	*c = (struct sp_comm){.vt = vt, .impl = impl, .mesh = mesh, .name = name, .rank = rank, .size = size,
			      .world_rank = world_rank, .ops = ops, .ctx = ctx};
	for (int i = 0; i < SP_COMM_INFLIGHT; i++)
		c->req[i].c = c;
	c->blocks = calloc(2 * (size_t)size, sizeof(*c->blocks));
	c->off = calloc((size_t)size + 1, sizeof(*c->off));
	if (!c->blocks || !c->off) {
		sp_comm_destroy(c);
		return sp_errorf(err, SP_ENOMEM, "no memory for communicator %s of %d ranks", name, size);
	}
	*out = c;
	return 0;
}

void sp_comm_destroy(struct sp_comm *c)
{
	if (!c)
		return;
	if (c->vt) {
		for (int i = 0; i < SP_COMM_INFLIGHT; i++)
			c->vt->free_request(&c->req[i]);
		c->vt->destroy(c);
	}
	if (c->scratch)
		c->ops->free(c->ctx, c->scratch);
	free(c->host);
	free(c->blocks);
	free(c->off);
	free(c->others);
	free(c->world_rank);
	free(c);
}

static int device_error(struct sp_comm *c, const char *what, struct sp_error *err)
{
	return sp_errorf(err, SP_EDEVICE, "%s on %s: %s", what, c->name, c->ops->strerror(c->ctx));
}

static int check_blocks(struct sp_comm *c, const char *what, const struct sp_block *b, int n, struct sp_error *err)
{
	for (int i = 0; i < n; i++)
		if (b[i].peer < 0 || b[i].peer >= c->size || (b[i].bytes && !b[i].ptr))
			return sp_errorf(err, SP_EINTERNAL, "%s on %s: block %d of %d names rank %d of %d%s", what,
					 c->name, i, n, b[i].peer, c->size, b[i].ptr ? "" : " without memory");
	return 0;
}

/* Index of the next non-empty block from i on that is (own = 1) or is not (own = 0) for this rank; n: none. */
static int next_block(const struct sp_comm *c, const struct sp_block *b, int n, int i, int own)
{
	while (i < n && (!b[i].bytes || (b[i].peer == c->rank) != own))
		i++;
	return i;
}

static int copy_own(struct sp_comm *c, enum sp_mem mem, const char *what, const struct sp_block *send, int nsend,
		    const struct sp_block *recv, int nrecv, struct sp_error *err)
{
	int i = next_block(c, send, nsend, 0, 1), j = next_block(c, recv, nrecv, 0, 1);

	for (; i < nsend && j < nrecv;
	     i = next_block(c, send, nsend, i + 1, 1), j = next_block(c, recv, nrecv, j + 1, 1)) {
		if (send[i].bytes != recv[j].bytes)
			break;
		if (send[i].ptr == recv[j].ptr)
			continue;
		if (mem == SP_MEM_HOST)
			memcpy(recv[j].ptr, send[i].ptr, send[i].bytes);
		else if (c->ops->copy(c->ctx, recv[j].ptr, send[i].ptr, send[i].bytes, KN_D2D))
			return device_error(c, what, err);
	}
	if (i < nsend || j < nrecv)
		return sp_errorf(err, SP_EINTERNAL, "%s on %s: blocks sent to the own rank do not match those received",
				 what, c->name);
	return 0;
}

/* Blocks between different ranks, in order, into c->others: send first, then recv. */
static int pick_others(struct sp_comm *c, const struct sp_block *send, int nsend, const struct sp_block *recv,
		       int nrecv, int *ns, int *nr, struct sp_error *err)
{
	struct sp_block *o = c->others;

	if (nsend + nrecv > c->others_cap) {
		o = realloc(c->others, (size_t)(nsend + nrecv) * sizeof(*o));
		if (!o)
			return sp_errorf(err, SP_ENOMEM, "no memory for %d blocks", nsend + nrecv);
		c->others = o;
		c->others_cap = nsend + nrecv;
	}
	*ns = *nr = 0;
	for (int i = next_block(c, send, nsend, 0, 0); i < nsend; i = next_block(c, send, nsend, i + 1, 0))
		o[(*ns)++] = send[i];
	for (int i = next_block(c, recv, nrecv, 0, 0); i < nrecv; i = next_block(c, recv, nrecv, i + 1, 0))
		o[*ns + (*nr)++] = recv[i];
	return 0;
}

int sp_comm_start_mem(struct sp_comm *c, enum sp_mem mem, const char *what, const struct sp_block *send, int nsend,
		      const struct sp_block *recv, int nrecv, struct sp_request **out, struct sp_error *err)
{
	struct sp_request *r = NULL;
	int ns = 0, nr = 0;

	*out = NULL;
	for (int i = 0; i < SP_COMM_INFLIGHT && !r; i++)
		r = c->req[i].busy ? NULL : &c->req[i];
	if (!r)
		return sp_errorf(err, SP_EINTERNAL, "%s on %s: %d exchanges are in flight already", what, c->name,
				 SP_COMM_INFLIGHT);
	if (check_blocks(c, what, send, nsend, err) || check_blocks(c, what, recv, nrecv, err) ||
	    copy_own(c, mem, what, send, nsend, recv, nrecv, err))
		return -1;
	r->what = what;
	r->mem = mem;
	if (c->vt) {
		if (pick_others(c, send, nsend, recv, nrecv, &ns, &nr, err))
			return -1;
		/* Peers read the blocks from now on: what the device still computes must be there. */
		if (mem == SP_MEM_DEVICE && c->ops->sync(c->ctx))
			return device_error(c, what, err);
		if (c->vt->start(r, c->others, ns, c->others + ns, nr, err))
			return -1;
	}
	r->busy = 1;
	*out = r;
	return 0;
}

int sp_comm_start(struct sp_comm *c, const char *what, const struct sp_block *send, int nsend,
		  const struct sp_block *recv, int nrecv, struct sp_request **out, struct sp_error *err)
{
	return sp_comm_start_mem(c, SP_MEM_DEVICE, what, send, nsend, recv, nrecv, out, err);
}

void sp_comm_poll(void *comm)
{
	struct sp_comm *c = comm;

	for (int i = 0; c && c->vt && i < SP_COMM_INFLIGHT; i++)
		if (c->req[i].busy)
			c->vt->poll(&c->req[i]);
}

int sp_comm_wait(struct sp_request *r, struct sp_error *err)
{
	int rc = r->c->vt ? r->c->vt->wait(r, err) : 0;

	r->busy = 0;
	return rc;
}

static int exchange_mem(struct sp_comm *c, enum sp_mem mem, const char *what, const struct sp_block *send, int nsend,
			const struct sp_block *recv, int nrecv, struct sp_error *err)
{
	struct sp_request *r;

	if (sp_comm_start_mem(c, mem, what, send, nsend, recv, nrecv, &r, err))
		return -1;
	return sp_comm_wait(r, err);
}

int sp_comm_exchange(struct sp_comm *c, const char *what, const struct sp_block *send, int nsend,
		     const struct sp_block *recv, int nrecv, struct sp_error *err)
{
	return exchange_mem(c, SP_MEM_DEVICE, what, send, nsend, recv, nrecv, err);
}

int sp_comm_late(struct sp_comm *c, const char *what, const unsigned char *late, struct sp_error *err)
{
	char list[300] = "";
	size_t at = 0;
	int n = 0, shown = 0;

	for (int i = 0; i < c->size; i++) {
		if (!late[i])
			continue;
		n++;
		if (shown == 6)
			continue;
		int w = c->world_rank[i];
		int len = snprintf(list + at, sizeof(list) - at, "%srank %d (node %s)", shown ? ", " : "", w,
				   sp_mesh_node_of(c->mesh, w));

		if (len < 0 || (size_t)len >= sizeof(list) - at) {
			list[at] = 0;
			break;
		}
		at += (size_t)len;
		shown++;
	}
	char more[32] = "";

	if (n > shown)
		snprintf(more, sizeof(more), " and %d more", n - shown);
	return sp_errorf(err, SP_ETIMEOUT, "rank %d (node %s) waited %d s in %s on %s at step %lld for %s%s",
			 c->mesh->info.rank, sp_mesh_node_of(c->mesh, c->mesh->info.rank), c->mesh->timeout_s, what,
			 c->name, (long long)c->mesh->step, list[0] ? list : "unknown ranks", more);
}

/* ---- collectives on the exchange ------------------------------------------------------------------------- */

/* One peer's share of scratch: no more than 4 MiB, and 64 MiB for all. The result does not depend on it. */
static int64_t chunk_elems(const struct sp_comm *c)
{
	int64_t n = ((int64_t)16 << 20) / c->size;

	return n > 1 << 20 ? 1 << 20 : n < 1 << 14 ? 1 << 14 : n;
}

static int grow_scratch(struct sp_comm *c, size_t bytes, struct sp_error *err)
{
	void *p;

	if (bytes <= c->scratch_bytes)
		return 0;
	if (c->ops->alloc(c->ctx, bytes, &p))
		return sp_errorf(err, SP_ENOMEM, "no memory for %zu bytes to sum over %s", bytes, c->name);
	if (c->scratch)
		c->ops->free(c->ctx, c->scratch);
	c->scratch = p;
	c->scratch_bytes = bytes;
	return 0;
}

/* own[n] becomes the sum over ranks in rank order; part i lies at scratch + i * stride. */
static int sum_in_order(struct sp_comm *c, float *own, int64_t n, int64_t stride, struct sp_error *err)
{
	const struct kn_ops *ops = c->ops;
	float *acc = c->rank < 2 ? own : c->scratch; /* x0 + x1 has the same bits either way round */

	for (int i = 0; i < c->size; i++) {
		float *part = i == c->rank ? own : c->scratch + i * stride;

		if (part != acc && ops->add(c->ctx, KN_F32, n, part, acc))
			return device_error(c, "sum", err);
	}
	if (acc != own && ops->copy(c->ctx, own, acc, (size_t)n * sizeof(float), KN_D2D))
		return device_error(c, "sum", err);
	return 0;
}

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int sp_comm_reduce_scatter(struct sp_comm *c, float *x, const int64_t *off, struct sp_error *err)
{
	struct sp_block *send = c->blocks, *recv = c->blocks + c->size;
	int64_t own = off[c->rank + 1] - off[c->rank], longest = 0, chunk = chunk_elems(c);

	if (c->size == 1)
		return 0;
	for (int i = 0; i < c->size; i++)
		longest = off[i + 1] - off[i] > longest ? off[i + 1] - off[i] : longest;
	int64_t stride = min64(own, chunk);

	if (own && grow_scratch(c, (size_t)(c->size * stride) * sizeof(float), err))
		return -1;
	for (int64_t done = 0; done < longest; done += chunk) {
		int64_t mine = own > done ? min64(own - done, chunk) : 0;
		int n = 0;

		for (int i = 0; i < c->size; i++) {
			int64_t theirs = off[i + 1] - off[i] - done;

			if (i == c->rank)
				continue;
			theirs = theirs > 0 ? min64(theirs, chunk) : 0;
			send[n] = (struct sp_block){i, x + off[i] + done, (size_t)theirs * sizeof(float)};
			recv[n] = (struct sp_block){i, mine ? c->scratch + i * stride : NULL,
						    (size_t)mine * sizeof(float)};
			n++;
		}
		if (sp_comm_exchange(c, "reduce_scatter", send, n, recv, n, err) ||
		    (mine && sum_in_order(c, x + off[c->rank] + done, mine, stride, err)))
			return -1;
	}
	return 0;
}

int sp_comm_all_gather(struct sp_comm *c, float *x, const int64_t *off, struct sp_error *err)
{
	struct sp_block *send = c->blocks, *recv = c->blocks + c->size;
	size_t mine = (size_t)(off[c->rank + 1] - off[c->rank]) * sizeof(float);
	int n = 0;

	for (int i = 0; i < c->size; i++) {
		if (i == c->rank)
			continue;
		send[n] = (struct sp_block){i, x + off[c->rank], mine};
		recv[n] = (struct sp_block){i, x + off[i], (size_t)(off[i + 1] - off[i]) * sizeof(float)};
		n++;
	}
	return sp_comm_exchange(c, "all_gather", send, n, recv, n, err);
}
