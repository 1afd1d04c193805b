/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_ATTN_H
#define KERNELS_CPU_ATTN_H
/*
 * Private: how attention work is cut, shared by the driver (cpu_attn.c) and the tile code (isa/attn_*.c).
 *
 *             keys ->                    forward job: queries [lo, hi) of one document, heads [h0, h1) of one kv
 *   queries   +--+                       head, against all keys they see; writes its own rows of o and lse only.
 *     |       |\ |
 *     v       | \|--+                    backward job: keys [lo, hi) of one document and one kv head, against all
 *             +--+\ |                    queries that see them. dk, dv stay in the job's buffer until it ends; its
 *             |  | \|                    share of dq is added when the jobs of all earlier key tiles have added
 *             +--+--+                    theirs (a counter per query tile), so 5 products suffice, no copy of dq is
 *                                        needed, and the order of every sum is fixed whatever the thread count.
 */
#include "kernels/kernels.h"

enum {
	ATTN_BK = 64,       /* keys per tile */
	ATTN_ROWS = 128,    /* most query rows (tokens x heads of the group) of a forward job */
	ATTN_MAX_HEADS = 8, /* most heads of a forward job */
	ATTN_PAD = 32,      /* widest register tile of any instruction set, in floats */
};

struct attn_job {
	int64_t begin, end; /* document */
	int64_t lo, hi;     /* forward: queries; backward: keys */
	int64_t bq;         /* backward: queries per tile */
	int kv, h0, h1;
	int32_t *turn; /* backward: per query tile of this document and kv head, shares of dq added so far */
	void (*poll)(void *arg);
	void *poll_arg;
};

/* First key query t sees in a document that starts at `begin`. */
static inline int64_t attn_first_key(const struct kn_attn *a, int64_t begin, int64_t t)
{
	int64_t lo = a->window > 0 ? t - a->window + 1 : begin;

	return lo > begin ? lo : begin;
}

static inline int64_t attn_pad(int64_t n) { return (n + ATTN_PAD - 1) / ATTN_PAD * ATTN_PAD; }

/* Floats of one thread's buffer. fwd: q, o [ROWS][dp], scores [ROWS][BK], k^T, v panels, m, l.
 * bwd: k^T, v^T, k panels, dk, dv [BK][dp], q, do panels and dq [bq][dp], p and ds [bq][BK]. */
static inline int64_t attn_fwd_floats(int d)
{
	return ATTN_ROWS * (2 * attn_pad(d) + ATTN_BK + 2) + 2 * ATTN_BK * attn_pad(d);
}
static inline int64_t attn_bwd_floats(int d, int64_t bq)
{
	return 5 * ATTN_BK * attn_pad(d) + 3 * bq * attn_pad(d) + 2 * bq * ATTN_BK;
}

#endif
