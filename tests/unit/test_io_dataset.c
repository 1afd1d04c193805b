/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and reading datasets: every damage is named, nothing wrong is ever read, large and many shards work. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include "tests/unit/data_util.h"
#include "io/io_dataset_priv.h"
#include "io/io_pack_priv.h"

#define L 64

static void make_small(void **state, const char *name, uint64_t seed)
{
	make_dataset(in(*state, name), 40, L, 3000, 0, seed);
}

static void info_and_ranges(void **state)
{
	struct io_dataset_info i;
	struct io_dataset *ds;
	struct io_sample s;
	struct io_error err;
	uint32_t whole[L], part[L];

	make_small(state, "d", 1);
	ok(io_dataset_open(in(*state, "d"), &ds, &err));
	io_dataset_info(ds, &i);
	assert_int_equal(i.seq_length, L);
	assert_int_equal(i.vocab_size, 3000);
	assert_int_equal(i.eos_token_id, 2999);
	assert_int_equal(i.pad_token_id, -1);
	assert_int_equal(i.nshards, 1);
	assert_string_equal(i.packing, "bfd");
	assert_string_equal(i.tokenizer_kind, "raw");
	assert_string_equal(i.dir, in(*state, "d"));
	assert_int_equal(i.targets, i.tokens - i.segments);
	refused(io_dataset_sample(ds, -1, &s, &err), "no sample -1");
	refused(io_dataset_sample(ds, i.samples, &s, &err), "samples are 0 to");
	ok(io_dataset_sample(ds, 0, &s, &err));
	refused(io_dataset_read(ds, 0, 0, s.tokens + 1, whole, &err), "of sample 0, which has");
	refused(io_dataset_read(ds, 0, -1, 1, whole, &err), "tokens -1 to 1");
	refused(io_dataset_read(ds, 0, 2, 1, whole, &err), "tokens 2 to 1");
	ok(io_dataset_read(ds, 0, 0, s.tokens, whole, &err));
	for (int64_t a = 0; a <= s.tokens; a++)
		for (int64_t b = a; b <= s.tokens; b += 7) {
			memset(part, 0xee, sizeof(part));
			ok(io_dataset_read(ds, 0, a, b, part, &err));
			assert_memory_equal(part, whole + a, (size_t)(b - a) * 4);
		}
	io_dataset_close(ds);
	io_dataset_close(NULL);
	refused(io_dataset_open(in(*state, "nowhere"), &ds, &err), "no dataset here (dataset.json is missing)");
	assert_null(ds);
}

/* ---- damage ---- */

static void flip_bit(const char *path, int64_t off, int bit)
{
	int fd = open(path, O_RDWR);
	unsigned char c;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, off), 1);
	c = (unsigned char)(c ^ 1 << bit);
	assert_int_equal(pwrite(fd, &c, 1, off), 1);
	close(fd);
}

/* h5py/h5py#1179 */
static void truncated_shard(void **state)
{
	const char *path = in(*state, "d/shard-00000.h5");
	struct io_dataset *ds;
	struct io_error err;
	char *data;
	size_t n;

	make_small(state, "d", 1);
	data = get_file(path, &n);
	for (size_t k = 0; k < n; k += 1 + n / 300) {
		put_file(in(*state, "d/shard-00000.h5"), data, k);
		refused(io_dataset_open(in(*state, "d"), &ds, &err), "shard-00000.h5: is ");
	}
	put_file(in(*state, "d/shard-00000.h5"), data, n - 1);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "truncated or replaced");
	data[0] ^= 1; /* and with a byte more, which HDF5 itself accepts */
	put_file(in(*state, "d/shard-00000.h5"), data, n);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "hash of the tables");
	free(data);
}

static void appended_bytes(void **state)
{
	struct io_dataset *ds;
	struct io_error err;
	FILE *f;

	make_small(state, "d", 1);
	f = fopen(in(*state, "d/shard-00000.h5"), "ab");
	assert_non_null(f);
	assert_int_equal(fwrite("x", 1, 1, f), 1);
	fclose(f);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "truncated or replaced");
}

static void count_bad(void *arg, const char *text)
{
	int *n = arg;

	assert_non_null(strstr(text, "shard-00000.h5"));
	++*n;
}

/* One flipped bit anywhere: found at open, or, in the tokens, when that sample is read; every other sample stays right. */
static void a_flipped_bit_anywhere(void **state)
{
	const char *dir = strdup(in(*state, "d")), *path = strdup(in(*state, "d/shard-00000.h5"));
	struct io_dataset *ds;
	struct io_error err;
	struct io_manifest m;
	uint32_t *good, ids[L];
	int64_t at_open = 0, at_read = 0, size;
	uint64_t rnd = 5;

	make_small(state, "d", 1);
	ok(io__manifest_read(dir, &m, NULL, &err));
	size = m.shards[0].bytes;
	good = calloc((size_t)m.samples, sizeof(ids));
	ok(io_dataset_open(dir, &ds, &err));
	for (int64_t i = 0; i < m.samples; i++)
		ok(io_dataset_read(ds, i, 0, (int64_t)(ds->shards[0].sample_off[i + 1] - ds->shards[0].sample_off[i]),
				   good + i * L, &err));
	io_dataset_close(ds);
	for (int64_t off = 0; off < size; off += 1 + (int64_t)(next_random(&rnd) % 40)) {
		int bit = (int)(next_random(&rnd) % 8), in_tokens, bad = 0, nbad = 0;

		in_tokens = off >= m.shards[0].extents[0].off &&
			    off < m.shards[0].extents[0].off + m.shards[0].extents[0].len;
		flip_bit(path, off, bit);
		assert_int_equal(io_dataset_verify(dir, NULL, count_bad, &nbad, &err), 1);
		assert_int_equal(nbad, 1);
		if (!in_tokens) {
			refused(io_dataset_open(dir, &ds, &err), "shard-00000.h5");
			at_open++;
		} else {
			ok(io_dataset_open(dir, &ds, &err));
			for (int64_t i = 0; i < m.samples; i++) {
				struct io_sample s;

				ok(io_dataset_sample(ds, i, &s, &err));
				if (io_dataset_read(ds, i, 0, s.tokens, ids, &err) < 0)
					bad++;
				else
					assert_memory_equal(ids, good + i * L, (size_t)s.tokens * 4);
			}
			assert_int_equal(bad, 1);
			at_read++;
			io_dataset_close(ds);
		}
		flip_bit(path, off, bit);
	}
	assert_true(at_open > 50 && at_read > 50);
	assert_int_equal(io_dataset_verify(dir, NULL, NULL, NULL, &err), 0);
	io__manifest_free(&m);
	free(good);
	free((char *)dir);
	free((char *)path);
}

/* sgl-project/sglang#32279: a missing shard must not become garbage. */
static void missing_shard(void **state)
{
	struct io_dataset *ds;
	struct io_error err;
	int bad = 0;

	make_dataset(in(*state, "d"), 100, L, 3000, 2000, 1);
	assert_int_equal(unlink(in(*state, "d/shard-00001.h5")), 0);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "shard-00001.h5");
	assert_int_equal(err.code, ENOENT);
	(void)bad;
	assert_int_equal(io_dataset_verify(in(*state, "d"), NULL, NULL, NULL, &err), 1);
}

/* Another dataset's shard, of the very same size: from the same documents and another seed. */
static void foreign_shard(void **state)
{
	struct io_dataset *ds;
	struct io_error err;
	char *a, *b;
	size_t n, m;

	for (int k = 0; k < 2; k++) {
		struct docs d = docs_make(40, 3 * L, L, 3000, 1);
		struct io_pack_opts o = pack_opts(in(*state, k ? "b" : "a"), L, IO_PACK_BFD, 3000);

		o.seed = (uint64_t)k;
		docs_pack(&d, &o);
		docs_free(&d);
	}
	a = get_file(in(*state, "a/shard-00000.h5"), &n);
	b = get_file(in(*state, "b/shard-00000.h5"), &m);
	assert_int_equal(n, m);
	put_file(in(*state, "a/shard-00000.h5"), b, m);
	refused(io_dataset_open(in(*state, "a"), &ds, &err), "another dataset's");
	put_file(in(*state, "a/shard-00000.h5"), "not HDF5 at all", 15);
	refused(io_dataset_open(in(*state, "a"), &ds, &err), "truncated or replaced");
	memset(b, 'x', m);
	put_file(in(*state, "a/shard-00000.h5"), b, m);
	refused(io_dataset_open(in(*state, "a"), &ds, &err), "hash of the tables");
	free(a);
	free(b);
}

static void swapped_shards(void **state)
{
	struct io_dataset *ds;
	struct io_error err;

	make_dataset(in(*state, "d"), 100, L, 3000, 2000, 1);
	assert_int_equal(rename(in(*state, "d/shard-00000.h5"), in(*state, "d/x")), 0);
	assert_int_equal(rename(in(*state, "d/shard-00001.h5"), in(*state, "d/shard-00000.h5")), 0);
	assert_int_equal(rename(in(*state, "d/x"), in(*state, "d/shard-00001.h5")), 0);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "shard-00000.h5");
}

/* A FIFO or a folder in a shard's place must not block or crash. */
static void a_shard_that_is_no_file(void **state)
{
	struct io_dataset *ds;
	struct io_error err;

	make_small(state, "d", 1);
	assert_int_equal(unlink(in(*state, "d/shard-00000.h5")), 0);
	assert_int_equal(mkfifo(in(*state, "d/shard-00000.h5"), 0666), 0);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "shard-00000.h5");
	assert_int_equal(unlink(in(*state, "d/shard-00000.h5")), 0);
	assert_int_equal(mkdir(in(*state, "d/shard-00000.h5"), 0777), 0);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "shard-00000.h5");
}

static void wrong_tokenizer_file(void **state)
{
	struct io_pack_opts o = pack_opts(in(*state, "d"), L, IO_PACK_BFD, IO_BYTE_VOCAB);
	struct docs d = docs_make(40, 3 * L, L, 250, 1);
	struct io_dataset *ds;
	struct io_error err;

	o.tokenizer_kind = "byte";
	o.eos_token_id = IO_BYTE_EOS;
	docs_pack(&d, &o);
	docs_free(&d);
	ok(io_dataset_open(in(*state, "d"), &ds, &err));
	io_dataset_close(ds);
	put_file(in(*state, "d/tokenizer.json"), "{}", 2);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "is not the tokenizer the dataset was packed with");
	assert_int_equal(unlink(in(*state, "d/tokenizer.json")), 0);
	refused(io_dataset_open(in(*state, "d"), &ds, &err), "tokenizer.json");
}

/* Ids at and above vocab_size, behind right hashes: a writer with a fault, not a damaged disk. */
static void ids_above_the_vocabulary(void **state)
{
	struct io_dataset *ds;
	struct io_error err;
	uint32_t ids[L];

	make_small(state, "d", 1);
	ok(io_dataset_open(in(*state, "d"), &ds, &err));
	ds->m.vocab_size = 2; /* as if the manifest had said so */
	refused(io_dataset_read(ds, 0, 0, 20, ids, &err), "is outside the vocabulary of 2");
	io_dataset_close(ds);
}

/* ---- scale ---- */

static int open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* 1000 shards with room for 48 descriptors. */
static void a_thousand_shards(void **state)
{
	struct rlimit old, low;
	struct io_dataset_info i;
	struct io_dataset *ds;
	struct io_error err;
	uint32_t ids[L];
	int before;

	make_dataset(in(*state, "d"), 1200, L, 3000, 1, 1); /* a sample a shard */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	before = open_descriptors();
	low = old;
	low.rlim_cur = (rlim_t)before + 48;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	ok(io_dataset_open(in(*state, "d"), &ds, &err));
	io_dataset_info(ds, &i);
	assert_true(i.nshards >= 1000);
	assert_int_equal(open_descriptors(), before); /* nothing of HDF5 stays open */
	for (int64_t k = 0; k < i.samples; k++)
		ok(io_dataset_read(ds, i.samples - 1 - k, 0, 1, ids, &err));
	assert_int_equal(io__fdcache_open_count(ds->fds), IO_FDCACHE_SLOTS);
	assert_in_range(open_descriptors(), before, before + IO_FDCACHE_SLOTS);
	io_dataset_close(ds);
	assert_int_equal(open_descriptors(), before);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

/* A dataset of one hand-made shard: `tokens` u16 tokens of which only the last two samples are not a hole. */
static void write_sparse(const char *dir, int64_t tokens, int64_t seq)
{
	int64_t n = tokens / seq, w = 2;
	struct io_h5_attrs a = {.packing = "bfd", .seq_length = seq, .vocab_size = 65536, .eos_token_id = -1,
				.tokens = tokens, .samples = n, .segments = n};
	struct io_manifest_shard ms = {.file = (char *)"shard-00000.h5", .samples = n, .tokens = tokens, .segments = n};
	struct io_manifest m = {.seq_length = seq, .vocab_size = 65536, .eos_token_id = -1, .pad_token_id = -1,
				.tokens = tokens, .targets = tokens - n, .samples = n, .segments = n, .documents = n,
				.width = 2, .packing = "bfd", .tokenizer_kind = "raw", .shards = &ms, .nshards = 1};
	void *arr[IO_H5_NARRAYS];
	uint64_t *off, *targets, *xxh3, *doc;
	uint16_t *sample = calloc((size_t)seq, 2);
	struct io_hash128 zero = io_hash_mem(sample, (size_t)(seq * w)), h;
	const struct io_h5_layout *l;
	struct io_h5_writer *wr;
	struct io_error err;
	char path[4200];
	int fd;

	assert_int_equal(mkdir(dir, 0777), 0);
	snprintf(path, sizeof(path), "%s/shard-00000.h5", dir);
	for (int i = 0; i < IO_H5_NARRAYS; i++)
		arr[i] = calloc(1, (size_t)io__h5_array_bytes((enum io_h5_array)i, n, n));
	off = arr[IO_H5_SAMPLE_OFF];
	targets = arr[IO_H5_SAMPLE_TARGETS];
	xxh3 = arr[IO_H5_SAMPLE_XXH3];
	doc = arr[IO_H5_SEG_DOC];
	for (int64_t i = 0; i < n; i++) {
		off[i + 1] = (uint64_t)((i + 1) * seq);
		((uint64_t *)arr[IO_H5_SEG_OFF])[i + 1] = (uint64_t)(i + 1);
		targets[i] = (uint64_t)(seq - 1);
		doc[i] = (uint64_t)i;
		((uint32_t *)arr[IO_H5_SEG_LEN])[i] = (uint32_t)seq;
		xxh3[2 * i] = zero.hi;
		xxh3[2 * i + 1] = zero.lo;
	}
	ok(io__h5_create(path, "sparse", &a, 2, 1, &wr, &err));
	l = io__h5_writer_layout(wr);
	fd = io__h5_writer_fd(wr);
	for (int64_t i = n - 2; i < n; i++) {
		for (int64_t t = 0; t < seq; t++)
			sample[t] = (uint16_t)(i * 1000 + t);
		h = io_hash_mem(sample, (size_t)(seq * w));
		xxh3[2 * i] = h.hi;
		xxh3[2 * i + 1] = h.lo;
		assert_int_equal(l->nextents, 1); /* what makes the next line right */
		ok(io_pwrite_full(fd, path, sample, (size_t)(seq * w), l->extents[0].off + i * seq * w, &err));
	}
	for (int i = 0; i < IO_H5_NARRAYS; i++) {
		ok(io_pwrite_full(fd, path, arr[i], (size_t)io__h5_array_bytes((enum io_h5_array)i, n, n), l->array_off[i],
				  &err));
		free(arr[i]);
	}
	ms.nextents = l->nextents;
	ms.extents = calloc((size_t)l->nextents, sizeof(*ms.extents));
	memcpy(ms.extents, l->extents, (size_t)l->nextents * sizeof(*ms.extents));
	ok(io__h5_finish(wr, &err));
	io__h5_destroy(wr);
	fd = open(path, O_RDONLY);
	ms.bytes = lseek(fd, 0, SEEK_END);
	ok(io__shard_meta_hash(fd, path, ms.bytes, ms.extents, ms.nextents, &ms.meta_xxh3, &err));
	close(fd);
	ok(io__manifest_write(dir, &m, &err));
	free(ms.extents);
	free(sample);
}

/* karpathy/llm.c#828 (a 2 GB offset cut to int) and NVIDIA/Megatron-LM#1672 (pointers past 2^32): a shard of 5 GiB, and
 * one of more than 2^32 tokens, both a hole but for their end. */
static void five_gib_sparse_shard(void **state)
{
	const int64_t seq = 1 << 16, sizes[] = {(INT64_C(5) << 30) / 2, (INT64_C(1) << 32) + 3 * (1 << 16)};
	uint32_t *ids = malloc((size_t)seq * 4);

	assert_non_null(ids);
	for (int k = 0; k < 2; k++) {
		const char *dir = in(*state, k ? "huge" : "five");
		struct io_dataset_info info;
		struct io_dataset *ds;
		struct io_error err;
		struct stat st;

		write_sparse(dir, sizes[k], seq);
		ok(io_dataset_open(dir, &ds, &err));
		io_dataset_info(ds, &info);
		assert_int_equal(info.tokens, sizes[k]);
		for (int64_t i = info.samples - 2; i < info.samples; i++) {
			ok(io_dataset_read(ds, i, 0, seq, ids, &err));
			for (int64_t t = 0; t < seq; t++)
				assert_int_equal(ids[t], (uint16_t)(i * 1000 + t));
			ok(io_dataset_read(ds, i, seq - 3, seq, ids, &err));
			assert_int_equal(ids[2], (uint16_t)(i * 1000 + seq - 1));
		}
		ok(io_dataset_read(ds, 5, 0, seq, ids, &err)); /* the hole reads as what its hash says: zeros */
		assert_int_equal(ids[seq - 1], 0);
		io_dataset_close(ds);
		assert_int_equal(stat(in(dir, "shard-00000.h5"), &st), 0);
		assert_true(st.st_size > sizes[k] * 2);
		assert_true(st.st_blocks * 512 < 64 << 20);
	}
	free(ids);
}

/* ---- threads ---- */

struct job {
	struct io_dataset *ds;
	uint32_t *good;
	uint64_t seed;
	int wrong;
};

static void *read_randomly(void *arg)
{
	struct job *j = arg;
	uint32_t ids[L];

	for (int k = 0; k < 3000; k++) {
		int64_t i = (int64_t)(next_random(&j->seed) % (uint64_t)j->ds->m.samples);
		struct io_sample s;

		if (io_dataset_sample(j->ds, i, &s, NULL) < 0 || io_dataset_read(j->ds, i, 0, s.tokens, ids, NULL) < 0 ||
		    memcmp(ids, j->good + i * L, (size_t)s.tokens * 4) != 0)
			j->wrong++;
	}
	return NULL;
}

static void threads_share_a_dataset(void **state)
{
	struct io_dataset *ds, *fresh;
	struct job jobs[6];
	pthread_t t[6];
	struct io_error err;
	uint32_t *good;

	make_dataset(in(*state, "d"), 600, L, 3000, 500, 1); /* far more shards than descriptors kept */
	ok(io_dataset_open(in(*state, "d"), &ds, &err));
	ok(io_dataset_open(in(*state, "d"), &fresh, &err));
	good = calloc((size_t)ds->m.samples * L, 4);
	for (int64_t i = 0; i < ds->m.samples; i++) {
		struct io_sample s;

		ok(io_dataset_sample(ds, i, &s, &err));
		ok(io_dataset_read(ds, i, 0, s.tokens, good + i * L, &err));
	}
	for (int k = 0; k < 6; k++) {
		jobs[k] = (struct job){fresh, good, (uint64_t)k, 0};
		assert_int_equal(pthread_create(&t[k], NULL, read_randomly, &jobs[k]), 0);
	}
	for (int k = 0; k < 6; k++) {
		pthread_join(t[k], NULL);
		assert_int_equal(jobs[k].wrong, 0);
	}
	io_dataset_close(ds);
	io_dataset_close(fresh);
	free(good);
}

/* More users at once than slots: the overflow opens its own descriptor and closes it. */
static void more_readers_than_slots(void **state)
{
	struct io_fdcache *c = io__fdcache_create();
	int fd[IO_FDCACHE_SLOTS + 5], before = open_descriptors();
	struct io_error err;
	char path[64];

	for (int i = 0; i < IO_FDCACHE_SLOTS + 5; i++) {
		snprintf(path, sizeof(path), "f%d", i);
		put_file(in(*state, path), "abc", 3);
		fd[i] = io__fdcache_get(c, i, in(*state, path), 3, &err);
		assert_true(fd[i] >= 0);
	}
	assert_int_equal(io__fdcache_open_count(c), IO_FDCACHE_SLOTS);
	assert_int_equal(open_descriptors(), before + IO_FDCACHE_SLOTS + 5);
	for (int i = 0; i < IO_FDCACHE_SLOTS + 5; i++)
		io__fdcache_put(c, i, fd[i]);
	assert_int_equal(open_descriptors(), before + IO_FDCACHE_SLOTS);
	assert_int_equal(io__fdcache_get(c, 3, "unused", 3, &err), fd[3]);
	io__fdcache_put(c, 3, fd[3]);
	assert_int_equal(io__fdcache_get(c, 999, in(*state, "f1"), 4, &err), -1);
	io__fdcache_destroy(c);
	assert_int_equal(open_descriptors(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
		T(info_and_ranges),
		T(truncated_shard),
		T(appended_bytes),
		T(a_flipped_bit_anywhere),
		T(missing_shard),
		T(foreign_shard),
		T(swapped_shards),
		T(a_shard_that_is_no_file),
		T(wrong_tokenizer_file),
		T(ids_above_the_vocabulary),
		T(a_thousand_shards),
		T(five_gib_sparse_shard),
		T(threads_share_a_dataset),
		T(more_readers_than_slots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
