/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state lives on the stack */
#include <xxhash.h>
#include "io/io_dataset_priv.h"

#define PIECE 65536

/* One pass over (part of) a sample: read a piece, hash it, widen what is wanted of it. */
struct scan {
	int fd, width, check_hash;
	const char *path;
	int64_t vocab;
	int64_t at;     /* token of the sample the next byte belongs to */
	int64_t t0, t1; /* wanted tokens */
	uint32_t *out;
	XXH3_state_t x;
	struct io_error *err;
};

/* n tokens, of which the first is token number at; width bytes each, little-endian. */
static int widen(struct scan *s, const unsigned char *buf, int64_t n)
{
	int64_t a = s->t0 > s->at ? s->t0 - s->at : 0, b = s->t1 - s->at < n ? s->t1 - s->at : n;
	uint32_t most = 0;

	for (int64_t i = a; i < b; i++) {
		const unsigned char *p = buf + i * s->width;
		uint32_t id = s->width == 2 ? p[0] | (uint32_t)p[1] << 8
					    : p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;

		most = id > most ? id : most;
		if (s->out)
			s->out[s->at + i - s->t0] = id;
	}
	s->at += n;
	if (a < b && most >= s->vocab)
		return io_errorf(s->err, EBADMSG, "%s: token id %" PRIu32 " is outside the vocabulary of %" PRId64,
				 s->path, most, s->vocab);
	return 0;
}

static int scan_piece(void *arg, int64_t off, int64_t len)
{
	unsigned char buf[PIECE];
	struct scan *s = arg;

	while (len > 0) {
		size_t n = len < PIECE ? (size_t)len : PIECE;

		if (io_pread_full(s->fd, s->path, buf, n, off, s->err) < 0)
			return -1;
		if (s->check_hash)
			XXH3_128bits_update(&s->x, buf, n);
		if (widen(s, buf, (int64_t)n / s->width) < 0)
			return -1;
		off += (int64_t)n;
		len -= (int64_t)n;
	}
	return 0;
}

int io__sample_scan(int fd, const char *path, const struct io_manifest *m, const struct io_manifest_shard *ms,
		    const struct io_shard *sh, int64_t local, int64_t t0, int64_t t1, uint32_t *out, int check_hash,
		    struct io_error *err)
{
	struct scan s = {.fd = fd, .width = m->width, .check_hash = check_hash, .path = path, .vocab = m->vocab_size,
			 .t0 = t0, .t1 = t1, .out = out, .err = err};
	int64_t begin = (int64_t)sh->sample_off[local], end = (int64_t)sh->sample_off[local + 1];
	XXH128_hash_t h;

	s.at = check_hash ? 0 : t0;
	if (!check_hash) {
		end = begin + t1;
		begin += t0;
	}
	XXH3_128bits_reset(&s.x);
	if (io__extents_walk(ms->extents, ms->nextents, begin * m->width, end * m->width, scan_piece, &s) != 0)
		return -1;
	if (!check_hash)
		return 0;
	h = XXH3_128bits_digest(&s.x);
	if (h.high64 != sh->sample_xxh3[2 * local] || h.low64 != sh->sample_xxh3[2 * local + 1])
		return io_errorf(err, EBADMSG,
				 "%s: tokens of sample %" PRId64
				 " do not match their hash: the shard is damaged; see spctl verify",
				 path, local);
	return 0;
}
