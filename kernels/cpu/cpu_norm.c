/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm, rotary embedding, SwiGLU, row sums. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <string.h>

int cpu_rmsnorm_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, float eps, const void *x,
		    int64_t ldx, const void *w, void *y, int64_t ldy, float *rstd)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "rmsnorm_fwd", t)) ||
	    (rc = kn_check_rmsnorm(&c->err, "rmsnorm_fwd", rows, C, x, ldx, w, y, ldy, rstd)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, rows *C))
	for (int64_t r = 0; r < rows; r++)
		rstd[r] = c->v->rmsnorm_fwd(C, eps, (const float *)x + r * ldx, w, (float *)y + r * ldy);
	return 0;
}

/* Rows are cut into at most MAX_PARTS blocks by their number alone; each block has its own column sums. */
enum { MAX_PARTS = 64, MIN_ROWS = 16 };

static int64_t part_rows(int64_t rows)
{
	int64_t n = (rows + MAX_PARTS - 1) / MAX_PARTS;

	return n < MIN_ROWS ? MIN_ROWS : n;
}

/* out[cols] += part[0][cols] + part[1][cols] + ..., part after part */
static void add_parts(struct kn_ctx *c, int64_t parts, int64_t cols, const float *part, int64_t ld, float *out)
{
	enum { STEP = 256 };

#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, parts *cols))
	for (int64_t j = 0; j < cols; j += STEP)
		for (int64_t p = 0; p < parts; p++)
			c->v->add(cols - j < STEP ? cols - j : STEP, part + p * ld + j, out + j);
}

int cpu_rmsnorm_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, const void *x, int64_t ldx,
		    const void *w, const float *rstd, const void *dy, int64_t lddy, void *dx, int64_t lddx, int acc,
		    float *dw)
{
	int64_t size = part_rows(rows), parts = (rows + size - 1) / size, ld = (C + 15) & ~(int64_t)15;
	float *part;
	int rc;

	if ((rc = kn_check_f32(&c->err, "rmsnorm_bwd", t)) ||
	    (rc = kn_check_rmsnorm(&c->err, "rmsnorm_bwd", rows, C, x, ldx, w, dx, lddx, rstd)) ||
	    (rc = kn_check_mat(&c->err, "rmsnorm_bwd", "dy", dy, rows, C, lddy)) ||
	    (rc = kn_check_vec(&c->err, "rmsnorm_bwd", "dw", C, dw)))
		return rc;
	if (rows == 0 || C == 0)
		return 0;
	part = kn_host_scratch(c, (size_t)(parts * ld) * sizeof(float));
	if (!part)
		return -ENOMEM;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, rows *C))
	for (int64_t p = 0; p < parts; p++) {
		int64_t end = (p + 1) * size < rows ? (p + 1) * size : rows;

		memset(part + p * ld, 0, (size_t)C * sizeof(float));
		for (int64_t r = p * size; r < end; r++)
			c->v->rmsnorm_bwd(C, (const float *)x + r * ldx, w, rstd[r], (const float *)dy + r * lddy,
					  (float *)dx + r * lddx, acc, part + p * ld);
	}
	add_parts(c, parts, C, part, ld, dw);
	return 0;
}

int cpu_bias_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *dy, int64_t lddy, float *db)
{
	int64_t size = part_rows(T), parts = (T + size - 1) / size, ld = (N + 15) & ~(int64_t)15;
	float *part;
	int rc;

	if ((rc = kn_check_f32(&c->err, "bias_bwd", t)) || (rc = kn_check_vec(&c->err, "bias_bwd", "db", N, db)) ||
	    (rc = kn_check_mat(&c->err, "bias_bwd", "dy", dy, T, N, lddy)))
		return rc;
	if (T == 0 || N == 0)
		return 0;
	part = kn_host_scratch(c, (size_t)(parts * ld) * sizeof(float));
	if (!part)
		return -ENOMEM;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *N))
	for (int64_t p = 0; p < parts; p++) {
		int64_t end = (p + 1) * size < T ? (p + 1) * size : T;

		memset(part + p * ld, 0, (size_t)N * sizeof(float));
		for (int64_t r = p * size; r < end; r++)
			c->v->add(N, (const float *)dy + r * lddy, part + p * ld);
	}
	add_parts(c, parts, N, part, ld, db);
	return 0;
}

int cpu_rope(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, int64_t rd, void *x,
	     int64_t ldx, const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos, int inverse)
{
	int64_t half = rd / 2;
	int rc;

	if ((rc = kn_check_f32(&c->err, "rope", t)) ||
	    (rc = kn_check_rope(&c->err, T, heads, d, rd, x, ldx, pos, cos_t, sin_t, max_pos)) ||
	    (rc = kn_check_pos(&c->err, T, pos, max_pos)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *heads *d))
	for (int64_t i = 0; i < T; i++)
		c->v->rope(heads, d, half, (float *)x + i * ldx, cos_t + pos[i] * half, sin_t + pos[i] * half,
			   inverse ? -1.0f : 1.0f);
	return 0;
}

int cpu_swiglu_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
		   const void *u, int64_t ldu, void *y, int64_t ldy)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "swiglu_fwd", t)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_fwd", "g", g, T, F, ldg)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_fwd", "u", u, T, F, ldu)) ||
	    (rc = kn_check_mat(&c->err, "swiglu_fwd", "y", y, T, F, ldy)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *F))
	for (int64_t i = 0; i < T; i++)
		c->v->swiglu_fwd(F, (const float *)g + i * ldg, (const float *)u + i * ldu, (float *)y + i * ldy);
	return 0;
}

int cpu_swiglu_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
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
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *F))
	for (int64_t i = 0; i < T; i++)
		c->v->swiglu_bwd(F, (const float *)g + i * ldg, (const float *)u + i * ldu,
				 (const float *)dy + i * lddy, (float *)dg + i * lddg, (float *)du + i * lddu);
	return 0;
}

int cpu_rowdot(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, const void *do_,
	       int64_t lddo, const void *o, int64_t ldo, float *out, int64_t ldout)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "rowdot", t)) ||
	    (rc = kn_check_rowdot(&c->err, T, heads, d, do_, lddo, o, ldo, out, ldout)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *heads *d))
	for (int64_t i = 0; i < T; i++)
		for (int64_t h = 0; h < heads; h++)
			out[i * ldout + h] = c->v->dot(d, (const float *)do_ + i * lddo + h * d,
						       (const float *)o + i * ldo + h * d);
	return 0;
}
