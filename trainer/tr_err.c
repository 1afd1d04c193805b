/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/tr_err.h"

#include <stdarg.h>
#include <stdio.h>

int tr_errorf(struct tr_error *err, int exit_code, const char *fmt, ...)
{
	va_list ap;

	if (!err || err->text[0])
		return -1;
	err->exit_code = exit_code;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	/* names and values of files and users are quoted in texts: they shall neither break the line nor drive a terminal */
	for (char *p = err->text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return -1;
}

int tr_error_sp(struct tr_error *err, const struct sp_error *e)
{
	int code = TR_EXIT_FAIL;

	switch (e->code) {
	case SP_EUSAGE:
		code = TR_EXIT_USAGE;
		break;
	case SP_ELAUNCH:
		code = TR_EXIT_LAUNCH;
		break;
	case SP_ETIMEOUT:
	case SP_EPEER:
		code = TR_EXIT_PEER;
		break;
	case SP_EDEVICE:
	case SP_ENOMEM:
	case SP_EINTERNAL:
		break;
	}
	return tr_errorf(err, code, "%s", e->text);
}

int tr_error_io(struct tr_error *err, int exit_code, const struct io_error *e)
{
	return tr_errorf(err, exit_code, "%s", e->text);
}
