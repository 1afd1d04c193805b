/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* the state lives on the stack */
#include <xxhash.h>
#include "io/io_file_priv.h"
#include "io/io_shard.h"

#define PIECE 65536

static int hash_gap(XXH3_state_t *x, int fd, const char *path, int64_t off, int64_t end, struct io_error *err)
{
	char buf[PIECE];

	while (off < end) {
		size_t n = end - off < PIECE ? (size_t)(end - off) : PIECE;

		if (io_pread_full(fd, path, buf, n, off, err) < 0)
			return -1;
		XXH3_128bits_update(x, buf, n);
		off += (int64_t)n;
	}
	return 0;
}

static int by_off(const void *a, const void *b)
{
	const struct io_extent *x = a, *y = b;

	return (x->off > y->off) - (x->off < y->off);
}

int io__shard_meta_hash(int fd, const char *path, int64_t bytes, const struct io_extent *ext, int next,
			struct io_hash128 *out, struct io_error *err)
{
	struct io_extent *sorted = malloc((size_t)next * sizeof(*sorted));
	int64_t at = 0;
	XXH3_state_t x;
	XXH128_hash_t h;
	int rc = -1;

	if (!sorted)
		return io_errorf(err, ENOMEM, "%s: out of memory", path);
	memcpy(sorted, ext, (size_t)next * sizeof(*sorted));
	qsort(sorted, (size_t)next, sizeof(*sorted), by_off);
	XXH3_128bits_reset(&x);
	for (int i = 0; i < next; i++) {
		if (sorted[i].off < at || sorted[i].len > bytes - sorted[i].off) {
			io_errorf(err, EBADMSG, "%s: stretches of tokens overlap or leave the file", path);
			goto fail;
		}
		if (hash_gap(&x, fd, path, at, sorted[i].off, err) < 0)
			goto fail;
		at = sorted[i].off + sorted[i].len;
	}
	if (hash_gap(&x, fd, path, at, bytes, err) < 0)
		goto fail;
	h = XXH3_128bits_digest(&x);
	*out = (struct io_hash128){h.high64, h.low64};
	rc = 0;
fail:
	free(sorted);
	return rc;
}

int io__extents_walk(const struct io_extent *ext, int n, int64_t b0, int64_t b1,
		     int (*piece)(void *arg, int64_t off, int64_t len), void *arg)
{
	int64_t base = 0;

	for (int i = 0; i < n && b0 < b1; i++) {
		int64_t end = base + ext[i].len;

		if (b0 < end) {
			int64_t len = (b1 < end ? b1 : end) - b0;
			int rc = piece(arg, ext[i].off + (b0 - base), len);

			if (rc)
				return rc;
			b0 += len;
		}
		base = end;
	}
	return 0;
}

/* Offsets a[0..n] begin at 0, rise strictly, end at total and step by at most `most`. */
static int check_offsets(const char *path, const char *which, const uint64_t *a, int64_t n, int64_t total, int64_t most,
			 struct io_error *err)
{
	if (a[0] != 0)
		return io_errorf(err, EBADMSG, "%s: /%s does not begin at 0", path, which);
	for (int64_t i = 0; i < n; i++)
		if (a[i + 1] <= a[i] || a[i + 1] > (uint64_t)total || a[i + 1] - a[i] > (uint64_t)most)
			return io_errorf(err, EBADMSG,
					 "%s: /%s[%" PRId64 "] is %" PRIu64 " after %" PRIu64
					 "; it must rise by 1 to %" PRId64 " and stay within %" PRId64,
					 path, which, i + 1, a[i + 1], a[i], most, total);
	if (a[n] != (uint64_t)total)
		return io_errorf(err, EBADMSG, "%s: /%s ends at %" PRIu64 " instead of %" PRId64, path, which, a[n],
				 total);
	return 0;
}

static int check_sample(const char *path, const struct io_shard *s, int64_t i, int64_t documents,
			struct io_error *err)
{
	uint64_t len = s->sample_off[i + 1] - s->sample_off[i], sum = 0;
	uint64_t nseg = s->seg_off[i + 1] - s->seg_off[i];

	for (uint64_t j = s->seg_off[i]; j < s->seg_off[i + 1]; j++) {
		if (s->seg_len[j] == 0)
			return io_errorf(err, EBADMSG, "%s: /seg_len[%" PRIu64 "] is 0", path, j);
		if (s->seg_doc[j] >= (uint64_t)documents)
			return io_errorf(err, EBADMSG, "%s: /seg_doc[%" PRIu64 "] is %" PRIu64 " of %" PRId64 " documents",
					 path, j, s->seg_doc[j], documents);
		if (s->seg_start[j] >= UINT64_C(1) << 56)
			return io_errorf(err, EBADMSG, "%s: /seg_start[%" PRIu64 "] is %" PRIu64, path, j,
					 s->seg_start[j]);
		sum += s->seg_len[j];
	}
	if (sum != len)
		return io_errorf(err, EBADMSG,
				 "%s: segments of sample %" PRId64 " hold %" PRIu64 " tokens, the sample %" PRIu64, path,
				 i, sum, len);
	if (s->sample_targets[i] != len - nseg)
		return io_errorf(err, EBADMSG,
				 "%s: /sample_targets[%" PRId64 "] is %" PRIu64 "; its segments give %" PRIu64, path, i,
				 s->sample_targets[i], len - nseg);
	return 0;
}

int io__shard_check(const char *path, const struct io_shard *s, int64_t tokens, int64_t seq_length, int64_t documents,
		    int64_t *max_seg, int64_t *targets, struct io_error *err)
{
	if (check_offsets(path, "sample_off", s->sample_off, s->samples, tokens, seq_length, err) < 0 ||
	    check_offsets(path, "seg_off", s->seg_off, s->samples, s->segments, seq_length, err) < 0)
		return -1;
	*max_seg = *targets = 0;
	for (int64_t i = 0; i < s->samples; i++) {
		int64_t nseg = (int64_t)(s->seg_off[i + 1] - s->seg_off[i]);

		if (check_sample(path, s, i, documents, err) < 0)
			return -1;
		if (nseg > *max_seg)
			*max_seg = nseg;
		*targets += (int64_t)s->sample_targets[i];
	}
	return 0;
}

int io__shard_load(int fd, const char *path, const struct io_h5_layout *l, int64_t seq_length, int64_t documents,
		   struct io_shard *out, struct io_error *err)
{
	int64_t n = l->attrs.samples, m = l->attrs.segments, total = 0;
	void **dst[IO_H5_NARRAYS] = {
		(void **)&out->sample_off, (void **)&out->sample_targets, (void **)&out->sample_xxh3,
		(void **)&out->seg_off,	   (void **)&out->seg_len,	  (void **)&out->seg_doc,
		(void **)&out->seg_start,
	};
	char *at;

	memset(out, 0, sizeof(*out));
	out->samples = n;
	out->segments = m;
	memcpy(out->uuid, l->attrs.uuid, sizeof(out->uuid));
	/* The arrays lie inside the file, so this is never more than a few times its size. */
	for (int a = 0; a < IO_H5_NARRAYS; a++)
		total += (io__h5_array_bytes(a, n, m) + 7) & ~INT64_C(7);
	at = out->arena = malloc((size_t)total);
	if (!at)
		return io_errorf(err, ENOMEM, "%s: out of memory for %" PRId64 " bytes of sample tables", path, total);
	for (int a = 0; a < IO_H5_NARRAYS; a++) {
		int64_t bytes = io__h5_array_bytes(a, n, m);

		*dst[a] = at;
		if (io_pread_full(fd, path, at, (size_t)bytes, l->array_off[a], err) < 0)
			goto fail;
		at += (bytes + 7) & ~INT64_C(7);
	}
	if (io__shard_check(path, out, l->attrs.tokens, seq_length, documents, &out->max_seg, &out->targets, err) < 0)
		goto fail;
	return 0;
fail:
	io__shard_close(out);
	return -1;
}

void io__shard_close(struct io_shard *s)
{
	free(s->arena);
	memset(s, 0, sizeof(*s));
}

/* The shard's own attributes against dataset.json. */
static int check_against(const char *path, const struct io_h5_layout *l, const struct io_manifest *m,
			 const struct io_manifest_shard *ms, struct io_error *err)
{
	const struct io_h5_attrs *a = &l->attrs;
	const char *what = a->tokens != ms->tokens			   ? "tokens"
			   : a->samples != ms->samples			   ? "samples"
			   : a->segments != ms->segments		   ? "segments"
			   : l->width != m->width			   ? "dtype"
			   : a->seq_length != m->seq_length		   ? "seq_length"
			   : a->vocab_size != m->vocab_size		   ? "vocab_size"
			   : a->eos_token_id != m->eos_token_id		   ? "eos_token_id"
			   : a->seed != m->seed				   ? "seed"
			   : strcmp(a->packing, m->packing)		   ? "packing"
			   : strcmp(a->tokenizer_sha256, m->tokenizer_sha256) ? "tokenizer_sha256"
									      : NULL;

	if (!what && (l->nextents != ms->nextents ||
		      memcmp(l->extents, ms->extents, (size_t)l->nextents * sizeof(*l->extents)) != 0))
		what = "place of the tokens";
	return what ? io_errorf(err, EBADMSG,
				"%s: %s differs from dataset.json: the shard belongs to another dataset; put the right "
				"file back or pack again",
				path, what)
		    : 0;
}

int io__shard_open(const char *path, const struct io_manifest *m, const struct io_manifest_shard *ms,
		   struct io_shard *out, struct io_error *err)
{
	struct io_h5_layout l = {.extents = NULL};
	struct io_hash128 h;
	int64_t size = 0;
	int fd, rc = -1;

	memset(out, 0, sizeof(*out));
	fd = io__open_regular(path, &size, err);
	if (fd < 0)
		return -1;
	if (size != ms->bytes) {
		io_errorf(err, EBADMSG,
			  "%s: is %" PRId64 " bytes, dataset.json says %" PRId64
			  ": truncated or replaced; copy the shard again or pack again",
			  path, size, ms->bytes);
		goto fail;
	}
	/* Before HDF5 sees the file: its parser is not made for damaged input. */
	if (io__shard_meta_hash(fd, path, size, ms->extents, ms->nextents, &h, err) < 0)
		goto fail;
	if (h.hi != ms->meta_xxh3.hi || h.lo != ms->meta_xxh3.lo) {
		io_errorf(err, EBADMSG,
			  "%s: contents differ from dataset.json (hash of the tables): damaged or another dataset's; copy "
			  "the shard again or pack again",
			  path);
		goto fail;
	}
	if (io__h5_open(path, path, size, &l, err) < 0 || check_against(path, &l, m, ms, err) < 0)
		goto fail;
	rc = io__shard_load(fd, path, &l, m->seq_length, m->documents, out, err);
fail:
	io__h5_layout_free(&l);
	close(fd);
	return rc;
}
