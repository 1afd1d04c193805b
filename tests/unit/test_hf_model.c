/* SPDX-License-Identifier: Apache-2.0 */
/* The model directory: its files, its numbers, how it replaces an older one and what it refuses to touch. */
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "io/io_file.h"
#include "io/io_safetensors.h"
#include "tests/unit/model_util.h"
#include "trainer/hf_model.h"

static const struct tr_model_config config = {
	.model_type = "llama", .hidden_size = 24, .intermediate_size = 40, .num_hidden_layers = 2, .num_attention_heads = 4,
	.num_key_value_heads = 2, .head_dim = 8, .vocab_size = 37, .max_position_embeddings = 64, .rms_norm_eps = 1e-5,
	.rope_theta = 10000, .initializer_range = 0.02, .attention_bias = 1, .eos_token_id = 36, .pad_token_id = -1,
	.bos_token_id = 0,
};

struct fixture {
	char root[64], dir[128], data[128];
	struct tr_param *table;
	int64_t n, total, fail_at; /* fail_at: the getter fails beyond this offset; -1: never */
	float shift;               /* added to every weight */
};

static int get(void *arg, int64_t offset, int64_t count, float *out, struct tr_error *err)
{
	struct fixture *f = arg;

	if (f->fail_at >= 0 && offset + count > f->fail_at)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "the disk of weights is gone");
	for (int64_t k = 0; k < f->n; k++)
		for (int64_t i = 0; i < count; i++) {
			int64_t at = offset + i - f->table[k].offset;

			if (at >= 0 && at < f->table[k].count)
				out[i] = mu_weight(&f->table[k], at) + f->shift;
		}
	return 0;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct tr_error err = { 0 };

	strcpy(f->root, "/tmp/su-hf-XXXXXX");
	if (!mkdtemp(f->root))
		return -1;
	snprintf(f->dir, sizeof(f->dir), "%s/run/model", f->root);
	snprintf(f->data, sizeof(f->data), "%s/data", f->root);
	f->fail_at = -1;
	*state = f;
	return mkdir(f->data, 0777) || tr_params_build(&config, &f->table, &f->n, &f->total, &err);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	io_remove_tree(f->root, NULL);
	free(f->table);
	free(f);
	return 0;
}

static int export(struct fixture *f, struct tr_error *err)
{
	return tr_hf_export(f->dir, &config, f->data, f->n, f->table, get, f, err);
}

static void export_ok(struct fixture *f)
{
	struct tr_error err = { 0 };

	if (export(f, &err))
		fail_msg("%s", err.text);
}

static char *slurp(const char *dir, const char *name)
{
	char path[256], *data = NULL;
	size_t len;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return io_read_file(path, 1 << 20, &data, &len, NULL) ? NULL : data;
}

static void spill(const char *dir, const char *name, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(io_write_file(path, text, strlen(text), NULL), 0);
}

static int exists(const char *dir, const char *suffix)
{
	char path[256];

	snprintf(path, sizeof(path), "%s%s", dir, suffix);
	return access(path, F_OK) == 0;
}

static float first_weight(struct fixture *f, const char *name)
{
	struct io_st *st = NULL;
	char path[256];
	float x = NAN;

	snprintf(path, sizeof(path), "%s/model.safetensors", f->dir);
	assert_int_equal(io_st_open(path, &st, NULL), 0);
	assert_int_equal(io_st_read_f32(st, io_st_find(st, name), 0, 1, &x, NULL), 0);
	io_st_close(st);
	return x;
}

/* ---- contents -------------------------------------------------------------------------------------------------- */

static void test_config(void **state)
{
	struct fixture *f = *state;
	char *text;
	json_t *j;

	export_ok(f);
	text = slurp(f->dir, "config.json");
	j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(j);
	assert_string_equal(json_string_value(json_array_get(json_object_get(j, "architectures"), 0)), "LlamaForCausalLM");
	assert_string_equal(json_string_value(json_object_get(j, "model_type")), "llama");
	assert_string_equal(json_string_value(json_object_get(j, "hidden_act")), "silu");
	assert_string_equal(json_string_value(json_object_get(j, "torch_dtype")), "float32");
	assert_int_equal(json_integer_value(json_object_get(j, "hidden_size")), 24);
	assert_int_equal(json_integer_value(json_object_get(j, "intermediate_size")), 40);
	assert_int_equal(json_integer_value(json_object_get(j, "num_hidden_layers")), 2);
	assert_int_equal(json_integer_value(json_object_get(j, "num_attention_heads")), 4);
	assert_int_equal(json_integer_value(json_object_get(j, "num_key_value_heads")), 2);
	assert_int_equal(json_integer_value(json_object_get(j, "head_dim")), 8);
	assert_int_equal(json_integer_value(json_object_get(j, "vocab_size")), 37);
	assert_int_equal(json_integer_value(json_object_get(j, "max_position_embeddings")), 64);
	assert_int_equal(json_integer_value(json_object_get(j, "eos_token_id")), 36);
	assert_int_equal(json_integer_value(json_object_get(j, "bos_token_id")), 0);
	assert_true(json_is_null(json_object_get(j, "pad_token_id")));
	assert_true(json_is_true(json_object_get(j, "attention_bias")));
	assert_true(json_is_false(json_object_get(j, "tie_word_embeddings")));
	assert_true(json_real_value(json_object_get(j, "rms_norm_eps")) == 1e-5);
	assert_true(json_number_value(json_object_get(j, "rope_theta")) == 10000);
	assert_true(json_number_value(json_object_get(json_object_get(j, "rope_parameters"), "rope_theta")) == 10000);
	json_decref(j);
	free(text);
	text = slurp(f->dir, "generation_config.json");
	j = json_loads(text, 0, NULL);
	assert_int_equal(json_integer_value(json_object_get(j, "eos_token_id")), 36);
	assert_null(json_object_get(j, "pad_token_id"));
	json_decref(j);
	free(text);
}

static void test_tensors(void **state)
{
	struct fixture *f = *state;
	struct io_st *st = NULL;
	char path[256];
	float *x = malloc((size_t)f->total * sizeof(*x));

	export_ok(f);
	snprintf(path, sizeof(path), "%s/model.safetensors", f->dir);
	assert_int_equal(io_st_open(path, &st, NULL), 0);
	assert_int_equal(io_st_count(st), f->n);
	for (int64_t k = 0; k < f->n; k++) {
		const struct tr_param *p = &f->table[k];
		const struct io_tensor *t = io_st_find(st, p->name);

		assert_non_null(t);
		assert_int_equal(t->dtype, IO_F32);
		assert_int_equal(t->ndim, p->ndim);
		for (int i = 0; i < p->ndim; i++)
			assert_int_equal(t->dims[i], p->dims[i]);
		assert_int_equal(io_st_read_f32(st, t, 0, t->count, x, NULL), 0);
		for (int64_t i = 0; i < t->count; i++)
			assert_true(x[i] == mu_weight(p, i));
	}
	io_st_close(st);
	free(x);
}

static int model_body(struct mu_rank *r, void *arg)
{
	float x[50];

	if (tr_hf_get_model(r->m, 100, 50, x, &r->err))
		return -1;
	(void)arg;
	return memcmp(x, tr_model_weights(r->m) + 100, sizeof(x)) ? tr_errorf(&r->err, 1, "other weights") : 0;
}

static void test_get_model(void **state)
{
	struct mu_job job = { &config, kn_ref(), 0, 1, model_body, NULL };

	(void)state;
	mu_run_ok(&job, (struct sp_sizes){ 1, 1, 1, 1 });
}

static void test_tokenizer(void **state)
{
	struct fixture *f = *state;
	char *text;

	spill(f->data, "tokenizer.json", "{\"a\": 1}");
	export_ok(f);
	text = slurp(f->dir, "tokenizer.json");
	assert_string_equal(text, "{\"a\": 1}");
	free(text);
	assert_false(exists(f->dir, "/tokenizer_config.json"));
	spill(f->data, "tokenizer_config.json", "{}");
	export_ok(f);
	assert_true(exists(f->dir, "/tokenizer_config.json"));
	unlink(strcat(f->data, "/tokenizer.json"));
	*strrchr(f->data, '/') = '\0';
	export_ok(f); /* nothing of the older folder stays */
	assert_false(exists(f->dir, "/tokenizer.json"));
}

/* ---- replacing ----------------------------------------------------------------------------------------------------- */

static void test_replace(void **state)
{
	struct fixture *f = *state;
	float before;

	export_ok(f);
	before = first_weight(f, "lm_head.weight");
	spill(f->dir, "extra.txt", "x");
	f->shift = 1;
	strcat(f->dir, "/"); /* a trailing slash names the same folder */
	export_ok(f);
	f->dir[strlen(f->dir) - 1] = '\0';
	assert_true(first_weight(f, "lm_head.weight") == before + 1);
	assert_false(exists(f->dir, "/extra.txt"));
	assert_false(exists(f->dir, ".tmp"));
	assert_false(exists(f->dir, ".old"));
}

static void test_leftovers(void **state)
{
	struct fixture *f = *state;
	char tmp[256];

	/* what a killed run leaves beside */
	snprintf(tmp, sizeof(tmp), "%s.tmp", f->dir);
	assert_int_equal(io_mkdirs(tmp, NULL), 0);
	spill(tmp, "model.safetensors", "half");
	spill(tmp, "junk", "half");
	assert_int_equal(io_mkdirs(f->dir, NULL), 0); /* an empty folder may be filled */
	export_ok(f);
	assert_false(exists(f->dir, "/junk"));
	assert_false(exists(f->dir, ".tmp"));
}

static void test_failure_keeps_old(void **state)
{
	struct fixture *f = *state;
	struct tr_error err = { 0 };
	float before;

	export_ok(f);
	before = first_weight(f, "model.norm.weight");
	f->shift = 1;
	f->fail_at = f->total / 2;
	assert_int_equal(export(f, &err), -1);
	assert_string_equal(err.text, "the disk of weights is gone");
	assert_true(first_weight(f, "model.norm.weight") == before);
	assert_false(exists(f->dir, ".tmp"));
}

static void refused(struct fixture *f, const char *part)
{
	struct tr_error err = { 0 };

	assert_int_equal(export(f, &err), -1);
	assert_int_equal(err.exit_code, TR_EXIT_CHECKPOINT);
	if (!strstr(err.text, part) || strchr(err.text, '\n'))
		fail_msg("error \"%s\" lacks \"%s\"", err.text, part);
}

static void test_foreign(void **state)
{
	struct fixture *f = *state;
	char *text, parent[128];

	/* another program's model, a folder of notes, a plain file: none is touched */
	assert_int_equal(io_mkdirs(f->dir, NULL), 0);
	spill(f->dir, "config.json", "{\"model_type\": \"llama\"}");
	refused(f, "was not written by this program");
	text = slurp(f->dir, "config.json");
	assert_string_equal(text, "{\"model_type\": \"llama\"}");
	free(text);
	io_remove_tree(f->dir, NULL);
	assert_int_equal(io_mkdirs(f->dir, NULL), 0);
	spill(f->dir, "notes.txt", "mine");
	refused(f, "was not written by this program");
	assert_true(exists(f->dir, "/notes.txt"));
	io_remove_tree(f->dir, NULL);
	strcpy(parent, f->dir);
	*strrchr(parent, '/') = '\0';
	spill(parent, "model", "a file");
	refused(f, "was not written by this program");
	text = slurp(parent, "model");
	assert_string_equal(text, "a file");
	free(text);
	strcpy(f->dir, "/");
	refused(f, "cannot write a model directory to \"/\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_config, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tensors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_get_model, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tokenizer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_replace, setup, teardown),
		cmocka_unit_test_setup_teardown(test_leftovers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_failure_keeps_old, setup, teardown),
		cmocka_unit_test_setup_teardown(test_foreign, setup, teardown),
	};

	return cmocka_run_group_tests_name("hf_model", tests, NULL, NULL);
}
