/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ELEMENTS ((int64_t)1 << 46) /* 256 TiB of fp32: beyond any machine, far below overflow */

/* ---- checks --------------------------------------------------------------------------------------------- */

static int check_range(const char *key, int64_t v, int64_t lo, int64_t hi, struct tr_error *err)
{
	if (v >= lo && v <= hi)
		return 0;
	return tr_errorf(err, TR_EXIT_USAGE, "model.%s is %lld; allowed: %lld to %lld", key, (long long)v,
			 (long long)lo, (long long)hi);
}

static int check_heads(const struct tr_model_config *c, struct tr_error *err)
{
	if (check_range("num_attention_heads", c->num_attention_heads, 1, 65536, err) ||
	    check_range("num_key_value_heads", c->num_key_value_heads, 1, c->num_attention_heads, err) ||
	    check_range("head_dim", c->head_dim, 2, 256, err))
		return -1;
	if (c->num_attention_heads % c->num_key_value_heads)
		return tr_errorf(err, TR_EXIT_USAGE,
				 "model.num_key_value_heads is %lld; it must divide num_attention_heads, %lld",
				 (long long)c->num_key_value_heads, (long long)c->num_attention_heads);
	if (c->head_dim % 2)
		return tr_errorf(err, TR_EXIT_USAGE,
				 "model.head_dim is %lld; rotary embedding turns pairs, so it must be even",
				 (long long)c->head_dim);
	return 0;
}

static int check_reals(const struct tr_model_config *c, struct tr_error *err)
{
	if (!(isfinite(c->rms_norm_eps) && c->rms_norm_eps > 0 && c->rms_norm_eps <= 1))
		return tr_errorf(err, TR_EXIT_USAGE, "model.rms_norm_eps is %g; allowed: above 0, at most 1 (usual: 1e-5)",
				 c->rms_norm_eps);
	if (!(isfinite(c->rope_theta) && c->rope_theta >= 1))
		return tr_errorf(err, TR_EXIT_USAGE, "model.rope_theta is %g; allowed: at least 1 (usual: 10000)",
				 c->rope_theta);
	if (!(isfinite(c->initializer_range) && c->initializer_range >= 0))
		return tr_errorf(err, TR_EXIT_USAGE, "model.initializer_range is %g; allowed: 0 or more (usual: 0.02)",
				 c->initializer_range);
	return 0;
}

static int check_flags(const struct tr_model_config *c, struct tr_error *err)
{
	if (check_range("tie_word_embeddings", c->tie_word_embeddings, 0, 1, err) ||
	    check_range("attention_bias", c->attention_bias, 0, 1, err) ||
	    check_range("eos_token_id", c->eos_token_id, -1, c->vocab_size - 1, err) ||
	    check_range("pad_token_id", c->pad_token_id, -1, c->vocab_size - 1, err) ||
	    check_range("bos_token_id", c->bos_token_id, -1, c->vocab_size - 1, err))
		return -1;
	return 0;
}

/* Every factor is at most 2^31 and the products below are of two factors, so only the sum over layers can run away. */
static int check_total(const struct tr_model_config *c, struct tr_error *err)
{
	int64_t q = c->num_attention_heads * c->head_dim, kv = c->num_key_value_heads * c->head_dim;
	double layer = (double)c->hidden_size * (2.0 * (double)q + 2.0 * (double)kv + 4) +
		       3.0 * (double)c->hidden_size * (double)c->intermediate_size;
	double all = layer * (double)c->num_hidden_layers + 2.0 * (double)c->vocab_size * (double)c->hidden_size;

	if (all > (double)MAX_ELEMENTS)
		return tr_errorf(err, TR_EXIT_USAGE,
				 "model: hidden_size %lld, intermediate_size %lld, num_hidden_layers %lld and vocab_size %lld make "
				 "%.3g parameters; allowed: at most %.3g",
				 (long long)c->hidden_size, (long long)c->intermediate_size,
				 (long long)c->num_hidden_layers, (long long)c->vocab_size, all, (double)MAX_ELEMENTS);
	return 0;
}

int tr_model_config_check(const struct tr_model_config *c, struct tr_error *err)
{
	if (strcmp(c->model_type, "llama"))
		return tr_errorf(err, TR_EXIT_USAGE, "model.model_type is \"%.31s\"; allowed: llama", c->model_type);
	if (check_range("hidden_size", c->hidden_size, 1, 1 << 20, err) ||
	    check_range("intermediate_size", c->intermediate_size, 1, 1 << 24, err) ||
	    check_range("num_hidden_layers", c->num_hidden_layers, 1, 100000, err) ||
	    check_range("vocab_size", c->vocab_size, 1, INT32_MAX, err) ||
	    check_range("max_position_embeddings", c->max_position_embeddings, 1, 1 << 24, err))
		return -1;
	if (check_heads(c, err) || check_reals(c, err) || check_flags(c, err))
		return -1;
	return check_total(c, err);
}

/* ---- the table -------------------------------------------------------------------------------------------- */

struct builder {
	struct tr_param *p;
	int64_t n, total;
};

static void put(struct builder *b, int64_t d0, int64_t d1, int decay, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* d1 = 0: one dimension */
static void put(struct builder *b, int64_t d0, int64_t d1, int decay, const char *fmt, ...)
{
	struct tr_param *p = &b->p[b->n++];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->name, sizeof(p->name), fmt, ap);
	va_end(ap);
	p->ndim = d1 ? 2 : 1;
	p->dims[0] = d0;
	p->dims[1] = d1 ? d1 : 1;
	p->count = d0 * p->dims[1];
	p->offset = b->total;
	p->decay = decay;
	b->total += p->count;
}

static void put_layer(struct builder *b, const struct tr_model_config *c, long long l)
{
	int64_t C = c->hidden_size, F = c->intermediate_size;
	int64_t q = c->num_attention_heads * c->head_dim, kv = c->num_key_value_heads * c->head_dim;

	put(b, C, 0, 0, "model.layers.%lld.input_layernorm.weight", l);
	put(b, q, C, 1, "model.layers.%lld.self_attn.q_proj.weight", l);
	put(b, kv, C, 1, "model.layers.%lld.self_attn.k_proj.weight", l);
	put(b, kv, C, 1, "model.layers.%lld.self_attn.v_proj.weight", l);
	put(b, C, q, 1, "model.layers.%lld.self_attn.o_proj.weight", l);
	if (c->attention_bias) {
		put(b, q, 0, 0, "model.layers.%lld.self_attn.q_proj.bias", l);
		put(b, kv, 0, 0, "model.layers.%lld.self_attn.k_proj.bias", l);
		put(b, kv, 0, 0, "model.layers.%lld.self_attn.v_proj.bias", l);
		put(b, C, 0, 0, "model.layers.%lld.self_attn.o_proj.bias", l);
	}
	put(b, C, 0, 0, "model.layers.%lld.post_attention_layernorm.weight", l);
	put(b, F, C, 1, "model.layers.%lld.mlp.gate_proj.weight", l);
	put(b, F, C, 1, "model.layers.%lld.mlp.up_proj.weight", l);
	put(b, C, F, 1, "model.layers.%lld.mlp.down_proj.weight", l);
}

static int64_t per_layer(const struct tr_model_config *c) { return c->attention_bias ? 13 : 9; }

int tr_params_build(const struct tr_model_config *c, struct tr_param **table, int64_t *n, int64_t *total,
		    struct tr_error *err)
{
	int64_t count = c->num_hidden_layers * per_layer(c) + (c->tie_word_embeddings ? 2 : 3);
	struct builder b = { .p = calloc((size_t)count, sizeof(*b.p)) };

	if (!b.p)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory for the table of %lld tensors", (long long)count);
	put(&b, c->vocab_size, c->hidden_size, 1, "model.embed_tokens.weight");
	for (int64_t l = 0; l < c->num_hidden_layers; l++)
		put_layer(&b, c, (long long)l);
	put(&b, c->hidden_size, 0, 0, "model.norm.weight");
	if (!c->tie_word_embeddings)
		put(&b, c->vocab_size, c->hidden_size, 1, "lm_head.weight");
	*table = b.p;
	*n = b.n;
	*total = b.total;
	return 0;
}

const struct tr_param *tr_params_find(const struct tr_param *table, int64_t n, const char *name)
{
	for (int64_t i = 0; i < n; i++)
		if (!strcmp(table[i].name, name))
			return &table[i];
	return NULL;
}

int tr_offsets_build(const struct tr_model_config *c, const struct tr_param *table, int64_t n, struct tr_offsets *out,
		     struct tr_error *err)
{
	const struct tr_param *t = table + 1;

	out->layer = calloc((size_t)c->num_hidden_layers, sizeof(*out->layer));
	if (!out->layer)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory for %lld layers", (long long)c->num_hidden_layers);
	out->embed = table[0].offset;
	for (int64_t l = 0; l < c->num_hidden_layers; l++, t += per_layer(c)) {
		struct tr_layer_off *o = &out->layer[l];
		const struct tr_param *mlp = t + per_layer(c) - 4; /* post_attention_layernorm */

		*o = (struct tr_layer_off){ t[0].offset, t[1].offset, t[2].offset, t[3].offset, t[4].offset, -1, -1,
					    -1, -1, mlp[0].offset, mlp[1].offset, mlp[3].offset };
		if (c->attention_bias) {
			o->bq = t[5].offset;
			o->bk = t[6].offset;
			o->bv = t[7].offset;
			o->bo = t[8].offset;
		}
	}
	out->norm = t[0].offset;
	out->lm_head = c->tie_word_embeddings ? out->embed : table[n - 1].offset;
	return 0;
}
