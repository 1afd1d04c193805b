/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by oneDNN: dnnl_sgemm is row-major and the same call in 2.x and 3.x. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

/* k = 0 or alpha = 0: C = beta C, and beta = 0 must not read C. */
static void scale_c(struct kn_ctx *c, const struct kn_gemm *g)
{
	float *out = g->c;

	for (int64_t i = 0; i < g->m; i++) {
		if (g->beta == 0)
			memset(out + i * g->ldc, 0, (size_t)g->n * sizeof(float));
		else if (g->beta != 1)
			c->v->scale(g->n, g->beta, out + i * g->ldc);
	}
}

int cpu_gemm(struct kn_ctx *c, const struct kn_gemm *g)
{
	int rc = kn_check_gemm(&c->err, g), before;
	dnnl_status_t st;

	if (rc)
		return rc;
	if (g->m == 0 || g->n == 0)
		return 0;
	if (g->k == 0 || g->alpha == 0) {
		scale_c(c, g);
		return 0;
	}
	/* oneDNN takes the calling thread's OpenMP setting; contexts of several ranks may differ. */
	before = omp_get_max_threads();
	omp_set_num_threads(c->threads);
	st = dnnl_sgemm(g->ta ? 'T' : 'N', g->tb ? 'T' : 'N', g->m, g->n, g->k, g->alpha, g->a, g->lda, g->b, g->ldb,
			g->beta, g->c, g->ldc);
	omp_set_num_threads(before);
	if (st == dnnl_success)
		return 0;
	return kn_fail(&c->err, st == dnnl_out_of_memory ? -ENOMEM : -EIO,
		       "gemm: oneDNN status %d for m, n, k = %lld, %lld, %lld", (int)st, (long long)g->m,
		       (long long)g->n, (long long)g->k);
}
