/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/signals.h"
#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t pending;

static void on_signal(int sig) { pending = sig; }

void tr_signals_install(void)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	sigemptyset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sa.sa_flags |= (int)SA_RESETHAND;
	sigaction(SIGINT, &sa, NULL);
	sa = (struct sigaction){.sa_handler = SIG_IGN}; /* a reader of the output that went away is no reason to stop */
	sigaction(SIGPIPE, &sa, NULL);
}

int tr_signals_pending(void) { return pending; }

const char *tr_signals_name(int sig)
{
	switch (sig) {
	case SIGUSR2:
		return "SIGUSR2";
	case SIGTERM:
		return "SIGTERM";
	case SIGINT:
		return "SIGINT";
	default:
		return "a signal";
	}
}
