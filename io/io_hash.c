/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "io/io_file.h"

/* large enough for full bandwidth of a network file system, small enough to stay near the cache */
#define HASH_BLOCK ((size_t)4 << 20)

void io_hash_hex(struct io_hash128 h, char out[33])
{
	static const char hex[] = "0123456789abcdef";
	int i;

	for (i = 0; i < 16; i++) {
		out[i] = hex[(h.hi >> (60 - 4 * i)) & 15];
		out[16 + i] = hex[(h.lo >> (60 - 4 * i)) & 15];
	}
	out[32] = '\0';
}

int io_hash_parse(const char *hex, struct io_hash128 *out)
{
	uint64_t w[2] = {0, 0};
	int i;

	for (i = 0; i < 32; i++) {
		char c = hex[i];
		unsigned d;

		if (c >= '0' && c <= '9')
			d = (unsigned)(c - '0');
		else if (c >= 'a' && c <= 'f')
			d = (unsigned)(c - 'a') + 10;
		else
			return -1; /* also the early end of a short string */
		w[i / 16] = w[i / 16] << 4 | d;
	}
	if (hex[32] != '\0')
		return -1;
	out->hi = w[0];
	out->lo = w[1];
	return 0;
}

struct io_hash128 io_hash_mem(const void *p, size_t n)
{
	XXH128_hash_t h = XXH3_128bits(p, n);
	struct io_hash128 r = {.hi = h.high64, .lo = h.low64};

	return r;
}

int io_hash_range(int fd, const char *path, int64_t off, int64_t len, struct io_hash128 *out, struct io_error *err)
{
	XXH3_state_t *st = NULL;
	char *buf = NULL;
	size_t block;
	XXH128_hash_t h;
	int rc = -1;

	if (off < 0 || len < 0 || len > INT64_MAX - off)
		return io_errorf(err, EINVAL, "%s: cannot hash %lld bytes at offset %lld: not a range of a file",
				 path, (long long)len, (long long)off);
	block = (uint64_t)len < HASH_BLOCK ? (size_t)len : HASH_BLOCK;
	buf = malloc(block ? block : 1);
	st = XXH3_createState();
	if (!buf || !st || XXH3_128bits_reset(st) != XXH_OK) {
		io_errorf(err, ENOMEM, "%s: no memory to hash it", path);
		goto done;
	}
	while (len > 0) {
		size_t n = (uint64_t)len < block ? (size_t)len : block;

		if (io_pread_full(fd, path, buf, n, off, err) != 0)
			goto done;
		XXH3_128bits_update(st, buf, n);
		off += (int64_t)n;
		len -= (int64_t)n;
	}
	h = XXH3_128bits_digest(st);
	out->hi = h.high64;
	out->lo = h.low64;
	rc = 0;
done:
	XXH3_freeState(st);
	free(buf);
	return rc;
}
