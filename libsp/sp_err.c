/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "libsp/sp_err.h"

int sp_errorf(struct sp_error *err, enum sp_code code, const char *fmt, ...)
{
	char text[sizeof(err->text)]; /* an argument may be err->text itself */
	va_list ap;

	if (!err)
		return -1;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = text; *p; p++) /* foreign text must not break the one-line promise */
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = ' ';
	err->code = code;
	memcpy(err->text, text, sizeof(text));
	return -1;
}
