/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as its definition reads: one query row at a time, probabilities of that row alone in scratch. */
#include "kernels/ref/ref.h"

#include <errno.h>
#include <math.h>

#define POLL_ROWS 64

/* First key query t of a document starting at `begin` sees. */
static int64_t first_key(const struct kn_attn *a, int64_t begin, int64_t t)
{
	int64_t lo = a->window > 0 ? t - a->window + 1 : begin;

	return lo > begin ? lo : begin;
}

static double dot(const float *x, const float *y, int d)
{
	double s = 0;

	for (int j = 0; j < d; j++)
		s += (double)x[j] * y[j];
	return s;
}

/* One query row of one head: p holds scores, then unnormalised probabilities, of keys lo..t. */
static void fwd_row(const struct kn_attn *a, int h, int64_t lo, int64_t t, double *p)
{
	const struct kn_q_head *q = &a->q[h];
	const struct kn_kv_head *kv = &a->kv[a->kv_of[h]];
	const float *qr = (const float *)q->q + t * q->ldq, *k = kv->k, *v = kv->v;
	float *o = (float *)q->o + t * q->ldo;
	double max = -INFINITY, sum = 0;

	for (int64_t s = lo; s <= t; s++) {
		p[s - lo] = dot(qr, k + s * kv->ldk, a->d) * a->scale;
		max = fmax(max, p[s - lo]);
	}
	for (int64_t s = lo; s <= t; s++)
		sum += p[s - lo] = exp(p[s - lo] - max);
	for (int j = 0; j < a->d; j++) {
		double acc = 0;

		for (int64_t s = lo; s <= t; s++)
			acc += p[s - lo] * v[s * kv->ldv + j];
		o[j] = (float)(acc / sum);
	}
	a->lse[h * a->s + t] = (float)(max + log(sum));
}

int ref_attn_fwd(struct kn_ctx *c, const struct kn_attn *a)
{
	int rc = kn_check_attn(&c->err, a, 0);
	double *p;

	if (rc)
		return rc;
	p = kn_host_scratch(c, (size_t)a->s * sizeof(*p));
	if (!p)
		return -ENOMEM;
	for (int h = 0; h < a->nq; h++)
		for (int64_t i = 0; i < a->ndoc; i++)
			for (int64_t t = a->cu[i]; t < a->cu[i + 1]; t++) {
				if (a->poll && t % POLL_ROWS == 0)
					a->poll(a->poll_arg);
				fwd_row(a, h, first_key(a, a->cu[i], t), t, p);
			}
	return 0;
}

/* One query row: its dq, and its share of dk, dv in the fp64 sums [s][d] of its kv head. */
static void bwd_row(const struct kn_attn *a, int h, int64_t lo, int64_t t, double *dk, double *dv)
{
	const struct kn_q_head *q = &a->q[h];
	const struct kn_kv_head *kv = &a->kv[a->kv_of[h]];
	const float *qr = (const float *)q->q + t * q->ldq, *dor = (const float *)q->do_ + t * q->lddo;
	float *dq = (float *)q->dq + t * q->lddq;
	double acc[256] = {0};

	for (int64_t s = lo; s <= t; s++) {
		const float *k = (const float *)kv->k + s * kv->ldk, *v = (const float *)kv->v + s * kv->ldv;
		double p = exp(dot(qr, k, a->d) * a->scale - a->lse[h * a->s + t]);
		double ds = p * (dot(dor, v, a->d) - q->dsum[t * q->lddsum]) * a->scale;

		for (int j = 0; j < a->d; j++) {
			acc[j] += ds * k[j];
			dk[s * a->d + j] += ds * qr[j];
			dv[s * a->d + j] += p * dor[j];
		}
	}
	for (int j = 0; j < a->d; j++)
		dq[j] = (float)acc[j];
}

int ref_attn_bwd(struct kn_ctx *c, const struct kn_attn *a)
{
	int rc = kn_check_attn(&c->err, a, 1);
	int64_t n = a->s * a->d;
	double *dk;

	if (rc)
		return rc;
	dk = kn_host_scratch(c, (size_t)n * 2 * sizeof(*dk));
	if (!dk)
		return -ENOMEM;
	for (int g = 0; g < a->nkv; g++) {
		const struct kn_kv_head *kv = &a->kv[g];

		for (int64_t i = 0; i < 2 * n; i++)
			dk[i] = 0;
		for (int h = 0; h < a->nq; h++)
			for (int64_t i = 0; a->kv_of[h] == g && i < a->ndoc; i++)
				for (int64_t t = a->cu[i]; t < a->cu[i + 1]; t++) {
					if (a->poll && t % POLL_ROWS == 0)
						a->poll(a->poll_arg);
					bwd_row(a, h, first_key(a, a->cu[i], t), t, dk, dk + n);
				}
		for (int64_t t = 0; t < a->s; t++)
			for (int j = 0; j < a->d; j++) {
				((float *)kv->dk)[t * kv->lddk + j] = (float)dk[t * a->d + j];
				((float *)kv->dv)[t * kv->lddv + j] = (float)dk[n + t * a->d + j];
			}
	}
	return 0;
}

int ref_rowdot(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, const void *do_,
	       int64_t lddo, const void *o, int64_t ldo, float *out, int64_t ldout)
{
	int rc;

	if ((rc = kn_check_f32(&c->err, "rowdot", t)) ||
	    (rc = kn_check_rowdot(&c->err, T, heads, d, do_, lddo, o, ldo, out, ldout)))
		return rc;
	for (int64_t i = 0; i < T; i++)
		for (int64_t h = 0; h < heads; h++)
			out[i * ldout + h] = (float)dot((const float *)do_ + i * lddo + h * d,
							(const float *)o + i * ldo + h * d, (int)d);
	return 0;
}
