/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_GOLDEN_UTIL_H
#define TESTS_UNIT_GOLDEN_UTIL_H
/* Reads tests/golden/llama.json and llama.safetensors; format: make_llama_golden.py. Tests run from the repository's root. */
#include <jansson.h>

#include "io/io_safetensors.h"
#include "tests/unit/model_util.h"

#define GOLDEN_DIR "tests/golden/"
#define GOLDEN_ROWS 3

struct golden {
	json_t *doc;
	struct io_st *st;
};

static inline struct golden golden_open(void)
{
	struct golden g = { 0 };
	struct io_error ie = { 0 };
	json_error_t je;

	g.doc = json_load_file(GOLDEN_DIR "llama.json", JSON_REJECT_DUPLICATES, &je);
	if (!g.doc)
		fail_msg(GOLDEN_DIR "llama.json: %s", je.text);
	if (io_st_open(GOLDEN_DIR "llama.safetensors", &g.st, &ie))
		fail_msg("%s", ie.text);
	return g;
}

static inline void golden_close(struct golden *g)
{
	json_decref(g->doc);
	io_st_close(g->st);
}

static inline json_t *golden_at(json_t *o, const char *key)
{
	json_t *v = json_object_get(o, key);

	if (!v)
		fail_msg("golden values lack \"%s\"", key);
	return v;
}
static inline int64_t golden_int(json_t *o, const char *key) { return json_integer_value(golden_at(o, key)); }
static inline double golden_real(json_t *o, const char *key) { return json_number_value(golden_at(o, key)); }

static inline struct tr_model_config golden_config(json_t *c)
{
	return (struct tr_model_config){
		.model_type = "llama",
		.hidden_size = golden_int(c, "hidden_size"),
		.intermediate_size = golden_int(c, "intermediate_size"),
		.num_hidden_layers = golden_int(c, "num_hidden_layers"),
		.num_attention_heads = golden_int(c, "num_attention_heads"),
		.num_key_value_heads = golden_int(c, "num_key_value_heads"),
		.head_dim = golden_int(c, "head_dim"),
		.vocab_size = golden_int(c, "vocab_size"),
		.max_position_embeddings = golden_int(c, "max_position_embeddings"),
		.rms_norm_eps = golden_real(c, "rms_norm_eps"),
		.rope_theta = golden_real(c, "rope_theta"),
		.initializer_range = 0.02,
		.tie_word_embeddings = json_is_true(golden_at(c, "tie_word_embeddings")),
		.attention_bias = json_is_true(golden_at(c, "attention_bias")),
		.eos_token_id = -1,
		.pad_token_id = -1,
		.bos_token_id = -1,
	};
}

static inline struct mu_row *golden_row(const struct golden *g, int index, int64_t vocab)
{
	json_t *lens = json_array_get(golden_at(g->doc, "rows"), (size_t)index);
	int64_t n = (int64_t)json_array_size(lens), *len = calloc((size_t)n, sizeof(*len));
	struct mu_row *r;

	for (int64_t i = 0; i < n; i++)
		len[i] = json_integer_value(json_array_get(lens, (size_t)i));
	r = mu_row_new(index, len, n, vocab);
	free(len);
	return r;
}

/* Tensor "<case>/<kind>/<name>" (name NULL: "<case>/<kind>") of exactly n elements into out. */
static inline void golden_tensor(const struct golden *g, const char *cas, const char *kind, const char *name, int64_t n,
				 float *out)
{
	struct io_error ie = { 0 };
	const struct io_tensor *t;
	char key[256];

	snprintf(key, sizeof(key), "%s/%s%s%s", cas, kind, name ? "/" : "", name ? name : "");
	t = io_st_find(g->st, key);
	if (!t)
		fail_msg("golden values lack %s", key);
	assert_int_equal(t->count, n);
	if (io_st_read_f32(g->st, t, 0, n, out, &ie))
		fail_msg("%s", ie.text);
}

/* All parameters of a kind ("grad", "final") as one flat space; caller frees. */
static inline float *golden_flat(const struct golden *g, const char *cas, const char *kind, const struct tr_param *p,
				 int64_t n, int64_t total)
{
	float *out = malloc((size_t)total * sizeof(*out));

	for (int64_t k = 0; k < n; k++)
		golden_tensor(g, cas, kind, p[k].name, p[k].count, out + p[k].offset);
	return out;
}

#endif
