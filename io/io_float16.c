/* SPDX-License-Identifier: Apache-2.0 */
#include "io/io_float16.h"

#include <string.h>

static inline uint32_t bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float unbits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* Patterns are moved as integers throughout, so that signalling NaNs are not quietened on the way. */
static uint32_t widen_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;

	if (exp == 31)
		return sign | 0x7f800000 | man << 13;
	if (exp != 0)
		return sign | (exp + 112) << 23 | man << 13;
	if (man == 0)
		return sign;
	/* subnormal: man * 2^-24; shift until the leading one is the implied bit */
	for (exp = 113; !(man & 1024); exp--)
		man <<= 1;
	return sign | exp << 23 | (man & 1023) << 13;
}

static uint16_t narrow_f16(uint32_t u)
{
	uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
	uint32_t a = u & 0x7fffffff, man, half, rest;
	unsigned shift;

	if (a > 0x7f800000) {
		man = a >> 13 & 1023;
		return (uint16_t)(sign | 0x7c00 | (man ? man : 512));
	}
	if (a >= 0x477ff000) /* 65520 and more round to infinity */
		return sign | 0x7c00;
	if (a >= 0x38800000) { /* normal result: rebias, round on the 13 bits that go; a carry moves into the
				  exponent */
		a -= 112u << 23;
		return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1)) >> 13);
	}
	if (a < 0x33000000) /* below half of the smallest subnormal */
		return sign;
	/* subnormal result: value = man * 2^(exp-150), in units of 2^-24 */
	shift = 126 - (a >> 23);
	man = (a & 0x7fffff) | 0x800000;
	half = 1u << (shift - 1);
	rest = man & ((1u << shift) - 1);
	man >>= shift;
	if (rest > half || (rest == half && (man & 1)))
		man++;
	return (uint16_t)(sign | man);
}

static inline uint16_t narrow_bf16(uint32_t u)
{
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | (u & 0x7f0000 ? 0 : 0x40));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void io__f16_to_f32(const uint16_t *in, float *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = unbits(widen_f16(in[i]));
}

void io__bf16_to_f32(const uint16_t *in, float *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = unbits((uint32_t)in[i] << 16);
}

void io__f32_to_f16(const float *in, uint16_t *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = narrow_f16(bits(in[i]));
}

void io__f32_to_bf16(const float *in, uint16_t *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = narrow_bf16(bits(in[i]));
}
