/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, element-wise operations, embedding, bias. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <string.h>

/* Elements per block of a flat range: fits a private cache with the operands of any of these operations. */
#define BLOCK 16384

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

int cpu_copy(struct kn_ctx *c, void *dst, const void *src, size_t bytes, enum kn_copy_dir dir)
{
	int64_t n = (int64_t)bytes, step = BLOCK * 4;

	(void)dir;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, n / 8))
	for (int64_t i = 0; i < n; i += step)
		memcpy((char *)dst + i, (const char *)src + i, (size_t)min64(step, n - i));
	return 0;
}

int cpu_zero(struct kn_ctx *c, void *dst, size_t bytes)
{
	int64_t n = (int64_t)bytes, step = BLOCK * 4;

#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, n / 8))
	for (int64_t i = 0; i < n; i += step)
		memset((char *)dst + i, 0, (size_t)min64(step, n - i));
	return 0;
}

int cpu_add(struct kn_ctx *c, enum kn_dtype t, int64_t n, const void *x, void *y)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "add", t)) || (rc = kn_check_vec(&c->err, "add", "x", n, x)) ||
	    (rc = kn_check_vec(&c->err, "add", "y", n, y)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, n))
	for (int64_t b = 0; b < blocks(n); b++)
		c->v->add(min64(BLOCK, n - b * BLOCK), (const float *)x + b * BLOCK, (float *)y + b * BLOCK);
	return 0;
}

int cpu_add_rows(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t cols, const void *x, int64_t ldx, void *y,
		 int64_t ldy)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "add", t)) || (rc = kn_check_mat(&c->err, "add", "x", x, rows, cols, ldx)) ||
	    (rc = kn_check_mat(&c->err, "add", "y", y, rows, cols, ldy)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, rows *cols))
	for (int64_t r = 0; r < rows; r++)
		c->v->add(cols, (const float *)x + r * ldx, (float *)y + r * ldy);
	return 0;
}

int cpu_scale(struct kn_ctx *c, int64_t n, float a, float *x)
{
	int rc = kn_check_vec(&c->err, "scale", "x", n, x);

	if (rc)
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, n))
	for (int64_t b = 0; b < blocks(n); b++)
		c->v->scale(min64(BLOCK, n - b * BLOCK), a, x + b * BLOCK);
	return 0;
}

int cpu_convert(struct kn_ctx *c, int64_t n, const void *x, enum kn_dtype tx, void *y, enum kn_dtype ty)
{
	int rc = kn_check_convert(&c->err, n, x, tx, y, ty);

	if (rc || n == 0)
		return rc;
	if (tx == ty)
		return cpu_copy(c, y, x, (size_t)n * kn_dtype_size(tx), KN_D2D);
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, n))
	for (int64_t b = 0; b < blocks(n); b++) {
		int64_t i = b * BLOCK, m = min64(BLOCK, n - i);

		if (tx == KN_F32)
			c->v->to_bf16(m, (const float *)x + i, (uint16_t *)y + i);
		else
			c->v->from_bf16(m, (const uint16_t *)x + i, (float *)y + i);
	}
	return 0;
}

/* At most MAX_PARTS blocks whose size depends on n alone, each summed in fp64, then added in order. */
int cpu_sumsq(struct kn_ctx *c, int64_t n, const float *x, double *host_sum)
{
	enum { MAX_PARTS = 1024 };
	int64_t size = n / MAX_PARTS + 1;
	double part[MAX_PARTS], s = 0;
	int64_t parts;
	int rc = kn_check_vec(&c->err, "sumsq", "x", n, x);

	if (rc || (rc = kn_check_vec(&c->err, "sumsq", "the sum", 1, host_sum)))
		return rc;
	size = size < 4096 ? 4096 : size;
	parts = (n + size - 1) / size;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, n))
	for (int64_t p = 0; p < parts; p++)
		part[p] = c->v->sumsq(min64(size, n - p * size), x + p * size);
	for (int64_t p = 0; p < parts; p++)
		s += part[p];
	*host_sum = s;
	return 0;
}

int cpu_embed_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *w, void *y)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "embed_fwd", t)) ||
	    (rc = kn_check_embed(&c->err, "embed_fwd", T, V, C, ids, w, y)) ||
	    (rc = kn_check_ids(&c->err, "embed_fwd", T, V, ids)))
		return rc;
	if (C == 0)
		return 0;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *C))
	for (int64_t i = 0; i < T; i++)
		memcpy((float *)y + i * C, (const float *)w + (int64_t)ids[i] * C, (size_t)C * sizeof(float));
	return 0;
}

/* A token may occur often, so threads split the columns and each walks the tokens in order. */
int cpu_embed_bwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		  const void *dy, float *dw)
{
	int64_t nt, step;
	int rc;

	if ((rc = kn_check_f32(&c->err, "embed_bwd", t)) ||
	    (rc = kn_check_embed(&c->err, "embed_bwd", T, V, C, ids, dw, dy)) ||
	    (rc = kn_check_ids(&c->err, "embed_bwd", T, V, ids)))
		return rc;
	if (C == 0)
		return 0;
	nt = cpu_nt(c, T * C);
	step = ((C + nt - 1) / nt + 15) / 16 * 16; /* whole cache lines */
#pragma omp parallel for schedule(static) num_threads((int)nt)
	for (int64_t j = 0; j < C; j += step)
		for (int64_t i = 0; i < T; i++)
			c->v->add(min64(step, C - j), (const float *)dy + i * C + j, dw + (int64_t)ids[i] * C + j);
	return 0;
}

int cpu_bias_fwd(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *b, void *y, int64_t ldy)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "bias_fwd", t)) || (rc = kn_check_vec(&c->err, "bias_fwd", "b", N, b)) ||
	    (rc = kn_check_mat(&c->err, "bias_fwd", "y", y, T, N, ldy)))
		return rc;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *N))
	for (int64_t i = 0; i < T; i++)
		c->v->add(N, b, (float *)y + i * ldy);
	return 0;
}
