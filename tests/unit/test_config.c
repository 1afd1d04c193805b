/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration: what is accepted, what is refused and with which words, and that config.resolved.yaml gives the same run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "trainer/config.h"
#include "trainer/config_keys.h"
#include "trainer/state.h"
#include "trainer/text.h"

#define MODEL "model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4}\n"

static struct tr_config cfg;
static struct tr_error err;

static int parse_set(const char *text, const char *const *set, int nset)
{
	struct tr_config_args a = {.set = set, .nset = nset};

	err = (struct tr_error){0};
	return tr_config_parse("train.yaml", "dir", text, strlen(text), &a, &cfg, &err);
}
static int parse(const char *text) { return parse_set(text, NULL, 0); }

static void refused(const char *text, const char *part)
{
	if (!parse(text))
		fail_msg("accepted: %s", text);
	if (!strstr(err.text, part))
		fail_msg("`%s` does not say `%s` for:\n%s", err.text, part, text);
	if (strchr(err.text, '\n'))
		fail_msg("more than one line: %s", err.text);
	assert_int_equal(err.exit_code, TR_EXIT_USAGE);
}

static void accepted(const char *text)
{
	if (parse(text))
		fail_msg("refused: %s", err.text);
}

static void defaults_and_values(void **state)
{
	(void)state;
	accepted(MODEL "learning_rate: 5e-5\nseed: 7\nshuffle: False\noutput_dir: /abs/run\nlr_scheduler_type: cosine\n"
		       "parallelism_config:\n  sp_size: 4\n  sp_backend: deepspeed\n  sp_attn_implementation: flash_attention_2\n");
	assert_string_equal(cfg.dataset, "dir/data");
	assert_string_equal(cfg.output_dir, "/abs/run");
	assert_true(cfg.learning_rate == 5e-5);
	assert_int_equal(cfg.seed, 7);
	assert_int_equal(cfg.data_seed, 7);
	assert_int_equal(cfg.shuffle, 0);
	assert_int_equal(cfg.par.sp_size, 4);
	assert_int_equal(cfg.par.dp_replicate_size, 0);
	assert_int_equal(cfg.lr_type, TR_LR_COSINE);
	assert_int_equal(cfg.model.num_key_value_heads, 4);
	assert_int_equal(cfg.model.head_dim, 8);
	assert_true(cfg.beta2 == 0.999 && cfg.eps == 1e-8 && cfg.max_grad_norm == 1.0);
	accepted(MODEL "data_seed: 3\nseed: 9\nlearning_rate: .5\nwarmup_steps: ~\nmax_steps:\n");
	assert_int_equal(cfg.data_seed, 3);
	assert_true(cfg.learning_rate == 0.5);
	assert_int_equal(cfg.max_steps, -1);
}

static void either_spelling_of_the_mesh(void **state)
{
	(void)state;
	accepted(MODEL "parallelism_config:\n  parallelism_config_sp_size: 2\n  parallelism_config_dp_replicate_size: 3\n"
		       "  parallelism_config_tp_size: 1\n  parallelism_config_cp_comm_strategy: allgather\n");
	assert_int_equal(cfg.par.sp_size, 2);
	assert_int_equal(cfg.par.dp_replicate_size, 3);
	accepted(MODEL "parallelism_config_sp_size: 2\n");
	assert_int_equal(cfg.par.sp_size, 2);
	refused(MODEL "parallelism_config:\n  sp_size: 2\n  parallelism_config_sp_size: 2\n",
		"train.yaml:4: parallelism_config.sp_size is given twice (first on line 3)");
}

static void unknown_keys_name_the_nearest(void **state)
{
	static const char *const pairs[][2] = {
		{MODEL "learning_rat: 1\n", "train.yaml:2: unknown key 'learning_rat'; the nearest known key is 'learning_rate'"},
		{MODEL "leraning_rate: 1\n", "'learning_rate'"},
		{"model:\n  hiden_size: 5\n", "train.yaml:2: unknown key 'model.hiden_size'; the nearest known key is "
					      "'model.hidden_size'"},
		{"hidden_size: 5\n", "nearest known key is 'model.hidden_size'"},
		{MODEL "sp_size: 5\n", "nearest known key is 'parallelism_config.sp_size'"},
		{MODEL "parallelism_config: {sp_sise: 5}\n", "nearest known key is 'parallelism_config.sp_size'"},
		{MODEL "batch_size: 5\n", "batch_size'"},
		{MODEL "zzzzzzzzzzzz: 5\n", "unknown key 'zzzzzzzzzzzz'; `trainer --help`"},
		{MODEL "data: {set: 5}\n", "unknown key 'data.set'"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
		refused(pairs[i][0], pairs[i][1]);
}

static void wrong_types_and_ranges(void **state)
{
	static const char *const pairs[][2] = {
		{"seed: -1\n", "train.yaml:2: seed: '-1' is not allowed: an integer from 0 to"},
		{"seed: 1.5\n", "an integer from"},
		{"seed: 1e3\n", "an integer from"},
		{"seed: 010\n", "an integer from"},
		{"seed: 0x10\n", "an integer from"},
		{"seed: 99999999999999999999\n", "an integer from"},
		{"seed: 9007199254740993\n", "an integer from"},
		{"seed: '7'\n", "remove the quotes"},
		{"seed: 7 7\n", "an integer from"},
		{"seed: 1_000\n", "an integer from"},
		{"learning_rate: fast\n", "a number of at least 0"},
		{"learning_rate: -1\n", "a number of at least 0"},
		{"learning_rate: .inf\n", "a number of at least 0"},
		{"learning_rate: nan\n", "a number of at least 0"},
		{"learning_rate: 1e999\n", "a number of at least 0"},
		{"learning_rate: 0x1p3\n", "a number of at least 0"},
		{"learning_rate: 1e\n", "a number of at least 0"},
		{"learning_rate: .\n", "a number of at least 0"},
		{"adam_epsilon: 0\n", "a number above 0"},
		{"shuffle: yes\n", "true or false"},
		{"shuffle: 1\n", "true or false"},
		{"resume: maybe\n", "one of auto, never, must"},
		{"max_steps: 0\n", "train.yaml:2: max_steps is 0"},
		{"max_steps: -2\n", "an integer from -1"},
		{"dataset: ''\n", "a path of 1 to"},
		{"bf16: true\n", "train.yaml:2: bf16 is not supported on device cpu"},
		{"device: cuda\n", "no CUDA backend"},
		{"device: tpu\n", "one of cpu, cuda"},
		{"parallelism_config: {cp_size: 2}\n", "cp_size 2 is not supported by this release"},
		{"parallelism_config: {tp_size: 2}\n", "tensor parallelism is not offered"},
		{"parallelism_config: {sp_size: 0}\n", "an integer from 1 to 65536"},
		{"parallelism_config: {sp_attn_implementation: eager}\n", "eager builds the whole score matrix"},
		{"parallelism_config: 4\n", "parallelism_config holds keys of its own"},
	};
	char text[512];

	(void)state;
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
		snprintf(text, sizeof text, MODEL "%s", pairs[i][0]);
		refused(text, pairs[i][1]);
	}
}

static void the_model_section(void **state)
{
	(void)state;
	refused("seed: 1\n", "model.hidden_size is missing");
	refused("", "model.hidden_size is missing");
	refused("model:\n", "model.hidden_size is missing");
	refused("model: llama\n", "train.yaml:1: model holds keys of its own, not the value 'llama'");
	refused("model: {hidden_size: 30, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 4}\n",
		"not a multiple of num_attention_heads");
	refused("model: {hidden_size: 12, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 4}\n", "head size of 3");
	refused("model: {hidden_size: 32, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 4, "
		"num_key_value_heads: 8}\n", "at most num_attention_heads (4)");
	refused("model: {hidden_size: 32, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 4, "
		"model_type: gpt9}\n", "'gpt9' is not known here; it can be llama");
	accepted("model: {hidden_size: 30, head_dim: 8, intermediate_size: 6, num_hidden_layers: 2, num_attention_heads: 4}\n");
}

static void yaml_that_is_not_a_configuration(void **state)
{
	char deep[4096];

	(void)state;
	refused("- a\n- b\n", "train.yaml:1: a configuration is a mapping");
	refused("just text\n", "a configuration is a mapping");
	refused(MODEL "seed: [1, 2]\n", "train.yaml:2: seed is a list");
	refused(MODEL "seed: &x 1\n", "anchors");
	refused(MODEL "seed: *x\n", "train.yaml:2: seed is an alias");
	refused(MODEL "seed: !!int 1\n", "tags");
	refused(MODEL "seed: 1\nseed: 2\n", "train.yaml:3: seed is given twice (first on line 2)");
	refused("model:\n  hidden_size: 4\n  hidden_size: 4\n", "model.hidden_size is given twice");
	refused(MODEL "---\nseed: 1\n", "train.yaml:2: a second document");
	refused(MODEL "seed: 1\n  bad: 2\n", "not valid YAML");
	refused(MODEL "a: {b: {c: {d: {e: {f: 1}}}}}\n", "nested deeper than");
	refused(MODEL "? [a]\n: 1\n", "a key must be a plain name");
	refused(MODEL "'': 1\n", "a key is empty");
	refused("\xff\xfe", "not valid YAML");
	refused("seed: \x01\n", "not valid YAML");
	memset(deep, '[', sizeof deep - 1);
	deep[sizeof deep - 1] = 0;
	refused(deep, "a configuration is a mapping");
	memset(deep, 'k', 300);
	strcpy(deep + 300, ": 1\n");
	refused(deep, "longer than");
}

static void too_much_of_it(void **state)
{
	size_t n = 300 * 1024;
	char *big = malloc(n + 1), *at;

	(void)state;
	assert_non_null(big);
	memset(big, '#', n);
	big[n] = 0;
	refused(big, "a configuration is at most");
	at = big + sprintf(big, "dataset: ");
	memset(at, 'x', 5000);
	strcpy(at + 5000, "\n");
	refused(big, "longer than");
	at = big;
	for (int i = 0; i < 2000; i++)
		at += sprintf(at, "k%d: 1\n", i);
	refused(big, "more than");
	free(big);
}

static void overrides(void **state)
{
	static const char *const set[] = {"seed=5", "model.hidden_size=64", "seed=6", "output_dir=/x", "learning_rate=1e-3",
					  "parallelism_config_sp_size=2"};
	static const char *const bad[][2] = {
		{"sed=5", "--set: unknown key 'sed'; the nearest known key is 'seed'"},
		{"seed", "write --set key=value"},
		{"=5", "write --set key=value"},
		{"seed=a: b", "--set:1: not valid YAML"},
		{"seed=[1]", "is a list"},
		{"seed=1\nlearning_rate: 2", "is not a single value"},
		{"seed=-5", "--set: seed: '-5' is not allowed"},
		{"model=5", "--set: model holds keys of its own"},
		{"cp_size=2", "parallelism_config.cp_size"},
		{"parallelism_config.cp_size=2", "--set: cp_size 2 is not supported"},
	};

	(void)state;
	assert_int_equal(parse_set(MODEL "seed: 1\nparallelism_config: {sp_size: 4}\n", set, 6), 0);
	assert_int_equal(cfg.seed, 6);
	assert_int_equal(cfg.model.hidden_size, 64);
	assert_int_equal(cfg.par.sp_size, 2);
	assert_true(cfg.learning_rate == 1e-3);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		if (!parse_set(MODEL, &bad[i][0], 1))
			fail_msg("accepted --set %s", bad[i][0]);
		if (!strstr(err.text, bad[i][1]))
			fail_msg("--set %s: `%s` does not say `%s`", bad[i][0], err.text, bad[i][1]);
	}
}

static const struct io_dataset_info dataset = {
	.seq_length = 128, .vocab_size = 258, .eos_token_id = 256, .pad_token_id = 257, .tokens = 12000, .targets = 11000,
	.samples = 100, .packing = "bfd", .tokenizer_kind = "byte", .tokenizer_sha256 = "", .dir = "data",
	.manifest_hash = {0x1234, 0x5678}};

static int resolve(const char *text, struct sp_sizes mesh)
{
	accepted(text);
	return tr_config_resolve(&cfg, &dataset, &mesh, &err);
}

static void no_resolve(const char *text, struct sp_sizes mesh, const char *part)
{
	if (!resolve(text, mesh))
		fail_msg("resolved: %s", text);
	if (!strstr(err.text, part))
		fail_msg("`%s` does not say `%s`", err.text, part);
}

static void batch_and_steps(void **state)
{
	struct sp_sizes one = {1, 1, 1, 1}, mesh = {2, 1, 2, 3};

	(void)state;
	assert_int_equal(resolve(MODEL, one), 0);
	assert_int_equal(cfg.global_batch, 1);
	assert_int_equal(cfg.total_steps, 300); /* 3 epochs of 100 samples */
	assert_int_equal(cfg.model.vocab_size, 258);
	assert_int_equal(cfg.model.max_position_embeddings, 128);
	assert_int_equal(resolve(MODEL "per_device_train_batch_size: 2\ngradient_accumulation_steps: 5\n", mesh), 0);
	assert_int_equal(cfg.dp_size, 6);
	assert_int_equal(cfg.global_batch, 60);
	assert_int_equal(cfg.total_steps, 5);
	assert_int_equal(resolve(MODEL "train_batch_size: 24\nnum_train_epochs: 0.5\nwarmup_ratio: 0.3\n", mesh), 0);
	assert_int_equal(cfg.grad_accum, 4);
	assert_int_equal(cfg.total_steps, 3); /* 50 samples in steps of 24 */
	assert_int_equal(cfg.warmup, 1);
	assert_int_equal(resolve(MODEL "max_steps: 7\nwarmup_steps: 2\nwarmup_ratio: 0.9\n", one), 0);
	assert_int_equal(cfg.total_steps, 7);
	assert_int_equal(cfg.warmup, 2);
	no_resolve(MODEL "train_batch_size: 25\n", mesh, "nearest: 24 or 30");
	no_resolve(MODEL "train_batch_size: 5\n", mesh, "nearest: 6 or 6");
	no_resolve(MODEL "train_batch_size: 24\ngradient_accumulation_steps: 3\n", mesh, "needs gradient_accumulation_steps 4");
	no_resolve(MODEL, (struct sp_sizes){8, 1, 1, 1}, "the largest sp_size that works is 4");
	no_resolve(MODEL, (struct sp_sizes){1, 2, 1, 1}, "cp_size 2");
	no_resolve(MODEL "parallelism_config: {sp_seq_length: 64}\n", one, "was packed with 128");
	no_resolve("model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: "
		   "100}\n", one, "model.vocab_size is 100");
	no_resolve("model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
		   "max_position_embeddings: 100}\n", one, "give at least that");
}

/* config.resolved.yaml, read again on the same mesh, resolves to itself. */
static void resolved_text_gives_the_same_run(void **state)
{
	struct sp_sizes mesh = {2, 1, 1, 3};
	char *first, *second;

	(void)state;
	assert_int_equal(resolve(MODEL "learning_rate: 0.1\nadam_epsilon: 1.1e-300\nseed: 9007199254740992\n"
				       "gradient_accumulation_steps: 4\nmin_lr_rate: 0.3333333333333333\n"
				       "dataset: \"we\\\"ird\\\\ \\u00e9\\tname\"\nmax_grad_norm: 0\n",
				 mesh), 0);
	first = tr_config_emit(&cfg);
	assert_non_null(first);
	assert_non_null(strstr(first, "learning_rate: 0.1\n"));
	assert_non_null(strstr(first, "adam_epsilon: 1.1e-300\n"));
	assert_non_null(strstr(first, "train_batch_size: 12\n"));
	assert_non_null(strstr(first, "max_grad_norm: 0.0\n"));
	assert_null(strstr(first, "gradient_accumulation_steps"));
	assert_int_equal(resolve(first, mesh), 0);
	second = tr_config_emit(&cfg);
	assert_string_equal(first, second);
	free(first);
	free(second);
}

static void reals_read_back(void **state)
{
	static const double x[] = {0, 1, -1, 0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 1e22, 123456789, 5e-5, 1e-5};
	char buf[TR_TEXT];

	(void)state;
	for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
		assert_true(strtod(tr_text_real(x[i], buf), NULL) == x[i]);
		assert_non_null(strchr(buf, '.'));
	}
	assert_string_equal(tr_text_real(1e22, buf), "1.0e+22");
	assert_string_equal(tr_text_bytes(1536, buf), "1.5 KiB");
	assert_string_equal(tr_text_count(12345, buf), "12.3k");
	assert_string_equal(tr_text_duration(3723, buf), "1:02:03");
}

static int state_parse(const char *text, struct tr_state *s, char *notes, size_t n)
{
	err = (struct tr_error){0};
	return tr_state_parse(text, &cfg, &dataset, s, notes, n, &err);
}

static void trainer_state(void **state)
{
	struct sp_sizes one = {1, 1, 1, 1};
	struct tr_state s = {.step = 12, .tokens_seen = 3456}, got;
	char notes[1024], *text;

	(void)state;
	assert_int_equal(resolve(MODEL "max_steps: 20\ntrain_batch_size: 6\n", one), 0);
	text = tr_state_format(&cfg, &dataset, &s);
	assert_non_null(text);
	assert_int_equal(state_parse(text, &got, notes, sizeof notes), 0);
	assert_int_equal(got.step, 12);
	assert_int_equal(got.tokens_seen, 3456);
	assert_string_equal(notes, "");
	/* another mesh, the same samples a step */
	assert_int_equal(resolve(MODEL "max_steps: 20\ntrain_batch_size: 6\n", (struct sp_sizes){2, 1, 1, 3}), 0);
	assert_int_equal(state_parse(text, &got, notes, sizeof notes), 0);
	assert_string_equal(notes, "");
	assert_int_equal(resolve(MODEL "max_steps: 30\ntrain_batch_size: 6\nlearning_rate: 0.5\n", one), 0);
	assert_int_equal(state_parse(text, &got, notes, sizeof notes), 0);
	assert_string_equal(notes, "max_steps was 20, is 30 from here on (the learning-rate schedule follows it)\n"
				   "learning_rate was 5.0e-05, is 0.5 from here on");
	assert_int_equal(resolve(MODEL "seed: 1\ntrain_batch_size: 6\n", one), 0);
	assert_int_equal(state_parse(text, &got, notes, sizeof notes), -1);
	assert_non_null(strstr(err.text, "seed differs: 42 in the checkpoint, 1 in the configuration"));
	assert_int_equal(resolve(MODEL "train_batch_size: 7\n", one), 0);
	assert_int_equal(state_parse(text, &got, notes, sizeof notes), -1);
	assert_non_null(strstr(err.text, "train_batch_size differs: 6"));
	assert_int_equal(state_parse("{}", &got, notes, sizeof notes), -1);
	assert_int_equal(state_parse("{\"format\":\"slurm-ulysses-state\",\"version\":2}", &got, notes, sizeof notes), -1);
	assert_non_null(strstr(err.text, "version 2"));
	assert_int_equal(state_parse("nonsense", &got, notes, sizeof notes), -1);
	free(text);
}

/* Every key of the table is reachable by its own name, in order, and emits something that parses. */
static void the_table_is_whole(void **state)
{
	(void)state;
	accepted(MODEL);
	for (int i = 0; i < tr_nkeys; i++) {
		assert_int_equal(tr_key_find(tr_keys[i].name), i);
		assert_string_equal(tr_key_nearest(tr_keys[i].name), tr_keys[i].name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_and_values),
		cmocka_unit_test(either_spelling_of_the_mesh),
		cmocka_unit_test(unknown_keys_name_the_nearest),
		cmocka_unit_test(wrong_types_and_ranges),
		cmocka_unit_test(the_model_section),
		cmocka_unit_test(yaml_that_is_not_a_configuration),
		cmocka_unit_test(too_much_of_it),
		cmocka_unit_test(overrides),
		cmocka_unit_test(batch_and_steps),
		cmocka_unit_test(resolved_text_gives_the_same_run),
		cmocka_unit_test(reals_read_back),
		cmocka_unit_test(trainer_state),
		cmocka_unit_test(the_table_is_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
