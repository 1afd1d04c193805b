/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kn_check.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

int kn_fail(struct kn_err *e, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	return code;
}

#define LL(x) ((long long)(x))

int kn_check_f32(struct kn_err *e, const char *op, enum kn_dtype t)
{
	if (t == KN_F32)
		return 0;
	if (t == KN_BF16)
		return kn_fail(e, -ENOTSUP, "%s: bf16 is not implemented on this backend; use fp32", op);
	return kn_fail(e, -EINVAL, "%s: unknown dtype %d; allowed are KN_F32 and KN_BF16", op, (int)t);
}

int kn_check_vec(struct kn_err *e, const char *op, const char *name, int64_t n, const void *p)
{
	if (n < 0 || n > INT64_MAX / 8)
		return kn_fail(e, -EINVAL, "%s: %s has %lld elements; 0 or more are allowed", op, name, LL(n));
	if (n > 0 && !p)
		return kn_fail(e, -EINVAL, "%s: %s is NULL but has %lld elements", op, name, LL(n));
	return 0;
}

int kn_check_mat(struct kn_err *e, const char *op, const char *name, const void *p, int64_t rows, int64_t cols,
		 int64_t ld)
{
	int64_t bytes;

	if (rows < 0 || cols < 0)
		return kn_fail(e, -EINVAL, "%s: %s is %lld x %lld; sizes must be 0 or more", op, name, LL(rows),
			       LL(cols));
	if (rows == 0 || cols == 0)
		return 0;
	if (ld < cols)
		return kn_fail(e, -EINVAL, "%s: row stride of %s is %lld; at least %lld (its columns) is needed", op,
			       name, LL(ld), LL(cols));
	if (__builtin_mul_overflow(rows, ld, &bytes) || __builtin_mul_overflow(bytes, (int64_t)8, &bytes))
		return kn_fail(e, -EINVAL, "%s: %s with %lld rows of stride %lld passes 2^63 bytes", op, name,
			       LL(rows), LL(ld));
	if (!p)
		return kn_fail(e, -EINVAL, "%s: %s is NULL but is %lld x %lld", op, name, LL(rows), LL(cols));
	return 0;
}

int kn_check_gemm(struct kn_err *e, const struct kn_gemm *g)
{
	int rc;

	if ((rc = kn_check_f32(e, "gemm", g->dtype)) || (rc = kn_check_f32(e, "gemm (C)", g->ctype)))
		return rc;
	if (g->m < 0 || g->n < 0 || g->k < 0)
		return kn_fail(e, -EINVAL, "gemm: m, n, k = %lld, %lld, %lld; each must be 0 or more", LL(g->m),
			       LL(g->n), LL(g->k));
	if ((rc = kn_check_mat(e, "gemm", "C", g->c, g->m, g->n, g->ldc)))
		return rc;
	if (g->m == 0 || g->n == 0)
		return 0;
	if ((rc = kn_check_mat(e, "gemm", "A", g->a, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda)))
		return rc;
	return kn_check_mat(e, "gemm", "B", g->b, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb);
}

int kn_check_convert(struct kn_err *e, int64_t n, const void *x, enum kn_dtype tx, const void *y, enum kn_dtype ty)
{
	int rc;

	if ((tx != KN_F32 && tx != KN_BF16) || (ty != KN_F32 && ty != KN_BF16))
		return kn_fail(e, -EINVAL, "convert: unknown dtype %d or %d; allowed are KN_F32 and KN_BF16", (int)tx,
			       (int)ty);
	if ((rc = kn_check_vec(e, "convert", "x", n, x)))
		return rc;
	return kn_check_vec(e, "convert", "y", n, y);
}

int kn_check_embed(struct kn_err *e, const char *op, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		   const void *w, const void *y)
{
	int rc;

	if ((rc = kn_check_vec(e, op, "ids", T, ids)) || (rc = kn_check_mat(e, op, "the table", w, V, C, C)))
		return rc;
	return kn_check_mat(e, op, "the activations", y, T, C, C);
}

int kn_check_rmsnorm(struct kn_err *e, const char *op, int64_t rows, int64_t C, const void *x, int64_t ldx,
		     const void *w, const void *y, int64_t ldy, const float *rstd)
{
	int rc;

	if ((rc = kn_check_mat(e, op, "x", x, rows, C, ldx)) || (rc = kn_check_mat(e, op, "the result", y, rows, C, ldy)))
		return rc;
	if ((rc = kn_check_vec(e, op, "w", C, w)))
		return rc;
	return kn_check_vec(e, op, "rstd", rows, rstd);
}

int kn_check_rope(struct kn_err *e, int64_t T, int64_t heads, int64_t d, int64_t rd, const void *x, int64_t ldx,
		  const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos)
{
	int64_t cols;
	int rc;

	if (heads < 0 || d < 0 || __builtin_mul_overflow(heads, d, &cols))
		return kn_fail(e, -EINVAL, "rope: %lld heads of size %lld; both must be 0 or more", LL(heads), LL(d));
	if (rd < 0 || rd > d || rd % 2)
		return kn_fail(e, -EINVAL, "rope: %lld turning dims of a head of %lld; an even number up to it is allowed",
			       LL(rd), LL(d));
	if ((rc = kn_check_mat(e, "rope", "x", x, T, cols, ldx)) || (rc = kn_check_vec(e, "rope", "pos", T, pos)))
		return rc;
	if ((rc = kn_check_mat(e, "rope", "cos", cos_t, max_pos, rd / 2, rd / 2)))
		return rc;
	return kn_check_mat(e, "rope", "sin", sin_t, max_pos, rd / 2, rd / 2);
}

static int check_attn_docs(struct kn_err *e, const char *op, const struct kn_attn *a)
{
	if (a->ndoc < 0 || !a->cu || a->cu[0] != 0)
		return kn_fail(e, -EINVAL, "%s: cu must hold ndoc + 1 offsets and start at 0", op);
	for (int64_t i = 0; i < a->ndoc; i++)
		if (a->cu[i + 1] <= a->cu[i])
			return kn_fail(e, -EINVAL, "%s: cu[%lld] = %lld after %lld; offsets must rise strictly", op,
				       LL(i + 1), LL(a->cu[i + 1]), LL(a->cu[i]));
	if (a->cu[a->ndoc] != a->s)
		return kn_fail(e, -EINVAL, "%s: documents end at %lld but there are %lld tokens; cu[ndoc] must equal s",
			       op, LL(a->cu[a->ndoc]), LL(a->s));
	return 0;
}

static int check_attn_heads(struct kn_err *e, const char *op, const struct kn_attn *a, int backward)
{
	int64_t S = a->s, d = a->d;
	int rc;

	for (int i = 0; i < a->nq; i++) {
		const struct kn_q_head *q = &a->q[i];

		if (a->kv_of[i] < 0 || a->kv_of[i] >= a->nkv || (i && a->kv_of[i] < a->kv_of[i - 1]))
			return kn_fail(e, -EINVAL, "%s: kv_of[%d] = %d; values 0..%d that never fall are allowed", op, i,
				       a->kv_of[i], a->nkv - 1);
		if ((rc = kn_check_mat(e, op, "q", q->q, S, d, q->ldq)))
			return rc;
		if (!backward) {
			if ((rc = kn_check_mat(e, op, "o", q->o, S, d, q->ldo)))
				return rc;
			continue;
		}
		if ((rc = kn_check_mat(e, op, "do", q->do_, S, d, q->lddo)) ||
		    (rc = kn_check_mat(e, op, "dq", q->dq, S, d, q->lddq)) ||
		    (rc = kn_check_mat(e, op, "dsum", q->dsum, S, 1, q->lddsum)))
			return rc;
	}
	for (int i = 0; i < a->nkv; i++) {
		const struct kn_kv_head *kv = &a->kv[i];

		if ((rc = kn_check_mat(e, op, "k", kv->k, S, d, kv->ldk)) ||
		    (rc = kn_check_mat(e, op, "v", kv->v, S, d, kv->ldv)))
			return rc;
		if (backward && ((rc = kn_check_mat(e, op, "dk", kv->dk, S, d, kv->lddk)) ||
				 (rc = kn_check_mat(e, op, "dv", kv->dv, S, d, kv->lddv))))
			return rc;
	}
	return 0;
}

int kn_check_attn(struct kn_err *e, const struct kn_attn *a, int backward)
{
	const char *op = backward ? "attn_bwd" : "attn_fwd";
	int rc;

	if ((rc = kn_check_f32(e, op, a->dtype)))
		return rc;
	if (a->s < 0 || a->d < 1 || a->d > 256)
		return kn_fail(e, -EINVAL, "%s: %lld tokens, head size %d; 0 or more and 1..256 are allowed", op,
			       LL(a->s), a->d);
	if (a->nq < 0 || a->nkv < 0 || (a->nq > 0 && (!a->q || !a->kv_of)) || (a->nkv > 0 && !a->kv))
		return kn_fail(e, -EINVAL, "%s: %d query and %d kv heads; 0 or more with their tables are allowed", op,
			       a->nq, a->nkv);
	if (!isfinite(a->scale) || a->window < 0)
		return kn_fail(e, -EINVAL, "%s: scale %g, window %lld; a finite scale and a window of 0 or more are allowed",
			       op, (double)a->scale, LL(a->window));
	if ((rc = check_attn_docs(e, op, a)) || (rc = check_attn_heads(e, op, a, backward)))
		return rc;
	return kn_check_mat(e, op, "lse", a->lse, a->nq, a->s, a->s);
}

int kn_check_rowdot(struct kn_err *e, int64_t T, int64_t heads, int64_t d, const void *do_, int64_t lddo,
		    const void *o, int64_t ldo, const float *out, int64_t ldout)
{
	int64_t cols;
	int rc;

	if (heads < 0 || d < 0 || __builtin_mul_overflow(heads, d, &cols))
		return kn_fail(e, -EINVAL, "rowdot: %lld heads of size %lld; both must be 0 or more", LL(heads), LL(d));
	if ((rc = kn_check_mat(e, "rowdot", "do", do_, T, cols, lddo)) ||
	    (rc = kn_check_mat(e, "rowdot", "o", o, T, cols, ldo)))
		return rc;
	return kn_check_mat(e, "rowdot", "out", out, T, heads, ldout);
}

int kn_check_xent(struct kn_err *e, int64_t T, int64_t V, const float *logits, int64_t ldl, const int32_t *labels,
		  const double *loss)
{
	int rc;

	if (T > 0 && V < 1)
		return kn_fail(e, -EINVAL, "xent: vocabulary of %lld; 1 or more is needed", LL(V));
	if ((rc = kn_check_mat(e, "xent", "logits", logits, T, V, ldl)) ||
	    (rc = kn_check_vec(e, "xent", "labels", T, labels)))
		return rc;
	return kn_check_vec(e, "xent", "the loss", 1, loss);
}

int kn_check_adamw(struct kn_err *e, const struct kn_adamw *a)
{
	int rc;

	if ((rc = kn_check_vec(e, "adamw", "p", a->n, a->p)) || (rc = kn_check_vec(e, "adamw", "m", a->n, a->m)) ||
	    (rc = kn_check_vec(e, "adamw", "v", a->n, a->v)) || (rc = kn_check_vec(e, "adamw", "g", a->n, a->g)))
		return rc;
	if (a->p_copy && a->copy_dtype != KN_F32 && a->copy_dtype != KN_BF16)
		return kn_fail(e, -EINVAL, "adamw: unknown dtype %d of the copy; allowed are KN_F32 and KN_BF16",
			       (int)a->copy_dtype);
	if (a->step < 1)
		return kn_fail(e, -EINVAL, "adamw: step %lld; the first update is step 1", LL(a->step));
	if (!(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1 && a->eps >= 0))
		return kn_fail(e, -EINVAL, "adamw: beta1 %g, beta2 %g, eps %g; [0,1), [0,1) and 0 or more are allowed",
			       a->beta1, a->beta2, a->eps);
	if (!isfinite(a->lr) || !isfinite(a->weight_decay) || !isfinite(a->grad_scale))
		return kn_fail(e, -EINVAL, "adamw: lr %g, weight_decay %g, grad_scale %g; finite values are needed",
			       a->lr, a->weight_decay, a->grad_scale);
	return 0;
}

int kn_check_ids(struct kn_err *e, const char *op, int64_t T, int64_t V, const uint32_t *ids)
{
	for (int64_t t = 0; t < T; t++)
		if (ids[t] >= V)
			return kn_fail(e, -EINVAL, "%s: id %u at token %lld; 0..%lld are allowed (vocabulary of %lld)",
				       op, ids[t], LL(t), LL(V - 1), LL(V));
	return 0;
}

int kn_check_labels(struct kn_err *e, int64_t T, int64_t V, const int32_t *labels)
{
	for (int64_t t = 0; t < T; t++)
		if (labels[t] >= V)
			return kn_fail(e, -EINVAL,
				       "xent: label %d at token %lld; up to %lld, or negative to ignore, is allowed",
				       labels[t], LL(t), LL(V - 1));
	return 0;
}

int kn_check_pos(struct kn_err *e, int64_t T, const int64_t *pos, int64_t max_pos)
{
	for (int64_t t = 0; t < T; t++)
		if (pos[t] < 0 || pos[t] >= max_pos)
			return kn_fail(e, -EINVAL, "rope: position %lld at token %lld; 0..%lld are allowed", LL(pos[t]),
				       LL(t), LL(max_pos - 1));
	return 0;
}
