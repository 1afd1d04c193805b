/* SPDX-License-Identifier: Apache-2.0 */
/* The packer: no target lost or doubled, best fit as the naive one, the same bytes twice, refusals. */
#include "tests/unit/data_util.h"
#include "io/io_pack_priv.h"

/* ---- conservation: every (document, target) once, with the right tokens around it ---- */

struct tally {
	const struct docs *d;
	int64_t eos; /* -1: none */
	unsigned char **hit; /* [doc][target] */
};

static int64_t full_len(const struct tally *t, int64_t doc)
{
	return t->d->len[doc] ? t->d->len[doc] + (t->eos >= 0) : 0;
}

static uint32_t token_of(const struct tally *t, int64_t doc, int64_t i)
{
	return i < t->d->len[doc] ? t->d->ids[doc][i] : (uint32_t)t->eos;
}

static void tally_segment(struct tally *t, int64_t doc, int64_t start, int64_t len, const uint32_t *ids)
{
	assert_in_range(doc, 0, t->d->n - 1);
	if (len == 1 && full_len(t, doc) != 1)
		fail_msg("document %lld of %lld tokens got a segment of one token", (long long)doc,
			 (long long)full_len(t, doc));
	assert_true(start >= 0 && start + len <= full_len(t, doc));
	for (int64_t i = 0; i < len; i++)
		assert_int_equal(ids[i], token_of(t, doc, start + i));
	for (int64_t i = 0; i + 1 < len; i++)
		if (t->hit[doc][start + i]++)
			fail_msg("target %lld of document %lld counts twice", (long long)(start + i), (long long)doc);
}

static void check_conservation(const char *dir, const struct docs *d, int64_t eos, int64_t L)
{
	struct tally t = {d, eos, calloc((size_t)d->n, sizeof(*t.hit))};
	struct io_error err = {.code = 0};
	struct io_dataset_info info;
	struct io_dataset *ds;
	uint32_t *ids = malloc((size_t)L * sizeof(*ids));
	int64_t single = 0, tokens = 0, targets = 0;

	for (int64_t i = 0; i < d->n; i++)
		t.hit[i] = calloc((size_t)full_len(&t, i) + 1, 1);
	ok(io_dataset_open(dir, &ds, &err));
	io_dataset_info(ds, &info);
	assert_int_equal(info.documents, d->n);
	for (int64_t i = 0; i < info.samples; i++) {
		struct io_sample s;
		int64_t at = 0;

		ok(io_dataset_sample(ds, i, &s, &err));
		assert_in_range(s.tokens, 1, L);
		ok(io_dataset_read(ds, i, 0, s.tokens, ids, &err));
		for (int64_t j = 0; j < s.nseg; at += s.seg_len[j++]) {
			tally_segment(&t, (int64_t)s.seg_doc[j], (int64_t)s.seg_start[j], s.seg_len[j], ids + at);
			single += s.seg_len[j] == 1;
		}
		assert_int_equal(at, s.tokens);
		tokens += s.tokens;
		targets += s.targets;
	}
	assert_int_equal(tokens, info.tokens);
	assert_int_equal(targets, info.targets);
	for (int64_t i = 0; i < d->n; i++) {
		for (int64_t k = 0; k + 1 < full_len(&t, i); k++)
			if (!t.hit[i][k])
				fail_msg("target %lld of document %lld is lost", (long long)k, (long long)i);
		single -= full_len(&t, i) == 1;
		free(t.hit[i]);
	}
	/* documents of one token are kept too, once */
	assert_int_equal(single, 0);
	io_dataset_close(ds);
	free(t.hit);
	free(ids);
}

static void conserve(void **state, enum io_packing packing)
{
	const int64_t lengths[] = {2, 3, 7, 64, 257};
	char name[64];

	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++)
		for (int with_eos = 0; with_eos < 2; with_eos++) {
			int64_t L = lengths[k];
			struct docs d = docs_make(300, 5 * L, L, 1000, (uint64_t)(100 * k) + (uint64_t)with_eos);
			struct io_pack_opts o = pack_opts(NULL, L, packing, 1000);
			struct io_pack_report r;
			int64_t empty = 0, split = 0;

			snprintf(name, sizeof(name), "c%zu-%d", k, with_eos);
			o.out_dir = in(*state, name);
			o.eos_token_id = with_eos ? 999 : -1;
			o.group_docs = 70;	 /* several groups */
			o.shard_bytes = 40 * L; /* several shards */
			r = docs_pack(&d, &o);
			check_conservation(in(*state, name), &d, o.eos_token_id, L);
			for (int64_t i = 0; i < d.n; i++) {
				empty += d.len[i] == 0;
				split += d.len[i] && d.len[i] + with_eos > L;
			}
			assert_int_equal(r.documents, 300);
			assert_int_equal(r.empty_documents, empty);
			assert_int_equal(r.split_documents, split);
			assert_true(r.nshards > 1);
			docs_free(&d);
		}
}

static void bfd_conserves_targets(void **state) /* huggingface/trl#4554: overflow tokens dropped */
{
	conserve(state, IO_PACK_BFD);
}

static void wrapped_conserves_targets(void **state)
{
	conserve(state, IO_PACK_WRAPPED);
}

/* ---- best fit ---- */

static int64_t naive_bfd(const struct io_piece *p, int64_t n, int64_t L, int64_t *bin)
{
	int64_t *used = calloc((size_t)n, sizeof(*used)), *since = calloc((size_t)n, sizeof(*since)), nb = 0;

	for (int64_t i = 0; i < n; i++) {
		int64_t best = -1;

		/* the fullest that fits; among equals the one that has had this fill the longest */
		for (int64_t b = 0; b < nb; b++)
			if (used[b] + p[i].len <= L && used[b] < L &&
			    (best < 0 || used[b] > used[best] || (used[b] == used[best] && since[b] < since[best])))
				best = b;
		if (best < 0)
			best = nb++;
		used[best] += p[i].len;
		since[best] = i;
		bin[i] = best;
	}
	free(used);
	free(since);
	return nb;
}

static int by_len(const void *a, const void *b)
{
	const struct io_piece *x = a, *y = b;

	return (x->len < y->len) - (x->len > y->len);
}

static void best_fit_equals_naive(void **state)
{
	const int64_t Ls[] = {1, 2, 5, 63, 64, 65, 1000, 4096, 5000, 262145};
	struct io_piece p[400];
	int64_t a[400], b[400];
	struct io_error err;
	uint64_t s = 3;

	(void)state;
	for (size_t k = 0; k < sizeof(Ls) / sizeof(Ls[0]); k++)
		for (int round = 0; round < 30; round++) {
			int64_t n = 1 + (int64_t)(next_random(&s) % 400);
			uint64_t cap = round % 3 == 0 ? (uint64_t)Ls[k] : (uint64_t)(Ls[k] / (1 + round % 7) + 1);

			for (int64_t i = 0; i < n; i++) {
				uint32_t len = (uint32_t)(1 + next_random(&s) % cap);

				p[i] = (struct io_piece){.len = len > Ls[k] ? (uint32_t)Ls[k] : len};
			}
			qsort(p, (size_t)n, sizeof(p[0]), by_len);
			assert_int_equal(io__bfd_assign(p, n, Ls[k], a, &err), naive_bfd(p, n, Ls[k], b));
			assert_memory_equal(a, b, (size_t)n * sizeof(a[0]));
		}
}

/* 20,000 documents of up to 2000 tokens, a third of them tiny: within 1% of the lower bound sum / L. */
static void fill_is_near_the_bound(void **state)
{
	struct docs d = docs_make(20000, 2000, 3, 60000, 5);
	struct io_pack_opts o = pack_opts(in(*state, "fill"), 2048, IO_PACK_BFD, 60000);
	struct io_pack_report r = docs_pack(&d, &o);

	assert_true(r.fill > 0.99 && r.fill <= 1.0);
	docs_free(&d);
}

/* ---- dtype: huggingface/datatrove#118, u16 overflow ---- */

static void boundary_ids(void **state)
{
	static const struct {
		int64_t vocab;
		uint32_t id;
		int width;
	} c[] = {{65536, 65535, 2}, {65537, 65535, 4}, {65537, 65536, 4}, {INT64_C(1) << 31, 0x7fffffff, 4}};
	struct io_error err;
	char name[32];

	for (size_t k = 0; k < 4; k++) {
		uint32_t ids[3] = {c[k].id, 0, c[k].id}, back[3];
		struct io_manifest m;
		struct io_pack_opts o = pack_opts(NULL, 8, IO_PACK_BFD, c[k].vocab);
		struct io_dataset *ds;
		struct io_packer *p;

		snprintf(name, sizeof(name), "b%zu", k);
		o.out_dir = in(*state, name);
		o.eos_token_id = -1;
		ok(io_packer_create(&o, &p, &err));
		ok(io_packer_add(p, ids, 3, &err));
		ok(io_packer_finish(p, NULL, &err));
		io_packer_destroy(p);
		ok(io__manifest_read(in(*state, name), &m, NULL, &err));
		assert_int_equal(m.width, c[k].width);
		io__manifest_free(&m);
		ok(io_dataset_open(in(*state, name), &ds, &err));
		ok(io_dataset_read(ds, 0, 0, 3, back, &err));
		assert_memory_equal(back, ids, sizeof(ids));
		io_dataset_close(ds);
	}
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
	struct io_pack_opts o = pack_opts(in(*state, "v"), 8, IO_PACK_BFD, 65536);
	uint32_t ids[2] = {1, 65536};
	struct io_error err;
	struct io_packer *p;

	ok(io_packer_create(&o, &p, &err));
	refused(io_packer_add(p, ids, 2, &err), "document 0: id 65536 at token 1; the vocabulary has 65536 ids");
	io_packer_destroy(p);
}

/* ---- publishing ---- */

static int count_entries(const char *dir, const char *part)
{
	char cmd[8192];
	FILE *f;
	int n = 0;

	snprintf(cmd, sizeof(cmd), "ls -A '%s' | grep -c '%s'", dir, part);
	f = popen(cmd, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d", &n), 1);
	pclose(f);
	return n;
}

static void same_input_gives_same_bytes(void **state)
{
	const char *files[] = {"dataset.json", "shard-00000.h5", "shard-00001.h5"};

	for (int packing = 0; packing < 2; packing++) {
		char a[16], b[16];

		snprintf(a, sizeof(a), "one%d", packing);
		snprintf(b, sizeof(b), "two%d", packing);
		for (int i = 0; i < 2; i++) {
			struct docs d = docs_make(500, 300, 128, 500, 77);
			struct io_pack_opts o = pack_opts(in(*state, i ? b : a), 128, (enum io_packing)packing, 500);

			o.shard_bytes = 50000;
			docs_pack(&d, &o);
			docs_free(&d);
		}
		for (size_t k = 0; k < 3; k++) {
			size_t n, m;
			char path[64], *x, *y;

			snprintf(path, sizeof(path), "%s/%s", a, files[k]);
			x = get_file(in(*state, path), &n);
			snprintf(path, sizeof(path), "%s/%s", b, files[k]);
			y = get_file(in(*state, path), &m);
			assert_int_equal(n, m);
			assert_memory_equal(x, y, n);
			free(x);
			free(y);
		}
	}
}

static void existing_output_is_refused(void **state)
{
	struct io_pack_opts o = pack_opts(in(*state, "out"), 8, IO_PACK_BFD, 100);
	uint32_t ids[3] = {1, 2, 3};
	struct io_packer *p;
	struct io_error err;

	assert_int_equal(mkdir(in(*state, "out"), 0777), 0);
	refused(io_packer_create(&o, &p, &err), "exists already");
	assert_int_equal(rmdir(in(*state, "out")), 0);
	/* one that appears while packing: an empty folder would be replaced by a plain rename */
	ok(io_packer_create(&o, &p, &err));
	ok(io_packer_add(p, ids, 3, &err));
	assert_int_equal(mkdir(in(*state, "out"), 0777), 0);
	refused(io_packer_finish(p, NULL, &err), "exists already");
	io_packer_destroy(p);
	assert_int_equal(count_entries(*state, "tmp-"), 0);
	assert_int_equal(count_entries(in(*state, "out"), "."), 0);
}

static void unfinished_leaves_nothing(void **state)
{
	struct io_pack_opts o = pack_opts(in(*state, "gone"), 8, IO_PACK_BFD, 100);
	uint32_t ids[3] = {1, 2, 3};
	struct io_packer *p;
	struct io_error err;

	o.shard_bytes = 1;
	o.group_docs = 1;
	ok(io_packer_create(&o, &p, &err));
	for (int i = 0; i < 10; i++)
		ok(io_packer_add(p, ids, 3, &err));
	assert_int_equal(count_entries(*state, "gone.tmp-"), 1);
	io_packer_destroy(p);
	assert_int_equal(count_entries(*state, "gone"), 0);
	/* and so does a set without a token */
	ok(io_packer_create(&o, &p, &err));
	ok(io_packer_add(p, ids, 0, &err));
	refused(io_packer_finish(p, NULL, &err), "nothing to pack: 1 documents, all of them empty");
	io_packer_destroy(p);
	assert_int_equal(count_entries(*state, "gone"), 0);
}

static void wrong_options_are_refused(void **state)
{
	struct io_pack_opts good = pack_opts(in(*state, "w"), 8, IO_PACK_BFD, 100), o;
	struct io_packer *p;
	struct io_error err;

#define wrong(field, value, text)                                                                                     \
	o = good;                                                                                                     \
	o.field = value;                                                                                              \
	refused(io_packer_create(&o, &p, &err), text);                                                                \
	assert_null(p)
	wrong(seq_length, 1, "sequence length 1; 2 to");
	wrong(seq_length, (INT64_C(1) << 30) + 1, "sequence length");
	wrong(vocab_size, 0, "vocabulary size 0");
	wrong(vocab_size, (INT64_C(1) << 31) + 1, "vocabulary size");
	wrong(eos_token_id, 100, "end-of-text id 100 is outside the vocabulary of 100");
	wrong(pad_token_id, 100, "padding id 100");
	wrong(shard_bytes, -1, "shard size -1");
	wrong(shard_bytes, (INT64_C(1) << 30) + 1, "shard size");
	wrong(group_docs, -1, "group of -1");
	wrong(tokenizer_kind, "words", "byte, raw or hf");
	wrong(tokenizer_kind, "byte", "the byte vocabulary has 258 ids");
	wrong(tokenizer_kind, "hf", "needs the tokenizer's folder");
	wrong(out_dir, "", "no output folder");
	wrong(out_dir, "/proc/nowhere/x", "/proc/nowhere");
#undef wrong
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, tmp_setup, tmp_teardown)
		T(bfd_conserves_targets),
		T(wrapped_conserves_targets),
		T(best_fit_equals_naive),
		T(fill_is_near_the_bound),
		T(boundary_ids),
		T(ids_outside_the_vocabulary_are_refused),
		T(same_input_gives_same_bytes),
		T(existing_output_is_refused),
		T(unfinished_leaves_nothing),
		T(wrong_options_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
