/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm, rotary embedding, SwiGLU. */
#include "kernels/ref/ref.h"

#include <math.h>

int ref_rmsnorm_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, float eps, const void *x,
		    int64_t ldx, const void *w, void *y, int64_t ldy, float *rstd)
{
	const float *wf = w;
	int rc;

	if ((rc = kn_check_f32(&c->err, "rmsnorm_fwd", t)) ||
	    (rc = kn_check_rmsnorm(&c->err, "rmsnorm_fwd", rows, C, x, ldx, w, y, ldy, rstd)))
		return rc;
	for (int64_t r = 0; r < rows; r++) {
		const float *xr = (const float *)x + r * ldx;
		float *yr = (float *)y + r * ldy;
		double s = 0;

		for (int64_t j = 0; j < C; j++)
			s += (double)xr[j] * xr[j];
		s = 1 / sqrt(s / (double)C + (double)eps);
		rstd[r] = (float)s;
		for (int64_t j = 0; j < C; j++)
			yr[j] = (float)(xr[j] * s * wf[j]);
	}
	return 0;
}

/* With n = x rstd and gw = w dy: dx = rstd (gw - n mean(gw n)), dw = sum over rows of dy n. */
int ref_rmsnorm_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, const void *x, int64_t ldx,
		    const void *w, const float *rstd, const void *dy, int64_t lddy, void *dx, int64_t lddx, int acc,
		    float *dw)
{
	const float *xf = x, *wf = w, *dyf = dy;
	int rc;

	if ((rc = kn_check_f32(&c->err, "rmsnorm_bwd", t)) ||
	    (rc = kn_check_rmsnorm(&c->err, "rmsnorm_bwd", rows, C, x, ldx, w, dx, lddx, rstd)) ||
	    (rc = kn_check_mat(&c->err, "rmsnorm_bwd", "dy", dy, rows, C, lddy)) ||
	    (rc = kn_check_vec(&c->err, "rmsnorm_bwd", "dw", C, dw)))
		return rc;
	for (int64_t j = 0; j < C; j++) {
		double s = 0;

		for (int64_t r = 0; r < rows; r++)
			s += (double)dyf[r * lddy + j] * xf[r * ldx + j] * rstd[r];
		dw[j] = (float)(dw[j] + s);
	}
	for (int64_t r = 0; r < rows; r++) {
		const float *xr = xf + r * ldx, *dyr = dyf + r * lddy;
		float *dxr = (float *)dx + r * lddx;
		double dot = 0, rs = rstd[r];

		for (int64_t j = 0; j < C; j++)
			dot += (double)dyr[j] * wf[j] * xr[j] * rs;
		dot /= (double)C;
		for (int64_t j = 0; j < C; j++) {
			double g = rs * ((double)dyr[j] * wf[j] - xr[j] * rs * dot);

			dxr[j] = (float)(acc ? dxr[j] + g : g);
		}
	}
	return 0;
}

int ref_rope(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, int64_t rd, void *x,
	     int64_t ldx, const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos, int inverse)
{
	int64_t half = rd / 2;
	int rc;

	if ((rc = kn_check_f32(&c->err, "rope", t)) ||
	    (rc = kn_check_rope(&c->err, T, heads, d, rd, x, ldx, pos, cos_t, sin_t, max_pos)) ||
	    (rc = kn_check_pos(&c->err, T, pos, max_pos)))
		return rc;
	for (int64_t i = 0; i < T; i++)
		for (int64_t h = 0; h < heads; h++) {
			float *a = (float *)x + i * ldx + h * d, *b = a + half;

			for (int64_t j = 0; j < half; j++) {
				double co = cos_t[pos[i] * half + j], si = sin_t[pos[i] * half + j];
				double u = a[j], v = b[j];

				if (inverse)
					si = -si;
				a[j] = (float)(u * co - v * si);
				b[j] = (float)(v * co + u * si);
			}
		}
	return 0;
}

int ref_swiglu_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, void *y, int64_t ldy)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "swiglu_fwd", t)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_fwd", "g", g, T, F, ldg)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_fwd", "u", u, T, F, ldu)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_fwd", "y", y, T, F, ldy)))
		return rc;
	for (int64_t i = 0; i < T; i++)
		for (int64_t j = 0; j < F; j++) {
			double gv = ((const float *)g)[i * ldg + j], uv = ((const float *)u)[i * ldu + j];

			((float *)y)[i * ldy + j] = (float)(gv / (1 + exp(-gv)) * uv);
		}
	return 0;
}

/* d silu(g)/dg = s (1 + g (1 - s)) with s = sigmoid(g) */
int ref_swiglu_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, const void *dy, int64_t lddy, void *dg, int64_t lddg, void *du,
		   int64_t lddu)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "swiglu_bwd", t)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_bwd", "g", g, T, F, ldg)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_bwd", "u", u, T, F, ldu)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_bwd", "dy", dy, T, F, lddy)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_bwd", "dg", dg, T, F, lddg)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_bwd", "du", du, T, F, lddu)))
		return rc;
	for (int64_t i = 0; i < T; i++)
		for (int64_t j = 0; j < F; j++) {
			double gv = ((const float *)g)[i * ldg + j], uv = ((const float *)u)[i * ldu + j];
			double dv = ((const float *)dy)[i * lddy + j], s = 1 / (1 + exp(-gv));

			((float *)dg)[i * lddg + j] = (float)(dv * uv * s * (1 + gv * (1 - s)));
			((float *)du)[i * lddu + j] = (float)(dv * gv * s);
		}
	return 0;
}
