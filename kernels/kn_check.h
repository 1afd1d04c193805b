/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_KN_CHECK_H
#define KERNELS_KN_CHECK_H
/*
 * Private: one check per operation of kernels.h, shared by every backend, so that all refuse the same calls with
 * the same text. Only shapes, strides, host tables and NULL pointers are looked at: nothing here reads device
 * memory, except kn_check_ids/labels/pos, which host backends call on their own memory.
 * Each returns 0, or -EINVAL / -ENOTSUP with one line in *e.
 */
#include "kernels/kernels.h"

struct kn_err {
	char text[256];
};

/* Write the text, return `code`. */
int kn_fail(struct kn_err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Only fp32 so far on the host backends. */
int kn_check_f32(struct kn_err *e, const char *op, enum kn_dtype t);
int kn_check_vec(struct kn_err *e, const char *op, const char *name, int64_t n, const void *p);
int kn_check_mat(struct kn_err *e, const char *op, const char *name, const void *p, int64_t rows, int64_t cols,
		 int64_t ld);

int kn_check_gemm(struct kn_err *e, const struct kn_gemm *g);
int kn_check_convert(struct kn_err *e, int64_t n, const void *x, enum kn_dtype tx, const void *y, enum kn_dtype ty);
int kn_check_embed(struct kn_err *e, const char *op, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
		   const void *w, const void *y);
/* x, y [rows][C], w [C], rstd [rows] */
int kn_check_rmsnorm(struct kn_err *e, const char *op, int64_t rows, int64_t C, const void *x, int64_t ldx,
		     const void *w, const void *y, int64_t ldy, const float *rstd);
int kn_check_rope(struct kn_err *e, int64_t T, int64_t heads, int64_t d, int64_t rd, const void *x, int64_t ldx,
		  const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos);
int kn_check_attn(struct kn_err *e, const struct kn_attn *a, int backward);
int kn_check_rowdot(struct kn_err *e, int64_t T, int64_t heads, int64_t d, const void *do_, int64_t lddo,
		    const void *o, int64_t ldo, const float *out, int64_t ldout);
int kn_check_xent(struct kn_err *e, int64_t T, int64_t V, const float *logits, int64_t ldl, const int32_t *labels,
		  const double *loss);
int kn_check_adamw(struct kn_err *e, const struct kn_adamw *a);

/* Values in host memory. */
int kn_check_ids(struct kn_err *e, const char *op, int64_t T, int64_t V, const uint32_t *ids);
int kn_check_labels(struct kn_err *e, int64_t T, int64_t V, const int32_t *labels);
int kn_check_pos(struct kn_err *e, int64_t T, const int64_t *pos, int64_t max_pos);

#endif
