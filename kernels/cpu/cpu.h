/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H
/*
 * Private: the fast host backend's operations; meanings as in kernels.h. Drivers here check, split into rows or
 * blocks and run the per-instruction-set functions of vec.h under OpenMP. How work is cut never depends on timing,
 * and except for matrix products results do not depend on the number of threads either.
 */
#include "kernels/kn_host.h"
#include "kernels/cpu/vec.h"

/* Threads for `work` elements: a team costs some microseconds, so small jobs stay on the caller. */
static inline int cpu_nt(const struct kn_ctx *c, int64_t work)
{
	int64_t n = 1 + work / 16384;

	return n < c->threads ? (int)n : c->threads;
}

int cpu_gemm(struct kn_ctx *c, const struct kn_gemm *g);
int cpu_copy(struct kn_ctx *c, void *dst, const void *src, size_t bytes, enum kn_copy_dir dir);
int cpu_zero(struct kn_ctx *c, void *dst, size_t bytes);
int cpu_add(struct kn_ctx *c, enum kn_dtype t, int64_t n, const void *x, void *y);
int cpu_add_rows(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t cols, const void *x, int64_t ldx, void *y,
		 int64_t ldy);
int cpu_scale(struct kn_ctx *c, int64_t n, float a, float *x);
int cpu_convert(struct kn_ctx *c, int64_t n, const void *x, enum kn_dtype tx, void *y, enum kn_dtype ty);
int cpu_sumsq(struct kn_ctx *c, int64_t n, const float *x, double *host_sum);
int cpu_embed_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *w, void *y);
int cpu_embed_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *dy, float *dw);
int cpu_rmsnorm_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, float eps, const void *x,
		    int64_t ldx, const void *w, void *y, int64_t ldy, float *rstd);
int cpu_rmsnorm_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, const void *x, int64_t ldx,
		    const void *w, const float *rstd, const void *dy, int64_t lddy, void *dx, int64_t lddx, int acc,
		    float *dw);
int cpu_rope(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, int64_t rd, void *x,
	     int64_t ldx, const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos, int inverse);
int cpu_swiglu_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, void *y, int64_t ldy);
int cpu_swiglu_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, const void *dy, int64_t lddy, void *dg, int64_t lddg, void *du,
		   int64_t lddu);
int cpu_bias_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *b, void *y, int64_t ldy);
int cpu_bias_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *dy, int64_t lddy, float *db);
int cpu_attn_fwd(struct kn_ctx *c, const struct kn_attn *a);
int cpu_attn_bwd(struct kn_ctx *c, const struct kn_attn *a);
int cpu_rowdot(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, const void *do_,
	       int64_t lddo, const void *o, int64_t ldo, float *out, int64_t ldout);
int cpu_xent(struct kn_ctx *c, int64_t T, int64_t V, float *logits, int64_t ldl, const int32_t *labels,
	     float grad_scale, float *nll, double *host_loss_sum);
int cpu_adamw(struct kn_ctx *c, const struct kn_adamw *a);

#endif
