/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "libsp/sp_attn.h"

/* Device memory that only grows. */
struct buf {
	void *p;
	size_t bytes;
};

struct sp_attn {
	struct sp_comm *sp;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct sp_attn_opts o;
	size_t es; /* bytes of an element */
	struct sp_plan *plan;
	int nq, nkv; /* heads here */

	int64_t s, t; /* tokens of the row, of this rank */
	int64_t *tok; /* [p + 1] first token of each rank */
	int64_t *cu;  /* [ndoc + 1] */
	int64_t ndoc, cu_cap;

	struct kn_q_head *qh;   /* [nq] */
	struct kn_kv_head *kvh; /* [nkv] */
	struct sp_block *send, *recv;
	int nsend, nrecv;

	struct buf o_remote;  /* fwd: O; bwd: dO; [S][nq*d] */
	struct buf dq_remote; /* [S][nq*d] */
	struct buf dkv_remote;
	struct buf d_local, d_remote; /* fp32 */
	struct buf replicas;          /* dKV blocks of all but the first destination of each run */
	struct buf sum, part;         /* fp32, of the sum of bf16 replicas */
};

static int grow(struct sp_attn *a, struct buf *b, int64_t elems, size_t es, struct sp_error *err)
{
	size_t bytes = (size_t)elems * es;
	void *p;

	if (bytes <= b->bytes)
		return 0;
	if (a->ops->alloc(a->ctx, bytes, &p))
		return sp_errorf(err, SP_ENOMEM, "no memory for %zu bytes of attention scratch (%lld tokens)", bytes,
				 (long long)a->s);
	if (b->p)
		a->ops->free(a->ctx, b->p);
	b->p = p;
	b->bytes = bytes;
	return 0;
}

static int device_error(struct sp_attn *a, const char *what, struct sp_error *err)
{
	return sp_errorf(err, SP_EDEVICE, "%s: %s", what, a->ops->strerror(a->ctx));
}

static char *at(const struct sp_attn *a, const void *base, int64_t elem)
{
	return (char *)(uintptr_t)base + (size_t)elem * a->es;
}

int sp_attn_create(struct sp_comm *sp, const struct kn_ops *ops, struct kn_ctx *ctx, const struct sp_attn_opts *o,
		   struct sp_attn **out, struct sp_error *err)
{
	struct sp_attn *a = calloc(1, sizeof(*a));
	int p = sp_comm_size(sp), blocks;

	*out = NULL;
	if (!a)
		return sp_errorf(err, SP_ENOMEM, "no memory for attention");
	*a = (struct sp_attn){.sp = sp, .ops = ops, .ctx = ctx, .o = *o, .es = kn_dtype_size(o->dtype)};
	if (o->window < 0 || !isfinite(o->scale)) {
		sp_errorf(err, SP_EUSAGE, "attention window %lld must be 0 or more, scale %g finite",
			  (long long)o->window, (double)o->scale);
		goto fail;
	}
	if (sp_plan_create(o->hq, o->hkv, o->d, p, sp_comm_rank(sp), &a->plan, err))
		goto fail;
	a->nq = sp_plan_nq(a->plan, a->plan->rank);
	a->nkv = sp_plan_nkv(a->plan, a->plan->rank);
	/* Either direction moves a Q and a D block and one block a run to or from each rank, at most. */
	blocks = 2 * p + (a->plan->replicas > p * (a->plan->run_hi - a->plan->run_lo)
				  ? a->plan->replicas
				  : p * (a->plan->run_hi - a->plan->run_lo));
	a->tok = calloc((size_t)p + 1, sizeof(*a->tok));
	a->qh = calloc((size_t)a->nq, sizeof(*a->qh));
	a->kvh = calloc((size_t)a->nkv, sizeof(*a->kvh));
	a->send = calloc((size_t)blocks, sizeof(*a->send));
	a->recv = calloc((size_t)blocks, sizeof(*a->recv));
	if (!a->tok || !a->qh || !a->kvh || !a->send || !a->recv) {
		sp_errorf(err, SP_ENOMEM, "no memory for attention over %d ranks", p);
		goto fail;
	}
	*out = a;
	return 0;
fail:
	sp_attn_destroy(a);
	return -1;
}

void sp_attn_destroy(struct sp_attn *a)
{
	if (!a)
		return;
	struct buf *all[] = {&a->o_remote, &a->dq_remote, &a->dkv_remote, &a->d_local, &a->d_remote,
			     &a->replicas, &a->sum, &a->part};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (all[i]->p)
			a->ops->free(a->ctx, all[i]->p);
	sp_plan_destroy(a->plan);
	free(a->tok);
	free(a->cu);
	free(a->qh);
	free(a->kvh);
	free(a->send);
	free(a->recv);
	free(a);
}

const struct sp_plan *sp_attn_plan(const struct sp_attn *a)
{
	return a->plan;
}

int sp_attn_set_row(struct sp_attn *a, int64_t s, const int64_t *cu, int64_t ndoc, struct sp_error *err)
{
	if (s < 1 || ndoc < 1 || cu[0] != 0 || cu[ndoc] != s)
		return sp_errorf(err, SP_EUSAGE, "a row of %lld tokens in %lld documents: needs at least one token, and "
				 "documents from token 0 to the last", (long long)s, (long long)ndoc);
	for (int64_t i = 0; i < ndoc; i++)
		if (cu[i + 1] <= cu[i])
			return sp_errorf(err, SP_EUSAGE, "document %lld of the row is empty or starts before its neighbour",
					 (long long)i);
	if (ndoc + 1 > a->cu_cap) {
		int64_t *p = realloc(a->cu, (size_t)(ndoc + 1) * sizeof(*p));

		if (!p)
			return sp_errorf(err, SP_ENOMEM, "no memory for %lld documents", (long long)ndoc);
		a->cu = p;
		a->cu_cap = ndoc + 1;
	}
	memcpy(a->cu, cu, (size_t)(ndoc + 1) * sizeof(*cu));
	a->ndoc = ndoc;
	a->s = s;
	for (int r = 0; r < a->plan->p; r++)
		sp_split(s, a->plan->p, r, &a->tok[r], &a->tok[r + 1]);
	a->t = a->tok[a->plan->rank + 1] - a->tok[a->plan->rank];
	return 0;
}

void sp_attn_save_sizes(const struct sp_attn *a, int64_t s, int64_t *q, int64_t *kv, int64_t *lse)
{
	struct sp_plan_sizes z;

	sp_plan_sizes(a->plan, 0, s, &z);
	*q = a->plan->p > 1 ? z.q_remote : 0;
	*kv = a->plan->p > 1 ? z.kv_remote : 0;
	*lse = (int64_t)a->nq * s;
}

/* ---- blocks of the exchanges; per pair of ranks always Q (or O), D, then runs in order ----------------------- */

static void put(struct sp_block *list, int *n, int peer, const void *ptr, size_t bytes)
{
	list[(*n)++] = (struct sp_block){peer, (void *)(uintptr_t)ptr, bytes};
}

/* Q/O/dO/dQ: the local buffer's block for rank p, [T][nq_p*d], and the remote buffer's rows of rank p, [T_p][nq*d]. */
static void q_blocks(struct sp_attn *a, struct sp_block *local, int *nlocal, const void *lbuf, struct sp_block *remote,
		     int *nremote, const void *rbuf, int p)
{
	const struct sp_plan *pl = a->plan;
	int64_t w = (int64_t)a->nq * pl->d;

	put(local, nlocal, p, at(a, lbuf, sp_plan_q_off(pl, a->t, p)),
	    (size_t)(a->t * sp_plan_nq(pl, p) * pl->d) * a->es);
	put(remote, nremote, p, at(a, rbuf, a->tok[p] * w), (size_t)((a->tok[p + 1] - a->tok[p]) * w) * a->es);
}

/* Elements of one token in run u: its k heads and its v heads. */
static int64_t run_width(const struct sp_plan *pl, int u)
{
	return (int64_t)(pl->runs[u].kv_end - pl->runs[u].kv_begin) * 2 * pl->d;
}

/* First element of run u in a remote KV buffer of s tokens. */
static int64_t run_remote(const struct sp_attn *a, int u)
{
	return a->s * (a->plan->runs[u].kv_begin - a->plan->kv_lo[a->plan->rank]) * 2 * a->plan->d;
}

static int has(const struct sp_run *run, int p)
{
	return p >= run->dest_begin && p < run->dest_end;
}

/* The remote KV buffer's rows of rank p in each of this rank's runs, [T_p][width]. */
static void kv_remote_blocks(struct sp_attn *a, struct sp_block *list, int *n, const void *rbuf, int p)
{
	for (int u = a->plan->run_lo; u < a->plan->run_hi; u++) {
		int64_t w = run_width(a->plan, u);

		put(list, n, p, at(a, rbuf, run_remote(a, u) + a->tok[p] * w),
		    (size_t)((a->tok[p + 1] - a->tok[p]) * w) * a->es);
	}
}

static int exchange(struct sp_attn *a, const char *what, struct sp_error *err)
{
	return sp_comm_exchange(a->sp, what, a->send, a->nsend, a->recv, a->nrecv, err);
}

static int exchange_qkv(struct sp_attn *a, const void *q, const void *kv, const struct sp_attn_save *save,
			struct sp_error *err)
{
	const struct sp_plan *pl = a->plan;

	a->nsend = a->nrecv = 0;
	for (int p = 0; p < pl->p; p++) {
		q_blocks(a, a->send, &a->nsend, q, a->recv, &a->nrecv, save->q, p);
		for (int u = 0; u < pl->nruns; u++) /* a head several ranks need leaves several times from one buffer */
			if (has(&pl->runs[u], p))
				put(a->send, &a->nsend, p, at(a, kv, sp_plan_kv_off(pl, a->t, u)),
				    (size_t)(a->t * run_width(pl, u)) * a->es);
		kv_remote_blocks(a, a->recv, &a->nrecv, save->kv, p);
	}
	return exchange(a, "exchange of q, k, v", err);
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

/* Points the kv heads into a remote (or, with one rank, the local) KV buffer; d* likewise. Either may be NULL. */
static void point_kv(struct sp_attn *a, const void *kv, void *dkv)
{
	const struct sp_plan *pl = a->plan;
	int h = 0;

	for (int u = pl->run_lo; u < pl->run_hi; u++) {
		int64_t n = pl->runs[u].kv_end - pl->runs[u].kv_begin, w = run_width(pl, u), base = run_remote(a, u);

		for (int64_t i = 0; i < n; i++, h++) {
			int64_t k = base + i * pl->d, v = base + (n + i) * pl->d;

			a->kvh[h] = (struct kn_kv_head){
				.k = at(a, kv, k), .v = at(a, kv, v), .ldk = w, .ldv = w,
				.dk = dkv ? at(a, dkv, k) : NULL, .dv = dkv ? at(a, dkv, v) : NULL,
				.lddk = w, .lddv = w,
			};
		}
	}
}

static void point_q(struct sp_attn *a, const void *q, void *o, const void *do_, void *dq, const float *dsum)
{
	int64_t w = (int64_t)a->nq * a->plan->d;

	for (int h = 0; h < a->nq; h++) {
		int64_t col = (int64_t)h * a->plan->d;

		a->qh[h] = (struct kn_q_head){
			.q = at(a, q, col), .ldq = w,
			.o = o ? at(a, o, col) : NULL, .ldo = w,
			.do_ = do_ ? at(a, do_, col) : NULL, .lddo = w,
			.dq = dq ? at(a, dq, col) : NULL, .lddq = w,
			.dsum = dsum ? dsum + h : NULL, .lddsum = a->nq,
		};
	}
}

static struct kn_attn kernel_args(struct sp_attn *a, float *lse)
{
	return (struct kn_attn){
		.dtype = a->o.dtype, .s = a->s, .d = a->plan->d, .nq = a->nq, .nkv = a->nkv, .scale = a->o.scale,
		.window = a->o.window, .cu = a->cu, .ndoc = a->ndoc, .q = a->qh, .kv = a->kvh,
		.kv_of = a->plan->kv_of, .lse = lse, .poll = sp_comm_poll, .poll_arg = a->sp,
	};
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

int sp_attn_fwd(struct sp_attn *a, const void *q, const void *kv, void *o, const struct sp_attn_save *save,
		struct sp_error *err)
{
	const struct sp_plan *pl = a->plan;
	void *attn_o = o;

	if (!a->s)
		return sp_errorf(err, SP_EINTERNAL, "attention before sp_attn_set_row");
	if (pl->p > 1) {
		if (grow(a, &a->o_remote, a->s * a->nq * pl->d, a->es, err) || exchange_qkv(a, q, kv, save, err))
			return -1;
		q = save->q;
		kv = save->kv;
		attn_o = a->o_remote.p;
	}
	point_q(a, q, attn_o, NULL, NULL, NULL);
	point_kv(a, kv, NULL);
	struct kn_attn args = kernel_args(a, save->lse);

	if (a->ops->attn_fwd(a->ctx, &args))
		return device_error(a, "attention", err);
	if (pl->p == 1)
		return 0;
	a->nsend = a->nrecv = 0;
	for (int p = 0; p < pl->p; p++)
		q_blocks(a, a->recv, &a->nrecv, o, a->send, &a->nsend, attn_o, p);
	return exchange(a, "exchange of attention output", err);
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* D = rowsum(dO*O) of the local tokens, per rank p [T][nq_p]: O itself need not travel again. */
static int row_sums(struct sp_attn *a, const void *o, const void *do_, struct sp_error *err)
{
	const struct sp_plan *pl = a->plan;

	for (int p = 0; p < pl->p && a->t; p++) {
		int64_t n = sp_plan_nq(pl, p), off = sp_plan_q_off(pl, a->t, p);

		if (a->ops->rowdot(a->ctx, a->o.dtype, a->t, n, pl->d, at(a, do_, off), n * pl->d, at(a, o, off),
				   n * pl->d, (float *)a->d_local.p + a->t * pl->q_begin[p], n))
			return device_error(a, "row sums of attention", err);
	}
	return 0;
}

static int exchange_do(struct sp_attn *a, const void *do_, struct sp_error *err)
{
	const struct sp_plan *pl = a->plan;

	a->nsend = a->nrecv = 0;
	for (int p = 0; p < pl->p; p++) {
		q_blocks(a, a->send, &a->nsend, do_, a->recv, &a->nrecv, a->o_remote.p, p);
		put(a->send, &a->nsend, p, (float *)a->d_local.p + a->t * pl->q_begin[p],
		    (size_t)(a->t * sp_plan_nq(pl, p)) * sizeof(float));
		put(a->recv, &a->nrecv, p, (float *)a->d_remote.p + a->tok[p] * a->nq,
		    (size_t)((a->tok[p + 1] - a->tok[p]) * a->nq) * sizeof(float));
	}
	return exchange(a, "exchange of output gradients", err);
}

/* Elements of `replicas` before run u's second destination. */
static int64_t replica_off(const struct sp_attn *a, int u)
{
	int64_t off = 0;

	for (int i = 0; i < u; i++)
		off += (a->plan->runs[i].dest_end - a->plan->runs[i].dest_begin - 1) * a->t * run_width(a->plan, i);
	return off;
}

/* dKV of run u as rank p computed it: the first destination's goes straight to its place in dkv. */
static void *dkv_from(struct sp_attn *a, void *dkv, int u, int p)
{
	int64_t i = p - a->plan->runs[u].dest_begin;

	if (!i)
		return at(a, dkv, sp_plan_kv_off(a->plan, a->t, u));
	return at(a, a->replicas.p, replica_off(a, u) + (i - 1) * a->t * run_width(a->plan, u));
}

static int exchange_dqkv(struct sp_attn *a, void *dq, void *dkv, struct sp_error *err)
{
	const struct sp_plan *pl = a->plan;

	a->nsend = a->nrecv = 0;
	for (int p = 0; p < pl->p; p++) {
		q_blocks(a, a->recv, &a->nrecv, dq, a->send, &a->nsend, a->dq_remote.p, p);
		kv_remote_blocks(a, a->send, &a->nsend, a->dkv_remote.p, p);
		for (int u = 0; u < pl->nruns; u++)
			if (has(&pl->runs[u], p))
				put(a->recv, &a->nrecv, p, dkv_from(a, dkv, u, p),
				    (size_t)(a->t * run_width(pl, u)) * a->es);
	}
	return exchange(a, "exchange of q, k, v gradients", err);
}

/* One run of several destinations with 16-bit elements: the sum is kept in fp32 and rounded once. */
static int sum_run_wide(struct sp_attn *a, void *dkv, int u, struct sp_error *err)
{
	const struct sp_run *run = &a->plan->runs[u];
	int64_t n = a->t * run_width(a->plan, u);
	enum kn_dtype t = a->o.dtype;
	const struct kn_ops *ops = a->ops;

	if (grow(a, &a->sum, n, sizeof(float), err) || grow(a, &a->part, n, sizeof(float), err))
		return -1;
	if (ops->convert(a->ctx, n, dkv_from(a, dkv, u, run->dest_begin), t, a->sum.p, KN_F32))
		return device_error(a, "sum of kv gradients", err);
	for (int p = run->dest_begin + 1; p < run->dest_end; p++)
		if (ops->convert(a->ctx, n, dkv_from(a, dkv, u, p), t, a->part.p, KN_F32) ||
		    ops->add(a->ctx, KN_F32, n, a->part.p, a->sum.p))
			return device_error(a, "sum of kv gradients", err);
	if (ops->convert(a->ctx, n, a->sum.p, KN_F32, dkv_from(a, dkv, u, run->dest_begin), t))
		return device_error(a, "sum of kv gradients", err);
	return 0;
}

static int sum_replicas(struct sp_attn *a, void *dkv, struct sp_error *err)
{
	for (int u = 0; u < a->plan->nruns && a->t; u++) {
		const struct sp_run *run = &a->plan->runs[u];
		int64_t n = a->t * run_width(a->plan, u);

		if (run->dest_end - run->dest_begin == 1)
			continue;
		if (a->o.dtype != KN_F32) {
			if (sum_run_wide(a, dkv, u, err))
				return -1;
			continue;
		}
		for (int p = run->dest_begin + 1; p < run->dest_end; p++)
			if (a->ops->add(a->ctx, KN_F32, n, dkv_from(a, dkv, u, p), dkv_from(a, dkv, u, run->dest_begin)))
				return device_error(a, "sum of kv gradients", err);
	}
	return 0;
}

static int grow_bwd(struct sp_attn *a, struct sp_error *err)
{
	int64_t w = (int64_t)a->nq * a->plan->d;

	if (grow(a, &a->d_local, a->t * a->plan->hq, sizeof(float), err))
		return -1;
	if (a->plan->p == 1)
		return 0;
	if (grow(a, &a->o_remote, a->s * w, a->es, err) || grow(a, &a->dq_remote, a->s * w, a->es, err) ||
	    grow(a, &a->dkv_remote, a->s * a->nkv * 2 * a->plan->d, a->es, err) ||
	    grow(a, &a->d_remote, a->s * a->nq, sizeof(float), err) ||
	    grow(a, &a->replicas, replica_off(a, a->plan->nruns), a->es, err))
		return -1;
	return 0;
}

int sp_attn_bwd(struct sp_attn *a, const void *q, const void *kv, const void *o, const void *do_,
		const struct sp_attn_save *save, void *dq, void *dkv, struct sp_error *err)
{
	const struct sp_plan *pl = a->plan;

	if (!a->s)
		return sp_errorf(err, SP_EINTERNAL, "attention before sp_attn_set_row");
	if (grow_bwd(a, err) || row_sums(a, o, do_, err))
		return -1;
	if (pl->p == 1) {
		point_q(a, q, NULL, do_, dq, a->d_local.p);
		point_kv(a, kv, dkv);
	} else {
		if (exchange_do(a, do_, err))
			return -1;
		point_q(a, save->q, NULL, a->o_remote.p, a->dq_remote.p, a->d_remote.p);
		point_kv(a, save->kv, a->dkv_remote.p);
	}
	struct kn_attn args = kernel_args(a, save->lse);

	if (a->ops->attn_bwd(a->ctx, &args))
		return device_error(a, "attention backward", err);
	if (pl->p == 1)
		return 0;
	if (exchange_dqkv(a, dq, dkv, err) || sum_replicas(a, dkv, err))
		return -1;
	return 0;
}
