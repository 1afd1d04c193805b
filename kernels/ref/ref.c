/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref.h"

#include <string.h>

static int copy(struct kn_ctx *c, void *dst, const void *src, size_t bytes, enum kn_copy_dir dir)
{
	(void)c;
	(void)dir;
	if (bytes)
		memcpy(dst, src, bytes);
	return 0;
}

static int zero(struct kn_ctx *c, void *dst, size_t bytes)
{
	(void)c;
	if (bytes)
		memset(dst, 0, bytes);
	return 0;
}

const struct kn_ops *kn_ref(void)
{
	static const struct kn_ops ops = {
		.name = "ref",
		.open = kn_host_open,
		.close = kn_host_close,
		.strerror = kn_host_strerror,
		.alloc = kn_host_alloc,
		.free = kn_host_free,
		.copy = copy,
		.zero = zero,
		.sync = kn_host_sync,
		.gemm = ref_gemm,
		.add = ref_add,
		.add_rows = ref_add_rows,
		.scale = ref_scale,
		.convert = ref_convert,
		.sumsq = ref_sumsq,
		.embed_fwd = ref_embed_fwd,
		.embed_bwd = ref_embed_bwd,
		.rmsnorm_fwd = ref_rmsnorm_fwd,
		.rmsnorm_bwd = ref_rmsnorm_bwd,
		.rope = ref_rope,
		.swiglu_fwd = ref_swiglu_fwd,
		.swiglu_bwd = ref_swiglu_bwd,
		.bias_fwd = ref_bias_fwd,
		.bias_bwd = ref_bias_bwd,
		.attn_fwd = ref_attn_fwd,
		.attn_bwd = ref_attn_bwd,
		.rowdot = ref_rowdot,
		.xent = ref_xent,
		.adamw = ref_adamw,
	};

	return &ops;
}
