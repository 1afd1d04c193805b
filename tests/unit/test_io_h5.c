/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are HDF5 but no shard of ours, or only nearly: each refused by what is wrong with it. */
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include "tests/unit/io_test.h"
#include "io/io_h5.h"
#include "io/io_shard.h"

enum {
	N = 4,	/* samples */
	M = 6,	/* segments */
	T = 20	/* tokens */
};

/* A shard written with the HDF5 API alone; each field bends one thing. */
struct bend {
	const char *want; /* part of the refusal; NULL: it opens */
	const char *drop_attr, *drop_dataset, *soft_dataset;
	const char *wrong_type, *wrong_dims, *chunked_array;
	const char *int32_attr, *text_attr;
	const char *format;
	int variable_text, filter, fletcher, tiny_chunks, contiguous, big_endian, late, userblock, earliest, external;
	int64_t version, complete, tokens, samples, segments;
};

static void put_i64(hid_t f, const struct bend *b, const char *name, int64_t v)
{
	hid_t s = H5Screate(H5S_SCALAR);
	int i32 = b->int32_attr && !strcmp(b->int32_attr, name), text = b->text_attr && !strcmp(b->text_attr, name);
	hid_t t = text ? H5Tcopy(H5T_C_S1) : H5Tcopy(i32 ? H5T_STD_I32LE : H5T_STD_I64LE), a;

	if (!b->drop_attr || strcmp(b->drop_attr, name)) {
		a = H5Acreate2(f, name, t, s, H5P_DEFAULT, H5P_DEFAULT);
		H5Awrite(a, text ? t : H5T_NATIVE_INT64, &v);
		H5Aclose(a);
	}
	H5Tclose(t);
	H5Sclose(s);
}

static void put_str(hid_t f, const struct bend *b, const char *name, const char *v)
{
	hid_t s = H5Screate(H5S_SCALAR), t = H5Tcopy(H5T_C_S1), a;

	H5Tset_size(t, b->variable_text ? H5T_VARIABLE : strlen(v) ? strlen(v) : 1);
	if (!b->drop_attr || strcmp(b->drop_attr, name)) {
		a = H5Acreate2(f, name, t, s, H5P_DEFAULT, H5P_DEFAULT);
		H5Awrite(a, t, b->variable_text ? (const void *)&v : (const void *)v);
		H5Aclose(a);
	}
	H5Tclose(t);
	H5Sclose(s);
}

static int is(const char *a, const char *b)
{
	return a && !strcmp(a, b);
}

static void put_array(hid_t f, const struct bend *b, const char *name, hid_t type, hid_t mem, int ndim, hsize_t n,
		      const void *data)
{
	hsize_t dims[2] = {n + (is(b->wrong_dims, name) ? 1 : 0), 2};
	hid_t s = H5Screate_simple(ndim, dims, NULL), p = H5Pcreate(H5P_DATASET_CREATE), d;
	uint64_t room[64] = {0};

	memcpy(room, data, n * (ndim == 2 ? 16 : H5Tget_size(mem)));
	if (is(b->drop_dataset, name))
		goto out;
	if (is(b->soft_dataset, name)) {
		H5Lcreate_soft("/elsewhere", f, name, H5P_DEFAULT, H5P_DEFAULT);
		name = "elsewhere";
	}
	if (is(b->chunked_array, name))
		H5Pset_chunk(p, ndim, dims);
	d = H5Dcreate2(f, name, is(b->wrong_type, name) ? H5T_IEEE_F64LE : type, s, H5P_DEFAULT, p, H5P_DEFAULT);
	H5Dwrite(d, mem, H5S_ALL, H5S_ALL, H5P_DEFAULT, room);
	H5Dclose(d);
out:
	H5Sclose(s);
	H5Pclose(p);
}

static void put_tokens(hid_t f, const struct bend *b)
{
	static uint16_t tok[8192];
	hsize_t n = b->tiny_chunks ? 8192 : T, chunk = b->tiny_chunks ? 16 : n;
	hid_t s = H5Screate_simple(1, &n, NULL), p = H5Pcreate(H5P_DATASET_CREATE), d;

	if (is(b->drop_dataset, "tokens"))
		goto out;
	for (hsize_t i = 0; i < n; i++)
		tok[i] = (uint16_t)i;
	if (b->external)
		H5Pset_external(p, "/etc/passwd", 0, T * 2);
	else if (!b->contiguous)
		H5Pset_chunk(p, 1, &chunk);
	H5Pset_alloc_time(p, b->late ? H5D_ALLOC_TIME_INCR : H5D_ALLOC_TIME_EARLY);
	if (b->filter)
		H5Pset_deflate(p, 1);
	if (b->fletcher)
		H5Pset_fletcher32(p);
	d = H5Dcreate2(f, "tokens", b->big_endian ? H5T_STD_U16BE : H5T_STD_U16LE, s, H5P_DEFAULT, p, H5P_DEFAULT);
	if (!b->late && !b->external)
		H5Dwrite(d, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, tok);
	H5Dclose(d);
out:
	H5Sclose(s);
	H5Pclose(p);
}

static void write_bent(const char *path, const struct bend *b)
{
	const uint64_t off[] = {0, 5, 10, 15, 20}, targets[] = {4, 3, 4, 3}, hash[8] = {0}, seg_off[] = {0, 1, 3, 4, 6};
	const uint32_t len[] = {5, 2, 3, 5, 1, 4};
	const uint64_t doc[M] = {0, 1, 2, 3, 4, 5}, at[M] = {0};
	hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), fcpl = H5Pcreate(H5P_FILE_CREATE), f;

	if (!b->earliest)
		H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110);
	if (b->userblock)
		H5Pset_userblock(fcpl, 512);
	f = H5Fcreate(path, H5F_ACC_TRUNC, fcpl, fapl);
	assert_true(f >= 0);
	put_str(f, b, "format", b->format ? b->format : IO_H5_FORMAT);
	put_i64(f, b, "version", b->version ? b->version : 1);
	put_str(f, b, "uuid", "00000000-0000-8000-8000-000000000000");
	put_str(f, b, "packing", "bfd");
	put_str(f, b, "tokenizer_sha256", "");
	put_i64(f, b, "seed", 0);
	put_i64(f, b, "seq_length", 5);
	put_i64(f, b, "vocab_size", 100);
	put_i64(f, b, "eos_token_id", -1);
	put_i64(f, b, "tokens", b->tokens ? b->tokens : b->tiny_chunks ? 8192 : T);
	put_i64(f, b, "samples", b->samples ? b->samples : N);
	put_i64(f, b, "segments", b->segments ? b->segments : M);
	put_array(f, b, "sample_off", H5T_STD_U64LE, H5T_NATIVE_UINT64, 1, N + 1, off);
	put_array(f, b, "sample_targets", H5T_STD_U64LE, H5T_NATIVE_UINT64, 1, N, targets);
	put_array(f, b, "sample_xxh3", H5T_STD_U64LE, H5T_NATIVE_UINT64, 2, N, hash);
	put_array(f, b, "seg_off", H5T_STD_U64LE, H5T_NATIVE_UINT64, 1, N + 1, seg_off);
	put_array(f, b, "seg_len", H5T_STD_U32LE, H5T_NATIVE_UINT32, 1, M, len);
	put_array(f, b, "seg_doc", H5T_STD_U64LE, H5T_NATIVE_UINT64, 1, M, doc);
	put_array(f, b, "seg_start", H5T_STD_U64LE, H5T_NATIVE_UINT64, 1, M, at);
	put_tokens(f, b);
	put_i64(f, b, "complete", b->complete ? b->complete : 1);
	assert_true(H5Fclose(f) >= 0);
	H5Pclose(fapl);
	H5Pclose(fcpl);
}

static void bent_shards_are_refused(void **state)
{
	static const struct bend bends[] = {
		{.want = NULL},
		{.want = NULL, .contiguous = 1},
		{.want = NULL, .earliest = 1},
		{.want = "lacks attribute format", .drop_attr = "format"},
		{.want = "lacks attribute uuid", .drop_attr = "uuid"},
		{.want = "lacks attribute samples", .drop_attr = "samples"},
		{.want = "has format megatron", .format = "megatron"},
		{.want = "wants a short text in attribute format", .format = "a name much longer than any that could be ours"},
		{.want = "wants a short text in attribute format", .variable_text = 1},
		{.want = "shard version 2, this program reads version 1", .version = 2},
		{.want = "never completed", .drop_attr = "complete"},
		{.want = "never completed", .complete = 2},
		{.want = "wants one 64-bit integer in attribute tokens", .int32_attr = "tokens"},
		{.want = "wants one 64-bit integer in attribute seed", .text_attr = "seed"},
		{.want = "cannot lie in a file of", .tokens = INT64_MAX},
		{.want = "cannot lie in a file of", .samples = INT64_MAX / 8},
		{.want = "cannot lie in a file of", .segments = -3},
		{.want = "has the wrong dimensions in dataset sample_off", .samples = N + 1},
		{.want = "has the wrong dimensions in dataset seg_len", .segments = M - 1},
		{.want = "has the wrong dimensions in dataset tokens", .tokens = T + 1},
		{.want = "has the wrong dimensions in dataset sample_xxh3", .wrong_dims = "sample_xxh3"},
		{.want = "has the wrong type in dataset seg_doc", .wrong_type = "seg_doc"},
		{.want = "lacks dataset seg_start", .drop_dataset = "seg_start"},
		{.want = "lacks dataset tokens", .drop_dataset = "tokens"},
		{.want = "lacks dataset seg_len", .soft_dataset = "seg_len"},
		{.want = "does not hold inside the file dataset seg_doc", .chunked_array = "seg_doc"},
		{.want = "neither u16 nor u32 little-endian", .big_endian = 1},
		{.want = "compressed, filtered or external", .filter = 1},
		{.want = "compressed, filtered or external", .fletcher = 1},
		{.want = "compressed, filtered or external", .external = 1},
		{.want = "chunks of 16 tokens; at least 4096", .tiny_chunks = 1},
		{.want = "no stored chunk at token 0", .late = 1},
		{.want = "has a user block", .userblock = 1},
	};
	struct io_h5_layout l;
	struct io_error err;

	for (size_t i = 0; i < sizeof(bends) / sizeof(bends[0]); i++) {
		const char *path = in(*state, "s.h5");
		struct stat st;

		write_bent(path, &bends[i]);
		assert_int_equal(stat(path, &st), 0);
		if (bends[i].want) {
			refused(io__h5_open(path, "s.h5", st.st_size, &l, &err), bends[i].want);
			assert_null(l.extents);
		} else {
			struct io_shard s;
			int fd = open(path, O_RDONLY);

			ok(io__h5_open(path, "s.h5", st.st_size, &l, &err));
			ok(io__shard_load(fd, path, &l, 5, M, &s, &err));
			assert_int_equal(s.targets, T - M);
			io__shard_close(&s);
			io__h5_layout_free(&l);
			close(fd);
		}
	}
}

/* The link a hostile file could use to make us read another one. */
static void external_links_are_refused(void **state)
{
	const struct bend whole = {.want = NULL}, without = {.drop_dataset = "tokens"};
	struct io_h5_layout l;
	struct io_error err;
	struct stat st;
	hid_t f;

	write_bent(in(*state, "other.h5"), &whole);
	write_bent(in(*state, "s.h5"), &without);
	f = H5Fopen(in(*state, "s.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
	assert_true(H5Lcreate_external(in(*state, "other.h5"), "/tokens", f, "tokens", H5P_DEFAULT, H5P_DEFAULT) >= 0);
	H5Fclose(f);
	assert_int_equal(stat(in(*state, "s.h5"), &st), 0);
	refused(io__h5_open(in(*state, "s.h5"), "s.h5", st.st_size, &l, &err), "lacks dataset tokens");
}

static void no_hdf5_at_all(void **state)
{
	struct io_h5_layout l;
	struct io_error err;

	put_file(in(*state, "text"), "once upon a time", 16);
	put_file(in(*state, "empty"), "", 0);
	refused(io__h5_open(in(*state, "text"), "text", 16, &l, &err), "is damaged, unfinished or no HDF5 file");
	refused(io__h5_open(in(*state, "empty"), "empty", 0, &l, &err), "is damaged, unfinished or no HDF5 file");
	refused(io__h5_open(in(*state, "none"), "none", 0, &l, &err), "none: ");
}

static const struct io_h5_attrs attrs = {.packing = "bfd", .uuid = "u", .seq_length = 5, .vocab_size = 100,
					 .eos_token_id = -1, .tokens = T, .samples = N, .segments = M};

/* The bytes on disk at any moment before finish, as a SIGKILL would leave them, open nowhere. */
static void an_unfinished_shard_opens_nowhere(void **state)
{
	struct io_h5_writer *w;
	struct io_h5_layout l;
	struct io_error err;
	char *data;
	size_t n;

	ok(io__h5_create(in(*state, "a.h5"), "a", &attrs, 2, 0, &w, &err));
	data = get_file(in(*state, "a.h5"), &n);
	put_file(in(*state, "killed.h5"), data, n);
	free(data);
	refused(io__h5_open(in(*state, "killed.h5"), "killed", (int64_t)n, &l, &err), "killed: ");
	/* while it is being written */
	refused(io__h5_open(in(*state, "a.h5"), "a", (int64_t)n, &l, &err), "a: ");
	io__h5_destroy(w);
	assert_int_equal(access(in(*state, "a.h5"), F_OK), -1);
	/* never over another file */
	put_file(in(*state, "a.h5"), "mine", 4);
	refused(io__h5_create(in(*state, "a.h5"), "a", &attrs, 2, 0, &w, &err), "a: cannot be created");
	assert_null(w);
	data = get_file(in(*state, "a.h5"), &n);
	assert_string_equal(data, "mine");
	free(data);
}

/* A program's own error handler stays as it set it. */
static herr_t noisy(hid_t stack, void *arg)
{
	(void)stack;
	++*(int *)arg;
	return 0;
}

static void error_handler_is_restored(void **state)
{
	struct io_h5_layout l;
	struct io_error err;
	H5E_auto2_t f = NULL;
	int calls = 0;
	void *arg = NULL;

	put_file(in(*state, "text"), "once upon a time", 16);
	H5Eset_auto2(H5E_DEFAULT, noisy, &calls);
	refused(io__h5_open(in(*state, "text"), "text", 16, &l, &err), "text: ");
	assert_int_equal(calls, 0);
	H5Eget_auto2(H5E_DEFAULT, &f, &arg);
	assert_true(f == noisy && arg == &calls);
	H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

/* Tables that pass every structural check of HDF5 and are wrong. */
static void hostile_tables(void **state)
{
	static const struct {
		int which, at;
		uint64_t value;
		const char *want;
	} c[] = {
		{IO_H5_SAMPLE_OFF, 0, 1, "/sample_off does not begin at 0"},
		{IO_H5_SAMPLE_OFF, 2, 5, "/sample_off[2] is 5 after 5"},
		{IO_H5_SAMPLE_OFF, 2, 4, "/sample_off[2] is 4 after 5"},
		{IO_H5_SAMPLE_OFF, 1, UINT64_MAX, "/sample_off[1] is 18446744073709551615"},
		{IO_H5_SAMPLE_OFF, 2, 12, "/sample_off[2] is 12 after 5"},
		{IO_H5_SAMPLE_OFF, 4, 19, "/sample_off ends at 19 instead of 20"},
		{IO_H5_SAMPLE_TARGETS, 1, 4, "/sample_targets[1] is 4; its segments give 3"},
		{IO_H5_SAMPLE_TARGETS, 1, UINT64_MAX, "/sample_targets[1]"},
		{IO_H5_SEG_OFF, 0, 1, "/seg_off does not begin at 0"},
		{IO_H5_SEG_OFF, 1, 0, "/seg_off[1] is 0 after 0"},
		{IO_H5_SEG_OFF, 3, 7, "/seg_off[3] is 7"},
		{IO_H5_SEG_OFF, 4, 5, "/seg_off ends at 5 instead of 6"},
		{IO_H5_SEG_OFF, 2, 2, "segments of sample 1 hold 2 tokens, the sample 5"},
		{IO_H5_SEG_LEN, 0, 0, "/seg_len[0] is 0"},
		{IO_H5_SEG_LEN, 0, 4, "segments of sample 0 hold 4 tokens, the sample 5"},
		{IO_H5_SEG_LEN, 0, UINT32_MAX, "segments of sample 0 hold"},
		{IO_H5_SEG_DOC, 5, M, "/seg_doc[5] is 6 of 6 documents"},
		{IO_H5_SEG_START, 5, UINT64_MAX, "/seg_start[5]"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		uint64_t off[] = {0, 5, 10, 15, 20}, targets[] = {4, 3, 4, 3}, hash[8] = {0}, seg_off[] = {0, 1, 3, 4, 6};
		uint64_t doc[M] = {0, 1, 2, 3, 4, 5}, start[M] = {0};
		uint32_t len[] = {5, 2, 3, 5, 1, 4};
		uint64_t *arr[] = {off, targets, hash, seg_off, NULL, doc, start};
		struct io_shard s = {.samples = N, .segments = M, .sample_off = off, .sample_targets = targets,
				     .sample_xxh3 = hash, .seg_off = seg_off, .seg_len = len, .seg_doc = doc,
				     .seg_start = start};
		int64_t max_seg, total;
		struct io_error err;

		ok(io__shard_check("s", &s, T, 5, M, &max_seg, &total, &err));
		assert_int_equal(max_seg, 2);
		assert_int_equal(total, T - M);
		if (c[i].which == IO_H5_SEG_LEN)
			len[c[i].at] = (uint32_t)c[i].value;
		else
			arr[c[i].which][c[i].at] = c[i].value;
		refused(io__shard_check("s", &s, T, 5, M, &max_seg, &total, &err), c[i].want);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define C(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
		C(bent_shards_are_refused),	   C(external_links_are_refused), C(no_hdf5_at_all),
		C(an_unfinished_shard_opens_nowhere), C(error_handler_is_restored),  C(hostile_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
