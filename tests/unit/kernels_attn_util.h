/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_KERNELS_ATTN_UTIL_H
#define TESTS_UNIT_KERNELS_ATTN_UTIL_H
/* One attention problem with all its tensors inside wide rows: [S][nq*d | gap], as the exchange leaves them. */
#include "tests/unit/kernels_util.h"

enum { TA_MAX_HEADS = 16, TA_MAX_DOCS = 600, TA_GAP = 3 };

struct ta {
	struct kn_attn a;
	int64_t cu[TA_MAX_DOCS + 1];
	struct kn_q_head q[TA_MAX_HEADS];
	struct kn_kv_head kv[TA_MAX_HEADS];
	int kv_of[TA_MAX_HEADS];
	int64_t ldq, ldkv, nqf, nkvf;              /* strides and floats of the buffers */
	float *qb, *ob, *gob, *dqb, *dsum;         /* [S][ldq], dsum [S][nq] */
	float *kb, *vb, *dkb, *dvb;                /* [S][ldkv] */
};

/* Documents of the given lengths (0 ends). Query heads are dealt evenly to kv heads. */
static inline struct ta *ta_new(int nq, int nkv, int d, const int64_t *len, int64_t window, float amp)
{
	struct ta *x = calloc(1, sizeof(*x));
	int64_t S = 0;

	assert_non_null(x);
	for (; len[x->a.ndoc]; S = x->cu[x->a.ndoc])
		x->cu[x->a.ndoc + 1] = S + len[x->a.ndoc], x->a.ndoc++;
	x->ldq = nq * d + TA_GAP;
	x->ldkv = nkv * d + TA_GAP;
	x->nqf = (S - 1) * x->ldq + nq * d;
	x->nkvf = (S - 1) * x->ldkv + nkv * d;
	x->qb = tk_new(x->nqf, amp, 11);
	x->kb = tk_new(x->nkvf, amp, 12);
	x->vb = tk_new(x->nkvf, 1, 13);
	x->gob = tk_new(x->nqf, 1, 14);
	x->ob = tk_new(x->nqf, 1, 15);
	x->dqb = tk_new(x->nqf, 1, 16);
	x->dkb = tk_new(x->nkvf, 1, 17);
	x->dvb = tk_new(x->nkvf, 1, 18);
	x->dsum = tk_new(S * nq, 1, 19);
	x->a.lse = tk_new(S * nq, 1, 20);
	for (int i = 0; i < nq; i++) {
		x->kv_of[i] = (int)((int64_t)i * nkv / nq);
		x->q[i] = (struct kn_q_head){x->qb + i * d, x->ldq, x->ob + i * d, x->ldq, x->gob + i * d, x->ldq,
					     x->dqb + i * d, x->ldq, x->dsum + i, nq};
	}
	for (int i = 0; i < nkv; i++)
		x->kv[i] = (struct kn_kv_head){x->kb + i * d, x->vb + i * d, x->ldkv, x->ldkv,
					       x->dkb + i * d, x->dvb + i * d, x->ldkv, x->ldkv};
	x->a.s = S;
	x->a.d = d;
	x->a.nq = nq;
	x->a.nkv = nkv;
	x->a.scale = 1.0f / sqrtf((float)d);
	x->a.window = window;
	x->a.cu = x->cu;
	x->a.q = x->q;
	x->a.kv = x->kv;
	x->a.kv_of = x->kv_of;
	return x;
}

static inline void ta_free(struct ta *x)
{
	float *p[] = {x->qb, x->ob, x->gob, x->dqb, x->dsum, x->kb, x->vb, x->dkb, x->dvb, x->a.lse};

	for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
		free(p[i]);
	free(x);
}

static inline void ta_run(const struct kn_ops *o, struct kn_ctx *c, struct ta *x)
{
	assert_int_equal(o->attn_fwd(c, &x->a), 0);
	assert_int_equal(o->rowdot(c, KN_F32, x->a.s, x->a.nq, x->a.d, x->gob, x->ldq, x->ob, x->ldq, x->dsum, x->a.nq), 0);
	assert_int_equal(o->attn_bwd(c, &x->a), 0);
}

#endif
