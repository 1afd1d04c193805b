/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy and AdamW. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <math.h>
#include <string.h>

int cpu_xent(struct kn_ctx *c, int64_t T, int64_t V, float *logits, int64_t ldl, const int32_t *labels,
	     float grad_scale, float *nll, double *host_loss_sum)
{
	double *loss;
	int rc;

	if ((rc = kn_check_xent(&c->err, T, V, logits, ldl, labels, host_loss_sum)) ||
	    (rc = kn_check_labels(&c->err, T, V, labels)))
		return rc;
	if (T == 0)
		return 0;
	loss = kn_host_scratch(c, (size_t)T * sizeof(*loss));
	if (!loss)
		return -ENOMEM;
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, T *V))
	for (int64_t t = 0; t < T; t++) {
		loss[t] = 0;
		if (labels[t] >= 0)
			loss[t] = c->v->xent(V, logits + t * ldl, labels[t], grad_scale);
		else if (grad_scale != 0)
			memset(logits + t * ldl, 0, (size_t)V * sizeof(float));
		if (nll)
			nll[t] = (float)loss[t];
	}
	for (int64_t t = 0; t < T; t++)
		*host_loss_sum += loss[t];
	return 0;
}

int cpu_adamw(struct kn_ctx *c, const struct kn_adamw *a)
{
	enum { BLOCK = 8192 };
	struct kn_adamw_coef k;
	int rc = kn_check_adamw(&c->err, a);

	if (rc)
		return rc;
	k.grad_scale = (float)a->grad_scale;
	k.decay = (float)(1 - a->lr * a->weight_decay);
	k.b1c = (float)(1 - a->beta1);
	k.b2 = (float)a->beta2;
	k.b2c = (float)(1 - a->beta2);
	k.c2_sqrt = (float)sqrt(1 - pow(a->beta2, (double)a->step));
	k.eps = (float)a->eps;
	k.step_size = (float)(a->lr / (1 - pow(a->beta1, (double)a->step)));
#pragma omp parallel for schedule(static) num_threads(cpu_nt(c, a->n))
	for (int64_t i = 0; i < a->n; i += BLOCK) {
		int64_t n = a->n - i < BLOCK ? a->n - i : BLOCK;

		c->v->adamw(n, &k, a->p + i, a->m + i, a->v + i, a->g + i);
		if (a->p_copy && a->copy_dtype == KN_F32)
			memcpy((float *)a->p_copy + i, a->p + i, (size_t)n * sizeof(float));
		else if (a->p_copy)
			c->v->to_bf16(n, a->p + i, (uint16_t *)a->p_copy + i);
	}
	return 0;
}
