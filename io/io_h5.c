/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "io/io_h5_priv.h"

static pthread_mutex_t h5_lock = PTHREAD_MUTEX_INITIALIZER;

const char *const io__h5_array_names[IO_H5_NARRAYS] = {
	"sample_off", "sample_targets", "sample_xxh3", "seg_off", "seg_len", "seg_doc", "seg_start",
};

int64_t io__h5_array_bytes(enum io_h5_array a, int64_t samples, int64_t segments)
{
	switch (a) {
	case IO_H5_SAMPLE_OFF:
	case IO_H5_SEG_OFF:
		return (samples + 1) * 8;
	case IO_H5_SAMPLE_TARGETS:
		return samples * 8;
	case IO_H5_SAMPLE_XXH3:
		return samples * 16;
	case IO_H5_SEG_LEN:
		return segments * 4;
	default:
		return segments * 8;
	}
}

void io__h5_enter(struct io_h5_guard *g)
{
	pthread_mutex_lock(&h5_lock);
	H5Eget_auto2(H5E_DEFAULT, &g->func, &g->data);
	H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void io__h5_leave(struct io_h5_guard *g)
{
	H5Eset_auto2(H5E_DEFAULT, g->func, g->data);
	pthread_mutex_unlock(&h5_lock);
}

hid_t io__h5_fapl(void)
{
	hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);

	if (fapl < 0)
		return -1;
	/* Shards are written once and published by rename, so a lock protects nothing, and many network file systems
	 * fail it with an errno the library does not forgive. The 1.10 format marks files that were not closed. */
	if (H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
	    H5Pset_file_locking(fapl, 0, 1) < 0) {
		H5Pclose(fapl);
		return -1;
	}
	return fapl;
}

struct reason {
	char text[200];
	int lock_failed;
};

static herr_t innermost(unsigned n, const H5E_error2_t *e, void *arg)
{
	struct reason *r = arg;

	if (n == 0)
		snprintf(r->text, sizeof(r->text), "%s", e->desc ? e->desc : "no reason given");
	if (e->desc && strstr(e->desc, "unable to lock"))
		r->lock_failed = 1;
	return 0;
}

int io__h5_error(struct io_error *err, const char *name, const char *what)
{
	const char *env = getenv("HDF5_USE_FILE_LOCKING");
	struct reason r = {.text = "no reason given"};

	H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, &r);
	if (r.lock_failed && env && (!strcasecmp(env, "TRUE") || !strcmp(env, "1")))
		return io_errorf(err, ENOLCK,
				 "%s: HDF5_USE_FILE_LOCKING=%s forces file locks and this file system refuses them; "
				 "unset HDF5_USE_FILE_LOCKING",
				 name, env);
	return io_errorf(err, EBADMSG, "%s: %s (HDF5: %s)", name, what, r.text);
}

void io__h5_layout_free(struct io_h5_layout *l)
{
	free(l->extents);
	l->extents = NULL;
	l->nextents = 0;
}

/* Appends [off, off + len) or grows the last extent; 0 or -1 out of memory. Room doubles at powers of two. */
static int push_extent(struct io_h5_layout *l, int64_t off, int64_t len)
{
	int n = l->nextents;

	if (n && l->extents[n - 1].off + l->extents[n - 1].len == off) {
		l->extents[n - 1].len += len;
		return 0;
	}
	if ((n & (n - 1)) == 0) {
		struct io_extent *e = realloc(l->extents, (n ? 2 * (size_t)n : 1) * sizeof(*e));

		if (!e)
			return -1;
		l->extents = e;
	}
	l->extents[n] = (struct io_extent){off, len};
	l->nextents = n + 1;
	return 0;
}

static int inside(uint64_t addr, int64_t len, int64_t file_bytes)
{
	return addr != HADDR_UNDEF && len <= file_bytes && addr <= (uint64_t)(file_bytes - len);
}

static int chunk_extents(hid_t dset, hsize_t chunk, const char *name, int64_t tokens, int64_t file_bytes,
			 struct io_h5_layout *l, struct io_error *err)
{
	/* A tiny chunk would make this loop, and every read, long: a hostile file's only way to cost time here. */
	if (chunk < 4096 && chunk < (hsize_t)tokens)
		return io_errorf(err, EBADMSG, "%s: /tokens has chunks of %llu tokens; at least 4096 are needed", name,
				 (unsigned long long)chunk);
	for (int64_t t = 0; t < tokens; t += (int64_t)chunk) {
		int64_t n = tokens - t < (int64_t)chunk ? tokens - t : (int64_t)chunk;
		hsize_t at = (hsize_t)t, size = 0;
		haddr_t addr = HADDR_UNDEF;
		unsigned mask = 0;

		if (H5Dget_chunk_info_by_coord(dset, &at, &mask, &addr, &size) < 0)
			return io__h5_error(err, name, "chunk index of /tokens cannot be read");
		if (size != chunk * (hsize_t)l->width || !inside(addr, n * l->width, file_bytes))
			return io_errorf(err, EBADMSG, "%s: /tokens has no stored chunk at token %lld inside the file",
					 name, (long long)t);
		if (push_extent(l, (int64_t)addr, n * l->width) < 0)
			return io_errorf(err, ENOMEM, "%s: out of memory", name);
	}
	return 0;
}

int io__h5_token_extents(hid_t dset, const char *name, int64_t tokens, int64_t file_bytes, struct io_h5_layout *l,
			 struct io_error *err)
{
	hid_t dcpl = H5Dget_create_plist(dset);
	hsize_t chunk = 0;
	int rc = -1;

	if (dcpl < 0)
		return io__h5_error(err, name, "/tokens cannot be read");
	if (H5Pget_nfilters(dcpl) != 0 || H5Pget_external_count(dcpl) != 0) {
		io_errorf(err, EBADMSG,
			  "%s: /tokens is compressed, filtered or external; only plain data is read: pack it again", name);
	} else if (H5Pget_layout(dcpl) == H5D_CONTIGUOUS) {
		haddr_t addr = H5Dget_offset(dset);

		if (!inside(addr, tokens * l->width, file_bytes))
			io_errorf(err, EBADMSG, "%s: /tokens does not lie inside the file", name);
		else if (push_extent(l, (int64_t)addr, tokens * l->width) < 0)
			io_errorf(err, ENOMEM, "%s: out of memory", name);
		else
			rc = 0;
	} else if (H5Pget_layout(dcpl) == H5D_CHUNKED && H5Pget_chunk(dcpl, 1, &chunk) == 1 && chunk > 0 &&
		   chunk <= UINT32_MAX) {
		rc = chunk_extents(dset, chunk, name, tokens, file_bytes, l, err);
	} else {
		io_errorf(err, EBADMSG, "%s: /tokens is neither chunked nor contiguous", name);
	}
	H5Pclose(dcpl);
	return rc;
}
