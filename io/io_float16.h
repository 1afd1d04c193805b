/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_FLOAT16_H
#define IO_IO_FLOAT16_H
/* Private to io: 16-bit floats as stored in model files. Widening is exact; narrowing rounds to nearest, ties to
 * even, overflows to infinity, keeps a NaN's sign and upper payload bits and never turns a NaN into an infinity.
 * So every 16-bit pattern survives widening and narrowing unchanged. */
#include <stddef.h>
#include <stdint.h>

void io__f16_to_f32(const uint16_t *in, float *out, size_t n);
void io__bf16_to_f32(const uint16_t *in, float *out, size_t n);
void io__f32_to_f16(const float *in, uint16_t *out, size_t n);
void io__f32_to_bf16(const float *in, uint16_t *out, size_t n);

#endif
