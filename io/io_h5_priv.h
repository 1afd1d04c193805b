/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_H5_PRIV_H
#define IO_IO_H5_PRIV_H
/* Private: shared by io_h5_read.c and io_h5_write.c only. */
#include <hdf5.h>
#include "io/io_h5.h"

/* Brackets every stretch of HDF5 calls: one thread at a time (not every build of the library is thread-safe) and no
 * printing of its own; leave restores what the program had set. */
struct io_h5_guard {
	H5E_auto2_t func;
	void *data;
};
void io__h5_enter(struct io_h5_guard *g);
void io__h5_leave(struct io_h5_guard *g);

/* File access properties: format of HDF5 1.10, no file locks. */
hid_t io__h5_fapl(void);
/* Turns HDF5's error stack into one line: "name: what: innermost reason". */
int io__h5_error(struct io_error *err, const char *name, const char *what);

extern const char *const io__h5_array_names[IO_H5_NARRAYS];
/* File offsets of a dataset's contents; appends to l->extents when it is /tokens. */
int io__h5_token_extents(hid_t dset, const char *name, int64_t tokens, int64_t file_bytes, struct io_h5_layout *l,
			 struct io_error *err);

#endif
