/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_ISA_ROWS_H
#define KERNELS_CPU_ISA_ROWS_H
/* Private: the row functions of one instruction set, joined into its table by table.c. Meanings: vec.h. */
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/vec.h"

void KN_SYM(kn_v_add)(int64_t n, const float *x, float *y);
void KN_SYM(kn_v_scale)(int64_t n, float a, float *x);
double KN_SYM(kn_v_sumsq)(int64_t n, const float *x);
float KN_SYM(kn_v_dot)(int64_t n, const float *x, const float *y);
void KN_SYM(kn_v_to_bf16)(int64_t n, const float *x, uint16_t *y);
void KN_SYM(kn_v_from_bf16)(int64_t n, const uint16_t *x, float *y);
float KN_SYM(kn_v_rmsnorm_fwd)(int64_t C, float eps, const float *x, const float *w, float *y);
void KN_SYM(kn_v_rmsnorm_bwd)(int64_t C, const float *x, const float *w, float rstd, const float *dy, float *dx,
			      int acc, float *dw);
void KN_SYM(kn_v_rope)(int64_t heads, int64_t d, int64_t half, float *x, const float *cos_t, const float *sin_t,
		       float sign);
void KN_SYM(kn_v_swiglu_fwd)(int64_t n, const float *g, const float *u, float *y);
void KN_SYM(kn_v_swiglu_bwd)(int64_t n, const float *g, const float *u, const float *dy, float *dg, float *du);
double KN_SYM(kn_v_xent)(int64_t V, float *x, int32_t label, float grad_scale);
void KN_SYM(kn_v_adamw)(int64_t n, const struct kn_adamw_coef *k, float *p, float *m, float *v, const float *g);
void KN_SYM(kn_v_exp)(int64_t n, const float *x, float *y);

#endif
