/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy and AdamW. */
#include "kernels/ref/ref.h"

#include <math.h>

/* Loss of one row; the row becomes its gradient unless grad_scale is 0. */
static double xent_row(float *x, int64_t V, int32_t label, float grad_scale)
{
	double max = -INFINITY, sum = 0, loss;

	for (int64_t j = 0; j < V; j++)
		max = fmax(max, x[j]);
	for (int64_t j = 0; j < V; j++)
		sum += exp(x[j] - max);
	loss = max + log(sum) - x[label];
	if (grad_scale != 0)
		for (int64_t j = 0; j < V; j++)
			x[j] = (float)(grad_scale * (exp(x[j] - max) / sum - (j == label)));
	return loss;
}

int ref_xent(struct kn_ctx *c, int64_t T, int64_t V, float *logits, int64_t ldl, const int32_t *labels,
	     float grad_scale, float *nll, double *host_loss_sum)
{
	int rc;

	if ((rc = kn_check_xent(&c->err, T, V, logits, ldl, labels, host_loss_sum)) ||
	    (rc = kn_check_labels(&c->err, T, V, labels)))
		return rc;
	for (int64_t t = 0; t < T; t++) {
		float *x = logits + t * ldl;
		double loss = 0;

		if (labels[t] >= 0)
			loss = xent_row(x, V, labels[t], grad_scale);
		else if (grad_scale != 0)
			for (int64_t j = 0; j < V; j++)
				x[j] = 0;
		*host_loss_sum += loss;
		if (nll)
			nll[t] = (float)loss;
	}
	return 0;
}

int ref_adamw(struct kn_ctx *c, const struct kn_adamw *a)
{
	double c1 = 1 - pow(a->beta1, (double)a->step), c2 = sqrt(1 - pow(a->beta2, (double)a->step));
	int rc = kn_check_adamw(&c->err, a);

	if (rc)
		return rc;
	for (int64_t i = 0; i < a->n; i++) {
		double g = a->g[i] * a->grad_scale, p = a->p[i] * (1 - a->lr * a->weight_decay);
		double m = a->m[i] + (1 - a->beta1) * (g - a->m[i]);
		double v = a->v[i] * a->beta2 + (1 - a->beta2) * g * g;

		p -= a->lr / c1 * (m / (sqrt(v) / c2 + a->eps));
		a->m[i] = (float)m;
		a->v[i] = (float)v;
		a->p[i] = (float)p;
		if (a->p_copy && a->copy_dtype == KN_F32)
			((float *)a->p_copy)[i] = a->p[i];
		else if (a->p_copy)
			((uint16_t *)a->p_copy)[i] = kn_f32_to_bf16(a->p[i]);
	}
	return 0;
}
