/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H
/* Private: the oracle's operations, one by one; meanings as in kernels.h. fp64 sums, plain loops, one thread. */
#include "kernels/kn_host.h"

int ref_gemm(struct kn_ctx *c, const struct kn_gemm *g);
int ref_add(struct kn_ctx *c, enum kn_dtype t, int64_t n, const void *x, void *y);
int ref_add_rows(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t cols, const void *x, int64_t ldx, void *y,
		 int64_t ldy);
int ref_scale(struct kn_ctx *c, int64_t n, float a, float *x);
int ref_convert(struct kn_ctx *c, int64_t n, const void *x, enum kn_dtype tx, void *y, enum kn_dtype ty);
int ref_sumsq(struct kn_ctx *c, int64_t n, const float *x, double *host_sum);
int ref_embed_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *w, void *y);
int ref_embed_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *dy, float *dw);
int ref_rmsnorm_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, float eps, const void *x,
		    int64_t ldx, const void *w, void *y, int64_t ldy, float *rstd);
int ref_rmsnorm_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, const void *x, int64_t ldx,
		    const void *w, const float *rstd, const void *dy, int64_t lddy, void *dx, int64_t lddx, int acc,
		    float *dw);
int ref_rope(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, int64_t rd, void *x,
	     int64_t ldx, const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos, int inverse);
int ref_swiglu_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, void *y, int64_t ldy);
int ref_swiglu_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, const void *dy, int64_t lddy, void *dg, int64_t lddg, void *du,
		   int64_t lddu);
int ref_bias_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *b, void *y, int64_t ldy);
int ref_bias_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *dy, int64_t lddy, float *db);
int ref_attn_fwd(struct kn_ctx *c, const struct kn_attn *a);
int ref_attn_bwd(struct kn_ctx *c, const struct kn_attn *a);
int ref_rowdot(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, const void *do_,
	       int64_t lddo, const void *o, int64_t ldo, float *out, int64_t ldout);
int ref_xent(struct kn_ctx *c, int64_t T, int64_t V, float *logits, int64_t ldl, const int32_t *labels,
	     float grad_scale, float *nll, double *host_loss_sum);
int ref_adamw(struct kn_ctx *c, const struct kn_adamw *a);

#endif
