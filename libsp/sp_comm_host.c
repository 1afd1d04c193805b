/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on a few host bytes, and all_reduce. All are direct exchanges: whoever is missing is named by every rank
 * that waits for it, which a tree would hide. */
#include <stdlib.h>
#include <string.h>
#include "libsp/sp_comm_impl.h"
#include "libsp/sp_plan.h"

#define MAX_HOST_VALUES 64

static int exchange_host(struct sp_comm *c, const char *what, int nsend, int nrecv, struct sp_error *err)
{
	struct sp_request *r;

	if (sp_comm_start_mem(c, SP_MEM_HOST, what, c->blocks, nsend, c->blocks + c->size, nrecv, &r, err))
		return -1;
	return sp_comm_wait(r, err);
}

static int gather(struct sp_comm *c, const char *what, const void *mine, size_t bytes, void *all,
		  struct sp_error *err)
{
	for (int i = 0; i < c->size; i++) {
		c->blocks[i] = (struct sp_block){i, (void *)(uintptr_t)mine, bytes};
		c->blocks[c->size + i] = (struct sp_block){i, (char *)all + (size_t)i * bytes, bytes};
	}
	return exchange_host(c, what, c->size, c->size, err);
}

int sp_comm_host_gather(struct sp_comm *c, const void *mine, size_t bytes, void *all, struct sp_error *err)
{
	return gather(c, "gather", mine, bytes, all, err);
}

static void *host_scratch(struct sp_comm *c, size_t bytes, struct sp_error *err)
{
	void *p;

	if (bytes <= c->host_bytes)
		return c->host;
	p = realloc(c->host, bytes);
	if (!p) {
		sp_errorf(err, SP_ENOMEM, "no memory for %zu bytes on %s", bytes, c->name);
		return NULL;
	}
	c->host = p;
	c->host_bytes = bytes;
	return p;
}

/* all[size][n] of 8-byte values, or NULL with err set. */
static void *gather_values(struct sp_comm *c, const char *what, const void *x, int n, struct sp_error *err)
{
	void *all;

	if (n < 0 || n > MAX_HOST_VALUES) {
		sp_errorf(err, SP_EINTERNAL, "%s on %s: %d values, at most %d", what, c->name, n, MAX_HOST_VALUES);
		return NULL;
	}
	all = host_scratch(c, (size_t)c->size * MAX_HOST_VALUES * 8, err);
	if (!all || gather(c, what, x, (size_t)n * 8, all, err))
		return NULL;
	return all;
}

int sp_comm_host_sum(struct sp_comm *c, double *x, int n, struct sp_error *err)
{
	const double *all = gather_values(c, "sum", x, n, err);

	if (!all)
		return -1;
	for (int i = 0; i < n; i++) {
		double sum = all[i];

		for (int r = 1; r < c->size; r++)
			sum += all[(size_t)r * (size_t)n + (size_t)i];
		x[i] = sum;
	}
	return 0;
}

int sp_comm_host_max(struct sp_comm *c, int64_t *x, int n, struct sp_error *err)
{
	const int64_t *all = gather_values(c, "vote", x, n, err);

	if (!all)
		return -1;
	for (int r = 0; r < c->size; r++)
		for (int i = 0; i < n; i++)
			if (all[(size_t)r * (size_t)n + (size_t)i] > x[i])
				x[i] = all[(size_t)r * (size_t)n + (size_t)i];
	return 0;
}

int sp_comm_host_bcast(struct sp_comm *c, void *p, size_t bytes, int root, struct sp_error *err)
{
	int nsend = 0, nrecv = 0;

	if (root < 0 || root >= c->size)
		return sp_errorf(err, SP_EINTERNAL, "broadcast on %s: root %d of %d ranks", c->name, root, c->size);
	if (c->rank == root) {
		for (int i = 0; i < c->size; i++)
			if (i != root)
				c->blocks[nsend++] = (struct sp_block){i, p, bytes};
	} else {
		c->blocks[c->size + nrecv++] = (struct sp_block){root, p, bytes};
	}
	return exchange_host(c, "broadcast", nsend, nrecv, err);
}

int sp_comm_barrier(struct sp_comm *c, struct sp_error *err)
{
	char one = 1;
	char *all = host_scratch(c, (size_t)c->size, err);

	if (!all)
		return -1;
	return gather(c, "barrier", &one, 1, all, err);
}

int sp_comm_all_reduce(struct sp_comm *c, float *x, int64_t n, struct sp_error *err)
{
	int64_t end;

	for (int i = 0; i < c->size; i++)
		sp_split(n, c->size, i, &c->off[i], &end);
	c->off[c->size] = n;
	if (sp_comm_reduce_scatter(c, x, c->off, err) || sp_comm_all_gather(c, x, c->off, err))
		return -1;
	return 0;
}
