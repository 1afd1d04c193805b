/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_PLAN_H
#define LIBSP_SP_PLAN_H
/*
 * The plan: who holds which tokens and heads, and where every block of the Ulysses exchange lies. Pure functions on
 * integers: no MPI, no device, no allocation beyond the plan itself. Any number of tokens, heads and ranks.
 *
 *   tokens   rank r of P owns an even split of the row's S tokens, the first S mod P ranks one longer.
 *   q heads  the same split of Hq heads: rank r attends with [q_begin[r], q_begin[r+1]).
 *   kv heads rank r needs floor(a*Hkv/Hq) .. floor((b-1)*Hkv/Hq) for its q heads [a, b). A head needed by several ranks is
 *            sent to each from one buffer; the partial dK, dV that come back are summed in rank order in fp32.
 *   runs     maximal stretches of kv heads that go to the same ranks; they tile [0, Hkv) in order.
 *
 * Buffers of rank r with T = its tokens, d = head size (all row-major, no padding, elements):
 *
 *   token-sharded side ("local")                       head-sharded side ("remote"; S = all tokens of the row)
 *   Q  per rank p:  [T][nq_p * d]  at T*q_begin[p]*d    Q   [S][nq_r * d]
 *   KV per run u:   [T][2*n_u * d] at T*kv_begin_u*2*d  KV  per run u of mine: [S][2*n_u*d] at S*(kv_begin_u - kv_lo_r)*2*d
 *      a row is  k heads of the run | v heads of the run
 *   O  as Q                                             O   as Q
 *   D  per rank p:  [T][nq_p] fp32 at T*q_begin[p]      D   [S][nq_r] fp32
 *   dKV as KV, after summing the replicas, which arrive as
 *      per run u, per rank p in [dest_begin, dest_end): [T][2*n_u*d]
 *
 * Both sides are contiguous per pair of ranks: the projections write the send buffer and attention reads the receive
 * buffer; nothing is packed or unpacked, and canonical (Hugging Face) row order of the weights is kept.
 */
#include <stdint.h>
#include "libsp/sp_err.h"

/* [*begin, *end) of part `index` of `parts` in an even split of total, longer parts first. */
void sp_split(int64_t total, int parts, int index, int64_t *begin, int64_t *end);

struct sp_run {
	int kv_begin, kv_end;     /* kv heads */
	int dest_begin, dest_end; /* ranks that need them, contiguous */
};

struct sp_plan {
	int p, rank;
	int hq, hkv, d;
	const int *q_begin; /* [p + 1] */
	const int *kv_lo;   /* [p] kv heads of rank r: [kv_lo[r], kv_hi[r]) */
	const int *kv_hi;   /* [p] */
	int nruns;
	const struct sp_run *runs;
	int run_lo, run_hi; /* runs whose destinations include this rank */
	int replicas;       /* sum over runs of destinations: blocks of dKV that come back */
	const int *kv_of;   /* [nq of this rank] kv head, counted from kv_lo[rank], of each of its q heads */
};

/* Refuses p > hq with the largest sp that works, hkv > hq, sizes < 1, d > 256. */
int sp_plan_create(int hq, int hkv, int d, int p, int rank, struct sp_plan **out, struct sp_error *err);
void sp_plan_destroy(struct sp_plan *plan);

static inline int sp_plan_nq(const struct sp_plan *pl, int r) { return pl->q_begin[r + 1] - pl->q_begin[r]; }
static inline int sp_plan_nkv(const struct sp_plan *pl, int r) { return pl->kv_hi[r] - pl->kv_lo[r]; }
/* Element offset of rank p's block in a local Q/O buffer, and of run u's block in a local KV buffer. */
static inline int64_t sp_plan_q_off(const struct sp_plan *pl, int64_t t, int p)
{
	return t * pl->q_begin[p] * pl->d;
}
static inline int64_t sp_plan_kv_off(const struct sp_plan *pl, int64_t t, int u)
{
	return t * pl->runs[u].kv_begin * 2 * pl->d;
}

/* Elements of each buffer for t local and s row tokens (dKV_recv: the replicas' blocks). */
struct sp_plan_sizes {
	int64_t q_local, kv_local, d_local, dkv_recv;
	int64_t q_remote, kv_remote, d_remote;
};
void sp_plan_sizes(const struct sp_plan *pl, int64_t t, int64_t s, struct sp_plan_sizes *out);

/* Bytes this rank sends to other ranks in one layer, for `spctl plan` and the log. */
struct sp_plan_bytes {
	int64_t fwd_qkv, fwd_out, bwd_out, bwd_qkv;
};
void sp_plan_bytes(const struct sp_plan *pl, int64_t s, int elem_size, struct sp_plan_bytes *out);

#endif
