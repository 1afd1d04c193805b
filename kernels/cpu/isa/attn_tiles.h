/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNELS_CPU_ISA_ATTN_TILES_H
#define KERNELS_CPU_ISA_ATTN_TILES_H
/* Private: the attention jobs of one instruction set. buf: attn_fwd_floats() or attn_bwd_floats() floats. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/isa/simd.h"

void KN_SYM(kn_v_attn_fwd)(const struct kn_attn *a, const struct attn_job *j, float *buf);
void KN_SYM(kn_v_attn_bwd)(const struct kn_attn *a, const struct attn_job *j, float *buf);

#endif
