/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "io/io_h5_priv.h"

struct io_h5_writer {
	hid_t file;
	int fd; /* HDF5's own descriptor */
	int64_t end; /* bytes of the file as laid out */
	char *path, *name;
	struct io_h5_layout l;
};

static int put_int(hid_t file, const char *attr, hid_t disk, hid_t mem, const void *v)
{
	hid_t space = H5Screate(H5S_SCALAR);
	hid_t a = H5Acreate2(file, attr, disk, space, H5P_DEFAULT, H5P_DEFAULT);
	int rc = a >= 0 && H5Awrite(a, mem, v) >= 0 ? 0 : -1;

	if (a >= 0)
		H5Aclose(a);
	H5Sclose(space);
	return rc;
}

static int put_i64(hid_t file, const char *attr, int64_t v)
{
	return put_int(file, attr, H5T_STD_I64LE, H5T_NATIVE_INT64, &v);
}

static int put_text(hid_t file, const char *attr, const char *text)
{
	hid_t type = H5Tcopy(H5T_C_S1);
	size_t n = strlen(text);
	int rc = -1;

	/* Fixed length: variable-length text would put a heap into the file. */
	if (type >= 0 && H5Tset_size(type, n ? n : 1) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0)
		rc = put_int(file, attr, type, type, text);
	if (type >= 0)
		H5Tclose(type);
	return rc;
}

static int put_attrs(hid_t file, const struct io_h5_attrs *a)
{
	if (put_text(file, "format", IO_H5_FORMAT) < 0 || put_i64(file, "version", IO_H5_VERSION) < 0 ||
	    put_text(file, "uuid", a->uuid) < 0 || put_text(file, "packing", a->packing) < 0 ||
	    put_text(file, "tokenizer_sha256", a->tokenizer_sha256) < 0 ||
	    put_int(file, "seed", H5T_STD_U64LE, H5T_NATIVE_UINT64, &a->seed) < 0 ||
	    put_i64(file, "seq_length", a->seq_length) < 0 || put_i64(file, "vocab_size", a->vocab_size) < 0 ||
	    put_i64(file, "eos_token_id", a->eos_token_id) < 0 || put_i64(file, "tokens", a->tokens) < 0 ||
	    put_i64(file, "samples", a->samples) < 0 || put_i64(file, "segments", a->segments) < 0)
		return -1;
	return 0;
}

/* Creates a dataset whose space exists at once and is never filled; returns the open dataset. */
static hid_t make_dataset(hid_t file, const char *name, hid_t type, int ndim, const hsize_t *dims, hsize_t chunk)
{
	hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(ndim, dims, NULL), d = -1;

	if (dcpl >= 0 && space >= 0 && H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY) >= 0 &&
	    H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER) >= 0 && H5Pset_obj_track_times(dcpl, 0) >= 0 &&
	    (chunk == 0 || H5Pset_chunk(dcpl, 1, &chunk) >= 0))
		d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
	if (space >= 0)
		H5Sclose(space);
	if (dcpl >= 0)
		H5Pclose(dcpl);
	return d;
}

static int make_arrays(struct io_h5_writer *w, struct io_error *err)
{
	hsize_t n = (hsize_t)w->l.attrs.samples, m = (hsize_t)w->l.attrs.segments;

	for (int a = 0; a < IO_H5_NARRAYS; a++) {
		hsize_t dims[2] = {a >= IO_H5_SEG_LEN					? m
				   : a == IO_H5_SAMPLE_TARGETS || a == IO_H5_SAMPLE_XXH3 ? n
											 : n + 1,
				   2};
		hid_t d = make_dataset(w->file, io__h5_array_names[a],
				       a == IO_H5_SEG_LEN ? H5T_STD_U32LE : H5T_STD_U64LE,
				       a == IO_H5_SAMPLE_XXH3 ? 2 : 1, dims, 0);
		haddr_t addr = d < 0 ? HADDR_UNDEF : H5Dget_offset(d);

		if (addr == HADDR_UNDEF)
			io__h5_error(err, w->name, "an array cannot be created");
		if (d >= 0)
			H5Dclose(d);
		if (addr == HADDR_UNDEF)
			return -1;
		w->l.array_off[a] = (int64_t)addr;
	}
	return 0;
}

/* The fewest chunks of at least IO_H5_CHUNK tokens, all equal, so that the last one wastes next to nothing. */
static hsize_t chunk_of(hsize_t tokens)
{
	hsize_t n = tokens / IO_H5_CHUNK;

	return n > 1 ? (tokens + n - 1) / n : tokens;
}

static int make_tokens(struct io_h5_writer *w, struct io_error *err)
{
	hsize_t n = (hsize_t)w->l.attrs.tokens;
	hid_t d = make_dataset(w->file, "tokens", w->l.width == 2 ? H5T_STD_U16LE : H5T_STD_U32LE, 1, &n,
			       chunk_of(n));
	int rc;

	if (d < 0)
		return io__h5_error(err, w->name, "/tokens cannot be created");
	rc = io__h5_token_extents(d, w->name, (int64_t)n, INT64_MAX, &w->l, err);
	H5Dclose(d);
	return rc;
}

/* Takes the disk space before HDF5 writes anything: a failed flush inside the library cannot be undone cleanly. */
static int reserve(struct io_h5_writer *w, int sparse, struct io_error *err)
{
	void *handle = NULL;
	hsize_t eoa = 0;
	int64_t end;

	if (H5Fget_vfd_handle(w->file, H5P_DEFAULT, &handle) < 0 || !handle || H5Fget_filesize(w->file, &eoa) < 0)
		return io__h5_error(err, w->name, "the file cannot be laid out");
	w->fd = *(int *)handle;
	end = (int64_t)eoa;
	for (int i = 0; i < w->l.nextents; i++)
		if (w->l.extents[i].off + w->l.extents[i].len > end)
			end = w->l.extents[i].off + w->l.extents[i].len;
	w->end = end;
	/* 1 MiB more for what HDF5 still adds; close cuts the file to its end. */
	if (!sparse && fallocate(w->fd, 0, 0, end + (1 << 20)) < 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
		int code = errno;

		return io_errorf(err, code, "%s: cannot reserve %lld bytes: %s", w->name, (long long)end,
				 strerror(code));
	}
	return 0;
}

int io__h5_create(const char *path, const char *name, const struct io_h5_attrs *attrs, int width, int sparse,
		  struct io_h5_writer **out, struct io_error *err)
{
	struct io_h5_writer *w = calloc(1, sizeof(*w));
	hid_t fapl = -1, fcpl = -1;
	struct io_h5_guard g;
	int rc = -1;

	*out = NULL;
	if (!w)
		return io_errorf(err, ENOMEM, "%s: out of memory", name);
	w->file = w->fd = -1;
	w->path = strdup(path);
	w->name = strdup(name);
	w->l.attrs = *attrs;
	w->l.width = width;
	io__h5_enter(&g);
	fapl = io__h5_fapl();
	fcpl = H5Pcreate(H5P_FILE_CREATE);
	/* No times in the file: the same contents are the same bytes. */
	if (!w->path || !w->name || fapl < 0 || fcpl < 0 || H5Pset_obj_track_times(fcpl, 0) < 0)
		io__h5_error(err, name, "the HDF5 library does not work");
	else if ((w->file = H5Fcreate(path, H5F_ACC_EXCL, fcpl, fapl)) < 0)
		io__h5_error(err, name, "cannot be created");
	else if (put_attrs(w->file, attrs) < 0)
		io__h5_error(err, name, "attributes cannot be written");
	else if (make_arrays(w, err) == 0 && make_tokens(w, err) == 0)
		rc = reserve(w, sparse, err);
	if (fcpl >= 0)
		H5Pclose(fcpl);
	if (fapl >= 0)
		H5Pclose(fapl);
	io__h5_leave(&g);
	if (rc < 0)
		io__h5_destroy(w);
	else
		*out = w;
	return rc;
}

const struct io_h5_layout *io__h5_writer_layout(const struct io_h5_writer *w)
{
	return &w->l;
}

int io__h5_writer_fd(const struct io_h5_writer *w)
{
	return w->fd;
}

int io__h5_finish(struct io_h5_writer *w, struct io_error *err)
{
	struct io_h5_guard g;
	int rc = -1, fd;

	io__h5_enter(&g);
	if (put_i64(w->file, "complete", 1) < 0 || H5Fflush(w->file, H5F_SCOPE_GLOBAL) < 0) {
		io__h5_error(err, w->name, "cannot be completed");
	} else if (H5Fclose(w->file) < 0) {
		io__h5_error(err, w->name, "cannot be closed");
	} else {
		w->file = w->fd = -1;
		rc = 0;
	}
	io__h5_leave(&g);
	if (rc < 0)
		return -1;
	fd = open(w->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0) {
		int code = errno;

		rc = io_errorf(err, code, "%s: cannot be synced: %s", w->name, strerror(code));
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

void io__h5_destroy(struct io_h5_writer *w)
{
	struct io_h5_guard g;
	int keep = errno;

	if (!w)
		return;
	if (w->file >= 0) {
		io__h5_enter(&g);
		/* After a full disk: give the reserved space back so that the library's last flush succeeds. */
		if (w->fd >= 0 && ftruncate(w->fd, 0) < 0)
			keep = errno;
		H5Fclose(w->file);
		io__h5_leave(&g);
		unlink(w->path);
	}
	io__h5_layout_free(&w->l);
	free(w->path);
	free(w->name);
	free(w);
	errno = keep;
}
