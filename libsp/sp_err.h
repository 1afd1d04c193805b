/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_ERR_H
#define LIBSP_SP_ERR_H
/*
 * Error text of libsp. Functions return 0, or -1 with one line in *err (err may be NULL).
 */
enum sp_code {
	SP_EUSAGE = 1,  /* a user's mistake: sizes, heads, options */
	SP_ELAUNCH,     /* launcher, PMIx, plugin and mesh do not agree, or a library could not start */
	SP_ETIMEOUT,    /* a peer did not arrive before the deadline; the text names it */
	SP_EPEER,       /* a peer is gone or the job was aborted */
	SP_EDEVICE,     /* a kernels call failed */
	SP_ENOMEM,
	SP_EINTERNAL,
};
struct sp_error {
	enum sp_code code;
	char text[508];
};
/* Formats into *err (if not NULL), sets code, returns -1. */
int sp_errorf(struct sp_error *err, enum sp_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
