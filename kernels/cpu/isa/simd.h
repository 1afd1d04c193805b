/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_ISA_SIMD_H
#define KERNELS_CPU_ISA_SIMD_H
/*
 * Private: one vector type `vf` of W floats, chosen by the -m flags this file is compiled with. Arithmetic uses
 * GCC vector extensions (a * b + c contracts to one fma where there is one); what they cannot say is below.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define W      16
#define KN_ISA avx512
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__)
#define W      8
#define KN_ISA avx2
#include <immintrin.h>
#else
#define W      4
#define KN_ISA generic
#endif

#define KN_CAT_(a, b) a##_##b
#define KN_CAT(a, b)  KN_CAT_(a, b)
#define KN_SYM(name)  KN_CAT(name, KN_ISA)

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef float vf_mem __attribute__((vector_size(4 * W), aligned(4), may_alias));

static inline vf vld(const float *p) { return *(const vf_mem *)p; }
static inline void vst(float *p, vf x) { *(vf_mem *)p = x; }

/* The first n < W floats, zeros behind them; memory past them is not touched. */
static inline vf vld_n(const float *p, int64_t n);
static inline void vst_n(float *p, vf x, int64_t n);
/* b where either is NaN */
static inline vf vmax(vf a, vf b);
static inline vf vmin(vf a, vf b);
static inline vf vset(float a);
static inline vf vsqrt(vf x);
static inline vi vround(vf x); /* to nearest */

#if defined(__AVX512F__)
static inline vf vset(float a) { return (vf)_mm512_set1_ps(a); }
static inline vf vld_n(const float *p, int64_t n)
{
	return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void vst_n(float *p, vf x, int64_t n)
{
	_mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
}
static inline vf vmax(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vf vmin(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
static inline vf vsqrt(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
static inline vi vround(vf x) { return (vi)_mm512_cvtps_epi32((__m512)x); }
#elif defined(__AVX2__) && defined(__FMA__)
static inline vf vset(float a) { return (vf)_mm256_set1_ps(a); }
static inline __m256i vmask_n(int64_t n)
{
	static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

	return _mm256_loadu_si256((const __m256i *)(ones + 8 - n));
}
static inline vf vld_n(const float *p, int64_t n) { return (vf)_mm256_maskload_ps(p, vmask_n(n)); }
static inline void vst_n(float *p, vf x, int64_t n) { _mm256_maskstore_ps(p, vmask_n(n), (__m256)x); }
static inline vf vmax(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vf vmin(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
static inline vf vsqrt(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
static inline vi vround(vf x) { return (vi)_mm256_cvtps_epi32((__m256)x); }
#else
static inline vf vset(float a) { return (vf){a, a, a, a}; }
static inline vf vld_n(const float *p, int64_t n)
{
	vf x = {0};

	for (int64_t i = 0; i < n; i++)
		x[i] = p[i];
	return x;
}
static inline void vst_n(float *p, vf x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		p[i] = x[i];
}
static inline vf vmax(vf a, vf b)
{
	vi m = a > b;

	return (vf)((m & (vi)a) | (~m & (vi)b));
}
static inline vf vmin(vf a, vf b)
{
	vi m = a < b;

	return (vf)((m & (vi)a) | (~m & (vi)b));
}
static inline vf vsqrt(vf x)
{
	for (int i = 0; i < W; i++)
		x[i] = sqrtf(x[i]);
	return x;
}
/* Adding 1.5 * 2^23 leaves the rounded integer in the low bits; good for |x| < 2^22, all vexp needs. */
static inline vi vround(vf x) { return (vi)(x + 12582912.0f) - (vi)vset(12582912.0f); }
#endif

static inline vf vcvt(vi x) { return __builtin_convertvector(x, vf); }

typedef float v4f __attribute__((vector_size(16)));

/* Sum and maximum over the lanes, halves first: the same order on every call. */
#if W == 16
typedef float v8f __attribute__((vector_size(32)));
static inline v4f v4_sum(vf x)
{
	v8f y = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
		__builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);

	return __builtin_shufflevector(y, y, 0, 1, 2, 3) + __builtin_shufflevector(y, y, 4, 5, 6, 7);
}
#elif W == 8
static inline v4f v4_sum(vf x)
{
	return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
}
#else
static inline v4f v4_sum(vf x) { return x; }
#endif

static inline float vsum(vf x)
{
	v4f y = v4_sum(x);

	y += __builtin_shufflevector(y, y, 2, 3, 0, 1);
	return y[0] + y[1];
}

/* A rotation by half, a quarter, ... of the lanes leaves the maximum in all of them. */
static inline float vmaxall(vf x)
{
#if W == 16
	x = vmax(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
	x = vmax(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
	x = vmax(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
	x = vmax(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif W == 8
	x = vmax(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
	x = vmax(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5));
	x = vmax(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6));
#else
	x = vmax(x, __builtin_shufflevector(x, x, 2, 3, 0, 1));
	x = vmax(x, __builtin_shufflevector(x, x, 1, 0, 3, 2));
#endif
	return x[0];
}

/*
 * exp(x): 2^n * p(r), r = x - n ln 2 in two parts (Cody & Waite), p of degree 7 (Cephes expf). Within 2 ulp on
 * [-87.3, 88.3]; exactly 0 below -87.7 and for -inf (results that small would be subnormal), inf above 88.38
 * (the last 0.35 before overflow is given up so that 2^n needs one step), NaN stays NaN.
 */
static inline vf vexp(vf x)
{
	vf n, r, p;
	vi e;

	x = vmin(vset(88.7f), vmax(vset(-88.02f), x));
	e = vround(x * 1.44269504088896341f);
	n = vcvt(e);
	r = x - n * 0.693359375f;
	r = r + n * 2.12194440e-4f;
	p = vset(1.9875691500e-4f);
	p = p * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * (r * r) + r + 1.0f;
	return p * (vf)((e + 127) << 23);
}

#endif
