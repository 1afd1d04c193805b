/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer against ids of the reference library (tests/golden/make_tokenizer_golden.py), and what it refuses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_tokenizer.h"

static size_t from_hex(const char *hex, char *out)
{
	size_t n = strlen(hex) / 2;

	for (size_t i = 0; i < n; i++) {
		unsigned v;

		assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
		out[i] = (char)v;
	}
	return n;
}

static void check_case(const char *name, size_t k, json_t *c, struct io_tokenizer *t, struct io_tok_scratch *s)
{
	const char *hex = json_string_value(json_object_get(c, "hex"));
	json_t *want = json_object_get(c, "ids");
	char *text = malloc(strlen(hex) / 2 + 1);
	size_t len = from_hex(hex, text);
	const uint32_t *ids;
	int64_t n;
	struct io_error err = { 0 };

	assert_int_equal(io_tokenizer_encode(t, s, text, len, json_is_true(json_object_get(c, "special")), &ids, &n, &err), 0);
	int same = (size_t)n == json_array_size(want);

	for (int64_t i = 0; same && i < n; i++)
		same = ids[i] == json_integer_value(json_array_get(want, (size_t)i));
	if (!same)
		fail_msg("%s: case %zu (%s): ids differ from the reference's", name, k, hex);
	free(text);
}

static void test_golden(void **state)
{
	json_t *cases = json_load_file("tests/golden/tokenizer/cases.json", 0, NULL), *list, *c;
	const char *name;
	size_t k, styles = 0;

	(void)state;
	assert_non_null(cases);
	json_object_foreach (cases, name, list) {
		struct io_tokenizer *t = NULL;
		struct io_tok_scratch *s = NULL;
		struct io_error err = { 0 };
		char path[256];

		snprintf(path, sizeof(path), "tests/golden/tokenizer/%s.json", name);
		if (io_tokenizer_open(path, &t, &err))
			fail_msg("%s", err.text);
		assert_int_equal(io_tok_scratch_create(t, &s, &err), 0);
		assert_true(json_array_size(list) > 60);
		for (int pass = 0; pass < 2; pass++) /* the second pass answers from the word cache */
			json_array_foreach (list, k, c)
				check_case(name, k, c, t, s);
		io_tok_scratch_destroy(s);
		io_tokenizer_close(t);
		styles++;
	}
	assert_true(styles >= 15);
	json_decref(cases);
}

static void test_round_trip(void **state)
{
	static const char *const names[] = { "gpt2", "llama3", "llama2", "metaspace" };
	const char *text = "Hello, world: na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac 42\n\xf0\x9f\x98\x80";

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct io_tokenizer *t = NULL;
		struct io_tok_scratch *s = NULL;
		struct io_error err = { 0 };
		const uint32_t *ids;
		int64_t n;
		char path[256], *back;
		size_t len;

		snprintf(path, sizeof(path), "tests/golden/tokenizer/%s.json", names[i]);
		assert_int_equal(io_tokenizer_open(path, &t, &err), 0);
		assert_int_equal(io_tok_scratch_create(t, &s, &err), 0);
		assert_int_equal(io_tokenizer_encode(t, s, text, strlen(text), 0, &ids, &n, &err), 0);
		assert_int_equal(io_tokenizer_decode(t, ids, n, 1, &back, &len, &err), 0);
		if (i < 2) /* metaspace styles put a blank in front of the text; their decoder here is not set */
			assert_string_equal(back, text);
		else
			assert_string_equal(back[0] == ' ' ? back + 1 : back, text);
		uint32_t bad = UINT32_MAX;

		free(back);
		assert_int_equal(io_tokenizer_decode(t, &bad, 1, 1, &back, &len, &err), -1);
		io_tok_scratch_destroy(s);
		io_tokenizer_close(t);
	}
}

static void refuse(const char *json, const char *reason)
{
	struct io_tokenizer *t = NULL;
	struct io_error err = { 0 };

	assert_int_equal(io_tokenizer_parse("t.json", json, strlen(json), &t, &err), -1);
	if (!strstr(err.text, reason) || strncmp(err.text, "t.json: ", 8))
		fail_msg("\"%s\" lacks \"%s\"", err.text, reason);
}

#define MODEL(x) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}," x "}}"

static void test_refused(void **state)
{
	(void)state;
	refuse("[1]", "not a JSON object");
	refuse("{\"model\":", "line");
	refuse("{}", "no \"model\"");
	refuse("{\"model\":{\"type\":\"Unigram\"}}", "Unigram");
	refuse("{\"model\":{\"vocab\":{},\"merges\":[]}}", "model.vocab");
	refuse("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "\"a\"");
	refuse("{\"model\":{\"vocab\":{\"a\":1e9},\"merges\":[]}}", "\"a\"");
	refuse("{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate");
	refuse(MODEL("\"merges\":[\"a c\"]"), "merges[0]");
	refuse(MODEL("\"merges\":[\"a\"]"), "merges[0]");
	refuse(MODEL("\"merges\":[[\"a\",\"b\",\"c\"]]"), "merges[0]");
	refuse(MODEL("\"merges\":[],\"dropout\":0.1"), "dropout");
	refuse(MODEL("\"merges\":[],\"unk_token\":\"<unk>\""), "<unk>");
	refuse(MODEL("\"merges\":[],\"end_of_word_suffix\":\"</w>\""), "end_of_word_suffix");
	refuse("{\"normalizer\":{\"type\":\"Precompiled\"}}", "Precompiled");
	refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}", "pattern");
	refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Other\"}}", "Other");
	refuse("{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", "BertPreTokenizer");
	refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":5,\"content\":\"a\"}]}", "has id 5");
	refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":\"RobertaProcessing\"}}", "RobertaProcessing");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
