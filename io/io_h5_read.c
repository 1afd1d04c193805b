/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "io/io_h5_priv.h"

struct reader {
	hid_t file;
	const char *name;
	int64_t bytes;
	struct io_h5_layout *l;
	struct io_error *err;
};

static int wrong(const struct reader *r, const char *what, const char *which)
{
	return io_errorf(r->err, EBADMSG, "%s: %s %s; this is no shard of this version: pack the dataset again", r->name,
			 what, which);
}

/* One integer attribute of the root group into a 64-bit integer of memory type `mem`. */
static int attr_int(const struct reader *r, const char *attr, hid_t mem, void *out)
{
	hid_t a = -1, type = -1, space = -1;
	int rc = -1;

	if (H5Aexists(r->file, attr) <= 0)
		return wrong(r, "lacks attribute", attr);
	a = H5Aopen(r->file, attr, H5P_DEFAULT);
	if (a < 0)
		return io__h5_error(r->err, r->name, "attribute cannot be read");
	type = H5Aget_type(a);
	space = H5Aget_space(a);
	if (type < 0 || space < 0 || H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) != 8 ||
	    H5Sget_simple_extent_npoints(space) != 1)
		wrong(r, "wants one 64-bit integer in attribute", attr);
	else if (H5Aread(a, mem, out) < 0)
		io__h5_error(r->err, r->name, "attribute cannot be read");
	else
		rc = 0;
	if (space >= 0)
		H5Sclose(space);
	if (type >= 0)
		H5Tclose(type);
	H5Aclose(a);
	return rc;
}

static int attr_text(const struct reader *r, const char *attr, char *out, size_t cap)
{
	hid_t a = -1, type = -1, space = -1;
	size_t size = 0;
	int rc = -1;

	if (H5Aexists(r->file, attr) <= 0)
		return wrong(r, "lacks attribute", attr);
	a = H5Aopen(r->file, attr, H5P_DEFAULT);
	if (a < 0)
		return io__h5_error(r->err, r->name, "attribute cannot be read");
	type = H5Aget_type(a);
	space = H5Aget_space(a);
	if (type >= 0 && H5Tget_class(type) == H5T_STRING)
		size = H5Tget_size(type);
	if (space < 0 || size == 0 || size > cap || H5Tis_variable_str(type) != 0 ||
	    H5Sget_simple_extent_npoints(space) != 1)
		wrong(r, "wants a short text in attribute", attr);
	else if (H5Aread(a, type, out) < 0)
		io__h5_error(r->err, r->name, "attribute cannot be read");
	else
		rc = 0;
	out[rc == 0 && size < cap ? size : cap - 1] = '\0';
	if (space >= 0)
		H5Sclose(space);
	if (type >= 0)
		H5Tclose(type);
	H5Aclose(a);
	return rc;
}

static int read_attrs(const struct reader *r)
{
	struct io_h5_attrs *a = &r->l->attrs;
	char format[32];
	int64_t version = 0, complete = 0;

	if (attr_text(r, "format", format, sizeof(format)) < 0)
		return -1;
	if (strcmp(format, IO_H5_FORMAT) != 0)
		return wrong(r, "has format", format);
	if (attr_int(r, "version", H5T_NATIVE_INT64, &version) < 0)
		return -1;
	if (version != IO_H5_VERSION)
		return io_errorf(r->err, EBADMSG, "%s: shard version %lld, this program reads version %d", r->name,
				 (long long)version, IO_H5_VERSION);
	if (H5Aexists(r->file, "complete") <= 0 || attr_int(r, "complete", H5T_NATIVE_INT64, &complete) < 0 ||
	    complete != 1)
		return io_errorf(r->err, EBADMSG, "%s: was never completed (packing was interrupted): pack it again",
				 r->name);
	if (attr_text(r, "uuid", a->uuid, sizeof(a->uuid)) < 0 ||
	    attr_text(r, "packing", a->packing, sizeof(a->packing)) < 0 ||
	    attr_text(r, "tokenizer_sha256", a->tokenizer_sha256, sizeof(a->tokenizer_sha256)) < 0 ||
	    attr_int(r, "seed", H5T_NATIVE_UINT64, &a->seed) < 0 ||
	    attr_int(r, "seq_length", H5T_NATIVE_INT64, &a->seq_length) < 0 ||
	    attr_int(r, "vocab_size", H5T_NATIVE_INT64, &a->vocab_size) < 0 ||
	    attr_int(r, "eos_token_id", H5T_NATIVE_INT64, &a->eos_token_id) < 0 ||
	    attr_int(r, "tokens", H5T_NATIVE_INT64, &a->tokens) < 0 ||
	    attr_int(r, "samples", H5T_NATIVE_INT64, &a->samples) < 0 ||
	    attr_int(r, "segments", H5T_NATIVE_INT64, &a->segments) < 0)
		return -1;
	/* From here on products with 16 cannot overflow, and no count exceeds what the file can hold. */
	if (a->tokens < 1 || a->samples < 1 || a->segments < 1 || a->tokens > r->bytes / 2 ||
	    a->samples > r->bytes / 16 || a->segments > r->bytes / 8)
		return io_errorf(r->err, EBADMSG,
				 "%s: %lld tokens, %lld samples, %lld segments cannot lie in a file of %lld bytes", r->name,
				 (long long)a->tokens, (long long)a->samples, (long long)a->segments,
				 (long long)r->bytes);
	return 0;
}

/* Opens a dataset that must be a plain object of this very file: an external link would open other files. */
static hid_t open_dataset(const struct reader *r, const char *which)
{
	H5L_info_t info;
	hid_t d;

	if (H5Lexists(r->file, which, H5P_DEFAULT) <= 0 || H5Lget_info(r->file, which, &info, H5P_DEFAULT) < 0 ||
	    info.type != H5L_TYPE_HARD) {
		wrong(r, "lacks dataset", which);
		return -1;
	}
	d = H5Dopen2(r->file, which, H5P_DEFAULT);
	if (d < 0)
		io__h5_error(r->err, r->name, "dataset cannot be opened");
	return d;
}

static int check_dims(const struct reader *r, hid_t d, const char *which, int ndim, const int64_t *want)
{
	hsize_t dims[2] = {0, 0};
	hid_t space = H5Dget_space(d);
	int ok = space >= 0 && H5Sget_simple_extent_ndims(space) == ndim &&
		 H5Sget_simple_extent_dims(space, dims, NULL) == ndim;

	for (int i = 0; ok && i < ndim; i++)
		ok = dims[i] == (hsize_t)want[i];
	if (space >= 0)
		H5Sclose(space);
	return ok ? 0 : wrong(r, "has the wrong dimensions in dataset", which);
}

static int array_type_is(hid_t d, hid_t want)
{
	hid_t t = H5Dget_type(d);
	int eq = t >= 0 && H5Tequal(t, want) > 0;

	if (t >= 0)
		H5Tclose(t);
	return eq;
}

static int read_array(const struct reader *r, enum io_h5_array a)
{
	const char *which = io__h5_array_names[a];
	int64_t n = r->l->attrs.samples, m = r->l->attrs.segments;
	int64_t want[2] = {a >= IO_H5_SEG_LEN ? m : a == IO_H5_SAMPLE_TARGETS || a == IO_H5_SAMPLE_XXH3 ? n : n + 1, 2};
	int64_t bytes = io__h5_array_bytes(a, n, m);
	hid_t d = open_dataset(r, which), dcpl = -1;
	haddr_t addr = HADDR_UNDEF;
	int rc = -1;

	if (d < 0)
		return -1;
	dcpl = H5Dget_create_plist(d);
	if (!array_type_is(d, a == IO_H5_SEG_LEN ? H5T_STD_U32LE : H5T_STD_U64LE)) {
		wrong(r, "has the wrong type in dataset", which);
	} else if (check_dims(r, d, which, a == IO_H5_SAMPLE_XXH3 ? 2 : 1, want) == 0) {
		if (dcpl >= 0 && H5Pget_layout(dcpl) == H5D_CONTIGUOUS && H5Pget_external_count(dcpl) == 0)
			addr = H5Dget_offset(d);
		if (addr == HADDR_UNDEF || bytes > r->bytes || addr > (haddr_t)(r->bytes - bytes))
			wrong(r, "does not hold inside the file dataset", which);
		else
			rc = 0;
	}
	r->l->array_off[a] = (int64_t)addr;
	if (dcpl >= 0)
		H5Pclose(dcpl);
	H5Dclose(d);
	return rc;
}

static int read_tokens(const struct reader *r)
{
	int64_t n = r->l->attrs.tokens;
	hid_t d = open_dataset(r, "tokens");
	int rc = -1;

	if (d < 0)
		return -1;
	r->l->width = array_type_is(d, H5T_STD_U16LE) ? 2 : array_type_is(d, H5T_STD_U32LE) ? 4 : 0;
	if (!r->l->width)
		wrong(r, "has neither u16 nor u32 little-endian in dataset", "tokens");
	else if (check_dims(r, d, "tokens", 1, &n) == 0)
		rc = io__h5_token_extents(d, r->name, n, r->bytes, r->l, r->err);
	H5Dclose(d);
	return rc;
}

static int no_userblock(const struct reader *r)
{
	hid_t fcpl = H5Fget_create_plist(r->file);
	hsize_t size = 1;
	int ok = fcpl >= 0 && H5Pget_userblock(fcpl, &size) >= 0 && size == 0;

	if (fcpl >= 0)
		H5Pclose(fcpl);
	return ok ? 0 : wrong(r, "has", "a user block");
}

int io__h5_open(const char *path, const char *name, int64_t file_bytes, struct io_h5_layout *out,
		struct io_error *err)
{
	struct reader r = {-1, name, file_bytes, out, err};
	struct io_h5_guard g;
	hid_t fapl = -1;
	int rc = -1;

	memset(out, 0, sizeof(*out));
	io__h5_enter(&g);
	fapl = io__h5_fapl();
	if (fapl < 0) {
		io__h5_error(err, name, "the HDF5 library does not work");
		goto fail;
	}
	r.file = H5Fopen(path, H5F_ACC_RDONLY, fapl);
	if (r.file < 0) {
		io__h5_error(err, name, "is damaged, unfinished or no HDF5 file");
		goto fail;
	}
	rc = no_userblock(&r);
	if (rc == 0)
		rc = read_attrs(&r);
	for (int a = 0; rc == 0 && a < IO_H5_NARRAYS; a++)
		rc = read_array(&r, a);
	if (rc == 0)
		rc = read_tokens(&r);
fail:
	if (r.file >= 0)
		H5Fclose(r.file);
	if (fapl >= 0)
		H5Pclose(fapl);
	io__h5_leave(&g);
	if (rc < 0)
		io__h5_layout_free(out);
	return rc;
}
