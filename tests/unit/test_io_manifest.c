/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.json: what is written is read back; every bent copy is refused by what is wrong with it. */
#include "tests/unit/data_util.h"
#include "io/io_manifest.h"

static const char good[] =
	"{\"format\":\"slurm-ulysses-dataset\",\"version\":1,\"seq_length\":8,\"packing\":\"bfd\",\"seed\":7,"
	"\"vocab_size\":100,\"eos_token_id\":99,\"pad_token_id\":-1,\"dtype\":\"u16\","
	"\"tokenizer\":{\"kind\":\"raw\",\"sha256\":\"\"},"
	"\"counts\":{\"tokens\":30,\"targets\":25,\"samples\":4,\"segments\":5,\"documents\":3},"
	"\"shards\":[{\"file\":\"a.h5\",\"bytes\":1000,\"xxh3\":\"00112233445566778899aabbccddeeff\","
	"\"meta_xxh3\":\"ffeeddccbbaa99887766554433221100\",\"samples\":3,\"tokens\":20,\"segments\":3,"
	"\"extents\":[[100,20],[200,20]]},"
	"{\"file\":\"b.h5\",\"bytes\":500,\"xxh3\":\"00000000000000000000000000000000\","
	"\"meta_xxh3\":\"00000000000000000000000000000001\",\"samples\":1,\"tokens\":10,\"segments\":2,"
	"\"extents\":[[480,20]]}]}";

static int parse(const char *text, struct io_manifest *m, struct io_error *err)
{
	return io__manifest_parse("dataset.json", text, strlen(text), m, err);
}

static void every_field_is_read(void **state)
{
	struct io_manifest m;
	struct io_error err;

	(void)state;
	ok(parse(good, &m, &err));
	assert_int_equal(m.seq_length, 8);
	assert_int_equal(m.seed, 7);
	assert_int_equal(m.vocab_size, 100);
	assert_int_equal(m.eos_token_id, 99);
	assert_int_equal(m.pad_token_id, -1);
	assert_int_equal(m.width, 2);
	assert_string_equal(m.packing, "bfd");
	assert_string_equal(m.tokenizer_kind, "raw");
	assert_int_equal(m.tokens, 30);
	assert_int_equal(m.targets, 25);
	assert_int_equal(m.documents, 3);
	assert_int_equal(m.nshards, 2);
	assert_string_equal(m.shards[1].file, "b.h5");
	assert_int_equal(m.shards[0].nextents, 2);
	assert_int_equal(m.shards[0].extents[1].off, 200);
	assert_true(m.shards[0].xxh3.hi == 0x0011223344556677u && m.shards[0].xxh3.lo == 0x8899aabbccddeeffu);
	io__manifest_free(&m);
}

static void written_is_read_back(void **state)
{
	struct io_manifest m, back;
	struct io_hash128 h1, h2;
	struct io_error err;

	ok(parse(good, &m, &err));
	m.seed = UINT64_MAX - 5; /* the whole 64-bit range survives */
	ok(io__manifest_write(*state, &m, &err));
	ok(io__manifest_read(*state, &back, &h1, &err));
	assert_true(back.seed == m.seed);
	assert_int_equal(back.shards[0].bytes, m.shards[0].bytes);
	assert_memory_equal(back.shards[0].extents, m.shards[0].extents, 2 * sizeof(struct io_extent));
	assert_memory_equal(&back.shards[1].meta_xxh3, &m.shards[1].meta_xxh3, sizeof(struct io_hash128));
	ok(io__manifest_write(*state, &back, &err));
	io__manifest_free(&back);
	ok(io__manifest_read(*state, &back, &h2, &err));
	assert_true(h1.hi == h2.hi && h1.lo == h2.lo);
	io__manifest_free(&m);
	io__manifest_free(&back);
}

/* `good` with the first occurrence of `from` replaced. */
static char *bend(const char *from, const char *to)
{
	const char *at = strstr(good, from);
	char *out = NULL;

	assert_non_null(at);
	assert_true(asprintf(&out, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from)) > 0);
	return out;
}

static void bent_manifests_are_refused(void **state)
{
	static const struct {
		const char *from, *to, *want;
	} c[] = {
		{"{\"format\"", "[\"format\"", "not valid JSON"},
		{"\"seed\":7,", "\"seed\":7,\"seed\":8,", "not valid JSON: duplicate"},
		{"slurm-ulysses-dataset", "other", "format is \"other\", a dataset has \"slurm-ulysses-dataset\""},
		{"\"version\":1", "\"version\":2", "version 2; this program reads version 1"},
		{"\"version\":1", "\"version\":\"1\"", "\"version\" must be an integer"},
		{"\"version\":1,", "", "\"version\" is missing"},
		{"\"seq_length\":8", "\"seq_length\":1", "\"seq_length\" is 1; 2 to"},
		{"\"seq_length\":8", "\"seq_length\":8.0", "\"seq_length\" must be an integer"},
		{"\"seq_length\":8", "\"seq_length\":99999999999", "\"seq_length\" is 99999999999"},
		{"\"packing\":\"bfd\"", "\"packing\":\"best\"", "must be \"bfd\" or \"wrapped\""},
		{"\"packing\":\"bfd\"", "\"packing\":\"bfdbfdbfdbfdbfdbfd\"", "\"packing\" is too long"},
		{"\"seed\":7", "\"seed\":null", "\"seed\" must be an integer"},
		{"\"vocab_size\":100", "\"vocab_size\":65537", "\"vocab_size\" is 65537; 1 to 65536"},
		{"\"vocab_size\":100", "\"vocab_size\":0", "\"vocab_size\" is 0"},
		{"\"eos_token_id\":99", "\"eos_token_id\":100", "\"eos_token_id\" is 100; -1 to 99"},
		{"\"dtype\":\"u16\"", "\"dtype\":\"i16\"", "\"dtype\" must be"},
		{"\"tokenizer\":{\"kind\":\"raw\",\"sha256\":\"\"}", "\"tokenizer\":3", "\"tokenizer\" must be an object"},
		{"\"sha256\":\"\"", "\"sha256\":\"abc\"", "64 hexadecimal digits"},
		{"\"tokens\":30", "\"tokens\":31", "\"counts.targets\" must be tokens - segments"},
		{"\"tokens\":30,\"targets\":25", "\"tokens\":31,\"targets\":26", "are more than what the shards hold"},
		{"\"tokens\":30,\"targets\":25", "\"tokens\":29,\"targets\":24", "are less than what the shards hold"},
		{"\"samples\":4", "\"samples\":3", "are less than what the shards hold"},
		{"\"samples\":4", "\"samples\":-4", "\"counts.samples\" is -4"},
		{"\"documents\":3", "\"documents\":0", "\"counts.documents\" is 0"},
		{"\"shards\":[", "\"shards\":[],\"x\":[", "must be a list of 1 to 1000000 shards"},
		{"\"shards\":[", "\"shards\":[5,", "\"shards[0].\" must be an object"},
		{"\"file\":\"a.h5\"", "\"file\":\"../a.h5\"", "plain file name"},
		{"\"file\":\"a.h5\"", "\"file\":\"x/a.h5\"", "plain file name"},
		{"\"file\":\"a.h5\"", "\"file\":\"/etc/passwd\"", "plain file name"},
		{"\"file\":\"a.h5\"", "\"file\":\"\"", "plain file name"},
		{"\"file\":\"a.h5\"", "\"file\":\"b.h5\"", "shard b.h5 is listed twice"},
		{"\"bytes\":1000", "\"bytes\":39", "\"shards[0].tokens\" is 20; 1 to 19"},
		{"\"bytes\":1000", "\"bytes\":9223372036854775807", "\"shards[0].bytes\" is 9223372036854775807"},
		{"\"bytes\":1000", "\"bytes\":99999999999999999999", "not valid JSON"},
		{"00112233445566778899aabbccddeeff", "00112233445566778899aabbccddeefg", "32 hexadecimal digits"},
		{"00112233445566778899aabbccddeeff", "0011", "32 hexadecimal digits"},
		{"\"samples\":3", "\"samples\":0", "\"shards[0].samples\" is 0"},
		{"\"segments\":3", "\"segments\":2", "\"shards[0].segments\" is 2; 3 to 20"},
		{"[[100,20],[200,20]]", "[]", "must be a list of [offset, bytes]"},
		{"[[100,20],[200,20]]", "[[100,20],[200]]", "must be a list of [offset, bytes]"},
		{"[[100,20],[200,20]]", "[[100,20],[200,18]]", "do not hold all of the shard's tokens"},
		{"[[100,20],[200,20]]", "[[100,20],[200,22]]", "do not fit the shard's size"},
		{"[[100,20],[200,20]]", "[[100,21],[200,19]]", "do not fit the shard's size"},
		{"[[100,20],[200,20]]", "[[-100,20],[200,20]]", "do not fit the shard's size"},
		{"[[100,20],[200,20]]", "[[100,20],[990,20]]", "do not fit the shard's size"},
		{"[[100,20],[200,20]]", "[[9223372036854775807,20],[200,20]]", "do not fit the shard's size"},
	};
	struct io_manifest m;
	struct io_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		char *text = bend(c[i].from, c[i].to);

		refused(parse(text, &m, &err), c[i].want);
		assert_null(m.shards);
		assert_null(strchr(err.text, '\n'));
		free(text);
	}
	refused(parse("", &m, &err), "not valid JSON");
	refused(parse("[]", &m, &err), "must be a JSON object");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
		T(every_field_is_read),
		T(written_is_read_back),
		T(bent_manifests_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
