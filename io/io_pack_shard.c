/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* the state lives on the stack */
#include <xxhash.h>
#include "io/io_file_priv.h"
#include "io/io_pack_priv.h"

int io__vec_room(struct io_vec *v, int64_t more, size_t size, struct io_error *err)
{
	int64_t cap = v->cap ? v->cap : 64;
	void *p;

	if (v->n + more <= v->cap)
		return 0;
	while (cap < v->n + more)
		cap *= 2;
	p = realloc(v->p, (size_t)cap * size);
	if (!p)
		return io_errorf(err, ENOMEM, "out of memory for %lld bytes of packed documents",
				 (long long)cap * (long long)size);
	v->p = p;
	v->cap = cap;
	return 0;
}

void io__shard_buf_free(struct io_shard_buf *b)
{
	struct io_vec *v[] = {&b->tokens, &b->off, &b->targets, &b->xxh3, &b->seg_off, &b->seg_len, &b->seg_doc,
			      &b->seg_start};

	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
		free(v[i]->p);
		*v[i] = (struct io_vec){NULL, 0, 0};
	}
}

static int push_u64(struct io_vec *v, uint64_t x, struct io_error *err)
{
	if (io__vec_room(v, 1, 8, err) < 0)
		return -1;
	((uint64_t *)v->p)[v->n++] = x;
	return 0;
}

static int push_segment(struct io_shard_buf *b, const struct io_piece *pc, struct io_error *err)
{
	if (io__vec_room(&b->seg_len, 1, 4, err) < 0 || push_u64(&b->seg_doc, pc->doc, err) < 0 ||
	    push_u64(&b->seg_start, pc->start, err) < 0)
		return -1;
	((uint32_t *)b->seg_len.p)[b->seg_len.n++] = pc->len;
	return 0;
}

int io__pack_sample(struct io_packer *p, const struct io_piece *const *pieces, int64_t n, struct io_error *err)
{
	struct io_shard_buf *b = &p->buf;
	int64_t tokens = 0, begin, w = p->m.width;
	XXH128_hash_t h;

	for (int64_t i = 0; i < n; i++)
		tokens += pieces[i]->len;
	if (b->targets.n > 0 && b->tokens.n + tokens * w > b->max_bytes && io__pack_write_shard(p, err) < 0)
		return -1;
	if (io__vec_room(&b->tokens, tokens * w, 1, err) < 0)
		return -1;
	if (b->targets.n == 0 && (push_u64(&b->off, 0, err) < 0 || push_u64(&b->seg_off, 0, err) < 0))
		return -1;
	begin = b->tokens.n;
	for (int64_t i = 0; i < n; i++) {
		int64_t bytes = (int64_t)pieces[i]->len * w;

		memcpy((char *)b->tokens.p + b->tokens.n, (char *)p->tok.p + pieces[i]->tok * w, (size_t)bytes);
		b->tokens.n += bytes;
		if (push_segment(b, pieces[i], err) < 0)
			return -1;
	}
	h = XXH3_128bits((char *)b->tokens.p + begin, (size_t)(tokens * w));
	if (push_u64(&b->targets, (uint64_t)(tokens - n), err) < 0 || push_u64(&b->xxh3, h.high64, err) < 0 ||
	    push_u64(&b->xxh3, h.low64, err) < 0 || push_u64(&b->off, (uint64_t)(b->tokens.n / w), err) < 0 ||
	    push_u64(&b->seg_off, (uint64_t)b->seg_len.n, err) < 0)
		return -1;
	p->rep.samples++;
	p->rep.segments += n;
	p->rep.tokens += tokens;
	p->rep.targets += tokens - n;
	return 0;
}

/* Every array of the shard; sample_xxh3 stands for the tokens. */
void io__shard_uuid(const struct io_shard *s, char out[37])
{
	const void *arr[IO_H5_NARRAYS] = {s->sample_off, s->sample_targets, s->sample_xxh3, s->seg_off,
					  s->seg_len,	 s->seg_doc,	    s->seg_start};
	XXH3_state_t x;
	XXH128_hash_t h;
	char hex[33];

	XXH3_128bits_reset(&x);
	for (int a = 0; a < IO_H5_NARRAYS; a++)
		XXH3_128bits_update(&x, arr[a], (size_t)io__h5_array_bytes(a, s->samples, s->segments));
	h = XXH3_128bits_digest(&x);
	/* RFC 9562 version 8: a UUID whose bits the vendor defines. */
	h.high64 = (h.high64 & ~UINT64_C(0xf000)) | 0x8000;
	h.low64 = (h.low64 & ~(UINT64_C(3) << 62)) | UINT64_C(2) << 62;
	io_hash_hex((struct io_hash128){h.high64, h.low64}, hex);
	snprintf(out, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static int write_contents(const struct io_shard_buf *b, const struct io_shard *s, struct io_h5_writer *w,
			  const char *path, struct io_error *err)
{
	const struct io_h5_layout *l = io__h5_writer_layout(w);
	const void *arr[IO_H5_NARRAYS] = {s->sample_off, s->sample_targets, s->sample_xxh3, s->seg_off,
					  s->seg_len,	 s->seg_doc,	    s->seg_start};
	const char *tok = b->tokens.p;
	int fd = io__h5_writer_fd(w);

	for (int a = 0; a < IO_H5_NARRAYS; a++)
		if (io_pwrite_full(fd, path, arr[a], (size_t)io__h5_array_bytes(a, s->samples, s->segments),
				   l->array_off[a], err) < 0)
			return -1;
	for (int i = 0; i < l->nextents; i++) {
		if (io_pwrite_full(fd, path, tok, (size_t)l->extents[i].len, l->extents[i].off, err) < 0)
			return -1;
		tok += l->extents[i].len;
	}
	return io__h5_finish(w, err);
}

/* Size and hashes as they are on disk now. */
static int describe(struct io_manifest_shard *ms, const char *path, struct io_error *err)
{
	int fd = io__open_regular(path, &ms->bytes, err), rc = -1;

	if (fd < 0)
		return -1;
	/* Drops clean cached pages, so that what is hashed comes from the disk. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (io_hash_range(fd, path, 0, ms->bytes, &ms->xxh3, err) == 0)
		rc = io__shard_meta_hash(fd, path, ms->bytes, ms->extents, ms->nextents, &ms->meta_xxh3, err);
	close(fd);
	return rc;
}

static struct io_manifest_shard *next_shard(struct io_packer *p, struct io_error *err)
{
	if (p->m.nshards >= IO_MAX_SHARDS) {
		io_errorf(err, EINVAL, "more than %d shards; ask for larger ones (--shard-size)", IO_MAX_SHARDS);
		return NULL;
	}
	if (p->m.nshards == p->cap_shards) {
		int cap = p->cap_shards ? 2 * p->cap_shards : 16;
		void *s = realloc(p->m.shards, (size_t)cap * sizeof(*p->m.shards));

		if (!s) {
			io_errorf(err, ENOMEM, "out of memory for the list of shards");
			return NULL;
		}
		p->m.shards = s;
		p->cap_shards = cap;
	}
	memset(&p->m.shards[p->m.nshards], 0, sizeof(*p->m.shards));
	return &p->m.shards[p->m.nshards];
}

static int write_shard_file(struct io_packer *p, const char *path, const struct io_shard *s,
			    struct io_manifest_shard *ms, struct io_error *err)
{
	struct io_h5_attrs a = {.seed = p->m.seed,
				.seq_length = p->m.seq_length,
				.vocab_size = p->m.vocab_size,
				.eos_token_id = p->m.eos_token_id,
				.tokens = ms->tokens,
				.samples = ms->samples,
				.segments = ms->segments};
	const struct io_h5_layout *l;
	struct io_h5_writer *w = NULL;
	int rc = -1;

	strcpy(a.packing, p->m.packing);
	strcpy(a.tokenizer_sha256, p->m.tokenizer_sha256);
	io__shard_uuid(s, a.uuid);
	if (io__h5_create(path, path, &a, p->m.width, 0, &w, err) < 0)
		return -1;
	l = io__h5_writer_layout(w);
	ms->extents = malloc((size_t)l->nextents * sizeof(*ms->extents));
	if (!ms->extents) {
		io_errorf(err, ENOMEM, "%s: out of memory", path);
	} else {
		ms->nextents = l->nextents;
		memcpy(ms->extents, l->extents, (size_t)l->nextents * sizeof(*ms->extents));
		rc = write_contents(&p->buf, s, w, path, err);
	}
	io__h5_destroy(w);
	return rc;
}

int io__pack_write_shard(struct io_packer *p, struct io_error *err)
{
	struct io_shard_buf *b = &p->buf;
	struct io_shard s = {.samples = b->targets.n, .segments = b->seg_len.n, .sample_off = b->off.p,
			     .sample_targets = b->targets.p, .sample_xxh3 = b->xxh3.p, .seg_off = b->seg_off.p,
			     .seg_len = b->seg_len.p, .seg_doc = b->seg_doc.p, .seg_start = b->seg_start.p};
	struct io_manifest_shard *ms;
	char *path = NULL;
	int rc = -1;

	if (s.samples == 0)
		return 0;
	ms = next_shard(p, err);
	if (!ms)
		return -1;
	p->m.nshards++; /* from here on io__manifest_free owns what hangs on it */
	ms->tokens = b->tokens.n / p->m.width;
	ms->samples = s.samples;
	ms->segments = s.segments;
	ms->file = io__strf(err, "shard-%05d.h5", p->m.nshards - 1);
	path = ms->file ? io__strf(err, "%s/%s", p->tmp_dir, ms->file) : NULL;
	if (path && write_shard_file(p, path, &s, ms, err) == 0)
		rc = describe(ms, path, err);
	free(path);
	b->tokens.n = b->off.n = b->targets.n = b->xxh3.n = 0;
	b->seg_off.n = b->seg_len.n = b->seg_doc.n = b->seg_start.n = 0;
	return rc;
}
