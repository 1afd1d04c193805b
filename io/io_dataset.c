/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_dataset_priv.h"
#include "io/io_file_priv.h"
#include "io/io_sha256.h"

int io__tokenizer_check(const char *dir, const struct io_manifest *m, struct io_error *err)
{
	char *path, *data = NULL, hex[65];
	size_t len = 0;
	int rc = -1;

	if (!m->tokenizer_sha256[0])
		return 0;
	path = io__strf(err, "%s/tokenizer.json", dir);
	if (!path)
		return -1;
	if (io_read_file(path, (size_t)256 << 20, &data, &len, err) == 0) {
		io__sha256_hex(data, len, hex);
		rc = strcmp(hex, m->tokenizer_sha256) == 0
			     ? 0
			     : io_errorf(err, EBADMSG,
					 "%s: is not the tokenizer the dataset was packed with (SHA-256 differs); put the "
					 "right file back or pack again",
					 path);
	}
	free(data);
	free(path);
	return rc;
}

static int alloc_tables(struct io_dataset *ds, const char *dir, struct io_error *err)
{
	size_t n = (size_t)ds->m.nshards;

	ds->dir = strdup(dir);
	ds->shards = calloc(n, sizeof(*ds->shards));
	ds->paths = calloc(n, sizeof(*ds->paths));
	ds->first = calloc(n + 1, sizeof(*ds->first));
	ds->fds = io__fdcache_create();
	if (!ds->dir || !ds->shards || !ds->paths || !ds->first || !ds->fds)
		return io_errorf(err, ENOMEM, "%s: out of memory", dir);
	return 0;
}

int io_dataset_open(const char *dir, struct io_dataset **out, struct io_error *err)
{
	struct io_dataset *ds = calloc(1, sizeof(*ds));

	*out = NULL;
	if (!ds)
		return io_errorf(err, ENOMEM, "%s: out of memory", dir);
	pthread_mutex_init(&ds->lock, NULL);
	if (io__manifest_read(dir, &ds->m, &ds->manifest_hash, err) < 0 || alloc_tables(ds, dir, err) < 0 ||
	    io__tokenizer_check(dir, &ds->m, err) < 0)
		goto fail;
	for (int i = 0; i < ds->m.nshards; i++) {
		const struct io_manifest_shard *ms = &ds->m.shards[i];

		ds->paths[i] = io__strf(err, "%s/%s", dir, ms->file);
		if (!ds->paths[i] || io__shard_open(ds->paths[i], &ds->m, ms, &ds->shards[i], err) < 0)
			goto fail;
		ds->first[i + 1] = ds->first[i] + ms->samples;
		if (ds->shards[i].max_seg > ds->max_seg)
			ds->max_seg = ds->shards[i].max_seg;
	}
	/* Only now is the count known to be backed by files of that size. */
	ds->seen = calloc((size_t)(ds->m.samples + 7) / 8, 1);
	if (!ds->seen) {
		io_errorf(err, ENOMEM, "%s: out of memory", dir);
		goto fail;
	}
	*out = ds;
	return 0;
fail:
	io_dataset_close(ds);
	return -1;
}

void io_dataset_close(struct io_dataset *ds)
{
	int keep = errno;

	if (!ds)
		return;
	for (int i = 0; i < ds->m.nshards; i++) {
		if (ds->shards)
			io__shard_close(&ds->shards[i]);
		if (ds->paths)
			free(ds->paths[i]);
	}
	free(ds->shards);
	free(ds->paths);
	free(ds->first);
	free(ds->seen);
	free(ds->dir);
	io__fdcache_destroy(ds->fds);
	io__manifest_free(&ds->m);
	pthread_mutex_destroy(&ds->lock);
	free(ds);
	errno = keep;
}

void io_dataset_info(const struct io_dataset *ds, struct io_dataset_info *out)
{
	const struct io_manifest *m = &ds->m;

	*out = (struct io_dataset_info){
		.seq_length = m->seq_length,
		.vocab_size = m->vocab_size,
		.eos_token_id = m->eos_token_id,
		.pad_token_id = m->pad_token_id,
		.tokens = m->tokens,
		.targets = m->targets,
		.samples = m->samples,
		.segments = m->segments,
		.documents = m->documents,
		.nshards = m->nshards,
		.packing = m->packing,
		.tokenizer_kind = m->tokenizer_kind,
		.tokenizer_sha256 = m->tokenizer_sha256,
		.dir = ds->dir,
		.manifest_hash = ds->manifest_hash,
	};
}

/* The shard that holds sample i, by bisection; i is in range. */
static int find_shard(const struct io_dataset *ds, int64_t i)
{
	int lo = 0, hi = ds->m.nshards;

	while (hi - lo > 1) {
		int mid = lo + (hi - lo) / 2;

		if (ds->first[mid] <= i)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static int check_index(const struct io_dataset *ds, int64_t i, struct io_error *err)
{
	if (i >= 0 && i < ds->m.samples)
		return 0;
	return io_errorf(err, EINVAL, "%s: there is no sample %" PRId64 "; samples are 0 to %" PRId64, ds->dir, i,
			 ds->m.samples - 1);
}

int io_dataset_sample(const struct io_dataset *ds, int64_t i, struct io_sample *out, struct io_error *err)
{
	const struct io_shard *s;
	int64_t k, g;
	int f;

	if (check_index(ds, i, err) < 0)
		return -1;
	f = find_shard(ds, i);
	s = &ds->shards[f];
	k = i - ds->first[f];
	g = (int64_t)s->seg_off[k];
	*out = (struct io_sample){
		.tokens = (int64_t)(s->sample_off[k + 1] - s->sample_off[k]),
		.targets = (int64_t)s->sample_targets[k],
		.nseg = (int64_t)s->seg_off[k + 1] - g,
		.seg_len = s->seg_len + g,
		.seg_doc = s->seg_doc + g,
		.seg_start = s->seg_start + g,
	};
	return 0;
}

int io_dataset_read(struct io_dataset *ds, int64_t i, int64_t t0, int64_t t1, uint32_t *out, struct io_error *err)
{
	struct io_sample sm;
	int f, fd, seen, rc;

	if (io_dataset_sample(ds, i, &sm, err) < 0)
		return -1;
	if (t0 < 0 || t1 < t0 || t1 > sm.tokens)
		return io_errorf(err, EINVAL, "%s: tokens %" PRId64 " to %" PRId64 " of sample %" PRId64
				 ", which has %" PRId64, ds->dir, t0, t1, i, sm.tokens);
	pthread_mutex_lock(&ds->lock);
	seen = ds->seen[i / 8] >> (i % 8) & 1;
	pthread_mutex_unlock(&ds->lock);
	if (t0 == t1 && seen)
		return 0;
	f = find_shard(ds, i);
	fd = io__fdcache_get(ds->fds, f, ds->paths[f], ds->m.shards[f].bytes, err);
	if (fd < 0)
		return -1;
	rc = io__sample_scan(fd, ds->paths[f], &ds->m, &ds->m.shards[f], &ds->shards[f], i - ds->first[f], t0, t1, out,
			     !seen, err);
	io__fdcache_put(ds->fds, f, fd);
	if (rc < 0 || seen)
		return rc;
	pthread_mutex_lock(&ds->lock);
	ds->seen[i / 8] |= (uint8_t)(1u << (i % 8));
	pthread_mutex_unlock(&ds->lock);
	return 0;
}
