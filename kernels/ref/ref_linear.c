/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix product, element-wise operations, embedding, bias. */
#include "kernels/ref/ref.h"

#include <string.h>

int ref_gemm(struct kn_ctx *c, const struct kn_gemm *g)
{
	const float *a = g->a, *b = g->b;
	float *out = g->c;
	int rc = kn_check_gemm(&c->err, g);

	if (rc)
		return rc;
	for (int64_t i = 0; i < g->m; i++)
		for (int64_t j = 0; j < g->n; j++) {
			double s = 0;

			for (int64_t k = 0; k < g->k; k++)
				s += (double)a[g->ta ? k * g->lda + i : i * g->lda + k] *
				     b[g->tb ? j * g->ldb + k : k * g->ldb + j];
			s *= g->alpha;
			if (g->beta != 0)
				s += (double)g->beta * out[i * g->ldc + j];
			out[i * g->ldc + j] = (float)s;
		}
	return 0;
}

int ref_add(struct kn_ctx *c, enum kn_dtype t, int64_t n, const void *x, void *y)
{
	return ref_add_rows(c, t, 1, n, x, n, y, n);
}

int ref_add_rows(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t cols, const void *x, int64_t ldx, void *y,
		 int64_t ldy)
{
	const float *xf = x;
	float *yf = y;
	int rc;

	if ((rc = kn_check_f32(&c->err, "add", t)) || (rc = kn_check_mat(&c->err, "add", "x", x, rows, cols, ldx)) ||
	    (rc = kn_check_mat(&c->err, "add", "y", y, rows, cols, ldy)))
		return rc;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t j = 0; j < cols; j++)
			yf[r * ldy + j] += xf[r * ldx + j];
	return 0;
}

int ref_scale(struct kn_ctx *c, int64_t n, float a, float *x)
{
	int rc = kn_check_vec(&c->err, "scale", "x", n, x);

	if (rc)
		return rc;
	for (int64_t i = 0; i < n; i++)
		x[i] *= a;
	return 0;
}

int ref_convert(struct kn_ctx *c, int64_t n, const void *x, enum kn_dtype tx, void *y, enum kn_dtype ty)
{
	int rc = kn_check_convert(&c->err, n, x, tx, y, ty);

	if (rc)
		return rc;
	for (int64_t i = 0; i < n; i++) {
		float f = tx == KN_F32 ? ((const float *)x)[i] : kn_bf16_to_f32(((const uint16_t *)x)[i]);

		if (ty == KN_F32)
			((float *)y)[i] = f;
		else
			((uint16_t *)y)[i] = kn_f32_to_bf16(f);
	}
	return 0;
}

int ref_sumsq(struct kn_ctx *c, int64_t n, const float *x, double *host_sum)
{
	int rc = kn_check_vec(&c->err, "sumsq", "x", n, x);
	double s = 0;

	if (rc || (rc = kn_check_vec(&c->err, "sumsq", "the sum", 1, host_sum)))
		return rc;
	for (int64_t i = 0; i < n; i++)
		s += (double)x[i] * x[i];
	*host_sum = s;
	return 0;
}

int ref_embed_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *w, void *y)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "embed_fwd", t)) ||
	    (rc = kn_check_embed(&c->err, "embed_fwd", T, V, C, ids, w, y)) ||
	    (rc = kn_check_ids(&c->err, "embed_fwd", T, V, ids)))
		return rc;
	for (int64_t i = 0; C > 0 && i < T; i++)
		memcpy((float *)y + i * C, (const float *)w + (int64_t)ids[i] * C, (size_t)C * sizeof(float));
	return 0;
}

int ref_embed_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *dy, float *dw)
{
	const float *dyf = dy;
	int rc;

	if ((rc = kn_check_f32(&c->err, "embed_bwd", t)) ||
	    (rc = kn_check_embed(&c->err, "embed_bwd", T, V, C, ids, dw, dy)) ||
	    (rc = kn_check_ids(&c->err, "embed_bwd", T, V, ids)))
		return rc;
	for (int64_t i = 0; i < T; i++)
		for (int64_t j = 0; j < C; j++)
			dw[(int64_t)ids[i] * C + j] += dyf[i * C + j];
	return 0;
}

int ref_bias_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *b, void *y, int64_t ldy)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "bias_fwd", t)) || (rc = kn_check_vec(&c->err, "bias_fwd", "b", N, b)) ||
	    (rc = kn_check_mat(&c->err, "bias_fwd", "y", y, T, N, ldy)))
		return rc;
	for (int64_t i = 0; i < T; i++)
		for (int64_t j = 0; j < N; j++)
			((float *)y)[i * ldy + j] += ((const float *)b)[j];
	return 0;
}

int ref_bias_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *dy, int64_t lddy, float *db)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "bias_bwd", t)) || (rc = kn_check_vec(&c->err, "bias_bwd", "db", N, db)) ||
	    (rc = kn_check_mat(&c->err, "bias_bwd", "dy", dy, T, N, lddy)))
		return rc;
	for (int64_t j = 0; j < N; j++) {
		double s = 0;

		for (int64_t i = 0; i < T; i++)
			s += ((const float *)dy)[i * lddy + j];
		db[j] = (float)(db[j] + s);
	}
	return 0;
}
