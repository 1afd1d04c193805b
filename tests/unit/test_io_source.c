/* SPDX-License-Identifier: Apache-2.0 */
/* Document sources: order of a walk, JSON lines, raw ids; the byte vocabulary; SHA-256. */
#include <errno.h>
#include "tests/unit/data_util.h"
#include "io/io_pack_priv.h"
#include "io/io_sha256.h"

struct got {
	char text[4096]; /* documents, each in [] */
	size_t n;
	int stop_after; /* emit fails at this many; 0: never */
};

static int on_text(void *arg, const char *text, size_t n, struct io_error *err)
{
	struct got *g = arg;

	if (g->stop_after && --g->stop_after == 0)
		return io_errorf(err, EINVAL, "enough");
	assert_true(g->n + n + 3 < sizeof(g->text));
	g->text[g->n++] = '[';
	memcpy(g->text + g->n, text, n);
	g->n += n;
	g->text[g->n++] = ']';
	g->text[g->n] = '\0';
	return 0;
}

static int on_ids(void *arg, const uint32_t *ids, int64_t n, struct io_error *err)
{
	char text[512];
	int k = 0;

	text[0] = '\0';
	for (int64_t i = 0; i < n; i++)
		k += snprintf(text + k, sizeof(text) - (size_t)k, "%s%u", i ? " " : "", ids[i]);
	return on_text(arg, text, (size_t)k, err);
}

static void put(void **state, const char *name, const char *text)
{
	put_file(in(*state, name), text, strlen(text));
}

static void folders_are_walked_in_byte_order(void **state)
{
	struct got g = {.n = 0};
	struct io_error err;

	mkdir(in(*state, "d"), 0777);
	mkdir(in(*state, "d/sub"), 0777);
	mkdir(in(*state, "d/.hidden"), 0777);
	put(state, "d/b", "bee");
	put(state, "d/B", "BEE");
	put(state, "d/sub/x", "ex");
	put(state, "d/\xc3\xa4", "umlaut");
	put(state, "d/empty", "");
	put(state, "d/.dot", "never");
	put(state, "d/.hidden/y", "never");
	put(state, "outside", "never");
	assert_int_equal(symlink("../outside", in(*state, "d/link")), 0);
	assert_int_equal(symlink(".", in(*state, "d/loop")), 0);
	ok(io_source_text(in(*state, "d"), on_text, &g, &err));
	assert_string_equal(g.text, "[BEE][bee][][ex][umlaut]");
	/* a link named by the user is followed; emit's refusal ends the walk with its text */
	g = (struct got){.n = 0};
	ok(io_source_text(in(*state, "d/link"), on_text, &g, &err));
	assert_string_equal(g.text, "[never]");
	g = (struct got){.stop_after = 2};
	refused(io_source_text(in(*state, "d"), on_text, &g, &err), "enough");
	assert_string_equal(g.text, "[BEE]");
	refused(io_source_text(in(*state, "nowhere"), on_text, &g, &err), "nowhere");
	refused(io_source_text("/dev/null", on_text, &g, &err), "neither a file nor a folder");
}

static void jsonl_takes_the_named_member(void **state)
{
	struct got g = {.n = 0};
	struct io_error err;

	put(state, "a.jsonl",
	    "{\"text\":\"one\",\"x\":1}\n\n  \r\n{\"text\":\"t\\u0000w\\u00e9\"}\r\n{\"text\":\"\"}\n{\"text\":\"last\"}");
	ok(io_source_jsonl(in(*state, "a.jsonl"), "text", on_text, &g, &err));
	assert_int_equal(g.n, strlen("[one][t.w\xc3\xa9][][last]"));
	assert_memory_equal(g.text, "[one][t\0w\xc3\xa9][][last]", g.n);
	g = (struct got){.n = 0};
	put(state, "b.jsonl", "{\"a\":{\"b\":{\"c\":\"deep\"}}}\n{\"a.b\":{\"c\":\"dotted\"}}\n{\"a.b.c\":\"flat\"}\n");
	ok(io_source_jsonl(in(*state, "b.jsonl"), "a.b.c", on_text, &g, &err));
	assert_string_equal(g.text, "[deep][dotted][flat]");
}

static void jsonl_errors_name_file_and_line(void **state)
{
	static const struct {
		const char *line, *want;
	} bad[] = {
		{"{\"text\":", "b.jsonl:2: not valid JSON"},
		{"{\"text\":\"a\"} x", "b.jsonl:2: not valid JSON"},
		{"[1]", "b.jsonl:2: a JSON object with member \"text\""},
		{"\"text\"", "b.jsonl:2: a JSON object"},
		{"{\"other\":\"a\"}", "b.jsonl:2: member \"text\" is missing"},
		{"{\"text\":5}", "b.jsonl:2: member \"text\" is no string"},
		{"{\"text\":\"a\",\"text\":\"b\"}", "b.jsonl:2: not valid JSON"},
		{"{\"text\":\"\xff\"}", "b.jsonl:2: not valid JSON"},
		{"{\"text\":\"\\ud800\"}", "b.jsonl:2: not valid JSON"},
	};
	struct io_error err;
	char text[256];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct got g = {.n = 0};

		snprintf(text, sizeof(text), "{\"text\":\"fine\"}\n%s\n{\"text\":\"after\"}\n", bad[i].line);
		put(state, "b.jsonl", text);
		refused(io_source_jsonl(in(*state, "b.jsonl"), "text", on_text, &g, &err), bad[i].want);
		assert_string_equal(g.text, "[fine]");
		assert_null(strchr(err.text, '\n'));
	}
}

static void raw_ids_end_at_eos(void **state)
{
	const uint16_t a[] = {5, 6, 9, 9, 65535, 1, 9, 2};
	const uint32_t b[] = {70000, 9, 0xffffffffu};
	struct got g = {.n = 0};
	struct io_error err;

	put_file(in(*state, "a.u16"), a, sizeof(a));
	put_file(in(*state, "b.u32"), b, sizeof(b));
	ok(io_source_raw(in(*state, "a.u16"), 2, 9, on_ids, &g, &err));
	assert_string_equal(g.text, "[5 6][][65535 1][2]");
	g = (struct got){.n = 0};
	ok(io_source_raw(in(*state, "a.u16"), 2, -1, on_ids, &g, &err));
	assert_string_equal(g.text, "[5 6 9 9 65535 1 9 2]");
	g = (struct got){.n = 0};
	ok(io_source_raw(in(*state, "b.u32"), 4, 9, on_ids, &g, &err));
	assert_string_equal(g.text, "[70000][4294967295]");
	put_file(in(*state, "odd"), a, 3);
	refused(io_source_raw(in(*state, "odd"), 2, 9, on_ids, &g, &err), "3 bytes are no whole number of 2-byte ids");
	refused(io_source_raw(in(*state, "odd"), 3, 9, on_ids, &g, &err), "raw ids of 3 bytes");
}

/* FIPS 180-4 examples and the lengths around its padding, from sha256sum. */
static void sha256_known_answers(void **state)
{
	char hex[65], a[200];

	(void)state;
	memset(a, 'a', sizeof(a));
	io__sha256_hex("", 0, hex);
	assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	io__sha256_hex("abc", 3, hex);
	assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	io__sha256_hex(a, 55, hex);
	assert_string_equal(hex, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
	io__sha256_hex(a, 56, hex);
	assert_string_equal(hex, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
	io__sha256_hex(a, 64, hex);
	assert_string_equal(hex, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
	io__sha256_hex(a, 119, hex);
	assert_string_equal(hex, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");
	io__sha256_hex(a, 200, hex);
	assert_string_equal(hex, "c2a908d98f5df987ade41b5fce213067efbcc21ef2240212a41e54b5e7c28ae5");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
		T(folders_are_walked_in_byte_order), T(jsonl_takes_the_named_member),
		T(jsonl_errors_name_file_and_line),  T(raw_ids_end_at_eos),
		T(sha256_known_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
