/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/io_test.h"

#include <endian.h>
#include <errno.h>
#include <math.h>

#include "io/io_float16.h"
#include "io/io_safetensors.h"

static float u2f(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

/* Value of a 16-bit float from its definition, exact in double. */
static double value16(uint16_t h, int expbits)
{
	int manbits = 15 - expbits, bias = (1 << (expbits - 1)) - 1;
	int e = h >> manbits & ((1 << expbits) - 1), m = h & ((1 << manbits) - 1);
	double v;

	if (e == (1 << expbits) - 1)
		v = m ? NAN : INFINITY;
	else if (e == 0)
		v = ldexp(m, 1 - bias - manbits);
	else
		v = ldexp(m + (1 << manbits), e - bias - manbits);
	return h & 0x8000 ? -v : v;
}

/* Every pattern widens to its exact value and narrows back to itself, NaN payloads included. */
static void test_f16_all_patterns(void **state)
{
	(void)state;
	for (uint32_t p = 0; p < 65536; p++) {
		uint16_t h = (uint16_t)p, back;
		double v;
		float f;

		io__f16_to_f32(&h, &f, 1);
		v = value16(h, 5);
		assert_true(isnan(v) ? isnan(f) : (double)f == v && !signbit(f) == !signbit(v));
		io__f32_to_f16(&f, &back, 1);
		assert_int_equal(back, h);
		io__bf16_to_f32(&h, &f, 1);
		v = value16(h, 8);
		assert_true(isnan(v) ? isnan(f) : (double)f == v && !signbit(f) == !signbit(v));
		io__f32_to_bf16(&f, &back, 1);
		assert_int_equal(back, h);
	}
}

/* Nearest, ties to even: for neighbours a < b of each sign, the midpoint goes to the even one, its two fp32
 * neighbours to the nearer one. The midpoints of both formats are exact in fp32. */
static void narrowing(int expbits, void (*widen)(const uint16_t *, float *, size_t),
		      void (*narrow)(const float *, uint16_t *, size_t))
{
	uint32_t inf = ((1u << expbits) - 1) << (15 - expbits);

	for (uint32_t p = 0; p + 1 < inf; p++) {
		uint16_t a = (uint16_t)p, b = (uint16_t)(p + 1), even = a & 1 ? b : a, r;
		float fa, fb, mid, x;

		widen(&a, &fa, 1);
		widen(&b, &fb, 1);
		mid = (float)(((double)fa + (double)fb) / 2);
		for (int sign = 0; sign < 2; sign++) {
			uint16_t s = sign ? 0x8000 : 0;
			float k = sign ? -1.0f : 1.0f;

			x = k * mid;
			narrow(&x, &r, 1);
			assert_int_equal(r, even | s);
			x = k * nextafterf(mid, fa);
			narrow(&x, &r, 1);
			assert_int_equal(r, a | s);
			x = k * nextafterf(mid, fb);
			narrow(&x, &r, 1);
			assert_int_equal(r, b | s);
		}
	}
}

static void test_narrowing(void **state)
{
	const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fc00000, 0x7fffffff,
				 0xffffffff, 0x7f80ffff, 0x7f801fff};
	uint16_t r;
	float x;

	(void)state;
	narrowing(5, io__f16_to_f32, io__f32_to_f16);
	narrowing(8, io__bf16_to_f32, io__f32_to_bf16);
	x = 65519.996f; /* the largest below the midpoint of 65504 and 65536 */
	io__f32_to_f16(&x, &r, 1);
	assert_int_equal(r, 0x7bff);
	x = 65520.0f;
	io__f32_to_f16(&x, &r, 1);
	assert_int_equal(r, 0x7c00);
	x = -INFINITY;
	io__f32_to_f16(&x, &r, 1);
	assert_int_equal(r, 0xfc00);
	x = 3.4028235e38f; /* FLT_MAX rounds up to infinity in bf16 */
	io__f32_to_bf16(&x, &r, 1);
	assert_int_equal(r, 0x7f80);
	x = u2f(1); /* smallest fp32 subnormal */
	io__f32_to_f16(&x, &r, 1);
	assert_int_equal(r, 0);
	for (size_t i = 0; i < sizeof(nans) / sizeof(nans[0]); i++) {
		x = u2f(nans[i]);
		io__f32_to_f16(&x, &r, 1);
		assert_true((r & 0x7c00) == 0x7c00 && (r & 0x3ff) != 0 && (r >> 15) == nans[i] >> 31);
		io__f32_to_bf16(&x, &r, 1);
		assert_true((r & 0x7f80) == 0x7f80 && (r & 0x7f) != 0 && (r >> 15) == nans[i] >> 31);
	}
}

static void test_dtypes(void **state)
{
	const struct {
		enum io_dtype t;
		const char *name;
		size_t size;
	} all[] = {{IO_F32, "F32", 4}, {IO_F16, "F16", 2},   {IO_BF16, "BF16", 2}, {IO_F64, "F64", 8},
		   {IO_I64, "I64", 8}, {IO_I32, "I32", 4},   {IO_I16, "I16", 2},   {IO_I8, "I8", 1},
		   {IO_U8, "U8", 1},   {IO_BOOL, "BOOL", 1}, {IO_U16, "U16", 2},   {IO_U32, "U32", 4},
		   {IO_U64, "U64", 8}};

	(void)state;
	for (size_t i = 0; i < 13; i++) {
		assert_string_equal(io_dtype_name(all[i].t), all[i].name);
		assert_int_equal(io_dtype_size(all[i].t), all[i].size);
	}
	assert_int_equal(io_dtype_size((enum io_dtype)99), 0);
}

static void test_round_trip(void **state)
{
	const struct io_st_decl decls[] = {
		{"b", IO_F32, 2, {3, 5}},
		{"scalar", IO_F64, 0, {0}},
		{"empty", IO_F32, 2, {4, 0}},
		{"h", IO_F16, 1, {70000}},
		{"a\"\\\n\xc3\xa4", IO_BF16, 1, {7}},
		{"odd", IO_U8, 1, {3}},
		{"huge-empty", IO_I64, 3, {INT64_MAX, 0, INT64_MAX}},
	};
	float b[15], *h = malloc(70000 * sizeof(*h)), *back = malloc(70000 * sizeof(*back));
	double scalar = 2.5, s2 = 0;
	float bf[7] = {1, -2, 0.5f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, 3, 0};
	unsigned char odd[3] = {1, 2, 255}, o2[3];
	struct io_st_writer *w;
	struct io_error err;
	struct io_st *s;
	const struct io_tensor *t;
	const char *path = in(*state, "m.safetensors");

	for (int i = 0; i < 15; i++)
		b[i] = (float)i / 3;
	for (int i = 0; i < 70000; i++)
		h[i] = (float)(i % 2048); /* exact in f16 */
	ok(io_st_writer_create(path, decls, 7, &w, &err));
	ok(io_st_writer_put(w, 0, 7, 15, b + 7, &err));
	ok(io_st_writer_put(w, 0, 0, 3, b, &err));
	ok(io_st_writer_put(w, 0, 3, 3, NULL, &err));
	ok(io_st_writer_put(w, 0, 5, 7, b + 5, &err));
	ok(io_st_writer_put_f32(w, 0, 3, 5, b + 3, &err));
	ok(io_st_writer_put(w, 1, 0, 1, &scalar, &err));
	ok(io_st_writer_put_f32(w, 3, 1, 70000, h + 1, &err)); /* more than one conversion block, odd start */
	ok(io_st_writer_put_f32(w, 3, 0, 1, h, &err));
	ok(io_st_writer_put_f32(w, 4, 0, 7, bf, &err));
	assert_int_equal(access(path, F_OK), -1); /* nothing under the name before finish */
	ok(io_st_writer_put(w, 5, 0, 3, odd, &err));
	ok(io_st_writer_finish(w, &err));
	refused(io_st_writer_finish(w, &err), "finished");
	refused(io_st_writer_put(w, 5, 0, 3, odd, &err), "finished");
	io_st_writer_destroy(w);

	ok(io_st_open(path, &s, &err));
	assert_int_equal(io_st_count(s), 7);
	assert_null(io_st_find(s, "nope"));
	assert_null(io_st_at(s, 7));
	assert_null(io_st_at(s, -1));
	/* widest types first, then by name */
	const char *order[] = {"huge-empty", "scalar", "b", "empty", "a\"\\\n\xc3\xa4", "h", "odd"};
	for (int i = 0; i < 7; i++)
		assert_string_equal(io_st_at(s, i)->name, order[i]);
	assert_int_equal(io_st_at(s, 0)->offset % 8, 0);
	t = io_st_find(s, "b");
	assert_true(t->dtype == IO_F32 && t->ndim == 2 && t->dims[0] == 3 && t->dims[1] == 5 && t->count == 15);
	ok(io_st_read(s, t, 2, 15, back, &err));
	assert_memory_equal(back, b + 2, 13 * 4);
	ok(io_st_read_f32(s, t, 0, 15, back, &err));
	assert_memory_equal(back, b, 15 * 4);
	ok(io_st_read(s, io_st_find(s, "scalar"), 0, 1, &s2, &err));
	assert_true(s2 == scalar);
	ok(io_st_read_f32(s, io_st_find(s, "h"), 0, 70000, back, &err));
	assert_memory_equal(back, h, 70000 * 4);
	ok(io_st_read_f32(s, io_st_find(s, "a\"\\\n\xc3\xa4"), 0, 7, back, &err));
	assert_true(back[0] == 1 && back[1] == -2 && back[3] == 1.0f && back[4] == 1.0f + 0x1p-6f);
	ok(io_st_read(s, io_st_find(s, "odd"), 0, 3, o2, &err));
	assert_memory_equal(odd, o2, 3);
	ok(io_st_read(s, io_st_find(s, "empty"), 0, 0, NULL, &err));
	refused(io_st_read_f32(s, io_st_find(s, "odd"), 0, 3, back, &err), "only F32, F16 and BF16");
	refused(io_st_read(s, t, 0, 16, back, &err), "not a range");
	refused(io_st_read(s, t, -1, 3, back, &err), "not a range");
	refused(io_st_read(s, t, 4, 3, back, &err), "not a range");
	refused(io_st_read_f32(s, io_st_find(s, "h"), 0, 70001, back, &err), "not a range");
	io_st_close(s);
	io_st_close(NULL);
	io_st_writer_destroy(NULL);
	free(h);
	free(back);
}

static void test_writer_refuses(void **state)
{
	const struct io_st_decl d2[] = {{"a", IO_F32, 1, {4}}, {"b", IO_U8, 1, {4}}};
	const char *path = in(*state, "x.safetensors");
	float v[4] = {1, 2, 3, 4};
	struct io_st_writer *w;
	struct io_error err;
	struct stat st;

	struct io_st_decl d = {"a", IO_F32, 1, {-1}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "negative");
	d = (struct io_st_decl){"a", IO_F32, 9, {1}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "dimensions");
	d = (struct io_st_decl){"a", IO_F32, -1, {1}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "dimensions");
	d = (struct io_st_decl){"a", IO_F32, 2, {INT64_C(1) << 32, INT64_C(1) << 31}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "overflows");
	d = (struct io_st_decl){"a", IO_F32, 1, {INT64_MAX / 2}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "overflows");
	d = (struct io_st_decl){"a", (enum io_dtype)77, 1, {1}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "element type");
	d = (struct io_st_decl){"__metadata__", IO_F32, 1, {1}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "__metadata__");
	d = (struct io_st_decl){"\xff\xfe", IO_F32, 1, {1}};
	refused(io_st_writer_create(path, &d, 1, &w, &err), "UTF-8");
	const struct io_st_decl twice[] = {{"a", IO_F32, 1, {1}}, {"a", IO_U8, 1, {1}}};
	refused(io_st_writer_create(path, twice, 2, &w, &err), "twice");
	const struct io_st_decl sum[] = {{"a", IO_U8, 1, {INT64_MAX}}, {"b", IO_U8, 1, {1}}};
	refused(io_st_writer_create(path, sum, 2, &w, &err), "overflow");
	refused(io_st_writer_create(path, d2, -1, &w, &err), "-1 tensors");
	refused(io_st_writer_create(in(*state, "no/x"), d2, 2, &w, &err), "cannot create");

	put_file(path, "old", 3);
	ok(io_st_writer_create(path, d2, 2, &w, &err));
	ok(io_st_writer_put(w, 0, 1, 3, v, &err));
	refused(io_st_writer_put(w, 0, 2, 4, v, &err), "given before");
	refused(io_st_writer_put(w, 0, 0, 2, v, &err), "given before");
	refused(io_st_writer_put(w, 0, 0, 4, v, &err), "given before");
	refused(io_st_writer_put(w, 0, 1, 2, v, &err), "given before");
	refused(io_st_writer_put(w, 0, 0, 5, v, &err), "not a range");
	refused(io_st_writer_put(w, 2, 0, 1, v, &err), "does not exist");
	refused(io_st_writer_put(w, -1, 0, 1, v, &err), "does not exist");
	refused(io_st_writer_put_f32(w, 1, 0, 4, v, &err), "only");
	refused(io_st_writer_finish(w, &err), "element 0 of 4 was never given");
	ok(io_st_writer_put(w, 0, 0, 1, v, &err));
	refused(io_st_writer_finish(w, &err), "element 3 of 4 was never given");
	ok(io_st_writer_put(w, 0, 3, 4, v, &err));
	refused(io_st_writer_finish(w, &err), "\"b\" is incomplete");
	io_st_writer_destroy(w); /* removes the temporary, keeps what was there */
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 3);
	char cmd[4200];
	snprintf(cmd, sizeof(cmd), "test \"$(ls -A '%s')\" = x.safetensors", (char *)*state);
	assert_int_equal(system(cmd), 0);
}

/* Many pieces in random order, against a bitmap. */
static void test_writer_pieces(void **state)
{
	enum { N = 1000 };
	const struct io_st_decl d = {"a", IO_U16, 1, {N}};
	uint16_t v[N], back[N];
	char have[N] = {0};
	struct io_st_writer *w;
	struct io_error err;
	struct io_st *s;
	uint64_t seed = 3;
	int left = N;

	for (int i = 0; i < N; i++)
		v[i] = (uint16_t)(i * 31);
	ok(io_st_writer_create(in(*state, "p"), &d, 1, &w, &err));
	while (left > 0) {
		int b = (int)(next_random(&seed) % N), e = b + 1 + (int)(next_random(&seed) % 4), clash = 0;

		e = e > N ? N : e;
		for (int i = b; i < e; i++)
			clash |= have[i];
		assert_int_equal(io_st_writer_put(w, 0, b, e, v + b, &err), clash ? -1 : 0);
		if (clash)
			continue;
		memset(have + b, 1, (size_t)(e - b));
		left -= e - b;
		if (left > 0)
			assert_int_equal(io_st_writer_finish(w, &err), -1);
	}
	ok(io_st_writer_finish(w, &err));
	io_st_writer_destroy(w);
	ok(io_st_open(in(*state, "p"), &s, &err));
	ok(io_st_read(s, io_st_at(s, 0), 0, N, back, &err));
	assert_memory_equal(v, back, sizeof(v));
	io_st_close(s);
}

/* Writes a file of the given header text and n data bytes. */
static void put_st(const char *path, const char *header, uint64_t hlen, size_t n)
{
	size_t text = strlen(header);
	char *f = calloc(1, 8 + text + n);
	uint64_t word = htole64(hlen);

	memcpy(f, &word, 8);
	memcpy(f + 8, header, text);
	put_file(path, f, 8 + text + n);
	free(f);
}

#define T(off)	   "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" off "}"
#define A(d, s, o) "{\"a\":{\"dtype\":" d ",\"shape\":" s ",\"data_offsets\":" o "}}"

static void test_hostile_headers(void **state)
{
	static const struct {
		const char *header;
		size_t data;
		const char *text; /* NULL: accepted */
	} cases[] = {
		{"{\"a\":" T("[0,8]") "}", 8, NULL},
		{"{}", 0, NULL},
		{"{}      ", 0, NULL},
		{"{\"__metadata__\":{\"x\":\"y\"},\"a\":" T("[0,8]") "}", 8, NULL},
		{"{\"b\":" T("[8,16]") ",\"a\":" T("[0,8]") "}", 16, NULL},
		{"{\"a\":" T("[0,8]") ",\"z\":{\"dtype\":\"I8\",\"shape\":[0,3],\"data_offsets\":[0,0]}}", 8,
		 NULL},
		{A("\"F32\"", "[9223372036854775807,0,9223372036854775807]", "[0,0]"), 0, NULL},
		{" {}", 0, "does not begin with '{'"},
		{"[]", 0, "does not begin with '{'"},
		{"{\"a\":" T("[0,8]"), 8, "not valid JSON"},
		{"{\"a\":" T("[0,8]") "} x", 8, "not valid JSON"},
		{"{\"a\":" T("[0,8]") ",\"a\":" T("[0,8]") "}", 8, "duplicate"},
		{"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
		 "duplicate"},
		{"{\"a\":" T("[0,8]") "}", 9, "1 bytes lie behind the last tensor"},
		{"{\"a\":" T("[0,8]") "}", 7, "truncated"},
		{"{}", 1, "behind the last tensor"},
		{"{\"a\":" T("[4,12]") "}", 12, "gap"},
		{"{\"b\":" T("[4,12]") ",\"a\":" T("[0,8]") "}", 12, "overlap"},
		{"{\"b\":" T("[0,8]") ",\"a\":" T("[0,8]") "}", 8, "overlap"},
		{"{\"b\":" T("[12,20]") ",\"a\":" T("[0,8]") "}", 20, "gap"},
		{"{\"a\":" T("[8,0]") "}", 8, "data_offsets"},
		{"{\"a\":" T("[-8,0]") "}", 8, "data_offsets"},
		{"{\"a\":" T("[0]") "}", 8, "data_offsets"},
		{"{\"a\":" T("[0,8,8]") "}", 8, "data_offsets"},
		{"{\"a\":" T("[0,8.0]") "}", 8, "data_offsets"},
		{"{\"a\":" T("\"0,8\"") "}", 8, "data_offsets"},
		{"{\"a\":" T("[0,9223372036854775807]") "}", 8, "data_offsets"},
		{"{\"a\":" T("[0,18446744073709551616]") "}", 8, "not valid JSON"},
		{"{\"a\":" T("[0,4]") "}", 4, "need 8"},
		{A("\"F8_E4M3\"", "[8]", "[0,8]"), 8, "element type F8_E4M3 is not supported"},
		{A("\"f32\"", "[2]", "[0,8]"), 8, "element type f32 is not supported"},
		{A("3", "[2]", "[0,8]"), 8, "string \"dtype\""},
		{A("\"F32\"", "2", "[0,8]"), 8, "array \"shape\""},
		{A("\"F32\"", "[-2]", "[0,8]"), 8, "not a whole number"},
		{A("\"F32\"", "[2.0]", "[0,8]"), 8, "not a whole number"},
		{A("\"F32\"", "[\"2\"]", "[0,8]"), 8, "not a whole number"},
		{A("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "overflow"},
		{A("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, "overflow"},
		{A("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "9 dimensions"},
		{"{\"a\":3}", 0, "not an object"},
		{"{\"a\":null}", 0, "not an object"},
		{"{\"__metadata__\":{\"x\":1}}", 0, "not a string"},
		{"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
		{"{\"a\\u0000b\":" T("[0,8]") "}", 8, "not valid JSON"},
		{"{\"\xff\":" T("[0,8]") "}", 8, "not valid JSON"},
		{"", 0, "does not begin"},
	};
	const char *path = in(*state, "h");
	struct io_error err;
	struct io_st *s;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		put_st(path, cases[i].header, strlen(cases[i].header), cases[i].data);
		if (cases[i].text) {
			refused(io_st_open(path, &s, &err), cases[i].text);
			assert_int_equal(err.code, EBADMSG);
			assert_non_null(strstr(err.text, path));
			assert_null(s);
		} else {
			ok(io_st_open(path, &s, &err));
			io_st_close(s);
		}
	}
	/* header lengths that lie */
	const uint64_t lies[] = {3, 1000, 100000001, UINT64_MAX, (uint64_t)1 << 63, ((uint64_t)1 << 32) + 2};
	for (size_t i = 0; i < 6; i++) {
		put_st(path, "{}", lies[i], 0);
		refused(io_st_open(path, &s, &err), "claims a header of");
	}
	put_file(path, "\2\0\0\0\0\0\0", 7);
	refused(io_st_open(path, &s, &err), "too few");
	put_file(path, "", 0);
	refused(io_st_open(path, &s, &err), "too few");
	/* a sparse file may really be as long as it claims: still refused, without taking its size in memory */
	put_st(path, "{}", 100000000, 0);
	assert_int_equal(truncate(path, 8 + 100000000), 0);
	refused(io_st_open(path, &s, &err), "not valid JSON");
	put_st(path, "{}", 100000001, 0);
	assert_int_equal(truncate(path, INT64_C(1) << 33), 0);
	refused(io_st_open(path, &s, &err), "claims a header");
	refused(io_st_open(in(*state, "none"), &s, &err), "No such file");
	refused(io_st_open(*state, &s, &err), "not a regular file");
}

static void write_small(const char *path)
{
	const struct io_st_decl decls[] = {{"w", IO_F32, 2, {2, 3}}, {"b", IO_BF16, 1, {3}}};
	const float w[6] = {1, 2, 3, 4, 5, 6};
	struct io_st_writer *st;
	struct io_error err;

	ok(io_st_writer_create(path, decls, 2, &st, &err));
	ok(io_st_writer_put(st, 0, 0, 6, w, &err));
	ok(io_st_writer_put_f32(st, 1, 0, 3, w, &err));
	ok(io_st_writer_finish(st, &err));
	io_st_writer_destroy(st);
}

/* Cut anywhere or appended to: refused. Any header byte changed: refused, or opens with ranges inside the file. */
static void test_damage(void **state)
{
	const char *path = in(*state, "d"), *bad = in(*state, "bad");
	struct io_error err;
	struct io_st *s;
	char *data, *copy, sink[64];
	size_t n, head;

	write_small(path);
	data = get_file(path, &n);
	head = 8 + (size_t)(unsigned char)data[0];
	assert_true(head < n && data[head - 1] != 0);
	for (size_t cut = 0; cut < n; cut++) {
		put_file(bad, data, cut);
		assert_int_equal(io_st_open(bad, &s, &err), -1);
	}
	copy = malloc(n + 1);
	memcpy(copy, data, n);
	copy[n] = 0;
	put_file(bad, copy, n + 1);
	refused(io_st_open(bad, &s, &err), "behind the last tensor");
	for (size_t i = 0; i < head; i++) {
		for (int x = 1; x < 256; x++) {
			memcpy(copy, data, n);
			copy[i] ^= (char)x;
			put_file(bad, copy, n);
			if (io_st_open(bad, &s, &err) != 0)
				continue;
			for (int64_t k = 0; k < io_st_count(s); k++) {
				const struct io_tensor *t = io_st_at(s, k);

				assert_true(t->offset >= 0 && t->offset + t->bytes <= (int64_t)n);
				ok(io_st_read(s, t, 0, t->count, sink, &err));
			}
			io_st_close(s);
		}
	}
	/* cut after opening: an error, no zeros */
	put_file(bad, data, n);
	ok(io_st_open(bad, &s, &err));
	assert_int_equal(truncate(bad, (off_t)head + 3), 0);
	refused(io_st_read(s, io_st_find(s, "w"), 0, 6, sink, &err), "truncated");
	io_st_close(s);
	free(copy);
	free(data);
}

/* Byte for byte what the reference implementation writes (tests/golden/make_safetensors.py). */
static void test_golden(void **state)
{
	const struct io_st_decl decls[] = {
		{"u8", IO_U8, 1, {3}},	     {"f32", IO_F32, 2, {2, 3}}, {"bf16", IO_BF16, 1, {4}},
		{"f16", IO_F16, 1, {4}},     {"i64", IO_I64, 1, {2}},	 {"f64", IO_F64, 1, {2}},
		{"i32", IO_I32, 1, {2}},     {"bool", IO_BOOL, 1, {2}},	 {"i8", IO_I8, 1, {2}},
		{"i16", IO_I16, 1, {2}},     {"scalar", IO_F32, 0, {0}}, {"empty", IO_F32, 2, {0, 4}},
		{"another", IO_F32, 1, {1}}, {"u16", IO_U16, 1, {2}},	 {"u32", IO_U32, 1, {2}},
		{"u64", IO_U64, 1, {2}},
	};
	const unsigned char u8[] = {1, 2, 255}, bl[] = {1, 0};
	const float f32[] = {0, 1, 2, 3, 4, 5}, half[] = {1, -2.5f, 0, 65504}, bf[] = {1, -2.5f, 0, 0x1p100f},
		    one = 7, three = 3;
	const int64_t i64[] = {-1, INT64_C(1) << 40};
	const double f64[] = {0.1, -1e300};
	const int32_t i32[] = {-1, 1 << 30};
	const int8_t i8[] = {-128, 127};
	const int16_t i16[] = {-32768, 32767};
	const uint16_t u16[] = {1, 65535};
	const uint32_t u32[] = {1, 4294967295u};
	const uint64_t u64[] = {1, UINT64_MAX};
	const void *data[] = {u8, f32, NULL, NULL, i64, f64, i32, bl, i8, i16, &three, NULL, &one, u16, u32, u64};
	struct io_st_writer *w;
	struct io_error err;
	char *a, *b;
	size_t na, nb;

	ok(io_st_writer_create(in(*state, "g"), decls, 16, &w, &err));
	ok(io_st_writer_put_f32(w, 2, 0, 4, bf, &err));
	ok(io_st_writer_put_f32(w, 3, 0, 4, half, &err));
	for (int i = 0; i < 16; i++) {
		if (data[i])
			ok(io_st_writer_put(w, i, 0, decls[i].ndim ? decls[i].dims[0] * (i == 1 ? 3 : 1) : 1,
					    data[i], &err));
	}
	ok(io_st_writer_finish(w, &err));
	io_st_writer_destroy(w);
	a = get_file(in(*state, "g"), &na);
	b = get_file("tests/golden/reference.safetensors", &nb);
	assert_int_equal(na, nb);
	assert_memory_equal(a, b, na);
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f16_all_patterns),
		cmocka_unit_test(test_narrowing),
		cmocka_unit_test(test_dtypes),
		cmocka_unit_test_setup_teardown(test_round_trip, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_writer_refuses, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_writer_pieces, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_hostile_headers, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_damage, tmp_setup, tmp_teardown),
		cmocka_unit_test_setup_teardown(test_golden, tmp_setup, tmp_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
