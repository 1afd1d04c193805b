/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct kn_vec *kn_vec_pick(void)
{
	const char *want = getenv("KN_CPU_ISA");

	if (want && !*want)
		want = NULL;
#ifdef KN_X86
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f") && (!want || !strcmp(want, "avx512")))
		return &kn_vec_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (!want || !strcmp(want, "avx2")))
		return &kn_vec_avx2;
#endif
	return !want || !strcmp(want, "generic") ? &kn_vec_generic : NULL;
}

static int cpu_open(const struct kn_open_args *args, struct kn_ctx **out)
{
	int rc = kn_host_open(args, out);

	if (rc)
		return rc;
	(*out)->v = kn_vec_pick();
	if ((*out)->v)
		return 0;
	kn_host_close(*out);
	*out = NULL;
	return -ENOTSUP;
}

const struct kn_ops *kn_cpu(void)
{
	static const struct kn_ops ops = {
		.name = "cpu",
		.open = cpu_open,
		.close = kn_host_close,
		.strerror = kn_host_strerror,
		.alloc = kn_host_alloc,
		.free = kn_host_free,
		.copy = cpu_copy,
		.zero = cpu_zero,
		.sync = kn_host_sync,
		.gemm = cpu_gemm,
		.add = cpu_add,
		.add_rows = cpu_add_rows,
		.scale = cpu_scale,
		.convert = cpu_convert,
		.sumsq = cpu_sumsq,
		.embed_fwd = cpu_embed_fwd,
		.embed_bwd = cpu_embed_bwd,
		.rmsnorm_fwd = cpu_rmsnorm_fwd,
		.rmsnorm_bwd = cpu_rmsnorm_bwd,
		.rope = cpu_rope,
		.swiglu_fwd = cpu_swiglu_fwd,
		.swiglu_bwd = cpu_swiglu_bwd,
		.bias_fwd = cpu_bias_fwd,
		.bias_bwd = cpu_bias_bwd,
		.attn_fwd = cpu_attn_fwd,
		.attn_bwd = cpu_attn_bwd,
		.rowdot = cpu_rowdot,
		.xent = cpu_xent,
		.adamw = cpu_adamw,
	};

	return &ops;
}
