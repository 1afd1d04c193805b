/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/isa/attn_tiles.h"
#include "kernels/cpu/isa/rows.h"

#define STR_(x) #x
#define STR(x)	STR_(x)

const struct kn_vec KN_SYM(kn_vec) = {
	.name = STR(KN_ISA),
	.add = KN_SYM(kn_v_add),
	.scale = KN_SYM(kn_v_scale),
	.sumsq = KN_SYM(kn_v_sumsq),
	.dot = KN_SYM(kn_v_dot),
	.to_bf16 = KN_SYM(kn_v_to_bf16),
	.from_bf16 = KN_SYM(kn_v_from_bf16),
	.rmsnorm_fwd = KN_SYM(kn_v_rmsnorm_fwd),
	.rmsnorm_bwd = KN_SYM(kn_v_rmsnorm_bwd),
	.rope = KN_SYM(kn_v_rope),
	.swiglu_fwd = KN_SYM(kn_v_swiglu_fwd),
	.swiglu_bwd = KN_SYM(kn_v_swiglu_bwd),
	.xent = KN_SYM(kn_v_xent),
	.adamw = KN_SYM(kn_v_adamw),
	.attn_fwd = KN_SYM(kn_v_attn_fwd),
	.attn_bwd = KN_SYM(kn_v_attn_bwd),
	.exp = KN_SYM(kn_v_exp),
};
