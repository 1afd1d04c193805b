/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

int cpu_attn_fwd(struct kn_ctx *c, const struct kn_attn *a) { return ref_attn_fwd(c, a); }
int cpu_attn_bwd(struct kn_ctx *c, const struct kn_attn *a) { return ref_attn_bwd(c, a); }
