/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_KN_HOST_H
#define KERNELS_KN_HOST_H
/* Private: the context and the memory operations shared by the two host backends, ref and cpu. */
#include "kernels/kernels.h"
#include "kernels/kn_check.h"

struct kn_vec;

struct kn_ctx {
	struct kn_err err;
	int threads;
	const struct kn_vec *v; /* cpu only: row functions of the instruction set chosen at open */
	void *scratch;          /* one block, grows, freed at close */
	size_t scratch_bytes;
};

int kn_host_open(const struct kn_open_args *args, struct kn_ctx **out);
void kn_host_close(struct kn_ctx *c);
const char *kn_host_strerror(const struct kn_ctx *c);
int kn_host_alloc(struct kn_ctx *c, size_t bytes, void **out);
void kn_host_free(struct kn_ctx *c, void *p);
int kn_host_sync(struct kn_ctx *c);

/* At least `bytes` of scratch, 64-byte aligned, valid until the next call; NULL (error text set) when memory
 * is short. Contents are undefined. */
void *kn_host_scratch(struct kn_ctx *c, size_t bytes);

/* Bytes rounded up to a cache line, so that parts carved from one scratch block never share a line. */
static inline size_t kn_round64(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* bf16 <-> fp32; to bf16 rounds to nearest even, NaN stays NaN (made quiet). */
static inline uint16_t kn_f32_to_bf16(float f)
{
	union {
		float f;
		uint32_t u;
	} x = {.f = f};
	uint32_t rounded = x.u + 0x7fffu + ((x.u >> 16) & 1u);
	uint32_t quiet = x.u | 0x400000u;

	return (uint16_t)(((x.u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

static inline float kn_bf16_to_f32(uint16_t h)
{
	union {
		uint32_t u;
		float f;
	} x = {.u = (uint32_t)h << 16};

	return x.f;
}

#endif
