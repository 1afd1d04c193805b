/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_ATTN_H
#define LIBSP_SP_ATTN_H
/*
 * Ulysses attention of one layer: tokens are sharded outside, heads inside. Forward moves q, k, v in one exchange, attends
 * over whole documents with this rank's heads, and moves the output back in a second one; backward mirrors it, shipping
 * D = rowsum(dO*O), computed on local tokens, with dO (2309.14509; D trick: FlashAttention-2, 2307.08691).
 * With one rank nothing is copied: attention works on the local buffers.
 *
 * Layouts of all buffers: sp_plan.h. RoPE is applied by the caller to the local q and k before the exchange.
 */
#include <stdint.h>
#include "kernels/kernels.h"
#include "libsp/sp_comm.h"
#include "libsp/sp_plan.h"

struct sp_attn;
struct sp_attn_opts {
	int hq, hkv, d;
	float scale;
	int64_t window; /* 0: none */
	enum kn_dtype dtype;
};
int sp_attn_create(struct sp_comm *sp, const struct kn_ops *ops, struct kn_ctx *ctx, const struct sp_attn_opts *o,
		   struct sp_attn **out, struct sp_error *err);
void sp_attn_destroy(struct sp_attn *a);
const struct sp_plan *sp_attn_plan(const struct sp_attn *a);

/* The row all following calls work on: s tokens in ndoc documents (cu: host, copied). Equal on all ranks of the group. */
int sp_attn_set_row(struct sp_attn *a, int64_t s, const int64_t *cu, int64_t ndoc, struct sp_error *err);

/* What forward leaves for backward, device memory owned by the caller; element counts from sp_attn_save_sizes.
 * With one rank q and kv are not used (may be NULL): backward reads the local buffers again. */
struct sp_attn_save {
	void *q, *kv; /* q_remote, kv_remote elements of dtype */
	float *lse;   /* nq * s fp32 */
};
void sp_attn_save_sizes(const struct sp_attn *a, int64_t s, int64_t *q, int64_t *kv, int64_t *lse);

/* q [q_local], kv [kv_local] in; o [q_local] out. All of dtype. Collective. Scratch belongs to a and only grows. */
int sp_attn_fwd(struct sp_attn *a, const void *q, const void *kv, void *o, const struct sp_attn_save *save,
		struct sp_error *err);
/* o: as forward wrote it; do_ [q_local] in; dq [q_local], dkv [kv_local] out (overwritten). */
int sp_attn_bwd(struct sp_attn *a, const void *q, const void *kv, const void *o, const void *do_,
		const struct sp_attn_save *save, void *dq, void *dkv, struct sp_error *err);

#endif
