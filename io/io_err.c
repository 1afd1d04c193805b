/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include "io/io_err.h"

int io_errorf(struct io_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return -1;
	/* An argument may be err->text itself (adding context), so format beside it. */
	char text[sizeof(err->text)];

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = text; *p; p++) /* file names and foreign text must not break the one-line promise */
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = ' ';
	err->code = code;
	__builtin_memcpy(err->text, text, sizeof(text));
	return -1;
}
