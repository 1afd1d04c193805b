/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_VEC_H
#define KERNELS_CPU_VEC_H
/*
 * Private: what is compiled once per instruction set. The sources in cpu/isa/ are built several times with
 * different -m flags (module.mk) and each build exports one table; open() picks the best one this processor has.
 * Everything here runs on one thread and one range; the drivers in cpu/ deal ranges to threads.
 */
#include "kernels/kernels.h"

/* fp32 coefficients of one AdamW step, folded from doubles as torch.optim.AdamW does. */
struct kn_adamw_coef {
	float grad_scale, decay, b1c, b2, b2c, c2_sqrt, eps, step_size; /* b1c = 1 - beta1, b2c = 1 - beta2 */
};

struct attn_job;

struct kn_vec {
	const char *name;
	void (*add)(int64_t n, const float *x, float *y);
	void (*scale)(int64_t n, float a, float *x);
	double (*sumsq)(int64_t n, const float *x);
	float (*dot)(int64_t n, const float *x, const float *y);
	void (*to_bf16)(int64_t n, const float *x, uint16_t *y);
	void (*from_bf16)(int64_t n, const uint16_t *x, float *y);
	/* One row [C]; returns rstd. */
	float (*rmsnorm_fwd)(int64_t C, float eps, const float *x, const float *w, float *y);
	/* One row; dw [C] gets the row's share added. */
	void (*rmsnorm_bwd)(int64_t C, const float *x, const float *w, float rstd, const float *dy, float *dx, int acc,
			    float *dw);
	/* One token: x [heads][d], cos_t, sin_t [half]; sign -1 turns back. */
	void (*rope)(int64_t heads, int64_t d, int64_t half, float *x, const float *cos_t, const float *sin_t,
		     float sign);
	void (*swiglu_fwd)(int64_t n, const float *g, const float *u, float *y);
	void (*swiglu_bwd)(int64_t n, const float *g, const float *u, const float *dy, float *dg, float *du);
	/* One row of logits [V]: returns -log p[label]; grad_scale != 0 turns the row into its gradient. */
	double (*xent)(int64_t V, float *x, int32_t label, float grad_scale);
	void (*adamw)(int64_t n, const struct kn_adamw_coef *k, float *p, float *m, float *v, const float *g);
	/* One job of attn.h; buf: a thread's own attn_fwd_floats() or attn_bwd_floats() floats. */
	void (*attn_fwd)(const struct kn_attn *a, const struct attn_job *j, float *buf);
	void (*attn_bwd)(const struct kn_attn *a, const struct attn_job *j, float *buf);
	/* y[i] = exp(x[i]), for tests of the accuracy */
	void (*exp)(int64_t n, const float *x, float *y);
};

extern const struct kn_vec kn_vec_generic;
#ifdef KN_X86
extern const struct kn_vec kn_vec_avx2, kn_vec_avx512;
#endif

/* The table for this processor, or the one KN_CPU_ISA=generic|avx2|avx512 names; NULL if that one is not
 * known or the processor lacks it. */
const struct kn_vec *kn_vec_pick(void);

#endif
