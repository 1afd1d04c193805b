/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tr_text_real(double d, char buf[TR_TEXT])
{
	char s[TR_TEXT], *e;

	for (int p = 1; p <= 17; p++) {
		snprintf(s, sizeof s, "%.*g", p, d);
		if (strtod(s, NULL) == d)
			break;
	}
	e = strchr(s, 'e');
	if (strchr(s, '.') || strchr(s, 'n')) /* inf and nan have no point to add */
		snprintf(buf, TR_TEXT, "%s", s);
	else if (e)
		snprintf(buf, TR_TEXT, "%.*s.0%.8s", (int)(e - s), s, e);
	else
		snprintf(buf, TR_TEXT, "%.29s.0", s);
	return buf;
}

const char *tr_text_bytes(int64_t n, char buf[TR_TEXT])
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double x = (double)n;
	int u = 0;

	for (; x >= 1024 && u < 5; u++)
		x /= 1024;
	snprintf(buf, TR_TEXT, x < 10 && u ? "%.1f %s" : "%.0f %s", x, unit[u]);
	return buf;
}

const char *tr_text_count(double n, char buf[TR_TEXT])
{
	static const char *const unit[] = {"", "k", "M", "G", "T"};
	int u = 0;

	for (; n >= 1000 && u < 4; u++)
		n /= 1000;
	snprintf(buf, TR_TEXT, n >= 100 || !u ? "%.0f%s" : "%.3g%s", n, unit[u]);
	return buf;
}

const char *tr_text_duration(double s, char buf[TR_TEXT])
{
	int64_t t = s > 0 && s < 1e12 ? (int64_t)(s + 0.5) : 0;
	int sec = (int)(t % 60), min = (int)(t / 60 % 60), hour = (int)(t / 3600 % 24);
	long day = (long)(t / 86400);

	if (day)
		snprintf(buf, TR_TEXT, "%ldd %02d:%02d", day, hour, min);
	else if (hour)
		snprintf(buf, TR_TEXT, "%d:%02d:%02d", hour, min, sec);
	else
		snprintf(buf, TR_TEXT, "%d:%02d", min, sec);
	return buf;
}
