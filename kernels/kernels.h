/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H
/*
 * kernels: math on one device. One table of operations, several implementations of it:
 *
 *   kn_ref()   plain C oracle: fp32 storage, fp64 sums, no threads; slow on purpose, the truth for tests
 *   kn_cpu()   the fast host backend: oneDNN for matrix products, SIMD and OpenMP for the rest
 *   (cuda)     a separate shared object with the same table, loaded when `device: cuda`
 *
 * Nothing here knows of MPI, Slurm, files or the model; nothing prints; nothing allocates in a steady step
 * (scratch comes from the context and only grows). All pointers named in an operation are device pointers of
 * the context's backend (host memory for ref and cpu) unless a comment says "host".
 *
 * Conventions
 *  - Tensors are row-major; a row stride (ld*) counts elements. Shapes stand beside the pointers.
 *  - T tokens, C channels (hidden), F MLP width, V vocabulary, d head size. Counts are int64_t.
 *  - dtype names the type of activations and of compute copies of weights; statistics, losses, gradients of
 *    weights and everything of the optimizer are fp32. A backend refuses a dtype it lacks with -ENOTSUP.
 *  - "acc" fields: 0 overwrites the result, 1 adds to it. Backward functions of weights always add.
 *  - Every function returns 0 or -errno: -EINVAL bad shape, -ENOMEM, -ENOTSUP, -EIO device failure;
 *    kn_strerror() of the context holds one line of detail.
 *  - Deterministic: the same inputs, shapes and thread count give the same bits. No atomics on floats, all
 *    reductions in a fixed order.
 *  - Operations are asynchronous with respect to the host on a device backend (in order on the context's
 *    stream); host results (`double *host`) are complete on return.
 *  - A context belongs to one thread at a time; any number of contexts may exist.
 */
#include <stddef.h>
#include <stdint.h>

enum kn_dtype { KN_F32 = 0, KN_BF16 = 1 };
enum kn_copy_dir { KN_H2D, KN_D2H, KN_D2D };

static inline size_t kn_dtype_size(enum kn_dtype t) { return t == KN_BF16 ? 2 : 4; }

struct kn_ctx; /* opaque: device, threads, stream, scratch */

struct kn_open_args {
	int device;  /* device index; ignored by host backends */
	int threads; /* host threads, >= 1; fixed for the life of the context */
};

/* C[m][n] = alpha * op(A)[m][k] * op(B)[k][n] + beta * C.  op(A) is A[m][k] (ta = 0) or A[k][m] transposed.
 * A, B of `dtype`; C of `ctype` (fp32 for weight gradients). m, n, k >= 0; beta = 0 never reads C. */
struct kn_gemm {
	enum kn_dtype dtype, ctype;
	int ta, tb;
	int64_t m, n, k;
	float alpha, beta;
	const void *a;
	int64_t lda;
	const void *b;
	int64_t ldb;
	void *c;
	int64_t ldc;
};

/* One head of an attention call: pointers to its [S][d] columns inside larger rows.
 * fwd reads q, k, v and writes o; bwd reads do_ as well and writes dq, dk, dv (overwrites, never adds).
 * Query heads are given in `q` entries, key/value heads in `kv` entries; query head i uses kv head kv_of[i]. */
struct kn_q_head {
	const void *q;
	int64_t ldq; /* [S][d], dtype */
	void *o;
	int64_t ldo; /* fwd: written; bwd: not read (D carries what is needed) */
	const void *do_;
	int64_t lddo;
	void *dq;
	int64_t lddq;
	const float *dsum; /* bwd: D[S] = rowsum(dO*O) of this head, element t at dsum[t * lddsum] */
	int64_t lddsum;
};
struct kn_kv_head {
	const void *k, *v;
	int64_t ldk, ldv; /* [S][d], dtype */
	void *dk, *dv;
	int64_t lddk, lddv;
};

/* Causal attention over packed documents: token t of document [cu[i], cu[i+1]) sees tokens cu[i]..t of it, and
 * with window > 0 only the last `window` of those (itself included). softmax(q k^T * scale) v, no S x S buffer.
 * lse: [nq][S] fp32, log-sum-exp of the scaled scores (natural log), written by fwd, read by bwd.
 * Backward: Dao, FlashAttention-2 (2307.08691), with dK, dV accumulated over the group's query heads in order. */
struct kn_attn {
	enum kn_dtype dtype;
	int64_t s;               /* tokens */
	int d;                   /* head size, 1..256 */
	int nq, nkv;             /* heads here */
	float scale;
	int64_t window;          /* 0: none */
	const int64_t *cu;       /* host: [ndoc + 1], cu[0] = 0, strictly rising, cu[ndoc] = s */
	int64_t ndoc;
	const struct kn_q_head *q;   /* host: [nq] */
	const struct kn_kv_head *kv; /* host: [nkv] */
	const int *kv_of;            /* host: [nq], non-decreasing, values 0..nkv-1 */
	float *lse;
	/* Called between tiles from the calling thread so that communication can progress; may be NULL. */
	void (*poll)(void *arg);
	void *poll_arg;
};

/* AdamW with decoupled weight decay (Loshchilov & Hutter 1711.05101, algorithm 2; same arithmetic order as
 * torch.optim.AdamW): p *= 1 - lr*wd; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2;
 * p -= lr * (m / c1) / (sqrt(v / c2) + eps), c_i = 1 - b_i^step, g' = g * grad_scale. */
struct kn_adamw {
	int64_t n;
	float *p, *m, *v;       /* [n] fp32 */
	const float *g;         /* [n] fp32 */
	void *p_copy;           /* [n] copy of p in copy_dtype for compute, or NULL */
	enum kn_dtype copy_dtype;
	double lr, beta1, beta2, eps, weight_decay, grad_scale;
	int64_t step;           /* 1 at the first update */
};

struct kn_ops {
	const char *name;

	/* ---- context and memory --------------------------------------------------------------------------- */
	int (*open)(const struct kn_open_args *args, struct kn_ctx **out);
	void (*close)(struct kn_ctx *c); /* NULL is fine */
	const char *(*strerror)(const struct kn_ctx *c);
	int (*alloc)(struct kn_ctx *c, size_t bytes, void **out); /* 64-byte aligned at least, contents undefined; caller frees */
	void (*free)(struct kn_ctx *c, void *p);
	int (*copy)(struct kn_ctx *c, void *dst, const void *src, size_t bytes, enum kn_copy_dir dir);
	int (*zero)(struct kn_ctx *c, void *dst, size_t bytes);
	int (*sync)(struct kn_ctx *c); /* all operations issued so far are complete */

	/* ---- matrix product ------------------------------------------------------------------------------- */
	int (*gemm)(struct kn_ctx *c, const struct kn_gemm *g);

	/* ---- element-wise and reductions -------------------------------------------------------------------- */
	/* y[i] += x[i] */
	int (*add)(struct kn_ctx *c, enum kn_dtype t, int64_t n, const void *x, void *y);
	/* y[r][0..cols) += x[r][0..cols) for row strides ldx, ldy */
	int (*add_rows)(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t cols, const void *x, int64_t ldx,
			void *y, int64_t ldy);
	int (*scale)(struct kn_ctx *c, int64_t n, float a, float *x); /* x *= a */
	int (*convert)(struct kn_ctx *c, int64_t n, const void *x, enum kn_dtype tx, void *y, enum kn_dtype ty);
	/* host: *sum = sum of x[i]^2 in fp64, in a fixed order that depends on n alone */
	int (*sumsq)(struct kn_ctx *c, int64_t n, const float *x, double *host_sum);

	/* ---- embedding -------------------------------------------------------------------------------------- */
	/* y[t][:] = w[ids[t]][:]; every id must lie in [0, V) (-EINVAL else). ids: device uint32 [T]; w: [V][C] dtype */
	int (*embed_fwd)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
			 const void *w, void *y);
	/* dw[ids[t]][:] += dy[t][:], summed in token order; dw fp32 [V][C] */
	int (*embed_bwd)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t V, int64_t C, const uint32_t *ids,
			 const void *dy, float *dw);

	/* ---- RMSNorm: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps)  (Zhang & Sennrich 1910.07467) ---------
	 * rows x C with row strides; w fp32 or dtype copy [C]; rstd fp32 [rows] saved for backward. */
	int (*rmsnorm_fwd)(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, float eps, const void *x,
			   int64_t ldx, const void *w, void *y, int64_t ldy, float *rstd);
	/* dx (acc ? += : =), dw fp32 += */
	int (*rmsnorm_bwd)(struct kn_ctx *c, enum kn_dtype t, int64_t rows, int64_t C, const void *x, int64_t ldx,
			   const void *w, const float *rstd, const void *dy, int64_t lddy, void *dx, int64_t lddx,
			   int acc, float *dw);

	/* ---- rotary embedding, rotate-half order (pairs i, i + rd/2), in place ---------------------------------
	 * x: rows of `heads` heads of size d, row stride ldx; the first rd <= d dims (even) turn.
	 * cos_t, sin_t: fp32 [max_pos][rd/2]; pos: device int64 [T], 0 <= pos < max_pos.
	 * inverse = 1 applies the transpose (backward). */
	int (*rope)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, int64_t rd, void *x,
		    int64_t ldx, const int64_t *pos, const float *cos_t, const float *sin_t, int64_t max_pos,
		    int inverse);

	/* ---- SwiGLU: y = silu(g) * u; g, u, y [T][F] with row strides ------------------------------------------ */
	int (*swiglu_fwd)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
			  const void *u, int64_t ldu, void *y, int64_t ldy);
	/* dg, du overwritten; may alias g, u */
	int (*swiglu_bwd)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t F, const void *g, int64_t ldg,
			  const void *u, int64_t ldu, const void *dy, int64_t lddy, void *dg, int64_t lddg,
			  void *du, int64_t lddu);

	/* ---- row bias ---------------------------------------------------------------------------------------- */
	int (*bias_fwd)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *b, void *y, int64_t ldy);
	int (*bias_bwd)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t N, const void *dy, int64_t lddy,
			float *db); /* db += column sums in row order */

	/* ---- attention ----------------------------------------------------------------------------------------- */
	int (*attn_fwd)(struct kn_ctx *c, const struct kn_attn *a);
	int (*attn_bwd)(struct kn_ctx *c, const struct kn_attn *a);
	/* out[t][h] = sum_j do[t][h*d + j] * o[t][h*d + j], fp32; row strides; "D" of the backward */
	int (*rowdot)(struct kn_ctx *c, enum kn_dtype t, int64_t T, int64_t heads, int64_t d, const void *do_,
		      int64_t lddo, const void *o, int64_t ldo, float *out, int64_t ldout);

	/* ---- cross-entropy ------------------------------------------------------------------------------------- */
	/* logits [T][V] fp32 with row stride ldl, in place: becomes grad_scale * (softmax - onehot), rows whose
	 * label is negative become 0 and count nothing; grad_scale = 0 leaves logits alone (evaluation).
	 * host: *loss_sum += sum of -log p[label] in token order (fp64). nll (may be NULL): device fp32 [T], per token,
	 * 0 where ignored. labels: device int32 [T]; a label >= V is -EINVAL. */
	int (*xent)(struct kn_ctx *c, int64_t T, int64_t V, float *logits, int64_t ldl, const int32_t *labels,
		    float grad_scale, float *nll, double *host_loss_sum);

	/* ---- optimizer ------------------------------------------------------------------------------------------ */
	int (*adamw)(struct kn_ctx *c, const struct kn_adamw *a);
};

const struct kn_ops *kn_ref(void);
const struct kn_ops *kn_cpu(void);

#endif
