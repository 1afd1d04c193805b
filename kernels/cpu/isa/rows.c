/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise operations, norms and rotation of one row or range. Tails shorter than a vector are loaded with
 * zeros behind them, so each formula is written once. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/kn_host.h"

#define LOAD(p, i, n)	  ((n) - (i) >= W ? vld((p) + (i)) : vld_n((p) + (i), (n) - (i)))
#define STORE(p, i, n, x) ((n) - (i) >= W ? vst((p) + (i), x) : vst_n((p) + (i), x, (n) - (i)))

void KN_SYM(kn_v_add)(int64_t n, const float *x, float *y)
{
	for (int64_t i = 0; i < n; i++)
		y[i] += x[i];
}

void KN_SYM(kn_v_scale)(int64_t n, float a, float *x)
{
	for (int64_t i = 0; i < n; i++)
		x[i] *= a;
}

void KN_SYM(kn_v_to_bf16)(int64_t n, const float *x, uint16_t *y)
{
	for (int64_t i = 0; i < n; i++)
		y[i] = kn_f32_to_bf16(x[i]);
}

void KN_SYM(kn_v_from_bf16)(int64_t n, const uint16_t *x, float *y)
{
	for (int64_t i = 0; i < n; i++)
		y[i] = kn_bf16_to_f32(x[i]);
}

void KN_SYM(kn_v_exp)(int64_t n, const float *x, float *y)
{
	for (int64_t i = 0; i < n; i += W)
		STORE(y, i, n, vexp(LOAD(x, i, n)));
}

/* fp64 all the way: the global gradient norm sums millions of squares. */
double KN_SYM(kn_v_sumsq)(int64_t n, const float *x)
{
	double lane[2 * W] = {0}, s = 0;
	int64_t i = 0;

	for (; i + 2 * W <= n; i += 2 * W)
		for (int j = 0; j < 2 * W; j++)
			lane[j] += (double)x[i + j] * x[i + j];
	for (; i < n; i++)
		s += (double)x[i] * x[i];
	for (int j = 0; j < 2 * W; j++)
		s += lane[j];
	return s;
}

float KN_SYM(kn_v_dot)(int64_t n, const float *x, const float *y)
{
	vf a = {0}, b = {0};
	int64_t i = 0;

	for (; i + 2 * W <= n; i += 2 * W) {
		a += vld(x + i) * vld(y + i);
		b += vld(x + i + W) * vld(y + i + W);
	}
	for (; i < n; i += W)
		a += LOAD(x, i, n) * LOAD(y, i, n);
	return vsum(a + b);
}

float KN_SYM(kn_v_rmsnorm_fwd)(int64_t C, float eps, const float *x, const float *w, float *y)
{
	float rstd = 1.0f / sqrtf(KN_SYM(kn_v_dot)(C, x, x) / (float)C + eps);

	for (int64_t i = 0; i < C; i++)
		y[i] = x[i] * rstd * w[i];
	return rstd;
}

/* n = x rstd, gw = w dy: dx = rstd (gw - n mean(gw n)), dw += dy n */
void KN_SYM(kn_v_rmsnorm_bwd)(int64_t C, const float *x, const float *w, float rstd, const float *dy, float *dx,
			      int acc, float *dw)
{
	vf a = {0}, b = {0};
	float k;
	int64_t i = 0;

	for (; i + 2 * W <= C; i += 2 * W) {
		a += vld(x + i) * vld(w + i) * vld(dy + i);
		b += vld(x + i + W) * vld(w + i + W) * vld(dy + i + W);
	}
	for (; i < C; i += W)
		a += LOAD(x, i, C) * LOAD(w, i, C) * LOAD(dy, i, C);
	k = vsum(a + b) * rstd * rstd / (float)C;
	for (i = 0; i < C; i += W) {
		vf n = LOAD(x, i, C), g = LOAD(dy, i, C), r;

		STORE(dw, i, C, LOAD(dw, i, C) + g * (n * rstd));
		r = (g * LOAD(w, i, C) - n * k) * rstd;
		/* acc = 0 must not read dx: it may hold NaN */
		if (acc)
			r += LOAD(dx, i, C);
		STORE(dx, i, C, r);
	}
}

void KN_SYM(kn_v_rope)(int64_t heads, int64_t d, int64_t half, float *x, const float *cos_t, const float *sin_t,
		       float sign)
{
	for (int64_t h = 0; h < heads; h++) {
		float *a = x + h * d, *b = a + half;

		for (int64_t i = 0; i < half; i += W) {
			vf co = LOAD(cos_t, i, half), si = LOAD(sin_t, i, half) * sign;
			vf u = LOAD(a, i, half), v = LOAD(b, i, half);

			STORE(a, i, half, u * co - v * si);
			STORE(b, i, half, v * co + u * si);
		}
	}
}

void KN_SYM(kn_v_swiglu_fwd)(int64_t n, const float *g, const float *u, float *y)
{
	for (int64_t i = 0; i < n; i += W) {
		vf x = LOAD(g, i, n);

		STORE(y, i, n, x / (vexp(-x) + 1.0f) * LOAD(u, i, n));
	}
}

/* d silu(g)/dg = s (1 + g (1 - s)), s = sigmoid(g). dg and du may be g and u: each vector is read first. */
void KN_SYM(kn_v_swiglu_bwd)(int64_t n, const float *g, const float *u, const float *dy, float *dg, float *du)
{
	for (int64_t i = 0; i < n; i += W) {
		vf x = LOAD(g, i, n), up = LOAD(u, i, n), dv = LOAD(dy, i, n);
		vf s = 1.0f / (vexp(-x) + 1.0f);

		STORE(dg, i, n, dv * up * s * (x * (1.0f - s) + 1.0f));
		STORE(du, i, n, dv * x * s);
	}
}

/* Sums of at most this many terms stay in fp32 lanes; above, partial sums go to fp64. */
#define XENT_BLOCK 4096

double KN_SYM(kn_v_xent)(int64_t V, float *x, int32_t label, float grad_scale)
{
	float max, lab = x[label];
	double sum = 0;
	vf m = vset(-INFINITY);
	int64_t i = 0;

	for (; i + W <= V; i += W)
		m = vmax(vld(x + i), m);
	max = vmaxall(m);
	for (; i < V; i++)
		max = x[i] > max ? x[i] : max;
	for (int64_t b = 0; b < V; b += XENT_BLOCK) {
		int64_t end = V - b < XENT_BLOCK ? V : b + XENT_BLOCK;
		vf s0 = {0}, s1 = {0};

		for (i = b; i + 2 * W <= end; i += 2 * W) {
			vf e0 = vexp(vld(x + i) - max), e1 = vexp(vld(x + i + W) - max);

			s0 += e0;
			s1 += e1;
			if (grad_scale != 0) {
				vst(x + i, e0);
				vst(x + i + W, e1);
			}
		}
		for (; i < end; i++) {
			vf e = vexp(vset(x[i] - max));

			sum += e[0];
			if (grad_scale != 0)
				x[i] = e[0];
		}
		sum += vsum(s0 + s1);
	}
	if (grad_scale != 0) {
		float k = (float)(grad_scale / sum);

		KN_SYM(kn_v_scale)(V, k, x);
		x[label] = (float)(grad_scale * (exp((double)lab - max) / sum - 1));
	}
	return log(sum) + max - lab;
}

void KN_SYM(kn_v_adamw)(int64_t n, const struct kn_adamw_coef *k, float *p, float *m, float *v, const float *g)
{
	for (int64_t i = 0; i < n; i += W) {
		vf gi = LOAD(g, i, n) * k->grad_scale, mi = LOAD(m, i, n), vi_ = LOAD(v, i, n);
		vf pi = LOAD(p, i, n) * k->decay;

		mi = mi + (gi - mi) * k->b1c;
		vi_ = vi_ * k->b2 + gi * k->b2c * gi;
		pi = pi - mi * k->step_size / (vsqrt(vi_) / k->c2_sqrt + k->eps);
		STORE(m, i, n, mi);
		STORE(v, i, n, vi_);
		STORE(p, i, n, pi);
	}
}
