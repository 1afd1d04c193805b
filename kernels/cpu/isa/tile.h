/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_ISA_TILE_H
#define KERNELS_CPU_ISA_TILE_H
/*
 * Private: small matrix products for attention tiles. B is packed in panels of NR columns,
 *     panel p, row k, column j  at  b[p * stride + k * NR + j],
 * zeros past the last column, so that a register tile of 6 x NR needs no edge case; A is read where it lies.
 */
#include "kernels/cpu/isa/simd.h"

#define NR (2 * W)
#define MR 6

#define TILE_INLINE static inline __attribute__((always_inline))

/* C[mr][nv * W] (+)= A[mr][K] B[K][nv * W]. A[i][k] is a[i * lda + k], or a[k * lda + i] if `tr`. mr, nv, tr are
 * constants at every call, so the sums live in registers. */
TILE_INLINE void tile_micro(const int mr, const int nv, const int tr, int64_t K, const float *a, int64_t lda,
			    const float *b, float *c, int64_t ldc, int add)
{
	vf s[MR][2];

#pragma GCC unroll 6
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
		for (int j = 0; j < nv; j++)
			s[i][j] = vset(0);
	for (int64_t k = 0; k < K; k++) {
		vf b0 = vld(b + k * NR), b1 = nv > 1 ? vld(b + k * NR + W) : b0;

#pragma GCC unroll 6
		for (int i = 0; i < mr; i++) {
			vf x = vset(tr ? a[k * lda + i] : a[i * lda + k]);

			s[i][0] += x * b0;
			if (nv > 1)
				s[i][1] += x * b1;
		}
	}
#pragma GCC unroll 6
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
		for (int j = 0; j < nv; j++) {
			float *p = c + i * ldc + j * W;

			vst(p, add ? vld(p) + s[i][j] : s[i][j]);
		}
}

TILE_INLINE void tile_rows(const int nv, const int tr, int64_t mr, int64_t K, const float *a, int64_t lda,
			   const float *b, float *c, int64_t ldc, int add)
{
	switch (mr) {
	case 1:
		tile_micro(1, nv, tr, K, a, lda, b, c, ldc, add);
		break;
	case 2:
		tile_micro(2, nv, tr, K, a, lda, b, c, ldc, add);
		break;
	case 3:
		tile_micro(3, nv, tr, K, a, lda, b, c, ldc, add);
		break;
	case 4:
		tile_micro(4, nv, tr, K, a, lda, b, c, ldc, add);
		break;
	case 5:
		tile_micro(5, nv, tr, K, a, lda, b, c, ldc, add);
		break;
	default:
		tile_micro(6, nv, tr, K, a, lda, b, c, ldc, add);
	}
}

TILE_INLINE void tile_mm(const int tr, int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b,
			 int64_t stride, float *c, int64_t ldc, int add)
{
	for (int64_t i = 0; i < M; i += MR) {
		const float *ai = a + i * (tr ? 1 : lda);
		int64_t mr = M - i < MR ? M - i : MR, j = 0;

		for (; N - j > W; j += NR)
			tile_rows(2, tr, mr, K, ai, lda, b + j / NR * stride, c + i * ldc + j, ldc, add);
		if (j < N)
			tile_rows(1, tr, mr, K, ai, lda, b + j / NR * stride, c + i * ldc + j, ldc, add);
	}
}

/* C[M][N] (+)= A[M][K] B; N is rounded up to W columns (C has room, B has zeros there). */
static __attribute__((noinline, unused)) void tile_nn(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda,
						      const float *b, int64_t stride, float *c, int64_t ldc, int add)
{
	tile_mm(0, M, N, K, a, lda, b, stride, c, ldc, add);
}

/* C[M][N] (+)= A^T B with A[K][M] */
static __attribute__((noinline, unused)) void tile_tn(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda,
						      const float *b, int64_t stride, float *c, int64_t ldc, int add)
{
	tile_mm(1, M, N, K, a, lda, b, stride, c, ldc, add);
}

/* B = X: rows of x become rows of B. x [n][d]; panel stride n * NR. */
static __attribute__((unused)) void tile_pack(int64_t n, int64_t d, const float *x, int64_t ld, float *b)
{
	for (int64_t j = 0; j < d; j += NR)
		for (int64_t k = 0; k < n; k++, b += NR) {
			const float *r = x + k * ld + j;

			if (d - j >= NR) {
				vst(b, vld(r));
				vst(b + W, vld(r + W));
			} else if (d - j > W) {
				vst(b, vld(r));
				vst(b + W, vld_n(r + W, d - j - W));
			} else {
				vst(b, d - j == W ? vld(r) : vld_n(r, d - j));
				vst(b + W, vset(0));
			}
		}
}

/* Vectors of row r that hold a key some query of the same MR rows sees, r itself seeing keys [.., hi) of `width`:
 * what products over MR rows may touch, so what must be masked. */
static inline int64_t tile_seen(int64_t hi, int64_t width)
{
	int64_t n = (hi + MR - 1 + W - 1) / W * W;

	return hi <= -MR ? 0 : n < width ? n : width;
}

typedef float v4f_mem __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t v4i __attribute__((vector_size(16)));

/* Columns c..c+3 of B from 4 rows of x, 4 numbers of each at a time. */
static inline void tile_transpose4(int64_t d, const float *x, int64_t ld, float *b)
{
	int64_t k = 0;

	for (; k + 4 <= d; k += 4) {
		v4f r0 = *(const v4f_mem *)(x + k), r1 = *(const v4f_mem *)(x + ld + k);
		v4f r2 = *(const v4f_mem *)(x + 2 * ld + k), r3 = *(const v4f_mem *)(x + 3 * ld + k);
		v4f a = __builtin_shuffle(r0, r1, (v4i){0, 4, 1, 5}), c = __builtin_shuffle(r2, r3, (v4i){0, 4, 1, 5});
		v4f e = __builtin_shuffle(r0, r1, (v4i){2, 6, 3, 7}), f = __builtin_shuffle(r2, r3, (v4i){2, 6, 3, 7});

		*(v4f_mem *)(b + k * NR) = __builtin_shuffle(a, c, (v4i){0, 1, 4, 5});
		*(v4f_mem *)(b + (k + 1) * NR) = __builtin_shuffle(a, c, (v4i){2, 3, 6, 7});
		*(v4f_mem *)(b + (k + 2) * NR) = __builtin_shuffle(e, f, (v4i){0, 1, 4, 5});
		*(v4f_mem *)(b + (k + 3) * NR) = __builtin_shuffle(e, f, (v4i){2, 3, 6, 7});
	}
	for (; k < d; k++)
		for (int i = 0; i < 4; i++)
			b[k * NR + i] = x[i * ld + k];
}

/* B = X^T: rows of x become columns of B. x [n][d]; panel stride d * NR. */
static __attribute__((unused)) void tile_pack_t(int64_t n, int64_t d, const float *x, int64_t ld, float *b)
{
	for (int64_t p = 0; p < n; p += NR, b += d * NR) {
		int64_t w = n - p < NR ? n - p : NR, j = 0;

		for (; j + 4 <= w; j += 4)
			tile_transpose4(d, x + (p + j) * ld, ld, b + j);
		for (; j < NR; j++)
			for (int64_t k = 0; k < d; k++)
				b[k * NR + j] = j < w ? x[(p + j) * ld + k] : 0.0f;
	}
}

#endif
