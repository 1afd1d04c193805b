/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_PARAMS_H
#define TRAINER_PARAMS_H
/*
 * The table of named tensors, made from the configuration alone: the model, the optimizer, checkpoints and the model
 * directory all read it. Order of one layer (HF names without "model.layers.N."):
 *
 *   input_layernorm.weight                 [C]
 *   self_attn.{q,k,v,o}_proj.weight        [Hq*d][C] [Hkv*d][C] [Hkv*d][C] [C][Hq*d]
 *   self_attn.{q,k,v,o}_proj.bias          [Hq*d] [Hkv*d] [Hkv*d] [C]      with attention_bias
 *   post_attention_layernorm.weight        [C]
 *   mlp.{gate,up,down}_proj.weight         [F][C] [F][C] [C][F]            gate and up adjacent: one product for both
 *
 * before them model.embed_tokens.weight [V][C], after them model.norm.weight [C] and, when not tied, lm_head.weight [V][C].
 */
#include "trainer/model.h"

/* Caller frees *table. The configuration must have passed tr_model_config_check. */
int tr_params_build(const struct tr_model_config *c, struct tr_param **table, int64_t *n, int64_t *total,
		    struct tr_error *err);
/* NULL when there is no tensor of that name. */
const struct tr_param *tr_params_find(const struct tr_param *table, int64_t n, const char *name);

/* Offsets in the flat space of one layer's tensors; biases -1 when there are none. */
struct tr_layer_off {
	int64_t ln1, wq, wk, wv, wo, bq, bk, bv, bo, ln2, wgu, wd;
};
struct tr_offsets {
	int64_t embed, norm, lm_head; /* lm_head == embed when tied */
	struct tr_layer_off *layer;   /* [num_hidden_layers] */
};
int tr_offsets_build(const struct tr_model_config *c, const struct tr_param *table, int64_t n, struct tr_offsets *out,
		     struct tr_error *err);

#endif
