/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/runlock.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Open-file-description locks: unlike classic ones they are not lost when some library opens and closes the same file. */
static int try_lock(int fd)
{
	struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_SETLK, &fl);
}

static int held_by_other(const char *dir, int fd, struct tr_error *err)
{
	char who[200] = "";
	ssize_t n = pread(fd, who, sizeof who - 1, 0);

	who[n > 0 ? n : 0] = 0;
	who[strcspn(who, "\n")] = 0;
	return tr_errorf(err, TR_EXIT_USAGE, "%.600s is in use by another run (%s); wait for it, cancel it, or give this one its "
			 "own output_dir", dir, *who ? who : "owner unknown");
}

static int write_owner(int fd)
{
	char host[128] = "", text[256];
	const char *job = getenv("SLURM_JOB_ID");
	int n;

	gethostname(host, sizeof host - 1);
	n = snprintf(text, sizeof text, "host %s, process %ld%s%s\n", host, (long)getpid(), job ? ", Slurm job " : "",
		     job ? job : "");
	return ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n ? -1 : 0;
}

int tr_runlock_take(const char *dir, int wait_ms, char *note, size_t notelen, struct tr_error *err)
{
	char path[PATH_MAX + 8];
	int fd;

	if (note)
		*note = 0;
	snprintf(path, sizeof path, "%s/.lock", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot write to output_dir %.600s: %s", dir, strerror(errno));
	for (int waited = 0; try_lock(fd); waited += 100) {
		if (errno != EAGAIN && errno != EACCES) { /* no locks on this file system */
			if (note)
				snprintf(note, notelen, "%.200s: no file locks here (%s), so a second run in the same "
					 "output_dir would not be noticed", dir, strerror(errno));
			return fd;
		}
		if (waited >= wait_ms) {
			held_by_other(dir, fd, err);
			close(fd);
			return -1;
		}
		nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	}
	if (write_owner(fd) && note) /* the text is for people only; a full disk is reported by what needs the space */
		snprintf(note, notelen, "%.200s: cannot write: %s", path, strerror(errno));
	return fd;
}

void tr_runlock_release(int fd)
{
	if (fd >= 0)
		close(fd);
}
